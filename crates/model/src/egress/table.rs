//! The rules, ready to be asked: the one place that says yes.
//!
//! What it says is defined rule by rule in the tests (`oracle.rs`); the index here gives the same answer sooner.

use super::address;
use super::clause::{Egress, Reach, is_metadata_name};
use super::decide::{Ask, Denial, Opening, Permit};
use super::host::{Host, Name, Pattern};
use super::identity::Identity;
use super::index::{Index, Near};
use super::rule::Rule;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

/// An egress clause and its index.
#[derive(Debug)]
pub struct Table {
    egress: Egress,
    index: Index,
    /// Whether all TLS is opened, for what is inside to be kept.
    opens_all: bool,
}

/// Which line of the clause allowed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleId {
    /// By its place among the rules, from 0.
    Rule(usize),
    /// By its place among the opened ranges.
    Range(usize),
    /// `--net proxy`.
    Public,
}

// === impl Table ===

impl Table {
    /// Makes the index.
    pub fn new(egress: Egress) -> Self {
        Self { index: Index::new(&egress.rules), egress, opens_all: false }
    }

    /// The same rules; TLS is opened wherever it may be spoken.
    #[must_use]
    pub fn opening_all(mut self, opens_all: bool) -> Self {
        self.opens_all = opens_all;
        self
    }

    /// Other rules, read in the same way.
    #[must_use]
    pub fn with(&self, egress: Egress) -> Self {
        Self::new(egress).opening_all(self.opens_all)
    }

    /// The clause that it was made of.
    pub fn egress(&self) -> &Egress {
        &self.egress
    }

    /// Whether the resolver inside gives this name an address.
    pub fn answers(&self, name: &Name) -> bool {
        let public = match self.egress.reach {
            Reach::Names | Reach::Public => name.is_public_form() && !is_metadata_name(name),
            Reach::Rules => false,
        };
        public || self.index.knows(&Host::Name(name.clone()))
    }

    /// Whether any rule about the host puts a secret into requests to it, so that it may send one back.
    pub fn gives_secrets(&self, host: &Host) -> bool {
        self.index.gives_secrets(host)
    }

    /// What may be spoken with a place. A connection for which nothing is open is refused unread.
    pub fn opening(&self, host: &Host, port: u16) -> Opening {
        if self.egress.reach == Reach::Names {
            return Opening::default();
        }
        let mut opening = self.index.opening(host, port);
        if self.beyond_rules(host, port).is_some() {
            (opening.tls, opening.http, opening.tcp) = (true, true, true);
        }
        opening.open_tls |= self.opens_all && opening.tls;
        opening
    }

    /// The decision: pure and total. Of the rules that allow, one that uses a secret wins, then the first.
    pub fn decide(&self, ask: Ask<'_>) -> Result<Permit<'_>, Denial> {
        if self.egress.reach == Reach::Names {
            return Err(Denial::NamesOnly);
        }
        let rules = &self.egress.rules;
        if let Some(place) = self.index.best(rules, ask) {
            let binding = rules.get(place).and_then(|rule| rule.binding.as_ref());
            return Ok(Permit { rule: RuleId::Rule(place), binding: binding.map(Cow::Borrowed) });
        }
        let identity = ask.identity;
        match self.beyond_rules(&identity.host, identity.port()) {
            Some(rule) => Ok(Permit { rule, binding: None }),
            None => Err(self.why_not(ask)),
        }
    }

    /// Which of a host's addresses may be dialled for a permit: the public ones, and those that a
    /// rule names or a range was opened to. The others are dropped; if none is left, that is a denial.
    pub fn reach(
        &self,
        permit: &Permit<'_>,
        identity: &Identity,
        resolved: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Denial> {
        let named = |address: IpAddr| match (&identity.host, permit.rule) {
            (Host::Address(own), RuleId::Rule(_) | RuleId::Range(_)) => *own == address,
            (Host::Address(_) | Host::Name(_), _) => false,
        };
        let opened = |address: IpAddr| {
            self.egress.resolutions.iter().any(|resolution| resolution.opens(&identity.host, address))
        };
        let mut refused = None;
        let mut good = Vec::with_capacity(resolved.len());
        for address in resolved.iter().copied().map(address::plain) {
            match address::internal(address) {
                Some(why) if !named(address) && !opened(address) => {
                    refused.get_or_insert(Denial::Internal(address, why));
                }
                Some(_) | None => good.push(address),
            }
        }
        match (good.is_empty(), refused) {
            (true, Some(denial)) => Err(denial),
            (true | false, _) => Ok(good),
        }
    }

    /// Whether what was permitted is a port of the host's own loopback: by a rule of that very name.
    pub fn is_host(&self, permit: &Permit<'_>, identity: &Identity) -> bool {
        let RuleId::Rule(place) = permit.rule else { return false };
        let named = matches!(&identity.host, Host::Name(name) if name.as_str() == super::HOST_NAME);
        let exact = |rule: &Rule| matches!(rule.hosts, Pattern::Exactly(_));
        named && self.egress.rules.get(place).is_some_and(exact)
    }

    /// The rule's text, for the record.
    pub fn show(&self, rule: RuleId) -> String {
        match rule {
            RuleId::Rule(place) => self.egress.rules.get(place).map_or_else(String::new, Rule::to_string),
            RuleId::Range(place) => self
                .egress
                .ranges
                .get(place)
                .map_or_else(String::new, |range| format!("--allow-cidr {range}")),
            RuleId::Public => "--net proxy".to_owned(),
        }
    }

    /// What allows a place without a rule about it.
    fn beyond_rules(&self, host: &Host, port: u16) -> Option<RuleId> {
        if let Host::Address(address) = host {
            let place = self.egress.ranges.iter().position(|range| range.opens(*address, port));
            if let Some(place) = place {
                return Some(RuleId::Range(place));
            }
        }
        let public = match host {
            Host::Address(address) => address::internal(*address).is_none(),
            Host::Name(name) => name.is_public_form() && !is_metadata_name(name),
        };
        (self.egress.reach == Reach::Public && public).then_some(RuleId::Public)
    }

    /// The nearest reason: the last thing in which the closest rule differs.
    fn why_not(&self, ask: Ask<'_>) -> Denial {
        let Ask { identity, request } = ask;
        let flaw = request.and_then(|request| request.path.ambiguous());
        match (self.index.nearest(&self.egress.rules, ask), &identity.host) {
            (None, Host::Name(_)) => Denial::NoRule,
            (None, Host::Address(address)) => match address::internal(*address) {
                Some(why) => Denial::Internal(*address, why),
                None => Denial::RawAddress,
            },
            (Some(Near::Host), _) => Denial::Port,
            (Some(Near::Port), _) => Denial::Scheme,
            (Some(Near::Scheme), _) if request.is_none() => Denial::NotInspected,
            (Some(Near::Scheme), _) => Denial::Path,
            (Some(Near::Ambiguous), _) => flaw.map_or(Denial::Path, Denial::AmbiguousPath),
            (Some(Near::Path), _) => Denial::Method,
        }
    }
}

// === impl RuleId ===

impl fmt::Display for RuleId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(place) => write!(f, "allow[{place}]"),
            Self::Range(place) => write!(f, "allow-cidr[{place}]"),
            Self::Public => f.write_str("net"),
        }
    }
}
