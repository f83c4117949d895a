//! One identity: what is judged is what is dialled, certified and asked for.

use super::bench::{ALLOWED, DENIED, RIGHT, SINK, no_request, nothing_leaves, only, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e17_names_that_only_look_allowed => super::look_alikes;
    e18_spellings_of_a_denied_name => super::spellings;
    e19_names_in_other_scripts => super::scripts;
    e21_confusing_urls => super::confusing_urls;
    e25_no_name_at_all => super::no_name;
    e26_another_name_after_connect => super::another_name;
    e27_fronting => super::fronting;
    e28_absolute_form_against_host => super::absolute_form;
    e29_an_address_with_a_borrowed_host => super::borrowed_host;
    e35_plain_http_is_judged_too => super::plain_http;
}

fn get(host: &str) -> String {
    format!("GET /CANARY HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
}

fn tls_each(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"tls": [name, 443], "send": get(name)})).collect()
}

fn look_alikes(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let names = [
        "evilallowed.test",
        "allowed.test.denied.test",
        "allowed.test-denied.test",
        "xallowed.test",
        "allowed.tes",
        "allowed.test.com",
        "test",
    ];
    nothing_leaves(stand, wall, &["--allow", ALLOWED, "--allow", "*.allowed.test"], &tls_each(&names))
}

fn spellings(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let mut steps = Vec::new();
    for name in [DENIED, "denied.test.", "DENIED.Test", "denied.TEST."] {
        steps.push(json!({"tls": [name, 443], "sni": DENIED, "send": get(name)}));
        steps.push(json!({"connect": format!("{name}:443"), "sni": DENIED, "send": get(name)}));
        steps.push(json!({"absolute": format!("GET http://{name}/CANARY HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n")}));
    }
    nothing_leaves(stand, wall, &["--allow", ALLOWED, "--allow", "http://allowed.test"], &steps.into())
}

fn scripts(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    // Cyrillic, a full-width dot, a soft hyphen, each as a client's library spells it.
    let names = ["xn--llowed-3ve.test", "xn--allowedtest-sl9b", "xn--allwed-dqf.test", "allowed.xn--tst-bma"];
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &tls_each(&names))
}

fn confusing_urls(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let mut steps = Vec::new();
    for target in [
        "http://allowed.test@denied.test/",
        "http://allowed.test:80@denied.test/",
        "http://denied.test:80/#@allowed.test",
        "http://denied.test/..//allowed.test/",
        "http://denied.test?@allowed.test/",
        "http://denied.test/\\@allowed.test",
    ] {
        for host in [ALLOWED, DENIED] {
            steps.push(json!({"absolute": format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")}));
        }
    }
    for url in [
        "http://allowed.test@denied.test/CANARY",
        "http://denied.test/CANARY#@allowed.test",
        "HTTP://DENIED.TEST/CANARY",
        "http://allowed.test%40denied.test@denied.test/",
    ] {
        steps.push(json!({"run": ["curl", "-s", "--max-time", "4", url]}));
    }
    nothing_leaves(stand, wall, &["--allow", "http://allowed.test"], &steps.into())
}

fn no_name(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"connect": format!("{RIGHT}:443"), "sni": ALLOWED, "send": get(ALLOWED)},
        {"connect": format!("{SINK}:443"), "sni": ALLOWED, "send": get(ALLOWED)},
        {"tls": [ALLOWED, 443], "sni": null, "send": get(ALLOWED)},
        {"connect": "allowed.test:443", "sni": null, "send": get(ALLOWED)},
        {"hello": [ALLOWED, 443], "sni": ALLOWED, "kind": "ech"},
        {"hello": [ALLOWED, 443], "sni": "cover.test", "kind": "ech"},
        {"tls": [RIGHT, 443], "sni": ALLOWED, "send": get(ALLOWED)},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn another_name(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"connect": "allowed.test:443", "sni": DENIED, "send": get(DENIED)},
        {"connect": "denied.test:443", "sni": ALLOWED, "send": get(ALLOWED)},
        {"tls": [ALLOWED, 443], "sni": DENIED, "send": get(DENIED)},
        {"tls": [DENIED, 443], "sni": ALLOWED, "send": get(ALLOWED)},
        {"tls": [SINK, 443], "sni": ALLOWED, "send": get(ALLOWED)},
        {"connect": "denied.test:443", "host": "allowed.test:443", "sni": DENIED, "send": get(DENIED)},
        {"hello": [ALLOWED, 443], "sni": DENIED},
    ]);
    nothing_leaves(stand, wall, &["--allow", ALLOWED], &steps)
}

fn fronting(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"tls": [ALLOWED, 443], "sni": ALLOWED, "send": get(DENIED)},
        {"tls": [ALLOWED, 443], "sni": DENIED, "send": get(ALLOWED)},
        {"tls": [ALLOWED, 443], "sni": ALLOWED, "send": "GET https://denied.test/ HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"},
        {"tls": [ALLOWED, 443], "sni": ALLOWED, "send": "GET / HTTP/1.1\r\nHost: allowed.test:8443\r\nConnection: close\r\n\r\n"},
    ]);
    nothing_leaves(stand, wall, &["--allow", "GET https://allowed.test/**"], &steps)
}

fn absolute_form(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"absolute": "GET http://denied.test/CANARY HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"},
        {"absolute": "GET http://allowed.test/CANARY HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"},
        {"tcp": [ALLOWED, 80], "send": "GET http://denied.test/CANARY HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"},
        {"tcp": [ALLOWED, 80], "send": "GET http://allowed.test/CANARY HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"},
    ]);
    // Either refused, or one authority in both places when it arrives: never two.
    let two = |request: &Value| {
        let target = request["target"].as_str().unwrap_or_default();
        request["host"] != ALLOWED || target.contains("denied") || request["to"] != RIGHT
    };
    no_request(stand, wall, &["--allow", "http://allowed.test"], &steps, two)
}

fn borrowed_host(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([{"tcp": [SINK, 80], "send": get(ALLOWED)}, {"tcp": [DENIED, 80], "send": get(ALLOWED)}, {"tcp": [RIGHT, 80], "send": get(ALLOWED)}]);
    nothing_leaves(stand, wall, &["--allow", "http://allowed.test"], &steps)
}

fn plain_http(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let steps = json!([
        {"tcp": [DENIED, 80], "send": get(DENIED)},
        {"absolute": "GET http://denied.test/CANARY HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"},
        {"connect": "denied.test:80", "send": get(DENIED)},
        {"socks": [DENIED, 80], "send": get(DENIED)},
        {"tcp": [ALLOWED, 80], "send": get(ALLOWED)},
    ]);
    only(stand, wall, &["--allow", ALLOWED], &steps, &[])
}
