//! What programs inside can reach, and what the holder of the gateway sees of it.

use crate::guest::{Lab, PATIENCE, both_callers};
use fumehood_sys::poll::{self, Interest};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};

both_callers! {
    a_listener_hears_every_address
}

/// Takes the next connection.
fn accept(listener: OwnedFd) -> (TcpStream, OwnedFd) {
    let found = poll::wait(&[(listener.as_fd(), Interest::Read)], Some(PATIENCE)).unwrap();
    assert!(found[0].ready, "nobody connects");
    let listener = TcpListener::from(listener);
    let (stream, _) = listener.accept().unwrap();
    stream.set_nonblocking(false).unwrap();
    (stream, listener.into())
}

fn dialled(stream: &TcpStream) -> SocketAddr {
    let address = stream.local_addr().unwrap();
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn a_listener_hears_every_address() {
    let lab = Lab::new();
    let (mut guest, mut gateway) = lab.listed(&[443, 22]);
    let running = guest.start(
        "import socket\n\
         for host in '203.0.113.7', '2001:db8::7', '198.18.0.1', 'fd66:756d:6568:1::5', '8.8.8.8':\n\
         \x20   with socket.create_connection((host, 443), timeout=10) as s:\n\
         \x20       s.sendall(b'hello')\n\
         \x20       print(s.recv(5).decode())\n",
    );
    assert_eq!(gateway.listeners.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [22, 443]);
    let (_, mut listener) = gateway.listeners.remove(1);
    for host in ["203.0.113.7", "2001:db8::7", "198.18.0.1", "fd66:756d:6568:1::5", "8.8.8.8"] {
        let (mut stream, back) = accept(listener);
        listener = back;
        assert_eq!(dialled(&stream), SocketAddr::new(host.parse().unwrap(), 443));
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).unwrap();
        stream.write_all(&hello).unwrap();
    }
    assert_eq!(guest.finish(running), "hello\n".repeat(5));
}
