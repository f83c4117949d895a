//! One direction of an HTTP/1 connection each: the reader with its buffer, and the writer with its.

use super::chunk::{Chunks, Piece};
use super::flow::{Broken, Frame, Sink, Source};
use super::framing::Length;
use super::head::{HeadFlaw, RequestHead, ResponseHead};
use super::limits;
use super::prefixed::read_late;
use bytes::{BufMut, Bytes, BytesMut};
use http::HeaderMap;
use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout, timeout_at};

/// Reads heads and bodies. What came after one message stays for the next.
#[derive(Debug)]
pub(crate) struct Reader<R> {
    io: R,
    buffer: BytesMut,
    body: Left,
}

/// What is left to read of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Known(u64),
    Chunks(Chunks),
    UntilClose,
    /// No longer HTTP: everything until the close, however long it takes.
    Raw,
    Over,
}

/// Why there is no head.
#[derive(Debug)]
pub(crate) enum NoHead {
    Flaw(HeadFlaw),
    /// After its first byte.
    Broken(Broken),
}

/// Writes heads and bodies, a block at a time.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    io: W,
    buffer: BytesMut,
    body: Owed,
    /// Whether a byte of the current message was sent.
    is_begun: bool,
}

/// What a head has promised of its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Known(u64),
    Chunked,
    UntilClose,
}

// === impl Reader ===

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(crate) fn new(io: R, first: Bytes) -> Self {
        let buffer = first.try_into_mut().unwrap_or_else(|first| BytesMut::from(&*first));
        Self { io, buffer, body: Left::Over }
    }

    /// The next request, or `None` where the client asks no more.
    pub(crate) async fn request(
        &mut self,
        patience: std::time::Duration,
    ) -> Result<Option<RequestHead>, NoHead> {
        self.head(patience, RequestHead::parse).await
    }

    /// The next response, or `None` where the server closed before its first byte.
    pub(crate) async fn response(&mut self) -> Result<Option<ResponseHead>, NoHead> {
        self.head(limits::SILENCE, ResponseHead::parse).await
    }

    async fn head<T>(
        &mut self,
        patience: std::time::Duration,
        parse: impl Fn(&[u8]) -> Result<Option<(T, usize)>, HeadFlaw>,
    ) -> Result<Option<T>, NoHead> {
        if self.buffer.is_empty() {
            // What the last message needed is given back while nothing comes.
            self.buffer = BytesMut::new();
            match timeout(patience, read_late(&mut self.io, &mut self.buffer)).await {
                Ok(Ok(0)) => return Ok(None),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(NoHead::Broken(error.into())),
                Err(_) => return Err(NoHead::Broken(Broken::Silent)),
            }
        }
        let deadline = Instant::now() + limits::HEAD_TIME;
        let mut looked_at = 0;
        loop {
            // Only an end of line can complete a head, and only too many bytes can end it otherwise.
            let fresh = self.buffer.get(looked_at..).unwrap_or_default();
            let is_worth_it =
                looked_at == 0 || fresh.contains(&b'\n') || self.buffer.len() >= limits::HEAD_BYTES;
            if is_worth_it && let Some((head, length)) = parse(&self.buffer).map_err(NoHead::Flaw)? {
                let _ = self.buffer.split_to(length);
                return Ok(Some(head));
            }
            looked_at = self.buffer.len();
            match timeout_at(deadline, self.fill()).await {
                Ok(Ok(0)) => return Err(NoHead::Broken(Broken::Closed)),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(NoHead::Broken(error)),
                Err(_) => return Err(NoHead::Broken(Broken::Silent)),
            }
        }
    }

    /// Sets how the body of the head just read is framed.
    pub(crate) fn expect(&mut self, length: Length) {
        self.body = match length {
            Length::None => Left::Over,
            Length::Known(length) => Left::Known(length),
            Length::Chunked => Left::Chunks(Chunks::new()),
            Length::UntilClose => Left::UntilClose,
        };
    }

    /// Gives up on HTTP: what follows are bytes.
    pub(crate) fn expect_raw(&mut self) {
        self.body = Left::Raw;
    }

    /// Whether the body was read to its end, so that another head may follow.
    pub(crate) fn is_at_end(&self) -> bool {
        match self.body {
            Left::Over | Left::Known(0) => true,
            Left::Chunks(chunks) => chunks.is_over(),
            Left::Known(_) | Left::UntilClose | Left::Raw => false,
        }
    }

    /// Whether bytes came that nobody asked for yet.
    pub(crate) fn is_ahead(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Looks, without waiting, whether the other side has closed or sent anything.
    pub(crate) async fn is_quiet(&mut self) -> bool {
        let mut byte = [0; 1];
        let mut into = tokio::io::ReadBuf::new(&mut byte);
        let io = Pin::new(&mut self.io);
        let mut io = Some(io);
        self.buffer.is_empty()
            && poll_fn(|cx| {
                let io = io.take();
                Poll::Ready(io.is_some_and(|io| io.poll_read(cx, &mut into).is_pending()))
            })
            .await
    }

    pub(crate) fn into_parts(self) -> (R, Bytes) {
        (self.io, self.buffer.freeze())
    }

    /// Reads on and throws away, until the sender stops.
    pub(crate) async fn drain(&mut self) {
        loop {
            self.buffer.clear();
            if !matches!(self.fill().await, Ok(1..)) {
                return;
            }
        }
    }

    async fn fill(&mut self) -> Result<usize, Broken> {
        if self.buffer.capacity() - self.buffer.len() < limits::BLOCK_BYTES / 4 {
            self.buffer.reserve(limits::BLOCK_BYTES);
        }
        Ok(self.io.read_buf(&mut self.buffer).await?)
    }

    /// The same where the other side owes us bytes.
    async fn fill_soon(&mut self) -> Result<(), Broken> {
        match timeout(limits::SILENCE, self.fill()).await {
            Ok(Ok(0)) => Err(Broken::Closed),
            Ok(other) => other.map(|_| ()),
            Err(_) => Err(Broken::Silent),
        }
    }
}

