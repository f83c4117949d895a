//! The verdicts behind the wall: `mod held;` in `mod.rs` makes them tests, once there is a wall.

use super::{Case, RIGHT, groups, read, run};
use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::log::Log;
use crate::stand::{Stand, Wall};
use serde_json::Value;

/// The exit code of a run that was refused before it began.
const REFUSED: i32 = 125;

both_callers! {
    every_ask_is_decided_as_listed
    every_bad_rule_is_refused_by_name
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

/// Why the case was not decided as listed, if so.
fn flaw(case: &Case, outcome: &Value, log: &Log) -> Option<String> {
    let reached = outcome["reached"] == true;
    let told = || format!("the client says {outcome}; the range saw\n{}", log.told());
    match (case.verdict.as_str(), reached) {
        ("allow", false) => Some(format!("stopped: {}", told())),
        ("allow", true) => {
            (!right(case, log)).then(|| format!("reached, but not the right server alone: {}", told()))
        }
        ("deny", true) => Some(format!("reached: {}", told())),
        ("deny", false) => {
            let names = stray_names(case, log);
            let dialled = stray_packets(case, log);
            (!names.is_empty() || !dialled.is_empty())
                .then(|| format!("{names:?} and {dialled:?} left: {}", told()))
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
    // A connection that is still open may be used again: then there is a request, and no new packet.
    if log.dialled().iter().any(|line| *line != place) {
        return false;
    }
    if case.ask["scheme"] == "tcp" {
        return log.all("bytes").count() == 1;
    }
    let host = case.ask["dial_ip"]
        .as_str()
        .or(case.ask["host"].as_str())
        .unwrap()
        .trim_end_matches('.')
        .to_lowercase();
    let seen: Vec<&Value> = log.all("request").collect();
    let same = |field: &Value| {
        field.as_str().unwrap_or_default().to_lowercase().trim_end_matches('.').split(':').next()
            == Some(&host)
    };
    let named = |request: &&Value| {
        let there = request["to"] == address && request["port"] == case.ask["port"];
        there && same(&request["host"]) && (case.ask["scheme"] == "http" || same(&request["sni"]))
    };
    let path = case.ask["path"].as_str().unwrap_or("/");
    seen.len() == 1 && seen.iter().all(named) && seen[0]["target"] == path
}

/// Names that should not have been asked for. An allowed name may be, when it is the answer that is refused.
fn stray_names(case: &Case, log: &Log) -> Vec<String> {
    let allowed = case.ask["resolves_to"].as_array().and(case.ask["host"].as_str());
    let first_hop = case.ask["redirect_from"].as_str().map(|_| "api.example.com");
    log.names()
        .into_iter()
        .filter(|name| Some(name.as_str()) != allowed && Some(name.as_str()) != first_hop)
        .collect()
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
