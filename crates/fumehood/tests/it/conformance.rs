//! The conformance list against the built binary and against its references; the matrix is written
//! beside the build, where `cargo xtask conformance` finds it.

use crate::lab::{Caller, Lab, finish, installed};
use crate::machine;
use crate::subjects::{Bare, Bubblewrap, Fumehood, Microvm, Open};
use fumehood_backend::conformance::{Case, GAPS, Stage, Subject, Verdict, cases, examine};
use fumehood_model::enforcement::Clause;
use fumehood_model::level::Level;
use std::path::Path;

/// Cases that bubblewrap is known not to hold, whoever calls it.
const BUBBLEWRAP_OPEN: &[&str] = &[
    "stray-descriptor-closed",
    "stdin-file-untouched",
    "socket-file-refused",
    "socket-families-by-name",
    "interfaces-can-be-listed",
    "syscalls-filtered",
    "kernel-doors-closed",
    "no-nested-namespaces",
    "kernel-facts-masked",
    "kernel-settings-closed",
    "host-variables-absent",
];

#[test]
fn every_level_called_by_root() {
    if Caller::Root.available() {
        expect_every_level(Caller::Root);
    }
}

#[test]
fn every_level_called_by_a_user() {
    expect_every_level(Caller::User);
}

/// A gap of a level is told to those who read, not only to those who build.
#[test]
fn every_gap_is_named_among_the_limitations() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/limitations.md");
    let text = std::fs::read_to_string(page).unwrap();
    let unnamed: Vec<_> = GAPS.iter().filter(|gap| !text.contains(&format!("`{}`", gap.case))).collect();
    assert!(unnamed.is_empty(), "docs/limitations.md does not name {unnamed:?}");
}

/// The list against each level that the binary itself says it holds here. One that it does not hold here is
/// printed with its reason; a build without any is a failure.
fn expect_every_level(caller: Caller) {
    let lab = Lab::new(caller);
    let mut command = lab.fumehood();
    command.args(["doctor", "--json"]);
    let diagnosis: serde_json::Value = serde_json::from_slice(&finish(command, b"").stdout).unwrap();
    let mut held = 0;
    for state in diagnosis["levels"].as_array().unwrap() {
        let level: Level = serde_json::from_value(state["level"].clone()).unwrap();
        if level == Level::Microvm {
            // With a root that is made in seconds: `a_microvm_called_by_root`.
            continue;
        }
        if state["holds"] == true {
            held += 1;
            expect_all_held(&matrix(&Fumehood(&lab, level), &lab));
        } else {
            let why = state["note"].as_str().map_or_else(|| state["findings"].to_string(), str::to_owned);
            println!("NOT-APPLICABLE: {level} is not held here: {why}");
            absent(level, caller, &why);
        }
    }
    assert!(held > 0, "no level is held here: {diagnosis}");
}

/// Leaves word for the matrix that a level was not there.
fn absent(level: Level, caller: Caller, why: &str) {
    let line = serde_json::json!({ "subject": format!("{level}, {}", caller.word()), "absent": why });
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("absent-{level}-{}.json", caller.word()));
    std::fs::write(place, line.to_string()).unwrap();
}

#[test]
fn process_without_namespaces_called_by_root() {
    if Caller::Root.available() {
        let lab = Lab::new(Caller::Root);
        expect_all_held(&matrix(&Bare(&lab), &lab));
    }
}

#[test]
fn process_without_namespaces_called_by_a_user() {
    let lab = Lab::new(Caller::User);
    expect_all_held(&matrix(&Bare(&lab), &lab));
}

#[test]
fn a_microvm_called_by_root() {
    if machine::available() && Caller::Root.available() {
        let (lab, root) = machine::lab(Caller::Root);
        expect_all_held(&matrix(&Microvm(&lab, &root), &lab));
    }
}

#[test]
fn the_reference_called_by_a_user() {
    if installed("bwrap") {
        let lab = Lab::new(Caller::User);
        expect_reference(&matrix(&Bubblewrap(&lab), &lab));
    }
}

#[test]
fn the_reference_called_by_root() {
    if installed("bwrap") && Caller::Root.available() {
        let lab = Lab::new(Caller::Root);
        expect_reference(&matrix(&Bubblewrap(&lab), &lab));
    }
}

/// Without walls, every case that looks for a canary or tries a door must turn red.
#[test]
fn without_walls_the_cases_turn_red() {
    if !Caller::Root.available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let green: Vec<_> = matrix(&Open(&lab), &lab)
        .into_iter()
        .filter(|(case, verdict)| {
            let wall = matches!(
                case.clause,
                Some(Clause::Filesystem | Clause::Network | Clause::Privilege | Clause::Credentials)
            );
            wall && *verdict == Verdict::Held && case.name != "own-loopback-works"
        })
        .map(|(case, _)| case.name)
        .collect();
    assert!(green.is_empty(), "these cases can not fail: {green:?}");
}

fn expect_all_held(matrix: &[(Case, Verdict)]) {
    let bad: Vec<_> = matrix
        .iter()
        .filter(|(_, verdict)| {
            !matches!(verdict, Verdict::Held | Verdict::NotApplicable(_) | Verdict::Gap(_))
        })
        .map(|(case, verdict)| format!("{}: {verdict}", case.name))
        .collect();
    assert!(bad.is_empty(), "{} of {} cases:\n{}", bad.len(), matrix.len(), bad.join("\n"));
}

fn expect_reference(matrix: &[(Case, Verdict)]) {
    let bad: Vec<_> = matrix
        .iter()
        .filter(|(case, verdict)| match verdict {
            Verdict::Held | Verdict::NotApplicable(_) | Verdict::Gap(_) => false,
            Verdict::Breached(_) => !BUBBLEWRAP_OPEN.contains(&case.name),
            Verdict::Inconclusive(_) => true,
        })
        .map(|(case, verdict)| format!("{}: {verdict}", case.name))
        .collect();
    assert!(bad.is_empty(), "the list asks too much:\n{}", bad.join("\n"));
}

/// Examines every case, prints the verdicts, and writes them beside the build.
fn matrix(subject: &dyn Subject, lab: &Lab) -> Vec<(Case, Verdict)> {
    let mut rows = Vec::new();
    let mut lines = String::new();
    for case in cases() {
        // One place for each level: some share a lab.
        let place = lab.path().join("stages").join(subject.name().replace([',', ' '], "-")).join(case.name);
        let stage = Stage::new(place).unwrap();
        lab.give_all(stage.dir());
        let verdict = examine(&case, subject, &stage);
        println!("{:<12} {:<36} {verdict}", case.group(), case.name);
        let line = serde_json::json!({
            "subject": subject.name(), "case": case.name, "group": case.group(), "says": case.says,
            "verdict": verdict.word(), "reason": verdict.reason(),
        });
        lines.push_str(&format!("{line}\n"));
        rows.push((case, verdict));
    }
    let file = subject.name().replace(", ", "-").replace(' ', "-");
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("conformance-{file}.jsonl"));
    std::fs::write(place, lines).unwrap();
    rows
}
