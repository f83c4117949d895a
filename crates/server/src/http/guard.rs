//! Names that a request carries: a page of somebody else's that a browser shows must not reach the daemon by a name
//! of its own.

use crate::engine::Engine;
use crate::error::{ApiError, Code};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, HeaderValue};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

/// Goes on only with names of ours in `Host` and `Origin`.
pub(super) async fn names(State(engine): State<Engine>, mut request: Request, next: Next) -> Response {
    let counters = engine.counters();
    counters.requests.fetch_add(1, Ordering::Relaxed);
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
    let response = match judge(&engine.config().domains, authority.as_deref(), request.headers()) {
        Ok(()) => {
            // HTTP/2 has it in the request's target alone, and everything behind this looks in one place.
            let named = authority.and_then(|authority| HeaderValue::try_from(authority).ok());
            if let Some(host) = named.filter(|_| !request.headers().contains_key(HOST)) {
                request.headers_mut().insert(HOST, host);
            }
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    if response.status().is_client_error() {
        counters.refused.fetch_add(1, Ordering::Relaxed);
    }
    response
}

fn judge(domains: &[String], authority: Option<&str>, headers: &HeaderMap) -> Result<(), ApiError> {
    let foreign = |header: &str| {
        let cause = format!("`{header}` names somebody else, or nobody");
        Err(ApiError::plain(Code::ForeignHost, "take the request", cause).with("header", header))
    };
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), authority) {
        (Some(host), _) => host.to_str().ok(),
        (None, authority) => authority,
    };
    if hosts.next().is_some() || !host.is_some_and(|host| is_ours(domains, host)) {
        return foreign("Host");
    }
    for origin in headers.get_all(ORIGIN) {
        let rest = origin.to_str().ok().and_then(|text| text.split_once("://"));
        if !rest.is_some_and(|(_, host)| is_ours(domains, host)) {
            return foreign("Origin");
        }
    }
    Ok(())
}

/// Whether a host, with or without a port, is a loopback name or address, an address at all, or of a domain of ours.
///
/// An address is no name: nobody can make a browser's page come from it by a name of theirs.
fn is_ours(domains: &[String], host: &str) -> bool {
    let name = without_port(host).trim_end_matches('.').to_ascii_lowercase();
    if name.is_empty() {
        return false;
    }
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
    let within = |domain: &str| {
        name == domain || name.strip_suffix(domain).is_some_and(|before| before.ends_with('.'))
    };
    address.parse::<IpAddr>().is_ok() || within("localhost") || domains.iter().any(|domain| within(domain))
}

/// A host without its port.
pub(super) fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => {
            // An address in brackets keeps its own colons.
            if name.contains(':') && !name.starts_with('[') { host } else { name }
        }
        Some(_) | None => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_refused() {
        let domains = ["box.example.com".to_owned()];
        for ours in [
            "localhost",
            "localhost:3000",
            "127.0.0.1:80",
            "[::1]:3000",
            "[::1]",
            "LOCALHOST.",
            "8080-abc.localhost:1",
            "box.example.com",
            "3000-abc.box.example.com:443",
        ] {
            assert!(is_ours(&domains, ours), "{ours}");
        }
        for foreign in [
            "evil.example.com",
            "notlocalhost",
            "localhost.evil.example.com",
            "",
            "box.example.com.evil",
            ":80",
        ] {
            assert!(!is_ours(&domains, foreign), "{foreign}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(HOST, "localhost".parse().unwrap());
        assert!(judge(&domains, None, &headers).is_ok());
        headers.insert(ORIGIN, "https://evil.example.com".parse().unwrap());
        assert!(judge(&domains, None, &headers).is_err());
        headers.insert(ORIGIN, "null".parse().unwrap());
        assert!(judge(&domains, None, &headers).is_err());
        headers.insert(ORIGIN, "http://localhost:5173".parse().unwrap());
        assert!(judge(&domains, None, &headers).is_ok());
        headers.append(HOST, "evil.example.com".parse().unwrap());
        assert!(judge(&domains, None, &headers).is_err());
        assert!(judge(&domains, None, &HeaderMap::new()).is_err());
    }
}
