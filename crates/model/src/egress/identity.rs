//! The one identity of a connection.

use super::host::{Host, NameFlaw};
use serde::{Serialize, Serializer};
use std::fmt;

/// What is spoken on a connection, as its first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// TLS, whatever is inside.
    Https,
    /// HTTP in the clear.
    Http,
    /// Any other TCP protocol.
    Tcp,
}

/// Who is spoken to, and how: judged, dialled, certified, injected for and recorded as this value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    pub scheme: Scheme,
    pub host: Host,
    /// Never 0.
    port: u16,
}

/// Why an authority (`host:port`) names nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityFlaw {
    #[error("the host is no host: {0}")]
    Host(#[from] NameFlaw),
    #[error("the port is no port")]
    Port,
    #[error("there is something before or after the host that does not belong there")]
    Form,
}

// === impl Scheme ===

impl Scheme {
    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
            Self::Tcp => "tcp",
        }
    }

    /// The port that an authority without one means.
    pub const fn default_port(self) -> Option<u16> {
        match self {
            Self::Https => Some(443),
            Self::Http => Some(80),
            Self::Tcp => None,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Scheme {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

// === impl Identity ===

impl Identity {
    /// `None` for port 0.
    pub fn new(scheme: Scheme, host: Host, port: u16) -> Option<Self> {
        (port != 0).then_some(Self { scheme, host, port })
    }

    /// Reads what stands in a `Host` header, an `:authority` or a CONNECT request.
    pub fn from_authority(scheme: Scheme, authority: &str) -> Result<Self, IdentityFlaw> {
        let (host, port) = split_authority(authority)?;
        let host = Host::parse(host)?;
        let port = match port {
            Some(port) => port,
            None => scheme.default_port().ok_or(IdentityFlaw::Port)?,
        };
        Self::new(scheme, host, port).ok_or(IdentityFlaw::Port)
    }

    /// The port, never 0.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The same place, spoken to in another way.
    #[must_use]
    pub fn with_scheme(&self, scheme: Scheme) -> Self {
        Self { scheme, ..self.clone() }
    }

    /// Whether an authority that a client wrote names this place.
    pub fn is_named_by(&self, authority: &str) -> bool {
        Self::from_authority(self.scheme, authority).is_ok_and(|named| named == *self)
    }

    /// `host`, with the port where it is not the scheme's own: what is sent as `Host`.
    pub fn authority(&self) -> String {
        if self.scheme.default_port() == Some(self.port) {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Https | Scheme::Http => write!(f, "{}://{}", self.scheme, self.authority()),
            Scheme::Tcp => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Takes `host:port` apart. Userinfo, paths and the like are refused, and so is a bare IPv6 address.
pub(super) fn split_authority(text: &str) -> Result<(&str, Option<u16>), IdentityFlaw> {
    if text.bytes().any(|byte| b"@/\\?#%".contains(&byte) || byte <= b' ' || byte >= 0x7f) {
        return Err(IdentityFlaw::Form);
    }
    split_port(text)
}

/// `host:port` or `host`, with an IPv6 address in brackets.
pub(super) fn split_port(text: &str) -> Result<(&str, Option<u16>), IdentityFlaw> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let end = rest.find(']').ok_or(IdentityFlaw::Form)?;
            // The brackets stay with the host.
            let (host, after) = text.split_at_checked(end + 2).ok_or(IdentityFlaw::Form)?;
            match (after.is_empty(), after.strip_prefix(':')) {
                (true, _) => (host, None),
                (false, Some(port)) => (host, Some(port)),
                (false, None) => return Err(IdentityFlaw::Form),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    match port {
        None => Ok((host, None)),
        Some(port) => read_port(port).map(|port| (host, Some(port))).ok_or(IdentityFlaw::Port),
    }
}

/// A port from 1 to 65535, in digits alone.
pub(super) fn read_port(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten().filter(|port| *port != 0)
}
