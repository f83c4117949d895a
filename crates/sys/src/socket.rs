//! Packet sockets that carry descriptors.
//!
//! **Invariant:** every descriptor that the kernel gives is owned the moment it is here, also when the
//! packet is of no use.

use crate::raw::{fd, syscall};
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// The most descriptors on one packet, in either direction.
pub const MAX_DESCRIPTORS: usize = 8;

/// One packet and what rode on it.
#[derive(Debug)]
pub struct Packet {
    /// Bytes that were written to the buffer. Zero is the end of the socket.
    pub length: usize,
    /// In the order of the sender; they close on exec.
    pub descriptors: Vec<OwnedFd>,
    /// Whether bytes or descriptors were lost for want of room.
    pub truncated: bool,
}

/// What to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Something to receive.
    Packet,
    /// That, or room to send.
    PacketOrRoom,
}

/// A group of descriptors as the kernel lays it out; every field is aligned, so there is no padding.
#[repr(C, align(8))]
struct Rights {
    header: libc::cmsghdr,
    numbers: [RawFd; MAX_DESCRIPTORS],
}

/// Two connected ends of a socket that keeps packets whole. Both close on exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [-1; 2];
    // SAFETY: the kernel writes two numbers, which `ends` has room for.
    let result = unsafe {
        libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, ends.as_mut_ptr())
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    let left = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let right = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((left, right))
}

/// Sends one packet with `descriptors` on it. Never waits and never raises a signal.
///
/// # Errors
/// `InvalidInput` for more than [`MAX_DESCRIPTORS`]; `WouldBlock` when the other side must read first.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut rights = Rights::empty();
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (number, descriptor) in rights.numbers.iter_mut().zip(descriptors) {
        *number = descriptor.as_raw_fd();
    }
    let mut region = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message(&mut region);
    if !descriptors.is_empty() {
        let length = size_of::<libc::cmsghdr>() + descriptors.len() * size_of::<RawFd>();
        rights.header.cmsg_len = length;
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = length.next_multiple_of(size_of::<usize>());
    }
    loop {
        // SAFETY: `message` points at `region` (which is `bytes`, only read) and at `rights` for no more
        // than its size, all alive here.
        let sent = unsafe {
            libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
        };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Says that nothing more will be sent. What comes can still be received.
pub fn hang_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_shutdown, [fd(socket.as_raw_fd()), libc::SHUT_WR as usize, 0, 0, 0, 0]) }?;
    Ok(())
}

/// Takes one packet into `buffer`. Never waits.
///
/// # Errors
/// `WouldBlock` when there is none; `ConnectionReset` once when the other side left without reading
/// all, after which what it had sent can still be taken.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Packet> {
    loop {
        let mut rights = Rights::empty();
        let mut region = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut message = message(&mut region);
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = size_of::<Rights>();
        let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
        // SAFETY: `message` points at `region` (which is `buffer`) and at `rights`, both writable for
        // their lengths and alive here.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
        if let Ok(length) = usize::try_from(received) {
            let truncated = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
            let descriptors = rights.take(message.msg_controllen);
            return Ok(Packet { length: length.min(buffer.len()), descriptors, truncated });
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Waits until the socket has what is waited for, or has ended. False when the time is over first.
///
/// # Errors
/// Out of memory.
pub fn wait(socket: BorrowedFd<'_>, what: Wait, patience: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + patience;
    let events = match what {
        Wait::Packet => libc::POLLIN,
        Wait::PacketOrRoom => libc::POLLIN | libc::POLLOUT,
    };
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 };
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, so that the last wait does not end before the deadline.
        let timeout = i32::try_from(left.as_millis().saturating_add(1)).unwrap_or(i32::MAX);
        // SAFETY: `entry` is one `pollfd`, writable and alive here.
        let ready = unsafe { libc::poll(&raw mut entry, 1, timeout) };
        if ready > 0 {
            return Ok(true);
        }
        if ready < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        if left.is_zero() {
            return Ok(false);
        }
    }
}

