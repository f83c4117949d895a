//! The rules by what they are about, so that a decision looks at those few that may concern it.
//!
//! ```text
//!  host (exactly │ below) ─► port (one │ range) ─┬─ rules that let bytes pass unread: the best alone
//!                                                └─ path, a segment a node ─► method ─► the best alone
//! ```
//!
//! It picks candidates; whether one allows a request is still the rule's own word.

use super::decide::{Ask, Opening, Request};
use super::host::{self, Host, Name, Pattern};
use super::identity::Scheme;
use super::method::Method;
use super::path::UrlPath;
use super::rule::{Matter, Ports, Rule};
use std::collections::HashMap;

/// Which of two rules that allow the same is taken, the smaller one: first those that use a secret, then by place.
type Rank = (bool, usize);

/// How near the nearest rule comes that does not allow an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Near {
    Host,
    Port,
    Scheme,
    /// A rule about that path, were it read in one way.
    Ambiguous,
    Path,
}

#[derive(Debug, Default)]
pub(super) struct Index {
    exact: HashMap<Host, Shelf>,
    below: HashMap<Name, Shelf>,
}

/// The rules about one host, or about all below one name.
#[derive(Debug, Default)]
struct Shelf {
    one: HashMap<u16, Drawer>,
    /// Ranges of ports, each once.
    ranges: Vec<(Ports, Drawer)>,
    /// Whether a rule of them uses a secret.
    secrets: bool,
}

/// Those about the same ports.
#[derive(Debug, Default)]
struct Drawer {
    opening: Opening,
    /// The kinds of connection for which a rule is bound to a path.
    bound: Vec<Scheme>,
    any_protocol: Option<Rank>,
    any_tls: Option<Rank>,
    paths: Node,
}

/// Those about paths that begin with the same segments.
#[derive(Debug, Default)]
struct Node {
    next: HashMap<Box<[u8]>, Self>,
    here: Vec<Alike>,
}

/// Those that differ in their methods and secrets alone, so that one of them stands for all.
#[derive(Debug)]
struct Alike {
    example: usize,
    any_method: Option<Rank>,
    methods: HashMap<Method, Rank>,
}

// === impl Index ===

impl Index {
    pub(super) fn new(rules: &[Rule]) -> Self {
        let mut index = Self::default();
        for (place, rule) in rules.iter().enumerate() {
            let shelf = match &rule.hosts {
                Pattern::Exactly(host) => index.exact.entry(host.clone()).or_default(),
                Pattern::Below(name) => index.below.entry(name.clone()).or_default(),
            };
            shelf.secrets |= rule.binding.is_some();
            shelf.drawer(&rule.ports).add(rules, place, rule);
        }
        index
    }

    /// Whether any rule is about the host.
    pub(super) fn knows(&self, host: &Host) -> bool {
        self.shelves(host).next().is_some()
    }

    /// Whether a rule about the host uses a secret.
    pub(super) fn gives_secrets(&self, host: &Host) -> bool {
        self.shelves(host).any(|shelf| shelf.secrets)
    }

    pub(super) fn opening(&self, host: &Host, port: u16) -> Opening {
        let drawers = self.shelves(host).flat_map(|shelf| shelf.drawers(port));
        drawers.fold(Opening::default(), |sum, drawer| sum.or(drawer.opening))
    }

    /// The place of the best rule that allows it.
    pub(super) fn best(&self, rules: &[Rule], ask: Ask<'_>) -> Option<usize> {
        let Ask { identity, request } = ask;
        let drawers = self.shelves(&identity.host).flat_map(|shelf| shelf.drawers(identity.port()));
        drawers
            .filter_map(|drawer| drawer.best(rules, identity.scheme, request))
            .min()
            .map(|(_, place)| place)
    }

    /// How near the rules come that do not allow it; `None` where none is about the host.
    pub(super) fn nearest(&self, rules: &[Rule], ask: Ask<'_>) -> Option<Near> {
        let Ask { identity, request } = ask;
        let of_shelf = |shelf: &Shelf| {
            let drawers = shelf.drawers(identity.port());
            drawers.map(|drawer| drawer.nearest(rules, identity.scheme, request)).max().unwrap_or(Near::Host)
        };
        self.shelves(&identity.host).map(of_shelf).max()
    }

    fn shelves<'a>(&'a self, host: &'a Host) -> impl Iterator<Item = &'a Shelf> {
        let name = match host {
            Host::Name(name) => Some(name),
            Host::Address(_) => None,
        };
        let parents = std::iter::successors(name.and_then(Name::parent), |name| host::parent(name));
        let below = parents.filter_map(|parent| self.below.get(parent));
        self.exact.get(host).into_iter().chain(below)
    }
}

// === impl Shelf ===

