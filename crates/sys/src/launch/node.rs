//! Files and folders of the new root. The launch has cleared its file creation mask, so that modes are
//! what they are given as.

use super::op::Owner;
use crate::raw::{self, CWD, EMPTY, Errno, Result, fd, ptr, syscall};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

const AT_EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;

/// `struct open_how`
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// The longest path that the kernel takes.
const PATH_BYTES: usize = 4096;

/// Follows links: it is a folder of the host's, which nobody inside has touched yet.
pub(super) fn work_in(folder: &CStr) -> Result<()> {
    // SAFETY: a live C string.
    unsafe { syscall(libc::SYS_chdir, [ptr(folder), 0, 0, 0, 0, 0]) }.map(drop)
}

/// A folder that exists already is fine: parents are made more than once.
pub(super) fn make_dir(path: &CStr, mode: u32, owner: Owner) -> Result<()> {
    let (parent, name) = open_parent(path)?;
    // SAFETY: a live C string.
    let made = match unsafe { syscall(libc::SYS_mkdirat, [fd(parent), ptr(name), mode as usize, 0, 0, 0]) } {
        Ok(_) => chown(parent, name, owner, libc::AT_SYMLINK_NOFOLLOW as usize),
        Err(Errno(libc::EEXIST)) => Ok(()),
        Err(errno) => Err(errno),
    };
    if parent != CWD {
        raw::close(parent);
    }
    made
}

/// What stands at `path` beneath the working directory, which is the root of everything on the way; no
/// link is followed. What a guest left in a workspace or a HOME would otherwise lead out, while the root
/// of this process is still the host's.
pub(super) fn open_beneath(path: &CStr) -> Result<RawFd> {
    look_beneath(path, libc::O_PATH)
}

pub(super) fn symlink(to: &CStr, path: &CStr) -> Result<()> {
    // SAFETY: live C strings.
    unsafe { syscall(libc::SYS_symlinkat, [ptr(to), fd(CWD), ptr(path), 0, 0, 0]) }.map(drop)
}

pub(super) fn write_file(path: &CStr, after: Option<&OwnedFd>, content: &[u8], mode: u32) -> Result<()> {
    let file = create(path, mode)?;
    // Read by its place: whoever else has it open, and whoever tries again, finds it as it was.
    let copied = after.map_or(Ok(()), |from| copy(from.as_raw_fd(), file, Some(&mut 0)));
    let result = copied.and_then(|()| raw::write_all(file, content));
    raw::close(file);
    result
}

pub(super) fn copy_file(from: &OwnedFd, path: &CStr, mode: u32, owner: Owner) -> Result<()> {
    let file = create(path, mode)?;
    let result = copy(from.as_raw_fd(), file, None).and_then(|()| chown(file, EMPTY, owner, AT_EMPTY_PATH));
    raw::close(file);
    result
}

pub(super) fn device(path: &CStr, major: u32, minor: u32) -> Result<()> {
    let number = libc::makedev(major, minor) as usize;
    let mode = (libc::S_IFCHR | 0o666) as usize;
    // SAFETY: a live C string.
    unsafe { syscall(libc::SYS_mknodat, [fd(CWD), ptr(path), mode, number, 0, 0]) }.map(drop)
}

/// Modes are taken as they are given from here on. The mask is the child's own.
pub(super) fn clear_umask() -> Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_umask, [0; 6]) }.map(drop)
}

