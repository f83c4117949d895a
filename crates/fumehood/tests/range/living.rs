//! A sandbox that lives on has the same wall, and its record has each act of the network once.

use crate::both_callers::both_callers;
use crate::lab::{Lab, Ran, finish};
use crate::stand::Stand;
use serde_json::Value;

both_callers! {
    what_left_and_what_did_not_stand_in_the_record_once
}

fn what_left_and_what_did_not_stand_in_the_record_once(lab: &Lab) {
    const ALLOWED: usize = 7;
    const DENIED: usize = 5;
    let stand = Stand::new(lab.caller);
    stand.range.name("*.example.com", &["203.0.113.7"]);
    let told = |words: &[&str]| -> Ran {
        let mut command = stand.lab.fumehood();
        command.args(words);
        let ran = finish(stand.range.enter(&command), b"");
        assert_eq!(ran.code(), 0, "{words:?}: {}", ran.told());
        ran
    };
    let made = told(&["create", "--allow", "GET https://api.example.com/v1/**"]).out();
    let id = made.trim();
    let mark = stand.range.mark();
    let script = format!(
        "for i in $(seq {ALLOWED}); do curl -sS -o /dev/null https://api.example.com/v1/$i; done; \
         for i in $(seq {DENIED}); do curl -sS -o /dev/null https://api.example.com/other; done"
    );
    told(&["exec", id, "--", "sh", "-c", &script]);
    let seen = stand.settled(mark);
    told(&["stop", id]);
    let shown = told(&["audit", "show", "--json", id]).out();
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name: &str| lines.iter().filter(|line| line["event"] == name).collect::<Vec<_>>();
    let count = |name: &str| of(name).iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum::<u64>();
    // The range saw what was let out, and nothing else.
    let requests = seen.requests();
    assert_eq!(requests.len(), ALLOWED, "{requests:?}");
    assert_eq!(count("egress.allowed"), ALLOWED as u64, "{shown}");
    assert_eq!(count("egress.ended"), ALLOWED as u64, "{shown}");
    assert_eq!(count("egress.denied"), DENIED as u64, "{shown}");
    for (line, request) in of("egress.allowed").iter().zip(&requests) {
        let path = line["path"].as_str().unwrap();
        assert_eq!(*request, format!("GET api.example.com {path}"));
    }
    told(&["audit", "verify"]);
}
