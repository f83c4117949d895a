//! A sandbox's network and the gateway that is all there is beyond it.
//!
//! ```text
//!   sandbox's namespace            gateway's namespace
//!   lo                             lo      every address is its own
//!   eth0 ── default routes ──────► eth0    listeners, names, proxy, observer
//! ```
//!
//! A socket belongs to the namespace that it was made in, for ever. So the sockets are made here, where
//! their maker is in the gateway, and used elsewhere; nothing inside the sandbox can reach them but by
//! sending packets. The gateway is held by them alone, and goes when the last of them does.
//!
//! What its parts share are descriptors. So one function makes it, holds them on its stack, and says by
//! [`Gateway::phrase`] which part failed. It runs beside the rest of the launch: in a companion of the keeper
//! with root, else in a companion of the child, in the sandbox's own user namespace.

use super::clone::Place;
use super::op::Outcome;
use crate::netlink::{Batch, Held, Interface, Netlink, Prefix, Route, Scope, Table, VethPair, redirect_all};
use crate::observer::{self, Heard, Instruction};
use crate::raw::{self, CWD, Errno, Result, fd, syscall};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// The most ports that are listened to one by one.
pub const MOST_PORTS: usize = 64;
/// Descriptors on one packet to the keeper; [`crate::socket::receive`] takes no more.
const AT_ONCE: usize = crate::socket::MAX_DESCRIPTORS;
/// The sockets that every gateway has.
pub(super) const FIXED_SOCKETS: usize = 4;
/// And the link to a machine, where the sandbox is one.
pub(super) const MOST_TAPS: usize = 1;

/// Connections that wait to be accepted, for each listener.
const BACKLOG: usize = 1024;
/// DNS.
const NAMES: u16 = 53;

/// Loopback is always the first.
const LOOPBACK: Interface = Interface { index: 1 };
/// A number that no link has which the kernel makes by itself in a new namespace.
const LINK: Interface = Interface { index: 100 };
/// Of an address range that is nobody's; both ends have it.
const HARDWARE: [u8; 6] = [0x02, 0x66, 0x75, 0x6d, 0x65, 0x68];

/// A part of the work, by the phrase that names it when it fails.
const PHRASES: [&str; 5] = [
    "make the gateway's network",
    "listen in the gateway",
    "redirect in the gateway",
    "make the sandbox's network",
    "join the sandbox to its gateway",
];
const NETWORK: usize = 0;
const LISTEN: usize = 1;
const REDIRECT: usize = 2;
const SANDBOX: usize = 3;
const JOIN: usize = 4;
const MADE: usize = 5;

/// What of the kernel's own behaviour the gateway changes: it answers no echo, and says at once to every
/// datagram that nobody listens.
const GATEWAY_SETTINGS: [(&CStr, &[u8]); 4] = [
    (c"/proc/sys/net/ipv4/icmp_echo_ignore_all", b"1"),
    (c"/proc/sys/net/ipv6/icmp/echo_ignore_all", b"1"),
    (c"/proc/sys/net/ipv4/icmp_ratemask", b"0"),
    (c"/proc/sys/net/ipv6/icmp/ratemask", b"0"),
];
/// A program inside may listen on any port.
const SANDBOX_SETTINGS: [(&CStr, &[u8]); 1] = [(c"/proc/sys/net/ipv4/ip_unprivileged_port_start", b"0")];

/// How TCP that arrives in the gateway is listened to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listeners {
    /// One listener for each of these ports; all else is refused by the kernel.
    Ports(Vec<u16>),
    /// One listener at this port, to which every other is redirected.
    Every(u16),
}

/// An address of each version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    pub version_4: Ipv4Addr,
    pub version_6: Ipv6Addr,
}

/// What a gateway is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayShape {
    pub listeners: Listeners,
    /// Where a proxy for programs that are told of one listens.
    pub proxy: SocketAddrV4,
    /// The sandbox's own.
    pub inside: Addresses,
    /// Whom the sandbox takes for its router.
    pub router: Addresses,
    /// Whether the router is written down as a neighbour, for a network stack that takes the link over and would
    /// ask for it. The kernel's own does not ask.
    pub known_router: bool,
}

