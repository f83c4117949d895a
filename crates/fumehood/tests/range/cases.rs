//! Every line of `egress-decisions.jsonl` through the whole path: a client in a sandbox, servers in the range.
//!
//! Asks under the same rules share a sandbox, as long as the name server answers them alike. A verdict comes from what the
//! client got *and* from what the range saw in the stretch of time of that ask.

use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::log::Log;
use crate::range::Range;
use crate::stand::{Seen, Stand, Wall};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Where an allowed name stands unless its line says otherwise, and where every other name does.
const RIGHT: &str = "203.0.113.7";
const WRONG: &str = "203.0.113.66";
/// The exit code of a run that was refused before it began.
const REFUSED: i32 = 125;

both_callers! {
    every_ask_is_decided_as_listed
    every_bad_rule_is_refused_by_name
}

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

fn every_ask_is_decided_as_listed(lab: &Lab) {
    let stand = Stand::new(lab.caller);
    let mut flaws = Vec::new();
    for group in groups() {
        let flags = flags(&group[0].rules);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        for (case, outcome, log) in run(&stand, Wall::Fumehood, &flags, &group) {
            if let Some(flaw) = flaw(&case, &outcome, &log) {
                let Case { id, kind, rules, ask, why, verdict } = case;
                flaws.push(format!("{id} {kind} {rules:?} {ask}: {verdict} ({why}): {flaw}"));
            }
        }
    }
    assert!(flaws.is_empty(), "{} asks were decided otherwise:\n{}", flaws.len(), flaws.join("\n"));
}

fn every_bad_rule_is_refused_by_name(lab: &Lab) {
    let mut flaws = Vec::new();
    for case in read().into_iter().filter(|case| case.verdict == "refuse-rule") {
        let flags = flags(&case.rules);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let ran = lab.run(&flags, &["true"]);
        if ran.code() != REFUSED || !case.rules.iter().all(|rule| ran.err().contains(rule)) {
            flaws.push(format!("{} {:?} ({}): {}", case.id, case.rules, case.why, ran.told()));
        }
    }
    assert!(flaws.is_empty(), "{}", flaws.join("\n"));
}

/// Without a wall, each ask reaches something, or the list could be passed by a broken client.
#[test]
fn without_a_wall_every_ask_is_answered() {
    let stand = Stand::new(crate::lab::Caller::User);
    // What no open network can answer: a name that no resolver takes, a proxy that is not there, a service
    // over UDP, a spelling that every library refuses.
    let unanswerable = ["E006", "E036", "E037", "E038", "E044", "E067"];
    let mut silent = Vec::new();
    for group in groups() {
        for (case, outcome, log) in run(&stand, Wall::Open, &[], &group) {
            let seen = outcome["reached"] == true || case.id == "E067" && log.dialled().iter().any(|line| line.starts_with("udp"));
            if !seen && !unanswerable.contains(&case.id.as_str()) {
                silent.push(format!("{} {}: {outcome}\n{}", case.id, case.ask, log.told()));
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
        let outcome = told.get(&case.id).unwrap_or_else(|| panic!("{}: the client said nothing: {}", case.id, ran.told()));
        let window = log.between(outcome["from"].as_f64().unwrap(), outcome["to"].as_f64().unwrap() + 0.02);
        (case.clone(), outcome.clone(), window)
    });
    judged.collect()
}

/// What the name server answers for this group: the right place for the names of the rules, the wrong one for the rest.
fn prepare(range: &Range, case: &Case) {
    range.name("*", &[WRONG]);
    for name in ["api.example.com", "*.example.com", "example.com", "db.example.com", "www.example.org", "xn--bcher-kva.example"] {
        range.name(name, &[RIGHT]);
    }
    // As the clouds' own resolvers answer it.
    range.name("metadata.google.internal", &["169.254.169.254"]);
    if let Some(addresses) = case.ask["resolves_to"].as_array() {
        let addresses: Vec<&str> = addresses.iter().map(|address| address.as_str().unwrap()).collect();
        range.name(case.ask["host"].as_str().unwrap(), &addresses);
    }
}

/// Why the case was not decided as listed, if so.
fn flaw(case: &Case, outcome: &Value, log: &Log) -> Option<String> {
    let reached = outcome["reached"] == true;
    let told = || format!("the client says {outcome}; the range saw\n{}", log.told());
    match (case.verdict.as_str(), reached) {
        ("allow", false) => Some(format!("stopped: {}", told())),
        ("allow", true) => (!right(case, log)).then(|| format!("reached, but not the right server alone: {}", told())),
        ("deny", true) => Some(format!("reached: {}", told())),
        ("deny", false) => {
            let names = stray_names(case, log);
            let dialled = stray_packets(case, log);
            (!names.is_empty() || !dialled.is_empty()).then(|| format!("{names:?} and {dialled:?} left: {}", told()))
        }
        (verdict, _) => Some(format!("no such verdict: {verdict}")),
    }
}

/// Whether what was seen is the ask, at the right address, and nothing else.
fn right(case: &Case, log: &Log) -> bool {
    if case.ask["dns"].is_string() {
        return log.names().is_empty() && log.dialled().is_empty();
    }
    let address = case.ask["dial_ip"].as_str().unwrap_or(RIGHT);
    let place = format!("tcp {address}:{}", case.ask["port"]);
    if log.dialled() != [place] {
        return false;
    }
    if case.ask["scheme"] == "tcp" {
        return log.all("bytes").count() == 1;
    }
    let host = case.ask["dial_ip"].as_str().or(case.ask["host"].as_str()).unwrap().trim_end_matches('.').to_lowercase();
    let seen: Vec<&Value> = log.all("request").collect();
    let same = |field: &Value| field.as_str().unwrap_or_default().to_lowercase().trim_end_matches('.').split(':').next() == Some(&host);
    let named = |request: &&Value| same(&request["host"]) && (case.ask["scheme"] == "http" || same(&request["sni"]));
    let path = case.ask["path"].as_str().unwrap_or("/");
    seen.len() == 1 && seen.iter().all(named) && seen[0]["target"] == path
}

/// Names that should not have been asked for. An allowed name may be, when it is the answer that is refused.
fn stray_names(case: &Case, log: &Log) -> Vec<String> {
    let allowed = case.ask["resolves_to"].as_array().and(case.ask["host"].as_str());
    let first_hop = case.ask["redirect_from"].as_str().map(|_| "api.example.com");
    log.names().into_iter().filter(|name| Some(name.as_str()) != allowed && Some(name.as_str()) != first_hop).collect()
}

/// Packets that should not have been sent. The first hop of a redirect is allowed.
fn stray_packets(case: &Case, log: &Log) -> Vec<String> {
    let first_hop = format!("tcp {RIGHT}:443");
    let hop = case.ask["redirect_from"].is_string();
    log.dialled().into_iter().filter(|line| !(hop && *line == first_hop)).collect()
}

fn flags(rules: &[String]) -> Vec<String> {
    let split = |rule: &String| match rule.strip_prefix("--net ") {
        Some(level) => ["--net".to_owned(), level.to_owned()],
        None => ["--allow".to_owned(), rule.clone()],
    };
    rules.iter().flat_map(split).collect()
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
    let cases = include_str!("egress-decisions.jsonl").lines().map(|line| {
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
