//! Whom a request is for: request line, `Host` and connection have to agree, or nothing is judged.

use super::head::{RequestHead, Version};
use fumehood_model::egress::{Denial, Identity, Method, Scheme, UrlPath};
use http::HeaderMap;
use http::header::HOST;

/// Where the requests of one connection may go.
#[derive(Clone, Debug)]
pub enum Addressing {
    /// To the one place that was dialled.
    Fixed(Identity),
    /// To the place that each request line names. `own` is the proxy itself: it stands in the record
    /// where a request names nobody.
    Proxy { own: Identity },
}

/// A request whose addressee is known.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) identity: Identity,
    pub(crate) path: UrlPath,
}

/// A refusal, and whom it was about.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) identity: Identity,
    pub(crate) denial: Denial,
}

// === impl Addressing ===

impl Addressing {
    /// Whom a refusal is about while nothing better is known.
    pub(crate) fn nearest(&self) -> &Identity {
        match self {
            Self::Fixed(identity) | Self::Proxy { own: identity } => identity,
        }
    }

    /// The addressee of an HTTP/1 request.
    pub(crate) fn target(&self, head: &RequestHead) -> Result<Target, Refused> {
        let refuse = |identity: &Identity, denial| Refused { identity: identity.clone(), denial };
        let nearest = self.nearest();
        if Method::parse(&head.method).is_none() {
            return Err(refuse(
                nearest,
                Denial::Malformed("`CONNECT` asks for a tunnel inside of a connection"),
            ));
        }
        let host = only_host(head).map_err(|denial| refuse(nearest, denial))?;
        match self {
            Self::Fixed(identity) => {
                if !head.target.starts_with('/') {
                    let denial = Denial::Malformed("a whole URL in the request line is for proxies");
                    return Err(refuse(identity, denial));
                }
                let host = host.ok_or_else(|| refuse(identity, Denial::Malformed("there is no `Host`")))?;
                named(identity, host).map_err(|denial| refuse(identity, denial))?;
                let path = path(&head.target).map_err(|denial| refuse(identity, denial))?;
                Ok(Target { identity: identity.clone(), path })
            }
            Self::Proxy { .. } => {
                let (identity, path_text) =
                    absolute(&head.target).map_err(|denial| refuse(nearest, denial))?;
                if let Some(host) = host {
                    named(&identity, host).map_err(|denial| refuse(&identity, denial))?;
                }
                let path = path(&path_text).map_err(|denial| refuse(&identity, denial))?;
                Ok(Target { identity, path })
            }
        }
    }
}

/// Takes `http://authority/path` apart.
fn absolute(target: &str) -> Result<(Identity, String), Denial> {
    let (scheme, rest) = target
        .split_once("://")
        .ok_or(Denial::Malformed("a proxy needs the whole URL in the request line"))?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Denial::Malformed(
            "a proxy takes `http://` in the request line, and all else by `CONNECT`",
        ));
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let identity = Identity::from_authority(Scheme::Http, authority)
        .map_err(|_| Denial::Malformed("the URL in the request line names no host"))?;
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok((identity, path))
}

/// The `Host` that stands there once; HTTP/1.1 has to have it.
fn only_host(head: &RequestHead) -> Result<Option<&str>, Denial> {
    let mut hosts = head.fields.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().map(Some).map_err(|_| Denial::Malformed("`Host` is no host")),
        (None, _) if head.version == Version::Http10 => Ok(None),
        (None, _) => Err(Denial::Malformed("there is no `Host`")),
        (Some(_), Some(_)) => Err(Denial::Malformed("`Host` stands there twice")),
    }
}

/// Refuses an authority that is not this one.
pub(crate) fn named(identity: &Identity, authority: &str) -> Result<(), Denial> {
    if identity.is_named_by(authority) {
        return Ok(());
    }
    Err(match Identity::from_authority(identity.scheme, authority) {
        Ok(_) => Denial::OtherName(authority.to_owned()),
        Err(_) => Denial::Malformed("the host of the request is no host"),
    })
}

pub(crate) fn path(text: &str) -> Result<UrlPath, Denial> {
    UrlPath::parse(text).map_err(Denial::AmbiguousPath)
}

/// The addressee of an HTTP/2 request: `:authority`, with which a `host` has to agree.
pub(crate) fn of_http2(identity: &Identity, uri: &http::Uri, fields: &HeaderMap) -> Result<UrlPath, Denial> {
    if uri.scheme_str().is_some_and(|scheme| scheme != identity.scheme.name()) {
        return Err(Denial::Malformed("`:scheme` is not the connection's"));
    }
    let mut hosts = fields.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host.to_str().map_err(|_| Denial::Malformed("`host` is no host"))?),
        (None, _) => None,
        (Some(_), Some(_)) => return Err(Denial::Malformed("`host` stands there twice")),
    };
    let authority = uri.authority().map(http::uri::Authority::as_str);
    match (authority, host) {
        (None, None) => return Err(Denial::Malformed("there is no `:authority`")),
        (authority, host) => {
            for text in authority.iter().chain(host.iter()) {
                named(identity, text)?;
            }
        }
    }
    let text = uri.path_and_query().map_or("", http::uri::PathAndQuery::as_str);
    path(text)
}