pub(super) fn own(file: RawFd, mode: u32, owner: Owner) -> Result<()> {
    chown(file, EMPTY, owner, AT_EMPTY_PATH)?;
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_fchmod, [fd(file), mode as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Whether something stands at `path`; see [`open_beneath`]. A link on the way is an error.
pub(super) fn exists_beneath(path: &CStr) -> Result<bool> {
    match open_beneath(path) {
        Ok(found) => {
            raw::close(found);
            Ok(true)
        }
        Err(Errno(libc::ENOENT)) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether nothing can be written to the file system that a handle is on.
pub(super) fn is_read_only(file: RawFd) -> Result<bool> {
    const READ_ONLY: i64 = 1;
    let mut stat = std::mem::MaybeUninit::<libc::statfs64>::uninit();
    // SAFETY: `stat` has room for the answer.
    unsafe { syscall(libc::SYS_fstatfs, [fd(file), stat.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // SAFETY: the call succeeded, so the kernel filled the whole structure.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_flags & READ_ONLY != 0)
}

pub(crate) fn is_folder(file: RawFd) -> Result<bool> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let pointer = stat.as_mut_ptr() as usize;
    // SAFETY: `stat` has room for the answer.
    unsafe { syscall(libc::SYS_newfstatat, [fd(file), ptr(EMPTY), pointer, AT_EMPTY_PATH, 0, 0]) }?;
    // SAFETY: the call succeeded, so the kernel filled the whole structure.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
}

/// Sends an open handle of `path`, so that the keeper holds it before anything untrusted runs.
pub(super) fn send_folder(path: &CStr, socket: &OwnedFd, tag: u8) -> Result<()> {
    let folder =
        raw::open(CWD, path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC, 0)?;
    let result = raw::send_one(socket.as_raw_fd(), folder, tag);
    raw::close(folder);
    result
}

/// A new file beneath the working directory; no link of the way is followed and none is replaced.
fn create(path: &CStr, mode: u32) -> Result<RawFd> {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
    open_in(CWD, path, (flags, mode), libc::RESOLVE_NO_SYMLINKS)
}

fn look_beneath(path: &CStr, flags: i32) -> Result<RawFd> {
    open_in(CWD, path, (flags, 0), libc::RESOLVE_NO_SYMLINKS)
}

/// Opens `path` as if the folder `root` were the root; `resolve` adds to that.
fn open_in(root: RawFd, path: &CStr, (flags, mode): (i32, u32), resolve: u64) -> Result<RawFd> {
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: u64::from(mode),
        resolve: resolve | libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS,
    };
    let pointer = std::ptr::from_ref(&how) as usize;
    let size = size_of::<OpenHow>();
    // SAFETY: `path` and `how` are live, and the size is that of `how`.
    unsafe { syscall(libc::SYS_openat2, [fd(root), ptr(path), pointer, size, 0, 0]) }.map(raw::to_fd)
}

/// A handle of the folder above `path`, which is the working directory itself for a single name, and the
/// name in it.
fn open_parent(path: &CStr) -> Result<(RawFd, &CStr)> {
    let bytes = path.to_bytes();
    let Some(slash) = bytes.iter().rposition(|byte| *byte == b'/') else { return Ok((CWD, path)) };
    let rest = path.to_bytes_with_nul().get(slash + 1..);
    let name = rest.and_then(|rest| CStr::from_bytes_with_nul(rest).ok()).ok_or(Errno(libc::EINVAL))?;
    let mut above = [0_u8; PATH_BYTES];
    // The slash stays: it is the whole of what is above `/name`.
    let (Some(from), Some(to)) = (bytes.get(..=slash), above.get_mut(..=slash)) else {
        return Err(Errno(libc::ENAMETOOLONG));
    };
    to.copy_from_slice(from);
    let above = CStr::from_bytes_until_nul(&above).map_err(|_| Errno(libc::ENAMETOOLONG))?;
    Ok((look_beneath(above, libc::O_PATH | libc::O_DIRECTORY)?, name))
}

/// A file or folder of the tree at `root`, where links lead as they would if that tree were the whole system.
pub(super) fn open_within(root: &CStr, path: &CStr) -> Result<RawFd> {
    let root = raw::open(CWD, root, libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC, 0)?;
    let found = open_in(root, path, (libc::O_PATH, 0), 0);
    raw::close(root);
    found
}

fn chown(dir: RawFd, path: &CStr, owner: Owner, flags: usize) -> Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    // SAFETY: a live C string.
    unsafe { syscall(libc::SYS_fchownat, [fd(dir), ptr(path), uid as usize, gid as usize, flags, 0]) }
        .map(drop)
}

/// Copies to the end of `from`; from its own place on, or from another.
fn copy(from: RawFd, to: RawFd, place: Option<&mut i64>) -> Result<()> {
    let place = place.map_or(0, |place| std::ptr::from_mut(place) as usize);
    loop {
        // SAFETY: numbers, and a live number for the place or nothing, which means the file's own.
        let count = unsafe { syscall(libc::SYS_sendfile, [fd(to), fd(from), place, 1 << 20, 0, 0]) }?;
        if count == 0 {
            return Ok(());
        }
    }
}
