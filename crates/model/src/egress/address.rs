//! Which addresses are not the public network.
//!
//! Written out, and judged by the address *inside* where one is wrapped in another: mapped,
//! translated, 6to4 and ISATAP forms of IPv4. Documentation ranges are not on the list: nothing
//! lives there, and so nothing is protected by refusing them.

use super::range::Range;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address is not public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Internal {
    /// `0.0.0.0/8`, `::`: this host.
    Unspecified,
    Loopback,
    LinkLocal,
    /// Where a cloud tells its machines their credentials.
    Metadata,
    /// Private and unique-local networks.
    Private,
    /// `100.64.0.0/10`: the inside of a carrier's, or a cloud's, network.
    Shared,
    Multicast,
    Broadcast,
    /// Reserved, benchmarking, and protocol assignments: not a place to send to.
    Reserved,
    /// Tunnels whose far end the address does not say.
    Tunnel,
}

// === impl Internal ===

impl Internal {
    /// Whether no range and no name may be opened to it; only a rule that names the address itself.
    pub const fn is_never_opened_by_range(self) -> bool {
        match self {
            Self::Unspecified
            | Self::Loopback
            | Self::LinkLocal
            | Self::Metadata
            | Self::Multicast
            | Self::Broadcast
            | Self::Reserved
            | Self::Tunnel => true,
            Self::Private | Self::Shared => false,
        }
    }
}

impl fmt::Display for Internal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unspecified => "this host",
            Self::Loopback => "a loopback address",
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a cloud's metadata address",
            Self::Private => "a private address",
            Self::Shared => "a carrier's shared address",
            Self::Multicast => "a multicast address",
            Self::Broadcast => "the broadcast address",
            Self::Reserved => "a reserved address",
            Self::Tunnel => "an address inside a tunnel",
        })
    }
}

/// Metadata services that stand outside the link-local range.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(192, 0, 0, 192), Ipv4Addr::new(168, 63, 129, 16)];
const METADATA_V6: [Ipv6Addr; 2] =
    [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)];

/// Ranges of IPv4, first match wins: network, prefix length, what it is.
const RANGES_V4: [(Ipv4Addr, u32, Internal); 16] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, Internal::Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Internal::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Internal::Shared),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Internal::Loopback),
    (Ipv4Addr::new(169, 254, 169, 254), 32, Internal::Metadata),
    (Ipv4Addr::new(169, 254, 170, 0), 24, Internal::Metadata),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Internal::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Internal::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Internal::Reserved),
    (Ipv4Addr::new(192, 88, 99, 0), 24, Internal::Tunnel),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Internal::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Internal::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Internal::Multicast),
    (Ipv4Addr::new(255, 255, 255, 255), 32, Internal::Broadcast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Internal::Reserved),
    (Ipv4Addr::new(192, 31, 196, 0), 24, Internal::Reserved),
];

/// Ranges of IPv6, first match wins.
const RANGES_V6: [(Ipv6Addr, u32, Internal); 16] = [
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 1), 128, Internal::Loopback),
    (Ipv6Addr::UNSPECIFIED, 128, Internal::Unspecified),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48, Internal::Tunnel),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64, Internal::Reserved),
    (Ipv6Addr::new(0x100, 0, 0, 1, 0, 0, 0, 0), 64, Internal::Reserved),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 32, Internal::Tunnel),
    (Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0), 48, Internal::Reserved),
    (Ipv6Addr::new(0x2001, 0x10, 0, 0, 0, 0, 0, 0), 28, Internal::Reserved),
    (Ipv6Addr::new(0x2001, 0x20, 0, 0, 0, 0, 0, 0), 28, Internal::Reserved),
    (Ipv6Addr::new(0x5f00, 0, 0, 0, 0, 0, 0, 0), 16, Internal::Reserved),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Internal::Private),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Internal::LinkLocal),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Internal::Private),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Internal::Multicast),
    // What is left of the low range once the wrapped forms were judged: nothing is assigned there.
    (Ipv6Addr::UNSPECIFIED, 8, Internal::Reserved),
    (Ipv6Addr::new(0x200, 0, 0, 0, 0, 0, 0, 0), 7, Internal::Reserved),
];

/// Ranges of IPv6 whose addresses stand for ones of IPv4. The last is any network's: see [`wrapped_v4`].
const WRAPPING: [(Ipv6Addr, u32); 4] = [
    (Ipv6Addr::UNSPECIFIED, 80),
    (Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, 0, 0), 96),
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16),
];

/// Why `address` is not public; `None` where it is.
pub fn internal(address: IpAddr) -> Option<Internal> {
    match address {
        IpAddr::V4(address) => internal_v4(address),
        IpAddr::V6(address) => internal_v6(address),
    }
}

