//! The thinnest layer over the kernel: numbers in, `Result` out. No allocation, no lock, no `errno`.

use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

/// A kernel error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

pub(crate) type Result<T> = std::result::Result<T, Errno>;

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

/// Where a path given with a descriptor is ignored or relative to the working directory.
pub(crate) const CWD: RawFd = libc::AT_FDCWD;
pub(crate) const EMPTY: &CStr = c"";

/// Calls the kernel. Arguments are passed as they are. Not even `errno` is touched, so that it may run
/// beside or inside a child that shares this memory.
///
/// # Safety
/// Pointers among `args` must be valid for what the call does with them, and descriptors that the
/// call closes or replaces must not be owned by anyone else.
pub(crate) unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Result<usize> {
    /// Results from here up are error numbers, negated.
    const FIRST_ERROR: isize = -4095;
    let [a, b, c, d, e, f] = args;
    let result: isize;
    // SAFETY: the caller vouches for the arguments; the instruction itself changes only the registers
    // that are named.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    match result {
        FIRST_ERROR..0 => Err(Errno(i32::try_from(-result).unwrap_or(libc::EINVAL))),
        _ => Ok(result.cast_unsigned()),
    }
}

/// A descriptor as the kernel wants it: sign-extended, so that `AT_FDCWD` stays negative.
pub(crate) fn fd(number: RawFd) -> usize {
    number as isize as usize
}

/// A descriptor that a call returned.
pub(crate) fn to_fd(value: usize) -> RawFd {
    value as RawFd
}

pub(crate) fn ptr(text: &CStr) -> usize {
    text.as_ptr() as usize
}

/// Closes a descriptor that this module's callers own; the result does not matter.
pub(crate) fn close(number: RawFd) {
    // SAFETY: callers pass a descriptor that they got from the kernel a moment ago and have not shared.
    let _ = unsafe { syscall(libc::SYS_close, [fd(number), 0, 0, 0, 0, 0]) };
}

pub(crate) fn open(dir: RawFd, path: &CStr, flags: i32, mode: u32) -> Result<RawFd> {
    // SAFETY: `path` is a live C string; the call only reads it.
    unsafe { syscall(libc::SYS_openat, [fd(dir), ptr(path), flags as usize, mode as usize, 0, 0]) }.map(to_fd)
}

pub(crate) fn write_all(to: RawFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        // SAFETY: `bytes` is live for the call, which only reads it.
        let count =
            unsafe { syscall(libc::SYS_write, [fd(to), bytes.as_ptr() as usize, bytes.len(), 0, 0, 0]) }?;
        bytes = bytes.get(count..).unwrap_or(&[]);
    }
    Ok(())
}

/// The most descriptors of [`send_all`].
pub(crate) const MOST_SENT: usize = 8;

/// Sends one descriptor and one byte through a socket, with nothing allocated.
pub(crate) fn send_one(socket: RawFd, passed: RawFd, tag: u8) -> Result<()> {
    send_all(socket, &[passed], tag)
}

/// Sends some descriptors, [`MOST_SENT`] at most, and one byte through a socket, with nothing allocated.
/// Fails where it would have to wait: whoever reads may be asleep until we are done.
pub(crate) fn send_all(socket: RawFd, passed: &[RawFd], tag: u8) -> Result<()> {
    /// `struct cmsghdr` with room for the descriptors, aligned as the kernel wants it.
    #[repr(C, align(8))]
    struct Attached {
        length: usize,
        level: i32,
        kind: i32,
        numbers: [RawFd; MOST_SENT],
    }
    let mut attached = Attached {
        // The header and the descriptors, without the padding.
        length: 16 + size_of_val(passed),
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        numbers: [-1; MOST_SENT],
    };
    attached.numbers.get_mut(..passed.len()).ok_or(Errno(libc::EINVAL))?.copy_from_slice(passed);
    let part = libc::iovec { iov_base: std::ptr::from_ref(&tag).cast_mut().cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid `msghdr`: null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = std::ptr::from_ref(&part).cast_mut();
    message.msg_iovlen = 1;
    if !passed.is_empty() {
        message.msg_control = std::ptr::from_ref(&attached).cast_mut().cast();
        message.msg_controllen = attached.length.next_multiple_of(8);
    }
    let pointer = std::ptr::from_ref(&message) as usize;
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
    // SAFETY: the message and all it points to are live, and only read.
    unsafe { syscall(libc::SYS_sendmsg, [fd(socket), pointer, flags, 0, 0, 0]) }.map(drop)
}

/// Sleeps while `word` is `value`. A wake-up without reason is possible.
pub(crate) fn wait(word: &AtomicU32, value: u32) {
    let arguments = [word.as_ptr() as usize, libc::FUTEX_WAIT as usize, value as usize, 0, 0, 0];
    // SAFETY: `word` lives through the call, which only reads it; there is no time limit.
    let _ = unsafe { syscall(libc::SYS_futex, arguments) };
}

/// Wakes whoever sleeps on `word`.
pub(crate) fn wake(word: &AtomicU32) {
    let arguments = [word.as_ptr() as usize, libc::FUTEX_WAKE as usize, i32::MAX as usize, 0, 0, 0];
    // SAFETY: the address is only a name here.
    let _ = unsafe { syscall(libc::SYS_futex, arguments) };
}
