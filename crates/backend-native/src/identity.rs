//! Who a sandbox is to the kernel.
//!
//! With root, each sandbox has a kernel uid of its own from a range that nothing else uses, so that
//! per-uid quotas of the kernel can not be used to starve a neighbour and files of one can never be
//! another's. The uid is held by binding an abstract socket of its name: atomic, seen by every user of
//! this host, and gone with the processes that hold it. An ordinary user shares their own uid.

use fumehood_sys::host;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Between the container ranges that distributions hand out and the sign bit.
pub(crate) const FIRST: u32 = 0x7000_0000;
const COUNT: u64 = 0x1_0000;
/// A host with so many sandboxes that this many picks are taken is full.
const TRIES: u64 = 256;

/// The kernel ids of one sandbox, held until dropped.
#[derive(Debug)]
pub struct Identity {
    /// Kernel uid and gid.
    pub kernel: (u32, u32),
    /// What the sandbox sees itself as.
    pub inside: (u32, u32),
    /// Whether the kernel ids are this sandbox's alone.
    pub own: bool,
    _held: Option<OwnedFd>,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum NoneFree {
    /// Every pick was taken.
    #[error("every uid that was tried is held by another sandbox")]
    Held,
    /// The host has no randomness to pick with, or no socket to hold a pick by.
    #[error("pick a uid and hold it")]
    Host(#[source] io::Error),
}

// === impl Identity ===

impl Identity {
    /// An identity for a sandbox that sees itself as `inside`.
    ///
    /// # Errors
    /// Every pick is held by another sandbox; the host refuses what picking takes.
    pub fn take(inside: u32) -> Result<Self, NoneFree> {
        let inside = (inside, inside);
        if host::euid() != 0 {
            let kernel = (host::euid(), host::egid());
            return Ok(Self { kernel, inside, own: false, _held: None });
        }
        let start = host::random().map_err(NoneFree::Host)?;
        for step in 0..TRIES {
            let place = u32::try_from(start.wrapping_add(step) % COUNT).map_err(|_| NoneFree::Held)?;
            let uid = FIRST + place;
            if let Some(held) = hold(uid).map_err(NoneFree::Host)? {
                return Ok(Self { kernel: (uid, uid), inside, own: true, _held: Some(held) });
            }
        }
        Err(NoneFree::Held)
    }

    /// The caller's own, for a helper that is not less than the caller.
    #[must_use]
    pub fn of_caller() -> Self {
        let ids = (host::euid(), host::egid());
        Self { kernel: ids, inside: ids, own: host::euid() == 0, _held: None }
    }
}

/// `None` where another sandbox has it.
fn hold(uid: u32) -> io::Result<Option<OwnedFd>> {
    let name = SocketAddr::from_abstract_name(format!("fumehood/uid/{uid}"))?;
    match UnixDatagram::bind_addr(&name) {
        Ok(held) => Ok(Some(held.into())),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sandboxes_never_share_a_kernel_uid() {
        if host::euid() != 0 {
            let identity = Identity::take(1000).unwrap();
            assert!(!identity.own);
            return;
        }
        let taken: Vec<_> = (0..200).map(|_| Identity::take(1000).unwrap()).collect();
        let distinct: std::collections::BTreeSet<_> = taken.iter().map(|identity| identity.kernel).collect();
        assert_eq!(distinct.len(), taken.len());
    }
}