/// A TCP socket of someone we do not trust, if it is one that connects. A listener, or a socket of any other
/// kind, is refused: what is done to a connection must not be done to those.
///
/// # Errors
/// `InvalidData` for what is no such socket; `ConnectionRefused` for one that has dialled itself, as the kernel
/// lets it when nobody listens; `ConnectionReset` for one that was connected, or never was.
pub fn connection(socket: OwnedFd) -> io::Result<OwnedFd> {
    let is = |name, wanted: &[i32]| {
        option(socket.as_fd(), libc::SOL_SOCKET, name).is_ok_and(|found| wanted.contains(&found))
    };
    let stream = is(libc::SO_DOMAIN, &[libc::AF_INET, libc::AF_INET6])
        && is(libc::SO_TYPE, &[libc::SOCK_STREAM])
        && is(libc::SO_PROTOCOL, &[libc::IPPROTO_TCP])
        && is(libc::SO_ACCEPTCONN, &[0]);
    if !stream {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // `struct tcp_info` begins with the state.
    match option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO)?.to_ne_bytes() {
        [TCP_CLOSED, ..] => return Err(io::ErrorKind::ConnectionReset.into()),
        [TCP_SYN_SENT, ..] => return Ok(socket),
        _ => {}
    }
    let stream = TcpStream::from(socket);
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(stream.into())
}

/// Reads what a stream socket of somebody we do not trust has, without waiting whatever its settings are.
///
/// # Errors
/// `WouldBlock` when there is nothing yet.
pub fn take(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `into` is writable for its length.
    let taken =
        unsafe { libc::recv(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Writes to such a socket as much as it takes now.
///
/// # Errors
/// `WouldBlock` when it takes nothing yet.
pub fn give(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: `bytes` is readable for its length.
    let given = unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    usize::try_from(given).map_err(|_| io::Error::last_os_error())
}

/// Lets go of a connection whose settings somebody else may have changed, without waiting until what is on
/// its way has arrived.
pub fn discard(connection: OwnedFd) {
    let linger = libc::linger { l_onoff: 0, l_linger: 0 };
    // SAFETY: `linger` is live and only read. A failure leaves what was set.
    let _ = unsafe {
        libc::setsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const linger).cast(),
            size_of_val(&linger) as libc::socklen_t,
        )
    };
}

const TCP_SYN_SENT: u8 = 2;
const TCP_CLOSED: u8 = 7;

/// Has the kernel ask whether the other end of a quiet TCP connection is still there: after `idle`, and then
/// `times` times every `pause`. Whole seconds.
///
/// # Errors
/// It is no TCP connection, or the kernel takes no such times.
pub fn watch_quiet(socket: BorrowedFd<'_>, idle: Duration, pause: Duration, times: i32) -> io::Result<()> {
    let seconds = |time: Duration| i32::try_from(time.as_secs()).map_err(|_| io::ErrorKind::InvalidInput);
    set_option(socket, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, seconds(idle)?)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, seconds(pause)?)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, times)
}

/// Ends a TCP connection once bytes of it were not taken by the other end's kernel for so long, in place of the
/// quarter of an hour that is usual.
///
/// # Errors
/// It is no TCP connection.
pub fn limit_untaken(socket: BorrowedFd<'_>, limit: Duration) -> io::Result<()> {
    let millis = i32::try_from(limit.as_millis()).map_err(|_| io::ErrorKind::InvalidInput)?;
    set_option(socket, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis)
}