/// Where the maker finds the sandbox's network namespace.
#[derive(Debug)]
pub(super) enum Sandbox {
    /// It is in it.
    Current,
    /// Another companion makes it, and keeps it as the first of its products.
    Of(Arc<Outcome>),
    /// There is none: a machine's network card is the other end.
    Machine,
}

/// Makes a gateway, and joins a sandbox's network namespace to it.
///
/// The sockets come in this order: names over UDP, names over TCP, the proxy, the observer, then the
/// listeners as [`Listeners`] has them.
#[derive(Debug)]
pub struct Gateway {
    shape: GatewayShape,
    filter: Vec<Instruction>,
    sandbox: Sandbox,
    /// Whether its maker is in its network namespace already, by [`super::Op::GatewayNetwork`].
    within: bool,
    /// The socket, and the tag, that the descriptors are sent with; otherwise they are kept as products.
    through: Option<(OwnedFd, u8)>,
    part: AtomicUsize,
    /// Of the failed part, if one failed.
    errno: AtomicI32,
    place: Place,
}

/// Sockets on their way to the keeper.
struct Parcel<'a> {
    gateway: &'a Gateway,
    keep: &'a dyn Fn(RawFd),
    waiting: [Option<Held>; AT_ONCE],
}

// === impl Gateway ===

impl Gateway {
    /// To be made by a companion of the sandbox's own first process, which is in its own network namespace.
    /// The descriptors are sent through `socket`.
    ///
    /// [`super::Op::BeginGateway`] starts it; [`super::Op::AwaitGateway`] must follow before the host's root
    /// is let go of.
    pub fn by_child(shape: GatewayShape, socket: OwnedFd, tag: u8) -> Arc<Self> {
        Arc::new(Self::new(shape, Sandbox::Current, Some((socket, tag))))
    }

    /// As [`Gateway::by_child`], for a machine whose network card will be the other end of the link. The last
    /// descriptor is that of the link.
    pub fn for_machine_by_child(shape: GatewayShape, socket: OwnedFd, tag: u8) -> Arc<Self> {
        Arc::new(Self::new(shape, Sandbox::Machine, Some((socket, tag))))
    }

    /// To be made by [`super::Op::Gateway`], for a machine; the descriptors are products.
    pub fn for_machine(shape: GatewayShape) -> Self {
        Self::new(shape, Sandbox::Machine, None)
    }

    pub(super) fn beside(shape: GatewayShape, sandbox: Arc<Outcome>, within: bool) -> Self {
        let mut gateway = Self::new(shape, Sandbox::Of(sandbox), None);
        gateway.within = within;
        gateway
    }

    fn new(shape: GatewayShape, sandbox: Sandbox, through: Option<(OwnedFd, u8)>) -> Self {
        let heard = match &shape.listeners {
            Listeners::Ports(ports) => ports.iter().copied().chain([NAMES]).collect(),
            Listeners::Every(_) => Vec::new(),
        };
        let filter = match &shape.listeners {
            Listeners::Ports(_) => observer::filter(Heard::Ports(&heard), shape.proxy),
            Listeners::Every(_) => observer::filter(Heard::Every, shape.proxy),
        };
        let (part, errno) = (AtomicUsize::new(NETWORK), AtomicI32::new(0));
        Self { shape, filter, sandbox, within: false, through, part, errno, place: Place::new() }
    }

    /// Starts making it beside the calling child.
    pub(super) fn begin(&self) -> Result<()> {
        self.place.start(self, |gateway| {
            if let Err(Errno(errno)) = gateway.make(&|_| {}) {
                gateway.errno.store(errno, Ordering::Release);
            }
        })
    }

