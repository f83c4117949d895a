//! A connection of the sandbox, and the seam to those who read requests.

use crate::classify::First;
use crate::hello::ClientHello;
use crate::wall::{Via, Wall};
use fumehood_model::egress::{Host, Identity, Scheme};
use std::future::Future;
use std::io;
use tokio::net::TcpStream;

/// What is read at once before it is known what is spoken.
const READ_BYTES: usize = 4 << 10;

/// A connection that was taken, and what its first bytes say.
#[derive(Debug)]
pub struct Inbound {
    pub stream: TcpStream,
    /// Bytes that were read already; they come before those of the stream.
    pub first: Vec<u8>,
    pub via: Via,
    /// Where it goes. `None` where each request says so by itself, with the whole URL in its first line.
    pub place: Option<Place>,
}

/// A host and a port, before it is known what is spoken with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub host: Host,
    /// Never 0.
    port: u16,
}

/// Those who read what the gate only passes on.
pub trait Protocols<W: Wall>: 'static {
    /// Opens TLS and serves what is inside. The name in `hello` is that of the place.
    fn tls(&self, wall: W, inbound: Inbound, hello: ClientHello) -> impl Future<Output = ()>;

    /// Serves HTTP in the clear. Also what was meant to be: a request that is none is answered as such.
    fn http(&self, wall: W, inbound: Inbound) -> impl Future<Output = ()>;
}

/// Reads until it is known what is spoken. Where it is cut short, what came stays in `first`.
///
/// # Errors
/// The connection failed; `UnexpectedEof` where it ended before a byte came.
pub(crate) async fn read_first(stream: &TcpStream, first: &mut Vec<u8>) -> io::Result<First> {
    loop {
        match First::look(first) {
            First::More => {}
            known @ (First::Tls(_) | First::BadTls(_) | First::Http | First::Other) => return Ok(known),
        }
        if read_more(stream, first).await? == 0 {
            return if first.is_empty() {
                Err(io::ErrorKind::UnexpectedEof.into())
            } else {
                Ok(First::Other)
            };
        }
    }
}

/// Waits for bytes and adds them. Zero is the end.
pub(crate) async fn read_more(stream: &TcpStream, first: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        stream.readable().await?;
        let mut bytes = [0; READ_BYTES];
        match stream.try_read(&mut bytes) {
            Ok(count) => {
                first.extend_from_slice(bytes.get(..count).unwrap_or_default());
                return Ok(count);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

// === impl Place ===

impl Place {
    /// `None` for port 0.
    pub fn new(host: Host, port: u16) -> Option<Self> {
        (port != 0).then_some(Self { host, port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The identity of speaking `scheme` there.
    pub fn speaking(&self, scheme: Scheme) -> Option<Identity> {
        Identity::new(scheme, self.host.clone(), self.port)
    }

    /// What is most likely spoken there, for refusals that come before a byte.
    pub(crate) fn likely(&self) -> Scheme {
        let usual = [Scheme::Https, Scheme::Http].into_iter();
        let mut usual = usual.filter(|scheme| scheme.default_port() == Some(self.port));
        usual.next().unwrap_or(Scheme::Tcp)
    }
}
