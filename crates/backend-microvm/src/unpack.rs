//! Files that come out of a guest, made in a folder of the host's.
//!
//! What arrives is a guest's word: each path is taken apart and walked from the folder's own handle, through no
//! link, and only what the kinds below say is made. It is put where the runtime's own strict readers (the
//! collector, the layer) find it as if the guest had written there.
//!
//! **Invariant:** no more bytes and names are made than the limits say.

use fumehood_guest::entry::{ENTRY_BYTES, Entry, Front, What};
use fumehood_sys::dirfd::{DirHandle, FileHandle};
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What may come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: u64,
    pub(crate) names: u64,
}

/// Whose the files are, and whether marks of an overlay are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) overlay: bool,
}

/// A tree on its way.
#[derive(Debug)]
pub(crate) struct Unpacker {
    root: DirHandle,
    manner: Manner,
    limits: Limits,
    /// A head that is not whole yet.
    waiting: Vec<u8>,
    /// The file that is being written, and what is missing of it.
    open: Option<(FileHandle, u64)>,
}

// === impl Unpacker ===

impl Unpacker {
    pub(crate) fn new(root: DirHandle, manner: Manner, limits: Limits) -> Self {
        Self { root, manner, limits, waiting: Vec::new(), open: None }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// What is no entry, what is more than the limits, and the host's own.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        loop {
            bytes = self.content(bytes)?;
            if bytes.is_empty() {
                return Ok(());
            }
            // A head that was cut is joined again, with no more than can belong to it.
            let before = self.waiting.len();
            let mut head = std::mem::take(&mut self.waiting);
            if before > 0 {
                head.extend_from_slice(bytes.get(..ENTRY_BYTES).unwrap_or(bytes));
            }
            let front = if before > 0 { head.as_slice() } else { bytes };
            match Entry::parse(front) {
                Front::More => {
                    self.waiting = if before > 0 { head } else { bytes.to_vec() };
                    return Ok(());
                }
                Front::Garbage => return Err(io::Error::new(io::ErrorKind::InvalidData, "it sent no files")),
                Front::Entry(entry, taken) => {
                    self.make(&entry)?;
                    bytes = bytes.get(taken.saturating_sub(before)..).unwrap_or_default();
                }
            }
        }
    }

    /// Writes what belongs to the open file, and gives the rest.
    fn content<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let Some((file, left)) = &mut self.open else { return Ok(bytes) };
        let most = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
        let (now, rest) = bytes.split_at_checked(most).unwrap_or((bytes, &[]));
        file.write_all(now)?;
        *left -= now.len() as u64;
        if *left == 0 {
            self.open = None;
        }
        Ok(rest)
    }

    /// Whether it ended where an entry could begin.
    pub(crate) fn is_whole(&self) -> bool {
        self.open.is_none() && self.waiting.is_empty()
    }

    fn make(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let too_much = || io::Error::new(io::ErrorKind::QuotaExceeded, "there is more than may come out");
        self.limits.names = self.limits.names.checked_sub(1).ok_or_else(too_much)?;
        let path = Path::new(OsStr::from_bytes(entry.path));
        let name = path.file_name().ok_or(io::ErrorKind::InvalidData)?;
        let folder = self.root.sub(path.parent().unwrap_or(Path::new("")))?;
        match entry.what {
            What::File { mode, size_bytes } => {
                self.limits.bytes = self.limits.bytes.checked_sub(size_bytes).ok_or_else(too_much)?;
                let file = folder.create_new(name, 0o600)?;
                if let Some((uid, gid)) = self.manner.owner {
                    file.set_owner(uid, gid)?;
                }
                file.set_mode(u32::from(mode))?;
                self.open = (size_bytes > 0).then_some((file, size_bytes));
                Ok(())
            }
            What::Folder { mode } => self.folder(&folder, name, mode).map(drop),
            What::OpaqueFolder { mode } => {
                let made = self.folder(&folder, name, mode)?;
                if self.manner.overlay { made.mark_opaque() } else { Ok(()) }
            }
            What::Link { target } => {
                folder.make_link(OsStr::from_bytes(target), name)?;
                self.own_at(&folder, name)
            }
            What::Whiteout if self.manner.overlay => folder.make_whiteout(name),
            // The collector says of it what it says of any that does not cross.
            What::Whiteout | What::Other => folder.make_fifo(name),
        }
    }

    /// It may be written by us while its files come; the mode is the guest's without what keeps us out.
    fn folder(&self, parent: &DirHandle, name: &OsStr, mode: u16) -> io::Result<DirHandle> {
        parent.make_dir(name, 0o700)?;
        let made = parent.sub(Path::new(name))?;
        if let Some((uid, gid)) = self.manner.owner {
            made.set_owner(uid, gid)?;
        }
        made.set_mode(u32::from(mode) | 0o700)?;
        Ok(made)
    }

    fn own_at(&self, folder: &DirHandle, name: &OsStr) -> io::Result<()> {
        self.manner.owner.map_or(Ok(()), |(uid, gid)| folder.set_owner_at(name, uid, gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    const LIMITS: Limits = Limits { bytes: 1000, names: 10 };
    const MANNER: Manner = Manner { owner: None, overlay: true };

    fn printed(entries: &[(&str, What<'_>, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (path, what, content) in entries {
            Entry { path: path.as_bytes(), what: *what }.print(&mut bytes);
            bytes.extend_from_slice(content);
        }
        bytes
    }

    fn unpacker(folder: &tempfile::TempDir, manner: Manner) -> Unpacker {
        Unpacker::new(DirHandle::open(folder.path()).unwrap(), manner, LIMITS)
    }

    #[test]
    fn a_tree_arrives_whatever_the_pieces() {
        let bytes = printed(&[
            ("a", What::Folder { mode: 0o755 }, b""),
            ("a/f", What::File { mode: 0o644, size_bytes: 5 }, b"hello"),
            ("a/empty", What::File { mode: 0o600, size_bytes: 0 }, b""),
            ("l", What::Link { target: b"/etc/passwd" }, b""),
            ("gone", What::Whiteout, b""),
        ]);
        for piece in [1, 7, bytes.len()] {
            let folder = tempfile::tempdir().unwrap();
            let mut unpacker = unpacker(&folder, MANNER);
            bytes.chunks(piece).for_each(|part| unpacker.feed(part).unwrap());
            assert!(unpacker.is_whole());
            let path = folder.path();
            assert_eq!(fs::read(path.join("a/f")).unwrap(), b"hello");
            assert_eq!(fs::metadata(path.join("a/empty")).unwrap().permissions().mode() & 0o777, 0o600);
            assert_eq!(fs::read_link(path.join("l")).unwrap(), Path::new("/etc/passwd"));
            let gone = fs::symlink_metadata(path.join("gone")).unwrap();
            assert_eq!((gone.mode() & 0o170_000, gone.rdev()), (0o020_000, 0));
        }
    }

    #[test]
    fn nothing_is_made_through_a_link() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = outside.path().as_os_str().as_bytes();
        let bytes = printed(&[
            ("l", What::Link { target }, b""),
            ("l/f", What::File { mode: 0o644, size_bytes: 1 }, b"x"),
        ]);
        assert!(unpacker(&folder, MANNER).feed(&bytes).is_err());
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_over_the_limits_is_not_made() {
        let folder = tempfile::tempdir().unwrap();
        let big = printed(&[("f", What::File { mode: 0o644, size_bytes: 1001 }, b"")]);
        assert!(unpacker(&folder, MANNER).feed(&big).is_err());
        let names: Vec<String> = (0..11).map(|name| name.to_string()).collect();
        let many: Vec<_> =
            names.iter().map(|name| (name.as_str(), What::Folder { mode: 0o755 }, b"".as_slice())).collect();
        assert!(unpacker(&folder, MANNER).feed(&printed(&many)).is_err());
    }

    #[test]
    fn garbage_and_a_cut_tree_are_noticed() {
        let folder = tempfile::tempdir().unwrap();
        assert!(unpacker(&folder, MANNER).feed(&[9; 64]).is_err());
        let bytes = printed(&[("f", What::File { mode: 0o644, size_bytes: 5 }, b"hel")]);
        let mut cut = unpacker(&folder, MANNER);
        cut.feed(&bytes).unwrap();
        assert!(!cut.is_whole());
    }
}