    /// Waits until it is made, or until that has failed.
    pub(super) fn finish(&self) -> Result<()> {
        self.place.await_empty();
        match (self.errno.load(Ordering::Acquire), self.part.load(Ordering::Acquire)) {
            (0, MADE) => Ok(()),
            // Ended from outside.
            (0, _) => Err(Errno(libc::ECHILD)),
            (errno, _) => Err(Errno(errno)),
        }
    }

    /// Names the part that is being made, or that failed.
    pub(super) fn phrase(&self) -> &'static str {
        PHRASES.get(self.part.load(Ordering::Acquire)).copied().unwrap_or("make the gateway")
    }

    /// Runs in the child: kernel calls only.
    pub(super) fn make(&self, keep: &dyn Fn(RawFd)) -> Result<()> {
        let part = |part| self.part.store(part, Ordering::Release);
        let own_network =
            || raw::open(CWD, c"/proc/self/ns/net", libc::O_RDONLY | libc::O_CLOEXEC, 0).map(Held);
        part(NETWORK);
        let here = own_network()?;
        let outer = if self.within { Netlink::route() } else { network() }?;
        part(LISTEN);
        self.listen(keep)?;
        part(REDIRECT);
        if let Listeners::Every(port) = self.shape.listeners {
            redirect_all(port, &[NAMES], (*self.shape.proxy.ip(), self.shape.proxy.port()))?;
        }
        part(SANDBOX);
        let gateway = own_network()?;
        match &self.sandbox {
            Sandbox::Machine => return self.join_machine(&outer, keep),
            Sandbox::Current => enter(here.0)?,
            Sandbox::Of(maker) => enter(maker.await_first().ok_or(Errno(libc::ECHILD))?)?,
        }
        SANDBOX_SETTINGS.iter().try_for_each(set)?;
        part(JOIN);
        self.join(&outer, &gateway)?;
        part(MADE);
        Ok(())
    }

    fn listen(&self, keep: &dyn Fn(RawFd)) -> Result<()> {
        let mut parcel = Parcel { gateway: self, keep, waiting: [const { None }; AT_ONCE] };
        let any = Ipv6Addr::UNSPECIFIED;
        parcel.add(names()?)?;
        parcel.add(listener(any, NAMES)?)?;
        parcel.add(listener(self.shape.proxy.ip().to_ipv6_mapped(), self.shape.proxy.port())?)?;
        parcel.add(self.observer()?)?;
        match &self.shape.listeners {
            Listeners::Ports(ports) => {
                for port in ports {
                    parcel.add(listener(any, *port)?)?;
                }
            }
            Listeners::Every(port) => parcel.add(listener(any, *port)?)?,
        }
        parcel.send()
    }

    /// Hears of no packet before its filter is there.
    fn observer(&self) -> Result<Held> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let socket = socket(libc::AF_PACKET, kind)?;
        let program = libc::sock_fprog {
            len: self.filter.len() as u16,
            filter: self.filter.as_ptr().cast_mut().cast(),
        };
        option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        option(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32)?;
        // SAFETY: all-zero is a valid address of that family.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        let words = [fd(socket.0), std::ptr::from_ref(&address) as usize, size_of_val(&address), 0, 0, 0];
        // SAFETY: `address` is live and only read.
        unsafe { syscall(libc::SYS_bind, words) }?;
        Ok(socket)
    }

    /// The link to a machine; from inside the gateway's namespace.
    fn join_machine(&self, outer: &Netlink, keep: &dyn Fn(RawFd)) -> Result<()> {
        self.part.store(JOIN, Ordering::Release);
        let tap = tap()?;
        let GatewayShape { inside, router, .. } = &self.shape;
        let mut batch = Batch::new();
        batch.no_own_address(LINK);
        batch.up_unasked(LINK, &HARDWARE);
        for to in inside.hosts() {
            batch.route(&Route { to, interface: LINK, scope: Scope::Link, table: Table::Local });
        }
        batch.address(LINK, router.hosts()[1]);
        outer.apply(batch)?;
        let mut parcel = Parcel { gateway: self, keep, waiting: [const { None }; AT_ONCE] };
        parcel.add(tap)?;
        parcel.send()?;
        self.part.store(MADE, Ordering::Release);
        Ok(())
    }

    /// The pair of links; from inside the sandbox's namespace.
    fn join(&self, outer: &Netlink, gateway: &Held) -> Result<()> {
        let inner = Netlink::route()?;
        let GatewayShape { inside, router, .. } = &self.shape;
        let mut batch = Batch::new();
        batch.up(LOOPBACK);
        batch.veth(&VethPair { name: c"eth0", interface: LINK, hardware: HARDWARE, peer: gateway.0 });
        batch.no_own_address(LINK);
        inner.apply(batch)?;
        let mut batch = Batch::new();
        batch.no_own_address(LINK);
        batch.up(LINK);
        for to in inside.hosts() {
            batch.route(&Route { to, interface: LINK, scope: Scope::Link, table: Table::Local });
        }
        // Whom refusals are from: where the kernel has no address of its own, it says them from loopback's.
        batch.address(LINK, router.hosts()[1]);
        outer.apply(batch)?;
        let mut batch = Batch::new();
        batch.up(LINK);
        for own in inside.hosts() {
            batch.address(LINK, own);
        }
        for (to, router) in EVERYWHERE.into_iter().zip(router.hosts()) {
            let scope = Scope::Through(router.address);
            batch.route(&Route { to, interface: LINK, scope, table: Table::Main });
            if self.shape.known_router {
                batch.neighbour(LINK, router.address, HARDWARE);
            }
        }
        inner.apply(batch)?;
        outer.await_carrier(LINK)
    }
}

