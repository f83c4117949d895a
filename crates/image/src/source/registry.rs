//! A registry: the Docker and OCI distribution protocol, version 2, to read.
//!
//! `https` alone, but `http` to this host itself. Redirects are followed here, each judged anew; credentials go to the
//! registry and to the token server that it names, and nowhere that either redirects to.

use super::credentials::Credentials;
use super::{Source, Top};
use crate::fault::{Code, Fault};
use crate::manifest::{DOCKER_INDEX, DOCKER_MANIFEST, Descriptor, OCI_INDEX, OCI_MANIFEST};
use fumehood_model::image::{Reference, Version};
use fumehood_model::text::shown;
use rustls::crypto::aws_lc_rs;
use serde::Deserialize;
use std::fmt;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};
use ureq::{Agent, Body};
use zeroize::Zeroizing;

const MOST_REDIRECTS: usize = 5;
const TOKEN_BYTES: u64 = 1 << 20;
const CONNECT: Duration = Duration::from_secs(20);
/// A registry may fetch from elsewhere before it answers.
const ANSWER: Duration = Duration::from_secs(60);
/// Silence in the middle of content.
const SILENCE: Duration = Duration::from_secs(60);
/// Docker's own registry is at another place than its name says.
const HUB: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// One image of a registry.
pub struct Registry {
    agent: Agent,
    reference: Reference,
    origin: String,
    credentials: Credentials,
    /// `Basic …` or `Bearer …`, once the registry asked for it.
    authorization: Option<Zeroizing<String>>,
}

#[derive(Deserialize)]
struct Token {
    token: Option<Zeroizing<String>>,
    access_token: Option<Zeroizing<String>>,
}

/// What a registry wants before it answers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Challenge {
    basic: bool,
    realm: Option<String>,
    service: Option<String>,
    scope: Option<String>,
}

// === impl Registry ===

impl Registry {
    /// An image by its name. `docker` is the folder of `config.json`.
    pub fn new(reference: &Reference, docker: Option<&Path>) -> Result<Self, Fault> {
        let host = reference.host();
        let local = is_loopback(host);
        let credentials = match docker {
            Some(folder) => Credentials::read(&folder.join("config.json"), host)?,
            None => Credentials::default(),
        };
        let at = if host == HUB.0 { HUB.1 } else { host };
        let origin = format!("{}://{at}", if local { "http" } else { "https" });
        Ok(Self {
            agent: agent(local)?,
            reference: reference.clone(),
            origin,
            credentials,
            authorization: None,
        })
    }

