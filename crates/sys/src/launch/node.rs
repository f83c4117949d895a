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

/// A folder that exists already is fine: parents are made more than once.
pub(super) fn make_dir(path: &CStr, mode: u32, owner: Owner) -> Result<()> {
    // SAFETY: a live C string.
    match unsafe { syscall(libc::SYS_mkdirat, [fd(CWD), ptr(path), mode as usize, 0, 0, 0]) } {
        Ok(_) => {}
        Err(Errno(libc::EEXIST)) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    chown(CWD, path, owner, libc::AT_SYMLINK_NOFOLLOW as usize)
}

pub(super) fn symlink(to: &CStr, path: &CStr) -> Result<()> {
    // SAFETY: live C strings.
    unsafe { syscall(libc::SYS_symlinkat, [ptr(to), fd(CWD), ptr(path), 0, 0, 0]) }.map(drop)
}

pub(super) fn write_file(path: &CStr, content: &[u8], mode: u32, owner: Owner) -> Result<()> {
    let file = create(path, mode)?;
    let result = raw::write_all(file, content).and_then(|()| chown(file, EMPTY, owner, AT_EMPTY_PATH));
    raw::close(file);
    result
}

pub(super) fn copy_file(from: &OwnedFd, path: &CStr, mode: u32, owner: Owner) -> Result<()> {
    let file = create(path, mode)?;
    let result = copy(from.as_raw_fd(), file).and_then(|()| chown(file, EMPTY, owner, AT_EMPTY_PATH));
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

pub(super) fn exists(path: &CStr) -> bool {
    // SAFETY: a live C string; mode 0 asks for existence alone.
    unsafe { syscall(libc::SYS_faccessat, [fd(CWD), ptr(path), 0, 0, 0, 0]) }.is_ok()
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

pub(super) fn is_folder(file: RawFd) -> Result<bool> {
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
    let how = OpenHow {
        flags: (libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC) as u64,
        mode: u64::from(mode),
        resolve: libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS,
    };
    let pointer = std::ptr::from_ref(&how) as usize;
    let size = size_of::<OpenHow>();
    // SAFETY: `path` and `how` are live, and the size is that of `how`.
    unsafe { syscall(libc::SYS_openat2, [fd(CWD), ptr(path), pointer, size, 0, 0]) }.map(raw::to_fd)
}

fn chown(dir: RawFd, path: &CStr, owner: Owner, flags: usize) -> Result<()> {
    let Some((uid, gid)) = owner else { return Ok(()) };
    // SAFETY: a live C string.
    unsafe { syscall(libc::SYS_fchownat, [fd(dir), ptr(path), uid as usize, gid as usize, flags, 0]) }
        .map(drop)
}

fn copy(from: RawFd, to: RawFd) -> Result<()> {
    loop {
        // SAFETY: numbers only; a null offset means the file's own.
        let count = unsafe { syscall(libc::SYS_sendfile, [fd(to), fd(from), 0, 1 << 20, 0, 0]) }?;
        if count == 0 {
            return Ok(());
        }
    }
}
