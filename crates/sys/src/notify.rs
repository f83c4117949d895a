//! System calls that wait for our answer.
//!
//! The only answers given are an error number and a descriptor of ours: a call is never let through from here,
//! because what its pointers point at can change between the look and the act.

use crate::raw::{self, Errno, fd, syscall};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

/// Where the calls that a filter asks about arrive. When it is gone, they fail with `ENOSYS`.
#[derive(Debug)]
pub struct Listener(OwnedFd);

/// One call that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    id: u64,
    pid: u32,
    /// The call's number.
    pub number: i32,
    /// Its arguments, as machine words.
    pub arguments: [u64; 6],
}

/// `struct seccomp_notif`
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`
#[repr(C)]
struct Answer {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`
#[repr(C)]
struct Placed {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND` and `_ADDFD`
const RECEIVE: usize = 0xC050_2100;
const SEND: usize = 0xC018_2101;
const ADD: usize = 0x4018_2103;
const IS_WAITING: usize = 0x4008_2102;
/// The descriptor is the call's result, in the same step. Since Linux 5.14.
const ADD_AND_SEND: u32 = 1 << 1;

// === impl Listener ===

impl Listener {
    /// The next call that waits. `None` when there is none, or when it was given up meanwhile.
    pub fn next(&self) -> Option<Waiting> {
        let ready = crate::poll::wait(
            &[(self.0.as_fd(), crate::poll::Interest::Read)],
            Some(std::time::Duration::ZERO),
        );
        if !ready.is_ok_and(|found| found.first().is_some_and(|waited| waited.ready && !waited.hangup)) {
            return None;
        }
        let mut notification = Notification::default();
        let pointer = std::ptr::from_mut(&mut notification) as usize;
        // SAFETY: the kernel fills one zeroed notification, which has its layout.
        unsafe { syscall(libc::SYS_ioctl, [fd(self.0.as_raw_fd()), RECEIVE, pointer, 0, 0, 0]) }.ok()?;
        Some(Waiting {
            id: notification.id,
            pid: notification.pid,
            number: notification.number,
            arguments: notification.arguments,
        })
    }

    /// The text that ends in a zero at `address` of the caller, such as a path that it names; 255 bytes at most.
    /// It may be another by the time that anybody acts on it: good for choosing what to give, not for allowing.
    ///
    /// # Errors
    /// There is no such text, or we may not look into the caller.
    pub fn text(&self, call: Waiting, address: u64) -> io::Result<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", call.pid))?;
        let mut bytes = vec![0; 256];
        let count = memory.read_at(&mut bytes, address)?;
        bytes.truncate(count);
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(io::ErrorKind::InvalidData)?;
        bytes.truncate(end);
        let mut id = call.id;
        let pointer = std::ptr::from_mut(&mut id) as usize;
        // SAFETY: `id` is live. The call says whether the caller still waits, and so is who was read.
        unsafe { syscall(libc::SYS_ioctl, [fd(self.0.as_raw_fd()), IS_WAITING, pointer, 0, 0, 0]) }?;
        Ok(bytes)
    }

    /// Answers a call that opens something with a copy of `descriptor`, which closes on exec there.
    ///
    /// # Errors
    /// The kernel's; a caller that is gone by now needs no answer.
    pub fn give(&self, call: Waiting, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let placed = Placed {
            id: call.id,
            flags: ADD_AND_SEND,
            source: descriptor.as_raw_fd().cast_unsigned(),
            number: 0,
            number_flags: libc::O_CLOEXEC.cast_unsigned(),
        };
        let pointer = std::ptr::from_ref(&placed) as usize;
        // SAFETY: `placed` has the kernel's layout and is only read.
        match unsafe { syscall(libc::SYS_ioctl, [fd(self.0.as_raw_fd()), ADD, pointer, 0, 0, 0]) } {
            Ok(_) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Lets a call fail with `errno`. A caller that is gone by now needs no answer.
    pub fn refuse(&self, call: Waiting, errno: i32) -> io::Result<()> {
        let answer = Answer { id: call.id, value: 0, error: -errno, flags: 0 };
        let pointer = std::ptr::from_ref(&answer) as usize;
        // SAFETY: `answer` has the kernel's layout and is only read.
        match unsafe { syscall(libc::SYS_ioctl, [fd(self.0.as_raw_fd()), SEND, pointer, 0, 0, 0]) } {
            Ok(_) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl From<OwnedFd> for Listener {
    fn from(listener: OwnedFd) -> Self {
        Self(listener)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const _: () = assert!(size_of::<Notification>() == 80 && size_of::<Answer>() == 24);
const _: () = assert!(size_of::<Placed>() == 24);
/// The descriptor convention of this crate: a listener is sent through a socket like any other.
pub(crate) fn hand_over(listener: raw::Result<i32>, socket: i32, tag: u8) -> raw::Result<()> {
    let listener = listener?;
    let result = raw::send_one(socket, listener, tag);
    raw::close(listener);
    result
}
