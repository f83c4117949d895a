//! `--publish`: a port of the host's loopback leads inside, and nothing else comes of it.

use crate::both_callers::both_callers;
use crate::lab::{self, Lab};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

both_callers! {
    a_server_on_the_loopback_inside_is_reached
    a_port_that_is_taken_is_a_run_that_does_not_start
}

/// A port that nobody has. Another test could take it before it is used; then the run says so and fails.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The address by which others would reach this host.
fn own_address() -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("203.0.113.1:9").ok()?;
    match socket.local_addr().ok()?.ip() {
        std::net::IpAddr::V4(address) if !address.is_loopback() => Some(address),
        _ => None,
    }
}

const SERVER: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 8000), backlog=64)
print('listening', flush=True)
while True:
    stream, _ = listener.accept()
    data = b''
    while more := stream.recv(65536):
        data += more
    try:
        socket.create_connection(('203.0.113.1', 80), 0.3)
        out = b'a way out'
    except OSError:
        out = b'no way out'
    stream.sendall(str(len(data)).encode() + b' bytes, ' + out)
    stream.close()
";

fn ask(port: u16, bytes: &[u8]) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(bytes)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn a_server_on_the_loopback_inside_is_reached(lab: &Lab) {
    let port = free_port();
    let mut command = lab.fumehood();
    command.args(["run", "--publish", &format!("{port}:8000"), "--", "python3", "-c", SERVER]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    lab::await_word(&mut child, "listening").unwrap();
    for size in [0, 5, 3_000_000] {
        assert_eq!(ask(port, &vec![7; size]).unwrap(), format!("{size} bytes, no way out"));
    }
    let many: Vec<_> =
        (0..32).map(|size| std::thread::spawn(move || ask(port, &vec![1; size]).unwrap())).collect();
    for (size, answer) in many.into_iter().enumerate() {
        assert_eq!(answer.join().unwrap(), format!("{size} bytes, no way out"));
    }
    if let Some(address) = own_address() {
        assert!(TcpStream::connect_timeout(&(address, port).into(), Duration::from_secs(1)).is_err());
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = lab::poll(Duration::from_secs(5), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err());
    assert!(gone, "the port is still open after the keeper was killed");
}

fn a_port_that_is_taken_is_a_run_that_does_not_start(lab: &Lab) {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let ran = lab.run(&["--publish", &port.to_string()], &["true"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(ran.err().contains(&format!("port {port}")) && ran.err().contains("--publish"), "{}", ran.told());
}