    fn get(&mut self, path: &str, accept: &[&str]) -> Result<Response<Body>, Fault> {
        let url = format!("{}/v2/{}/{path}", self.origin, self.reference.path());
        let first = self.follow(&url, accept)?;
        if first.status() != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return self.judged(first);
        }
        self.authorization = Some(self.authorize(&first)?);
        let second = self.follow(&url, accept)?;
        self.judged(second)
    }

    /// Asks, and asks again where it is sent on to.
    fn follow(&self, url: &str, accept: &[&str]) -> Result<Response<Body>, Fault> {
        let mut at = parse(url)?;
        for hop in 0..=MOST_REDIRECTS {
            let mut request = self.agent.get(at.to_string());
            if !accept.is_empty() {
                request = request.header(header::ACCEPT, accept.join(", "));
            }
            if let Some(value) = self.authorization.as_ref().filter(|_| hop == 0) {
                request = request.header(header::AUTHORIZATION, value.as_str());
            }
            let response = request.call().map_err(|error| self.unreachable(&at, &error))?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let to = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            at = redirect(&at, to.unwrap_or_default())?;
        }
        Err(Fault::new(Code::BadAnswer, format!("the registry redirects more than {MOST_REDIRECTS} times")))
    }

    fn judged(&self, response: Response<Body>) -> Result<Response<Body>, Fault> {
        let name = self.reference.short();
        match response.status() {
            StatusCode::OK => Ok(response),
            StatusCode::NOT_FOUND => {
                Err(Fault::new(Code::NotFound, format!("there is no `{name}` at its registry")))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.unauthorised()),
            StatusCode::TOO_MANY_REQUESTS => {
                Err(Fault::new(Code::Unreachable, "the registry says that these are too many requests")
                    .with_remedy("wait, or log in: `docker login`"))
            }
            status if status.is_server_error() => Err(Fault::new(
                Code::Unreachable,
                format!("the registry failed with status {}", status.as_u16()),
            )),
            status => Err(Fault::new(
                Code::BadAnswer,
                format!("the registry answered with status {}", status.as_u16()),
            )),
        }
    }

    fn unauthorised(&self) -> Fault {
        let (name, host) = (self.reference.short(), self.reference.host());
        let why = format!("`{host}` does not let us have `{name}`, or there is none");
        let fault = Fault::new(Code::Unauthorised, why);
        match (&self.credentials.helper, &self.credentials.basic) {
            (Some(helper), _) => fault.with_remedy(format!(
                "the credentials are with the helper `{}`, which is not run; `docker login` without a helper writes them to the file",
                shown(helper)
            )),
            (None, Some(_)) => fault.with_remedy("check what the credentials of `docker login` may read"),
            (None, None) => fault.with_remedy(format!("check the name; `docker login {host}` where it is private")),
        }
    }

    /// What to send, after a registry said what it wants.
    fn authorize(&self, response: &Response<Body>) -> Result<Zeroizing<String>, Fault> {
        let said = response.headers().get_all(header::WWW_AUTHENTICATE).iter();
        let challenge = said.filter_map(|value| value.to_str().ok()).find_map(Challenge::parse);
        let challenge = challenge.ok_or_else(|| self.unauthorised())?;
        if challenge.basic {
            return self.credentials.basic.clone().ok_or_else(|| self.unauthorised());
        }
        let realm = challenge.realm.as_deref().unwrap_or_default();
        let at = parse(realm)?;
        let local = self.origin.starts_with("http://");
        if !may_be_asked(&at, local) {
            let why = format!("the registry sends us for a token to `{}`, which is not https", shown(realm));
            return Err(Fault::new(Code::BadAnswer, why));
        }
        let scope = challenge.scope.unwrap_or_else(|| format!("repository:{}:pull", self.reference.path()));
        let mut request = self.agent.get(at.to_string()).query("scope", scope);
        if let Some(service) = challenge.service {
            request = request.query("service", service);
        }
        if let Some(basic) = &self.credentials.basic {
            request = request.header(header::AUTHORIZATION, basic.as_str());
        }
        let response = request.call().map_err(|error| self.unreachable(&at, &error))?;
        if response.status() != StatusCode::OK {
            return Err(self.unauthorised());
        }
        let bad = |_| Fault::new(Code::BadAnswer, "the token server answered with no token");
        let mut text = Zeroizing::new(Vec::new());
        let mut reader = response.into_body().into_reader().take(TOKEN_BYTES);
        reader.read_to_end(&mut text).map_err(|error| self.cut(&error))?;
        let token: Token = serde_json::from_slice(&text).map_err(bad)?;
        let token = token.token.or(token.access_token).unwrap_or_default();
        // A value for a header, and nothing that ends one.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Fault::new(Code::BadAnswer, "the token server answered with no token"));
        }
        Ok(Zeroizing::new(format!("Bearer {}", *token)))
    }

    fn unreachable(&self, at: &Uri, error: &ureq::Error) -> Fault {
        let host = at.authority().map(ToString::to_string).unwrap_or_default();
        Fault::new(Code::Unreachable, shown(&format!("`{host}` can not be reached: {error}")))
    }

    fn cut(&self, error: &io::Error) -> Fault {
        Fault::new(Code::Unreachable, shown(&format!("`{}` stopped sending: {error}", self.reference.host())))
    }

    fn content(&mut self, path: &str, accept: &[&str]) -> Result<Box<dyn Read>, Fault> {
        let response = self.get(path, accept)?;
        let host = self.reference.host().to_owned();
        Ok(Box::new(Sent { host, inner: Box::new(response.into_body().into_reader()) }))
    }
}

impl Source for Registry {
    fn top(&mut self, most_bytes: u64) -> Result<Top, Fault> {
        let version = match self.reference.version().clone() {
            Version::Tag(version) | Version::Digest(version) => version,
        };
        let response = self.get(&format!("manifests/{version}"), &MANIFESTS)?;
        let said = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = said.map(|said| said.split(';').next().unwrap_or_default().trim().to_owned());
        let mut bytes = Vec::new();
        let mut reader = response.into_body().into_reader().take(most_bytes.saturating_add(1));
        reader.read_to_end(&mut bytes).map_err(|error| self.cut(&error))?;
        Ok(Top { bytes, media_type })
    }

    fn manifest<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.content(&format!("manifests/{}", descriptor.digest), &MANIFESTS)
    }

    fn blob<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.content(&format!("blobs/{}", descriptor.digest), &[])
    }

    fn name(&self) -> Option<Reference> {
        Some(self.reference.clone())
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("reference", &self.reference).finish_non_exhaustive()
    }
}

const MANIFESTS: [&str; 4] = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST];

/// Content as it comes; where it stops, it says who stopped.
struct Sent {
    host: String,
    inner: Box<dyn Read>,
}

// === impl Sent ===

impl Read for Sent {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).map_err(|error| {
            let why = shown(&format!("`{}` stopped sending: {error}", self.host));
            Fault::new(Code::Unreachable, why).into()
        })
    }
}

// === impl Challenge ===

impl Challenge {
    /// Reads a `WWW-Authenticate` header; `None` where it is of another kind.
    fn parse(text: &str) -> Option<Self> {
        let (kind, mut rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        if kind.eq_ignore_ascii_case("basic") {
            return Some(Self { basic: true, ..Self::default() });
        }
        if !kind.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let mut challenge = Self::default();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = value(after)?;
            rest = after.trim_start().strip_prefix(',').unwrap_or_default();
            match key.trim().to_ascii_lowercase().as_str() {
                "realm" => challenge.realm = Some(value),
                "service" => challenge.service = Some(value),
                "scope" => challenge.scope = Some(value),
                _ => {}
            }
        }
        challenge.realm.is_some().then_some(challenge)
    }
}

