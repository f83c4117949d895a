//! A run with a network, run again without one; and what it sent, judged by other rules.

use crate::both_callers::both_callers;
use crate::lab::{Lab, Ran, finish};
use crate::stand::Stand;
use serde_json::Value;

both_callers! {
    answers_come_from_the_tape_and_nothing_leaves
    what_was_not_asked_then_is_refused
    other_rules_refuse_what_was_sent
}

const RULES: [&str; 6] = [
    "--allow",
    "GET,POST https://api.example.com/v1/** with bearer:GH",
    "--allow",
    // Passes unread without a tape.
    "plain.example.com",
    "--allow",
    "http://clear.example.com/**",
];

/// What a run asks for, and all that it is answered.
const SCRIPT: &str = "curl -sS https://api.example.com/v1/one?a=b; curl -sS -d body=1 https://api.example.com/v1/two; \
    curl -sS --http2 https://api.example.com/v1/one?a=b; curl -sS https://plain.example.com/x; \
    curl -sS http://clear.example.com/y; curl -sS -o /dev/null -w '%{http_code}' https://api.example.com/no; \
    curl -sSI https://api.example.com/v1/head 2>&1 | grep -v -i date";

struct Taped {
    stand: Stand,
    first: Ran,
    task: String,
}

impl Taped {
    fn new(lab: &Lab, script: &str) -> Self {
        let stand = Stand::new(lab.caller);
        stand.range.name("*.example.com", &["203.0.113.7"]);
        let flags = [&["--tape", "--secret", "GH=env:HELD"], &RULES[..]].concat();
        let first = stand.inside_with(
            &[("HELD", "ghp_abcdefghijklmnopqrstuvwxyz0123456789")],
            &flags,
            &["sh", "-c", script],
        );
        assert_eq!(first.ran.code(), 0, "{}", first.ran.told());
        let task = stand.record()[0]["task"].as_str().unwrap().to_owned();
        Self { stand, first: first.ran, task }
    }

    /// On the real host, where none of these names is.
    fn replay(&self, flags: &[&str]) -> Ran {
        let mut command = self.stand.lab.fumehood();
        command.args(["replay", &self.task]).args(flags);
        finish(command, b"")
    }
}

fn answers_come_from_the_tape_and_nothing_leaves(lab: &Lab) {
    let taped = Taped::new(lab, SCRIPT);
    assert!(
        taped.first.out().contains("served_by") || taped.first.out().len() > 200,
        "{}",
        taped.first.told()
    );
    let mark = taped.stand.range.mark();
    let again = taped.replay(&["--run"]);
    assert_eq!(again.code(), 0, "{}\n{}", again.told(), taped.first.told());
    let seen = taped.stand.settled(mark);
    assert_eq!(seen.requests(), Vec::<String>::new());
    assert_eq!(seen.names(), Vec::<String>::new());
    // The value of the secret was never near it.
    let tape = taped.stand.lab.state().join("tapes").join(&taped.task);
    for part in ["tape.json", "exchanges.jsonl", "stdout", "stderr"] {
        let text = String::from_utf8_lossy(&std::fs::read(tape.join(part)).unwrap()).into_owned();
        assert!(!text.contains("ghp_abcdefghij"), "{part}");
    }
}

fn what_was_not_asked_then_is_refused(lab: &Lab) {
    let script = "curl -sS https://plain.example.com/$(cat /proc/sys/kernel/random/uuid) > answer; head -c 4 answer | wc -c";
    let taped = Taped::new(lab, script);
    let again = taped.replay(&["--run"]);
    let record = taped.stand.record();
    let denied: Vec<&Value> = record.iter().filter(|line| line["event"] == "egress.denied").collect();
    assert_eq!(denied.len(), 1, "{} {record:?}", again.told());
    assert_eq!(denied[0]["reason"], "not_on_tape", "{denied:?}");
    assert!(again.err().contains("asked for now and not then"), "{}", again.told());
}

fn other_rules_refuse_what_was_sent(lab: &Lab) {
    let taped = Taped::new(lab, SCRIPT);
    let policy = "[network]\nallow = [\"GET https://api.example.com/v1/** with bearer:GH\", \"plain.example.com\"]\n\
                  [credentials]\nsecrets = [\"GH=env:HELD\"]\n";
    taped.stand.lab.file("policy.toml", policy);
    let path = taped.stand.lab.path().join("policy.toml");
    let judged = taped.replay(&["--policy", path.to_str().unwrap(), "--json"]);
    assert_eq!(judged.code(), 1, "{}", judged.told());
    let told: Value = serde_json::from_slice(&judged.stdout).unwrap();
    let acts: Vec<&str> =
        told["different"].as_array().unwrap().iter().map(|one| one["act"].as_str().unwrap()).collect();
    let now: Vec<&str> =
        told["different"].as_array().unwrap().iter().map(|one| one["now"].as_str().unwrap()).collect();
    assert!(acts.iter().any(|act| act.starts_with("POST https://api.example.com/v1/two")), "{told}");
    assert!(acts.iter().any(|act| act.contains("clear.example.com")), "{told}");
    assert!(now.iter().all(|now| now.starts_with("denied: ")), "{told}");
}
