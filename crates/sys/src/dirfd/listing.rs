//! Reading a directory through `getdents64`, in a buffer of fixed size, names as bytes.

use super::{DirHandle, checked};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Large enough for a few hundred names a call, small enough to keep one per open directory.
const BUFFER_BYTES: usize = 32 * 1024;
/// Where the fields of `struct linux_dirent64` start: inode, offset, record length, type, name.
const LENGTH_AT: usize = 16;
const NAME_AT: usize = 19;

/// One name of a directory. What it is, is asked of the kernel when it matters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    pub name: OsString,
}

/// The entries of a directory but `.` and `..`, in the file system's order.
#[derive(Debug)]
pub struct Listing {
    dir: DirHandle,
    buffer: Vec<u8>,
    filled: usize,
    at: usize,
    ended: bool,
}

// === impl Listing ===

impl Listing {
    fn refill(&mut self) -> io::Result<()> {
        // SAFETY: the descriptor is held by `self.dir`; the kernel writes at most the given length,
        // which is the buffer's own.
        let answer = unsafe {
            libc::syscall(libc::SYS_getdents64, self.dir.raw(), self.buffer.as_mut_ptr(), self.buffer.len())
        };
        self.filled = checked(answer)?;
        self.at = 0;
        self.ended = self.filled == 0;
        Ok(())
    }

    /// The record at the position, and moves past it.
    fn record(&mut self) -> Option<OsString> {
        let record = self.buffer.get(self.at..self.filled)?;
        let length = record.get(LENGTH_AT..LENGTH_AT + 2)?;
        let length = usize::from(u16::from_ne_bytes(<[u8; 2]>::try_from(length).ok()?));
        let name = record.get(NAME_AT..length)?;
        let name = name.split(|byte| *byte == 0).next()?.to_vec();
        self.at += length;
        Some(OsString::from_vec(name))
    }
}

impl Iterator for Listing {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            if self.at >= self.filled {
                if let Err(error) = self.refill() {
                    self.ended = true;
                    return Some(Err(error));
                }
                continue;
            }
            let Some(name) = self.record() else {
                self.ended = true;
                return Some(Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "a directory record is cut off",
                )));
            };
            if name != OsStr::new(".") && name != OsStr::new("..") {
                return Some(Ok(Entry { name }));
            }
        }
        None
    }
}

// === impl DirHandle ===

impl DirHandle {
    /// Lists the directory from its start.
    pub fn list(&self) -> io::Result<Listing> {
        let dir = self.sub(Path::new(""))?;
        Ok(Listing { dir, buffer: vec![0; BUFFER_BYTES], filled: 0, at: 0, ended: false })
    }
}
