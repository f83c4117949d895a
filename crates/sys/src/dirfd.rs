//! Handle-relative file work: directories and files as descriptors, names as bytes, links never followed.
//!
//! A check on a path and a use of that path are two lookups, and what stands there can be swapped
//! between them. So everything here starts from an open directory: paths below it are resolved by
//! the kernel with `openat2` (beneath, no links, no other mount), single names by the `*at` calls,
//! and facts are read from the handle that is used afterwards.
//!
//! **Invariant:** a function that takes a `name` refuses `.`, `..`, the empty name and anything with a
//! `/`, so that no call but [`DirHandle::open`] and [`DirHandle::open_no_link`] looks up more than was said.

mod clone;
mod copy;
mod inside;
mod lease;
mod listing;
mod ops;
mod stat;

pub use clone::{Attribute, Means};
pub use copy::{CopyError, copy};
pub use inside::{Held, LastLink};
pub use listing::{Entry, Listing};
pub use ops::{DirLock, RenameMode};
use stat::statx;
pub use stat::{Kind, Stat, Time};

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// An open directory.
#[derive(Debug)]
pub struct DirHandle(OwnedFd);

/// An open file that is not a directory.
#[derive(Debug)]
pub struct FileHandle(File);

/// The kernel's `struct open_how`.
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Beneath the handle, through no link of any kind, and into no other mount.
const RESOLVE: u64 =
    libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS | libc::RESOLVE_NO_XDEV;

/// Through links, each of which is taken as if the handle were the root; magic ones lead anywhere.
const RESOLVE_AS_ROOT: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;

/// The kernel asks for another try when a rename ran beside the lookup; a guest could keep that up.
const LOOKUP_TRIES: u32 = 64;

// === impl DirHandle ===

impl DirHandle {
    /// Opens a directory by a path that the caller trusts; links in it are followed.
    pub fn open(path: &Path) -> io::Result<Self> {
        open_path(path, libc::O_DIRECTORY).map(Self)
    }

    /// As [`DirHandle::open`], but refuses when the last component is a link.
    pub fn open_no_link(path: &Path) -> io::Result<Self> {
        open_path(path, libc::O_DIRECTORY | libc::O_NOFOLLOW).map(Self)
    }

    /// Opens a directory below this one. An empty path is this directory again, with its own position.
    pub fn sub(&self, path: &Path) -> io::Result<Self> {
        self.resolve(path, libc::O_RDONLY | libc::O_DIRECTORY, 0).map(Self)
    }

    /// Opens a regular file below this one to read it, and tells what the handle is.
    ///
    /// It never waits (a pipe put in the file's place answers at once) and answers `InvalidInput`
    /// when the object on the handle is not a regular file.
    pub fn read(&self, path: &Path) -> io::Result<(FileHandle, Stat)> {
        self.regular(path, libc::O_RDONLY)
    }

    /// Opens a regular file as a process would for whom this directory is the root: links are followed, and
    /// none leads out. Also tells where the file stands in the end, below this directory.
    ///
    /// It never waits, and answers `InvalidInput` when the object is not a regular file.
    pub fn read_as_root(&self, path: &Path) -> io::Result<(FileHandle, PathBuf)> {
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = FileHandle(File::from(self.resolve_by(path, flags, (0, RESOLVE_AS_ROOT))?));
        if file.stat()?.kind != Kind::File {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let place = |fd: RawFd| std::fs::read_link(format!("/proc/self/fd/{fd}"));
        let (top, whole) = (place(self.raw())?, place(file.raw())?);
        let below = whole.strip_prefix(top).map_err(|_elsewhere| io::ErrorKind::NotFound)?;
        Ok((file, below.to_owned()))
    }

    /// As [`DirHandle::read`], to write in place too.
    pub fn update(&self, path: &Path) -> io::Result<(FileHandle, Stat)> {
        self.regular(path, libc::O_RDWR)
    }

    fn regular(&self, path: &Path, access: libc::c_int) -> io::Result<(FileHandle, Stat)> {
        let flags = access | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW;
        let file = FileHandle(File::from(self.resolve(path, flags, 0)?));
        let stat = file.stat()?;
        match stat.kind {
            Kind::File => Ok((file, stat)),
            Kind::Dir | Kind::Link | Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
            }
        }
    }

