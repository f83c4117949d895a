//! The sandbox's network where it has one: a pair of links to a gateway whose sockets the keeper holds.
//!
//! With root a companion makes it beside us, and joins the prepared network namespace to it. An ordinary user's
//! must lie in the sandbox's own user namespace, so the child makes it on its way in.

use fumehood_backend::gateway::{Gateway, GatewaySpec, MOST_PORTS, PROXY, Ports};
use fumehood_model::enforcement::{Clause, Mechanism, Strength, Unenforceable};
use fumehood_sys::launch::{
    self, Addresses, Beside, Gateway as Making, GatewayShape, Listeners, Namespaces, Op, Program, SpawnError,
};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// Tag of the packets that carry the gateway's sockets.
pub const SOCKETS: u8 = 4;

/// Where the one listener for every port stands: a port that no program asks for by itself.
const EVERY_PORT: u16 = 1;

/// The sandbox's own addresses. The first is reserved for who has none of the host's networks, the other is of
/// the range that names are given addresses from, and no name has it.
const INSIDE: Addresses = Addresses {
    version_4: Ipv4Addr::new(192, 0, 0, 8),
    version_6: Ipv6Addr::new(0xfd66, 0x756d, 0x6568, 0, 0, 0, 0, 8),
};
/// A router that is never spoken to: it saves the kernel a neighbour for each address.
const ROUTER: Addresses = Addresses {
    version_4: Ipv4Addr::new(192, 0, 0, 1),
    version_6: Ipv6Addr::new(0xfd66, 0x756d, 0x6568, 0, 0, 0, 0, 1),
};

/// Whether this kernel can hold that gateway. Once it has been seen to redirect, that is written down in `shared`
/// for as long as it runs: trying costs more than making the gateway does, and a launch that fails still fails.
///
/// # Errors
/// What it can not hold, and why.
pub fn check(spec: &GatewaySpec, shared: &Path) -> Result<(), Unenforceable> {
    match ports(spec) {
        Some(ports) if ports.len() > MOST_PORTS => cannot(
            format!("{} ports are named, and at most {MOST_PORTS} are listened to one by one", ports.len()),
            "name a range of ports instead of each: then one listener hears them all",
        ),
        Some(ports) if ports.contains(&0) => {
            cannot("there is no port 0".to_owned(), "name ports from 1 to 65535")
        }
        Some(_) => Ok(()),
        None => {
            let note = shared.join("redirects");
            let running = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
            if !running.is_empty() && std::fs::read(&note).is_ok_and(|seen| seen == running) {
                return Ok(());
            }
            try_redirect()?;
            // Without the note it is tried the next time.
            let _ = std::fs::write(note, running);
            Ok(())
        }
    }
}

fn try_redirect() -> Result<(), Unenforceable> {
    let mut program = Program::default();
    program.push("redirect in the gateway", Op::Redirect);
    let user = fumehood_sys::host::euid() != 0;
    launch::try_out(&program, Namespaces { pids: true, user, mounts: true, quiet: true, names: false }).or_else(|error| match error {
        // That it can not make namespaces is for the launch to say.
        SpawnError::Clone(_) => Ok(()),
        SpawnError::Step { source, .. } => cannot(
            format!("this kernel's packet filter (nf_tables) can not redirect: {source}"),
            "load the modules nf_tables and nft_nat (`CONFIG_NF_TABLES_INET`, `CONFIG_NFT_NAT`), or name single ports: those need no packet filter",
        ),
        SpawnError::Died => cannot(
            "the process that tried this kernel's packet filter was ended".to_owned(),
            "give it more memory, or name single ports: those need no packet filter",
        ),
    })
}

fn cannot(why: String, remedy: &str) -> Result<(), Unenforceable> {
    Err(Unenforceable { clause: Clause::Network, why, remedy: remedy.to_owned() })
}

/// What holds the network clause.
pub fn mechanisms(spec: Option<&GatewaySpec>) -> Vec<Mechanism> {
    let kernel = |name, detail: String| Mechanism { name, detail, strength: Strength::Kernel };
    let families =
        kernel("seccomp", "sockets of unix, inet, inet6 and route-netlink families only".to_owned());
    let Some(spec) = spec else {
        let alone = "its own, with loopback alone: there is no route".to_owned();
        return vec![kernel("network-namespace", alone), families];
    };
    let only = "its own; the only route leads to a gateway, whose sockets its keeper holds".to_owned();
    let heard = match ports(spec) {
        Some(ports) => {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            let names = format!("names (53) and a proxy ({PROXY})");
            let listed = if ports.is_empty() { names } else { format!("TCP {}, {names}", ports.join(" ")) };
            kernel("listeners", format!("{listed}; all else is refused by the kernel, and seen"))
        }
        None => kernel(
            "nf_tables",
            format!(
                "TCP to every port is led to one listener; names (53) and a proxy ({PROXY}) beside it; all else is refused by the kernel, and seen"
            ),
        ),
    };
    vec![kernel("network-namespace", only), heard, families]
}

/// Whose network stack speaks at the sandbox's end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    Kernel,
    /// One that takes the link over.
    Other,
}

/// A gateway on its way, if there is to be one.
#[derive(Debug)]
pub enum Plumbing {
    Absent,
    Beside(Beside),
    ByChild(Arc<Making>),
}

