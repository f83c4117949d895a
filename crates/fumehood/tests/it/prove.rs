//! The self-test of the built binary: green here, red where a wall is open, and gone when it is over.

use crate::both_callers::both_callers;
use crate::escape::survivors;
use crate::lab::{self, Caller, Lab, Ran, finish, installed};
use crate::machine;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

both_callers! {
    every_wall_is_held_and_every_control_is_red
    every_wall_of_the_process_level_is_held
    every_probe_turns_red_with_its_wall_open
    the_report_stands_in_the_record
    a_killed_self_test_leaves_nothing
    a_level_that_is_not_here_is_refused
}

/// Where canaries are put.
fn scratch(lab: &Lab) -> PathBuf {
    lab.folder("scratch")
}

/// A whole self-test, on a busy machine, where sandboxes take a second each to start.
const PATIENCE: Duration = Duration::from_secs(400);

fn prove(lab: &Lab, words: &[&str]) -> Ran {
    let scratch = scratch(lab);
    let mut command = lab.fumehood();
    command.arg("prove").args(words).env("TMPDIR", &scratch);
    let ran = lab::finish_within(command, b"", PATIENCE);
    let left: Vec<_> = std::fs::read_dir(&scratch).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?} are left");
    ran
}

/// The rows of a report, and how the whole ended.
fn report(lab: &Lab, words: &[&str]) -> (Value, i32) {
    let full = std::env::var_os("FUMEHOOD_TEST_FULL").is_some();
    let extent: &[&str] = if full { &["--json"] } else { &["--json", "--quick"] };
    let ran = prove(lab, &[extent, words].concat());
    let report = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.told()));
    (report, ran.code())
}

/// At least so many are held at a level, each with a control that turned red, and nothing that could be asked is not.
fn expect_held(lab: &Lab, level: &str, least: usize, words: &[&str]) {
    let (report, code) = report(lab, &[&["--level", level], words].concat());
    let rows = report["rows"].as_array().unwrap();
    let bad: Vec<String> = rows
        .iter()
        .filter(|row| row["verdict"] != "HELD" && row["verdict"] != "NOT-APPLICABLE")
        .map(|row| format!("{} {}: {}", row["id"], row["verdict"], row["reason"]))
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(code, 0);
    let held: Vec<&Value> = rows.iter().filter(|row| row["verdict"] == "HELD").collect();
    assert_eq!(report["counts"]["held"], held.len());
    // As many controls that turned red as probes that are said to be held.
    let red =
        held.iter().filter(|row| !matches!(row["control"].as_str(), None | Some("" | "nothing"))).count();
    assert_eq!(red, held.len());
    assert!(red >= least, "{red}");
    // What was not asked says why.
    let silent = rows.iter().find(|row| row["verdict"] == "NOT-APPLICABLE" && row["reason"] == "");
    assert!(silent.is_none(), "{silent:?}");
    assert_eq!(report["policy_sha256"].as_str().unwrap().len(), 64);
    assert_eq!(report["level"], level);
}

fn every_wall_is_held_and_every_control_is_red(lab: &Lab) {
    expect_held(lab, "container", 60, &[]);
}

fn every_wall_of_the_process_level_is_held(lab: &Lab) {
    expect_held(lab, "process", 60, &[]);
}

#[cfg(feature = "wasm")]
both_callers! { every_wall_of_the_wasm_level_is_held }

#[cfg(feature = "wasm")]
fn every_wall_of_the_wasm_level_is_held(lab: &Lab) {
    expect_held(lab, "wasm", 14, &[]);
    let (report, code) = report(lab, &["--level", "wasm", "--open-walls"]);
    assert_eq!(
        (code, &report["counts"]["held"], &report["counts"]["broken"]),
        (0, &0.into(), &0.into()),
        "{report}"
    );
}

#[test]
#[cfg(feature = "gvisor")]
fn every_wall_of_the_gvisor_level_is_held() {
    if !(installed("runsc") && Caller::Root.available()) {
        return println!("NOT-APPLICABLE: gVisor's self-test wants root and `runsc`");
    }
    expect_held(&Lab::new(Caller::Root), "gvisor", 60, &[]);
}

#[test]
#[cfg(feature = "microvm")]
fn every_wall_of_the_microvm_level_is_held() {
    if machine::available() && Caller::Root.available() {
        let (lab, root) = machine::lab(Caller::Root);
        expect_held(&lab, "microvm", 50, &["--accept-tcg", "--image", root.to_str().unwrap()]);
    }
}

/// Every probe of the catalogue, judged where its wall is open: one that stays green there could never turn red.
fn every_probe_turns_red_with_its_wall_open(lab: &Lab) {
    let ran = prove(lab, &["--json", "--open-walls"]);
    let report: Value = serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.told()));
    let rows = report["rows"].as_array().unwrap();
    let green: Vec<String> = rows
        .iter()
        .filter(|row| row["verdict"] != "BREACHED" && row["verdict"] != "NOT-APPLICABLE")
        .map(|row| format!("{} {}: {}", row["id"], row["verdict"], row["reason"]))
        .collect();
    assert!(green.is_empty(), "{}", green.join("\n"));
    assert_eq!(ran.code(), 0);
    // All but those of modules, and devices that this host opens to nobody.
    let red = rows.iter().filter(|row| row["verdict"] == "BREACHED").count();
    assert!(red + 2 >= rows.len() && red >= 90, "{red} of {}", rows.len());
    assert_eq!(report["open"], true);
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
    // Emulation is accepted by who names it, or nothing starts.
    for words in [&["--level", "microvm"][..], &["--image", "no-such:image"]] {
        let ran = prove(lab, words);
        assert_eq!(ran.code(), 125, "{}", ran.told());
        assert!(ran.err().contains("remedy"), "{}", ran.told());
    }
    assert_eq!(prove(lab, &["--wall", "garden"]).code(), 2);
    assert_eq!(prove(lab, &["--open-walls", "--html", "page.html"]).code(), 2);
}