impl<R: AsyncRead + Unpin> Source for Reader<R> {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        loop {
            match &mut self.body {
                Left::Over => return Ok(None),
                Left::Known(0) => {
                    self.body = Left::Over;
                    return Ok(None);
                }
                Left::Known(left) if !self.buffer.is_empty() => {
                    let most = usize::try_from(*left).unwrap_or(usize::MAX).min(self.buffer.len());
                    *left -= u64::try_from(most).unwrap_or(*left);
                    return Ok(Some(Frame::Data(self.buffer.split_to(most).freeze())));
                }
                Left::UntilClose | Left::Raw if !self.buffer.is_empty() => {
                    return Ok(Some(Frame::Data(self.buffer.split().freeze())));
                }
                Left::Chunks(chunks) => match chunks.next(&mut self.buffer).map_err(Broken::Malformed)? {
                    Some(Piece::Data(data)) => return Ok(Some(Frame::Data(data))),
                    Some(Piece::End(trailers)) => {
                        self.body = Left::Over;
                        return Ok((!trailers.is_empty()).then_some(Frame::Trailers(trailers)));
                    }
                    None => self.fill_soon().await?,
                },
                Left::Known(_) => self.fill_soon().await?,
                Left::Raw => {
                    if self.fill().await? == 0 {
                        self.body = Left::Over;
                        return Ok(None);
                    }
                }
                Left::UntilClose => match timeout(limits::SILENCE, self.fill()).await {
                    // Of TLS this is the orderly end; the other one is an error.
                    Ok(Ok(0)) => {
                        self.body = Left::Over;
                        return Ok(None);
                    }
                    Ok(filled) => {
                        filled?;
                    }
                    Err(_) => return Err(Broken::Silent),
                },
            }
        }
    }

    async fn gone(&mut self) {
        while self.buffer.len() < limits::AHEAD_BYTES {
            if !matches!(self.fill().await, Ok(1..)) {
                return;
            }
        }
        pending().await
    }
}

