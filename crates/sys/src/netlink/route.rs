//! Links, addresses and routes.

use super::{ANSWER_BYTES, Batch, CREATE, NESTED, Netlink};
use crate::raw::{Errno, Result, syscall};
use std::ffi::CStr;
use std::net::IpAddr;

const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWNEIGH: u16 = 28;

// `include/uapi/linux/if_link.h`, `veth.h`
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_NET_NS_FD: u16 = 28;
const IFLA_NUM_TX_QUEUES: u16 = 31;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
const ADDR_GEN_MODE_NONE: u8 = 1;
const OPERATIONAL: u8 = 6;
/// `struct ifinfomsg`
const LINK_BYTES: usize = 16;

const IFF_UP: u32 = 0x1;
const IFF_NOARP: u32 = 0x80;

// `include/uapi/linux/if_addr.h`
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// Usable at once: nobody else can have it.
const IFA_F_NODAD: u8 = 0x02;

// `include/uapi/linux/neighbour.h`
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NUD_PERMANENT: u16 = 0x80;

// `include/uapi/linux/rtnetlink.h`
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTPROT_STATIC: u8 = 4;
const RTN_UNICAST: u8 = 1;
const RTN_LOCAL: u8 = 2;
const RTNH_F_ONLINK: u32 = 4;

/// How often a link is asked whether it works, before that is an error.
const LOOKS: u32 = 20_000;

/// A link, by its number in its namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: i32,
}

/// Two joined links, alike in name, number and hardware address. Because the addresses are equal and
/// neither end asks for its neighbour's, no frame is ever spent on finding anybody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VethPair<'a> {
    pub(crate) name: &'a CStr,
    pub(crate) interface: Interface,
    pub(crate) hardware: [u8; 6],
    /// The other end's namespace.
    pub(crate) peer: i32,
}

/// Addresses that begin alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) address: IpAddr,
    pub(crate) bits: u8,
}

/// Where packets to a prefix go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) to: Prefix,
    pub(crate) interface: Interface,
    pub(crate) scope: Scope,
    pub(crate) table: Table,
}

/// What is at the other end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// We ourselves: whatever the address is, it is one of ours.
    Here,
    /// The neighbour on the link.
    Link,
    /// A neighbour that is taken to be on the link, and passes packets on.
    Through(IpAddr),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Main = 254,
    /// Looked at first.
    Local = 255,
}

// === impl Batch ===

impl Batch {
    /// Makes a pair, one end here; both are down.
    pub(crate) fn veth(&mut self, pair: &VethPair<'_>) {
        self.begin(RTM_NEWLINK, CREATE);
        self.end_of(pair);
        let info = self.nest(NESTED | IFLA_LINKINFO);
        self.text(IFLA_INFO_KIND, c"veth");
        let data = self.nest(NESTED | IFLA_INFO_DATA);
        let peer = self.nest(NESTED | VETH_INFO_PEER);
        self.end_of(pair);
        self.attribute(IFLA_NET_NS_FD, &pair.peer.to_ne_bytes());
        self.end(peer);
        self.end(data);
        self.end(info);
    }

    /// One of the two. The kernel would give it a queue for each processor, and a folder for each queue.
    fn end_of(&mut self, pair: &VethPair<'_>) {
        self.link(pair.interface, IFF_NOARP);
        self.text(IFLA_IFNAME, pair.name);
        self.attribute(IFLA_ADDRESS, &pair.hardware);
        self.attribute(IFLA_NUM_TX_QUEUES, &1_u32.to_ne_bytes());
        self.attribute(IFLA_NUM_RX_QUEUES, &1_u32.to_ne_bytes());
    }

