//! Waiting on descriptors.

use crate::raw::{self, Errno};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

/// What to wait for on one descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
    /// Only that the other side went away.
    Hangup,
}

/// One descriptor of a wait, and afterwards what was found.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    pub ready: bool,
    /// The other side is gone. There may still be bytes to read.
    pub hangup: bool,
}

/// Waits until one of `set` is ready or `timeout` has passed (`None`: for ever). An interrupted wait
/// is an empty answer.
pub fn wait(set: &[(BorrowedFd<'_>, Interest)], timeout: Option<Duration>) -> io::Result<Vec<Waited>> {
    let mut fds: Vec<libc::pollfd> = set
        .iter()
        .map(|(fd, interest)| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: match interest {
                Interest::Read => libc::POLLIN,
                Interest::Write => libc::POLLOUT,
                Interest::Hangup => 0,
            },
            revents: 0,
        })
        .collect();
    let limit = timeout.map(|left| libc::timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    });
    let limit_pointer = limit.as_ref().map_or(0, |spec| std::ptr::from_ref(spec) as usize);
    // SAFETY: `fds` and `limit` are live for the call, and the count is that of `fds`.
    let found = unsafe {
        raw::syscall(libc::SYS_ppoll, [fds.as_mut_ptr() as usize, fds.len(), limit_pointer, 0, 8, 0])
    };
    match found {
        Ok(_) | Err(Errno(libc::EINTR)) => Ok(fds
            .iter()
            .map(|fd| Waited {
                ready: fd.revents & (libc::POLLIN | libc::POLLOUT | libc::POLLHUP | libc::POLLERR) != 0,
                hangup: fd.revents & (libc::POLLHUP | libc::POLLERR) != 0,
            })
            .collect()),
        Err(errno) => Err(errno.into()),
    }
}

/// Several descriptors as one: it is readable while one of them is.
#[derive(Debug)]
pub struct Joined(OwnedFd);

// === impl Joined ===

impl Joined {
    /// Joins `members`, which must outlive the waits.
    pub fn new(members: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let flags = libc::EPOLL_CLOEXEC as usize;
        // SAFETY: numbers only.
        let made = unsafe { raw::syscall(libc::SYS_epoll_create1, [flags, 0, 0, 0, 0, 0]) }?;
        // SAFETY: the kernel made it a moment ago.
        let joined = unsafe { OwnedFd::from_raw_fd(raw::to_fd(made)) };
        for member in members {
            let event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let arguments = [
                raw::fd(joined.as_raw_fd()),
                libc::EPOLL_CTL_ADD as usize,
                raw::fd(member.as_raw_fd()),
                std::ptr::from_ref(&event) as usize,
                0,
                0,
            ];
            // SAFETY: `event` is live and only read.
            unsafe { raw::syscall(libc::SYS_epoll_ctl, arguments) }?;
        }
        Ok(Self(joined))
    }
}

impl AsFd for Joined {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Descriptors that come and go, as one: it is readable while one of them is ready.
#[derive(Debug)]
pub struct Watch(OwnedFd);

/// One descriptor that was ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// What it was given when it was added.
    pub key: u64,
    /// The other side is gone, or the descriptor failed.
    pub hangup: bool,
}

/// What is found at once; the rest is found the next time.
const FOUND_AT_ONCE: usize = 64;

// === impl Watch ===

impl Watch {
    /// One that watches nothing.
    pub fn new() -> io::Result<Self> {
        Joined::new(&[]).map(|Joined(descriptor)| Self(descriptor))
    }

    /// Watches a descriptor. It must be removed before it is closed, if others have it open.
    pub fn add(&self, file: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, file, key, interest)
    }

    /// Watches it for something else.
    pub fn change(&self, file: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, file, key, interest)
    }

    /// Watches it no more.
    pub fn remove(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_DEL, file, 0, Interest::Hangup)
    }

    /// What is ready now.
    pub fn found(&self) -> io::Result<Vec<Found>> {
        let mut room = [libc::epoll_event { events: 0, u64: 0 }; FOUND_AT_ONCE];
        let words = [raw::fd(self.0.as_raw_fd()), room.as_mut_ptr() as usize, room.len(), 0, 0, 8];
        // SAFETY: `room` is live and as long as is said; no mask is given.
        let count = match unsafe { raw::syscall(libc::SYS_epoll_pwait, words) } {
            Err(Errno(libc::EINTR)) => 0,
            other => other?,
        };
        let gone = (libc::EPOLLHUP | libc::EPOLLERR).cast_unsigned();
        let ready = room.into_iter().take(count);
        Ok(ready.map(|event| Found { key: event.u64, hangup: event.events & gone != 0 }).collect())
    }

    fn control(&self, how: i32, file: BorrowedFd<'_>, key: u64, interest: Interest) -> io::Result<()> {
        let events = match interest {
            Interest::Read => libc::EPOLLIN.cast_unsigned(),
            Interest::Write => libc::EPOLLOUT.cast_unsigned(),
            Interest::Hangup => 0,
        };
        let event = libc::epoll_event { events, u64: key };
        let pointer = std::ptr::from_ref(&event) as usize;
        let words = [raw::fd(self.0.as_raw_fd()), how as usize, raw::fd(file.as_raw_fd()), pointer, 0, 0];
        // SAFETY: `event` is live and only read.
        unsafe { raw::syscall(libc::SYS_epoll_ctl, words) }.map(drop).map_err(Into::into)
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
