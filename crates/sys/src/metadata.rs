//! Modes and times of files, for another process that may not set them itself.
//!
//! Everything is done on a handle that gives no other power over the file (`O_PATH`), so that what was judged is
//! what is changed.

use crate::raw::{self, CWD, EMPTY, fd, ptr, syscall};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// A time to set: seconds and nanoseconds, or the kernel's own marks for "now" and "as it is".
pub type Time = (i64, i64);

/// `struct open_how`
#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

const FCHMODAT2: libc::c_long = 452;
const EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;

/// What stands at a host path of ours.
pub fn hold(path: &CStr) -> io::Result<OwnedFd> {
    let held = raw::open(CWD, path, libc::O_PATH | libc::O_CLOEXEC, 0)?;
    // SAFETY: the call has just made it, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(held) })
}

/// What stands at `path` beneath `root`. Neither `..` nor a link leads out, and no magic link is followed; `follow`
/// says whether a link at its very end is.
pub fn hold_beneath(root: BorrowedFd<'_>, path: &CStr, follow: bool) -> io::Result<OwnedFd> {
    let no_follow = if follow { 0 } else { libc::O_NOFOLLOW };
    let how = OpenHow {
        flags: (libc::O_PATH | libc::O_CLOEXEC | no_follow) as u64,
        mode: 0,
        resolve: libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS,
    };
    let pointer = std::ptr::from_ref(&how) as usize;
    let arguments = [fd(root.as_raw_fd()), ptr(path), pointer, size_of::<OpenHow>(), 0, 0];
    // SAFETY: `path` and `how` are live, and the size is that of `how`.
    let held = unsafe { syscall(libc::SYS_openat2, arguments) }.map(raw::to_fd)?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(held) })
}

/// Sets a mode.
pub fn set_mode(file: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    let arguments = [fd(file.as_raw_fd()), ptr(EMPTY), mode as usize, EMPTY_PATH, 0, 0];
    // SAFETY: the path is empty and live.
    unsafe { syscall(FCHMODAT2, arguments) }?;
    Ok(())
}

/// Sets access and modification time; `None`: both to now.
pub fn set_times(file: BorrowedFd<'_>, times: Option<[Time; 2]>) -> io::Result<()> {
    let times = times.map(|times| times.map(|(tv_sec, tv_nsec)| libc::timespec { tv_sec, tv_nsec }));
    let pointer = times.as_ref().map_or(0, |times| times.as_ptr() as usize);
    let arguments = [fd(file.as_raw_fd()), ptr(EMPTY), pointer, EMPTY_PATH, 0, 0];
    // SAFETY: the path is empty and live; two live times, or none.
    unsafe { syscall(libc::SYS_utimensat, arguments) }?;
    Ok(())
}

/// Reads memory of another process of the same user. Gives how much of it there is.
pub fn read_memory(pid: i32, address: u64, into: &mut [u8]) -> io::Result<usize> {
    let ours = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let theirs = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: into.len() };
    let (ours, theirs) = (std::ptr::from_ref(&ours) as usize, std::ptr::from_ref(&theirs) as usize);
    // SAFETY: one live region of ours is written, for its length; the other address is judged by the kernel.
    let read = unsafe { syscall(libc::SYS_process_vm_readv, [pid as usize, ours, 1, theirs, 1, 0]) }?;
    Ok(read)
}
