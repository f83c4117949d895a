//! Compiled modules, kept for the next run.
//!
//! ```text
//! shared/wasm/KEY.made       what came of compiling: digest, bytes and least memory of the code
//! shared/wasm/DIGEST.code    the code
//! ```
//!
//! KEY is the hash of the module, of the engine that compiled it and of what this processor can do. So an entry can
//! only ever be taken for the very module that was alone with the compilation that made it: one that takes a
//! compilation over can choose its own code, and no other's.
//!
//! **Invariant:** entries are written by the keeper, whole or not at all, and belong to who reads them.

use crate::module::Module;
use fumehood_backend::LaunchError;
use fumehood_sys::dirfd::{DirHandle, FileHandle};
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// What is kept at most; the oldest goes first.
const MOST_ENTRIES: usize = 128;
const MOST_BYTES: u64 = 2 << 30;
/// A folder of another user's, or one that others could write, is not believed.
const OTHERS_WRITE: u32 = 0o022;

/// The folder of compiled modules.
#[derive(Clone, Debug)]
pub(crate) struct Cache(PathBuf);

/// The place of one entry.
#[derive(Debug)]
pub(crate) struct Entry(PathBuf);

/// One compiled module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    /// SHA-256 of the code.
    pub(crate) digest: String,
    pub(crate) bytes: u64,
    pub(crate) least_bytes: u64,
}

/// A file that becomes an entry, or nothing: it has no name before it is whole, and goes with its maker.
#[derive(Debug)]
pub(crate) struct Draft {
    folder: DirHandle,
    file: FileHandle,
    hash: Sha256,
    bytes: u64,
}

// === impl Cache ===

impl Cache {
    /// The one in a folder that this user's runs share.
    pub(crate) fn of(shared: &Path) -> Self {
        Self(shared.join("wasm"))
    }

    /// Under which name a module is kept.
    pub(crate) fn key(module: &Module, engine: &str) -> String {
        let text = format!("{} {engine} {}", module.hash, processor());
        crate::hex(&Sha256::digest(text.as_bytes()))
    }

    pub(crate) fn code(&self, digest: &str) -> PathBuf {
        self.0.join(format!("{digest}.code"))
    }

    /// The place of what is kept under a name.
    pub(crate) fn entry(&self, key: &str) -> Entry {
        Entry(self.0.join(format!("{key}.made")))
    }

    /// What is kept under a name, if all of it is there and ours.
    pub(crate) fn find(&self, key: &str) -> Option<Made> {
        own(&fs::symlink_metadata(&self.0).ok()?, true)?;
        let Entry(note) = self.entry(key);
        own(&fs::symlink_metadata(&note).ok()?, false)?;
        let made = Made::parse(&fs::read_to_string(&note).ok()?)?;
        let code = fs::symlink_metadata(self.code(&made.digest)).ok()?;
        own(&code, false)?;
        (code.len() == made.bytes).then_some(made)
    }

    /// A file for code that is about to be made.
    pub(crate) fn draft(&self) -> io::Result<Draft> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => {}
        }
        if own(&fs::symlink_metadata(&self.0)?, true).is_none() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not this user's alone"));
        }
        let folder = DirHandle::open_no_link(&self.0)?;
        let file = folder.create_unnamed(0o600)?;
        // Others' sandboxes see it through a view of their own; the folder keeps other users out.
        file.set_mode(0o644)?;
        Ok(Draft { folder, file, hash: Sha256::new(), bytes: 0 })
    }

    /// Makes an entry of a draft.
    pub(crate) fn keep(&self, draft: Draft, key: &str, least_bytes: u64) -> io::Result<Made> {
        let Draft { folder, file, hash, bytes } = draft;
        let made = Made { digest: crate::hex(&hash.finalize()), bytes, least_bytes };
        file.sync()?;
        replace(&folder, &file, &format!("{}.code", made.digest))?;
        let mut note = folder.create_unnamed(0o600)?;
        note.write_all(made.line().as_bytes())?;
        replace(&folder, &note, &format!("{key}.made"))?;
        self.prune(&made.digest);
        Ok(made)
    }

    /// Removes the oldest of what is too much. A run that has its view keeps it.
    fn prune(&self, newest: &str) {
        let Ok(listing) = fs::read_dir(&self.0) else { return };
        let mut found: Vec<(SystemTime, u64, PathBuf)> = listing
            .flatten()
            .filter_map(|entry| {
                let meta = entry.metadata().ok()?;
                Some((meta.modified().ok()?, meta.len(), entry.path()))
            })
            .filter(|(.., path)| !path.to_string_lossy().contains(newest))
            .collect();
        found.sort();
        let mut bytes: u64 = found.iter().map(|(_, bytes, _)| bytes).sum();
        // Two files an entry.
        let mut rest = found.len();
        for (_, size, path) in found {
            if bytes <= MOST_BYTES && rest <= MOST_ENTRIES * 2 {
                return;
            }
            // One that another process removed first is gone as well.
            let _ = fs::remove_file(path);
            bytes = bytes.saturating_sub(size);
            rest -= 1;
        }
    }
}

// === impl Entry ===