    /// Makes a file that was not there. The kernel applies the umask to `mode`.
    pub fn create_new(&self, name: &OsStr, mode: u32) -> io::Result<FileHandle> {
        leaf(name)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        self.resolve(Path::new(name), flags, u64::from(mode & 0o7777)).map(|fd| FileHandle(File::from(fd)))
    }

    /// Makes a file that has no name yet, and goes with its handle unless [`FileHandle::name`] gives it one.
    ///
    /// Fails where the file system has no such files.
    pub fn create_unnamed(&self, mode: u32) -> io::Result<FileHandle> {
        let flags = libc::O_WRONLY | libc::O_TMPFILE;
        self.resolve(Path::new(""), flags, u64::from(mode & 0o7777)).map(|fd| FileHandle(File::from(fd)))
    }

    fn resolve(&self, path: &Path, flags: libc::c_int, mode: u64) -> io::Result<OwnedFd> {
        self.resolve_by(path, flags, (mode, RESOLVE))
    }

    fn resolve_by(
        &self,
        path: &Path,
        flags: libc::c_int,
        (mode, resolve): (u64, u64),
    ) -> io::Result<OwnedFd> {
        let text = relative(path)?;
        let how = OpenHow { flags: flag_bits(flags | libc::O_CLOEXEC), mode, resolve };
        let mut tries = 0;
        loop {
            match openat2(self.raw(), &text, &how) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && tries < LOOKUP_TRIES => {
                    tries += 1
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done @ (Ok(_) | Err(_)) => return done,
            }
        }
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl From<OwnedFd> for DirHandle {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for DirHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

// === impl FileHandle ===

impl FileHandle {
    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn file(&self) -> &File {
        &self.0
    }

    /// Cuts or extends the file to `bytes`; what is added is a hole.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    /// Waits until content and metadata are on stable storage.
    pub fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

impl io::Read for FileHandle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl io::Write for FileHandle {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl From<FileHandle> for OwnedFd {
    fn from(file: FileHandle) -> Self {
        file.0.into()
    }
}

impl AsFd for FileHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether this process acts as root, and so may give files away.
pub fn is_root() -> bool {
    // SAFETY: `geteuid` takes nothing, touches no memory of ours and can not fail.
    let uid = unsafe { libc::geteuid() };
    uid == 0
}

/// Whether a lookup was refused because a link stands on the way.
pub fn is_link_in_the_way(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ELOOP)
}

/// A single name as the kernel takes it; refuses what would look up anything else.
pub(crate) fn leaf(name: &OsStr) -> io::Result<CString> {
    let bytes = name.as_bytes();
    if bytes.is_empty() || bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a single name"));
    }
    Ok(CString::new(bytes)?)
}

/// The number a call answered, or the error it left in `errno`.
pub(crate) fn checked(answer: libc::c_long) -> io::Result<usize> {
    usize::try_from(answer).map_err(|_negative| io::Error::last_os_error())
}

fn flag_bits(flags: libc::c_int) -> u64 {
    u64::from(flags.cast_unsigned())
}

/// A path of plain components only. The kernel would refuse `..` past the top too; we refuse all.
fn relative(path: &Path) -> io::Result<CString> {
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a plain path below the directory"));
    }
    let bytes = path.as_os_str().as_bytes();
    Ok(CString::new(if bytes.is_empty() { b"." } else { bytes })?)
}

fn openat2(dir: RawFd, path: &CString, how: &OpenHow) -> io::Result<OwnedFd> {
    // SAFETY: `dir` is held open by the handle the caller borrows; `path` is NUL-terminated and `how`
    // is the kernel's layout with its true size, and both outlive the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_openat2, dir, path.as_ptr(), std::ptr::from_ref(how), size_of::<OpenHow>())
    };
    owned(checked(answer)?)
}

fn open_path(path: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let text = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `text` is NUL-terminated and outlives the call; no mode is needed without `O_CREAT`.
    let answer =
        unsafe { libc::openat(libc::AT_FDCWD, text.as_ptr(), flags | libc::O_RDONLY | libc::O_CLOEXEC) };
    owned(checked(answer.into())?)
}

/// Takes ownership of a descriptor number that the kernel has just given out.
pub(crate) fn owned(number: usize) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(number).map_err(|_large| io::Error::from_raw_os_error(libc::EBADF))?;
    // SAFETY: called only with the answer of a successful open, which nothing else has seen.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests;
