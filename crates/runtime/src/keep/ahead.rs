//! What of a snapshot is copied before everything stands still: large files that nobody writes to.
//!
//! A lease (`fumehood_sys::dirfd`) on such a file says that nobody has it open for writing or mapped so, and falls when
//! somebody wants to. So a copy made under a lease that still stands when nothing runs any more is what the file is then;
//! one whose lease fell is made again. Where nobody can have leases, everything is copied while all stands still.

use fumehood_sys::dirfd::{DirHandle, FileHandle, Kind, Means, RenameMode};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Smaller ones are copied faster than they are looked after.
const LEAST_BYTES: u64 = 32 << 10;
/// Each takes two descriptors.
const MOST_FILES: usize = 256;
/// Nobody is answered meanwhile, and who wants to write waits.
const MOST_BYTES: u64 = 512 << 20;
/// As deep as is copied at all.
const MOST_LEVELS: u32 = 200;

/// A file on its file system.
pub(crate) type Key = (u32, u32, u64);

/// Copies that were made ahead.
#[derive(Debug)]
pub(crate) struct Ahead {
    folder: DirHandle,
    copies: HashMap<Key, Made>,
    next: u64,
    left: u64,
}

/// One of them.
#[derive(Debug)]
struct Made {
    source: FileHandle,
    copy: FileHandle,
    name: OsString,
    bytes: u64,
}

/// A copy that took its place.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) source: FileHandle,
    pub(crate) copy: FileHandle,
    pub(crate) bytes: u64,
}

// === impl Ahead ===

impl Ahead {
    /// Copies go to `folder`, which is empty, on the file system that they are to be on.
    pub(crate) fn new(folder: DirHandle) -> Self {
        Self { folder, copies: HashMap::new(), next: 0, left: MOST_BYTES }
    }

    /// Copies what can be copied of a tree that may change meanwhile. What can not is left to the real copy.
    pub(crate) fn copy(&mut self, from: &DirHandle) {
        let mut found = Vec::new();
        large(from, Path::new(""), 0, &mut found);
        // The largest first: they take the longest.
        found.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let mut means = Means::default();
        for (path, bytes) in found {
            if self.copies.len() >= MOST_FILES || bytes > self.left {
                continue;
            }
            let Some((key, made)) = self.one(from, &path, &mut means) else { continue };
            if made.bytes == 0 {
                // It is shared with the copy, which takes no time.
                let _ = self.folder.remove_file(&made.name);
                return;
            }
            self.left -= made.bytes.min(self.left);
            self.copies.insert(key, made);
        }
    }

    fn one(&mut self, from: &DirHandle, path: &Path, means: &mut Means) -> Option<(Key, Made)> {
        let (source, _) = from.read(path).ok()?;
        source.lease().ok()?;
        let stat = source.stat().ok()?;
        self.next += 1;
        let name = OsString::from(self.next.to_string());
        let copy = self.folder.create_new(&name, 0o600).ok()?;
        let Ok(bytes) = source.clone_to(&copy, stat.size, means) else {
            let _ = self.folder.remove_file(&name);
            return None;
        };
        Some(((stat.dev.0, stat.dev.1, stat.ino), Made { source, copy, name, bytes }))
    }

    /// Puts the copy of that file under `name`, if it is what the file is.
    pub(crate) fn place(&mut self, key: Key, to: &DirHandle, name: &OsStr) -> Option<Placed> {
        let Made { source, copy, name: ours, bytes } = self.copies.remove(&key)?;
        let stands = source.is_leased();
        let placed = stands && self.folder.rename(&ours, to, name, RenameMode::NoReplace).is_ok();
        placed.then_some(Placed { source, copy, bytes })
    }
}

/// Large regular files of a tree, by path; what vanishes meanwhile is none.
fn large(folder: &DirHandle, path: &Path, level: u32, found: &mut Vec<(PathBuf, u64)>) {
    if level > MOST_LEVELS {
        return;
    }
    for entry in folder.list().into_iter().flatten().flatten() {
        let Ok(stat) = folder.stat_at(&entry.name) else { continue };
        let below = path.join(&entry.name);
        match stat.kind {
            Kind::File if stat.size >= LEAST_BYTES => found.push((below, stat.size)),
            Kind::Dir => {
                if let Ok(folder) = folder.sub(Path::new(&entry.name)) {
                    large(&folder, &below, level + 1, found);
                }
            }
            Kind::File | Kind::Link | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {}
        }
    }
}