impl Entry {
    /// Removes it, so that it is made again.
    pub(crate) fn forget(&self) {
        // One that is gone is forgotten.
        let _ = fs::remove_file(&self.0);
    }
}

// === impl Draft ===

impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Gives a file a name, which another may have had.
fn replace(folder: &DirHandle, file: &FileHandle, name: &str) -> io::Result<()> {
    match folder.remove_file(name.as_ref()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    match file.name(folder, name.as_ref()) {
        // Another run has made the same entry meanwhile.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done @ (Ok(()) | Err(_)) => done,
    }
}

// === impl Made ===

impl Made {
    fn line(&self) -> String {
        format!("{} {} {}\n", self.digest, self.bytes, self.least_bytes)
    }

    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> = text.strip_suffix('\n')?.split(' ').collect();
        let [digest, bytes, least] = fields.as_slice() else { return None };
        let is_digest = digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (bytes, least_bytes) = (bytes.parse().ok()?, least.parse().ok()?);
        is_digest.then(|| Self { digest: (*digest).to_owned(), bytes, least_bytes })
    }
}

/// This program, and which build of it: code is never taken from another.
pub(crate) fn engine() -> Result<(PathBuf, String), LaunchError> {
    let fail = |error: io::Error| LaunchError {
        step: "find the engine".to_owned(),
        why: error.to_string(),
        remedy: "the file of the running `fumehood` must still be there: start it again".to_owned(),
    };
    let path = fs::read_link("/proc/self/exe").map_err(fail)?;
    let meta = fs::metadata(&path).map_err(fail)?;
    let build = format!(
        "{} {} {}.{} {}",
        env!("CARGO_PKG_VERSION"),
        meta.len(),
        meta.mtime(),
        meta.mtime_nsec(),
        meta.ino()
    );
    if fumehood_sys::host::euid() == 0 && meta.mode() & 0o005 != 0o005 {
        return Err(LaunchError {
            step: "find the engine".to_owned(),
            why: format!(
                "`{}` can not be executed by every user, and a sandbox is another one",
                path.display()
            ),
            remedy: format!("chmod 755 {}", path.display()),
        });
    }
    Ok((path, build))
}

/// What compiled code may use of this processor.
fn processor() -> String {
    macro_rules! found {
        ($($name:tt),*) => { [$(($name, std::arch::is_x86_feature_detected!($name))),*] };
    }
    let all = found!(
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "popcnt",
        "avx",
        "avx2",
        "fma",
        "bmi1",
        "bmi2",
        "lzcnt",
        "avx512f",
        "avx512dq",
        "avx512vl",
        "avx512bitalg",
        "avx512vbmi",
        "cmpxchg16b"
    );
    let names: Vec<&str> = all.iter().filter(|(_, found)| *found).map(|(name, _)| *name).collect();
    names.join(",")
}

/// Whether it is this user's and nobody else can write it.
fn own(meta: &fs::Metadata, folder: bool) -> Option<()> {
    let ours = meta.uid() == fumehood_sys::host::euid() && meta.mode() & OTHERS_WRITE == 0;
    (ours && meta.is_dir() == folder && meta.is_file() != folder).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn kept(cache: &Cache, key: &str, code: &[u8]) -> Made {
        let mut draft = cache.draft().unwrap();
        draft.write_all(code).unwrap();
        cache.keep(draft, key, 7).unwrap()
    }

    #[test]
    fn an_entry_is_found_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::of(dir.path());
        assert_eq!(cache.find("k"), None);
        let made = kept(&cache, "k", b"code");
        assert_eq!(made.digest, crate::hex(&Sha256::digest(b"code")));
        assert_eq!(cache.find("k"), Some(made.clone()));
        assert_eq!(cache.find("other"), None);
        fs::write(cache.code(&made.digest), "cod").unwrap();
        assert_eq!(cache.find("k"), None, "a shorter file is another");
        fs::remove_file(cache.code(&made.digest)).unwrap();
        assert_eq!(cache.find("k"), None);
        drop(cache.draft().unwrap());
        let names: Vec<_> =
            fs::read_dir(dir.path().join("wasm")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["k.made"], "a draft that is not kept leaves nothing");
    }

    #[test]
    fn what_others_can_write_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::of(dir.path());
        let made = kept(&cache, "k", b"code");
        let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        open(&cache.code(&made.digest), 0o666);
        assert_eq!(cache.find("k"), None);
        open(&cache.code(&made.digest), 0o644);
        assert!(cache.find("k").is_some());
        open(&dir.path().join("wasm"), 0o777);
        assert_eq!(cache.find("k"), None);
        assert!(cache.draft().is_err());
    }

    #[test]
    fn the_key_tells_modules_and_engines_apart() {
        let module =
            |hash: &str| Module { content: crate::module::Content::Read(Vec::new()), hash: hash.to_owned() };
        let key = |hash, engine| Cache::key(&module(hash), engine);
        assert_eq!(key("a", "1"), key("a", "1"));
        assert_ne!(key("a", "1"), key("b", "1"));
        assert_ne!(key("a", "1"), key("a", "2"));
    }
}
