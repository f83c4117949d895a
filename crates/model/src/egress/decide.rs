//! What is asked, and the answer: a permit, or a denial with a closed reason.

use super::address::Internal;
use super::binding::Binding;
use super::clause::Counted;
use super::host::Host;
use super::identity::{Identity, Scheme};
use super::path::{PathFlaw, UrlPath};
use super::rule;
use super::table::RuleId;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

/// What is known of something before any byte of it leaves.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub identity: &'a Identity,
    /// `None` where bytes would pass unread.
    pub request: Option<Request<'a>>,
}

/// An HTTP request that was read.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'a str,
    pub path: &'a UrlPath,
}

/// Proof that one ask met one rule. Only [`super::Table::decide`] makes it; it can not be cloned.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Permit<'a> {
    pub(super) rule: RuleId,
    pub(super) binding: Option<Cow<'a, Binding>>,
}

/// What the rules want of connections to one place, before any byte was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Whether TLS may be spoken there at all, and whether it has to be opened.
    pub tls: bool,
    pub open_tls: bool,
    /// Whether HTTP in the clear may be.
    pub http: bool,
    /// Whether any other protocol may be.
    pub tcp: bool,
}

/// What opens an address that is not public, if anything does.
fn internal_remedy(identity: &Identity, address: IpAddr, why: Internal, rule: &str) -> String {
    let host = super::HOST_NAME;
    match (&identity.host, why) {
        (_, Internal::Loopback) => {
            format!("`--allow '{host}:{}'` opens that port of the host's own loopback", identity.port())
        }
        (Host::Address(_), Internal::Private | Internal::Shared) => rule.to_owned(),
        (Host::Name(name), Internal::Private | Internal::Shared) => {
            format!("`--resolve {name}={address}` opens that address to that name")
        }
        (
            _,
            Internal::Unspecified
            | Internal::LinkLocal
            | Internal::Metadata
            | Internal::Multicast
            | Internal::Broadcast
            | Internal::Reserved
            | Internal::Tunnel,
        ) => "no work needs that address".to_owned(),
    }
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial {
    /// Names resolve, and nothing connects (`--net dns`).
    NamesOnly,
    /// No rule names the host.
    NoRule,
    /// A rule names the host, with another port.
    Port,
    /// A rule names host and port, for another kind of connection.
    Scheme,
    /// A rule with a method, a path or a secret needs to look inside, and could not.
    NotInspected,
    Method,
    Path,
    AmbiguousPath(PathFlaw),
    /// An address that the sandbox did not get from a name.
    RawAddress,
    /// The name resolves to nothing that may be dialled.
    Internal(IpAddr, Internal),
    /// The host's own address.
    OwnAddress(IpAddr),
    /// TLS without a name in its handshake.
    NoServerName,
    /// A handshake that may hide the name that it is for (ECH).
    HiddenName,
    /// The handshake, the request or the proxy's target names another host.
    OtherName(String),
    /// A request that readers take in different ways, or that is none.
    Malformed(&'static str),
    /// A protocol that was asked for with an upgrade, and that no rule names.
    Upgrade(String),
    /// The client does not believe our certificate: the host is pinned, or its trust store is its own.
    NotOpened,
    /// A placeholder stands where its secret is not used.
    Placeholder {
        secret: String,
        place: String,
    },
    /// The secret can not be used.
    Secret {
        secret: String,
        why: String,
    },
    /// A run that is run again asks for what it did not ask for then, or in another way.
    NotOnTape,
    /// UDP, QUIC, ICMP: nothing but TCP leaves.
    Protocol(&'static str),
    Ceiling {
        of: Counted,
        most: u64,
    },
    /// What would happen could not be written down.
    Unrecorded,
}

// === impl Permit ===

impl Permit<'_> {
    /// Which line of the clause allowed it.
    pub fn rule(&self) -> RuleId {
        self.rule
    }

    /// The secret to use, and how.
    pub fn binding(&self) -> Option<&Binding> {
        self.binding.as_deref()
    }

    /// The same permit, apart from the table that it came from.
    pub fn into_owned(self) -> Permit<'static> {
        let binding = self.binding.map(|binding| Cow::Owned(binding.into_owned()));
        Permit { rule: self.rule, binding }
    }
}

// === impl Opening ===

impl Opening {
    /// Whether anything at all may be spoken.
    pub fn is_open(self) -> bool {
        self.tls || self.http || self.tcp
    }

    /// Whether connections of this kind may be made.
    pub(super) fn speaks(self, scheme: Scheme) -> bool {
        match scheme {
            Scheme::Https => self.tls,
            Scheme::Http => self.http,
            Scheme::Tcp => self.tcp,
        }
    }

    /// What either wants.
    pub(super) fn or(self, other: Self) -> Self {
        Self {
            tls: self.tls || other.tls,
            open_tls: self.open_tls || other.open_tls,
            http: self.http || other.http,
            tcp: self.tcp || other.tcp,
        }
    }
}

// === impl Denial ===

impl Denial {
    /// The stable word for it, in the record and in answers.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NamesOnly => "names_only",
            Self::NoRule => "no_rule",
            Self::Port => "port",
            Self::Scheme => "scheme",
            Self::NotInspected => "not_inspected",
            Self::Method => "method",
            Self::Path => "path",
            Self::AmbiguousPath(_) => "ambiguous_path",
            Self::RawAddress => "raw_address",
            Self::Internal(..) => "internal_address",
            Self::OwnAddress(_) => "own_address",
            Self::NoServerName => "no_server_name",
            Self::HiddenName => "hidden_name",
            Self::OtherName(_) => "other_name",
            Self::Malformed(_) => "malformed",
            Self::Upgrade(_) => "upgrade",
            Self::NotOpened => "not_opened",
            Self::NotOnTape => "not_on_tape",
            Self::Placeholder { .. } => "placeholder",
            Self::Secret { .. } => "secret",
            Self::Protocol(_) => "protocol",
            Self::Ceiling { .. } => "ceiling",
            Self::Unrecorded => "unrecorded",
        }
    }

    /// What would change the answer: the rule that would allow the same, or what to do instead.
    pub fn remedy(&self, identity: &Identity, request: Option<Request<'_>>) -> String {
        let request = request.map(|request| (request.method, request.path));
        let rule = || format!("`--allow '{}'` would allow it", rule::that_would_allow(identity, request));
        match self {
            Self::NamesOnly => "`--net allow` with a rule, in place of `--net dns`".to_owned(),
            Self::NoRule | Self::Port | Self::Scheme | Self::Method | Self::Path => rule(),
            Self::NotInspected | Self::NotOpened => {
                let whole = rule::that_would_allow(identity, None);
                format!("`--allow '{whole}'`, without method, path and secret, would let it pass unread")
            }
            Self::AmbiguousPath(_) => "send the path without dot segments and encoded slashes".to_owned(),
            Self::RawAddress => format!("dial it by its name, or {}", rule()),
            Self::Internal(address, why) => internal_remedy(identity, *address, *why, &rule()),
            Self::OwnAddress(_) => {
                format!(
                    "`--allow '{}:{}'` opens a port of the host's loopback",
                    super::HOST_NAME,
                    identity.port()
                )
            }
            Self::NoServerName => "use a client that sends the server's name".to_owned(),
            Self::HiddenName => {
                let place = format!("{}:{}", identity.host, identity.port());
                format!("switch ECH off in the client, or `--allow '{place}'` would allow any protocol there")
            }
            Self::OtherName(_) => "name the host that is dialled".to_owned(),
            Self::NotOnTape => "run it itself, with `--tape`, to have an answer for it".to_owned(),
            Self::Malformed(_) => "send a request that every reader takes in one way".to_owned(),
            Self::Upgrade(_) => {
                let place = format!("{}:{}", identity.host, identity.port());
                format!("`--allow '{place}'` would allow any protocol there")
            }
            Self::Placeholder { .. } => "send the placeholder only where its rule uses it".to_owned(),
            Self::Secret { .. } => "look at the secret's source".to_owned(),
            Self::Protocol(_) => "use TCP; clients fall back to it".to_owned(),
            Self::Ceiling { of, .. } => format!("`--net-limit {}=…` sets another ceiling", of.name()),
            Self::Unrecorded => "free space on the disk of the state folder".to_owned(),
        }
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NamesOnly => f.write_str("names resolve here, and nothing connects"),
            Self::NoRule => f.write_str("no rule names this host"),
            Self::Port => f.write_str("no rule names this port of the host"),
            Self::Scheme => f.write_str("the rule for this host and port is about another protocol"),
            Self::NotInspected => f.write_str("the rule needs to see the request, and could not"),
            Self::Method => f.write_str("no rule allows this method here"),
            Self::Path => f.write_str("no rule allows this path"),
            Self::AmbiguousPath(why) => why.fmt(f),
            Self::RawAddress => f.write_str("the address was not given by a name that a rule allows"),
            Self::Internal(address, why) => write!(f, "{address} is {why}"),
            Self::OwnAddress(address) => write!(f, "{address} is the host itself"),
            Self::NoServerName => f.write_str("the TLS handshake names no server"),
            Self::HiddenName => f.write_str("the TLS handshake may hide another name (ECH)"),
            Self::OtherName(name) => write!(f, "it names another host, `{}`", crate::text::shown(name)),
            Self::Malformed(why) => f.write_str(why),
            Self::Upgrade(to) => write!(f, "no rule allows the upgrade to `{}`", crate::text::shown(to)),
            Self::NotOnTape => f.write_str("nothing was kept of an answer to it, and a replay sends nothing"),
            Self::NotOpened => f.write_str("the client does not accept the certificate of this wall"),
            Self::Placeholder { secret, place } => {
                write!(f, "the placeholder of `{secret}` stands in {place}, where it is not used")
            }
            Self::Secret { secret, why } => write!(f, "the secret `{secret}` can not be used: {why}"),
            Self::Protocol(what) => write!(f, "{what} does not leave"),
            Self::Ceiling { of, most } => write!(f, "the ceiling of {most} {} is reached", of.name()),
            Self::Unrecorded => f.write_str("it could not be recorded"),
        }
    }
}

impl std::error::Error for Denial {}
