//! TLS to the upstream: verification is never off.

use super::bench::{RIGHT, no_request};
use crate::range::Flaw;
use crate::stand::{Stand, Wall};
use fumehood_backend::conformance::Verdict;
use serde_json::{Value, json};

super::probes! {
    e47_a_server_that_is_not_who_it_says => super::false_server;
}

/// The client inside verifies nothing: if the request arrives, the wall did not look either.
fn false_server(stand: &Stand, wall: Wall) -> Verdict {
    let flaws = [Flaw::Expired, Flaw::SelfSigned, Flaw::WrongName, Flaw::UnknownAuthority];
    let mut steps: Vec<Value> = Vec::new();
    for (place, flaw) in flaws.into_iter().enumerate() {
        let name = format!("n{place}.allowed.test");
        stand.range.name(&name, &[RIGHT]);
        stand.range.certificate(&name, Some(flaw));
        let text = format!("GET /CANARY HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n");
        steps.push(json!({"tls": [name, 443], "send": text}));
    }
    no_request(stand, wall, &["--allow", "GET https://*.allowed.test/**"], &steps.into(), |_| true)
}
