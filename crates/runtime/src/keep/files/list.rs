//! What lies in a folder.

use super::failure::{bad_request, failed};
use super::{GuestFiles, MOST_LEVELS, checked, clean};
use fumehood_keep::wire::{Entry, Failure, MOST_ENTRIES};
use fumehood_sys::dirfd::{DirHandle, Kind};
use std::io;
use std::path::Path;

/// One answer has to fit one frame of a keeper, with room for what is around the entries.
const MOST_ANSWER_BYTES: usize = fumehood_keep::frame::MOST_BYTES - 4096;

/// A list that is being made.
struct List<'a> {
    files: &'a GuestFiles,
    entries: Vec<Entry>,
    bytes: usize,
    cut: bool,
}

// === impl GuestFiles ===

impl GuestFiles {
    /// What lies in the folder at `path`, so many levels deep, each folder before what is in it; and whether there
    /// is more than is told. A folder below that can not be read is told, and nothing in it.
    ///
    /// # Errors
    /// It is no folder, or can not be read.
    pub fn list(&self, path: &str, depth: u32) -> Result<(Vec<Entry>, bool), Failure> {
        let path = checked(path)?;
        if depth == 0 {
            return Err(bad_request("list the folder", "a depth of 0 asks for nothing".to_owned()));
        }
        let _rights = self.rights()?;
        let mut list = List { files: self, entries: Vec::new(), bytes: 0, cut: false };
        let filled = self.folder(path).and_then(|dir| list.fill(&dir, &clean(path), depth.min(MOST_LEVELS)));
        filled.map_err(|error| failed("list", path, &error))?;
        Ok((list.entries, list.cut))
    }
}

// === impl List ===

impl List<'_> {
    fn fill(&mut self, dir: &DirHandle, path: &Path, depth: u32) -> io::Result<()> {
        // No more names than can be told: a folder may hold millions.
        let room = MOST_ENTRIES.saturating_sub(self.entries.len()).saturating_add(1);
        let mut names = Vec::new();
        for entry in dir.list()?.take(room) {
            names.push(entry?.name);
        }
        names.sort();
        for name in names {
            let Ok(held) = dir.child(&name) else { continue };
            let path = path.join(&name);
            let Ok(entry) = self.files.entry(&held, &path) else { continue };
            let length = serde_json::to_vec(&entry).map_or(usize::MAX, |text| text.len());
            self.bytes = self.bytes.saturating_add(length).saturating_add(1);
            if self.entries.len() >= MOST_ENTRIES || self.bytes > MOST_ANSWER_BYTES {
                self.cut = true;
                return Ok(());
            }
            self.entries.push(entry);
            if depth > 1 && held.stat().is_ok_and(|stat| stat.kind == Kind::Dir) {
                // One below that can not be read is no fault of the one that was asked for.
                let _ = self.fill(&held.into_dir(), &path, depth - 1);
            }
            if self.cut {
                return Ok(());
            }
        }
        Ok(())
    }
}
