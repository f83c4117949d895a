//! What was once told of the first bytes of a connection stays true when more come.

#![no_main]

use fumehood_egress::classify::{First, judge_name};
use fumehood_model::egress::{Host, Name};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let whole = First::look(bytes);
    for end in 0..bytes.len().min(64) {
        let part = First::look(&bytes[..end]);
        assert!(part == First::More || part == whole, "{end}: {part:?}, then {whole:?}");
    }
    if let First::Tls(hello) = whole {
        let dialled = Host::Name(Name::parse("api.example.com").expect("a name"));
        if judge_name(&hello, &dialled).is_ok() {
            let sent = hello.server_name.expect("a name was sent");
            assert!(sent.trim_end_matches('.').eq_ignore_ascii_case("api.example.com"));
        }
    }
});
