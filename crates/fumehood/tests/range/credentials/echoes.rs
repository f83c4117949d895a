//! What a server sends back of a secret is masked, however it is written and packed.

use super::{Held, found};
use crate::both_callers::both_callers;
use crate::lab::Lab;

both_callers! {
    an_echo_is_masked
    an_echo_of_a_value_full_of_signs_is_masked
    an_echo_in_a_websocket_is_masked
}

const RULE: &[&str] = &["--allow", "https://api.example.com/echo with bearer:GH"];
const CODINGS: &[&str] =
    &["plain", "gzip", "deflate", "br", "zstd", "base64", "hex", "percent", "json", "reversed"];

fn an_echo_is_masked(lab: &Lab) {
    masked(&Held::new(lab));
}

/// What is escaped in JSON, in URLs and in HTML.
fn an_echo_of_a_value_full_of_signs_is_masked(lab: &Lab) {
    masked(&Held::of(lab, format!("k\"{}\\/+%&<>'=~{}", super::word(12), super::word(12))));
}

fn masked(held: &Held) {
    // Beside the sandbox, the same asks give it away: the search is not blind.
    let beside = held.beside(&script("-H \"Authorization: Bearer $GH\"").replace("export GH='", "GH='"));
    let plain = !held.value.contains('\'');
    assert!(!plain || found(&beside.ran.stdout, &held.value).is_some(), "{}", beside.ran.told());
    let seen = held.sh(RULE, &script(""));
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    let asks = seen.log.all("request").count();
    assert_eq!(asks, CODINGS.len() * 7 + 1, "{}", seen.ran.told());
    for request in seen.log.all("request") {
        assert_eq!(super::field(request, "authorization"), format!("Bearer {}", held.value), "{request}");
    }
    for line in seen.ran.out().lines() {
        assert_eq!(found(line.as_bytes(), &held.value), None, "{line}");
    }
    assert_eq!(found(&seen.ran.stdout, &held.value), None);
    // The answers are there: their heads, and the echo of the request around the mask.
    assert!(seen.ran.out().matches("x-echo: Bearer ").count() >= asks, "{}", seen.ran.told());
    assert!(seen.ran.out().matches("GET /echo?as=plain").count() >= 7, "{}", seen.ran.told());
}

/// Each coding whole, in parts, over both versions, and with trailers; then what `TRACE` says.
fn script(fields: &str) -> String {
    let mut script = String::new();
    for coding in CODINGS {
        let curl = format!("curl -gsSi {fields} -H 'Accept-Encoding: gzip, deflate, br, zstd'");
        let url = format!("'https://api.example.com/echo?as={coding}");
        for (flags, more) in [
            ("--http1.1 --compressed", ""),
            ("--http2 --compressed", ""),
            ("--http1.1 --compressed", "&split=1"),
            ("--http1.1 --compressed", "&split=7"),
            ("--http2 --compressed", "&split=13"),
            ("--http1.1 --compressed", "&split=40&trailers=1"),
            ("--http2 --compressed", "&trailers=1"),
        ] {
            script += &format!("{curl} {flags} {url}{more}' || exit 9; echo; ");
        }
    }
    script + &format!("curl -gsSi {fields} -X TRACE https://api.example.com/echo")
}

fn an_echo_in_a_websocket_is_masked(lab: &Lab) {
    let held = Held::new(lab);
    let script = "/usr/bin/python3 - <<'END'\nimport asyncio, websockets\n\
                  async def main():\n    async with websockets.connect('wss://api.example.com/echo') as socket:\n        print(await socket.recv())\n        await socket.send('still here')\n        print(await socket.recv())\n\
                  asyncio.run(main())\nEND";
    let seen = held.sh(RULE, script);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert!(
        seen.ran.out().contains("GET /echo") && seen.ran.out().contains("still here"),
        "{}",
        seen.ran.told()
    );
    assert_eq!(found(&seen.ran.stdout, &held.value), None, "{}", seen.ran.told());
    let request = seen.log.all("request").next().unwrap();
    assert_eq!(super::field(request, "authorization"), format!("Bearer {}", held.value), "{request}");
}
