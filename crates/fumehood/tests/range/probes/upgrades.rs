//! Connections that become something else: only a WebSocket, and only where it was asked for.

use super::bench::{ALLOWED, attempt, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e38_another_protocol => super::unknown;
    s16_fields_for_a_proxy => super::proxy_fields;
}

const RULES: &[&str] = &["--allow", "http://allowed.test", "--allow", "https://allowed.test/**"];

/// The server switches, asked or not; what the client says after it must not arrive.
fn unknown(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let asks = [
        "Connection: Upgrade\r\nUpgrade: unheard-of\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket, unheard-of\r\n",
        "",
        "Connection: Upgrade\r\nUpgrade: h2c\r\n",
    ];
    let steps: Value = asks
        .iter()
        .flat_map(|ask| {
            let text = format!("GET /raw/switch HTTP/1.1\r\nHost: allowed.test\r\n{ask}\r\n");
            [
                json!({"tcp": [ALLOWED, 80], "send": text, "then": "CANARY after the switch"}),
                json!({"tls": [ALLOWED, 443], "send": text, "then": "CANARY after the switch"}),
            ]
        })
        .collect();
    let seen = match attempt(stand, wall, RULES, &steps) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    let after = seen.log.all("after-switch").count();
    if wall == Wall::Open && after < asks.len() * 2 {
        return Verdict::Inconclusive(format!(
            "only {after} were switched: {}\n{}",
            seen.ran.told(),
            seen.log.told()
        ));
    }
    if after == 0 && !seen.ran.out().contains("bytes after the switch") {
        return Verdict::Held;
    }
    Verdict::Breached(format!("{}\n{}", seen.ran.told(), seen.log.told()))
}

/// What a client tells its proxy is no server's business.
fn proxy_fields(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let text = |target: &str| {
        format!(
            "GET {target} HTTP/1.1\r\nHost: allowed.test\r\nProxy-Authorization: Basic CANARY\r\nProxy-Connection: close\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\n\r\n"
        )
    };
    let steps = json!([
        {"absolute": text("http://allowed.test/x")}, {"tcp": [ALLOWED, 80], "send": text("/x")}, {"tls": [ALLOWED, 443], "send": text("/x")},
    ]);
    let seen = match attempt(stand, wall, RULES, &steps) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    let heads: Vec<String> =
        seen.log.all("request").map(|request| request["head"].to_string().to_lowercase()).collect();
    if heads.len() < 3 {
        return Verdict::Inconclusive(format!("{heads:?}: {}", seen.ran.told()));
    }
    if heads.iter().any(|head| head.contains("proxy-") || head.contains("x-hop")) {
        return Verdict::Breached(format!("{heads:?}"));
    }
    Verdict::Held
}
