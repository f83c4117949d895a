//! The Connect protocol with its JSON codec, as envd's two services are spoken.
//!
//! A unary call is a body of JSON, answered by one, or by a status and `{code, message}`. A streaming one is envelopes
//! both ways: a byte of flags, four of length (big-endian), then JSON. The last envelope of an answer has the flag 2
//! and says how it ended.
//!
//! **Invariant:** parsing is total, and a streaming route is always answered by envelopes, whatever went wrong.

use crate::error::{ApiError, Code};
use crate::stream::{self, Tap};
use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::time::Duration;

/// The longest message that is taken.
const MOST_BYTES: usize = 8 << 20;
/// The bytes before a message.
const HEADER_BYTES: usize = 5;
/// The flag of the last envelope.
const LAST: u8 = 2;
/// How often a stream without news says that it lives, if the caller does not say.
const USUAL_KEEPALIVE: Duration = Duration::from_secs(90);
const STREAM: HeaderValue = HeaderValue::from_static("application/connect+json");

/// How a call failed, in the protocol's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

/// A call that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) status: Status,
    pub(super) message: String,
}

/// The envelopes of a request.
#[derive(Debug)]
pub(super) struct Envelopes {
    body: Body,
    kept: BytesMut,
}

// === impl Status ===

impl Status {
    const fn word(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::FailedPrecondition => "failed_precondition",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Unauthenticated => "unauthenticated",
        }
    }

    /// The HTTP status of a unary call that failed so.
    const fn http(self) -> StatusCode {
        match self {
            Self::InvalidArgument | Self::FailedPrecondition => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

impl From<Code> for Status {
    fn from(code: Code) -> Self {
        match code {
            Code::NotFound | Code::NoExec | Code::NoRoute => Self::NotFound,
            Code::Exists => Self::AlreadyExists,
            Code::Denied | Code::Forbidden | Code::ForeignHost => Self::PermissionDenied,
            Code::Unauthenticated => Self::Unauthenticated,
            Code::NoSpace | Code::QuotaExceeded => Self::ResourceExhausted,
            Code::Paused | Code::NotPaused | Code::Halted => Self::FailedPrecondition,
            Code::Busy | Code::Ending | Code::PortClosed | Code::Registry => Self::Unavailable,
            Code::Unsupported | Code::NoMethod => Self::Unimplemented,
            Code::TooSlow => Self::DeadlineExceeded,
            Code::NotBorn | Code::Internal => Self::Internal,
            Code::BadRequest
            | Code::NotAFile
            | Code::NotAFolder
            | Code::TooLarge
            | Code::BadRange
            | Code::KeyReused => Self::InvalidArgument,
        }
    }
}

// === impl Fault ===

impl Fault {
    pub(super) fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn words(&self) -> Value {
        json!({ "code": self.status.word(), "message": self.message })
    }
}

impl From<ApiError> for Fault {
    fn from(error: ApiError) -> Self {
        Self::new(error.code.into(), super::sentence(&error))
    }
}

impl From<fumehood_keep::client::CallError> for Fault {
    fn from(error: fumehood_keep::client::CallError) -> Self {
        ApiError::from(error).into()
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        (self.status.http(), Json(self.words())).into_response()
    }
}

// === impl Envelopes ===

impl Envelopes {
    pub(super) fn new(headers: &HeaderMap, body: Body) -> Result<Self, Fault> {
        let encoding = headers.get("connect-content-encoding").map(HeaderValue::as_bytes);
        if encoding.is_some_and(|encoding| encoding != b"identity") {
            return Err(Fault::new(
                Status::Unimplemented,
                "compressed messages are not taken; send identity",
            ));
        }
        Ok(Self { body, kept: BytesMut::new() })
    }

    /// The next message; `None` at the end of the request.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Fault> {
        loop {
            if let Some((flags, message)) = parse(&mut self.kept)? {
                if flags & LAST != 0 {
                    return Ok(None);
                }
                return read(&message).map(Some);
            }
            match stream::next(&mut self.body).await? {
                Some(bytes) => self.kept.extend_from_slice(&bytes),
                None if self.kept.is_empty() => return Ok(None),
                None => return Err(Fault::new(Status::InvalidArgument, "the last envelope is not whole")),
            }
        }
    }

    /// The one message of a request that has one, which is read to its end: what is left unread of a request makes the
    /// kernel reset the connection after the answer, and the client may lose the last of that.
    pub(super) async fn one<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        let missing = || Fault::new(Status::InvalidArgument, "the request has no message");
        let first = self.next().await?.ok_or_else(missing)?;
        if self.next::<serde::de::IgnoredAny>().await?.is_some() || self.more().await? {
            return Err(Fault::new(Status::InvalidArgument, "the request has more than one message"));
        }
        Ok(first)
    }

    /// Whether anything follows what should have been the end.
    async fn more(&mut self) -> Result<bool, Fault> {
        Ok(!self.kept.is_empty()
            || stream::next(&mut self.body).await?.is_some_and(|bytes| !bytes.is_empty()))
    }
}

