//! Which `fumehood.toml` files their owner has trusted, pinned by hash.
//!
//! `trusted.json` in the state folder maps the absolute path of a file to the SHA-256 of what it
//! held when it was trusted. Everything here takes the *bytes* that the caller read, and the caller
//! parses those same bytes: there is no second reading between the check and the use. [`read_file`]
//! is how such a file is read once.
//!
//! **Invariant:** a file that can not be read back, or that another could have written, pins nothing;
//! it is an error, never an empty list.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

const FILE: &str = "trusted.json";
/// Written whole beside the file, then renamed over it. One name is enough: the lock is held.
const FRESH: &str = "trusted.json.new";
const LOCK: &str = "trusted.lock";
const VERSION: u32 = 1;
/// Thousands of pins; more is not ours.
const MAX_PINS_BYTES: u64 = 4 << 20;
/// What the reader of an envelope takes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// So that a pipe in the place of a file is refused and not waited for. The number is the kernel's
/// for every architecture that we build for.
const O_NONBLOCK: i32 = 0o4000;

/// What the owner has said about a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Trusted, with this very content.
    Trusted,
    /// Trusted once; the content has changed since.
    Changed,
    /// Never trusted.
    Unknown,
}

/// One trusted file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trusted {
    pub path: PathBuf,
    /// Of the content, in lower-case hexadecimal.
    pub sha256: String,
}

