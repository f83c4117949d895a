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