impl Shelf {
    fn drawer(&mut self, ports: &Ports) -> &mut Drawer {
        let first = *ports.range().start();
        if ports.is_only(first) {
            return self.one.entry(first).or_default();
        }
        let place = self.ranges.iter().position(|(own, _)| own == ports).unwrap_or(self.ranges.len());
        if place == self.ranges.len() {
            self.ranges.push((ports.clone(), Drawer::default()));
        }
        #[expect(clippy::indexing_slicing, reason = "found or pushed above")]
        &mut self.ranges[place].1
    }

    fn drawers(&self, port: u16) -> impl Iterator<Item = &Drawer> {
        let ranges = self.ranges.iter().filter(move |(ports, _)| ports.contains(port));
        self.one.get(&port).into_iter().chain(ranges.map(|(_, drawer)| drawer))
    }
}

// === impl Drawer ===

impl Drawer {
    fn add(&mut self, rules: &[Rule], place: usize, rule: &Rule) {
        self.opening = self.opening.or(Opening {
            tls: rule.speaks(Scheme::Https),
            open_tls: rule.needs_inside(),
            http: rule.speaks(Scheme::Http),
            tcp: rule.speaks(Scheme::Tcp),
        });
        let rank = (rule.binding.is_none(), place);
        match &rule.matter {
            Matter::Tcp => keep_best(&mut self.any_protocol, rank),
            Matter::Tls => keep_best(&mut self.any_tls, rank),
            Matter::Requests { scheme, .. } | Matter::Git { scheme, .. } => {
                if rule.matter.is_bound_to_path() && !self.bound.contains(scheme) {
                    self.bound.push(*scheme);
                }
                for front in rule.matter.fronts() {
                    self.paths.at(&front).add(rules, rank, rule);
                }
            }
        }
    }

    fn best(&self, rules: &[Rule], scheme: Scheme, request: Option<Request<'_>>) -> Option<Rank> {
        let tls = self.any_tls.filter(|_| scheme == Scheme::Https);
        let unread = self.any_protocol.into_iter().chain(tls).min();
        let Some(request) = request else { return unread };
        let read = self.paths.on_the_way(request.path).filter_map(|alike| {
            let rank = alike.best(request.method)?;
            let rule = rules.get(rank.1)?;
            let readable = request.path.ambiguous().is_none() || !rule.matter.is_bound_to_path();
            (readable && rule.speaks(scheme) && rule.matter.allows(request.method, request.path))
                .then_some(rank)
        });
        read.chain(unread).min()
    }

    fn nearest(&self, rules: &[Rule], scheme: Scheme, request: Option<Request<'_>>) -> Near {
        if !self.opening.speaks(scheme) {
            return Near::Port;
        }
        let Some(request) = request else { return Near::Scheme };
        let ambiguous = request.path.ambiguous().is_some();
        let mut examples = self.paths.on_the_way(request.path).filter_map(|alike| rules.get(alike.example));
        let is_about = |rule: &Rule| {
            let readable = !ambiguous || !rule.matter.is_bound_to_path();
            readable && rule.speaks(scheme) && rule.matter.allows_path(request.path)
        };
        if examples.any(is_about) {
            Near::Path
        } else if ambiguous && self.bound.contains(&scheme) {
            Near::Ambiguous
        } else {
            Near::Scheme
        }
    }
}

// === impl Node ===

impl Node {
    fn at(&mut self, segments: &[Vec<u8>]) -> &mut Self {
        segments.iter().fold(self, |node, segment| node.next.entry(segment.as_slice().into()).or_default())
    }

    fn add(&mut self, rules: &[Rule], rank: Rank, rule: &Rule) {
        let is_alike = |alike: &&mut Alike| {
            rules
                .get(alike.example)
                .is_some_and(|example| example.matter.differs_in_methods_alone(&rule.matter))
        };
        match self.here.iter_mut().find(is_alike) {
            Some(alike) => alike.add(rank, rule),
            None => {
                let mut alike = Alike { example: rank.1, any_method: None, methods: HashMap::new() };
                alike.add(rank, rule);
                self.here.push(alike);
            }
        }
    }

    /// What stands at each node along a path, the root included.
    fn on_the_way<'a>(&'a self, path: &'a UrlPath) -> impl Iterator<Item = &'a Alike> {
        let mut segments = path.segments().iter();
        let nodes = std::iter::successors(Some(self), move |node| node.next.get(segments.next()?.as_slice()));
        nodes.flat_map(|node| &node.here)
    }
}

// === impl Alike ===

impl Alike {
    fn add(&mut self, rank: Rank, rule: &Rule) {
        let Matter::Requests { methods: Some(methods), .. } = &rule.matter else {
            return keep_best(&mut self.any_method, rank);
        };
        for method in methods {
            let best = self.methods.entry(method.clone()).or_insert(rank);
            *best = rank.min(*best);
        }
    }

    fn best(&self, method: &str) -> Option<Rank> {
        self.any_method.into_iter().chain(self.methods.get(method).copied()).min()
    }
}

fn keep_best(best: &mut Option<Rank>, rank: Rank) {
    *best = Some(best.map_or(rank, |best| best.min(rank)));
}
