//! The gate: the process that speaks for a sandbox to the world.

use super::confined::{self, Role};
use fumehood_backend::gateway::Gateway;
use fumehood_egress::record::Intake;
use fumehood_egress::sockets::{Attempt, Observer, Sockets, Transport};
use fumehood_sys::{observer, process, socket};
use fumehood_vault::secret::Secret;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

/// What a process that speaks to the world reads of the host's files: how names are resolved, and whose
/// certificates are believed.
pub(super) const READABLE: [&str; 6] = [
    "/etc",
    "/usr/share",
    "/usr/lib/ssl",
    "/usr/local/share",
    "/run/systemd/resolve",
    "/var/lib/ca-certificates",
];

/// What a gate is made of, before there is one.
#[derive(Debug)]
pub(crate) struct Gate {
    gateway: Gateway,
    config: fumehood_egress::Config,
}

// === impl Gate ===

impl Gate {
    pub(crate) fn new(gateway: Gateway, config: fumehood_egress::Config) -> Self {
        Self { gateway, config }
    }

    /// Puts a newer value in, before there is a process.
    pub(crate) fn renew(&mut self, secret: Secret) {
        // It was declared, so there is one of its name.
        let _ = self.config.vault.renew(secret);
    }

    /// Every socket on which the sandbox can be heard.
    pub(crate) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let Gateway { listeners, any, names_udp, names_tcp, proxy, observer } = &self.gateway;
        let fixed = [names_udp, names_tcp, proxy, observer].into_iter().map(OwnedFd::as_fd);
        let listeners = listeners.iter().map(|(_, listener)| listener.as_fd());
        fixed.chain(listeners).chain(any.iter().map(OwnedFd::as_fd))
    }

    /// Starts the process. Our copies of the sockets are closed, so that with it they are gone.
    ///
    /// Preconditions: this process has one thread.
    pub(crate) fn open(self) -> io::Result<(Intake, OwnedFd)> {
        let (ours, theirs) = socket::pair()?;
        process::set_nonblocking(&ours, true)?;
        let mut kept: Vec<_> = self.sockets().map(|socket| socket.as_raw_fd()).collect();
        kept.push(theirs.as_raw_fd());
        kept.extend(self.config.tape.file().map(|file| file.as_raw_fd()));
        let role = Role { name: c"fumehood-gate", readable: &READABLE, kept };
        let Self { gateway, config } = self;
        let work = || fumehood_egress::run(config, sockets(gateway), theirs).map_err(io::Error::other);
        Ok((Intake::new(ours), confined::fork(role, || {}, work)?))
    }
}

/// The gateway's sockets, in the gate's words.
fn sockets(gateway: Gateway) -> Sockets {
    let Gateway { listeners, any, names_udp, names_tcp, proxy, observer } = gateway;
    Sockets {
        listeners: listeners.into_iter().map(|(_, listener)| listener).collect(),
        redirected: any,
        names_udp,
        names_tcp,
        proxy,
        observer: Some(Observer { socket: observer, read: attempt }),
    }
}

/// What the first bytes of a refused packet say.
fn attempt(packet: &[u8]) -> Option<Attempt> {
    let found = observer::attempt(packet)?;
    let protocol = match found.protocol {
        observer::Protocol::Tcp => Transport::Tcp,
        observer::Protocol::Udp => Transport::Udp,
    };
    Some(Attempt { protocol, to: found.to })
}
