//! The other end of a sandbox's network: sockets of the host's, in a namespace that takes every address for
//! its own.
//!
//! What a sandbox sends goes there and nowhere else. A listener accepts connections to *any* address, and the
//! local address of an accepted socket is the one that was dialled. Whoever holds the sockets is all the
//! network that the sandbox has; closed, there is none.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;

/// The most ports that are listened to one by one; beyond that, [`Ports::Every`].
pub const MOST_PORTS: usize = 64;

/// The gateway's own address: that of the resolver in `/etc/resolv.conf`, and of the proxy. It is of the range
/// that names are given addresses from, and no name has it.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Where programs that are told of a proxy find it.
pub const PROXY: SocketAddrV4 = SocketAddrV4::new(ADDRESS, 3128);

/// A gateway that is wished for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewaySpec {
    pub ports: Ports,
}

/// The TCP ports at which connections are accepted, beside names (53) and [`PROXY`]. At all others the
/// kernel refuses them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// These, [`MOST_PORTS`] at most.
    Listed(Vec<u16>),
    /// All of them, by one listener.
    Every,
}

/// The sockets of a gateway. None of them ever blocks, and all close on exec.
#[derive(Debug)]
pub struct Gateway {
    /// One listener for each port of [`Ports::Listed`], for both versions of IP: version 4 is seen as mapped.
    pub listeners: Vec<(u16, OwnedFd)>,
    /// The listener of [`Ports::Every`]. The dialled port is told by `fumehood_sys::datagram::dialled`.
    pub any: Option<OwnedFd>,
    /// DNS at every address. It may get what it sent itself, when a program inside forges the sender: an
    /// answer is never to be answered.
    pub names_udp: OwnedFd,
    pub names_tcp: OwnedFd,
    /// The listener at [`PROXY`].
    pub proxy: OwnedFd,
    /// Gives the first bytes of each packet that the kernel refused: one to a port without a listener, or a
    /// datagram that is no question for a name. Read with `fumehood_sys::observer::attempt`.
    pub observer: OwnedFd,
}