/// Takes one envelope off the front, if it is whole.
fn parse(kept: &mut BytesMut) -> Result<Option<(u8, Bytes)>, Fault> {
    let Some((&[flags, a, b, c, d], _)) = kept.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    if flags & 1 != 0 {
        return Err(Fault::new(Status::Unimplemented, "compressed messages are not taken; send identity"));
    }
    if flags & !3 != 0 {
        return Err(Fault::new(
            Status::InvalidArgument,
            format!("an envelope with the unknown flags {flags}"),
        ));
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > MOST_BYTES {
        let message = format!("an envelope of {length} bytes, of {MOST_BYTES} at most");
        return Err(Fault::new(Status::ResourceExhausted, message));
    }
    if kept.len() - HEADER_BYTES < length {
        return Ok(None);
    }
    kept.advance(HEADER_BYTES);
    Ok(Some((flags, kept.split_to(length).freeze())))
}

fn read<T: DeserializeOwned>(message: &[u8]) -> Result<T, Fault> {
    let message = if message.trim_ascii().is_empty() { b"{}" } else { message };
    serde_json::from_slice(message)
        .map_err(|error| Fault::new(Status::InvalidArgument, format!("read the message: {error}")))
}

/// The message of a unary call.
pub(super) async fn unary<T: DeserializeOwned>(headers: &HeaderMap, mut body: Body) -> Result<T, Fault> {
    let is_plain = headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding == "identity");
    if !is_plain {
        return Err(Fault::new(Status::Unimplemented, "compressed messages are not taken; send identity"));
    }
    let mut bytes = Vec::new();
    while let Some(piece) = stream::next(&mut body).await? {
        if bytes.len().saturating_add(piece.len()) > MOST_BYTES {
            let message = format!("a message of more than {MOST_BYTES} bytes");
            return Err(Fault::new(Status::ResourceExhausted, message));
        }
        bytes.extend_from_slice(&piece);
    }
    read(&bytes)
}

/// The answer of a unary call.
pub(super) fn answer(result: Result<Value, Fault>) -> Response {
    match result {
        Ok(value) => Json(value).into_response(),
        Err(fault) => fault.into_response(),
    }
}

/// A streaming answer, and what fills it.
pub(super) fn streaming() -> (Tap, Response) {
    let (tap, body) = stream::flow();
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, STREAM);
    (tap, response)
}

/// A streaming answer that failed before it began.
pub(super) fn failed(fault: &Fault) -> Response {
    let mut response = Response::new(Body::from(last(Some(fault))));
    response.headers_mut().insert(CONTENT_TYPE, STREAM);
    response
}

/// One message, in its envelope.
pub(super) fn message(value: &Value) -> Bytes {
    envelope(0, &[value.to_string().as_bytes()])
}

/// A message that is already JSON, in parts.
pub(super) fn envelope(flags: u8, parts: &[&[u8]]) -> Bytes {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + length);
    // One that is longer is printed as one that no parser takes.
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    bytes.extend_from_slice(&[flags, a, b, c, d]);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes.freeze()
}

/// The last envelope.
pub(super) fn last(fault: Option<&Fault>) -> Bytes {
    let words = fault.map_or_else(|| json!({}), |fault| json!({ "error": fault.words() }));
    envelope(LAST, &[words.to_string().as_bytes()])
}

