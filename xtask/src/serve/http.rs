//! As much of HTTP as it takes to ask the daemon: one request after the other over one connection.

use std::error::Error;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpStream};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// One connection.
#[derive(Debug)]
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    key: String,
}

/// An answer whose head is there.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    stream: &'a mut BufReader<TcpStream>,
    pub(super) status: u16,
    /// `None`: in chunks.
    length: Option<usize>,
}

// === impl Client ===

impl Client {
    pub(super) fn new(address: SocketAddr, key: &str) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(std::time::Duration::from_secs(120)))?;
        Ok(Self { stream: BufReader::with_capacity(1 << 16, stream), key: key.to_owned() })
    }

    /// Sends one request, and waits for the head of its answer.
    pub(super) fn ask(&mut self, method: &str, path: &str, body: &str) -> Result<Answer<'_>> {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.key,
            body.len()
        );
        self.stream.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split_whitespace().nth(1).ok_or("no answer")?.parse()?;
        let mut length = Some(0);
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = Some(value.trim().parse()?),
                "transfer-encoding" => length = None,
                _ => {}
            }
        }
        Ok(Answer { stream: &mut self.stream, status, length })
    }

    /// One whole exchange that must go well, as JSON; null where there is no body.
    pub(super) fn call(&mut self, method: &str, path: &str, body: &str) -> Result<serde_json::Value> {
        let text = self.text(method, path, body)?;
        Ok(serde_json::from_str(&text).unwrap_or(serde_json::Value::Null))
    }

    /// The same, as text.
    pub(super) fn text(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        let answer = self.ask(method, path, body)?;
        let status = answer.status;
        let mut bytes = Vec::new();
        answer.drain(&mut |part| bytes.extend_from_slice(part))?;
        if !(200..300).contains(&status) {
            return Err(format!("{method} {path}: {status}: {}", String::from_utf8_lossy(&bytes)).into());
        }
        Ok(String::from_utf8(bytes)?)
    }
}

// === impl Answer ===

impl Answer<'_> {
    /// The whole body, part by part.
    pub(super) fn drain(self, part: &mut dyn FnMut(&[u8])) -> Result<()> {
        let Self { stream, length, .. } = self;
        if let Some(length) = length {
            return take(stream, length, part);
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line)?;
            let size = line.trim_end().split(';').next().unwrap_or_default();
            let size = usize::from_str_radix(size, 16)?;
            take(stream, size, part)?;
            // After the last chunk there may be trailers.
            loop {
                line.clear();
                stream.read_line(&mut line)?;
                if line.trim_end().is_empty() {
                    break;
                }
            }
            if size == 0 {
                return Ok(());
            }
        }
    }
}

fn take(stream: &mut BufReader<TcpStream>, length: usize, part: &mut dyn FnMut(&[u8])) -> Result<()> {
    let mut left = stream.take(u64::try_from(length)?);
    loop {
        let found = left.fill_buf()?;
        if found.is_empty() {
            return Ok(());
        }
        let count = found.len();
        part(found);
        left.consume(count);
    }
}
