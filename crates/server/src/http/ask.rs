//! What requests bring: bodies and queries, read strictly.

use crate::error::{ApiError, Code};
use crate::stream;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use http::request::Parts;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The longest body of words. Files are not words.
const MOST_BYTES: usize = 1 << 20;
/// A body of words is here by then.
const PATIENCE: Duration = Duration::from_secs(30);

/// A body of JSON; an absent one reads as `{}`.
#[derive(Clone, Copy, Debug)]
pub struct Words<T>(pub T);

/// A query.
#[derive(Clone, Copy, Debug)]
pub struct Asked<T>(pub T);

// === impl Words ===

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Words<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let read = tokio::time::timeout(PATIENCE, whole(request.into_body())).await;
        let bytes = read.map_err(|_| {
            let cause = format!("it was not whole within {} s", PATIENCE.as_secs());
            ApiError::plain(Code::TooSlow, "read the request's body", cause)
        })??;
        let bytes = if bytes.trim_ascii().is_empty() { b"{}" } else { bytes.as_slice() };
        serde_json::from_slice(bytes)
            .map(Self)
            .map_err(|error| ApiError::plain(Code::BadRequest, "read the request's body", error.to_string()))
    }
}

async fn whole(mut body: axum::body::Body) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(piece) = stream::next(&mut body).await? {
        if bytes.len().saturating_add(piece.len()) > MOST_BYTES {
            let cause = format!("it has more than {MOST_BYTES} bytes");
            return Err(ApiError::plain(Code::TooLarge, "read the request's body", cause));
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

// === impl Asked ===

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(asked)| Self(asked))
            .map_err(|error| ApiError::plain(Code::BadRequest, "read the query", error.body_text()))
    }
}
