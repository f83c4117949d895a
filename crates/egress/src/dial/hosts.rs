//! The host's own list of names, `/etc/hosts`.

use fumehood_model::egress::Name;
use std::net::IpAddr;

/// Every address that the list has for a name.
pub(super) fn addresses(list: &str, name: &Name) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in list.lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else { continue };
        if words.any(|word| Name::parse(word).is_ok_and(|listed| listed == *name)) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_aliases_are_found() {
        let list = "127.0.0.1 localhost\n203.0.113.7\tDB.example.com db # api.example.com\n\
                    2001:db8::7 db.example.com\n300.1.1.1 db.example.com\nrubbish\n";
        let of = |name: &str| addresses(list, &Name::parse(name).unwrap());
        let both: Vec<IpAddr> = vec!["203.0.113.7".parse().unwrap(), "2001:db8::7".parse().unwrap()];
        assert_eq!(of("db.example.com"), both);
        assert_eq!(of("db"), both[..1]);
        assert_eq!(of("api.example.com"), Vec::<IpAddr>::new());
    }
}
