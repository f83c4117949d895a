//! Real names, resolved as the host does: its list of names, then the servers of its `/etc/resolv.conf`.

use super::hosts;
use crate::wall::DialError;
use fumehood_model::egress::Name;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{LookupIpStrategy, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::system_conf;
use std::cell::RefCell;
use std::fs;
use std::net::IpAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How often it is looked whether the host's settings are others now: a laptop changes its network.
const FRESH: Duration = Duration::from_secs(2);
/// Answers that are kept, each as long as it says itself.
const CACHED_ANSWERS: u64 = 1024;
/// A list of names that is longer is not read.
const MOST_LIST_BYTES: u64 = 4 << 20;

/// The host's way of resolving names.
#[derive(Debug)]
pub(crate) struct SystemLookup {
    resolv_conf: PathBuf,
    hosts: PathBuf,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    looked: Option<Instant>,
    settings: Vec<u8>,
    list: Rc<str>,
    resolver: Option<Rc<TokioResolver>>,
}

// === impl SystemLookup ===

impl SystemLookup {
    /// Reads both files, again whenever they have changed.
    pub(crate) fn new(resolv_conf: PathBuf, hosts: PathBuf) -> Self {
        Self { resolv_conf, hosts, state: RefCell::default() }
    }

    /// All addresses of a name.
    pub(crate) async fn addresses(&self, name: &Name) -> Result<Vec<IpAddr>, DialError> {
        let (list, resolver) = self.fresh()?;
        let listed = hosts::addresses(&list, name);
        if !listed.is_empty() {
            return Ok(listed);
        }
        let resolver = resolver.ok_or_else(|| {
            DialError::Resolver(format!("`{}` names no server", self.resolv_conf.display()))
        })?;
        ask(&resolver, name).await
    }

    fn fresh(&self) -> Result<(Rc<str>, Option<Rc<TokioResolver>>), DialError> {
        let mut state = self.state.borrow_mut();
        if state.looked.is_none_or(|looked| looked.elapsed() > FRESH) {
            let unreadable = |error: std::io::Error| DialError::Resolver(error.to_string());
            let settings = fs::read(&self.resolv_conf).unwrap_or_default();
            if state.resolver.is_none() || settings != state.settings {
                state.resolver = read(&settings).map_err(DialError::Resolver)?.map(Rc::new);
                state.settings = settings;
            }
            let short = fs::metadata(&self.hosts).is_ok_and(|file| file.len() <= MOST_LIST_BYTES);
            let list = if short { fs::read(&self.hosts).map_err(unreadable)? } else { Vec::new() };
            state.list = String::from_utf8_lossy(&list).into();
            state.looked = Some(Instant::now());
        }
        Ok((state.list.clone(), state.resolver.clone()))
    }
}

/// All addresses that the servers know.
pub(super) async fn ask(resolver: &TokioResolver, name: &Name) -> Result<Vec<IpAddr>, DialError> {
    // A name with dots is whole; only one of a single label is looked for in the host's own domains.
    let dot = if name.as_str().contains('.') { "." } else { "" };
    // As it is: a reading by the rules for written names refuses the `_` that names of services and buckets have.
    let asked = hickory_resolver::proto::rr::Name::from_ascii(format!("{name}{dot}"));
    let asked = asked.map_err(|error| DialError::Resolver(error.to_string()))?;
    match resolver.lookup_ip(asked).await {
        Ok(found) => Ok(found.iter().collect()),
        Err(error) if error.is_no_records_found() => Err(DialError::NoSuchName),
        Err(error) => Err(DialError::Resolver(error.to_string())),
    }
}

/// `None` where the settings name no server.
fn read(settings: &[u8]) -> Result<Option<TokioResolver>, String> {
    match system_conf::parse_resolv_conf(settings) {
        Ok((config, options)) => resolver(config, options).map(Some),
        Err(_) => Ok(None),
    }
}

pub(super) fn resolver(config: ResolverConfig, options: ResolverOpts) -> Result<TokioResolver, String> {
    let mut builder =
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default()).with_options(options);
    let options = builder.options_mut();
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    options.use_hosts_file = ResolveHosts::Never;
    options.cache_size = CACHED_ANSWERS;
    builder.build().map_err(|error| error.to_string())
}
