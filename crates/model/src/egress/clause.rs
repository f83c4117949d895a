//! The network clause, checked: everything that the wall needs to know.

use super::address;
use super::host::{Host, Name, Pattern};
use super::range::Range;
use super::rule::{self, Ports, Rule, RuleFlaw};
use crate::quantity;
use crate::text::shown;
use serde::Serialize;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// What may leave. Rules only allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Egress {
    pub reach: Reach,
    pub rules: Vec<Rule>,
    /// Address ranges that may be dialled as addresses.
    pub ranges: Vec<Opened>,
    /// Names that may resolve into a private range.
    pub resolutions: Vec<Resolution>,
    pub ceilings: Vec<Ceiling>,
    pub upstream: Option<Upstream>,
    /// Further authorities that certify certain hosts.
    pub authorities: Vec<Authority>,
}

/// How far it reaches beyond the rules. Ordered: a later one contains the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// Public names resolve inside; nothing connects.
    Names,
    /// What the rules name.
    Rules,
    /// Every public destination, recorded.
    Public,
}

/// A range that may be dialled, on these ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Opened {
    pub range: Range,
    pub ports: Ports,
}

/// A name, and the private range that it may resolve into.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolution {
    pub hosts: Pattern,
    pub range: Range,
}

/// One ceiling on what leaves, for the life of a sandbox and of all that descends from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Ceiling {
    pub of: Counted,
    /// `None`: all hosts together. Else: each host that matches, by itself.
    pub hosts: Option<Pattern>,
    pub most: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    BytesOut,
    BytesIn,
    /// Requests, or connections that are not HTTP.
    Requests,
    /// Connections at the same time.
    Connections,
    /// Requests in a minute.
    PerMinute,
}

/// A proxy that everything goes through: plain HTTP to it, CONNECT through it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Upstream {
    pub host: Host,
    pub port: u16,
}

/// A certificate authority, as a file of the host, that is believed for these hosts alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Authority {
    pub hosts: Pattern,
    pub file: PathBuf,
}

/// A port of the host's loopback that leads to one inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Publish {
    pub host_port: u16,
    pub port: u16,
}

// === impl Reach ===

impl Reach {
    /// The word used for it everywhere (`--net`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Names => "dns",
            Self::Rules => "allow",
            Self::Public => "proxy",
        }
    }
}

// === impl Opened ===

impl Opened {
    /// Reads `10.1.0.0/16:5432` or `[fd12::/32]:8000-8010`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        const REMEDY: &str = "write a range and a port, such as `10.1.0.0/16:5432` or `[fd12::/32]:5432`";
        let whole = || shown(text);
        let (range, ports) =
            text.rsplit_once(':').ok_or_else(|| flaw(format!("`{}` names no port", whole()), REMEDY))?;
        let range = range.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(range);
        let range = Range::parse(range).map_err(|why| flaw(format!("`{}`: {why}", whole()), REMEDY))?;
        let ports =
            Ports::parse(ports).ok_or_else(|| flaw(format!("`{}` names no port", whole()), REMEDY))?;
        Ok(Self { range, ports })
    }

    /// Whether this address may be dialled: a range opens private networks, and never loopback,
    /// link-local or metadata addresses, unless it is that one address.
    pub fn opens(&self, address: IpAddr, port: u16) -> bool {
        let allowed = self.range.is_one()
            || address::internal(address).is_none_or(|why| !why.is_never_opened_by_range());
        self.range.contains(address) && self.ports.contains(port) && allowed
    }

    /// Whether `self` opens all that `other` does.
    pub fn covers(&self, other: &Self) -> bool {
        self.range.covers(&other.range) && self.ports.covers(&other.ports)
    }
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}]:{}", self.range, self.ports)
    }
}

// === impl Resolution ===

impl Resolution {
    /// Reads `host=CIDR`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        const REMEDY: &str = "write `db.example.com=10.1.0.0/16`";
        let whole = || shown(text);
        let (hosts, range) =
            text.split_once('=').ok_or_else(|| flaw(format!("`{}` names no range", whole()), REMEDY))?;
        let hosts = rule::pattern(hosts)?;
        let range = Range::parse(range).map_err(|why| flaw(format!("`{}`: {why}", whole()), REMEDY))?;
        Ok(Self { hosts, range })
    }

    /// Whether the host may have this address. Never loopback, link-local or metadata.
    pub fn opens(&self, host: &Host, address: IpAddr) -> bool {
        let allowed = address::internal(address).is_none_or(|why| !why.is_never_opened_by_range());
        self.hosts.matches(host) && self.range.contains(address) && allowed
    }

    /// Whether `self` opens all that `other` does.
    pub fn covers(&self, other: &Self) -> bool {
        self.hosts.covers(&other.hosts) && self.range.covers(&other.range)
    }
}

