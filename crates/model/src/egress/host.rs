//! Names and hosts, in the one spelling that is compared.

use super::spelling;
use serde::{Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::net::IpAddr;

/// A host name: ASCII, lower case, no trailing dot, at most 253 bytes, labels of 1 to 63 bytes of
/// `a-z`, `0-9`, `-` and `_`. Its last label is not a number, so it is never an address in disguise.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<str>);

/// Why text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameFlaw {
    #[error("it is empty")]
    Empty,
    #[error("it is longer than 253 bytes")]
    Long,
    #[error("a part between dots is empty or longer than 63 bytes")]
    Label,
    #[error("it has a character that no host name has")]
    Character,
    #[error("it is an address in an odd spelling")]
    OddAddress,
}

/// One end of a connection: a name, or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(Name),
    /// Never an IPv4-mapped one.
    Address(IpAddr),
}

/// Which hosts a rule is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    Exactly(Host),
    /// Every name with one or more labels before this one.
    Below(Name),
}

// === impl Name ===

impl Name {
    /// Reads a name as it stands in a request, a handshake or a query: ASCII alone, and one trailing
    /// dot is the same name.
    pub fn parse(text: &str) -> Result<Self, NameFlaw> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(NameFlaw::Empty);
        }
        if text.len() > 253 {
            return Err(NameFlaw::Long);
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        for label in text.split('.') {
            if label.is_empty() || label.len() > 63 {
                return Err(NameFlaw::Label);
            }
            if !label.bytes().all(allowed) {
                return Err(NameFlaw::Character);
            }
        }
        if spelling::is_numeric(text) {
            return Err(NameFlaw::OddAddress);
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }

    /// Reads a name as a person writes it: letters beyond ASCII become their ASCII form.
    pub fn parse_written(text: &str) -> Result<Self, NameFlaw> {
        if text.is_ascii() {
            return Self::parse(text);
        }
        let ascii = idna::domain_to_ascii(text).map_err(|_| NameFlaw::Character)?;
        Self::parse(&ascii)
    }

    /// The name, in the spelling that is compared.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether `self` has one or more labels before `parent`.
    pub fn is_below(&self, parent: &Self) -> bool {
        self.0.strip_suffix(parent.as_str()).is_some_and(|front| front.ends_with('.'))
    }

    /// The name without its first label, while there is one.
    pub fn parent(&self) -> Option<&str> {
        parent(&self.0)
    }

    /// Whether it has the form of a name of the public network. Names of one label and those that a
    /// machine or its local network answers are not.
    pub fn is_public_form(&self) -> bool {
        const LOCAL: [&str; 12] = [
            "localhost",
            "local",
            "localdomain",
            "internal",
            "intranet",
            "private",
            "corp",
            "home",
            "lan",
            "onion",
            "invalid",
            "home.arpa",
        ];
        self.0.contains('.')
            && !LOCAL.iter().any(|local| {
                self.0.strip_suffix(local).is_some_and(|front| front.is_empty() || front.ends_with('.'))
            })
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

/// Equal names are equal text, and hash alike.
impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Name {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// What follows the first dot.
pub(super) fn parent(name: &str) -> Option<&str> {
    name.split_once('.').map(|(_, rest)| rest)
}

// === impl Host ===

impl Host {
    /// Reads a host as it stands in a request or a handshake: a name, an IPv4 address in its one
    /// canonical spelling, or an IPv6 address with or without brackets. No zone.
    pub fn parse(text: &str) -> Result<Self, NameFlaw> {
        Self::read(text, Name::parse)
    }

    /// Reads a host as a person writes it.
    pub fn parse_written(text: &str) -> Result<Self, NameFlaw> {
        Self::read(text, Name::parse_written)
    }

    /// An address, out of its mapped clothes.
    pub fn address(address: IpAddr) -> Self {
        Self::Address(super::address::plain(address))
    }

    fn read(text: &str, name: impl Fn(&str) -> Result<Name, NameFlaw>) -> Result<Self, NameFlaw> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if let Some(inner) = bare {
            let address: std::net::Ipv6Addr = inner.parse().map_err(|_| NameFlaw::OddAddress)?;
            return Ok(Self::address(IpAddr::V6(address)));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::address(address));
        }
        name(text).map(Self::Name)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl Serialize for Host {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl Pattern ===

impl Pattern {
    /// Whether the host is one of these.
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Exactly(pattern), host) => pattern == host,
            (Self::Below(parent), Host::Name(name)) => name.is_below(parent),
            (Self::Below(_), Host::Address(_)) => false,
        }
    }

    /// Whether every host of `other` is one of `self`'s.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (pattern, Self::Exactly(host)) => pattern.matches(host),
            (Self::Below(parent), Self::Below(child)) => parent == child || child.is_below(parent),
            (Self::Exactly(_), Self::Below(_)) => false,
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(host) => host.fmt(f),
            Self::Below(name) => write!(f, "*.{name}"),
        }
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
