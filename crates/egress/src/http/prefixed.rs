//! A connection whose first bytes were read already.

use super::limits;
use bytes::{Buf, Bytes, BytesMut};
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A stream that can be ended so that nobody takes its end for a good one.
pub trait Cut {
    /// Arranges for a reset in place of the orderly end.
    fn cut(&self);
}

/// Gives what was read before, and then what comes.
#[derive(Debug)]
pub struct Prefixed<S> {
    first: Bytes,
    stream: S,
}

// === impl Cut ===

impl Cut for TcpStream {
    fn cut(&self) {
        // Where this fails the connection is gone already.
        let _ = self.set_zero_linger();
    }
}

impl Cut for tokio::io::DuplexStream {
    fn cut(&self) {}
}

impl<S: Cut> Cut for Prefixed<S> {
    fn cut(&self) {
        self.stream.cut();
    }
}

/// Closing it without its closing message is enough for TLS; the reset is for those who do not look.
impl<S: Cut> Cut for tokio_rustls::server::TlsStream<S> {
    fn cut(&self) {
        self.get_ref().0.cut();
    }
}

impl<S: Cut + ?Sized> Cut for Box<S> {
    fn cut(&self) {
        (**self).cut();
    }
}

// === impl Prefixed ===

impl<S> Prefixed<S> {
    pub const fn new(stream: S, first: Bytes) -> Self {
        Self { first, stream }
    }

    pub fn into_parts(self) -> (S, Bytes) {
        (self.stream, self.first)
    }
}

impl<S: AsyncRead + Unpin> Prefixed<S> {
    /// Waits for the first bytes. Whether any came before the end.
    pub(crate) async fn first_bytes(&mut self) -> io::Result<bool> {
        if self.first.is_empty() {
            let mut seen = BytesMut::new();
            timeout(limits::KEEP_ALIVE, read_late(&mut self.stream, &mut seen)).await.unwrap_or(Ok(0))?;
            self.first = seen.freeze();
        }
        Ok(!self.first.is_empty())
    }

    /// Reads on until it is clear whether the stream begins with these bytes. Errors show later.
    pub(crate) async fn begins_with(&mut self, bytes: &[u8]) -> bool {
        let decided = |seen: &[u8]| !bytes.starts_with(seen) || seen.len() >= bytes.len();
        let mut patience: Duration = limits::KEEP_ALIVE;
        while !decided(self.first.get(..bytes.len()).unwrap_or(&self.first)) {
            let mut seen = BytesMut::from(&*self.first);
            let read = timeout(patience, self.stream.read_buf(&mut seen)).await;
            patience = limits::HEAD_TIME;
            self.first = seen.freeze();
            if !matches!(read, Ok(Ok(1..))) {
                break;
            }
        }
        self.first.starts_with(bytes)
    }
}

/// Waits for bytes without holding room for them: a connection may lie idle for long, and thousands may.
pub(crate) async fn read_late<S: AsyncRead + Unpin>(
    stream: &mut S,
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    poll_fn(|cx| {
        let mut room = [MaybeUninit::uninit(); limits::BLOCK_BYTES / 4];
        let mut into = ReadBuf::uninit(&mut room);
        let polled = Pin::new(&mut *stream).poll_read(cx, &mut into);
        polled.map_ok(|()| {
            buffer.extend_from_slice(into.filled());
            into.filled().len()
        })
    })
    .await
}

impl<S: AsyncRead + Unpin> AsyncRead for Prefixed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        }
        let count = self.first.len().min(into.remaining());
        into.put_slice(self.first.get(..count).unwrap_or_default());
        self.first.advance(count);
        if self.first.is_empty() {
            // Long connections need not hold it.
            self.first = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Prefixed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
