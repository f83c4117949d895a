//! Waiting on descriptors.

use crate::raw::{self, Errno};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
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
