//! The gate: the process that speaks for a sandbox to the world.

use crate::run::KEPT_CAPABILITIES;
use fumehood_backend::gateway::Gateway;
use fumehood_egress::record::Intake;
use fumehood_egress::sockets::{Attempt, Observer, Sockets, Transport};
use fumehood_sys::landlock::{self, Access, Ruleset};
use fumehood_sys::process::{self, Forked};
use fumehood_sys::{confine, host, observer, socket};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

/// With root the gate is this user to the kernel, who owns nothing: the one before the users of sandboxes.
const USER: u32 = 0x6fff_ffff;

/// What the gate reads of the host's files: how names are resolved, and whose certificates are believed.
const READABLE: [&str; 6] = [
    "/etc",
    "/usr/share",
    "/usr/lib/ssl",
    "/usr/local/share",
    "/run/systemd/resolve",
    "/var/lib/ca-certificates",
];

/// Libraries take randomness from here where they do not find the system call.
const RANDOM: [&str; 2] = ["/dev/urandom", "/dev/random"];

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
        let parent = confine::own_pid();
        match process::fork()? {
            Forked::Parent { pid } => {
                // What the gate needed to become another user is needed no more.
                process::keep_capabilities(&KEPT_CAPABILITIES)?;
                Ok((Intake::new(ours), process::open_pidfd(pid)?))
            }
            Forked::Child => {
                drop(ours);
                // Whatever goes wrong in here ends the sandbox's network, and nothing else.
                let _ = self.live(parent, theirs);
                process::exit_now(0)
            }
        }
    }

    fn live(self, parent: i32, keeper: OwnedFd) -> io::Result<()> {
        let mut kept: Vec<_> = self.sockets().map(|socket| socket.as_raw_fd()).collect();
        kept.push(keeper.as_raw_fd());
        kept.sort_unstable();
        process::close_all_but(&kept);
        process::new_session();
        process::set_name(c"fumehood-gate");
        process::clear_command_line()?;
        process::block_all_signals();
        process::release_standard_streams()?;
        confine::raise_open_files();
        if host::euid() == 0 {
            confine::become_user(USER, USER)?;
        }
        process::keep_capabilities(&[])?;
        process::set_dumpable(false);
        confine::die_with(parent)?;
        confine::restrict(&ruleset()?)?;
        let Self { gateway, config } = self;
        fumehood_egress::run(config, sockets(gateway), keeper).map_err(io::Error::other)
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

/// It reads a few folders, and writes nothing.
fn ruleset() -> io::Result<Ruleset> {
    let abi = landlock::abi().ok_or(io::ErrorKind::Unsupported)?;
    let mut ruleset = Ruleset::new(abi);
    for path in READABLE {
        ruleset.allow(CString::new(path)?, Access::Read);
    }
    for path in RANDOM {
        ruleset.allow(CString::new(path)?, Access::ReadFile);
    }
    Ok(ruleset)
}
