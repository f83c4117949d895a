//! System calls that wait for our answer.
//!
//! A call is never let through from here, because what its pointers point at can change between the look and the
//! act. It is refused, or who answers has done what it asked for, from a copy of its own, and says so.

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
    /// Whose it is, as we number processes.
    pub thread: i32,
    /// The call's number.
    pub number: i32,
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

// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND`, `_ADDFD` and `_ID_VALID`
const RECEIVE: usize = 0xC050_2100;
const SEND: usize = 0xC018_2101;
const ADD: usize = 0x4018_2103;
const STILL_WAITS: usize = 0x4008_2102;
/// The descriptor is the call's result, in the same step. Since Linux 5.14.
const ADD_AND_SEND: u32 = 1 << 1;

// === impl Waiting ===

impl Waiting {
    /// A call as one would arrive, for tests of who reads it. No answer reaches anybody.
    #[doc(hidden)]
    pub const fn for_tests(thread: i32, number: i32, arguments: [u64; 6]) -> Self {
        Self { id: 0, thread, number, arguments }
    }
}

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
            thread: i32::try_from(notification.pid).unwrap_or(0),
            number: notification.number,
            arguments: notification.arguments,
        })
    }

    /// Whether the caller still waits: what was read of it by its number before was its own.
    pub fn still_waits(&self, call: &Waiting) -> bool {
        let pointer = std::ptr::from_ref(&call.id) as usize;
        // SAFETY: the request reads one live number.
        unsafe { syscall(libc::SYS_ioctl, [fd(self.0.as_raw_fd()), STILL_WAITS, pointer, 0, 0, 0]) }.is_ok()
    }

    /// The text that ends in a zero at `address` of the caller, such as a path that it names; 255 bytes at most.
    /// It may be another by the time that anybody acts on it: good for choosing what to give, not for allowing.
    ///
    /// # Errors
    /// There is no such text, or we may not look into the caller.
    pub fn text(&self, call: Waiting, address: u64) -> io::Result<Vec<u8>> {
        let memory = File::open(format!("/proc/{}/mem", call.thread))?;
        let mut bytes = vec![0; 256];
        let count = memory.read_at(&mut bytes, address)?;
        bytes.truncate(count);
        let end = bytes.iter().position(|byte| *byte == 0).ok_or(io::ErrorKind::InvalidData)?;
        bytes.truncate(end);
        // Whether the caller still waits, and so is who was read.
        if !self.still_waits(&call) {
            return Err(io::ErrorKind::NotFound.into());
        }
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
        self.answer(Answer { id: call.id, value: 0, error: -errno, flags: 0 })
    }

    /// Says that what a call asked for was done. Its result is zero.
    pub fn done(&self, call: Waiting) -> io::Result<()> {
        self.answer(Answer { id: call.id, value: 0, error: 0, flags: 0 })
    }

    fn answer(&self, answer: Answer) -> io::Result<()> {
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
