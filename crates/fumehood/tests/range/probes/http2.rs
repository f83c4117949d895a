//! HTTP/2: each stream is judged by itself, and names the host of its connection.

use super::bench::{ALLOWED, DENIED, RIGHT, attempt, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e27_fronting_over_http2 => super::fronting;
    e28_a_whole_url_in_the_path => super::whole_urls;
    e31_two_authorities => super::two_authorities;
    e31_a_tunnel_in_a_stream => super::tunnels;
    e31_coalescing => super::coalescing;
    e34_each_stream_is_judged => super::streams;
    e31_an_upgrade_to_http2 => super::upgrade;
}

const RULES: &[&str] = &[
    "--allow",
    "GET https://allowed.test/ok/**",
    "--allow",
    "GET https://two.allowed.test/ok/**",
    "--allow",
    "http://allowed.test",
];

type Fields = Vec<(String, String)>;

fn fields(all: &[(&str, &str)]) -> Fields {
    all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn get(authority: &str, path: &str) -> Fields {
    fields(&[(":method", "GET"), (":scheme", "https"), (":authority", authority), (":path", path)])
}

fn with(mut all: Fields, name: &str, value: &str) -> Fields {
    all.push((name.to_owned(), value.to_owned()));
    all
}

/// Each of the streams on a connection of its own, after one that is in order.
fn each(stand: &Stand, wall: Wall, streams: &[Fields]) -> Verdict {
    zone(stand);
    let step = |stream: &Fields| json!({"h2": [ALLOWED, 443], "sni": ALLOWED, "streams": [get(ALLOWED, "/ok/first"), stream]});
    let steps: Value = streams.iter().map(step).collect();
    judge(stand, wall, &steps, streams.len())
}

/// Held if the requests that are in order arrived, and no other one did. In the open, every other one has to.
fn judge(stand: &Stand, wall: Wall, steps: &Value, good: usize) -> Verdict {
    let seen = match attempt(stand, wall, RULES, steps) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    let bad = |request: &&Value| {
        let target = request["target"].as_str().unwrap_or_default();
        let head = request["head"].as_str().unwrap_or_default();
        request["host"] != ALLOWED
            || !(target.starts_with("/ok/") || target == "/plain")
            || [DENIED, "%2e"].iter().any(|word| head.contains(word))
            || target.contains("..")
            || request["method"] != "GET"
            || request["to"] != RIGHT
            || (!request["sni"].is_null() && request["sni"] != request["host"])
            || head.matches("authority:").count() > 1
            || head.to_lowercase().contains("h2c")
    };
    let first = seen.log.all("request").filter(|request| request["target"] == "/ok/first").count();
    if first < good {
        return Verdict::Inconclusive(format!(
            "{first} of {good} good ones: {}\n{}",
            seen.ran.told(),
            seen.log.told()
        ));
    }
    let strays: Vec<String> =
        seen.log.all("request").filter(bad).map(|request| request["head"].to_string()).collect();
    if wall == Wall::Open && strays.len() < steps.as_array().unwrap().len() {
        return Verdict::Inconclusive(format!("only {strays:?}: {}\n{}", seen.ran.told(), seen.log.told()));
    }
    if strays.is_empty() {
        Verdict::Held
    } else {
        Verdict::Breached(format!("{strays:?}\n{}", seen.ran.told()))
    }
}

fn fronting(stand: &Stand, wall: Wall) -> Verdict {
    let hosts = [
        DENIED,
        "allowed.test:8443",
        "allowed.test.denied.test",
        "allowed.test@denied.test",
        "10.1.2.3",
        "two.allowed.test",
    ];
    each(stand, wall, &hosts.map(|host| get(host, "/ok/x")))
}

fn whole_urls(stand: &Stand, wall: Wall) -> Verdict {
    each(
        stand,
        wall,
        &[
            get(ALLOWED, "https://denied.test/"),
            get(ALLOWED, "//denied.test/"),
            get(ALLOWED, "ok/x"),
            get(ALLOWED, "*"),
        ],
    )
}

fn two_authorities(stand: &Stand, wall: Wall) -> Verdict {
    let good = get(ALLOWED, "/ok/x");
    each(
        stand,
        wall,
        &[
            with(good.clone(), ":authority", DENIED),
            with(good, ":authority", ALLOWED),
            with(get(DENIED, "/ok/x"), "host", ALLOWED),
        ],
    )
}

fn tunnels(stand: &Stand, wall: Wall) -> Verdict {
    let extended = fields(&[
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", ALLOWED),
        (":path", "/ok/x"),
    ]);
    each(
        stand,
        wall,
        &[
            fields(&[(":method", "CONNECT"), (":authority", "denied.test:443")]),
            fields(&[(":method", "CONNECT"), (":authority", "allowed.test:443")]),
            extended,
        ],
    )
}

/// Two names at one address: a browser would use one connection for both.
fn coalescing(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"h2": [ALLOWED, 443], "sni": ALLOWED, "streams": [get(ALLOWED, "/ok/first"), get("two.allowed.test", "/ok/x")]},
        {"h2": [ALLOWED, 443], "sni": ALLOWED, "streams": [get("two.allowed.test", "/ok/x"), get(ALLOWED, "/ok/first")]},
    ]);
    judge(stand, wall, &steps, 2)
}

fn streams(stand: &Stand, wall: Wall) -> Verdict {
    let post =
        fields(&[(":method", "POST"), (":scheme", "https"), (":authority", ALLOWED), (":path", "/ok/x")]);
    each(
        stand,
        wall,
        &[get(ALLOWED, "/admin"), get(ALLOWED, "/ok/../admin"), get(ALLOWED, "/ok/%2e%2e/admin"), post],
    )
}

fn upgrade(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let text = "GET /plain HTTP/1.1\r\nHost: allowed.test\r\nConnection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n";
    judge(stand, wall, &json!([{"tcp": [ALLOWED, 80], "send": text}]), 0)
}
