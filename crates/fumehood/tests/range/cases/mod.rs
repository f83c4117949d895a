//! Every line of `egress-decisions.jsonl` through the whole path: a client in a sandbox, servers in the range.
//!
//! Asks under the same rules share a sandbox, as long as the name server answers them alike. A verdict comes from what the
//! client got *and* from what the range saw in the stretch of time of that ask. `held.rs` judges; here is what both sides of
//! the wall share, and the control: without a wall every ask must be answered.

mod held;

use crate::log::Log;
use crate::range::Range;
use crate::stand::{Seen, Stand, Wall};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Where an allowed name stands unless its line says otherwise, and where every other name does.
const RIGHT: &str = "203.0.113.7";
const WRONG: &str = "203.0.113.66";

/// One line of the list.
#[derive(Clone, Debug)]
struct Case {
    id: String,
    kind: String,
    rules: Vec<String>,
    ask: Value,
    verdict: String,
    why: String,
}

/// Without a wall, each ask reaches something, or the list could be passed by a broken client.
#[test]
fn without_a_wall_every_ask_is_answered() {
    let stand = Stand::new(crate::lab::Caller::User);
    // What no open network can answer: a name that no resolver takes, a proxy that is not there, a
    // spelling that every library refuses.
    let unanswerable = ["E006", "E036", "E037", "E038", "E044"];
    let mut silent = Vec::new();
    for group in groups() {
        for (case, outcome, log) in run(&stand, Wall::Open, &[], &group) {
            let seen = match case.id.as_str() {
                // Neither answers, and both are seen to leave.
                "E067" => log.dialled().iter().any(|line| line.starts_with("udp")),
                "E045" => log.has("evil"),
                _ => outcome["reached"] == true,
            };
            if !seen && !unanswerable.contains(&case.id.as_str()) {
                let Case { id, kind, rules, ask, verdict, why } = &case;
                silent.push(format!(
                    "{id} {kind} {rules:?} {ask}: {verdict} ({why}): {outcome}\n{}",
                    log.told()
                ));
            }
        }
    }
    assert!(silent.is_empty(), "{} asks prove nothing:\n{}", silent.len(), silent.join("\n"));
}

/// Runs a group in one sandbox; each case with its outcome and what the range saw meanwhile.
fn run(stand: &Stand, wall: Wall, flags: &[&str], group: &[Case]) -> Vec<(Case, Value, Log)> {
    prepare(&stand.range, &group[0]);
    let authority = stand.lab.file("authority.pem", std::fs::read(stand.range.authority()).unwrap());
    let asks: Vec<Value> = group.iter().map(|case| json!({"id": case.id, "ask": case.ask})).collect();
    let mut all: Vec<&str> = flags.to_vec();
    all.extend(["--in", authority.to_str().unwrap()]);
    let Seen { ran, log } = stand.client(wall, &all, "ask.py", &[&Value::from(asks).to_string()]);
    let told: BTreeMap<String, Value> = ran
        .out()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|outcome| (outcome["id"].as_str().unwrap().to_owned(), outcome))
        .collect();
    let judged = group.iter().map(|case| {
        let outcome = told
            .get(&case.id)
            .unwrap_or_else(|| panic!("{}: the client said nothing: {}", case.id, ran.told()));
        let window = log.between(outcome["from"].as_f64().unwrap(), outcome["to"].as_f64().unwrap() + 0.02);
        (case.clone(), outcome.clone(), window)
    });
    judged.collect()
}

/// What the name server answers for this group: the right place for the names of the rules, the wrong one for the rest.
fn prepare(range: &Range, case: &Case) {
    range.zone("*", &json!({"answers": [[WRONG]], "txt": ["text"]}));
    for name in [
        "api.example.com",
        "*.example.com",
        "example.com",
        "db.example.com",
        "www.example.org",
        "xn--bcher-kva.example",
    ] {
        range.name(name, &[RIGHT]);
    }
    // As the clouds' own resolvers answer it.
    range.name("metadata.google.internal", &["169.254.169.254"]);
    if let Some(addresses) = case.ask["resolves_to"].as_array() {
        let addresses: Vec<&str> = addresses.iter().map(|address| address.as_str().unwrap()).collect();
        range.name(case.ask["host"].as_str().unwrap(), &addresses);
    }
}

/// The asks, in groups that one sandbox and one zone serve.
fn groups() -> Vec<Vec<Case>> {
    let mut groups: BTreeMap<(Vec<String>, String), Vec<Case>> = BTreeMap::new();
    for case in read().into_iter().filter(|case| !case.ask.is_null()) {
        groups.entry((case.rules.clone(), case.ask["resolves_to"].to_string())).or_default().push(case);
    }
    groups.into_values().collect()
}

fn read() -> Vec<Case> {
    let words = |value: &Value| value.as_str().unwrap().to_owned();
    let cases = include_str!("../egress-decisions.jsonl").lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        Case {
            id: words(&line["id"]),
            kind: words(&line["kind"]),
            rules: line["rules"].as_array().unwrap().iter().map(words).collect(),
            ask: line["ask"].clone(),
            verdict: words(&line["verdict"]),
            why: words(&line["why"]),
        }
    });
    cases.collect()
}
