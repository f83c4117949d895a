//! A tree of files as a stream of bytes: the same inward (`Put`) and outward (`Get`).
//!
//! An entry is a head and, for a file, its content. Folders come before what is in them. The stream ends
//! where an entry could begin.
//!
//! ```text
//!   kind u8 · zero u8 · mode u16 · path u16 · target u16 · size u64 · path · target · content
//! ```
//!
//! **Invariant:** a path is relative, of plain names: no empty one, no `.`, no `..`, no zero. What is done
//! with it is still for the reader to do safely: a name on the way may be a link.

use super::frame::{PATH_BYTES, Sink};

/// The fixed part of an entry.
pub const HEAD_BYTES: usize = 16;
/// The most that an entry has before its content.
pub const ENTRY_BYTES: usize = HEAD_BYTES + 2 * PATH_BYTES;
/// Permission bits: no set-id bit, no sticky bit crosses.
pub const MODE_BITS: u16 = 0o777;

/// One entry, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub path: &'a [u8],
    pub what: What<'a>,
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What<'a> {
    /// A regular file; so many bytes follow.
    File {
        mode: u16,
        size_bytes: u64,
    },
    Folder {
        mode: u16,
    },
    /// Of an overlay: this folder hides what lower layers have in its place.
    OpaqueFolder {
        mode: u16,
    },
    Link {
        target: &'a [u8],
    },
    /// Of an overlay: what lower layers have here is gone.
    Whiteout,
    /// Something that does not cross: a socket, a fifo, a device.
    Other,
}

/// What the front of a stream holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front<'a> {
    /// A whole head, of so many bytes.
    Entry(Entry<'a>, usize),
    /// More bytes are needed.
    More,
    /// No entry, whatever follows.
    Garbage,
}

// === impl Entry ===

impl<'a> Entry<'a> {
    /// Reads the head at the front of `bytes`.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Front<'a> {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Front::More };
        let [kind, zero, mode_0, mode_1, path_0, path_1, target_0, target_1, size @ ..] = *head;
        let mode = u16::from_le_bytes([mode_0, mode_1]);
        let path = usize::from(u16::from_le_bytes([path_0, path_1]));
        let target = usize::from(u16::from_le_bytes([target_0, target_1]));
        let size_bytes = u64::from_le_bytes(size);
        if zero != 0 || path >= PATH_BYTES || target >= PATH_BYTES || mode & !MODE_BITS != 0 {
            return Front::Garbage;
        }
        let (Some(name), Some(to)) = (rest.get(..path), rest.get(path..path + target)) else {
            return Front::More;
        };
        let what = match (kind, mode, size_bytes, to) {
            (1, mode, size_bytes, []) => What::File { mode, size_bytes },
            (2, mode, 0, []) => What::Folder { mode },
            (3, mode, 0, []) => What::OpaqueFolder { mode },
            (4, 0, 0, target) if is_target(target) => What::Link { target },
            (5, 0, 0, []) => What::Whiteout,
            (6, 0, 0, []) => What::Other,
            _ => return Front::Garbage,
        };
        if !is_plain(name) {
            return Front::Garbage;
        }
        Front::Entry(Self { path: name, what }, HEAD_BYTES + path + target)
    }

    /// Writes the head.
    pub fn print(&self, out: &mut impl Sink) {
        let (kind, mode, size, target): (u8, u16, u64, &[u8]) = match self.what {
            What::File { mode, size_bytes } => (1, mode, size_bytes, &[]),
            What::Folder { mode } => (2, mode, 0, &[]),
            What::OpaqueFolder { mode } => (3, mode, 0, &[]),
            What::Link { target } => (4, 0, 0, target),
            What::Whiteout => (5, 0, 0, &[]),
            What::Other => (6, 0, 0, &[]),
        };
        let count = |bytes: &[u8]| u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes();
        out.put(&[kind, 0]);
        out.put(&(mode & MODE_BITS).to_le_bytes());
        out.put(&count(self.path));
        out.put(&count(target));
        out.put(&size.to_le_bytes());
        out.put(self.path);
        out.put(target);
    }
}

/// Whether a path is relative and of plain names.
#[must_use]
pub fn is_plain(path: &[u8]) -> bool {
    let plain = |name: &[u8]| !name.is_empty() && name != b"." && name != b".." && name.len() < 256;
    path.len() < PATH_BYTES && !path.contains(&0) && path.split(|byte| *byte == b'/').all(plain)
}

fn is_target(target: &[u8]) -> bool {
    !target.is_empty() && !target.contains(&0)
}
