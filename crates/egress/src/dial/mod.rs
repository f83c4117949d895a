//! The way out: a name becomes addresses outside, the addresses are judged, and one of those that were
//! judged is dialled.
//!
//! **Invariant:** nothing is resolved that was not decided, and no address is dialled that
//! [`Table::reach`] did not give back.

mod hosts;
mod race;
mod resolve;
mod upstream;

#[cfg(test)]
mod tests;

pub(crate) use resolve::SystemLookup;

use crate::wall::{DialError, Dialled};
use fumehood_model::egress::address::bare;
use fumehood_model::egress::{Denial, Host, Identity, Name, Permit, RuleId, Table};
use fumehood_sys::socket;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A future on the one thread that there is.
pub(crate) type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// From the question to the last server that does not answer.
const RESOLVE_DEADLINE: Duration = Duration::from_secs(10);
/// Where an upstream proxy resolves too, our own question only finds out what is internal.
const LOOK_DEADLINE: Duration = Duration::from_secs(2);
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A connection on which nothing moves is asked after so long whether anybody is there, and how often.
const QUIET: Duration = Duration::from_secs(60);
const QUIET_PAUSE: Duration = Duration::from_secs(15);
const QUIET_TIMES: i32 = 4;

/// The world, as the dialler sees it: another one in tests.
pub(crate) trait World {
    /// All addresses of a name. An empty answer is [`DialError::NoSuchName`].
    fn lookup<'a>(&'a self, name: &'a Name) -> Local<'a, Result<Vec<IpAddr>, DialError>>;

    fn connect(&self, to: SocketAddr) -> Local<'static, io::Result<TcpStream>>;

    /// The addresses that are this machine's.
    fn own_addresses(&self) -> io::Result<Vec<IpAddr>>;
}

/// Makes connections to what was permitted.
pub(crate) struct Dialler {
    world: Box<dyn World>,
}

/// Nowhere: for a run that is run again.
#[derive(Debug)]
pub(crate) struct NoWorld;

/// The real one.
#[derive(Debug)]
pub(crate) struct SystemWorld {
    lookup: SystemLookup,
}

// === impl NoWorld ===

impl World for NoWorld {
    fn lookup<'a>(&'a self, _name: &'a Name) -> Local<'a, Result<Vec<IpAddr>, DialError>> {
        Box::pin(async { Err(DialError::Denied(Denial::NotOnTape)) })
    }

    fn connect(&self, _to: SocketAddr) -> Local<'static, io::Result<TcpStream>> {
        Box::pin(async { Err(io::ErrorKind::NetworkUnreachable.into()) })
    }

    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
}

// === impl Dialler ===

impl Dialler {
    pub(crate) fn new(world: Box<dyn World>) -> Self {
        Self { world }
    }

    pub(crate) async fn dial(
        &self,
        table: &Table,
        permit: &Permit<'_>,
        identity: &Identity,
    ) -> Result<Dialled, DialError> {
        if table.is_host(permit, identity) {
            return self.loopback(identity.port()).await;
        }
        if let Some(upstream) = &table.egress().upstream {
            self.may_pass_on(table, permit, identity).await?;
            let proxy = self.resolve(&upstream.host, RESOLVE_DEADLINE).await?;
            let (mut stream, _) = self.connect(&proxy, upstream.port).await?;
            upstream::tunnel(&mut stream, identity).await?;
            return Ok(Dialled { stream, address: None });
        }
        let resolved = self.resolve(&identity.host, RESOLVE_DEADLINE).await?;
        let good = self.judge(table, permit, identity, &resolved)?;
        let (stream, address) = self.connect(&good, identity.port()).await?;
        Ok(Dialled { stream, address: Some(address) })
    }

    /// A port of the host's own loopback, which a rule opened by its one name.
    async fn loopback(&self, port: u16) -> Result<Dialled, DialError> {
        let both = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        let (stream, address) = self.connect(&both, port).await?;
        Ok(Dialled { stream, address: Some(address) })
    }

