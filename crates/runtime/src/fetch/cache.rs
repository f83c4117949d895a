//! Pages that were fetched a moment ago: one file each, in a folder of the caller's alone.
//!
//! A file is eight bytes of time, and then what the process that fetched it sent. What can not be read is as
//! good as not there.
//!
//! **Invariant:** an answer is given again only for the same URL under the same rules.

use fumehood_egress::fetch::{HEAD_BYTES, Job, Outcome, Page};
use fumehood_sys::host;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// What may be kept, and given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    /// How long a page is good.
    pub fresh: Duration,
    /// More are not kept: the oldest goes.
    pub most_pages: usize,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct Cache {
    folder: PathBuf,
    limits: CacheLimits,
}

/// What a page is kept under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key(String);

// === impl Key ===

impl Key {
    /// Whatever may change the answer: the URL, the rules, and how many redirects are followed.
    pub(crate) fn of(job: &Job, rules: &serde_json::Value) -> Self {
        let whole = serde_json::json!([job.url.to_string(), job.most_redirects, rules]).to_string();
        let digest = Sha256::digest(whole.as_bytes());
        Self(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

// === impl Cache ===

impl Cache {
    pub(crate) fn new(folder: PathBuf, limits: CacheLimits) -> Self {
        Self { folder, limits }
    }

    /// A page that is fresh and no larger than what is asked for.
    pub(crate) fn find(&self, key: &Key, most_bytes: u64, now_ms: u64) -> Option<(Page, Vec<u8>)> {
        self.is_ours().ok()?;
        let most = most_bytes.saturating_add(u64::try_from(HEAD_BYTES).ok()?).saturating_add(64);
        let mut bytes = Vec::new();
        let file =
            OpenOptions::new().read(true).custom_flags(NO_FOLLOW).open(self.folder.join(&key.0)).ok()?;
        file.take(most).read_to_end(&mut bytes).ok()?;
        let (at, rest) = bytes.split_first_chunk::<8>()?;
        // A time that is still to come is no time: clocks are set.
        let age = Duration::from_millis(now_ms.checked_sub(u64::from_le_bytes(*at))?);
        match Outcome::read(rest, most_bytes)? {
            (Outcome::Page(page), body) if age < self.limits.fresh => Some((page, body.to_vec())),
            (Outcome::Page(_) | Outcome::Failed(_), _) => None,
        }
    }

    /// Keeps a page, and lets go of those that are too old or too many.
    pub(crate) fn keep(&self, key: &Key, (page, body): (&Page, &[u8]), now_ms: u64) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        self.is_ours()?;
        self.make_room()?;
        if self.limits.most_pages == 0 {
            return Ok(());
        }
        let part = self.folder.join(format!(".{}-{:016x}", std::process::id(), host::random()?));
        let frame = Outcome::Page(page.clone()).frame();
        let written = write(&part, &[&now_ms.to_le_bytes(), &frame, body]);
        let kept = written.and_then(|()| fs::rename(&part, self.folder.join(&key.0)));
        if kept.is_err() {
            let _ = fs::remove_file(&part);
        }
        kept
    }

    /// Removes what is no longer fresh, and the oldest where there would be too many.
    fn make_room(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another fetch may have removed it meanwhile.
            let Ok(changed) = entry.metadata().and_then(|found| found.modified()) else { continue };
            let age = now.duration_since(changed).unwrap_or_default();
            if age >= self.limits.fresh {
                let _ = fs::remove_file(entry.path());
            } else {
                kept.push((changed, entry.path()));
            }
        }
        kept.sort();
        let surplus = (kept.len() + 1).saturating_sub(self.limits.most_pages);
        for (_, path) in kept.iter().take(surplus) {
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    fn is_ours(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.folder)?;
        let ours = found.is_dir() && found.uid() == host::euid() && found.mode() & 0o077 == 0;
        if ours { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

/// `O_NOFOLLOW`.
const NO_FOLLOW: i32 = 0o400_000;

fn write(path: &PathBuf, parts: &[&[u8]]) -> io::Result<()> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_egress::fetch::{Method, Url};
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Duration;

    const LIMITS: CacheLimits = CacheLimits { fresh: Duration::from_secs(120), most_pages: 128 };

    fn job(url: &str) -> Job {
        Job {
            url: Url::parse(url).unwrap(),
            method: Method::Get,
            most_bytes: 100,
            most_redirects: 5,
            time: Duration::from_secs(1),
        }
    }

    fn page(body: &[u8]) -> Page {
        Page {
            url: "https://example.com/".to_owned(),
            status: 200,
            content_type: None,
            bytes: u64::try_from(body.len()).unwrap(),
            truncated: false,
            redirects: 0,
            may_be_kept: true,
        }
    }

    fn key(url: &str) -> Key {
        Key::of(&job(url), &serde_json::json!({"reach": "public"}))
    }

    #[test]
    fn a_page_is_given_again_for_two_minutes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("fetched"), LIMITS);
        let key = key("https://example.com/");
        assert_eq!(cache.find(&key, 100, 1_000), None);
        cache.keep(&key, (&page(b"hello"), b"hello"), 1_000).unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(folder.path().join("fetched")), 0o700);
        assert_eq!(mode(folder.path().join("fetched").join(&key.0)), 0o600);
        assert_eq!(cache.find(&key, 100, 120_999), Some((page(b"hello"), b"hello".to_vec())));
        for (most, now) in [(100, 121_000), (100, 999), (4, 1_000)] {
            assert_eq!(cache.find(&key, most, now), None, "{most} {now}");
        }
    }

    #[test]
    fn other_rules_or_another_url_are_another_page() {
        let rules = |text: &str| serde_json::json!({"rules": [text]});
        let keys = [
            Key::of(&job("https://example.com/"), &rules("a")),
            Key::of(&job("https://example.com/"), &rules("b")),
            Key::of(&job("https://example.com/?q"), &rules("a")),
            Key::of(&Job { most_redirects: 1, ..job("https://example.com/") }, &rules("a")),
        ];
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(key));
        }
        assert_eq!(keys[0], Key::of(&job("HTTPS://EXAMPLE.com:443"), &rules("a")));
    }

    #[test]
    fn what_can_not_be_read_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("fetched"), LIMITS);
        let key = key("https://example.com/");
        cache.keep(&key, (&page(b"hello"), b"hello"), 1_000).unwrap();
        let path = folder.path().join("fetched").join(&key.0);
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            assert_eq!(cache.find(&key, 100, 1_000), None, "{end}");
        }
        fs::remove_file(&path).unwrap();
        fs::write(folder.path().join("other"), &whole).unwrap();
        std::os::unix::fs::symlink(folder.path().join("other"), &path).unwrap();
        assert_eq!(cache.find(&key, 100, 1_000), None);
        fs::remove_file(&path).unwrap();
        fs::write(&path, &whole).unwrap();
        assert!(cache.find(&key, 100, 1_000).is_some());
        fs::set_permissions(folder.path().join("fetched"), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(cache.find(&key, 100, 1_000), None);
        assert!(cache.keep(&key, (&page(b""), b""), 1_000).is_err());
    }

    #[test]
    fn where_none_are_kept_none_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("fetched"), CacheLimits { most_pages: 0, ..LIMITS });
        let key = key("https://example.com/");
        cache.keep(&key, (&page(b"x"), b"x"), 1_000).unwrap();
        assert_eq!(cache.find(&key, 100, 1_000), None);
    }

    #[test]
    fn no_more_are_kept_than_there_is_room_for() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path().join("fetched"), LIMITS);
        for number in 0..LIMITS.most_pages + 10 {
            cache.keep(&key(&format!("https://example.com/{number}")), (&page(b"x"), b"x"), 1_000).unwrap();
        }
        assert_eq!(fs::read_dir(folder.path().join("fetched")).unwrap().count(), LIMITS.most_pages);
        assert!(
            cache.find(&key(&format!("https://example.com/{}", LIMITS.most_pages + 9)), 100, 1_000).is_some()
        );
    }
}