/// A gateway that was begun before there was a plan.
#[derive(Debug)]
pub struct Foreseen {
    spec: GatewaySpec,
    maker: Beside,
}

/// The sockets that were made already, and who made them.
#[derive(Debug, Default)]
pub struct Laid {
    pub sockets: Vec<OwnedFd>,
    pub maker: Option<Beside>,
}

// === impl Foreseen ===

impl Foreseen {
    /// Begins it. One that can not be begun is begun by the plan, which says why it can not.
    pub(crate) fn begin(spec: &GatewaySpec, namespaces: &Beside, network: Option<Beside>) -> Option<Self> {
        let listed = ports(spec).is_none_or(|ports| ports.len() <= MOST_PORTS && !ports.contains(&0));
        let making = || Beside::gateway(shape(spec, Stack::Kernel), namespaces, network).ok();
        let maker = listed.then(making).flatten()?;
        Some(Self { spec: spec.clone(), maker })
    }
}

// === impl Plumbing ===

impl Plumbing {
    /// Begins it, unless it is the one that was `foreseen` for the same `namespaces`. Those are what a companion
    /// makes; without, the child makes them, and sends the sockets through `handles`.
    ///
    /// # Errors
    /// Out of processes, memory or descriptors.
    pub fn begin(
        wished: Option<&GatewaySpec>,
        stack: Stack,
        (namespaces, foreseen): (Option<&Beside>, Option<Foreseen>),
        handles: &OwnedFd,
    ) -> io::Result<Self> {
        let Some(spec) = wished else { return Ok(Self::Absent) };
        let known = foreseen.filter(|foreseen| foreseen.spec == *spec && stack == Stack::Kernel);
        if let Some(Foreseen { maker, .. }) = known {
            return Ok(Self::Beside(maker));
        }
        let shape = shape(spec, stack);
        match namespaces {
            Some(namespaces) => Beside::gateway(shape, namespaces, None).map(Self::Beside),
            None => Ok(Self::ByChild(Making::by_child(shape, handles.try_clone()?, SOCKETS))),
        }
    }

    /// Lets the child begin, where it is for the child to make it.
    pub fn begin_in_child(&self, program: &mut Program) {
        if let Self::ByChild(making) = self {
            program.push("make the gateway", Op::BeginGateway(Arc::clone(making)));
        }
    }

    /// Waits until it is made, or lets the child wait.
    pub fn place(self, program: &mut Program) -> Result<Laid, SpawnError> {
        match self {
            Self::Absent => Ok(Laid::default()),
            Self::Beside(maker) => Ok(Laid { sockets: maker.finish()?, maker: Some(maker) }),
            Self::ByChild(making) => {
                program.push("make the gateway", Op::AwaitGateway(making));
                Ok(Laid::default())
            }
        }
    }
}

/// Makes a gateway whose other end is a machine's network card, in a companion of ours; needs root. Gives its
/// sockets, and the descriptor that the machine gets.
///
/// # Errors
/// The part that failed.
pub fn for_machine(spec: &GatewaySpec) -> Result<(Gateway, OwnedFd), SpawnError> {
    let mut program = Program::default();
    program.push("make the gateway", Op::Gateway(Box::new(Making::for_machine(shape(spec, Stack::Kernel)))));
    let mut made = Beside::start(program).map_err(SpawnError::Clone)?.finish()?;
    let broken = |error: io::Error| SpawnError::Step { step: "take the gateway's sockets", source: error };
    let tap = made.pop().ok_or_else(|| broken(io::ErrorKind::NotFound.into()))?;
    Ok((named(spec, made).map_err(broken)?, tap))
}

/// Gives each socket its name.
///
/// # Errors
/// If there are not as many as there must be.
pub fn named(spec: &GatewaySpec, sockets: Vec<OwnedFd>) -> io::Result<Gateway> {
    let mut sockets = sockets.into_iter();
    let mut next = || sockets.next().ok_or(io::ErrorKind::NotFound);
    let (names_udp, names_tcp, proxy, observer) = (next()?, next()?, next()?, next()?);
    let (listeners, any) = match ports(spec) {
        Some(ports) => {
            let listeners = ports.into_iter().map(|port| Ok((port, next()?)));
            (listeners.collect::<io::Result<_>>()?, None)
        }
        None => (Vec::new(), Some(next()?)),
    };
    Ok(Gateway { listeners, any, names_udp, names_tcp, proxy, observer })
}

/// Each port once. `None`: every port.
fn ports(spec: &GatewaySpec) -> Option<Vec<u16>> {
    match &spec.ports {
        Ports::Every => None,
        Ports::Listed(ports) => {
            let ports: std::collections::BTreeSet<u16> = ports.iter().copied().collect();
            // That one is heard in any case.
            Some(ports.into_iter().filter(|port| *port != NAMES).collect())
        }
    }
}

/// DNS.
const NAMES: u16 = 53;

fn shape(spec: &GatewaySpec, stack: Stack) -> GatewayShape {
    let listeners = ports(spec).map_or(Listeners::Every(EVERY_PORT), Listeners::Ports);
    let known_router = stack == Stack::Other;
    GatewayShape { listeners, proxy: PROXY, inside: INSIDE, router: ROUTER, known_router }
}

const _: () = assert!(MOST_PORTS == launch::MOST_PORTS);
