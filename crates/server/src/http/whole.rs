//! What is left unread of a request ends its connection after the answer, and a client that sends its next request
//! meanwhile finds it closed.
//!
//! A route may answer without a look at its request's body: a refusal, a verb without words. So small bodies are read
//! before anything is decided, and of those that do not say how long they are the rest is read after the answer.

use crate::error::ApiError;
use crate::stream;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use http::Version;
use http::header::CONTENT_LENGTH;
use hyper::body::{Body as _, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// The largest body that is read so, in bytes; larger ones are uploads, which are read as they come.
const SMALL: usize = 64 << 10;
/// What was not asked for is waited for so long.
const LINGER: Duration = Duration::from_secs(2);

/// A body whose rest is read when nobody wants it any more.
#[derive(Debug)]
struct Drained(Option<Body>);

/// Reads the body of a request that says it has a small one.
pub(super) async fn small(request: Request, next: Next) -> Result<Response, ApiError> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    if length.is_none() && request.version() == Version::HTTP_11 && !request.body().is_end_stream() {
        let request = request.map(|body| Body::new(Drained(Some(body))));
        return Ok(next.run(request).await);
    }
    let Some(length @ 1..=SMALL) = length else { return Ok(next.run(request).await) };
    let (parts, mut body) = request.into_parts();
    let mut whole = BytesMut::with_capacity(length);
    while let Some(piece) = stream::next(&mut body).await? {
        whole.extend_from_slice(&piece);
    }
    Ok(next.run(Request::from_parts(parts, Body::from(whole.freeze()))).await)
}

async fn drain(mut body: Body) {
    let mut left = SMALL;
    while let Ok(Some(piece)) = stream::next(&mut body).await {
        match left.checked_sub(piece.len()) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

// === impl Drained ===

impl hyper::body::Body for Drained {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(body) = &mut self.0 else { return Poll::Ready(None) };
        let frame = std::task::ready!(Pin::new(body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for Drained {
    fn drop(&mut self) {
        if let Some(body) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(tokio::time::timeout(LINGER, drain(body)));
        }
    }
}
