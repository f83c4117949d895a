//! HTTP through the wall, both versions: read strictly, judged request by request, sent on.
//!
//! ```text
//!  client ─► head ─► framing ─► target ─┐                          ┌─► pool ─► upstream ─► server
//!            (h2 does the first two)    ├─► exchange: clear, carry ┤
//!  client ◄─ answer, or the server's ◄──┘                          └─◄ flow (bodies, both ways)
//! ```
//!
//! **Invariant:** what is sent to a server is written anew from what was judged; no byte of a
//! client's head is passed on as it came.
//!
//! **Invariant:** every request of a connection is cleared by itself, whatever was allowed before it.
//!
//! **Invariant:** a secret is put into a request only after it was cleared, and is sent only over TLS
//! whose server has shown who it is.
//!
//! **Invariant:** an answer that broke off never looks whole to the client.

pub(crate) mod answer;
pub mod chunk;
mod credentials;
pub(crate) mod exchange;
pub(crate) mod flow;
pub mod framing;
pub mod head;
mod hop;
mod http1;
mod http2;
pub(crate) mod limits;
mod pool;
mod prefixed;
mod taped;
mod target;
mod upstream;
mod websocket;
mod wire;

#[cfg(test)]
mod tests;

pub use credentials::Secrets;
pub use prefixed::{Cut, Prefixed};
pub use target::Addressing;

use crate::tape::{Mode, Tape};
use crate::tls::{NotOpened, Opener, Servers, server};
use crate::wall::{Asked, Via, Wall};
use bytes::Bytes;
use fumehood_model::egress::{Denial, Identity};
use pool::Pool;
use std::fmt;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;

/// What carries requests: a wall, what is believed of servers, and the connections to them. Cheap to
/// clone; everything is on one thread, and inside of a [`tokio::task::LocalSet`].
pub struct Forward<W>(Rc<Parts<W>>);

struct Parts<W> {
    wall: W,
    servers: Rc<Servers>,
    secrets: Rc<Secrets>,
    pool: Pool,
    tape: Tape,
}

// === impl Forward ===

impl<W: Wall> Forward<W> {
    pub fn new(wall: W, servers: Rc<Servers>, secrets: Rc<Secrets>) -> Self {
        Self::taped(wall, servers, secrets, Mode::Off)
    }

    /// The same, with a tape that is written or played.
    pub fn taped(wall: W, servers: Rc<Servers>, secrets: Rc<Secrets>, tape: Mode) -> Self {
        Self(Rc::new(Parts { wall, servers, secrets, pool: Pool::default(), tape: Tape::new(tape) }))
    }

    /// Serves a connection of HTTP, in the clear or inside of TLS that was opened. `first` are bytes
    /// of it that were read already.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Cut>(
        &self,
        stream: S,
        first: Bytes,
        addressing: &Addressing,
        via: Via,
    ) {
        let mut stream = Prefixed::new(stream, first);
        if let Addressing::Fixed(identity) = addressing {
            // HTTP/2 is known by its first bytes, however it was agreed on.
            if stream.begins_with(http2::PREFACE).await {
                Box::pin(http2::serve(self, stream, identity, via)).await;
                return;
            }
        }
        let (stream, first) = stream.into_parts();
        http1::serve(self, stream, first, addressing, via).await;
    }

    /// Opens a connection of TLS, and serves what is inside. `first` are bytes of it that were read
    /// already. What can not be opened is recorded as refused.
    pub async fn serve_tls<S: AsyncRead + AsyncWrite + Unpin + Cut>(
        &self,
        opener: &Opener,
        (stream, first): (S, Bytes),
        identity: Identity,
        via: Via,
    ) {
        let refuse = async |denial| {
            let asked = Asked { identity: &identity, request: None, via };
            self.wall().refuse(asked, denial).await;
        };
        // Boxed, as the states of what is over soon: they would be held as long as the connection lasts.
        let tls = match Box::pin(opener.open(Prefixed::new(stream, first), &identity)).await {
            // Each place that it is moved to would be held as long as the connection lasts.
            Ok(tls) => Box::new(tls),
            Err(NotOpened::Denied(denial)) => return Box::pin(refuse(denial)).await,
            Err(NotOpened::Leaf(_)) => return Box::pin(refuse(Denial::NotInspected)).await,
            Err(NotOpened::Broken(_)) => return,
        };
        let opened = Instant::now();
        let mut tls = Prefixed::new(tls, Bytes::new());
        // Some clients look at a certificate only once the handshake is over, and leave.
        match tls.first_bytes().await {
            Ok(true) => {}
            Ok(false) if opened.elapsed() > limits::SECOND_THOUGHT => return,
            Ok(false) => return Box::pin(refuse(Denial::NotOpened)).await,
            Err(error) => {
                if let Some(denial) = server::not_believed(&error) {
                    Box::pin(refuse(denial)).await;
                }
                return;
            }
        }
        let (tls, first) = tls.into_parts();
        self.serve(tls, first, &Addressing::Fixed(identity), via).await;
    }

    pub(crate) fn wall(&self) -> &W {
        &self.0.wall
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.0.servers
    }

    pub(crate) fn secrets(&self) -> &Secrets {
        &self.0.secrets
    }

    pub(crate) fn tape(&self) -> &Tape {
        &self.0.tape
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.0.pool
    }
}

impl<W> Clone for Forward<W> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<W> fmt::Debug for Forward<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Forward")
            .field("servers", &self.0.servers)
            .field("pool", &self.0.pool)
            .finish_non_exhaustive()
    }
}
