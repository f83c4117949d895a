//! The tools behind the wall: `mod held;` in `daily.rs` makes these tests, once there is a wall.

use super::{Setting, tools};
use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::stand::Wall;

both_callers! {
    with_rules_that_let_tls_pass
    with_rules_that_look_inside
    without_a_rule_and_told_why
}

fn with_rules_that_let_tls_pass(lab: &Lab) {
    all_work(lab, |tool| tool.passing);
}

fn with_rules_that_look_inside(lab: &Lab) {
    all_work(lab, |tool| tool.opened);
}

/// Each fails, nothing leaves, and standard error of the run names the host.
fn without_a_rule_and_told_why(lab: &Lab) {
    let setting = Setting::new(lab.caller);
    let mut flaws = Vec::new();
    for tool in tools() {
        let seen = setting.run(tool, Wall::Fumehood, &["elsewhere.example.org"]);
        let told = seen.ran.err().contains(".example.com");
        println!("{} || {}", tool.name, denial(&seen.ran.err()));
        if seen.ran.code() == 0 || !told || !seen.log.dialled().is_empty() || !seen.log.names().is_empty() {
            flaws.push(format!("{}: {}\n{}", tool.name, seen.ran.told(), seen.log.told()));
        }
    }
    assert!(flaws.is_empty(), "{} of {}:\n{}", flaws.len(), tools().count(), flaws.join("\n"));
}

/// What the tool itself says about it: the words that `docs/daily-use.md` shows.
fn denial(err: &str) -> String {
    let mut own = err.lines().rev().filter(|line| !line.starts_with("fumehood:") && !line.trim().is_empty());
    own.next().unwrap_or_default().trim().chars().take(160).collect()
}

fn all_work(lab: &Lab, rules: fn(&super::Tool) -> &'static [&'static str]) {
    let setting = Setting::new(lab.caller);
    let mut flaws = Vec::new();
    for tool in tools().filter(|tool| !rules(tool).is_empty()) {
        let seen = setting.run(tool, Wall::Fumehood, rules(tool));
        println!("{:<42} {}", tool.name, seen.ran.code());
        if seen.ran.code() != 0 {
            flaws.push(format!("{}: {}\n{}", tool.name, seen.ran.told(), seen.log.told()));
        }
    }
    assert!(flaws.is_empty(), "{} tools do not work:\n{}", flaws.len(), flaws.join("\n"));
}
