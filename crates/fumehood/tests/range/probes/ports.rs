//! Packets that no rule names: other ports, other protocols, other ways.

use super::bench::{ALLOWED, DENIED, GET, RIGHT, SINK, SINK_V6, nothing_leaves, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::json;

super::probes! {
    e01_a_program_that_ignores_proxy_variables => super::ignoring_variables;
    e02_an_unlisted_port_of_an_allowed_host => super::unlisted_port;
    e05_datagrams => super::datagrams;
    e06_echo_requests => super::echo_requests;
    e16_the_same_over_ipv6 => super::over_ipv6;
    e40_from_a_nested_network => super::nested;
    e52_a_server_that_speaks_first => super::server_first;
}

fn ignoring_variables(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"tcp": [SINK, 443], "send": GET}, {"tcp": [SINK, 80], "send": "GET /CANARY HTTP/1.1\r\n\r\n"},
        {"run": ["env", "-i", "curl", "-sk", "--noproxy", "*", "--max-time", "4", format!("https://{SINK}/CANARY")]},
        {"run": ["env", "-i", "NO_PROXY=*", "curl", "-s", "--max-time", "4", format!("http://{DENIED}/CANARY")]},
        {"tls": [SINK, 443], "sni": ALLOWED, "send": "GET /CANARY HTTP/1.1\r\n\r\n"},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn unlisted_port(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let ports = [22, 25, 80, 5432, 8443, 9999, 4];
    let steps: Vec<_> = ports.iter().map(|port| json!({"tcp": [ALLOWED, port], "send": GET})).collect();
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps.into())
}

fn datagrams(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"udp": [SINK, 443], "send": "CANARY"}, {"udp": [SINK_V6, 443], "send": "CANARY"},
        {"udp": [ALLOWED, 443], "send": "CANARY"}, {"udp": [RIGHT, 443], "send": "CANARY"},
        {"udp": [SINK, 9], "send": "CANARY"}, {"udp": [SINK, 123], "send": "CANARY"},
        {"udp": ["127.0.0.1", 9], "send": "CANARY"},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn echo_requests(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([{"icmp": SINK, "send": "CANARY"}, {"icmp": SINK_V6, "send": "CANARY"}, {"icmp": RIGHT, "send": "CANARY"}]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn over_ipv6(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"tcp": [SINK_V6, 443], "send": GET}, {"tcp": [SINK_V6, 80], "send": GET}, {"tcp": [SINK_V6, 22]},
        {"tls": [SINK_V6, 443], "sni": ALLOWED, "send": "GET /CANARY HTTP/1.1\r\n\r\n"},
        {"udp": [SINK_V6, 53], "send": "CANARY"}, {"tcp": ["::ffff:198.51.100.66", 80], "send": GET},
        {"tcp": ["2606:4700::1111", 853], "send": GET},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

/// In the open a fresh namespace has no route either; there the step itself is the control.
fn nested(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let step = json!({"tcp": [SINK, 80], "send": GET});
    let steps = if wall == Wall::Open { json!([step]) } else { json!([{"nested": step}]) };
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn server_first(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps =
        json!([{"tcp": [DENIED, 25]}, {"tcp": [DENIED, 22]}, {"tcp": [SINK, 9000]}, {"tcp": [SINK, 22]}]);
    nothing_leaves(stand, wall, &["--allow", "allowed.test:22", "--allow", "allowed.test:25"], &steps)
}
