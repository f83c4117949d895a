//! A network namespace, made beside us.
//!
//! Making one takes the kernel as long as everything else of a launch together, so a child that shares
//! our memory and descriptors makes it on another processor while we prepare the rest.

use super::clone;
use super::ids;
use crate::raw::{self, CWD, Errno};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};

/// A namespace in the making. Waits for its maker when dropped.
#[derive(Debug)]
pub struct Pending {
    child: Option<clone::Companion<Cell>>,
}

/// What the maker leaves: a descriptor, or an error number below zero.
#[derive(Debug)]
struct Cell(AtomicI32);

const NOTHING: i32 = i32::MIN;

impl Pending {
    /// Starts making a namespace with loopback up. Needs root in the host's user namespace.
    pub fn start() -> io::Result<Self> {
        let child = clone::companion(Cell(AtomicI32::new(NOTHING)), |cell| {
            let made = make();
            cell.0.store(made.unwrap_or_else(|Errno(errno)| -errno), Ordering::Release);
        })?;
        Ok(Self { child: Some(child) })
    }

    /// The namespace.
    pub fn finish(mut self) -> io::Result<OwnedFd> {
        let Some(child) = self.child.take() else { return Err(io::ErrorKind::NotFound.into()) };
        match child.join().0.into_inner() {
            NOTHING => Err(io::ErrorKind::Interrupted.into()),
            // SAFETY: the maker opened it in the table that it shares with us, and is gone.
            number if number >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
            errno => Err(io::Error::from_raw_os_error(-errno)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(child) = self.child.take() {
            let number = child.join().0.into_inner();
            if number >= 0 {
                raw::close(number);
            }
        }
    }
}

fn make() -> raw::Result<i32> {
    ids::network_namespace()?;
    ids::loopback_up()?;
    raw::open(CWD, c"/proc/self/ns/net", libc::O_RDONLY | libc::O_CLOEXEC, 0)
}
