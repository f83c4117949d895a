//! What the gate is given: sockets of a namespace in which every address is its own.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, OwnedFd};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// The sockets of one gateway. None may block.
#[derive(Debug)]
pub struct Sockets {
    /// Listeners for both versions of IP, at any address; the dialled port is their own.
    pub listeners: Vec<OwnedFd>,
    /// A listener that connections to any port are led to.
    pub redirected: Option<OwnedFd>,
    /// DNS at any address. Tells and takes the local address of a datagram.
    pub names_udp: OwnedFd,
    pub names_tcp: OwnedFd,
    /// The listener that speaks the protocols of proxies.
    pub proxy: OwnedFd,
    /// Gives the first bytes of what the kernel refused.
    pub observer: Option<Observer>,
}

/// A packet socket, and how its packets are read.
pub struct Observer {
    pub socket: OwnedFd,
    pub read: fn(&[u8]) -> Option<Attempt>,
}

/// One attempt to reach somebody who does not listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub protocol: Transport,
    pub to: SocketAddr,
}

/// What an attempt was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// How it is found out which address a connection was made to.
pub(crate) type DialledAddress = fn(&TcpStream) -> io::Result<SocketAddr>;

/// A listener of these as one of the runtime's.
pub(crate) fn listener(socket: OwnedFd) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::from(socket);
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

/// A socket for packets as one of the runtime's, of whatever family: only reading, writing and waiting
/// are asked of it.
pub(crate) fn packets(socket: OwnedFd) -> io::Result<UdpSocket> {
    let socket = std::net::UdpSocket::from(socket);
    socket.set_nonblocking(true)?;
    UdpSocket::from_std(socket)
}

/// The address that a listener at any address was dialled by: its connection's own.
pub(crate) fn own_address(stream: &TcpStream) -> io::Result<SocketAddr> {
    stream.local_addr().map(plain)
}

/// The address that a connection went to before it was led here.
pub(crate) fn redirected_address(stream: &TcpStream) -> io::Result<SocketAddr> {
    let version_4 = stream.local_addr()?.ip().to_canonical().is_ipv4();
    fumehood_sys::datagram::dialled(stream.as_fd(), version_4).map(plain)
}

fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

// === impl Observer ===

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("socket", &self.socket).finish_non_exhaustive()
    }
}
