//! Who is at the door: the peer of a connection, the key of a request.

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::ApiError;
use crate::keys::unauthenticated;
use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;
use std::net::SocketAddr;

/// Where a connection comes from. An extension of each of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The daemon's own socket, by a process of this uid.
    Local {
        uid: u32,
    },
    Tcp(SocketAddr),
}

/// The key that a request carries.
fn key(parts: &Parts) -> Option<&[u8]> {
    if let Some(key) = parts.headers.get("x-api-key") {
        return Some(key.as_bytes());
    }
    bearer(parts.headers.get(AUTHORIZATION)?.as_bytes())
}

/// What a value of `Authorization` bears.
pub(crate) fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
}

/// Who asks.
///
/// A key decides wherever there is one. Without one, the socket's own folder and mode have let in this user and root
/// alone; the peer's uid is looked at once more.
///
/// # Errors
/// [`crate::error::Code::Unauthenticated`].
pub fn caller(engine: &Engine, parts: &Parts) -> Result<Caller, ApiError> {
    if let Some(key) = key(parts) {
        return engine.keys().admit(key);
    }
    match parts.extensions.get::<Peer>() {
        Some(Peer::Local { uid }) if *uid == 0 || *uid == rustix::process::geteuid().as_raw() => {
            Ok(Caller::operator())
        }
        Some(Peer::Local { .. } | Peer::Tcp(_)) | None => Err(unauthenticated()),
    }
}

impl FromRequestParts<Engine> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, engine: &Engine) -> Result<Self, ApiError> {
        // A route of ours has asked already.
        match parts.extensions.get::<Self>() {
            Some(caller) => Ok(caller.clone()),
            None => caller(engine, parts),
        }
    }
}
