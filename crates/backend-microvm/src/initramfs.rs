//! The archive that a guest kernel unpacks as its first root: guestd, the modules it loads, its `/etc`.
//!
//! The `newc` form of cpio: each entry a header of hexadecimal numbers, a name, and content, all padded to four.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

const FOLDER: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
/// `TRAILER!!!` ends an archive.
const TRAILER: &[u8] = b"TRAILER!!!";
/// Far above what an `/etc` made for sandboxes has.
const MOST_ENTRIES: u32 = 16_384;

/// An archive in the making.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

// === impl Archive ===

impl Archive {
    pub(crate) fn folder(&mut self, name: &str, mode: u32) {
        self.entry(name.as_bytes(), FOLDER | mode, &[]);
    }

    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entry(name.as_bytes(), FILE | mode, content);
    }

    pub(crate) fn link(&mut self, name: &str, to: &Path) {
        self.entry(name.as_bytes(), LINK | 0o777, to.as_os_str().as_bytes());
    }

    /// Everything in a host folder: its plain files, folders and links, owned by root.
    ///
    /// # Errors
    /// What can not be read, and a folder with too much in it.
    pub(crate) fn tree(&mut self, from: &Path, name: &str) -> io::Result<()> {
        let mut waiting = vec![(from.to_owned(), name.as_bytes().to_vec())];
        while let Some((folder, name)) = waiting.pop() {
            self.entry(&name, FOLDER | 0o755, &[]);
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let path = [name.as_slice(), b"/", entry.file_name().as_bytes()].concat();
                let meta = entry.metadata()?;
                let mode = meta.mode() & 0o755;
                if meta.is_dir() {
                    waiting.push((entry.path(), path));
                } else if meta.is_symlink() {
                    let to = fs::read_link(entry.path())?;
                    self.entry(&path, LINK | 0o777, to.as_os_str().as_bytes());
                } else if meta.is_file() {
                    self.entry(&path, FILE | mode, &fs::read(entry.path())?);
                }
                if self.entries > MOST_ENTRIES {
                    return Err(io::Error::other("there are too many files in it"));
                }
            }
        }
        Ok(())
    }

    /// The whole archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &[u8], mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode & FOLDER == FOLDER && mode & FILE != FILE { 2 } else { 1 };
        let numbers = [
            self.entries,
            mode,
            0, // owner
            0, // group
            links,
            0, // time
            u32::try_from(content.len()).unwrap_or(u32::MAX),
            0,
            0, // device
            0,
            0, // node
            u32::try_from(name.len() + 1).unwrap_or(u32::MAX),
            0, // no sum
        ];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name);
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_whole_and_aligned() {
        let mut archive = Archive::default();
        archive.folder("etc", 0o755);
        archive.file("etc/a", 0o644, b"12345");
        archive.link("bin", Path::new("usr/bin"));
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        assert!(text.contains("etc/a\0") && text.contains("12345") && text.contains("usr/bin"));
        assert!(text.trim_end_matches('\0').ends_with("TRAILER!!!"));
    }
}
