//! Which sandbox, and which of its ports, a request is for; and whether it may.

use super::refusal::{Refusal, not_running, port_closed};
use super::signature::{Operation, Signed};
use super::{Door, envd, interpreter, words};
use crate::caller::{Caller, Scope};
use crate::clock;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::http::ports;
use crate::live::Live;
use crate::sandbox::State;
use crate::tokens::Purpose;
use axum::extract::{Query, Request};
use axum::response::{IntoResponse as _, Response};
use fumehood_model::id::TaskId;
use http::header::HOST;
use http::{HeaderMap, Method};
use serde::Deserialize;

/// The port that envd is called at.
const ENVD: u16 = 49983;
/// The port that the code interpreter is called at.
const INTERPRETER: u16 = 49999;
const ID: &str = "e2b-sandbox-id";
const PORT: &str = "e2b-sandbox-port";
const TRAFFIC: &str = "e2b-traffic-access-token";
const ENVD_TOKEN: &str = "x-access-token";

/// Where a request goes.
#[derive(Debug)]
pub(super) enum Target {
    /// To no sandbox.
    None,
    Port {
        id: String,
        port: u16,
    },
    /// It names one in a way that makes no sense.
    Odd(Response),
}

/// A sandbox that was opened for a request.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    pub(super) engine: Engine,
    pub(super) live: Live,
    /// Who asked, for the record.
    pub(super) actor: String,
}

/// The parameters of a request for a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FileQuery {
    pub(super) path: Option<String>,
    pub(super) username: Option<String>,
    pub(super) signature: Option<String>,
    pub(super) signature_expiration: Option<u64>,
}

pub(super) fn target(engine: &Engine, request: &Request) -> Target {
    let headers = request.headers();
    if let Some(id) = headers.get(ID) {
        let port = headers.get(PORT).map_or(Some(ENVD), |port| port.to_str().ok()?.parse().ok());
        return match (id.to_str(), port) {
            (Ok(id), Some(port)) if port > 0 => Target::Port { id: id.to_owned(), port },
            (_, _) => {
                let cause = format!("`{ID}` or `{PORT}` is not one");
                Target::Odd(
                    Refusal(ApiError::plain(Code::BadRequest, "find the port", cause)).into_response(),
                )
            }
        };
    }
    if let Some((id, port)) = by_host(engine, headers)
        && (matches!(port, ENVD | INTERPRETER)
            || headers.contains_key(TRAFFIC)
            || engine.any(&id).is_some_and(|live| is_public(&live)))
    {
        return Target::Port { id, port };
    }
    by_signature(engine, request).map_or(Target::None, |id| Target::Port { id, port: ENVD })
}

fn by_host(engine: &Engine, headers: &HeaderMap) -> Option<(String, u16)> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let host = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let (first, domain) = host.split_once('.')?;
    if domain != "localhost" && !engine.config().domains.iter().any(|known| known == domain) {
        return None;
    }
    let (port, id) = first.split_once('-')?;
    Some((TaskId::parse(id).ok()?.to_string(), port.parse().ok().filter(|port| *port > 0)?))
}

/// A signed URL under the daemon's own name tells its sandbox by nothing but the signature.
fn by_signature(engine: &Engine, request: &Request) -> Option<String> {
    if request.uri().path() != "/files" {
        return None;
    }
    let Query(query) = Query::<FileQuery>::try_from_uri(request.uri()).ok()?;
    let signature = query.signature.as_deref()?;
    let signed = signed(&query, request.method());
    let signs = |live: &Live| {
        let token = engine.tokens().token(Purpose::Inside, live.id().as_str());
        signed.holds(&token, signature, clock::now_ms())
    };
    engine.all().into_iter().find(signs).map(|live| live.id().to_string())
}

fn signed<'a>(query: &'a FileQuery, method: &Method) -> Signed<'a> {
    Signed {
        path: query.path.as_deref().unwrap_or(""),
        operation: if method == Method::POST { Operation::Write } else { Operation::Read },
        user: query.username.as_deref().unwrap_or(""),
        expiration: query.signature_expiration,
    }
}