fn set_option(socket: BorrowedFd<'_>, level: i32, name: i32, value: i32) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` is live and only read.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A number that is a socket's setting.
fn option(socket: BorrowedFd<'_>, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0_i32;
    let mut length = size_of_val(&value) as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes; the kernel writes no more.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

// === impl Rights ===

impl Rights {
    const fn empty() -> Self {
        let header = libc::cmsghdr { cmsg_len: 0, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
        Self { header, numbers: [-1; MAX_DESCRIPTORS] }
    }

    /// Takes over the descriptors that the kernel wrote into `length` bytes of control space.
    fn take(self, length: usize) -> Vec<OwnedFd> {
        let ours = self.header.cmsg_level == libc::SOL_SOCKET && self.header.cmsg_type == libc::SCM_RIGHTS;
        if !ours || length < size_of::<libc::cmsghdr>() {
            return Vec::new();
        }
        let bytes = self.header.cmsg_len.min(length).saturating_sub(size_of::<libc::cmsghdr>());
        let count = bytes / size_of::<RawFd>();
        let numbers = self.numbers.into_iter().take(count);
        // SAFETY: the kernel wrote `count` numbers of descriptors it opened for this process just now, so
        // nothing else owns them.
        numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }).collect()
    }
}

/// A message of one region, with no name and no control space.
fn message(region: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a zeroed `msghdr` is valid: null pointers and zero lengths.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = region;
    message.msg_iovlen = 1;
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn descriptors_arrive_in_order_with_the_packet() {
        let (left, right) = pair().unwrap();
        let (mut first_reader, first) = io::pipe().unwrap();
        let (mut second_reader, second) = io::pipe().unwrap();
        send(left.as_fd(), b"packet", &[first.as_fd(), second.as_fd()]).unwrap();
        drop((first, second));
        let mut buffer = [0; 16];
        let packet = receive(right.as_fd(), &mut buffer).unwrap();
        assert_eq!(&buffer[..packet.length], b"packet");
        assert!(!packet.truncated);
        for (text, descriptor) in ["one", "two"].into_iter().zip(packet.descriptors) {
            File::from(descriptor).write_all(text.as_bytes()).unwrap();
        }
        let mut text = String::new();
        first_reader.read_to_string(&mut text).unwrap();
        second_reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo");
    }

    #[test]
    fn a_packet_that_does_not_fit_is_marked_and_its_descriptors_are_still_owned() {
        let (left, right) = pair().unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        send(left.as_fd(), b"much too long", &[writer.as_fd()]).unwrap();
        drop(writer);
        let packet = receive(right.as_fd(), &mut [0; 4]).unwrap();
        assert!(packet.truncated);
        assert_eq!(packet.length, 4);
        drop(packet);
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0, "the descriptor leaked");
    }

    #[test]
    fn nothing_waits() {
        let (left, right) = pair().unwrap();
        let error = receive(right.as_fd(), &mut [0; 4]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        let full = (0..100_000).find_map(|_| send(left.as_fd(), &[0; 1024], &[]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn waiting_ends_with_room_or_with_the_time() {
        let (left, _right) = pair().unwrap();
        assert!(wait(left.as_fd(), Wait::PacketOrRoom, Duration::from_secs(5)).unwrap());
        while send(left.as_fd(), &[0; 1024], &[]).is_ok() {}
        assert!(!wait(left.as_fd(), Wait::PacketOrRoom, Duration::from_millis(5)).unwrap());
    }

    #[test]
    fn the_end_is_an_empty_packet_and_sending_into_it_fails() {
        let (left, right) = pair().unwrap();
        drop(left);
        assert_eq!(receive(right.as_fd(), &mut [0; 4]).unwrap().length, 0);
        assert_eq!(send(right.as_fd(), b"x", &[]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn too_many_descriptors_are_refused() {
        let (left, right) = pair().unwrap();
        let many = [right.as_fd(); MAX_DESCRIPTORS + 1];
        assert_eq!(send(left.as_fd(), b"x", &many).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        send(left.as_fd(), b"x", &many[1..]).unwrap();
        let packet = receive(right.as_fd(), &mut [0; 4]).unwrap();
        assert_eq!((packet.descriptors.len(), packet.truncated), (MAX_DESCRIPTORS, false));
    }

    #[test]
    fn only_a_connection_is_taken_for_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut stream = TcpStream::from(connection(stream.into()).unwrap());
        accepted.write_all(b"x").unwrap();
        stream.read_exact(&mut [0; 1]).unwrap();
        discard(stream.into());
        assert_eq!(accepted.read(&mut [0; 1]).unwrap(), 0, "it is not let go of");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let others = [listener.into(), udp.into(), pair().unwrap().0, File::open("/").unwrap().into()];
        for other in others {
            assert_eq!(connection(other).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn one_that_has_dialled_itself_is_refused() {
        // SAFETY: numbers only.
        let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        // SAFETY: the kernel made it a moment ago.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut own = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes([127, 0, 0, 1]) },
            sin_zero: [0; 8],
        };
        let (pointer, length) = ((&raw mut own).cast(), size_of_val(&own) as libc::socklen_t);
        // SAFETY: `own` is live and only read.
        assert_eq!(unsafe { libc::bind(socket.as_raw_fd(), pointer, length) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::connect(socket.as_raw_fd(), pointer, length) }, 0);
        assert_eq!(connection(socket).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
}
