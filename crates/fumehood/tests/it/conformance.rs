//! The conformance list against the built binary and against its references; the matrix is written
//! beside the build, where `cargo xtask conformance` finds it.

use crate::lab::{Caller, Lab, installed};
use crate::machine;
use crate::subjects::{Bubblewrap, Fumehood, Microvm, Open};
use fumehood_backend::conformance::{Case, Stage, Subject, Verdict, cases, examine};
use fumehood_model::enforcement::Clause;
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

/// Cases that a machine is known not to hold; each is told in `docs/limitations.md`.
const MICROVM_OPEN: &[&str] = &[];

#[test]
fn fumehood_called_by_root() {
    if Caller::Root.available() {
        let lab = Lab::new(Caller::Root);
        expect_all_held(&matrix(&Fumehood(&lab), &lab));
    }
}

#[test]
fn fumehood_called_by_a_user() {
    let lab = Lab::new(Caller::User);
    expect_all_held(&matrix(&Fumehood(&lab), &lab));
}

#[test]
fn a_microvm_called_by_root() {
    if machine::available() && Caller::Root.available() {
        let (lab, root) = machine::lab(Caller::Root);
        expect_held_but(&matrix(&Microvm(&lab, &root), &lab), MICROVM_OPEN);
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
    expect_held_but(matrix, &[]);
}

fn expect_held_but(matrix: &[(Case, Verdict)], open: &[&str]) {
    let bad: Vec<_> = matrix
        .iter()
        .filter(|(case, _)| !open.contains(&case.name))
        .filter(|(_, verdict)| !matches!(verdict, Verdict::Held | Verdict::NotApplicable(_)))
        .map(|(case, verdict)| format!("{}: {verdict}", case.name))
        .collect();
    assert!(bad.is_empty(), "{} of {} cases:\n{}", bad.len(), matrix.len(), bad.join("\n"));
}

fn expect_reference(matrix: &[(Case, Verdict)]) {
    let bad: Vec<_> = matrix
        .iter()
        .filter(|(case, verdict)| match verdict {
            Verdict::Held | Verdict::NotApplicable(_) => false,
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
        let stage = Stage::new(lab.path().join("stages").join(case.name)).unwrap();
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
