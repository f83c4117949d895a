//! The host and its neighbours: what stands beside the sandbox is as far away as the internet.

use super::bench::{ALLOWED, GET, nothing_leaves, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e03_the_host_by_every_usual_address => super::host_addresses;
    e04_whoever_listens_to_a_group => super::groups;
    e44_no_rule_at_all => super::no_rule;
}

fn host_addresses(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    stand.range.name("host.docker.internal", &["192.168.65.254"]);
    let hosts = [
        "127.0.0.1",
        "::1",
        "10.0.2.2",
        "192.168.127.1",
        "192.168.127.254",
        "192.168.65.2",
        "172.17.0.1",
        "192.0.2.1",
        "2001:db8::1",
        "host.docker.internal",
    ];
    // Ports that the range's host listens on, and one that it does not.
    let steps: Vec<Value> = hosts
        .iter()
        .flat_map(|host| [22, 3000, 8888, 4].map(|port| json!({"tcp": [host, port], "send": GET})))
        .collect();
    nothing_leaves(stand, wall, &["--net", "proxy"], &steps.into())
}

fn groups(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"udp": ["224.0.0.251", 5353], "send": "CANARY"}, {"udp": ["239.255.255.250", 1900], "send": "CANARY"},
        {"udp": ["224.0.0.252", 5355], "send": "CANARY"}, {"udp": ["ff02::fb%lo", 5353], "send": "CANARY"},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

/// Without a rule, whatever else is asked for on the way, nothing leaves.
fn no_rule(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"tcp": ["198.51.100.66", 443], "send": GET}, {"tls": [ALLOWED, 443], "send": GET}, {"udp": ["198.51.100.66", 53], "send": "CANARY"},
        {"dns": ["192.0.2.53", "CANARY.denied.test", "A"]}, {"run": ["getent", "ahosts", "CANARY.denied.test"]},
        {"connect": "denied.test:443", "sni": "denied.test", "send": GET}, {"socks": ["denied.test", 80], "send": GET},
    ]);
    nothing_leaves(stand, wall, &[], &steps)
}
