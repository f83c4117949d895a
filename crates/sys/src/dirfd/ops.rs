//! Changing what stands in a directory, one name at a time.

use super::{DirHandle, FileHandle, Time, checked, leaf, owned};
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The longest link target and attribute value that is read. The kernel's own limit on paths.
const TEXT_BYTES: usize = 4096;
/// Leaves an owner or group as it is.
const UNCHANGED: u32 = u32::MAX;

/// What a rename does with an object that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Takes its place.
    Replace,
    /// Fails with `AlreadyExists`.
    NoReplace,
    /// Swaps the two.
    Exchange,
}

/// A directory that is held by one handle, until this is dropped.
#[derive(Debug)]
#[must_use = "the lock ends when this is dropped"]
pub struct DirLock<'a>(&'a DirHandle);

// === impl DirLock ===

impl Drop for DirLock<'_> {
    fn drop(&mut self) {
        // Said aloud: a child forked meanwhile has the same open directory, and closing ours would leave
        // the lock with it.
        // SAFETY: the descriptor is held by the borrowed handle, and the call touches no memory of ours.
        let _ = unsafe { libc::flock(self.0.raw(), libc::LOCK_UN) };
    }
}

// === impl DirHandle ===

impl DirHandle {
    /// Makes a directory. The kernel applies the umask to `mode`.
    pub fn make_dir(&self, name: &OsStr, mode: u32) -> io::Result<()> {
        let name = leaf(name)?;
        // SAFETY: the descriptor is held by `self`; `name` is NUL-terminated and outlives the call.
        done(unsafe { libc::mkdirat(self.raw(), name.as_ptr(), mode & 0o7777) })
    }

