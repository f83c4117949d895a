//! What an object is, read from its handle or from a name without following it.

use super::{DirHandle, FileHandle, checked, leaf};
use std::ffi::{CStr, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

/// What kind of object stands there. Closed: the kernel has no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    File,
    Dir,
    Link,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

/// A point of the kernel's real-time clock, as file systems store it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    pub secs: i64,
    pub nanos: u32,
}

/// The facts of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub kind: Kind,
    /// Permission bits with set-id and sticky: `0o7777`.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Major and minor number of the file system.
    pub dev: (u32, u32),
    pub ino: u64,
    pub links: u32,
    /// Length in bytes as a reader sees it, holes included.
    pub size: u64,
    /// Major and minor number, of a device node.
    pub rdev: (u32, u32),
    /// When content was last changed. The owner can set it.
    pub mtime: Time,
    /// When anything was last changed. Nobody can set it.
    pub ctime: Time,
}

// === impl Kind ===

impl Kind {
    fn from_mode(mode: u32) -> Option<Self> {
        match mode & libc::S_IFMT {
            libc::S_IFREG => Some(Self::File),
            libc::S_IFDIR => Some(Self::Dir),
            libc::S_IFLNK => Some(Self::Link),
            libc::S_IFIFO => Some(Self::Fifo),
            libc::S_IFSOCK => Some(Self::Socket),
            libc::S_IFCHR => Some(Self::CharDevice),
            libc::S_IFBLK => Some(Self::BlockDevice),
            _ => None,
        }
    }

    /// What a person calls it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Dir => "directory",
            Self::Link => "link",
            Self::Fifo => "named pipe",
            Self::Socket => "socket",
            Self::CharDevice | Self::BlockDevice => "device",
        }
    }
}

// === impl Stat ===

impl Stat {
    /// Whether an overlay uses this object to say "deleted": a character device numbered 0:0.
    pub fn is_whiteout(&self) -> bool {
        self.kind == Kind::CharDevice && self.rdev == (0, 0)
    }
}

impl DirHandle {
    /// The facts of the directory itself.
    pub fn stat(&self) -> io::Result<Stat> {
        statx(self.raw(), c"", libc::AT_EMPTY_PATH)
    }

    /// The facts of one entry; of a link itself, never of where it leads.
    pub fn stat_at(&self, name: &OsStr) -> io::Result<Stat> {
        statx(self.raw(), &leaf(name)?, libc::AT_SYMLINK_NOFOLLOW)
    }

    /// As [`DirHandle::stat_at`], with absence as an answer.
    pub fn look(&self, name: &OsStr) -> io::Result<Option<Stat>> {
        match self.stat_at(name) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl FileHandle {
    /// The facts of the open file.
    pub fn stat(&self) -> io::Result<Stat> {
        statx(self.raw(), c"", libc::AT_EMPTY_PATH)
    }
}

pub(super) fn statx(fd: RawFd, path: &CStr, flags: libc::c_int) -> io::Result<Stat> {
    let mut buffer = MaybeUninit::<libc::statx>::zeroed();
    let flags = flags | libc::AT_NO_AUTOMOUNT;
    // SAFETY: `fd` is held open by the borrowed handle, `path` is NUL-terminated, and `buffer` has the
    // size of the kernel's structure; all outlive the call.
    let answer = unsafe {
        libc::syscall(libc::SYS_statx, fd, path.as_ptr(), flags, libc::STATX_BASIC_STATS, buffer.as_mut_ptr())
    };
    checked(answer)?;
    // SAFETY: the structure is plain integers, zeroed above and then filled by the kernel.
    let raw = unsafe { buffer.assume_init() };
    let mode = u32::from(raw.stx_mode);
    let kind = Kind::from_mode(mode)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "an object of unknown kind"))?;
    Ok(Stat {
        kind,
        mode: mode & 0o7777,
        uid: raw.stx_uid,
        gid: raw.stx_gid,
        dev: (raw.stx_dev_major, raw.stx_dev_minor),
        ino: raw.stx_ino,
        links: raw.stx_nlink,
        size: raw.stx_size,
        rdev: (raw.stx_rdev_major, raw.stx_rdev_minor),
        mtime: Time { secs: raw.stx_mtime.tv_sec, nanos: raw.stx_mtime.tv_nsec },
        ctime: Time { secs: raw.stx_ctime.tv_sec, nanos: raw.stx_ctime.tv_nsec },
    })
}
