//! Looking things up as a process would for whom a directory is the root, and holding what was found.
//!
//! What is held is pinned by a handle that opens nothing (`O_PATH`): a device is not touched, a pipe is not waited
//! for, and what was judged is what is used afterwards, whatever stands under the name by then.

use super::{DirHandle, FileHandle, Kind, LOOKUP_TRIES, OpenHow, RESOLVE_AS_ROOT, Stat};
use super::{checked, flag_bits, leaf, openat2, owned, statx};
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;

/// The longest link target that is read. The kernel's own limit on paths.
const TEXT_BYTES: usize = 4096;
/// One name, taken as it is; into another mount if one stands there.
const RESOLVE_ONE: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;

/// Whatever was found under a path, held and not opened.
#[derive(Debug)]
pub struct Held(OwnedFd);

/// What a lookup does with a link at the very end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastLink {
    Follow,
    Hold,
}

// === impl DirHandle ===

impl DirHandle {
    /// Looks up any path as a process would for whom this directory is the root: `..` and links are followed, an
    /// absolute one from here, and none leads out. Magic links are refused.
    ///
    /// # Errors
    /// The kernel's own; `InvalidInput` for a path with a NUL.
    pub fn inside(&self, path: &Path, last: LastLink) -> io::Result<Held> {
        let bytes = path.as_os_str().as_bytes();
        let text = CString::new(if bytes.is_empty() { b"." } else { bytes })?;
        let no_follow = if last == LastLink::Hold { libc::O_NOFOLLOW } else { 0 };
        self.hold(&text, no_follow, RESOLVE_AS_ROOT)
    }

    /// What stands under one name of this directory, a link as itself.
    ///
    /// # Errors
    /// The kernel's own, and `InvalidInput` for what is not a single name.
    pub fn child(&self, name: &OsStr) -> io::Result<Held> {
        self.hold(&leaf(name)?, libc::O_NOFOLLOW, RESOLVE_ONE)
    }

    fn hold(&self, text: &CString, flags: libc::c_int, resolve: u64) -> io::Result<Held> {
        let flags = flag_bits(libc::O_PATH | libc::O_CLOEXEC | flags);
        let how = OpenHow { flags, mode: 0, resolve };
        let mut tries = 0;
        loop {
            match openat2(self.raw(), text, &how) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < LOOKUP_TRIES => {
                    tries += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done @ (Ok(_) | Err(_)) => return done.map(Held),
            }
        }
    }
}

// === impl Held ===

impl Held {
    /// The facts of what is held.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn stat(&self) -> io::Result<Stat> {
        statx(self.0.as_raw_fd(), c"", libc::AT_EMPTY_PATH)
    }

    /// What a held link holds.
    ///
    /// # Errors
    /// The kernel's own; it is not a link.
    pub fn read_link(&self) -> io::Result<OsString> {
        let mut buffer = vec![0_u8; TEXT_BYTES];
        // SAFETY: the descriptor is held by `self`, the path is NUL-terminated, and the kernel writes at most the
        // given length, which is the buffer's own.
        let answer = unsafe {
            libc::readlinkat(self.0.as_raw_fd(), c"".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len())
        };
        let length = usize::try_from(answer).map_err(|_negative| io::Error::last_os_error())?;
        buffer.truncate(length);
        Ok(OsString::from_vec(buffer))
    }

    /// Opens what is held for reading, if it is a regular file; nothing else is opened.
    ///
    /// # Errors
    /// `InvalidInput` for everything but a regular file; the kernel's own.
    pub fn open_file(&self) -> io::Result<(FileHandle, Stat)> {
        let stat = self.stat()?;
        if stat.kind != Kind::File {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let path = CString::new(self.by_number())?;
        // SAFETY: the path is NUL-terminated and outlives the call.
        let answer = unsafe { libc::openat(libc::AT_FDCWD, path.as_ptr(), flags) };
        let file = File::from(owned(checked(answer.into())?)?);
        Ok((FileHandle(file), stat))
    }

    /// What is held as a directory to work in; every step in it is judged by the kernel anew.
    #[must_use]
    pub fn into_dir(self) -> DirHandle {
        DirHandle(self.0)
    }

    /// The name under which this process alone finds what is held, whatever became of its path.
    #[must_use]
    pub fn by_number(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

impl AsFd for Held {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Held> for OwnedFd {
    fn from(held: Held) -> Self {
        held.0
    }
}
