//! Sockets at addresses that are nobody's: which one was dialled, and answering from there.

use crate::raw::{fd, syscall};
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// A datagram that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Bytes in the buffer.
    pub length: usize,
    /// Whether it was longer than the buffer.
    pub truncated: bool,
    pub from: SocketAddr,
    /// The address that it was sent to: an answer must come from there.
    pub to: IpAddr,
}

/// `struct cmsghdr` with a `struct in6_pktinfo`, as the kernel lays them out.
#[repr(C, align(8))]
struct Arrival {
    length: usize,
    level: i32,
    kind: i32,
    address: [u8; 16],
    interface: u32,
}

/// The part of [`Arrival`] that counts, without the padding at its end.
const ARRIVAL_BYTES: usize = 36;

/// Makes a socket of both versions tell where each of its datagrams went.
///
/// # Errors
/// It is no such socket.
pub fn tell(socket: BorrowedFd<'_>) -> io::Result<()> {
    let on = 1_i32;
    let words = [
        fd(socket.as_raw_fd()),
        libc::IPPROTO_IPV6 as usize,
        libc::IPV6_RECVPKTINFO as usize,
        std::ptr::from_ref(&on) as usize,
        size_of_val(&on),
        0,
    ];
    // SAFETY: `on` is live and only read, for its own size.
    unsafe { syscall(libc::SYS_setsockopt, words) }.map(drop).map_err(Into::into)
}

/// Takes one datagram of a socket of both versions that asks for `IPV6_RECVPKTINFO`. Never waits.
///
/// # Errors
/// `WouldBlock` when there is none; what the kernel says about earlier answers, such as
/// `ConnectionRefused`, which is no reason to stop reading.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Datagram> {
    // SAFETY: all-zero is a valid address, and a valid `Arrival`.
    let mut from: libc::sockaddr_in6 = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut arrival = Arrival { length: 0, level: 0, kind: 0, address: [0; 16], interface: 0 };
    let mut region = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut from, &mut region);
    message.msg_control = (&raw mut arrival).cast();
    message.msg_controllen = size_of::<Arrival>();
    let words = [fd(socket.as_raw_fd()), (&raw mut message) as usize, libc::MSG_DONTWAIT as usize, 0, 0, 0];
    // SAFETY: `message` points at `from`, `buffer` and `arrival`, all writable for their lengths and alive.
    let length = unsafe { syscall(libc::SYS_recvmsg, words) }?;
    let told = message.msg_controllen >= ARRIVAL_BYTES
        && arrival.level == libc::IPPROTO_IPV6
        && arrival.kind == libc::IPV6_PKTINFO;
    if !told {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the socket does not tell who was dialled"));
    }
    Ok(Datagram {
        length: length.min(buffer.len()),
        truncated: message.msg_flags & libc::MSG_TRUNC != 0,
        from: canonical(from.sin6_addr.s6_addr, from.sin6_port),
        to: Ipv6Addr::from(arrival.address).to_canonical(),
    })
}

/// Sends one datagram to `to`, from the address `from`, which may be anybody's if the socket has
/// `IPV6_FREEBIND`. Never waits.
///
/// # Errors
/// `WouldBlock` when there is no room; `InvalidInput` when the two addresses are of different versions.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], from: IpAddr, to: SocketAddr) -> io::Result<()> {
    if from.is_ipv4() != to.is_ipv4() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let scope = match to {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(to) => to.scope_id(),
    };
    let mut address = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: to.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: mapped(to.ip()) },
        sin6_scope_id: scope,
    };
    let mut arrival = Arrival {
        length: ARRIVAL_BYTES,
        level: libc::IPPROTO_IPV6,
        kind: libc::IPV6_PKTINFO,
        address: mapped(from),
        interface: 0,
    };
    let mut region = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message(&mut address, &mut region);
    message.msg_control = (&raw mut arrival).cast();
    message.msg_controllen = size_of::<Arrival>();
    let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
    let words = [fd(socket.as_raw_fd()), (&raw const message) as usize, flags, 0, 0, 0];
    // SAFETY: `message` points at `address`, `bytes` and `arrival`, which are alive and only read.
    unsafe { syscall(libc::SYS_sendmsg, words) }.map(drop).map_err(Into::into)
}

/// Where a connection was going before the packet filter led it to this socket.
///
/// # Errors
/// `NotFound` for a connection that was not redirected, whose own address says it.
pub fn dialled(socket: BorrowedFd<'_>, version_4: bool) -> io::Result<SocketAddr> {
    /// `SO_ORIGINAL_DST`, of both versions.
    const ORIGINAL_DESTINATION: i32 = 80;
    // SAFETY: all-zero is a valid address of either version.
    let mut address: libc::sockaddr_in6 = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut length = size_of_val(&address) as libc::socklen_t;
    let level = if version_4 { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
    let words = [
        fd(socket.as_raw_fd()),
        level as usize,
        ORIGINAL_DESTINATION as usize,
        (&raw mut address) as usize,
        (&raw mut length) as usize,
        0,
    ];
    // SAFETY: `address` has room for `length` bytes.
    unsafe { syscall(libc::SYS_getsockopt, words) }?;
    if version_4 {
        // `struct sockaddr_in`: the port stands where the other version has it, and then the address.
        let octets = address.sin6_flowinfo.to_ne_bytes();
        return Ok(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(octets)), u16::from_be(address.sin6_port)));
    }
    Ok(canonical(address.sin6_addr.s6_addr, address.sin6_port))
}

fn canonical(address: [u8; 16], port: u16) -> SocketAddr {
    let whole = SocketAddrV6::new(Ipv6Addr::from(address), u16::from_be(port), 0, 0);
    SocketAddr::new(whole.ip().to_canonical(), whole.port())
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// A message of one region, to or from an address.
fn message(address: &mut libc::sockaddr_in6, region: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a zeroed `msghdr` is valid: null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = std::ptr::from_mut(address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    message.msg_iov = region;
    message.msg_iovlen = 1;
    message
}
