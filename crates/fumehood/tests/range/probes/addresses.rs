//! Addresses: internal ones in every spelling, by name and by number, under the widest setting.

use super::bench::{ALLOWED, GET, RIGHT, nothing_leaves, only, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e12_an_allowed_name_at_an_internal_address => super::internal_answers;
    e12_an_allowed_name_that_is_another_name => super::another_name;
    e13_rebinding => super::rebinding;
    e14_metadata_by_ipv4 => super::metadata_v4;
    e15_metadata_by_ipv6_and_by_name => super::metadata_v6;
    e22_spellings_of_ipv4 => super::spellings;
    e23_ipv4_inside_ipv6 => super::wrappers;
    e24_special_ranges => super::special;
}

const PROXY: &[&str] = &["--net", "proxy"];
/// One of each kind of address that no name may lead to.
pub(crate) const INTERNAL: &[&str] = &[
    "127.0.0.1",
    "127.0.0.2",
    "169.254.169.254",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "100.100.100.200",
    "0.0.0.0",
    "::1",
    "fd00:ec2::254",
    "fc00::1",
    "fe80::1",
    "::ffff:10.1.2.3",
    "64:ff9b::a01:203",
    "64:ff9b:1::a01:203",
    "2002:a01:203::1",
];

fn internal_answers(stand: &Stand, wall: Wall) -> Verdict {
    let mut steps: Vec<Value> = Vec::new();
    for (place, address) in INTERNAL.iter().filter(|address| **address != "fe80::1").enumerate() {
        let name = format!("n{place}.{ALLOWED}");
        stand.range.name(&name, &[address]);
        steps.push(json!({"tcp": [name, 80], "send": format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")}));
    }
    // The name is one of a rule, so that asking for it is right; dialling the answer is not.
    only(stand, wall, &["--allow", "http://*.allowed.test"], &steps.into(), &["none"])
}

/// The question for the other name is the name server's own doing: nobody inside chose it.
fn another_name(stand: &Stand, wall: Wall) -> Verdict {
    stand.range.zone(ALLOWED, &json!({"cname": "inside.test"}));
    stand.range.name("inside.test", &["10.1.2.3"]);
    let steps = json!([{"tcp": [ALLOWED, 80], "send": "GET / HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"}]);
    only(stand, wall, &["--allow", "http://allowed.test"], &steps, &["query for inside.test"])
}

/// The first answer is public, the next internal; then a mixed answer, of which only the public part may be dialled.
fn rebinding(stand: &Stand, wall: Wall) -> Verdict {
    stand.range.zone(ALLOWED, &json!({"answers": [[RIGHT], ["10.1.2.3"], ["169.254.169.254"]], "ttl": 0}));
    stand.range.name("mixed.allowed.test", &["10.1.2.3", RIGHT, "fd00:ec2::254"]);
    let get = |name: &str| json!({"tcp": [name, 80], "send": format!("GET / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")});
    let flags = ["--allow", "http://allowed.test", "--allow", "http://mixed.allowed.test"];
    let right = format!("tcp {RIGHT}:80");
    let all = json!([
        get(ALLOWED),
        get(ALLOWED),
        get(ALLOWED),
        get("mixed.allowed.test"),
        get("mixed.allowed.test")
    ]);
    let seen = match super::bench::attempt(stand, wall, &flags, &all) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    let dialled = seen.log.dialled();
    if dialled.iter().any(|line| *line != right) {
        return Verdict::Breached(format!("{dialled:?}"));
    }
    if dialled.is_empty() {
        return Verdict::Inconclusive(format!(
            "not even the public address was dialled: {}",
            seen.ran.told()
        ));
    }
    Verdict::Held
}

fn metadata_v4(stand: &Stand, wall: Wall) -> Verdict {
    let addresses = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "168.63.129.16"];
    nothing_leaves(stand, wall, PROXY, &dial_each(&addresses))
}

fn metadata_v6(stand: &Stand, wall: Wall) -> Verdict {
    for name in ["metadata.google.internal", "metadata", "instance-data", "instance-data.ec2.internal"] {
        stand.range.name(name, &["169.254.169.254"]);
    }
    let names = [
        "fd00:ec2::254",
        "fd20:ce::254",
        "metadata.google.internal",
        "metadata",
        "instance-data",
        "metadata.google.internal.",
    ];
    nothing_leaves(stand, wall, PROXY, &dial_each(&names))
}

fn spellings(stand: &Stand, wall: Wall) -> Verdict {
    let mut steps = Vec::new();
    for host in
        ["2130706433", "0x7f.1", "0177.0.0.1", "127.1", "0x7f000001", "0xa9fea9fe", "2852039166", "10.66051"]
    {
        steps.push(
            json!({"tcp": [host, 80], "send": "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"}),
        );
        steps.push(json!({"connect": format!("{host}:443"), "sni": host, "send": GET}));
        steps.push(json!({"absolute": format!("GET http://{host}/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")}));
        steps.push(
            json!({"socks": [host, 80], "send": "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"}),
        );
    }
    stand.range.name("127.0.0.1.nip.test", &["127.0.0.1"]);
    steps.push(json!({"connect": "127.0.0.1.nip.test:80", "send": GET}));
    if wall == Wall::Open {
        return nothing_leaves(stand, wall, PROXY, &steps.into());
    }
    // A name may be asked for under this level; an address of this host may not be dialled.
    no_packet(stand, wall, PROXY, &steps.into())
}

fn wrappers(stand: &Stand, wall: Wall) -> Verdict {
    let mut steps = Vec::new();
    for host in [
        "::ffff:169.254.169.254",
        "::ffff:0:a9fe:a9fe",
        "::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "2001:0:a9fe:a9fe::1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2001:db8::5efe:a9fe:a9fe",
        "::ffff:7f00:1",
        "64:ff9b::7f00:1",
    ] {
        // A documentation prefix stands for a public one: an address that only looks translated is judged as it is.
        if host.starts_with("2001:db8") {
            continue;
        }
        steps.push(
            json!({"tcp": [host, 80], "send": "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"}),
        );
        steps.push(json!({"connect": format!("[{host}]:80"), "send": GET}));
    }
    nothing_leaves(stand, wall, PROXY, &steps.into())
}

fn special(stand: &Stand, wall: Wall) -> Verdict {
    let addresses = [
        "0.0.0.0",
        "::",
        "127.0.0.2",
        "100.64.0.1",
        "192.0.0.9",
        "198.19.255.1",
        "240.0.0.1",
        "192.168.0.1",
        "172.31.0.1",
    ];
    let datagrams = json!([
        {"udp": ["255.255.255.255", 9], "send": "CANARY"}, {"udp": ["224.0.0.251", 5353], "send": "CANARY"},
        {"tcp": ["0.0.0.0", 80], "send": "GET / HTTP/1.1\r\n\r\n"},
    ]);
    zone(stand);
    let verdict = nothing_leaves(stand, wall, PROXY, &dial_each(&addresses));
    if verdict == Verdict::Held { no_packet(stand, wall, PROXY, &datagrams) } else { verdict }
}

fn dial_each(hosts: &[&str]) -> Value {
    let step = |host: &&str| json!({"tcp": [host, 80], "send": format!("GET /latest/CANARY HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")});
    hosts.iter().map(step).collect()
}

fn no_packet(stand: &Stand, wall: Wall, flags: &[&str], steps: &Value) -> Verdict {
    match super::bench::attempt(stand, wall, flags, steps) {
        Ok(seen) if seen.log.dialled().is_empty() => Verdict::Held,
        Ok(seen) => Verdict::Breached(format!("{:?}", seen.log.dialled())),
        Err(verdict) => verdict,
    }
}