    /// Whether an upstream proxy may be asked: not for what is internal, as far as can be seen from here.
    async fn may_pass_on(
        &self,
        table: &Table,
        permit: &Permit<'_>,
        identity: &Identity,
    ) -> Result<(), DialError> {
        match self.resolve(&identity.host, LOOK_DEADLINE).await {
            Ok(resolved) => self.judge(table, permit, identity, &resolved).map(drop).map_err(DialError::from),
            Err(DialError::NoSuchName | DialError::Resolver(_)) => Ok(()),
            Err(error @ (DialError::Denied(_) | DialError::Unreachable(_) | DialError::Upstream(_))) => {
                Err(error)
            }
        }
    }

    async fn resolve(&self, host: &Host, deadline: Duration) -> Result<Vec<IpAddr>, DialError> {
        match host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => match timeout(deadline, self.world.lookup(name)).await {
                Ok(Ok(found)) if found.is_empty() => Err(DialError::NoSuchName),
                Ok(found) => found,
                Err(_) => Err(DialError::Resolver(format!("no answer in {} s", deadline.as_secs()))),
            },
        }
    }

    /// Those of the addresses that may be dialled.
    fn judge(
        &self,
        table: &Table,
        permit: &Permit<'_>,
        identity: &Identity,
        resolved: &[IpAddr],
    ) -> Result<Vec<IpAddr>, Denial> {
        let mut good = table.reach(permit, identity, resolved)?;
        // An address of ours is opened by that address alone, not by a range that happens to hold it.
        let named = match permit.rule() {
            RuleId::Rule(_) => true,
            RuleId::Range(place) => {
                table.egress().ranges.get(place).is_some_and(|opened| opened.range.is_one())
            }
            RuleId::Public => false,
        };
        if named && matches!(&identity.host, Host::Address(_)) {
            return Ok(good);
        }
        // Where it can not be known which addresses are ours, none may be dialled.
        let first = good.first().copied();
        let Ok(own) = self.world.own_addresses() else {
            return Err(first.map_or(Denial::RawAddress, Denial::OwnAddress));
        };
        let mut refused = None;
        good.retain(|address| {
            let ours = own.iter().any(|own| bare(*own) == bare(*address));
            if ours {
                refused.get_or_insert(*address);
            }
            !ours
        });
        match (good.is_empty(), refused) {
            (true, Some(address)) => Err(Denial::OwnAddress(address)),
            (true | false, _) => Ok(good),
        }
    }

    async fn connect(&self, to: &[IpAddr], port: u16) -> Result<(TcpStream, IpAddr), DialError> {
        let connect = |address| self.world.connect(SocketAddr::new(address, port));
        match timeout(CONNECT_DEADLINE, race::race(to, connect)).await {
            Ok(result) => result.map_err(DialError::Unreachable),
            Err(_) => Err(DialError::Unreachable(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl fmt::Debug for Dialler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dialler").finish_non_exhaustive()
    }
}

// === impl SystemWorld ===

impl SystemWorld {
    pub(crate) fn new(lookup: SystemLookup) -> Self {
        Self { lookup }
    }
}

impl World for SystemWorld {
    fn lookup<'a>(&'a self, name: &'a Name) -> Local<'a, Result<Vec<IpAddr>, DialError>> {
        Box::pin(self.lookup.addresses(name))
    }

    fn connect(&self, to: SocketAddr) -> Local<'static, io::Result<TcpStream>> {
        Box::pin(async move {
            let tcp = match to {
                SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4(),
                SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6(),
            }?;
            // A peer that vanished is noticed also where nobody speaks.
            socket::watch_quiet(tcp.as_fd(), QUIET, QUIET_PAUSE, QUIET_TIMES)?;
            tcp.set_nodelay(true)?;
            tcp.connect(to).await
        })
    }

    fn own_addresses(&self) -> io::Result<Vec<IpAddr>> {
        fumehood_sys::interfaces::addresses()
    }
}

// === impl DialError ===

impl From<Denial> for DialError {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}
