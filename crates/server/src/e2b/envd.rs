//! envd: the agent that E2B's clients expect at port 49983 of a sandbox. Spoken by the daemon; nothing of it runs
//! inside.

use super::connect::{Fault, Status};
use super::refusal::Refusal;
use super::route::Guest;
use super::{Door, connect, files, filesystem, process};
use crate::error::{ApiError, Code};
use crate::live::Use;
use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::AUTHORIZATION;
use http::{HeaderMap, Method, StatusCode};
use serde_json::json;
use std::collections::BTreeMap;

/// The one user inside.
const USER: &str = "user";
const STREAMS: [&str; 4] = [
    "/process.Process/Start",
    "/process.Process/Connect",
    "/process.Process/StreamInput",
    "/filesystem.Filesystem/WatchDir",
];

/// Whether a request needs no token.
pub(super) fn is_open(request: &Request) -> bool {
    request.uri().path() == "/health"
}

/// The answer to a request without the right token.
pub(super) fn refuse(request: &Request, error: ApiError) -> Response {
    let path = request.uri().path();
    if STREAMS.contains(&path) {
        connect::failed(&error.into())
    } else if path.starts_with("/process.") || path.starts_with("/filesystem.") {
        Fault::from(error).into_response()
    } else {
        Refusal(error).into_response()
    }
}

pub(super) async fn serve(door: &Door, guest: Guest, request: Request) -> Response {
    if let Err(error) = judge_user(request.headers()) {
        return refuse(&request, error);
    }
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    match (parts.method.clone(), path) {
        (Method::GET, "/health") => health(&guest).await,
        (Method::GET, "/metrics") => {
            metrics(&guest).await.unwrap_or_else(|error| Refusal(error).into_response())
        }
        (Method::GET, "/envs") => variables(&guest),
        (Method::GET, "/files") => {
            files::read(&guest, &parts).await.unwrap_or_else(|refused| refused.into_response())
        }
        (Method::POST, "/files") => {
            files::write(&guest, &parts, body).await.unwrap_or_else(|refused| refused.into_response())
        }
        (Method::POST, path) => match path.split_once("/process.Process/") {
            Some(("", method)) => process::serve(guest, method, parts.headers, body).await,
            _ => match path.split_once("/filesystem.Filesystem/") {
                Some(("", method)) => filesystem::serve(door, guest, method, parts.headers, body).await,
                _ => no_route(path),
            },
        },
        (_, path) => no_route(path),
    }
}

fn no_route(path: &str) -> Response {
    let shown: String = path.chars().take(128).collect();
    let error = ApiError::new(
        Code::Unsupported,
        "call the agent",
        format!("`{shown}` is not served here"),
        "docs/e2b.md lists what is",
    );
    Refusal(error).into_response()
}

/// There is one user inside. Who asks for another must not get this one.
fn judge_user(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(AUTHORIZATION) else { return Ok(()) };
    let user = value.as_bytes().strip_prefix(b"Basic ").and_then(|text| STANDARD.decode(text).ok());
    let user = user.and_then(|bytes| String::from_utf8(bytes).ok());
    let user = user.as_deref().and_then(|text| text.split_once(':')).map(|(user, _)| user);
    known_user(user)
}

/// Goes on if this is the user inside, or nobody said.
pub(super) fn known_user(user: Option<&str>) -> Result<(), ApiError> {
    match user {
        None | Some("" | USER) => Ok(()),
        Some(other) => {
            let shown: String = other.chars().take(64).collect();
            Err(ApiError::new(
                Code::BadRequest,
                "act as this user",
                format!("there is no user `{shown}` inside"),
                "leave the user out, or use `user`; nothing inside ever is root",
            ))
        }
    }
}

/// A use of the sandbox.
pub(super) async fn enter(guest: &Guest) -> Result<Use, ApiError> {
    guest.engine.enter(&guest.live).await
}

/// A keeper that answers something else than was asked for.
pub(super) fn strange(wanted: &str) -> Fault {
    Fault::new(Status::Internal, format!("the keeper answered something else than {wanted}"))
}

async fn health(guest: &Guest) -> Response {
    match enter(guest).await {
        Ok(_) => StatusCode::NO_CONTENT.into_response(),
        Err(error) if matches!(error.code, Code::NotFound | Code::Ending | Code::Paused) => {
            super::refusal::not_running(guest.live.id().as_str())
        }
        Err(error) => Refusal(error).into_response(),
    }
}

async fn metrics(guest: &Guest) -> Result<Response, ApiError> {
    let entered = enter(guest).await?;
    let metrics = guest.engine.metrics(entered.live()).await?;
    let words = json!({
        "ts": metrics.at_ms / 1000,
        "cpu_count": metrics.cpu_count,
        "cpu_used_pct": metrics.cpu_milli / 10,
        "mem_total": metrics.memory_limit_bytes,
        "mem_used": metrics.memory_bytes,
        "mem_total_mib": metrics.memory_limit_bytes >> 20,
        "mem_used_mib": metrics.memory_bytes >> 20,
        "disk_used": metrics.disk_bytes,
        "disk_total": metrics.disk_limit_bytes,
    });
    Ok(Json(words).into_response())
}

fn variables(guest: &Guest) -> Response {
    let variables: BTreeMap<String, String> = guest.live.spec().env.iter().cloned().collect();
    Json(variables).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_user_is_refused() {
        let of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            judge_user(&headers).is_ok()
        };
        assert!(judge_user(&HeaderMap::new()).is_ok());
        assert!(of(&format!("Basic {}", STANDARD.encode("user:"))));
        assert!(!of(&format!("Basic {}", STANDARD.encode("root:"))));
        assert!(of("Basic ???"));
        assert!(of("Bearer x"));
    }
}
