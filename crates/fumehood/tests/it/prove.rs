//! The self-test of the built binary: green here, red where a wall is open, and gone when it is over.

use crate::both_callers::both_callers;
use crate::escape::survivors;
use crate::lab::{self, Lab, Ran, finish};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

both_callers! {
    every_wall_is_held_and_every_control_is_red
    the_report_stands_in_the_record
    a_killed_self_test_leaves_nothing
    a_level_that_is_not_here_is_refused
}

/// Where canaries are put.
fn scratch(lab: &Lab) -> PathBuf {
    lab.folder("scratch")
}

fn prove(lab: &Lab, words: &[&str]) -> Ran {
    let scratch = scratch(lab);
    let mut command = lab.fumehood();
    command.arg("prove").args(words).env("TMPDIR", &scratch);
    let ran = finish(command, b"");
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?} are left");
    ran
}

fn every_wall_is_held_and_every_control_is_red(lab: &Lab) {
    let full = std::env::var_os("FUMEHOOD_TEST_FULL").is_some();
    let ran = if full { prove(lab, &["--json"]) } else { prove(lab, &["--json", "--quick"]) };
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.told()));
    let rows = report["rows"].as_array().unwrap();
    let bad: Vec<String> = rows
        .iter()
        .filter(|row| row["verdict"] != "HELD" && row["verdict"] != "NOT-APPLICABLE")
        .map(|row| format!("{} {}: {}", row["id"], row["verdict"], row["reason"]))
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(ran.code(), 0);
    let held: Vec<&Value> = rows.iter().filter(|row| row["verdict"] == "HELD").collect();
    assert_eq!(report["counts"]["held"], held.len());
    // As many controls that turned red as probes that are said to be held.
    let red =
        held.iter().filter(|row| !matches!(row["control"].as_str(), None | Some("" | "nothing"))).count();
    assert_eq!(red, held.len());
    assert!(red >= 50, "{red}");
    assert_eq!(report["policy_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(report["level"], "container");
}

fn the_report_stands_in_the_record(lab: &Lab) {
    let page = lab.path().join("report.html");
    let ran = prove(lab, &["--json", "--wall", "record", "--html", page.to_str().unwrap()]);
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap();
    let mut command = lab.fumehood();
    command.args(["audit", "show", "--json", report["task"].as_str().unwrap()]);
    let shown = finish(command, b"").out();
    let lines: Vec<Value> = shown.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ended = lines.iter().find(|line| line["event"] == "prove.ended").unwrap();
    let text = ran.out();
    let digest: String =
        Sha256::digest(text.trim_end().as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(ended["report_sha256"], digest);
    assert_eq!(ended["held"], report["counts"]["held"]);
    assert!(lines.iter().any(|line| line["event"] == "prove.started" && line["walls"] == "record"));
    let mut command = lab.fumehood();
    command.args(["audit", "verify"]);
    assert_eq!(finish(command, b"").code(), 0);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains(&digest) && html.contains("HELD") && !html.contains("src="), "{html}");
    // A report is never written over.
    assert_eq!(prove(lab, &["--html", page.to_str().unwrap()]).code(), 125);
}

fn a_killed_self_test_leaves_nothing(lab: &Lab) {
    let scratch = scratch(lab);
    let mark = scratch.join("fumehood-prove-").display().to_string();
    let mut command = lab.fumehood();
    command
        .arg("prove")
        .env("TMPDIR", &scratch)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // In the middle of it: sandboxes run, a network is there.
    let busy = lab::poll(lab::DEADLINE, || survivors(&mark).len() > 6);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(busy, "it did not come to attack anything");
    let gone = lab::poll(Duration::from_secs(40), || {
        std::fs::read_dir(&scratch).unwrap().next().is_none() && survivors(&mark).is_empty()
    });
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().flatten().map(|entry| entry.path()).collect();
    assert!(gone, "{left:?}, processes {:?}", survivors(&mark));
}

fn a_level_that_is_not_here_is_refused(lab: &Lab) {
    // A module is no program: there is nothing to attack it with.
    let ran = prove(lab, &["--level", "wasm"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(ran.err().contains("remedy"), "{}", ran.told());
    assert_eq!(prove(lab, &["--wall", "garden"]).code(), 2);
}
