//! One rule: where it leads, what may be asked there, and which secret may be used.

use super::binding::Binding;
use super::host::{Host, NameFlaw, Pattern};
use super::identity::{self, Identity, IdentityFlaw, Scheme};
use super::method::Method;
use super::path::{PathPattern, UrlPath};
use crate::text::shown;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;

/// Longer than any rule that a person means.
const LONGEST: usize = 2_048;

/// Something that may be sent. What no rule allows is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub hosts: Pattern,
    pub ports: Ports,
    pub matter: Matter,
    pub binding: Option<Binding>,
}

/// Ports, inclusive, never 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports(RangeInclusive<u16>);

/// What may be spoken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matter {
    /// Any protocol over TCP. Bytes pass unread.
    Tcp,
    /// TLS. Bytes pass unread, once the name in the handshake is the one that was dialled.
    Tls,
    /// HTTP requests of these methods (`None`: any) to these paths. TLS is opened for it.
    Requests { scheme: Scheme, methods: Option<Vec<Method>>, path: PathPattern },
    /// The smart HTTP protocol of one git repository.
    Git { scheme: Scheme, repository: PathPattern, write: bool },
}

/// What is wrong with a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleFlaw {
    /// A phrase with the offending part in backticks.
    pub what: String,
    pub remedy: &'static str,
}

// === impl Rule ===

impl Rule {
    /// Reads a rule as a person writes it; the grammar is in `docs/egress.md`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        if text.len() > LONGEST || text.chars().any(char::is_control) {
            return Err(flaw("it is too long, or has control characters", "write one rule on one line"));
        }
        let (rule, binding) = match text.split_once(" with ") {
            Some((rule, binding)) => (rule.trim(), Some(Binding::parse(binding.trim())?)),
            None => (text.trim(), None),
        };
        let mut rule = match rule.split_once(' ') {
            Some((verb, url)) => verb_and_url(verb, url.trim())?,
            None if rule.contains("://") => url(rule, None)?,
            None => place(rule)?,
        };
        if binding.is_some() {
            rule.matter = inside(rule.matter)?;
        }
        Ok(Self { binding, ..rule })
    }

    /// Whether TLS must be opened to judge by it.
    pub fn needs_inside(&self) -> bool {
        match &self.matter {
            Matter::Tcp | Matter::Tls => false,
            Matter::Requests { scheme, .. } | Matter::Git { scheme, .. } => *scheme == Scheme::Https,
        }
    }

    /// Whether it is about connections of this kind at all.
    pub fn speaks(&self, scheme: Scheme) -> bool {
        match &self.matter {
            Matter::Tcp => true,
            Matter::Tls => scheme == Scheme::Https,
            Matter::Requests { scheme: own, .. } | Matter::Git { scheme: own, .. } => *own == scheme,
        }
    }

    /// Whether everything that `other` allows is allowed by `self`, with the same use of secrets.
    pub fn covers(&self, other: &Self) -> bool {
        self.hosts.covers(&other.hosts)
            && self.ports.covers(&other.ports)
            && self.matter.covers(&other.matter)
            && (other.binding.is_none() || self.binding == other.binding)
    }
}

impl fmt::Display for Rule {
    /// As it would be written: reading it gives the same rule.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = |f: &mut fmt::Formatter<'_>, scheme: Scheme, path: &PathPattern| {
            write!(f, "{scheme}://{}", self.hosts)?;
            if scheme.default_port() != Some(*self.ports.0.start()) {
                write!(f, ":{}", self.ports)?;
            }
            if path.is_any() { Ok(()) } else { path.fmt(f) }
        };
        match &self.matter {
            Matter::Tcp => write!(f, "{}:{}", self.hosts, self.ports)?,
            Matter::Tls if self.ports.is_only(443) => self.hosts.fmt(f)?,
            Matter::Tls => write!(f, "https://{}:{}", self.hosts, self.ports)?,
            Matter::Requests { scheme, methods, path } => {
                if let Some(methods) = methods {
                    let names: Vec<&str> = methods.iter().map(Method::as_str).collect();
                    write!(f, "{} ", names.join(","))?;
                }
                url(f, *scheme, path)?;
                // A path that says nothing has to be written where it is all that asks to look inside.
                if *scheme == Scheme::Https && methods.is_none() && path.is_any() && self.binding.is_none() {
                    f.write_str("/**")?;
                }
            }
            Matter::Git { scheme, repository, write } => {
                f.write_str(if *write { "git-write " } else { "git-read " })?;
                url(f, *scheme, repository)?;
            }
        }
        match &self.binding {
            Some(binding) => write!(f, " with {binding}"),
            None => Ok(()),
        }
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Ports ===

