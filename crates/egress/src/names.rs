//! Names and the addresses that stand for them inside.
//!
//! **Invariant:** a name keeps its addresses, and an address its name, as long as the wall stands.

use fumehood_model::egress::Name;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// More names than a build asks for, and few enough to be no way out of data.
pub const MOST_NAMES: usize = 4096;
/// The gateway's own address: no name has it.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);

const POOL_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const PREFIX_V4_BITS: u32 = 15;
const POOL_V6: Ipv6Addr = Ipv6Addr::new(0xfd66, 0x756d, 0x6568, 1, 0, 0, 0, 0);
const PREFIX_V6_BITS: u32 = 64;
/// `.0.0` names the network and `.0.1` is the gateway.
const FIRST: usize = 2;

/// The names that were given addresses.
#[derive(Debug, Default)]
pub struct Names {
    places: HashMap<Name, usize>,
    names: Vec<Name>,
}

/// The two addresses of one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Synthetic {
    pub v4: Ipv4Addr,
    pub v6: Ipv6Addr,
}

/// What an address inside stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    Name(&'a Name),
    /// An address of the pools that was given to nobody.
    Nobody,
    /// An address of the world.
    Literal,
}

// === impl Names ===

impl Names {
    /// The addresses of a name, the same ones each time. `None` when all are given away.
    pub fn give(&mut self, name: &Name) -> Option<Synthetic> {
        if let Some(place) = self.places.get(name) {
            return Some(Synthetic::at(*place));
        }
        let place = self.names.len();
        if place >= MOST_NAMES {
            return None;
        }
        self.names.push(name.clone());
        self.places.insert(name.clone(), place);
        Some(Synthetic::at(place))
    }

    /// Whether the name has addresses already.
    pub fn knows(&self, name: &Name) -> bool {
        self.places.contains_key(name)
    }

    /// What an address stands for, mapped forms included.
    pub fn meaning(&self, address: IpAddr) -> Meaning<'_> {
        let place = match address.to_canonical() {
            IpAddr::V4(address) => {
                let offset = u32::from(address) ^ u32::from(POOL_V4);
                if offset >> (32 - PREFIX_V4_BITS) != 0 {
                    return Meaning::Literal;
                }
                usize::try_from(offset).ok()
            }
            IpAddr::V6(address) => {
                let offset = u128::from(address) ^ u128::from(POOL_V6);
                if offset >> (128 - PREFIX_V6_BITS) != 0 {
                    return Meaning::Literal;
                }
                usize::try_from(offset).ok()
            }
        };
        let name = place.and_then(|place| self.names.get(place.checked_sub(FIRST)?));
        name.map_or(Meaning::Nobody, Meaning::Name)
    }
}

// === impl Synthetic ===

impl Synthetic {
    fn at(place: usize) -> Self {
        let offset = u32::try_from(place.saturating_add(FIRST)).unwrap_or(u32::MAX);
        Self {
            v4: Ipv4Addr::from(u32::from(POOL_V4).saturating_add(offset)),
            v6: Ipv6Addr::from(u128::from(POOL_V6).saturating_add(u128::from(offset))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    #[test]
    fn a_name_keeps_its_addresses_and_they_lead_back() {
        let mut names = Names::default();
        let first = names.give(&name("api.example.com")).unwrap();
        let second = names.give(&name("db.example.com")).unwrap();
        assert_ne!(first, second);
        assert_eq!(names.give(&name("API.example.com.")), Some(first));
        assert_eq!(first.v4, Ipv4Addr::new(198, 18, 0, 2));
        assert_eq!(first.v6, "fd66:756d:6568:1::2".parse::<Ipv6Addr>().unwrap());
        let db = name("db.example.com");
        for address in [IpAddr::V4(second.v4), IpAddr::V6(second.v6), IpAddr::V6(second.v4.to_ipv6_mapped())]
        {
            assert_eq!(names.meaning(address), Meaning::Name(&db), "{address}");
        }
    }

    #[test]
    fn the_rest_of_the_pools_is_nobody_and_the_world_is_literal() {
        let mut names = Names::default();
        names.give(&name("api.example.com")).unwrap();
        for address in [
            "198.18.0.0",
            "198.18.0.1",
            "198.18.0.3",
            "198.19.255.255",
            "fd66:756d:6568:1::",
            "fd66:756d:6568:1:ffff::2",
        ] {
            assert_eq!(names.meaning(address.parse().unwrap()), Meaning::Nobody, "{address}");
        }
        for address in ["198.17.0.2", "198.20.0.2", "203.0.113.1", "fd66:756d:6568::2", "::2"] {
            assert_eq!(names.meaning(address.parse().unwrap()), Meaning::Literal, "{address}");
        }
    }

    #[test]
    fn there_is_an_end_to_names() {
        let mut names = Names::default();
        for number in 0..MOST_NAMES {
            assert!(names.give(&name(&format!("n{number}.example.com"))).is_some());
        }
        assert_eq!(names.give(&name("one-more.example.com")), None);
        assert!(names.give(&name("n7.example.com")).is_some());
    }
}