/// How long the caller waits; `None`, or zero, is without end.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Fault> {
    let Some(value) = headers.get("connect-timeout-ms") else { return Ok(None) };
    let millis: Option<u64> = value.to_str().ok().and_then(|text| text.parse().ok());
    match millis {
        Some(0) => Ok(None),
        Some(millis) => Ok(Some(Duration::from_millis(millis))),
        None => Err(Fault::new(Status::InvalidArgument, "`Connect-Timeout-Ms` is not a number")),
    }
}

/// How often a stream without news says that it lives.
pub(super) fn keepalive(headers: &HeaderMap) -> Duration {
    let seconds = headers.get("keepalive-ping-interval").and_then(|value| value.to_str().ok()?.parse().ok());
    seconds.map_or(USUAL_KEEPALIVE, |seconds: u64| Duration::from_secs(seconds.clamp(1, 3600)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn envelopes_are_read_in_any_pieces_and_never_past_their_end() {
        let mut whole = message(&json!({ "a": 1 })).to_vec();
        whole.extend_from_slice(&last(None));
        let mut kept = BytesMut::new();
        let mut seen = Vec::new();
        for byte in whole {
            kept.extend_from_slice(&[byte]);
            while let Some(found) = parse(&mut kept).unwrap() {
                seen.push(found);
            }
        }
        assert_eq!(seen, [(0, Bytes::from_static(b"{\"a\":1}")), (LAST, Bytes::from_static(b"{}"))]);
        assert!(kept.is_empty());
    }

    #[test]
    fn what_is_no_envelope_is_told_apart() {
        let of = |bytes: &[u8]| parse(&mut BytesMut::from(bytes)).map_err(|fault| fault.status);
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[0, 0, 0, 0]), Ok(None));
        assert_eq!(of(&[0, 0, 0, 0, 9, 1]), Ok(None));
        assert_eq!(of(&[1, 0, 0, 0, 0]), Err(Status::Unimplemented));
        assert_eq!(of(b"{\"a\":1}"), Err(Status::Unimplemented));
        assert_eq!(of(&[64, 0, 0, 0, 0]), Err(Status::InvalidArgument));
        assert_eq!(of(&[0, 255, 0, 0, 0]), Err(Status::ResourceExhausted));
    }

    #[test]
    fn every_code_of_ours_has_a_status_and_a_failed_stream_is_an_envelope() {
        for code in Code::ALL {
            let fault = Fault::from(ApiError::plain(code, "do it", "it was not"));
            assert!(!fault.status.http().is_success());
            let words = last(Some(&fault));
            assert_eq!(words.first(), Some(&LAST));
        }
    }

    #[test]
    fn a_request_of_one_message_is_read_to_its_end_and_has_no_second() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let one = |parts: &[Vec<u8>]| {
            let body = Body::from(parts.concat());
            let mut envelopes = Envelopes::new(&HeaderMap::new(), body).unwrap();
            runtime.block_on(async {
                let first = envelopes.one::<Value>().await;
                (first, envelopes.kept.len())
            })
        };
        let envelope = |flags: u8, text: &str| {
            let mut bytes = vec![flags];
            bytes.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
            bytes.extend_from_slice(text.as_bytes());
            bytes
        };
        assert!(matches!(one(&[envelope(0, "{}")]), (Ok(_), 0)));
        assert!(matches!(one(&[envelope(0, "{}"), envelope(LAST, "{}")]), (Ok(_), 0)));
        assert!(one(&[envelope(0, "{}"), envelope(0, "{}")]).0.is_err());
        assert!(one(&[envelope(0, "{}"), envelope(LAST, "{}"), vec![0]]).0.is_err());
        assert!(one(&[]).0.is_err());
    }

    #[test]
    fn times_are_read() {
        let mut headers = HeaderMap::new();
        assert_eq!(timeout(&headers), Ok(None));
        headers.insert("connect-timeout-ms", HeaderValue::from_static("0"));
        assert_eq!(timeout(&headers), Ok(None));
        headers.insert("connect-timeout-ms", HeaderValue::from_static("1500"));
        assert_eq!(timeout(&headers), Ok(Some(Duration::from_millis(1500))));
        headers.insert("connect-timeout-ms", HeaderValue::from_static("soon"));
        assert!(timeout(&headers).is_err());
        headers.insert("keepalive-ping-interval", HeaderValue::from_static("0"));
        assert_eq!(keepalive(&headers), Duration::from_secs(1));
    }
}
