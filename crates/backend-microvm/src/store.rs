//! What is made once and used by many: a folder of entries that are named by what they were made of.
//!
//! ```text
//! KEY          an entry: whole, never changed           KEY.lock   held while it is made
//! .KEY.PID     one in the making; its maker renames it, or the next prune removes it
//! ```
//!
//! **Invariant:** an entry appears under its name only when it is whole, and whoever opened its parts keeps them
//! when it is pruned.

use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What is left of a maker that died is removed when it is older.
const ABANDONED: Duration = Duration::from_secs(3600);

/// One such folder.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    folder: PathBuf,
    /// Entries beyond these are removed, those first that were used longest ago.
    most: usize,
    oldest: Duration,
}

// === impl Store ===

impl Store {
    pub(crate) fn new(folder: PathBuf, most: usize, oldest: Duration) -> Self {
        Self { folder, most, oldest }
    }

    /// The path of an entry that is there. It counts as used now.
    pub(crate) fn find(&self, key: &str) -> Option<PathBuf> {
        let path = self.folder.join(key);
        // A folder or a file; both have a time that says when they were used.
        let entry = File::open(&path).ok()?;
        let _ = entry.set_modified(SystemTime::now());
        Some(path)
    }

    /// The entry of `key`; `make` is called with the path at which to make it, if it is not there. Whoever else
    /// wants the same one waits.
    pub(crate) fn find_or_make<E: From<io::Error>>(
        &self,
        key: &str,
        make: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        if let Some(path) = self.find(key) {
            return Ok(path);
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let lock_path = self.folder.join(format!("{key}.lock"));
        let lock = File::options().create(true).truncate(false).write(true).open(&lock_path)?;
        lock.lock()?;
        if let Some(path) = self.find(key) {
            return Ok(path);
        }
        self.prune();
        let making = self.folder.join(format!(".{key}.{}", std::process::id()));
        let _ = remove(&making);
        let path = self.folder.join(key);
        let made = make(&making).and_then(|()| fs::rename(&making, &path).map_err(E::from));
        if made.is_err() {
            let _ = remove(&making);
        }
        let _ = fs::remove_file(&lock_path);
        made.map(|()| path)
    }

    /// Removes what nobody has used for long, and what its maker left.
    pub(crate) fn prune(&self) {
        let mut entries = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let used = entry.metadata().and_then(|meta| meta.modified());
            let age = used.ok().and_then(|used| used.elapsed().ok()).unwrap_or_default();
            if name.ends_with(".lock") {
                continue;
            }
            if name.starts_with('.') {
                if age > ABANDONED {
                    let _ = remove(&entry.path());
                }
                continue;
            }
            entries.push((age, entry.path()));
        }
        entries.sort();
        // One more is about to be made.
        let kept = self.most.saturating_sub(1);
        for (place, (age, path)) in entries.iter().enumerate() {
            if place >= kept || *age > self.oldest {
                let _ = remove(path);
            }
        }
    }
}

/// A key of everything that the parts say, in their order.
pub(crate) fn key(parts: &[&str]) -> String {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update(part.len().to_le_bytes());
        sum.update(part.as_bytes());
    }
    let digest = sum.finalize();
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(most: usize) -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("store"), most, Duration::from_secs(3600));
        (folder, store)
    }

    fn write(path: &Path) -> io::Result<()> {
        fs::write(path, "whole")
    }

    #[test]
    fn an_entry_is_made_once() {
        let (_folder, store) = store(4);
        let made = store.find_or_make("a", write).unwrap();
        let again = store.find_or_make("a", |_: &Path| Err(io::Error::other("made twice"))).unwrap();
        assert_eq!(made, again);
    }

    #[test]
    fn what_failed_leaves_nothing() {
        let (_folder, store) = store(4);
        let failed = store.find_or_make("a", |path| {
            fs::write(path, "half")?;
            Err(io::Error::other("no room"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read_dir(&store.folder).unwrap().count(), 0);
    }

    #[test]
    fn makers_of_the_same_entry_wait_for_each_other() {
        let (_folder, store) = store(4);
        let count = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    store
                        .find_or_make("a", |path| {
                            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            write(path)
                        })
                        .unwrap();
                });
            }
        });
        assert_eq!(count.into_inner(), 1);
    }

    #[test]
    fn the_ones_used_longest_ago_go_first() {
        let (_folder, store) = store(2);
        for (age, name) in [(300, "old"), (200, "middle")] {
            let path = store.find_or_make(name, write).unwrap();
            let used = SystemTime::now() - Duration::from_secs(age);
            File::options().write(true).open(path).unwrap().set_modified(used).unwrap();
        }
        store.find("old").unwrap();
        store.find_or_make("new", write).unwrap();
        assert!(store.find("old").is_some() && store.find("middle").is_none());
    }

    #[test]
    fn keys_keep_their_parts_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_eq!(key(&["a"]).len(), 32);
    }
}
