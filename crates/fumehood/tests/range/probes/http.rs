//! HTTP: every request is judged, and there is one reading of where it begins and ends.

use super::bench::{ALLOWED, no_request, only, zone};
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e30_odd_hosts => super::odd_hosts;
    e32_smuggling => super::smuggling;
    e34_a_second_request_on_the_connection => super::second_request;
    e37_redirects => super::redirects;
    e51_pushing_under_a_read_rule => super::pushing;
}

const RULE: &[&str] =
    &["--allow", "GET,POST https://allowed.test/ok/**", "--allow", "GET,POST http://allowed.test/ok/**"];

fn odd_hosts(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let heads = [
        "Host: allowed.test\r\nHost: denied.test\r\n",
        "Host: allowed.test\r\nHost: allowed.test\r\n",
        "Host: allowed.test:1\r\n",
        "Host: allowed.test\r\n denied.test\r\n",
        "Host : allowed.test\r\n",
        "Host:\r\n",
        "",
        "Host: allowed.test, denied.test\r\n",
        "Host: allowed.test@denied.test\r\n",
        "Host: allowed.test/\r\n",
        "X: y\r\n Host: allowed.test\r\n",
    ];
    let steps: Vec<Value> = heads
        .iter()
        .flat_map(|head| {
            let text = format!("GET /ok/ HTTP/1.1\r\n{head}Connection: close\r\n\r\n");
            [json!({"tls": [ALLOWED, 443], "send": text}), json!({"tcp": [ALLOWED, 80], "send": text})]
        })
        .collect();
    no_request(stand, wall, RULE, &steps.into(), |_| true)
}

fn smuggling(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let hidden = "GET /admin HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n";
    let post =
        |fields: &str, body: &str| format!("POST /ok/ HTTP/1.1\r\nHost: allowed.test\r\n{fields}\r\n{body}");
    let length = hidden.len() + 5;
    let chunked = format!("0\r\n\r\n{hidden}");
    let texts = [
        post(&format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n"), &chunked),
        post(&format!("Transfer-Encoding: chunked\r\nContent-Length: {length}\r\n"), &chunked),
        post(&format!("Content-Length: {length}\r\nTransfer-Encoding:\tchunked\r\n"), &chunked),
        post(&format!("Content-Length: {length}\r\nTransfer-Encoding: xchunked\r\n"), &chunked),
        post(&format!("Content-Length: {length}\r\nTransfer-Encoding : chunked\r\n"), &chunked),
        post(&format!("Content-Length: {length}\r\nTransfer-Encoding: identity, chunked\r\n"), &chunked),
        post(&format!("Content-Length: 0\r\nContent-Length: {}\r\n", hidden.len()), hidden),
        post("Content-Length: 0\r\n", hidden),
        post("Content-Length: +0\r\n", hidden),
        post("Transfer-Encoding: chunked\r\n", &format!("0;a=\n\r\n{hidden}")),
        format!("GET /ok/ HTTP/1.1\nHost: allowed.test\n\n{hidden}"),
        format!("GET /ok/ HTTP/1.1\r\nHost: allowed.test\r\nX: a\n\n{hidden}"),
    ];
    let steps: Vec<Value> = texts
        .iter()
        .flat_map(|text| {
            [json!({"tls": [ALLOWED, 443], "send": text}), json!({"tcp": [ALLOWED, 80], "send": text})]
        })
        .collect();
    no_request(stand, wall, RULE, &steps.into(), |request| request["target"] == "/admin")
}

fn second_request(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let ok = "GET /ok/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n";
    let texts = [
        format!("{ok}GET /admin HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"),
        format!("{ok}{ok}DELETE /ok/ HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"),
        format!("{ok}GET /ok/ HTTP/1.1\r\nHost: denied.test\r\nConnection: close\r\n\r\n"),
        format!("{ok}GET /ok/../admin HTTP/1.1\r\nHost: allowed.test\r\nConnection: close\r\n\r\n"),
    ];
    let steps: Vec<Value> = texts
        .iter()
        .flat_map(|text| {
            [json!({"tls": [ALLOWED, 443], "send": text}), json!({"tcp": [ALLOWED, 80], "send": text})]
        })
        .collect();
    no_request(stand, wall, RULE, &steps.into(), |request| {
        request["method"] == "DELETE" || request["host"] != ALLOWED || request["target"] != "/ok/"
    })
}

fn redirects(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let targets = [
        "http://denied.test/",
        "http://10.1.2.3/",
        "http://169.254.169.254/latest",
        "http://[fd00:ec2::254]/",
        "http://allowed.test:8080/",
        "https://denied.test/",
    ];
    let follow = |to: &&str| json!({"run": ["curl", "-skL", "-g", "--max-time", "5", format!("http://allowed.test/redirect?to={to}")]});
    let steps: Value = targets.iter().map(follow).collect();
    only(stand, wall, &["--allow", "http://allowed.test"], &steps, &["tcp 203.0.113.7:80"])
}

/// The repository is the judge: its branch must not move.
fn pushing(stand: &Stand, wall: Wall) -> Verdict {
    zone(stand);
    let repository = stand.range.repository("one.git");
    let script = "git clone -q https://allowed.test/git/one.git one && cd one && echo more >> README && \
                  git -c user.name=A -c user.email=a@example.com commit -qam CANARY; echo cloned $?; git push -q origin HEAD:main";
    let steps = json!([{"run": ["sh", "-c", script]}]);
    let seen = match super::bench::attempt(
        stand,
        wall,
        &["--allow", "git-read https://allowed.test/git/one.git"],
        &steps,
    ) {
        Ok(seen) => seen,
        Err(verdict) => return verdict,
    };
    if !seen.ran.out().contains("cloned 0") {
        return Verdict::Inconclusive(format!("the clone itself failed: {}", seen.ran.told()));
    }
    let head = std::fs::read_to_string(repository.folder.join("refs/heads/main")).unwrap();
    if head.trim() == repository.commit {
        Verdict::Held
    } else {
        Verdict::Breached(format!("main moved to {head}"))
    }
}