/// Takes a network namespace in which every address is local, as a gateway's is.
pub(super) fn network() -> Result<Netlink> {
    new_network()?;
    let outer = Netlink::route()?;
    outer.apply(everything_is_local())?;
    GATEWAY_SETTINGS.iter().try_for_each(set)?;
    Ok(outer)
}

impl Drop for Gateway {
    /// A companion that was not waited for still works on this.
    fn drop(&mut self) {
        self.place.await_empty();
    }
}

// === impl Parcel ===

impl Parcel<'_> {
    fn add(&mut self, socket: Held) -> Result<()> {
        if self.gateway.through.is_none() {
            (self.keep)(socket.give());
            return Ok(());
        }
        if self.waiting.iter().all(Option::is_some) {
            self.send()?;
        }
        if let Some(place) = self.waiting.iter_mut().find(|place| place.is_none()) {
            *place = Some(socket);
        }
        Ok(())
    }

    /// Sends what waits, and closes it here.
    fn send(&mut self) -> Result<()> {
        let Some((through, tag)) = &self.gateway.through else { return Ok(()) };
        let mut numbers = [-1; AT_ONCE];
        let mut count = 0;
        for (number, held) in numbers.iter_mut().zip(self.waiting.iter().flatten()) {
            *number = held.0;
            count += 1;
        }
        raw::send_all(through.as_raw_fd(), numbers.get(..count).unwrap_or(&[]), *tag)?;
        self.waiting = [const { None }; AT_ONCE];
        Ok(())
    }
}

// === impl Addresses ===

impl Addresses {
    /// Each as the prefix that holds it alone.
    fn hosts(self) -> [Prefix; 2] {
        [
            Prefix { address: IpAddr::V4(self.version_4), bits: 32 },
            Prefix { address: IpAddr::V6(self.version_6), bits: 128 },
        ]
    }
}

/// Every address there is, of both versions.
const EVERYWHERE: [Prefix; 2] = [
    Prefix { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), bits: 0 },
    Prefix { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), bits: 0 },
];

/// Not in `libc` for this target.
const PACKET_IGNORE_OUTGOING: i32 = 23;
const IPV6_FREEBIND: i32 = 78;

/// What a gateway for every port asks of the kernel, with ports that do not matter.
pub(super) fn try_redirect() -> Result<()> {
    redirect_all(1, &[NAMES], (Ipv4Addr::LOCALHOST, NAMES))
}