// === impl Counted ===

impl Counted {
    /// Everything that is counted.
    pub const ALL: [Self; 5] =
        [Self::BytesOut, Self::BytesIn, Self::Requests, Self::Connections, Self::PerMinute];

    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BytesOut => "bytes-out",
            Self::BytesIn => "bytes-in",
            Self::Requests => "requests",
            Self::Connections => "connections",
            Self::PerMinute => "per-minute",
        }
    }

    /// What holds where nothing was written.
    pub const fn default(self) -> u64 {
        match self {
            Self::BytesOut => 10 << 30,
            Self::BytesIn => 1 << 40,
            Self::Requests => 1_000_000,
            Self::Connections => 1_024,
            Self::PerMinute => 60_000,
        }
    }
}

// === impl Ceiling ===

impl Ceiling {
    /// Reads `bytes-out=10MiB` or `requests@api.example.com=100`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        const REMEDY: &str = "write `bytes-out=10MiB`, `bytes-in=…`, `requests=100`, `connections=…` or `per-minute=…`, with `@host` for each host by itself";
        let whole = || shown(text);
        let (what, most) =
            text.split_once('=').ok_or_else(|| flaw(format!("`{}` names no ceiling", whole()), REMEDY))?;
        let (of, hosts) = match what.split_once('@') {
            Some((of, hosts)) => (of, Some(rule::pattern(hosts)?)),
            None => (what, None),
        };
        let of = Counted::ALL.into_iter().find(|counted| counted.name() == of);
        let of = of.ok_or_else(|| flaw(format!("`{}` names nothing that is counted", whole()), REMEDY))?;
        let amount = match of {
            Counted::BytesOut | Counted::BytesIn => quantity::bytes(most).ok(),
            Counted::Requests | Counted::Connections | Counted::PerMinute => {
                most.bytes().all(|byte| byte.is_ascii_digit()).then(|| most.parse().ok()).flatten()
            }
        };
        let most = amount.ok_or_else(|| flaw(format!("`{}` names no amount", whole()), REMEDY))?;
        Ok(Self { of, hosts, most })
    }
}

// === impl Upstream ===

impl Upstream {
    /// Reads `http://proxy.example.com:3128`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        const REMEDY: &str = "write `http://proxy.example.com:3128`";
        let rest = text.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let named = rest.and_then(|rest| rule::authority(rest).ok());
        let (host, port) =
            named.ok_or_else(|| flaw(format!("`{}` is no proxy that can be used", shown(text)), REMEDY))?;
        Ok(Self { host, port })
    }
}

// === impl Authority ===

impl Authority {
    /// Reads `host=/path/to/ca.pem`; relative files stay relative.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        const REMEDY: &str = "write `api.example.com=/etc/company/ca.pem`";
        match text.split_once('=') {
            Some((hosts, file)) if !file.is_empty() => {
                Ok(Self { hosts: rule::pattern(hosts)?, file: PathBuf::from(file) })
            }
            Some(_) | None => Err(flaw(format!("`{}` names no file", shown(text)), REMEDY)),
        }
    }
}

// === impl Publish ===

impl Publish {
    /// Reads `8080`, or `HOST_PORT:PORT`.
    pub fn parse(text: &str) -> Result<Self, RuleFlaw> {
        let (host_port, port) = text.split_once(':').unwrap_or((text, text));
        let (host_port, port) = (super::identity::read_port(host_port), super::identity::read_port(port));
        match (host_port, port) {
            (Some(host_port), Some(port)) => Ok(Self { host_port, port }),
            (Some(_) | None, _) => Err(flaw(
                format!("`{}` is no port", shown(text)),
                "write `8080`, or `9000:8080` for another port of the host",
            )),
        }
    }
}

/// Names of cloud metadata services. Refused wherever public names are answered.
pub(super) fn is_metadata_name(name: &Name) -> bool {
    [
        "metadata.google.internal",
        "metadata",
        "instance-data",
        "instance-data.ec2.internal",
        "metadata.azure.internal",
    ]
    .contains(&name.as_str())
}

fn flaw(what: String, remedy: &'static str) -> RuleFlaw {
    RuleFlaw { what, remedy }
}
