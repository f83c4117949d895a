//! Ports of a sandbox: by path, by header, and by name (`PORT-ID.DOMAIN`).
//!
//! What opens the door is not passed on: a sandbox sees neither keys nor tokens of ours.

use super::guard::without_port;
use crate::caller::{Caller, Scope};
use crate::door;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::live::{Live, Use};
use crate::tokens::Purpose;
use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use fumehood_model::id::TaskId;
use http::header::{AUTHORIZATION, CONNECTION, CONTENT_SECURITY_POLICY, COOKIE, HOST, UPGRADE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use hyper_util::rt::TokioIo;

/// The header with a sandbox's token for its ports.
pub const TOKEN: &str = "fumehood-token";
const SANDBOX: &str = "fumehood-sandbox";
const PORT: &str = "fumehood-port";
/// Headers of ours that a sandbox never sees.
const OURS: [&str; 5] = [TOKEN, SANDBOX, PORT, "x-api-key", "x-access-token"];
/// Headers that are about one connection alone.
const HOPS: [&str; 6] =
    ["keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "proxy-connection"];
/// What a page of a sandbox may do when it is shown under the daemon's own name: nothing in that name.
const OPAQUE: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads");

/// `/v1/sandboxes/{id}/ports/{port}/…`
pub(super) async fn by_path(
    State(engine): State<Engine>,
    caller: Caller,
    Path(parts): Path<Vec<(String, String)>>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let part =
        |name: &str| parts.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value.as_str());
    let live = engine.find(&caller, part("id"))?;
    let port = port(part("port"))?;
    // The path as it was sent: what is encoded stays so.
    let sent = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let rest = sent.splitn(7, '/').nth(6).unwrap_or_default().to_owned();
    let query = request.uri().query().map_or(String::new(), |query| format!("?{query}"));
    let rest = if rest.is_empty() && sent.splitn(7, '/').nth(6).is_none() { query } else { rest };
    *request.uri_mut() = path(&format!("/{rest}"))?;
    let mut response = forward(&engine, &live, port, request).await?;
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, OPAQUE);
    Ok(response)
}

/// Looked at before the routes: a request that names a sandbox and a port by headers of ours, or by its host.
pub(super) async fn by_name(State(engine): State<Engine>, request: Request, next: Next) -> Response {
    let Some((id, port_text)) = named(&engine.config().domains, request.headers()) else {
        return next.run(request).await;
    };
    match open(&engine, &id, &port_text, request).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

fn named(domains: &[String], headers: &HeaderMap) -> Option<(String, String)> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").to_owned());
    if let Some(id) = text(SANDBOX) {
        return Some((id, text(PORT).unwrap_or_default()));
    }
    let host = headers.get(HOST)?.to_str().ok()?;
    let (first, domain) = without_port(host).split_once('.')?;
    if domain != "localhost" && !domains.iter().any(|known| known == domain) {
        return None;
    }
    let (port, id) = first.split_once('-')?;
    TaskId::parse(id).ok().map(|id| (id.to_string(), port.to_owned()))
}

async fn open(engine: &Engine, id: &str, port_text: &str, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let opened = parts
        .headers
        .get(TOKEN)
        .is_some_and(|token| engine.tokens().opens(Purpose::Ports, id, token.as_bytes()));
    let live = if opened {
        engine.any(id).ok_or_else(|| ApiError::no_sandbox(id))?
    } else {
        let caller = door::caller(engine, &parts)?;
        caller.needs(Scope::Exec)?;
        engine.find(&caller, id)?
    };
    let port = port(port_text)?;
    let mut request = Request::from_parts(parts, body);
    let sent = request.uri().path_and_query().map_or("/", PathAndQuery::as_str).to_owned();
    *request.uri_mut() = path(&sent)?;
    forward(engine, &live, port, request).await
}