/// Why the list of trusted files can not be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    #[error("pin `{}`: the path is not absolute, not plain or not UTF-8", path.display())]
    Path { path: PathBuf },
    #[error("use `{}`: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{act} `{}`", path.display())]
    Io {
        act: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pins {
    version: u32,
    files: BTreeMap<String, String>,
}

/// Reads a file to be judged, once, if it is a plain file of at most 1 MiB.
pub fn read_file(path: &Path) -> Result<Vec<u8>, TrustError> {
    let failed = |source| TrustError::Io { act: "read", path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path).map_err(failed)?;
    let damaged = |why: &str| TrustError::Damaged { path: path.to_owned(), why: why.to_owned() };
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(damaged("it is not a plain file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_BYTES {
        return Err(damaged("it is larger than 1 MiB"));
    }
    Ok(bytes)
}

/// Pins the file at `path`, whose content is `bytes`. `state_root` is the state folder.
pub fn trust(state_root: &Path, path: &Path, bytes: &[u8]) -> Result<(), TrustError> {
    let key = key(path)?;
    change(state_root, |files| {
        files.insert(key, digest(bytes));
        true
    })
    .map(drop)
}

/// What the owner has said about the file at `path`, whose content is `bytes`.
pub fn is_trusted(state_root: &Path, path: &Path, bytes: &[u8]) -> Result<Pin, TrustError> {
    let pinned = load(state_root)?.files.remove(&key(path)?);
    Ok(match pinned {
        None => Pin::Unknown,
        Some(pinned) if pinned == digest(bytes) => Pin::Trusted,
        Some(_) => Pin::Changed,
    })
}

/// Takes the trust back; whether there was any.
pub fn untrust(state_root: &Path, path: &Path) -> Result<bool, TrustError> {
    let key = key(path)?;
    change(state_root, |files| files.remove(&key).is_some())
}

/// Every trusted file, by path.
pub fn list(state_root: &Path) -> Result<Vec<Trusted>, TrustError> {
    let files = load(state_root)?.files;
    Ok(files.into_iter().map(|(path, sha256)| Trusted { path: PathBuf::from(path), sha256 }).collect())
}

/// The path as it stands in the list: two spellings must not be two files.
fn key(path: &Path) -> Result<String, TrustError> {
    let plain = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    let tidy: PathBuf = path.components().collect();
    match tidy.to_str() {
        Some(text) if plain => Ok(text.to_owned()),
        Some(_) | None => Err(TrustError::Path { path: path.to_owned() }),
    }
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn load(state_root: &Path) -> Result<Pins, TrustError> {
    let path = state_root.join(FILE);
    let failed = |source| TrustError::Io { act: "read", path: path.clone(), source };
    let damaged = |why: String| TrustError::Damaged { path: path.clone(), why };
    let file = match OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(Pins { version: VERSION, files: BTreeMap::new() });
        }
        Err(error) => return Err(failed(error)),
    };
    let held = file.metadata().map_err(failed)?;
    let folder = state_root.metadata().map_err(failed)?;
    if !held.is_file() || held.uid() != folder.uid() || held.mode() & 0o022 != 0 {
        return Err(damaged(
            "another user could have written it; remove it and trust your files again".to_owned(),
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_PINS_BYTES).read_to_end(&mut bytes).map_err(failed)?;
    let pins: Pins = serde_json::from_slice(&bytes).map_err(|error| {
        damaged(format!("it is not a list of pins ({error}); remove it and trust your files again"))
    })?;
    if pins.version != VERSION {
        return Err(damaged(format!("its version is {}, and this program knows {VERSION}", pins.version)));
    }
    Ok(pins)
}

/// Reads, changes and replaces the list under a lock. Nothing is written where `act` says `false`.
fn change(
    state_root: &Path,
    act: impl FnOnce(&mut BTreeMap<String, String>) -> bool,
) -> Result<bool, TrustError> {
    let path = state_root.join(LOCK);
    let failed = |source| TrustError::Io { act: "lock", path: path.clone(), source };
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed)?;
    lock.lock().map_err(failed)?;
    let mut pins = load(state_root)?;
    let changed = act(&mut pins.files);
    if changed {
        let path = state_root.join(FILE);
        replace(state_root, &pins).map_err(|source| TrustError::Io { act: "write", path, source })?;
    }
    Ok(changed)
}

/// The whole list under a name of its own, on disk, before it takes the place of the old one.
fn replace(state_root: &Path, pins: &Pins) -> io::Result<()> {
    let fresh = state_root.join(FRESH);
    let mut text = serde_json::to_vec_pretty(pins)?;
    text.push(b'\n');
    // What a crash left under this name is nobody's any more; a new file has our mode for certain.
    match std::fs::remove_file(&fresh) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(&text)?;
    file.sync_all()?;
    std::fs::rename(&fresh, state_root.join(FILE))?;
    File::open(state_root)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn state() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn a_file_is_trusted_with_its_content_only() {
        let state = state();
        let file = Path::new("/home/ann/work/fumehood.toml");
        assert_eq!(is_trusted(state.path(), file, b"a").expect("read"), Pin::Unknown);
        trust(state.path(), file, b"a").expect("trusted");
        assert_eq!(is_trusted(state.path(), file, b"a").expect("read"), Pin::Trusted);
        assert_eq!(is_trusted(state.path(), file, b"b").expect("read"), Pin::Changed);
        assert_eq!(
            is_trusted(state.path(), Path::new("/home/ann/fumehood.toml"), b"a").expect("read"),
            Pin::Unknown
        );
        let doubled = Path::new("/home//ann/./work/fumehood.toml");
        assert_eq!(is_trusted(state.path(), doubled, b"a").expect("read"), Pin::Trusted);
        assert_eq!(list(state.path()).expect("read").len(), 1);
        assert!(untrust(state.path(), file).expect("written"));
        assert!(!untrust(state.path(), file).expect("nothing to do"));
        assert_eq!(is_trusted(state.path(), file, b"a").expect("read"), Pin::Unknown);
    }

    #[test]
    fn a_path_that_depends_on_where_one_stands_is_refused() {
        for path in ["fumehood.toml", "./fumehood.toml", "/home/../fumehood.toml", ""] {
            assert!(
                matches!(trust(state().path(), Path::new(path), b""), Err(TrustError::Path { .. })),
                "{path}"
            );
        }
    }

    #[test]
    fn the_list_is_private_and_nothing_else_stays() {
        let state = state();
        std::fs::write(state.path().join(FRESH), "left by a crash").expect("written");
        trust(state.path(), Path::new("/a"), b"a").expect("trusted");
        let mode = std::fs::metadata(state.path().join(FILE)).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut names: Vec<_> = std::fs::read_dir(state.path())
            .expect("listed")
            .map(|entry| entry.expect("entry").file_name())
            .collect();
        names.sort();
        assert_eq!(names, [FILE, LOCK]);
    }

    #[test]
    fn a_damaged_or_open_list_is_an_error_and_never_empty() {
        let state = state();
        let path = state.path().join(FILE);
        let unusable = || matches!(list(state.path()), Err(TrustError::Damaged { .. }));
        for text in
            ["", "{}", "[]", "{\"version\":2,\"files\":{}}", "{\"version\":1,\"files\":{},\"more\":1}"]
        {
            std::fs::write(&path, text).expect("written");
            assert!(unusable(), "{text}");
            assert!(trust(state.path(), Path::new("/a"), b"").is_err(), "{text}");
        }
        std::fs::write(&path, "{\"version\":1,\"files\":{}}").expect("written");
        assert!(!unusable());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o666)).expect("opened");
        assert!(unusable());
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        assert!(unusable());
    }

    #[test]
    fn many_at_once_lose_nothing() {
        let state = state();
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let root = state.path();
                scope.spawn(move || {
                    for file in 0..8 {
                        trust(root, Path::new(&format!("/{writer}/{file}")), b"x").expect("trusted");
                    }
                });
            }
        });
        assert_eq!(list(state.path()).expect("read").len(), 64);
    }

    #[test]
    fn only_plain_files_of_a_sane_size_are_read() {
        let state = state();
        let path = state.path().join("f");
        std::fs::write(&path, "x").expect("written");
        assert_eq!(read_file(&path).expect("read"), b"x");
        assert!(matches!(read_file(state.path()), Err(TrustError::Damaged { .. })));
        assert!(matches!(read_file(Path::new("/dev/zero")), Err(TrustError::Damaged { .. })));
        File::create(&path).and_then(|file| file.set_len(MAX_FILE_BYTES + 1)).expect("grown");
        assert!(matches!(read_file(&path), Err(TrustError::Damaged { .. })));
        assert!(matches!(read_file(&state.path().join("none")), Err(TrustError::Io { .. })));
    }
}
