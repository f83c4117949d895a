//! Bodies that flow: from a channel to a client, and from a client in pieces.

use crate::error::{ApiError, Code};
use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as _, Frame, SizeHint};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;

/// Pieces that wait for a slow client before their source does.
const PIECES: usize = 16;
/// A client that sends nothing for so long is shed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The end of a body that a source writes to.
#[derive(Clone, Debug)]
pub struct Tap {
    pieces: mpsc::Sender<Piece>,
}

/// What a source writes.
#[derive(Debug)]
enum Piece {
    Bytes(Bytes),
    Trailers(http::HeaderMap),
    /// Breaks the connection: what came so far is not the whole.
    Broken,
}

/// A body that a [`Tap`] fills.
#[derive(Debug)]
struct Flow {
    pieces: mpsc::Receiver<Piece>,
}

/// A source that failed before its end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the source ended too early")]
struct Broken;

/// A body, and what fills it.
pub fn flow() -> (Tap, Body) {
    let (sender, receiver) = mpsc::channel(PIECES);
    (Tap { pieces: sender }, Body::new(Flow { pieces: receiver }))
}

/// The next piece of a request's body; `None` at its end.
///
/// # Errors
/// The client broke off, or was too slow.
pub async fn next(body: &mut Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        let frame = poll_fn(|context| Pin::new(&mut *body).poll_frame(context));
        let slow = |_| {
            let cause = format!("nothing came for {} s", PATIENCE.as_secs());
            ApiError::plain(Code::TooSlow, "read the request's body", cause)
        };
        match tokio::time::timeout(PATIENCE, frame).await.map_err(slow)? {
            None => return Ok(None),
            Some(Err(error)) => {
                return Err(ApiError::plain(Code::BadRequest, "read the request's body", error.to_string()));
            }
            Some(Ok(frame)) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

// === impl Tap ===

impl Tap {
    /// Writes a piece. `false` where the client is gone.
    pub async fn bytes(&self, bytes: impl Into<Bytes>) -> bool {
        self.pieces.send(Piece::Bytes(bytes.into())).await.is_ok()
    }

    /// Writes a value as one line of JSON. `false` where the client is gone.
    pub async fn line(&self, value: &impl serde::Serialize) -> bool {
        let mut line = serde_json::to_vec(value).unwrap_or_default();
        line.push(b'\n');
        self.bytes(line).await
    }

    /// Ends the body with trailers.
    pub async fn trailers(&self, trailers: http::HeaderMap) {
        let _ = self.pieces.send(Piece::Trailers(trailers)).await;
    }

    /// Ends the body as one that is not whole.
    pub async fn broken(&self) {
        let _ = self.pieces.send(Piece::Broken).await;
    }

    /// Ends when the client is gone.
    pub async fn closed(&self) {
        self.pieces.closed().await;
    }
}

// === impl Flow ===

impl hyper::body::Body for Flow {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.pieces.poll_recv(context).map(|piece| {
            piece.map(|piece| match piece {
                Piece::Bytes(bytes) => Ok(Frame::data(bytes)),
                Piece::Trailers(trailers) => Ok(Frame::trailers(trailers)),
                Piece::Broken => Err(Broken.into()),
            })
        })
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
