//! Address ranges, in the usual notation.

use serde::{Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;

/// `10.1.0.0/16`, `fd12::/32`, or one address. The bits past the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    network: IpAddr,
    prefix: u8,
}

// === impl Range ===

impl Range {
    /// Reads a range; a prefix of zero is refused, for that is everything.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let network: IpAddr = address.parse().map_err(|_| "it is no address in its usual spelling")?;
        if network != super::address::plain(network) {
            return Err("write an IPv4 address as one");
        }
        let most = if network.is_ipv4() { 32 } else { 128 };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()) && text.len() <= 3;
        let prefix: u8 = match prefix {
            None => most,
            Some(text) if digits(text) => text.parse().map_err(|_| "its length is no number")?,
            Some(_) => return Err("its length is no number"),
        };
        if prefix > most {
            return Err("its length is more than the address has bits");
        }
        if prefix == 0 {
            return Err("that is every address; `--net proxy` opens the public ones");
        }
        let range = Self { network, prefix };
        if range.low_bits() != 0 {
            return Err("the address has bits beyond the length");
        }
        Ok(range)
    }

    /// One that is known to be well formed: bits past the prefix do not matter to it.
    pub(super) const fn of(network: IpAddr, prefix: u8) -> Self {
        Self { network, prefix }
    }

    /// Its first address.
    pub(super) const fn network(&self) -> IpAddr {
        self.network
    }

    /// Whether the address is one of these.
    pub fn contains(&self, address: IpAddr) -> bool {
        let shift = |bits: u32| bits.saturating_sub(u32::from(self.prefix));
        match (self.network, super::address::plain(address)) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (u32::from(network) ^ u32::from(address)).checked_shr(shift(32)).is_none_or(|rest| rest == 0)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => (u128::from(network) ^ u128::from(address))
                .checked_shr(shift(128))
                .is_none_or(|rest| rest == 0),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }

    /// Whether every address of `other` is one of `self`'s.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.network)
    }

    /// Whether it is one address, named as such.
    pub fn is_one(&self) -> bool {
        self.prefix == if self.network.is_ipv4() { 32 } else { 128 }
    }

    fn low_bits(&self) -> u128 {
        let (bits, width) = match self.network {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        let kept = width - u32::from(self.prefix);
        bits & 1_u128.checked_shl(kept).map_or(u128::MAX, |bit| bit - 1)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

impl Serialize for Range {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
