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
//! **Invariant:** an answer that broke off never looks whole to the client.

mod answer;
pub mod chunk;
mod credentials;
mod exchange;
mod flow;
pub mod framing;
pub mod head;
mod hop;
mod http1;
mod http2;
pub(crate) mod limits;
mod pool;
mod prefixed;
mod target;
mod upstream;
mod websocket;
mod wire;

#[cfg(test)]
mod tests;

pub use http1::Served;
pub use prefixed::{Cut, Prefixed};
pub use target::Place;

use crate::tls::Servers;
use crate::wall::{Via, Wall};
use bytes::Bytes;
use pool::Pool;
use std::fmt;
use std::rc::Rc;
use tokio::io::{AsyncRead, AsyncWrite};

/// What carries requests: a wall, what is believed of servers, and the connections to them. Cheap to
/// clone; everything is on one thread, and inside of a [`tokio::task::LocalSet`].
pub struct Forward<W>(Rc<Parts<W>>);

struct Parts<W> {
    wall: W,
    servers: Servers,
    pool: Pool,
}

// === impl Forward ===

impl<W: Wall> Forward<W> {
    pub fn new(wall: W, servers: Servers) -> Self {
        Self(Rc::new(Parts { wall, servers, pool: Pool::default() }))
    }

    /// Serves a connection of HTTP, in the clear or inside of TLS that was opened. `first` are bytes
    /// of it that were read already.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin + Cut>(
        &self,
        stream: S,
        first: Bytes,
        place: &Place,
        via: Via,
    ) -> Served<S> {
        let mut stream = Prefixed::new(stream, first);
        if let Place::Fixed(identity) = place {
            // HTTP/2 is known by its first bytes, however it was agreed on.
            if stream.begins_with(http2::PREFACE).await {
                http2::serve(self, stream, identity, via).await;
                return Served::Over;
            }
        }
        let (stream, first) = stream.into_parts();
        http1::serve(self, stream, first, place, via).await
    }

    pub(crate) fn wall(&self) -> &W {
        &self.0.wall
    }

    pub(crate) fn servers(&self) -> &Servers {
        &self.0.servers
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