/// One end is a link of this namespace, the other the descriptor. Frames have no header of the kernel's before them.
fn tap() -> Result<Held> {
    /// `struct ifreq` as this call uses it.
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: u16,
        rest: [u8; 22],
    }
    const SET_INTERFACE: usize = 0x4004_54CA;
    const SET_INDEX: usize = 0x4004_54DA;
    const TAP_WITHOUT_HEADER: u16 = 0x1002;
    let file = Held(raw::open(CWD, c"/dev/net/tun", libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK, 0)?);
    let index = LINK.index;
    let pointer = std::ptr::from_ref(&index) as usize;
    // SAFETY: `index` is live and only read.
    unsafe { syscall(libc::SYS_ioctl, [fd(file.0), SET_INDEX, pointer, 0, 0, 0]) }?;
    let mut request = Request { name: [0; 16], flags: TAP_WITHOUT_HEADER, rest: [0; 22] };
    for (place, byte) in request.name.iter_mut().zip(b"eth0") {
        *place = *byte;
    }
    let pointer = std::ptr::from_mut(&mut request) as usize;
    // SAFETY: `request` has the kernel's layout and lives through the call.
    unsafe { syscall(libc::SYS_ioctl, [fd(file.0), SET_INTERFACE, pointer, 0, 0, 0]) }?;
    Ok(file)
}

fn everything_is_local() -> Batch {
    let mut batch = Batch::new();
    batch.up(LOOPBACK);
    for to in EVERYWHERE {
        batch.route(&Route { to, interface: LOOPBACK, scope: Scope::Here, table: Table::Local });
    }
    batch
}

fn new_network() -> Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_unshare, [libc::CLONE_NEWNET as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

fn enter(namespace: RawFd) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_setns, [fd(namespace), libc::CLONE_NEWNET as usize, 0, 0, 0, 0]) }.map(drop)
}

/// These files are those of the namespace of whoever opens them.
fn set((path, value): &(&CStr, &[u8])) -> Result<()> {
    let file = Held(raw::open(CWD, path, libc::O_WRONLY | libc::O_CLOEXEC, 0)?);
    raw::write_all(file.0, value)
}

fn socket(family: i32, kind: i32) -> Result<Held> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_socket, [family as usize, kind as usize, 0, 0, 0, 0]) }
        .map(|made| Held(raw::to_fd(made)))
}

fn option<T>(socket: &Held, level: i32, name: i32, value: &T) -> Result<()> {
    let pointer = std::ptr::from_ref(value) as usize;
    let words = [fd(socket.0), level as usize, name as usize, pointer, size_of::<T>(), 0];
    // SAFETY: `value` is live and only read, for its own size; callers pass what the option takes.
    unsafe { syscall(libc::SYS_setsockopt, words) }.map(drop)
}

/// A socket of both versions of IP, bound.
fn bound(kind: i32, address: Ipv6Addr, port: u16) -> Result<Held> {
    let socket = socket(libc::AF_INET6, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)?;
    option(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &0_i32)?;
    // A listener at one address may stand beside one at all of them; nobody else can bind here.
    option(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &1_i32)?;
    let address = libc::sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.octets() },
        sin6_scope_id: 0,
    };
    let words = [fd(socket.0), std::ptr::from_ref(&address) as usize, size_of_val(&address), 0, 0, 0];
    // SAFETY: `address` is live and only read.
    unsafe { syscall(libc::SYS_bind, words) }?;
    Ok(socket)
}

fn listener(address: Ipv6Addr, port: u16) -> Result<Held> {
    let socket = bound(libc::SOCK_STREAM, address, port)?;
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_listen, [fd(socket.0), BACKLOG, 0, 0, 0, 0]) }?;
    Ok(socket)
}

/// DNS over UDP: tells to which address a question went, and may answer from there.
fn names() -> Result<Held> {
    let socket = bound(libc::SOCK_DGRAM, Ipv6Addr::UNSPECIFIED, NAMES)?;
    option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1_i32)?;
    option(&socket, libc::IPPROTO_IPV6, IPV6_FREEBIND, &1_i32)?;
    Ok(socket)
}
