//! Whatever stands where a host and a port should is one place in one spelling, or none.

#![no_main]

use fumehood_egress::proxy::connect::Connect;
use fumehood_model::egress::{Host, Identity, Name, Rule, Scheme};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Connect::To { host, port } = Connect::parse(bytes) {
        again(&host);
        assert_ne!(port, 0);
        // Nothing may follow: with one more byte it is another request.
        assert!(!matches!(Connect::parse(&[bytes, b"x"].concat()), Connect::To { .. }));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    for scheme in [Scheme::Https, Scheme::Http, Scheme::Tcp] {
        if let Ok(identity) = Identity::from_authority(scheme, text) {
            again(&identity.host);
            assert!(identity.is_named_by(&identity.authority()) || scheme == Scheme::Tcp);
            let whole = format!("{}:{}", identity.host, identity.port());
            assert_eq!(Identity::from_authority(scheme, &whole), Ok(identity));
        }
    }
    if let Ok(host) = Host::parse(text) {
        again(&host);
    }
    if let Ok(rule) = Rule::parse(text) {
        assert_eq!(Rule::parse(&rule.to_string()), Ok(rule));
    }
});

fn again(host: &Host) {
    let text = host.to_string();
    assert_eq!(Host::parse(&text).as_ref(), Ok(host), "{text}");
    if let Host::Name(name) = host {
        assert!(name.as_str().parse::<std::net::IpAddr>().is_err());
        assert_eq!(Name::parse(name.as_str()).as_ref(), Ok(name));
    }
}