impl Ports {
    /// A single port; `port` is not 0.
    pub const fn one(port: u16) -> Self {
        Self(port..=port)
    }

    /// Reads `443` or `8000-8010`.
    pub fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (identity::read_port(first)?, identity::read_port(last)?);
        (first <= last).then_some(Self(first..=last))
    }

    /// Whether the port is one of these.
    pub fn contains(&self, port: u16) -> bool {
        self.0.contains(&port)
    }

    /// Whether every port of `other` is one of `self`'s.
    pub fn covers(&self, other: &Self) -> bool {
        self.contains(*other.0.start()) && self.contains(*other.0.end())
    }

    /// Whether it is this port alone.
    pub fn is_only(&self, port: u16) -> bool {
        self.0 == (port..=port)
    }

    /// All of them.
    pub fn range(&self) -> RangeInclusive<u16> {
        self.0.clone()
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last { first.fmt(f) } else { write!(f, "{first}-{last}") }
    }
}

impl Serialize for Ports {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Matter ===

impl Matter {
    /// Whether it allows this request, on a connection that it speaks.
    pub(super) fn allows(&self, method: &str, path: &UrlPath) -> bool {
        match self {
            Self::Tcp | Self::Tls => true,
            Self::Requests { methods, path: pattern, .. } => {
                let method = methods.as_ref().is_none_or(|all| all.iter().any(|one| one.as_str() == method));
                method && pattern.matches(path)
            }
            Self::Git { repository, write, .. } => git_allows(repository, *write, method, path),
        }
    }

    /// Whether it looks at the path, so that a path that is read in different ways is no good.
    pub(super) fn is_bound_to_path(&self) -> bool {
        match self {
            Self::Tcp | Self::Tls => false,
            Self::Requests { path, .. } => !path.is_any(),
            Self::Git { .. } => true,
        }
    }

    /// Whether the path alone would do.
    pub(super) fn allows_path(&self, path: &UrlPath) -> bool {
        match self {
            Self::Tcp | Self::Tls => true,
            Self::Requests { path: pattern, .. } => pattern.matches(path),
            Self::Git { repository, .. } => {
                let base = repository.segments();
                path.segments().starts_with(base) || with_suffix(base, path).is_some()
            }
        }
    }

    /// Every path that it is about begins with the segments of one of these.
    pub(super) fn fronts(&self) -> Vec<Vec<Vec<u8>>> {
        match self {
            Self::Tcp | Self::Tls => vec![Vec::new()],
            Self::Requests { path, .. } => vec![path.segments().to_vec()],
            Self::Git { repository, .. } => git_names(repository.segments()),
        }
    }

