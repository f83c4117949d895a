//! Small bodies are read before anything is decided.
//!
//! A route may answer without a look at its request's body: a refusal, a verb without words. What is left unread of a
//! request ends the connection after the answer, and a client that sends its next request meanwhile finds it closed.

use crate::error::ApiError;
use crate::stream;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use bytes::BytesMut;
use http::header::CONTENT_LENGTH;

/// The largest body that is read so, in bytes; larger ones are uploads, which are read as they come.
const SMALL: usize = 64 << 10;

/// Reads the body of a request that says it has a small one.
pub(super) async fn small(request: Request, next: Next) -> Result<Response, ApiError> {
    let length = request.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let Some(length @ 1..=SMALL) = length else { return Ok(next.run(request).await) };
    let (parts, mut body) = request.into_parts();
    let mut whole = BytesMut::with_capacity(length);
    while let Some(piece) = stream::next(&mut body).await? {
        whole.extend_from_slice(&piece);
    }
    Ok(next.run(Request::from_parts(parts, Body::from(whole.freeze()))).await)
}
