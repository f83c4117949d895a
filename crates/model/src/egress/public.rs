//! What anybody may be let reach who is not the operator of the host: public places, and nothing of the host's own
//! networks.

use super::address::{self, Internal};
use super::clause::{Opened, is_metadata_name};
use super::host::{Host, Pattern};
use super::rule::Rule;
use std::net::IpAddr;

// === impl Rule ===

impl Rule {
    /// The address that it names, if it names one in place of a name.
    pub fn address(&self) -> Option<IpAddr> {
        match &self.hosts {
            Pattern::Exactly(Host::Address(own)) => Some(address::plain(*own)),
            Pattern::Exactly(Host::Name(_)) | Pattern::Below(_) => None,
        }
    }

    /// Whether it opens public places alone, and uses no secret.
    pub fn is_public(&self) -> bool {
        let hosts = match &self.hosts {
            Pattern::Exactly(Host::Name(name)) | Pattern::Below(name) => {
                name.is_public_form() && !is_metadata_name(name)
            }
            Pattern::Exactly(Host::Address(address)) => address::internal(*address).is_none(),
        };
        hosts && self.binding.is_none()
    }
}

// === impl Opened ===

impl Opened {
    /// Whether it opens public addresses alone: of a range, what is never opened by one does not count.
    pub fn is_public(&self) -> bool {
        let openable = |why: Internal| self.range.is_one() || !why.is_never_opened_by_range();
        !address::kinds_within(&self.range).into_iter().any(openable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_hosts_own_is_not_public() {
        let rule = |text: &str| Rule::parse(text).unwrap().is_public();
        for public in ["api.example.com", "*.example.com", "https://a.example.com/v1", "192.0.2.7:80"] {
            assert!(rule(public), "{public}");
        }
        for own in [
            "host.fumehood.internal:5432",
            "localhost:80",
            "metadata.google.internal",
            "10.0.0.1:80",
            "127.0.0.1:80",
            "169.254.169.254:80",
            "[::1]:80",
            "https://a.example.com/** with bearer:T",
        ] {
            assert!(!rule(own), "{own}");
        }
        let range = |text: &str| Opened::parse(text).unwrap().is_public();
        for public in ["192.0.2.0/24:443", "8.8.8.8/32:53", "[2001:db8::/32]:1-65535"] {
            assert!(range(public), "{public}");
        }
        for own in [
            "127.0.0.1/32:80",
            "169.254.169.254/32:80",
            "10.0.0.0/8:80",
            "10.1.2.0/24:80",
            "8.0.0.0/6:80",
            "172.0.0.0/8:80",
            "192.168.1.1/32:1-65535",
            "100.64.0.0/16:80",
            "[fc00::/8]:80",
            "[fd00:ec2::254/128]:80",
            "[::ffff:0:0:0/96]:80",
            "[::1/128]:80",
        ] {
            assert!(!range(own), "{own}");
        }
    }
}