    /// Whether both are about the same paths in the same way, whatever their methods.
    pub(super) fn differs_in_methods_alone(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Requests { scheme, path, methods: _ },
                Self::Requests { scheme: its_scheme, path: its_path, methods: _ },
            ) => scheme == its_scheme && path == its_path,
            (_, _) => self == other,
        }
    }

    fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp, _) | (Self::Tls, Self::Tls) => true,
            (
                Self::Tls,
                Self::Requests { scheme: Scheme::Https, .. } | Self::Git { scheme: Scheme::Https, .. },
            ) => true,
            (
                Self::Requests { scheme, methods, path },
                Self::Requests { scheme: of, methods: asked, path: below },
            ) => {
                let methods = match (methods, asked) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(held), Some(asked)) => asked.iter().all(|one| held.contains(one)),
                };
                scheme == of && methods && path.covers(below)
            }
            (Self::Requests { scheme, methods: None, path }, Self::Git { scheme: of, repository, .. }) => {
                scheme == of && spellings(repository).iter().all(|one| path.covers(one))
            }
            (
                Self::Git { scheme, repository, write },
                Self::Git { scheme: of, repository: other, write: asked },
            ) => scheme == of && repository == other && (*write || !asked),
            (Self::Tls | Self::Requests { .. } | Self::Git { .. }, _) => false,
        }
    }
}

/// The four requests that git's smart HTTP protocol makes of a repository.
fn git_allows(repository: &PathPattern, write: bool, method: &str, path: &UrlPath) -> bool {
    let base = repository.segments();
    if !path.is_parted_alike() {
        return false;
    }
    let Some(rest) = path.segments().strip_prefix(base).or_else(|| with_suffix(base, path)) else {
        return false;
    };
    let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
    match (method, rest.as_slice()) {
        ("GET", [b"info", b"refs"]) => match path.only_parameter("service") {
            Some("git-upload-pack") => true,
            Some("git-receive-pack") => write,
            Some(_) | None => false,
        },
        ("POST", [b"git-upload-pack"]) => path.query().is_none(),
        ("POST", [b"git-receive-pack"]) => write && path.query().is_none(),
        _ => false,
    }
}

/// `/owner/name` is `/owner/name.git` too.
fn with_suffix<'a>(base: &[Vec<u8>], path: &'a UrlPath) -> Option<&'a [Vec<u8>]> {
    let (last, front) = base.split_last()?;
    let rest = path.segments().strip_prefix(front)?;
    let (name, rest) = rest.split_first()?;
    let same = name.strip_suffix(b".git") == Some(last.as_slice())
        || last.strip_suffix(b".git") == Some(name.as_slice());
    same.then_some(rest)
}

/// A repository under each name that [`with_suffix`] takes for its own, itself first.
fn git_names(base: &[Vec<u8>]) -> Vec<Vec<Vec<u8>>> {
    let mut names = vec![base.to_vec()];
    if let Some((last, front)) = base.split_last() {
        let longer = [last.as_slice(), b".git"].concat();
        let bare = last.strip_suffix(b".git").map(<[u8]>::to_vec);
        names.extend(bare.into_iter().chain([longer]).map(|name| [front, &[name]].concat()));
    }
    names
}

/// Everything below a repository, under each name that [`with_suffix`] takes for its own.
fn spellings(repository: &PathPattern) -> Vec<PathPattern> {
    let text = repository.to_string();
    let bare = text.strip_suffix(".git").map(str::to_owned);
    let names = [Some(format!("{text}.git")), bare, Some(text)];
    let below =
        |name: String| PathPattern::parse(&format!("{name}/**")).unwrap_or_else(|_| PathPattern::any());
    names.into_iter().flatten().map(below).collect()
}

// === impl RuleFlaw ===

impl fmt::Display for RuleFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.what, self.remedy)
    }
}

pub(super) fn flaw(what: &str, remedy: &'static str) -> RuleFlaw {
    RuleFlaw { what: what.to_owned(), remedy }
}

/// `METHOD URL`, `git-read URL`, `git-write URL`.
fn verb_and_url(verb: &str, text: &str) -> Result<Rule, RuleFlaw> {
    const REMEDY: &str = "write `GET https://api.example.com/v1/**`, or `git-read https://…`";
    if text.contains(' ') || !text.contains("://") {
        return Err(flaw(&format!("`{}` is no URL", shown(text)), REMEDY));
    }
    if let Some(write) = match verb {
        "git-read" => Some(false),
        "git-write" => Some(true),
        _ => None,
    } {
        return repository(url(text, None)?, write);
    }
    let mut methods = Vec::new();
    for word in verb.split(',') {
        let method =
            Method::parse(word).filter(|method| !method.as_str().bytes().any(|b| b.is_ascii_lowercase()));
        let Some(method) = method else {
            return Err(flaw(&format!("`{}` is no method", shown(word)), REMEDY));
        };
        if !methods.contains(&method) {
            methods.push(method);
        }
    }
    url(text, Some(methods))
}