/// Sends a request to a port inside, and its answer back; upgrades (websockets) go through.
///
/// The request's path and query are sent as they are. `Host` is the port on the loopback, as a server there expects;
/// what it was before is in `X-Forwarded-Host`.
///
/// # Errors
/// The sandbox can not be used; nothing listens at the port ([`Code::PortClosed`]).
pub async fn forward(
    engine: &Engine,
    live: &Live,
    port: u16,
    mut request: Request,
) -> Result<Response, ApiError> {
    let entered = engine.enter(live).await?;
    let stream = entered.keeper().dial(port).await.map_err(|error| {
        let error = ApiError::from(error);
        if error.code == Code::PortClosed {
            return ApiError::plain(Code::PortClosed, "reach the port", format!("port is not open: {port}"))
                .with("port", port)
                .with("sandbox", live.id());
        }
        error
    })?;
    let failed = |error: hyper::Error| {
        ApiError::plain(Code::PortClosed, "talk to the port", format!("it does not speak HTTP: {error}"))
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Body>(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(async move {
        // An upgrade keeps the connection; everything else ends with it.
        let _ = connection.with_upgrades().await;
    });
    let upgrade = request.extensions_mut().remove::<hyper::upgrade::OnUpgrade>();
    clean(request.headers_mut(), port, upgrade.is_some());
    *request.version_mut() = http::Version::HTTP_11;
    let mut response = sender.send_request(request).await.map_err(failed)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let inner = hyper::upgrade::on(&mut response);
        if let Some(outer) = upgrade {
            tokio::spawn(async move { join(entered, outer, inner).await });
        }
        return Ok(response.map(Body::new));
    }
    // An older server's answer is handed on as one of ours.
    *response.version_mut() = http::Version::HTTP_11;
    for name in HOPS {
        response.headers_mut().remove(name);
    }
    response.headers_mut().remove(CONNECTION);
    // The use lasts as long as the answer does.
    Ok(response.map(|body| Body::new(Held { body, _entered: entered })))
}

async fn join(entered: Use, outer: hyper::upgrade::OnUpgrade, inner: hyper::upgrade::OnUpgrade) {
    if let (Ok(outer), Ok(inner)) = (outer.await, inner.await) {
        let _ = tokio::io::copy_bidirectional(&mut TokioIo::new(outer), &mut TokioIo::new(inner)).await;
    }
    drop(entered);
}

fn clean(headers: &mut HeaderMap, port: u16, keeps_upgrade: bool) {
    for name in OURS.into_iter().chain(HOPS) {
        headers.remove(name);
    }
    // Read as the door reads it, or a key that opened it would go on inside.
    let is_key = |value: &HeaderValue| {
        door::bearer(value.as_bytes())
            .and_then(|borne| borne.get(..4))
            .is_some_and(|start| start.eq_ignore_ascii_case(b"e2b_"))
    };
    if headers.get_all(AUTHORIZATION).iter().any(is_key) {
        headers.remove(AUTHORIZATION);
    }
    if !(keeps_upgrade && headers.contains_key(UPGRADE)) {
        headers.remove(UPGRADE);
        headers.remove(CONNECTION);
    }
    if let Some(host) = headers.get(HOST).cloned() {
        headers.insert("x-forwarded-host", host);
    }
    if let Ok(host) = HeaderValue::from_str(&format!("localhost:{port}")) {
        headers.insert(HOST, host);
    }
    // Several cookie lines of HTTP/2 are one line for a server of HTTP/1.
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

fn port(text: &str) -> Result<u16, ApiError> {
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        ApiError::plain(Code::BadRequest, "read the port", "a port is a number from 1 to 65535")
    })
}

fn path(text: &str) -> Result<Uri, ApiError> {
    text.parse().map_err(|_| ApiError::plain(Code::BadRequest, "read the path", "it is not one"))
}

/// A body that keeps a sandbox in use.
struct Held<B> {
    body: B,
    _entered: Use,
}

impl<B: hyper::body::Body + Unpin> hyper::body::Body for Held<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports_are_read() {
        let domains = ["box.example.com".to_owned()];
        let of = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            named(&domains, &headers)
        };
        let found = Some(("0123456789abcdef".to_owned(), "8080".to_owned()));
        assert_eq!(of("8080-0123456789abcdef.localhost:3000"), found);
        assert_eq!(of("8080-0123456789abcdef.box.example.com"), found);
        for none in
            ["localhost", "8080-short.localhost", "8080-0123456789abcdef.example.com", "api.box.example.com"]
        {
            assert_eq!(of(none), None, "{none}");
        }
    }

    #[test]
    fn what_opens_the_door_is_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "8080-x.localhost"),
            ("x-api-key", "e2b_1"),
            ("authorization", "Bearer e2b_1"),
            ("fumehood-token", "t"),
            ("connection", "upgrade"),
            ("x-mine", "1"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        clean(&mut headers, 8080, false);
        let mut left: Vec<&str> = headers.keys().map(|name| name.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, ["host", "x-forwarded-host", "x-mine"]);
        headers.insert("authorization", "Bearer of-the-app".parse().unwrap());
        clean(&mut headers, 8080, false);
        assert!(headers.contains_key("authorization"));
    }
}