/// Every reason why an address of a range is not public.
pub(super) fn kinds_within(range: &Range) -> Vec<Internal> {
    let whole = |network: IpAddr, length: u32| {
        let prefix = u8::try_from(length).unwrap_or(u8::MAX);
        range.contains(network) || Range::of(network, prefix).contains(range.network())
    };
    let v4 = RANGES_V4.iter().map(|(network, length, why)| (IpAddr::V4(*network), *length, *why));
    let v6 = RANGES_V6.iter().map(|(network, length, why)| (IpAddr::V6(*network), *length, *why));
    let one = METADATA_V4.iter().map(|address| (IpAddr::V4(*address), 32, Internal::Metadata));
    let one = one.chain(METADATA_V6.iter().map(|address| (IpAddr::V6(*address), 128, Internal::Metadata)));
    let mut found: Vec<Internal> = v4
        .chain(v6)
        .chain(one)
        .filter(|(network, length, _)| whole(*network, *length))
        .map(|(_, _, why)| why)
        .collect();
    // Where addresses of the other version are wrapped, any of them may be.
    if WRAPPING.iter().any(|(network, length)| whole(IpAddr::V6(*network), *length)) {
        found.push(Internal::Private);
    }
    found.extend(internal(range.network()));
    found
}

/// The same address without its IPv4-mapped clothes.
pub fn plain(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

/// The address that it leads to in the end: the IPv4 one inside, where there is one.
pub fn bare(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(wrapping) => wrapped_v4(wrapping).map_or(address, IpAddr::V4),
    }
}

fn internal_v4(address: Ipv4Addr) -> Option<Internal> {
    if METADATA_V4.contains(&address) {
        return Some(Internal::Metadata);
    }
    let bits = u32::from(address);
    let within = |(network, length, _): &&(Ipv4Addr, u32, Internal)| {
        (bits ^ u32::from(*network)).checked_shr(32 - length).is_none_or(|rest| rest == 0)
    };
    RANGES_V4.iter().find(within).map(|(_, _, what)| *what)
}

fn internal_v6(address: Ipv6Addr) -> Option<Internal> {
    if METADATA_V6.contains(&address) {
        return Some(Internal::Metadata);
    }
    if let Some(wrapped) = wrapped_v4(address) {
        return internal_v4(wrapped);
    }
    let bits = u128::from(address);
    let within = |(network, length, _): &&(Ipv6Addr, u32, Internal)| {
        (bits ^ u128::from(*network)).checked_shr(128 - length).is_none_or(|rest| rest == 0)
    };
    RANGES_V6.iter().find(within).map(|(_, _, what)| *what)
}

/// The IPv4 address that an IPv6 one stands for.
fn wrapped_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let last = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match address.segments() {
        // `::` and `::1` are no compatible addresses.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        // Compatible, mapped, translated, and the well-known prefix of NAT64.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low]
        // 6to4.
        | [0x2002, high, low, ..]
        // ISATAP.
        | [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => last(high, low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(text: &str) -> Option<Internal> {
        internal(text.parse().expect("the test writes an address"))
    }

    #[test]
    fn what_is_not_public_is_named() {
        for (text, what) in [
            ("0.0.0.0", Internal::Unspecified),
            ("0.1.2.3", Internal::Unspecified),
            ("10.1.2.3", Internal::Private),
            ("100.64.0.1", Internal::Shared),
            ("100.127.255.255", Internal::Shared),
            ("100.100.100.200", Internal::Metadata),
            ("127.0.0.2", Internal::Loopback),
            ("168.63.129.16", Internal::Metadata),
            ("169.254.169.254", Internal::Metadata),
            ("169.254.170.2", Internal::Metadata),
            ("169.254.1.1", Internal::LinkLocal),
            ("172.16.0.1", Internal::Private),
            ("172.31.255.255", Internal::Private),
            ("192.0.0.192", Internal::Metadata),
            ("192.0.0.8", Internal::Reserved),
            ("192.168.1.1", Internal::Private),
            ("198.18.0.1", Internal::Reserved),
            ("198.19.255.255", Internal::Reserved),
            ("224.0.0.251", Internal::Multicast),
            ("240.0.0.1", Internal::Reserved),
            ("255.255.255.255", Internal::Broadcast),
            ("::", Internal::Unspecified),
            ("::1", Internal::Loopback),
            ("::2", Internal::Unspecified),
            ("::127.0.0.1", Internal::Loopback),
            ("::ffff:10.1.2.3", Internal::Private),
            ("::ffff:0:127.0.0.1", Internal::Loopback),
            ("64:ff9b::a9fe:a9fe", Internal::Metadata),
            ("64:ff9b:1::1", Internal::Tunnel),
            ("2002:7f00:1::", Internal::Loopback),
            ("2001::1", Internal::Tunnel),
            ("fe80::1", Internal::LinkLocal),
            ("fec0::1", Internal::Private),
            ("fd00:ec2::254", Internal::Metadata),
            ("fd20:ce::254", Internal::Metadata),
            ("fd12::1", Internal::Private),
            ("fc00::1", Internal::Private),
            ("ff02::fb", Internal::Multicast),
            ("100::1", Internal::Reserved),
            ("2606:4700::5efe:7f00:1", Internal::Loopback),
        ] {
            assert_eq!(judged(text), Some(what), "{text}");
        }
    }

    #[test]
    fn what_is_public_is_left_alone() {
        for text in [
            "1.1.1.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.2.1",
            "198.51.100.7",
            "198.17.255.255",
            "198.20.0.0",
            "203.0.113.9",
            "223.255.255.255",
            "::ffff:203.0.113.9",
            "64:ff9b::cb00:7109",
            "2001:db8::1",
            "2001:4860:4860::8888",
            "2606:4700::1111",
            "3fff::1",
        ] {
            assert_eq!(judged(text), None, "{text}");
        }
    }
}