/// Makes a rule about one git repository of the rule about its URL.
fn repository(rule: Rule, write: bool) -> Result<Rule, RuleFlaw> {
    let whole = |path: &PathPattern| {
        let text = path.to_string();
        path.is_any() || text.ends_with("/**") || text.ends_with('/')
    };
    match rule.matter {
        Matter::Requests { scheme, path, .. } if !whole(&path) => {
            Ok(Rule { matter: Matter::Git { scheme, repository: path, write }, ..rule })
        }
        Matter::Tcp | Matter::Tls | Matter::Requests { .. } | Matter::Git { .. } => {
            Err(flaw("a git rule names one repository", "write its URL as `git clone` takes it"))
        }
    }
}

/// `scheme://host[:port][/path]`.
fn url(text: &str, methods: Option<Vec<Method>>) -> Result<Rule, RuleFlaw> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let scheme = match scheme {
        "https" => Scheme::Https,
        "http" => Scheme::Http,
        other => {
            return Err(flaw(
                &format!("`{}` is no scheme that a rule can have", shown(other)),
                "write `https://` or `http://`, or `host:port` for any other protocol",
            ));
        }
    };
    let (authority, path) = match rest.find('/') {
        Some(at) => rest.split_at_checked(at).unwrap_or((rest, "")),
        None => (rest, ""),
    };
    let (hosts, port) = hosts_and_port(authority)?;
    let ports = match port {
        None => Ports::one(scheme.default_port().unwrap_or(443)),
        Some(port) => one_port(port)?,
    };
    let pattern = if path.is_empty() {
        PathPattern::any()
    } else {
        PathPattern::parse(path).map_err(|why| {
            flaw(
                &format!("the path `{}`: {why}", shown(path)),
                "write `/v1/items`, or `/v1/**` for all below",
            )
        })?
    };
    let matter = match (scheme, &methods, path) {
        (Scheme::Https, None, "") => Matter::Tls,
        (scheme, _, _) => Matter::Requests { scheme, methods, path: pattern },
    };
    Ok(Rule { hosts, ports, matter, binding: None })
}

/// `host`, `host:port`, `host:first-last`.
fn place(text: &str) -> Result<Rule, RuleFlaw> {
    let (hosts, port) = hosts_and_port(text)?;
    match port {
        None => Ok(Rule { hosts, ports: Ports::one(443), matter: Matter::Tls, binding: None }),
        Some(port) => {
            let ports = Ports::parse(port).ok_or_else(|| bad_port(port))?;
            Ok(Rule { hosts, ports, matter: Matter::Tcp, binding: None })
        }
    }
}

fn one_port(text: &str) -> Result<Ports, RuleFlaw> {
    identity::read_port(text).map(Ports::one).ok_or_else(|| bad_port(text))
}

fn bad_port(text: &str) -> RuleFlaw {
    flaw(
        &format!("`{}` is no port", shown(text)),
        "write a port from 1 to 65535, or a range such as `8000-8010`",
    )
}

fn hosts_and_port(text: &str) -> Result<(Pattern, Option<&str>), RuleFlaw> {
    let whole = || shown(text);
    if text.is_empty() {
        return Err(flaw("it names no host", "write a host, such as `api.example.com`"));
    }
    if text.chars().any(|c| "@\\?#%/".contains(c) || c.is_whitespace()) {
        return Err(flaw(
            &format!("`{}` is no host", whole()),
            "write `host`, `host:port` or a URL, without user, password or escapes",
        ));
    }
    let (host, port) = match text.rfind(':') {
        Some(at) if !text.ends_with(']') && !is_bare_v6(text) => {
            let (host, port) = text.split_at_checked(at).unwrap_or((text, ""));
            (host, Some(port.trim_start_matches(':')))
        }
        _ => (text, None),
    };
    hosts(host).map(|hosts| (hosts, port))
}

