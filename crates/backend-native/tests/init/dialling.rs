//! Connections to servers of the guest's.

use crate::guest::Guest;
use fumehood_backend::{Event, ExecError, MOST_CALLS};
use fumehood_backend_native::control::Control;
use fumehood_backend_native::control::wire::{HEADER_BYTES, Report, Request};
use fumehood_sys::process;
use fumehood_sys::socket;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What became of a call.
fn dialled(guest: &mut Guest, port: u16) -> io::Result<OwnedFd> {
    let wanted = guest.control.dial(port).unwrap();
    match guest.event() {
        (0, Event::Dialled { call, result }) => {
            assert_eq!(call, wanted);
            result
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_on_either_loopback_is_reached() {
    let mut guest = Guest::new();
    for host in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(host).unwrap();
        let address = listener.local_addr().unwrap();
        let connection = dialled(&mut guest, address.port()).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut stream = TcpStream::from(connection);
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        process::set_nonblocking(&stream.try_clone().unwrap().into(), false).unwrap();
        stream.write_all(b"there").unwrap();
        let mut word = [0; 5];
        accepted.read_exact(&mut word).unwrap();
        accepted.write_all(b"back").unwrap();
        drop(accepted);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!((&word, answer.as_str()), (b"there", "back"));
    }
    assert_eq!(guest.shell("echo on"), "on\n");
}

#[test]
fn where_nobody_listens_it_is_said_and_nothing_stays_open() {
    let mut guest = Guest::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    for _ in 0..200 {
        assert_eq!(dialled(&mut guest, port).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
    assert_eq!(guest.shell("ls /proc/self/fd | tr '\\n' ' '"), "0 1 2 3 ");
    assert_eq!(guest.control.dial(0), Err(ExecError::Silent));
}

/// A server that accepts nobody holds up neither `init` nor us.
#[test]
fn a_server_that_is_busy_is_not_waited_for() {
    let mut guest = Guest::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // More than the queue of a listener of the standard library takes.
    let port = listener.local_addr().unwrap().port();
    let mut held = Vec::new();
    for _ in 0..200 {
        held.push(dialled(&mut guest, port).unwrap());
    }
    assert_eq!(guest.shell("echo on"), "on\n");
}

#[test]
fn calls_that_are_not_answered_are_bounded() {
    let (mut control, silent) = Control::new().unwrap();
    for _ in 0..MOST_CALLS {
        control.dial(80).unwrap();
    }
    assert_eq!(control.dial(80), Err(ExecError::Exhausted));
    let mut packet = [0; HEADER_BYTES];
    socket::receive(silent.as_fd(), &mut packet).unwrap();
    assert_eq!(Request::parse(&packet), Ok(Request::Dial { call: 1, port: 80 }));
    socket::send(silent.as_fd(), &Report::NotDialled { call: 1, errno: 111 }.print(), &[]).unwrap();
    let event = control.next_event();
    let refused = io::ErrorKind::ConnectionRefused;
    assert!(
        matches!(&event, Some(Event::Dialled { call: 1, result: Err(error) }) if error.kind() == refused),
        "{event:?}"
    );
    control.dial(80).unwrap();
}

/// What `init` may say it has dialled, when it lies.
#[test]
fn a_lie_ends_the_sandbox() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (file, (pair, _other)) = (File::open("/").unwrap(), socket::pair().unwrap());
    let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let good = stream.as_fd();
    let lies: [(u32, &[BorrowedFd<'_>]); 8] = [
        (1, &[]),
        (1, &[good, good]),
        (2, &[good]),
        (0, &[good]),
        (1, &[listener.as_fd()]),
        (1, &[udp.as_fd()]),
        (1, &[file.as_fd()]),
        (1, &[pair.as_fd()]),
    ];
    for (call, descriptors) in lies {
        let (mut control, liar) = Control::new().unwrap();
        control.dial(80).unwrap();
        socket::send(liar.as_fd(), &Report::Dialled { call }.print(), descriptors).unwrap();
        assert!(matches!(control.next_event(), Some(Event::Gone)), "{call} {descriptors:?}");
    }
    // The truth, once.
    let (mut control, honest) = Control::new().unwrap();
    control.dial(80).unwrap();
    for _ in 0..2 {
        socket::send(honest.as_fd(), &Report::Dialled { call: 1 }.print(), &[good]).unwrap();
    }
    assert!(matches!(control.next_event(), Some(Event::Dialled { call: 1, result: Ok(_) })));
    assert!(matches!(control.next_event(), Some(Event::Gone)));
}