// === impl Writer ===

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub(crate) fn new(io: W) -> Self {
        Self { io, buffer: BytesMut::new(), body: Owed::Known(0), is_begun: false }
    }

    /// Holds the first line and the fields of a message, and remembers what its body has to be.
    pub(crate) fn head(&mut self, line: &[&[u8]], fields: &HeaderMap, length: Length) {
        self.is_begun = false;
        for part in line {
            self.buffer.put_slice(part);
        }
        self.buffer.put_slice(b"\r\n");
        for (name, value) in fields {
            self.field(name.as_str().as_bytes(), value.as_bytes());
        }
        self.body = match length {
            Length::None => Owed::Known(0),
            Length::Known(length) => {
                self.field(b"content-length", length.to_string().as_bytes());
                Owed::Known(length)
            }
            Length::Chunked => {
                self.field(b"transfer-encoding", b"chunked");
                Owed::Chunked
            }
            Length::UntilClose => Owed::UntilClose,
        };
        self.buffer.put_slice(b"\r\n");
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        self.buffer.put_slice(name);
        self.buffer.put_slice(b": ");
        self.buffer.put_slice(value);
        self.buffer.put_slice(b"\r\n");
    }

    /// Drops a message of which nothing was sent yet. Whether that was so.
    pub(crate) fn take_back(&mut self) -> bool {
        if !self.is_begun {
            self.buffer.clear();
        }
        !self.is_begun
    }

    /// Gives up on HTTP: what follows are bytes.
    pub(crate) fn raw(&mut self) {
        self.body = Owed::UntilClose;
    }

    pub(crate) fn into_inner(self) -> W {
        self.io
    }

    pub(crate) async fn shutdown(&mut self) {
        // The connection is over either way.
        let _ = self.io.shutdown().await;
    }

    async fn put(&mut self, data: &[u8]) -> Result<(), Broken> {
        self.buffer.put_slice(data);
        if self.buffer.len() >= limits::BLOCK_BYTES { self.flush().await } else { Ok(()) }
    }
}

impl<W: AsyncWrite + Unpin> Sink for Writer<W> {
    async fn data(&mut self, data: Bytes) -> Result<(), Broken> {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        match &mut self.body {
            Owed::Known(left) => {
                *left = left
                    .checked_sub(length)
                    .ok_or(Broken::Malformed("the body is longer than its head said"))?;
                self.put(&data).await
            }
            Owed::Chunked => {
                self.buffer.put_slice(format!("{length:x}\r\n").as_bytes());
                self.buffer.put_slice(&data);
                self.put(b"\r\n").await
            }
            Owed::UntilClose => self.put(&data).await,
        }
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Broken> {
        match self.body {
            Owed::Known(0) | Owed::UntilClose => {}
            Owed::Known(_) => return Err(Broken::Malformed("the body is shorter than its head said")),
            Owed::Chunked => {
                self.buffer.put_slice(b"0\r\n");
                for (name, value) in trailers.iter().flatten() {
                    self.field(name.as_str().as_bytes(), value.as_bytes());
                }
                self.buffer.put_slice(b"\r\n");
                self.body = Owed::Known(0);
            }
        }
        self.flush().await?;
        // Nothing is held between two messages.
        self.buffer = BytesMut::new();
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        if !self.buffer.is_empty() {
            self.is_begun = true;
            self.io.write_all_buf(&mut self.buffer).await?;
        }
        // TLS holds records of its own.
        self.io.flush().await?;
        if self.buffer.capacity() > 4 * limits::BLOCK_BYTES {
            self.buffer = BytesMut::new();
        }
        Ok(())
    }

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<()> {
        // A client of HTTP/1 is seen to leave by the side that reads.
        Poll::Pending
    }
}
