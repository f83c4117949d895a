//! Replays: a task shown again, run again from its tape, and judged by other rules.

use crate::both_callers::both_callers;
use crate::lab::{Lab, Ran, finish};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

both_callers! {
    what_was_said_is_shown_again_in_order
    a_run_comes_to_the_same_again_and_touches_nothing
    what_comes_out_different_is_told
    a_tape_or_a_record_that_was_changed_is_not_played
    other_rules_decide_otherwise
}

fn words(lab: &Lab, words: &[&str], input: &[u8]) -> Ran {
    let mut command = lab.fumehood();
    command.args(words);
    finish(command, input)
}

fn last(lab: &Lab) -> String {
    let listed = words(lab, &["audit", "list", "--json"], b"");
    let line = listed.out().lines().last().unwrap().to_owned();
    serde_json::from_str::<Value>(&line).unwrap()["task"].as_str().unwrap().to_owned()
}

/// A run over a project, with a file in, input, output on both streams, and a folder out.
fn taped(lab: &Lab, more: &[&str], script: &str) -> String {
    let project = lab.folder("project");
    lab.file("project/kept", "kept");
    lab.file("project/gone", "gone");
    lab.file("given", "given");
    lab.folder("out");
    let flags = ["run", "--tape", "--workspace", project.to_str().unwrap(), "--in", "given", "--out", "out"];
    let all = [&flags[..], more, &["--", "sh", "-c", script]].concat();
    let ran = words(lab, &all, b"typed\n");
    assert_eq!(ran.code(), 3, "{}", ran.told());
    last(lab)
}

const SCRIPT: &str =
    "read word; echo got $word $A; cat given >&2; echo new > made; rm gone; echo out > /out/o; exit 3";

fn tape(lab: &Lab, task: &str) -> PathBuf {
    lab.state().join("tapes").join(task)
}

fn what_was_said_is_shown_again_in_order(lab: &Lab) {
    let task = taped(lab, &[], SCRIPT);
    let shown = words(lab, &["replay", &task], b"");
    assert_eq!(shown.code(), 0, "{}", shown.told());
    let text = shown.out();
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing: {text}"));
    assert!(at("sandbox.launched") < at("exec.started") && at("exec.started") < at("stdout | got typed"));
    assert!(at("stdout | got typed") < at("exec.ended") && at("stderr | given") < at("exec.ended"));
    let cast = words(lab, &["replay", &task, "--cast"], b"");
    let lines: Vec<Value> = cast.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["version"], 2);
    assert_eq!(lines[1][2], "got typed\r\n", "{}", cast.told());
    // One without a tape is shown as far as the record goes.
    assert_eq!(lab.run(&[], &["true"]).code(), 0);
    let plain = words(lab, &["replay"], b"");
    assert!(plain.code() == 0 && plain.out().contains("exec.ended"), "{}", plain.told());
    for flag in ["--cast", "--run"] {
        let none = words(lab, &["replay", flag], b"");
        assert!(none.code() == 125 && none.err().contains("remedy:"), "{}", none.told());
    }
}

fn a_run_comes_to_the_same_again_and_touches_nothing(lab: &Lab) {
    let task = taped(lab, &["--env", "A=first"], SCRIPT);
    // What it was given is not there any more, nor what the host would give now.
    fs::remove_file(lab.path().join("given")).unwrap();
    fs::remove_file(lab.path().join("out/o")).unwrap();
    let again = words(lab, &["replay", &task, "--run", "--json"], b"");
    assert_eq!(again.code(), 0, "{}", again.told());
    let told: Value = serde_json::from_slice(&again.stdout).unwrap();
    assert_eq!((&told["same"], &told["ending"]["code"]), (&Value::Bool(true), &Value::from(3)), "{told}");
    assert!(!lab.path().join("out/o").exists() && lab.path().join("project/gone").exists());
    // Nothing of it stays but its record, which says what it was.
    let (tapes, layers) = (lab.state().join("tapes"), lab.state().join("layers"));
    let names = |folder: &PathBuf| -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).collect()
    };
    assert_eq!(names(&tapes), [task.as_str()]);
    if layers.exists() {
        assert!(names(&layers).iter().all(|name| *name == task), "{:?}", names(&layers));
    }
    let replay = last(lab);
    let shown = words(lab, &["audit", "show", &replay], b"");
    assert!(shown.out().contains(&format!("replay.started  of={task}")), "{}", shown.told());
    let verified = words(lab, &["audit", "verify"], b"");
    assert_eq!(verified.code(), 0, "{}", verified.told());
}

fn what_comes_out_different_is_told(lab: &Lab) {
    let script = "head -c 8 /dev/urandom | od -A n; head -c 8 /dev/urandom > made; echo o > /out/o; exit 3";
    let task = taped(lab, &[], script);
    let again = words(lab, &["replay", &task, "--run"], b"");
    assert_eq!(again.code(), 1, "{}", again.told());
    let lines: Vec<_> = again.out().lines().map(str::to_owned).collect();
    assert!(lines[0].contains("different  stdout: "), "{}", again.told());
    assert!(lines[1].contains("workspace: `made` came out different"), "{}", again.told());
    assert_eq!(lines.len(), 3, "{}", again.told());
}

fn a_tape_or_a_record_that_was_changed_is_not_played(lab: &Lab) {
    let task = taped(lab, &[], SCRIPT);
    for part in ["tape.json", "stdin", "stdout", "timing.jsonl", "exchanges.jsonl", "inputs/0"] {
        let path = tape(lab, &task).join(part);
        let kept = fs::read(&path).unwrap();
        fs::write(&path, [&kept[..], b" "].concat()).unwrap();
        let refused = words(lab, &["replay", &task, "--run"], b"");
        assert!(refused.code() == 125 && refused.err().contains("not as it was kept"), "{}", refused.told());
        fs::remove_file(&path).unwrap();
        let refused = words(lab, &["replay", &task, "--run"], b"");
        assert!(refused.code() == 125 && refused.err().contains("remedy:"), "{}", refused.told());
        fs::write(&path, kept).unwrap();
    }
    let record = lab.state().join(format!("records/{task}.jsonl"));
    let text = fs::read_to_string(&record).unwrap();
    fs::write(&record, text.replacen("\"sh\"", "\"as\"", 1)).unwrap();
    let refused = words(lab, &["replay", &task, "--run"], b"");
    assert!(refused.code() == 125 && refused.err().contains("broken"), "{}", refused.told());
    fs::write(&record, text).unwrap();
    assert_eq!(words(lab, &["replay", &task, "--run"], b"").code(), 0);
}

fn other_rules_decide_otherwise(lab: &Lab) {
    let task = taped(lab, &[], SCRIPT);
    lab.file("same.toml", "[filesystem]\ninputs = [\"given\"]\n");
    let same = words(lab, &["replay", &task, "--policy", "same.toml"], b"");
    assert!(same.code() == 0 && same.out().starts_with("0 of "), "{}", same.told());
    lab.file("other.toml", "[resources]\noutput = \"4B\"\n");
    let other = words(lab, &["replay", &task, "--policy", "other.toml", "--json"], b"");
    assert_eq!(other.code(), 1, "{}", other.told());
    let told: Value = serde_json::from_slice(&other.stdout).unwrap();
    assert_eq!(told["different"].as_array().unwrap().len(), 2, "{told}");
    lab.file("wrong.toml", "[nonsense]\n");
    for bad in ["wrong.toml", "missing.toml"] {
        let refused = words(lab, &["replay", &task, "--policy", bad], b"");
        assert!(refused.code() == 125 && refused.err().contains("remedy:"), "{}", refused.told());
    }
}