/// A host alone, or a wildcard.
pub(super) fn pattern(text: &str) -> Result<Pattern, RuleFlaw> {
    hosts(text)
}

fn is_bare_v6(text: &str) -> bool {
    text.parse::<std::net::Ipv6Addr>().is_ok()
}

fn hosts(text: &str) -> Result<Pattern, RuleFlaw> {
    if let Some(parent) = text.strip_prefix("*.") {
        let name = match Host::parse_written(parent) {
            Ok(Host::Name(name)) => name,
            Ok(Host::Address(_)) | Err(_) => return Err(bad_host(text, None)),
        };
        if is_public_suffix(name.as_str()) {
            return Err(flaw(
                &format!(
                    "`{}` is everybody's: names below `{name}` belong to whoever registers one",
                    shown(text)
                ),
                "name the domain below it",
            ));
        }
        return Ok(Pattern::Below(name));
    }
    if text.contains('*') {
        let remedy =
            "a wildcard stands at the front, as `*.example.com`; `--net proxy` opens every public host";
        return Err(flaw(&format!("`{}` has a wildcard elsewhere than at its front", shown(text)), remedy));
    }
    Host::parse_written(text).map(Pattern::Exactly).map_err(|why| bad_host(text, Some(why)))
}

fn bad_host(text: &str, why: Option<NameFlaw>) -> RuleFlaw {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    flaw(
        &format!("`{}` is no host{why}", shown(text)),
        "write a name such as `api.example.com`, or an address in its usual spelling",
    )
}

/// Whether names directly below are anybody's: it is a public suffix, or all that stands below it is one
/// (`*.ck`, and such as `*.compute.amazonaws.com`, are lines of the list of suffixes).
fn is_public_suffix(name: &str) -> bool {
    let is_suffix =
        |name: &str| psl::suffix(name.as_bytes()).is_none_or(|suffix| suffix.as_bytes() == name.as_bytes());
    // A label that no exception of the list can have, for it is too long to be registered.
    is_suffix(name) || is_suffix(&format!("{}.{name}", "x".repeat(63)))
}

/// What a rule with a secret is about: requests, over TLS.
fn inside(matter: Matter) -> Result<Matter, RuleFlaw> {
    match matter {
        Matter::Tls => {
            Ok(Matter::Requests { scheme: Scheme::Https, methods: None, path: PathPattern::any() })
        }
        matter @ (Matter::Requests { scheme: Scheme::Https, .. }
        | Matter::Git { scheme: Scheme::Https, .. }) => Ok(matter),
        Matter::Tcp | Matter::Requests { .. } | Matter::Git { .. } => {
            Err(flaw("a secret is used over TLS alone", "write the rule with `https://`"))
        }
    }
}

/// The rule that would allow a request, as a person would write it.
pub(super) fn that_would_allow(identity: &Identity, request: Option<(&str, &UrlPath)>) -> String {
    let bare = |identity: &Identity| match (identity.scheme, identity.port()) {
        (Scheme::Https, 443) => identity.host.to_string(),
        (Scheme::Https | Scheme::Http | Scheme::Tcp, _) => identity.to_string(),
    };
    match request {
        Some((method, path)) => {
            format!("{method} {}://{}{}", identity.scheme, identity.authority(), path.sent_path())
        }
        None => bare(identity),
    }
}

/// Reads an authority in a place where only a host and a port may stand.
pub(super) fn authority(text: &str) -> Result<(Host, u16), IdentityFlaw> {
    let (host, port) = identity::split_authority(text)?;
    Ok((Host::parse(host)?, port.ok_or(IdentityFlaw::Port)?))
}
