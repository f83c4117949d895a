//! Errors as E2B's clients read them: `{code, message}`, the code being the status.

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::http::Words;
use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{HeaderValue, header::HeaderName};
use serde::de::DeserializeOwned;
use serde_json::json;

/// An error on its way to a client of E2B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) ApiError);

/// Who asks.
#[derive(Clone, Debug)]
pub(super) struct Who(pub(super) Caller);

/// A body of JSON; an absent one reads as `{}`.
#[derive(Clone, Debug)]
pub(super) struct Told<T>(pub(super) T);

// === impl Refusal ===

impl Refusal {
    pub(super) fn bad(message: impl Into<String>, cause: impl Into<String>, remedy: &str) -> Self {
        Self(ApiError::new(Code::BadRequest, message, cause, remedy))
    }
}

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<fumehood_keep::client::CallError> for Refusal {
    fn from(error: fumehood_keep::client::CallError) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(error) = self;
        let status = error.status();
        let words = json!({
            "code": status.as_u16(), "message": super::sentence(&error), "error_code": error.code.word(),
        });
        let mut response = (status, Json(words)).into_response();
        let again = error.code.is_worth_another_try();
        let headers = response.headers_mut();
        if again {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        // What is used up stays used up: without this, clients ask three times more.
        let again = HeaderValue::from_static(if again { "true" } else { "false" });
        headers.insert(HeaderName::from_static("should-retry"), again);
        response
    }
}

/// A sandbox that is not there to be talked to, in the words that clients look for.
pub(super) fn not_running(id: &str) -> Response {
    let id: String = id.chars().take(64).collect();
    let words = json!({ "sandboxId": id, "message": "The sandbox was not found", "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(words)).into_response()
}

/// A port that nothing listens at, in the words that clients look for.
pub(super) fn port_closed(id: &str, port: u16) -> Response {
    let message = format!("The sandbox is running but port is not open: {port}");
    let words = json!({ "sandboxId": id, "message": message, "port": port, "code": 502 });
    (StatusCode::BAD_GATEWAY, Json(words)).into_response()
}

// === impl Who ===

impl FromRequestParts<Engine> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, engine: &Engine) -> Result<Self, Refusal> {
        crate::door::caller(engine, parts).map(Self).map_err(Refusal)
    }
}

// === impl Told ===

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Told<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refusal> {
        let Words(told) = Words::from_request(request, state).await?;
        Ok(Self(told))
    }
}
