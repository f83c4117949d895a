//! A caller of the daemon on this host, for the command line: one request, by the daemon's own socket.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The longest path that fits a socket address, with its end.
const ADDRESS_BYTES: usize = 107;
/// The longest answer.
const MOST_BYTES: u64 = 64 << 20;

/// Sends a request, and gives the answer's status and body.
///
/// # Errors
/// Nobody listens there, or what answers does not speak HTTP.
pub fn call(socket: &Path, method: &str, path: &str, body: &serde_json::Value) -> io::Result<(u16, Vec<u8>)> {
    let mut stream = connect(socket)?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(MOST_BYTES).read_to_end(&mut answer)?;
    parse(&answer).ok_or_else(|| io::Error::other("the daemon's answer is not understood"))
}

fn parse(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, body) = answer.split_at_checked(end + 4)?;
    let line = std::str::from_utf8(head).ok()?.lines().next()?;
    let status = line.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_vec()))
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    if socket.as_os_str().len() <= ADDRESS_BYTES {
        return UnixStream::connect(socket);
    }
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let folder = File::open(socket.parent().ok_or_else(missing)?)?;
    let name = socket.file_name().ok_or_else(missing)?;
    UnixStream::connect(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(parse(b"HTTP/1.0 201 Created\r\nA: b\r\n\r\n{}"), Some((201, b"{}".to_vec())));
        for odd in [&b""[..], b"HTTP/1.0", b"HTTP/1.0 x y\r\n\r\n", b"\r\n\r\n"] {
            assert_eq!(parse(odd), None);
        }
    }
}