    /// Removes a name that is not a directory.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(name, 0)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &OsStr) -> io::Result<()> {
        self.unlink(name, libc::AT_REMOVEDIR)
    }

    fn unlink(&self, name: &OsStr, flags: libc::c_int) -> io::Result<()> {
        let name = leaf(name)?;
        // SAFETY: the descriptor is held by `self`; `name` is NUL-terminated and outlives the call.
        done(unsafe { libc::unlinkat(self.raw(), name.as_ptr(), flags) })
    }

    /// Moves `name` to `new_name` in `to`. Links are moved, never followed.
    pub fn rename(&self, name: &OsStr, to: &Self, new_name: &OsStr, mode: RenameMode) -> io::Result<()> {
        let (name, new_name) = (leaf(name)?, leaf(new_name)?);
        let flags = match mode {
            RenameMode::Replace => 0,
            RenameMode::NoReplace => libc::RENAME_NOREPLACE,
            RenameMode::Exchange => libc::RENAME_EXCHANGE,
        };
        // SAFETY: both descriptors are held by the borrowed handles; both names are NUL-terminated and
        // outlive the call.
        let answer = unsafe {
            libc::syscall(libc::SYS_renameat2, self.raw(), name.as_ptr(), to.raw(), new_name.as_ptr(), flags)
        };
        checked(answer).map(drop)
    }

    /// Makes a link that holds `target` as it is.
    pub fn make_link(&self, target: &OsStr, name: &OsStr) -> io::Result<()> {
        let (target, name) = (CString::new(target.as_bytes())?, leaf(name)?);
        // SAFETY: the descriptor is held by `self`; both texts are NUL-terminated and outlive the call.
        done(unsafe { libc::symlinkat(target.as_ptr(), self.raw(), name.as_ptr()) })
    }

    /// Gives what `name` is the name `new_name` in `to` as well. Of a link, the link.
    pub fn hard_link(&self, name: &OsStr, to: &Self, new_name: &OsStr) -> io::Result<()> {
        let (name, new_name) = (leaf(name)?, leaf(new_name)?);
        // SAFETY: both descriptors are held by the borrowed handles; both names are NUL-terminated and outlive
        // the call. Without a flag the last component is not followed.
        done(unsafe { libc::linkat(self.raw(), name.as_ptr(), to.raw(), new_name.as_ptr(), 0) })
    }

    /// Makes what an overlay takes for a name that is gone: a character device 0:0, which opens nothing and needs
    /// no privilege.
    pub fn make_whiteout(&self, name: &OsStr) -> io::Result<()> {
        self.make_node(name, libc::S_IFCHR)
    }

    /// Makes a pipe that nobody has open.
    pub fn make_fifo(&self, name: &OsStr) -> io::Result<()> {
        self.make_node(name, libc::S_IFIFO | 0o600)
    }

    fn make_node(&self, name: &OsStr, mode: libc::mode_t) -> io::Result<()> {
        let name = leaf(name)?;
        // SAFETY: the descriptor is held by `self`; `name` is NUL-terminated and outlives the call.
        done(unsafe { libc::mknodat(self.raw(), name.as_ptr(), mode, 0) })
    }

    /// Says of this directory of an overlay's upper layer that nothing of the lower one shows through.
    pub fn mark_opaque(&self) -> io::Result<()> {
        let (name, value) = (c"user.overlay.opaque", b"y");
        // SAFETY: the descriptor is held by `self`; the name is NUL-terminated and the value as long as is said.
        done(unsafe { libc::fsetxattr(self.raw(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) })
    }

    /// What the link `name` holds.
    pub fn read_link(&self, name: &OsStr) -> io::Result<OsString> {
        let name = leaf(name)?;
        let mut buffer = vec![0_u8; TEXT_BYTES];
        // SAFETY: the descriptor is held by `self`, `name` is NUL-terminated, and the kernel writes at
        // most the given length, which is the buffer's own.
        let answer =
            unsafe { libc::readlinkat(self.raw(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let length = usize::try_from(answer).map_err(|_negative| io::Error::last_os_error())?;
        buffer.truncate(length);
        Ok(OsString::from_vec(buffer))
    }

    /// Sets the permission bits of the directory itself. The umask does not apply.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        set_mode(self.raw(), mode)
    }

    /// Gives the directory itself away.
    pub fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        set_owner(self.raw(), uid, gid)
    }

    /// Gives one entry away; of a link, the link.
    pub fn set_owner_at(&self, name: &OsStr, uid: u32, gid: u32) -> io::Result<()> {
        let name = leaf(name)?;
        // SAFETY: the descriptor is held by `self`; `name` is NUL-terminated and outlives the call.
        done(unsafe { libc::fchownat(self.raw(), name.as_ptr(), uid, gid, libc::AT_SYMLINK_NOFOLLOW) })
    }

    /// Makes a subdirectory readable, writable and searchable for its owner, whatever its mode was.
    ///
    /// It is held by a handle that needs no permission on it, so what is changed is a directory and
    /// the one that was found, never where a link leads.
    pub fn unlock(&self, name: &OsStr) -> io::Result<()> {
        let name = leaf(name)?;
        let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the descriptor is held by `self`; `name` is NUL-terminated and outlives the call.
        let answer = unsafe { libc::openat(self.raw(), name.as_ptr(), flags) };
        let held = owned(checked(answer.into())?)?;
        let by_number = format!("/proc/self/fd/{}", held.as_raw_fd());
        std::fs::set_permissions(by_number, std::os::unix::fs::PermissionsExt::from_mode(0o700))
    }

    /// Waits until the directory's entries are on stable storage.
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the descriptor is held by `self`, and the call touches no memory of ours.
        done(unsafe { libc::fsync(self.raw()) })
    }

    /// Takes the directory for this handle alone; `None` while another handle has it.
    ///
    /// Only those who ask are held off. A child that was forked meanwhile keeps the lock when this
    /// process dies, and loses it when the lock is dropped here.
    pub fn try_lock(&self) -> io::Result<Option<DirLock<'_>>> {
        // SAFETY: the descriptor is held by `self`, and the call touches no memory of ours.
        match done(unsafe { libc::flock(self.raw(), libc::LOCK_EX | libc::LOCK_NB) }) {
            Ok(()) => Ok(Some(DirLock(self))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until the whole file system that holds the directory is on stable storage. Fails, too, when something
    /// was lost since the handle was opened, or before with nobody told.
    pub fn sync_file_system(&self) -> io::Result<()> {
        // SAFETY: the descriptor is held by `self`, and the call touches no memory of ours.
        done(unsafe { libc::syncfs(self.raw()) })
    }

    /// The value of an extended attribute of the directory itself; absent where the file system has none.
    pub fn attribute(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        attribute(self.raw(), name)
    }

    /// Reads a whole small file; more than `limit_bytes` is an error.
    pub fn read_small(&self, path: &Path, limit_bytes: u64) -> io::Result<Vec<u8>> {
        use std::io::Read;
        let (file, _stat) = self.read(path)?;
        let mut bytes = Vec::new();
        file.take(limit_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if length > limit_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than such a file can be"));
        }
        Ok(bytes)
    }
}

// === impl FileHandle ===

impl FileHandle {
    /// Gives a file that has no name one. Fails with `AlreadyExists` when the name is taken.
    pub fn name(&self, dir: &DirHandle, name: &OsStr) -> io::Result<()> {
        let name = leaf(name)?;
        let by_number = CString::new(format!("/proc/self/fd/{}", self.raw()))?;
        // SAFETY: the directory's descriptor is held by `dir`; both texts are NUL-terminated and outlive
        // the call. The link followed is the kernel's own to the file that `self` holds.
        done(unsafe {
            libc::linkat(
                libc::AT_FDCWD,
                by_number.as_ptr(),
                dir.raw(),
                name.as_ptr(),
                libc::AT_SYMLINK_FOLLOW,
            )
        })
    }

    /// Sets the permission bits. The umask does not apply.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        set_mode(self.raw(), mode)
    }

    /// Gives the file away. The kernel clears set-id bits.
    pub fn set_owner(&self, uid: u32, gid: u32) -> io::Result<()> {
        set_owner(self.raw(), uid, gid)
    }

    /// Sets the group alone, which an owner may do among the groups it belongs to.
    pub fn set_group(&self, gid: u32) -> io::Result<()> {
        set_owner(self.raw(), UNCHANGED, gid)
    }

    /// Sets when content was last changed; the access time stays.
    pub fn set_mtime(&self, time: Time) -> io::Result<()> {
        let kept = libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_OMIT };
        let times = [kept, libc::timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() }];
        // SAFETY: the descriptor is held by `self`; `times` has the two elements that are read.
        done(unsafe { libc::futimens(self.raw(), times.as_ptr()) })
    }

    /// The value of an extended attribute; absent where the file system has none.
    pub fn attribute(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        attribute(self.raw(), name)
    }
}

fn done(answer: libc::c_int) -> io::Result<()> {
    checked(answer.into()).map(drop)
}

fn set_mode(fd: RawFd, mode: u32) -> io::Result<()> {
    // SAFETY: the descriptor is held by the borrowed handle, and the call touches no memory of ours.
    done(unsafe { libc::fchmod(fd, mode & 0o7777) })
}

fn set_owner(fd: RawFd, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: the descriptor is held by the borrowed handle, and the call touches no memory of ours.
    done(unsafe { libc::fchown(fd, uid, gid) })
}

fn attribute(fd: RawFd, name: &str) -> io::Result<Option<Vec<u8>>> {
    let name = CString::new(name)?;
    let mut buffer = vec![0_u8; TEXT_BYTES];
    // SAFETY: the descriptor is held by the borrowed handle, `name` is NUL-terminated, and the kernel
    // writes at most the given length, which is the buffer's own.
    let answer = unsafe { libc::fgetxattr(fd, name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let Ok(length) = usize::try_from(answer) else {
        let error = io::Error::last_os_error();
        let absent = matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP));
        return if absent { Ok(None) } else { Err(error) };
    };
    buffer.truncate(length);
    Ok(Some(buffer))
}
