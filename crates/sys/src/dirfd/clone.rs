//! Copying content inside the kernel: shared where the file system can share it, holes kept as holes. And what
//! belongs to an object beside its content.

use super::{DirHandle, FileHandle, Time, checked, leaf};
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::RawFd;

/// The longest list of attribute names, and the longest value, that Linux knows.
const ATTRIBUTE_BYTES: usize = 64 * 1024;
/// What fits the processor's cache.
const CHUNK_BYTES: usize = 256 << 10;

/// How content was copied so far; what a file system can not do is not tried again.
#[derive(Debug, Default)]
pub struct Means {
    cannot_share: bool,
    cannot_copy: bool,
    /// One for all: making memory costs as much as filling it.
    buffer: Vec<u8>,
}

/// An attribute's name and value.
pub type Attribute = (CString, Vec<u8>);

// === impl FileHandle ===

impl FileHandle {
    /// Makes `to`, which is empty, the same as this file, whose length is `bytes`. Gives the bytes that are not shared.
    ///
    /// # Errors
    /// The kernel's own: no room, or the disk fails.
    pub fn clone_to(&self, to: &Self, bytes: u64, means: &mut Means) -> io::Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        if !means.cannot_share {
            // SAFETY: both descriptors are held by the handles; the call touches no memory of ours.
            let shared = unsafe { libc::ioctl(to.raw(), libc::FICLONE, self.raw()) };
            if shared == 0 {
                return Ok(0);
            }
            means.cannot_share = true;
        }
        to.set_len(bytes)?;
        let mut copied: u64 = 0;
        let mut at = 0;
        while let Some(start) = seek(self.raw(), at, libc::SEEK_DATA)? {
            let end = seek(self.raw(), start, libc::SEEK_HOLE)?.unwrap_or(bytes).min(bytes);
            at = start;
            while at < end {
                let count = self.copy_part(to, (at, end), means)?;
                if count == 0 {
                    return Ok(copied);
                }
                at = at.saturating_add(count);
                copied = copied.saturating_add(count);
            }
        }
        Ok(copied)
    }

    fn copy_part(&self, to: &Self, (at, end): (u64, u64), means: &mut Means) -> io::Result<u64> {
        let wanted = usize::try_from(end - at).unwrap_or(usize::MAX);
        if !means.cannot_copy {
            let (mut from_at, mut to_at) = (at as i64, at as i64);
            // SAFETY: both descriptors are held by the handles; both offsets are live and written by the kernel.
            let answer = unsafe {
                libc::copy_file_range(self.raw(), &raw mut from_at, to.raw(), &raw mut to_at, wanted, 0)
            };
            match u64::try_from(answer) {
                Ok(count) => return Ok(count),
                Err(_) => means.cannot_copy = true,
            }
        }
        means.buffer.resize(CHUNK_BYTES, 0);
        let room = means.buffer.get_mut(..wanted.min(CHUNK_BYTES)).unwrap_or_default();
        let count = std::os::unix::fs::FileExt::read_at(self.file(), room, at)?;
        let read = means.buffer.get(..count).unwrap_or_default();
        std::os::unix::fs::FileExt::write_all_at(to.file(), read, at)?;
        Ok(count as u64)
    }

    /// All attributes of the file.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn attributes(&self) -> io::Result<Vec<Attribute>> {
        attributes(self.raw())
    }

    /// Sets one attribute of the file.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn set_attribute(&self, attribute: &Attribute) -> io::Result<()> {
        set_attribute(self.raw(), attribute)
    }
}

// === impl DirHandle ===

impl DirHandle {
    /// All attributes of the directory itself.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn attributes(&self) -> io::Result<Vec<Attribute>> {
        attributes(self.raw())
    }

    /// Sets one attribute of the directory itself.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn set_attribute(&self, attribute: &Attribute) -> io::Result<()> {
        set_attribute(self.raw(), attribute)
    }

    /// Sets when the directory was last changed; the access time stays.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn set_mtime(&self, time: Time) -> io::Result<()> {
        set_time(self.raw(), c"", (time, libc::AT_EMPTY_PATH))
    }

    /// Sets when one entry was last changed; of a link, the link.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn set_mtime_at(&self, name: &OsStr, time: Time) -> io::Result<()> {
        set_time(self.raw(), &leaf(name)?, (time, libc::AT_SYMLINK_NOFOLLOW))
    }
}

fn set_time(dir: RawFd, path: &CStr, (time, flags): (Time, libc::c_int)) -> io::Result<()> {
    let kept = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
    let times = [kept, libc::timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() }];
    // SAFETY: the descriptor is held by the borrowed handle; path and both times are live.
    let answer = unsafe { libc::utimensat(dir, path.as_ptr(), times.as_ptr(), flags) };
    checked(answer.into()).map(drop)
}

fn seek(fd: RawFd, at: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    // SAFETY: the descriptor is held by the borrowed handle; numbers only.
    let answer = unsafe { libc::lseek(fd, at as i64, whence) };
    match u64::try_from(answer) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

fn attributes(fd: RawFd) -> io::Result<Vec<Attribute>> {
    // Almost nothing has any.
    // SAFETY: the descriptor is held by the borrowed handle; no memory is passed.
    let length = unsafe { libc::flistxattr(fd, std::ptr::null_mut(), 0) };
    match usize::try_from(length) {
        Ok(0) => return Ok(Vec::new()),
        Ok(_) => {}
        Err(_) => {
            let error = io::Error::last_os_error();
            let none = error.raw_os_error() == Some(libc::EOPNOTSUPP);
            return if none { Ok(Vec::new()) } else { Err(error) };
        }
    }
    let mut buffer = vec![0_u8; ATTRIBUTE_BYTES];
    // SAFETY: as above; the kernel writes at most the buffer's own length.
    let length = unsafe { libc::flistxattr(fd, buffer.as_mut_ptr().cast(), buffer.len()) };
    buffer.truncate(usize::try_from(length).map_err(|_negative| io::Error::last_os_error())?);
    let mut found = Vec::new();
    for name in buffer.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = CString::new(name)?;
        let mut value = vec![0_u8; ATTRIBUTE_BYTES];
        // SAFETY: as above, and the name is NUL-terminated.
        let length = unsafe { libc::fgetxattr(fd, name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
        value.truncate(usize::try_from(length).map_err(|_negative| io::Error::last_os_error())?);
        found.push((name, value));
    }
    Ok(found)
}

fn set_attribute(fd: RawFd, (name, value): &Attribute) -> io::Result<()> {
    // SAFETY: the descriptor is held by the borrowed handle; the name is NUL-terminated and the value as long as is
    // said.
    let answer = unsafe { libc::fsetxattr(fd, name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    checked(answer.into()).map(drop)
}