fn is_public(live: &Live) -> bool {
    live.sandbox().labels.contains_key(words::PUBLIC)
}

pub(super) async fn dispatch(door: &Door, id: &str, port: u16, mut request: Request) -> Response {
    let Some(live) = door.engine.any(id) else { return not_running(id) };
    let sandbox = live.sandbox();
    if sandbox.state == State::Ended || (sandbox.state == State::Paused && !sandbox.auto_resume) {
        return not_running(id);
    }
    let guest = |actor: String| Guest { engine: door.engine.clone(), live: live.clone(), actor };
    match port {
        ENVD => match inside(&door.engine, &live, &request) {
            Ok(actor) => envd::serve(door, guest(actor), request).await,
            Err(_) if envd::is_open(&request) => envd::serve(door, guest("nobody".to_owned()), request).await,
            Err(error) => envd::refuse(&request, error),
        },
        INTERPRETER => {
            match inside(&door.engine, &live, &request).or_else(|_| to_port(&door.engine, &live, &request)) {
                Ok(actor) => interpreter::serve(door, guest(actor), request).await,
                Err(error) => Refusal(error).into_response(),
            }
        }
        port => {
            if !is_public(&live)
                && let Err(error) = to_port(&door.engine, &live, &request)
            {
                return Refusal(error).into_response();
            }
            for name in [ID, PORT, TRAFFIC, ENVD_TOKEN] {
                request.headers_mut().remove(name);
            }
            match ports::forward(&door.engine, &live, port, request).await {
                Ok(response) => response,
                Err(error) if error.code == Code::PortClosed => port_closed(id, port),
                Err(error) => Refusal(error).into_response(),
            }
        }
    }
}

/// Whether a request may use commands and files; then for whom the record has it.
fn inside(engine: &Engine, live: &Live, request: &Request) -> Result<String, ApiError> {
    let id = live.id().as_str();
    let team = live.team();
    if let Some(token) = request.headers().get(ENVD_TOKEN) {
        return if engine.tokens().opens(Purpose::Inside, id, token.as_bytes()) {
            Ok(format!("{team}/token"))
        } else {
            Err(wrong_token(ENVD_TOKEN))
        };
    }
    if request.uri().path() == "/files"
        && let Ok(Query(query)) = Query::<FileQuery>::try_from_uri(request.uri())
        && let Some(signature) = query.signature.as_deref()
    {
        let token = engine.tokens().token(Purpose::Inside, id);
        return if signed(&query, request.method()).holds(&token, signature, clock::now_ms()) {
            Ok(format!("{team}/signature"))
        } else {
            Err(wrong_token("signature"))
        };
    }
    by_key(engine, live, request).ok_or_else(|| wrong_token(ENVD_TOKEN))
}

/// Whether a request may talk to ports.
fn to_port(engine: &Engine, live: &Live, request: &Request) -> Result<String, ApiError> {
    let opens = |token: &http::HeaderValue| {
        engine.tokens().opens(Purpose::Ports, live.id().as_str(), token.as_bytes())
    };
    if request.headers().get(TRAFFIC).is_some_and(opens) {
        return Ok(format!("{}/token", live.team()));
    }
    by_key(engine, live, request).ok_or_else(|| wrong_token(TRAFFIC))
}

/// A key of the sandbox's own team. Only one that stands in its own header: `Authorization` is the sandbox's.
fn by_key(engine: &Engine, live: &Live, request: &Request) -> Option<String> {
    let key = request.headers().get("x-api-key")?;
    let caller: Caller = engine.keys().admit(key.as_bytes()).ok()?;
    (caller.owns(&live.team()) && caller.scopes.has(Scope::Exec)).then(|| caller.actor())
}

fn wrong_token(name: &str) -> ApiError {
    ApiError::new(
        Code::Unauthenticated,
        "let the request in",
        format!("`{name}` is missing, wrong, or its time is over"),
        "send the token that the sandbox's create or connect answered",
    )
}
