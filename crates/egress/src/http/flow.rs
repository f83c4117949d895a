//! Bodies on the move: where frames come from, where they go, and the pump in between.
//!
//! Nothing is gathered: a frame is taken only when the one before it was accepted, so that a slow
//! reader slows the sender, and memory does not grow with the length of a body.

use bytes::Bytes;
use fumehood_model::egress::Denial;
use http::HeaderMap;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Frame {
    Data(Bytes),
    /// Fields after the body; the last part.
    Trailers(HeaderMap),
}

/// Why a message broke off.
#[derive(Debug)]
pub(crate) enum Broken {
    /// The other side went away in the middle of it.
    Closed,
    /// Bytes that mean nothing, or two things.
    Malformed(&'static str),
    /// Nothing came for a long time.
    Silent,
    Io(io::Error),
    Http2(h2::Error),
}

/// Where a body comes from. Both futures can be dropped at any time without losing bytes.
pub(crate) trait Source {
    /// The next part; `None` at the end.
    async fn frame(&mut self) -> Result<Option<Frame>, Broken>;

    /// Waits, after the end, until the sender has gone away.
    async fn gone(&mut self);
}

/// Where a body goes.
pub(crate) trait Sink {
    async fn data(&mut self, data: Bytes) -> Result<(), Broken>;

    /// Ends the body well, and sends all that is held.
    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Broken>;

    /// Sends all that is held.
    async fn flush(&mut self) -> Result<(), Broken>;

    /// Whether the reader has gone away without a word.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// What happens to the data on its way: it is counted, looked through, masked.
pub(crate) trait Pass {
    /// Takes the next of it.
    fn give(&mut self, data: Bytes) -> Result<(), Stop>;

    /// What can be passed on of what was given, a piece at a time; `None` once more is needed.
    fn take(&mut self) -> Result<Option<Bytes>, Stop>;

    /// What need not be held back while nothing comes.
    fn pause(&mut self) -> Bytes;

    /// What was held back, at the end.
    fn rest(&mut self) -> Result<Bytes, Stop>;

    fn trailers(&mut self, trailers: HeaderMap) -> Result<HeaderMap, Stop>;
}

/// Why the pump stopped before the end.
#[derive(Debug)]
pub(crate) enum Stop {
    Source(Broken),
    Sink(Broken),
    Denied(Denial),
}

/// Moves a body from its source to its sink.
pub(crate) async fn pump(
    source: &mut impl Source,
    sink: &mut impl Sink,
    pass: &mut impl Pass,
) -> Result<(), Stop> {
    loop {
        let trailers = match next(source, sink, pass).await? {
            Some(Frame::Data(data)) => {
                pass.give(data)?;
                while let Some(data) = pass.take()? {
                    put(sink, data).await?;
                }
                continue;
            }
            Some(Frame::Trailers(trailers)) => Some(trailers),
            None => None,
        };
        put(sink, pass.rest()?).await?;
        let trailers = trailers.map(|trailers| pass.trailers(trailers)).transpose()?;
        return sink.end(trailers).await.map_err(Stop::Sink);
    }
}

async fn put(sink: &mut impl Sink, data: Bytes) -> Result<(), Stop> {
    if data.is_empty() { Ok(()) } else { sink.data(data).await.map_err(Stop::Sink) }
}

/// The next frame. Where none is there yet, what is held is sent before waiting for it.
async fn next(
    source: &mut impl Source,
    sink: &mut impl Sink,
    pass: &mut impl Pass,
) -> Result<Option<Frame>, Stop> {
    let mut frame = pin!(source.frame());
    if let Poll::Ready(frame) = poll_fn(|cx| Poll::Ready(frame.as_mut().poll(cx))).await {
        return frame.map_err(Stop::Source);
    }
    put(sink, pass.pause()).await?;
    sink.flush().await.map_err(Stop::Sink)?;
    poll_fn(|cx| {
        if sink.poll_gone(cx).is_ready() {
            return Poll::Ready(Err(Stop::Sink(Broken::Closed)));
        }
        frame.as_mut().poll(cx).map_err(Stop::Source)
    })
    .await
}

// === impl Broken ===

impl Broken {
    /// Whether more than one stream of an HTTP/2 connection is over.
    pub(crate) fn ends_connection(&self) -> bool {
        match self {
            Self::Closed | Self::Io(_) => true,
            Self::Http2(error) => error.is_io() || error.is_go_away(),
            Self::Malformed(_) | Self::Silent => false,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection ended in the middle of a message"),
            Self::Malformed(why) => f.write_str(why),
            Self::Silent => f.write_str("nothing came for a long time"),
            Self::Io(error) => error.fmt(f),
            Self::Http2(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        // The end of a TLS connection without its closing message is an end in the middle.
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Closed } else { Self::Io(error) }
    }
}

impl From<h2::Error> for Broken {
    fn from(error: h2::Error) -> Self {
        Self::Http2(error)
    }
}
