//! The rules, ready to be asked: the one place that says yes.

use super::address;
use super::clause::{Egress, Reach, is_metadata_name};
use super::decide::{Ask, Denial, Opening, Permit};
use super::host::{self, Host, Name, Pattern};
use super::identity::{Identity, Scheme};
use super::path::UrlPath;
use super::rule::Rule;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

/// An egress clause and its index.
#[derive(Debug)]
pub struct Table {
    egress: Egress,
    exact: HashMap<Host, Bucket>,
    below: HashMap<Name, Bucket>,
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

/// The rules of one host, those that are bound to a path by its first segment.
#[derive(Debug, Default)]
struct Bucket {
    any: Vec<usize>,
    by_segment: HashMap<Vec<u8>, Vec<usize>>,
}

// === impl Table ===

impl Table {
    /// Makes the index.
    pub fn new(egress: Egress) -> Self {
        let mut table = Self { exact: HashMap::new(), below: HashMap::new(), egress };
        for (place, rule) in table.egress.rules.iter().enumerate() {
            let bucket = match &rule.hosts {
                Pattern::Exactly(host) => table.exact.entry(host.clone()).or_default(),
                Pattern::Below(name) => table.below.entry(name.clone()).or_default(),
            };
            bucket.add(place, rule);
        }
        table
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
        public || self.buckets(&Host::Name(name.clone())).next().is_some()
    }

    /// What may be spoken with a place. A connection for which nothing is open is refused unread.
    pub fn opening(&self, host: &Host, port: u16) -> Opening {
        let mut opening = Opening::default();
        if self.egress.reach == Reach::Names {
            return opening;
        }
        for rule in self.rules_for(host, None).map(|(_, rule)| rule).filter(|rule| rule.ports.contains(port))
        {
            opening.tls |= rule.speaks(Scheme::Https);
            opening.open_tls |= rule.needs_inside();
            opening.http |= rule.speaks(Scheme::Http);
            opening.tcp |= rule.speaks(Scheme::Tcp);
        }
        if self.beyond_rules(host, port).is_some() {
            (opening.tls, opening.http, opening.tcp) = (true, true, true);
        }
        opening
    }

    /// The decision: pure and total. Of the rules that allow, one that uses a secret wins, then the first.
    pub fn decide(&self, ask: Ask<'_>) -> Result<Permit<'_>, Denial> {
        let Ask { identity, request } = ask;
        if self.egress.reach == Reach::Names {
            return Err(Denial::NamesOnly);
        }
        let path = request.map(|request| request.path);
        let mut best: Option<(bool, usize)> = None;
        for (place, rule) in self.rules_for(&identity.host, path) {
            let allows = rule.ports.contains(identity.port())
                && rule.speaks(identity.scheme)
                && match request {
                    None => rule.matter.passes_unread(),
                    Some(_)
                        if rule.matter.is_bound_to_path()
                            && path.is_some_and(|path| path.ambiguous().is_some()) =>
                    {
                        false
                    }
                    Some(request) => rule.matter.allows(request.method, request.path),
                };
            let rank = (rule.binding.is_none(), place);
            if allows && best.is_none_or(|best| rank < best) {
                best = Some(rank);
            }
        }
        if let Some((_, place)) = best {
            let binding = self.egress.rules.get(place).and_then(|rule| rule.binding.as_ref());
            return Ok(Permit { rule: RuleId::Rule(place), binding: binding.map(Cow::Borrowed) });
        }
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

    fn buckets<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = &'a Bucket> {
        let name = match host {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        };
        let parents = std::iter::successors(name.and_then(Name::parent), |name| host::parent(name));
        let below = parents.filter_map(|parent| self.below.get(parent));
        self.exact.get(host).into_iter().chain(below)
    }

    /// The rules about a host; with a path, only those that may allow it.
    fn rules_for<'a>(
        &'a self,
        host: &'a Host,
        path: Option<&'a UrlPath>,
    ) -> impl Iterator<Item = (usize, &'a Rule)> {
        let places = self.buckets(host).flat_map(move |bucket| bucket.places(path));
        places.filter_map(|place| Some((place, self.egress.rules.get(place)?)))
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
        let mut reason = match &identity.host {
            Host::Address(address) => match address::internal(*address) {
                Some(why) => Denial::Internal(*address, why),
                None => Denial::RawAddress,
            },
            Host::Name(_) => Denial::NoRule,
        };
        let mut depth = 0;
        for (_, rule) in self.rules_for(&identity.host, None) {
            let (deeper, why) = if !rule.ports.contains(identity.port()) {
                (1, Denial::Port)
            } else if !rule.speaks(identity.scheme) {
                (2, Denial::Scheme)
            } else {
                match request {
                    None => (3, Denial::NotInspected),
                    Some(request) => match request.path.ambiguous() {
                        Some(flaw) if rule.matter.is_bound_to_path() => (4, Denial::AmbiguousPath(flaw)),
                        Some(_) | None if rule.matter.allows_path(request.path) => (5, Denial::Method),
                        Some(_) | None => (3, Denial::Path),
                    },
                }
            };
            if deeper > depth {
                (depth, reason) = (deeper, why);
            }
        }
        reason
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

// === impl Bucket ===

impl Bucket {
    fn add(&mut self, place: usize, rule: &Rule) {
        match rule.matter.first_segment() {
            Some(segment) => self.by_segment.entry(segment.to_vec()).or_default().push(place),
            None => self.any.push(place),
        }
    }

    fn places<'a>(&'a self, path: Option<&'a UrlPath>) -> impl Iterator<Item = usize> + 'a {
        let bound: Box<dyn Iterator<Item = &Vec<usize>> + 'a> = match path {
            None => Box::new(self.by_segment.values()),
            Some(path) => {
                Box::new(path.segments().first().and_then(|first| self.by_segment.get(first)).into_iter())
            }
        };
        self.any.iter().chain(bound.flatten()).copied()
    }
}