    /// Keeps a link from giving itself an address when it comes up.
    pub(crate) fn no_own_address(&mut self, interface: Interface) {
        self.begin(RTM_NEWLINK, 0);
        self.link(interface, 0);
        let families = self.nest(NESTED | IFLA_AF_SPEC);
        let version_6 = self.nest(NESTED | libc::AF_INET6 as u16);
        self.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]);
        self.end(version_6);
        self.end(families);
    }

    pub(crate) fn up(&mut self, interface: Interface) {
        self.begin(RTM_NEWLINK, 0);
        self.link(interface, IFF_UP);
    }

    /// Gives a link its hardware address, and brings it up as one on which nobody is asked for theirs.
    pub(crate) fn up_unasked(&mut self, interface: Interface, hardware: &[u8; 6]) {
        self.begin(RTM_NEWLINK, 0);
        self.link(interface, 0);
        self.attribute(IFLA_ADDRESS, hardware);
        self.begin(RTM_NEWLINK, 0);
        self.link(interface, IFF_UP | IFF_NOARP);
    }

    pub(crate) fn address(&mut self, interface: Interface, prefix: Prefix) {
        self.begin(RTM_NEWADDR, CREATE);
        let (family, bytes, length) = parts(prefix.address);
        let flags = if prefix.address.is_ipv6() { IFA_F_NODAD } else { 0 };
        self.put(&[family, prefix.bits, flags, 0]);
        self.put(&interface.index.to_ne_bytes());
        for kind in [IFA_LOCAL, IFA_ADDRESS] {
            self.attribute(kind, bytes.get(..length).unwrap_or(&[]));
        }
    }

    pub(crate) fn route(&mut self, route: &Route) {
        let (family, bytes, length) = parts(route.to.address);
        let (scope, kind, flags) = match route.scope {
            Scope::Here => (254, RTN_LOCAL, 0),
            Scope::Link => (253, RTN_UNICAST, 0),
            Scope::Through(_) => (0, RTN_UNICAST, RTNH_F_ONLINK),
        };
        self.begin(RTM_NEWROUTE, CREATE);
        self.put(&[family, route.to.bits, 0, 0, route.table as u8, RTPROT_STATIC, scope, kind]);
        self.put(&flags.to_ne_bytes());
        if route.to.bits > 0 {
            self.attribute(RTA_DST, bytes.get(..length).unwrap_or(&[]));
        }
        self.attribute(RTA_OIF, &route.interface.index.to_ne_bytes());
        if let Scope::Through(neighbour) = route.scope {
            let (_, bytes, length) = parts(neighbour);
            self.attribute(RTA_GATEWAY, bytes.get(..length).unwrap_or(&[]));
        }
    }

    /// Writes down where a neighbour is, so that it need not be asked for.
    pub(crate) fn neighbour(&mut self, interface: Interface, address: IpAddr, hardware: [u8; 6]) {
        self.begin(RTM_NEWNEIGH, CREATE);
        let (family, bytes, length) = parts(address);
        self.put(&[family, 0, 0, 0]);
        self.put(&interface.index.to_ne_bytes());
        self.put(&NUD_PERMANENT.to_ne_bytes());
        self.put(&[0, 0]);
        self.attribute(NDA_DST, bytes.get(..length).unwrap_or(&[]));
        self.attribute(NDA_LLADDR, &hardware);
    }

    /// `struct ifinfomsg` that sets `flags` and no others.
    fn link(&mut self, interface: Interface, flags: u32) {
        self.put(&[0; 4]);
        self.put(&interface.index.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
        self.put(&flags.to_ne_bytes());
    }
}

// === impl Netlink ===

impl Netlink {
    /// Returns when what is sent into a link that is up arrives.
    ///
    /// The end of a pair that came up first learns of the other one by a work item of the kernel's, and
    /// drops what it should send until then. Newer kernels catch up when they are asked; with older ones
    /// it takes some looks.
    pub(crate) fn await_carrier(&self, interface: Interface) -> Result<()> {
        let mut answer = [0_u8; ANSWER_BYTES];
        for _ in 0..LOOKS {
            let mut batch = Batch::new();
            batch.begin(RTM_GETLINK, 0);
            batch.link(interface, 0);
            let state = self.ask(batch, &mut answer)?.attribute_byte(LINK_BYTES, IFLA_OPERSTATE);
            if state == Some(OPERATIONAL) {
                return Ok(());
            }
            // SAFETY: no arguments.
            let _ = unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
        }
        Err(Errno(libc::ETIMEDOUT))
    }
}

/// Family, bytes, and how many of those count.
fn parts(address: IpAddr) -> (u8, [u8; 16], usize) {
    match address {
        IpAddr::V4(address) => {
            let [a, b, c, d] = address.octets();
            (libc::AF_INET as u8, [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4)
        }
        IpAddr::V6(address) => (libc::AF_INET6 as u8, address.octets(), 16),
    }
}
