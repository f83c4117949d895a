//! A proxy that everything goes through: CONNECT, and then the bytes are the server's.

use crate::wall::DialError;
use fumehood_model::egress::Identity;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A proxy that says more before it lets us through is none.
const MOST_HEAD_BYTES: usize = 16 << 10;
/// It dials in this time, too.
const DEADLINE: Duration = Duration::from_secs(30);
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Asks the proxy behind `stream` for a tunnel to this place.
pub(super) async fn tunnel(stream: &mut TcpStream, to: &Identity) -> Result<(), DialError> {
    let place = format!("{}:{}", to.host, to.port());
    let request = format!("CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n");
    let asked = timeout(DEADLINE, async {
        stream.write_all(request.as_bytes()).await?;
        head(stream).await
    });
    let head = match asked.await {
        Ok(head) => head.map_err(|error| DialError::Upstream(error.to_string()))?,
        Err(_) => return Err(DialError::Upstream(format!("no answer in {} s", DEADLINE.as_secs()))),
    };
    match status(&head) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(DialError::Upstream(format!("status {status}"))),
        None => Err(DialError::Upstream("its answer is no HTTP".to_owned())),
    }
}

/// Reads to the end of the head and not a byte further: what follows is the server's.
async fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut seen = [0; 1024];
    loop {
        let count = stream.peek(&mut seen).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let before = head.len();
        head.extend_from_slice(seen.get(..count).unwrap_or_default());
        let end = head.windows(HEAD_END.len()).position(|four| four == HEAD_END);
        let end = end.map(|place| place + HEAD_END.len());
        head.truncate(end.unwrap_or(head.len()));
        let taken = head.len().saturating_sub(before);
        stream.read_exact(seen.get_mut(..taken).unwrap_or_default()).await?;
        if end.is_some() {
            return Ok(head);
        }
        if head.len() > MOST_HEAD_BYTES {
            return Err(io::Error::other("its answer has no end"));
        }
    }
}

fn status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let [b'0' | b'1', b' ', digits @ ..] = rest else { return None };
    let digits = digits.get(..3).filter(|_| digits.get(3).is_none_or(|byte| *byte == b' '))?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_line_has_a_status() {
        assert_eq!(status(b"HTTP/1.1 200 Connection established\r\n\r\n"), Some(200));
        assert_eq!(status(b"HTTP/1.0 407\r\nA: b\r\n\r\n"), Some(407));
        for odd in
            ["HTTP/2 200\r\n\r\n", "HTTP/1.1 2000 x\r\n\r\n", "SSH-2.0\r\n\r\n", "\r\n\r\n", "HTTP/1.1 2"]
        {
            assert_eq!(status(odd.as_bytes()), None, "{odd}");
        }
    }
}