/// A value, quoted or not, and what follows it.
fn value(text: &str) -> Option<(String, &str)> {
    match text.strip_prefix('"') {
        Some(quoted) => quoted.split_once('"').map(|(value, rest)| (value.to_owned(), rest)),
        None => {
            let end = text.find(',').unwrap_or(text.len());
            text.split_at_checked(end).map(|(value, rest)| (value.trim().to_owned(), rest))
        }
    }
}

pub(super) fn agent(local: bool) -> Result<Agent, Fault> {
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .user_agent(concat!("fumehood/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(CONNECT))
        .timeout_recv_response(Some(ANSWER))
        .timeout_per_read(Some(SILENCE));
    if local {
        config = config.proxy(None);
    } else {
        config = config.tls_config(tls()?);
    }
    Ok(config.build().into())
}

/// The certificates that this host believes.
fn tls() -> Result<TlsConfig, Fault> {
    let found = rustls_native_certs::load_native_certs();
    let certificates: Vec<Certificate<'static>> =
        found.certs.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    if certificates.is_empty() {
        return Err(Fault::new(Code::Unreachable, "this host has no list of certificate authorities")
            .with_remedy("install `ca-certificates`, or name a file with `SSL_CERT_FILE`"));
    }
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(aws_lc_rs::default_provider()))
        .root_certs(RootCerts::new_with_certs(&certificates))
        .build())
}

pub(super) fn parse(url: &str) -> Result<Uri, Fault> {
    let bad = || Fault::new(Code::BadAnswer, format!("`{}` is no address that can be asked", shown(url)));
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let plain = uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if plain && uri.scheme_str().is_some() { Ok(uri) } else { Err(bad()) }
}

/// Where a redirect leads, if we go there.
fn redirect(from: &Uri, to: &str) -> Result<Uri, Fault> {
    let local = from.scheme_str() == Some("http");
    let whole = match to.strip_prefix('/') {
        Some(rest) if !rest.starts_with('/') => {
            let authority = from.authority().map(ToString::to_string).unwrap_or_default();
            format!("{}://{authority}{to}", from.scheme_str().unwrap_or("https"))
        }
        Some(_) | None => to.to_owned(),
    };
    let at = parse(&whole)?;
    if may_be_asked(&at, local) {
        return Ok(at);
    }
    let why = format!("the registry sends us to `{}`, which is not https", shown(&whole));
    Err(Fault::new(Code::BadAnswer, why))
}

/// `https`, or from this host to this host.
fn may_be_asked(at: &Uri, local: bool) -> bool {
    let host = at.authority().map(|authority| authority.as_str()).unwrap_or_default();
    match at.scheme_str() {
        Some("https") => true,
        Some("http") => local && is_loopback(host),
        Some(_) | None => false,
    }
}

/// Whether `HOST[:PORT]` is this host, by name alone.
fn is_loopback(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split_once(']').map_or("", |(address, _)| address);
        return address.parse::<std::net::Ipv6Addr>().is_ok_and(|address| address.is_loopback());
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_in_every_usual_form() {
        let text = r#"Bearer realm="https://auth.example.com/token",service="r.example.com",scope="repository:a/b:pull,push""#;
        let challenge = Challenge::parse(text).unwrap();
        assert_eq!(challenge.realm.as_deref(), Some("https://auth.example.com/token"));
        assert_eq!(challenge.service.as_deref(), Some("r.example.com"));
        assert_eq!(challenge.scope.as_deref(), Some("repository:a/b:pull,push"));
        assert!(Challenge::parse("basic realm=\"x\"").unwrap().basic);
        for text in ["Negotiate", "Bearer", "Bearer realm=\"open", ""] {
            assert_eq!(Challenge::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_redirect_never_leaves_https() {
        let to = |from: &str, to: &str| redirect(&parse(from).unwrap(), to).map(|uri| uri.to_string());
        let far = "https://r.example.com/v2/x";
        assert_eq!(to(far, "https://cdn.example.com/b?c=d").unwrap(), "https://cdn.example.com/b?c=d");
        assert_eq!(to(far, "/b").unwrap(), "https://r.example.com/b");
        let near = "http://127.0.0.1:5000/v2/x";
        assert_eq!(to(near, "http://localhost:5001/b").unwrap(), "http://localhost:5001/b");
        for bad in [
            "http://r.example.com/b",
            "http://127.0.0.1/b",
            "ftp://x/b",
            "//x/b",
            "b",
            "",
            "https://u:p@x/b",
            "file:///etc/passwd",
        ] {
            assert!(to(far, bad).is_err(), "{bad}");
        }
        assert!(to(near, "http://10.0.0.1/b").is_err());
    }

    #[test]
    fn only_this_host_is_asked_in_the_clear() {
        for host in ["localhost:5000", "127.0.0.1", "127.9.9.9:1", "[::1]:5000", "LOCALHOST"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["localhost.example.com", "128.0.0.1", "[::2]", "127.0.0.1.example.com", ""] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
