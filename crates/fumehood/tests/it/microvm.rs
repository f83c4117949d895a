//! The microvm level on the built binary, under software emulation.

use crate::lab::{Caller, Lab, Ran, collect, poll};
use crate::machine::{available, flags, lab};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn run(lab: &Lab, root: &Path, more: &[&str], argv: &[&str]) -> Ran {
    let words = flags(root);
    let mut all: Vec<&str> = vec!["--quiet"];
    all.extend(words.iter().map(String::as_str));
    all.extend(more);
    lab.run(&all, argv)
}

fn json(lab: &Lab, root: &Path, more: &[&str], argv: &[&str]) -> serde_json::Value {
    let words = flags(root);
    let mut all: Vec<&str> = words.iter().map(String::as_str).collect();
    all.extend(more);
    lab.json(&all, argv).0
}

fn both() -> Vec<(Lab, PathBuf)> {
    if !available() {
        return Vec::new();
    }
    [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()).map(lab).collect()
}

fn as_root() -> Option<(Lab, PathBuf)> {
    (available() && Caller::Root.available()).then(|| lab(Caller::Root))
}

#[test]
fn a_command_runs_and_its_files_come_out() {
    for (lab, root) in both() {
        let input = lab.file("input.txt", "given");
        let out = lab.folder("out");
        let script =
            "cat input.txt; id -u; mkdir /out/d; echo made > /out/d/f; ln -s /etc/passwd /out/l; exit 7";
        let more = ["--in", input.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let ran = run(&lab, &root, &more, &["sh", "-c", script]);
        assert_eq!((ran.code(), ran.out().as_str()), (7, "given1000\n"), "{}", ran.told());
        assert_eq!(std::fs::read_to_string(out.join("d/f")).unwrap(), "made\n");
        assert!(std::fs::symlink_metadata(out.join("l")).is_err(), "a link came out");
    }
}

#[test]
fn what_a_workspace_changes_waits_for_apply() {
    for (lab, root) in both() {
        let project = lab.folder("project");
        for name in ["kept", "changed", "gone"] {
            lab.file(&format!("project/{name}"), name);
        }
        lab.folder("project/replaced");
        lab.file("project/replaced/old", "old");
        let script = "cat kept; echo more >> changed; rm gone; echo x > added; rm -r replaced; mkdir replaced; echo n > replaced/new";
        let ran = run(&lab, &root, &["--workspace", project.to_str().unwrap()], &["sh", "-c", script]);
        assert_eq!((ran.code(), ran.out().as_str()), (0, "kept"), "{}", ran.told());
        assert_eq!(std::fs::read_to_string(project.join("changed")).unwrap(), "changed", "written through");
        let mut apply = lab.fumehood();
        apply.arg("apply").current_dir(&project);
        let applied = crate::lab::finish(apply, b"");
        assert_eq!(applied.code(), 0, "{}", applied.told());
        assert_eq!(std::fs::read_to_string(project.join("changed")).unwrap(), "changedmore\n");
        assert!(project.join("added").exists() && project.join("replaced/new").exists());
        assert!(!project.join("gone").exists() && !project.join("replaced/old").exists());
    }
}

#[test]
fn a_read_only_workspace_can_not_be_written() {
    for (lab, root) in both() {
        let project = lab.folder("project");
        lab.file("project/f", "f");
        let shown = format!("{}:ro", project.display());
        let ran =
            run(&lab, &root, &["--workspace", &shown], &["sh", "-c", "cat f; echo x > f || echo refused"]);
        assert_eq!(ran.out(), "frefused\n", "{}", ran.told());
    }
}

#[test]
fn software_emulation_must_be_accepted() {
    for (lab, root) in both() {
        let words: Vec<String> = flags(&root).into_iter().filter(|word| word != "--accept-tcg").collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let (report, _) = lab.json(&words, &["true"]);
        assert_eq!(report["ending"]["cause"], "not_started", "{report}");
        assert!(report["ending"]["remedy"].as_str().unwrap().contains("--accept-tcg"), "{report}");
        let chosen = lab.run(&["--trust", "low", "--blast", "high", "--accept-tcg"], &["true"]);
        assert_eq!(chosen.code(), 125, "{}", chosen.told());
    }
}

#[test]
fn emulation_stands_in_the_report() {
    for (lab, root) in both() {
        let report = json(&lab, &root, &[], &["true"]);
        assert_eq!(report["level"]["level"], "microvm");
        assert!(report["enforcement"].to_string().contains("\"tcg\""), "{report}");
    }
}

#[test]
fn what_can_not_be_held_is_refused() {
    for (lab, root) in both() {
        let project = lab.folder("project");
        let through = format!("{}:rw", project.display());
        for more in [
            ["--workspace", through.as_str()],
            ["--ro", project.to_str().unwrap()],
            ["--cache", "npm"],
            ["--session", "s"],
            ["--mem", "64M"],
        ] {
            let words: Vec<String> = flags(&root);
            let mut all: Vec<&str> = words.iter().map(String::as_str).collect();
            if more[0] == "--mem" {
                all.truncate(all.len() - 2);
            }
            all.extend(more);
            let (report, _) = lab.json(&all, &["true"]);
            assert_eq!(report["ending"]["cause"], "not_started", "{more:?}: {report}");
            assert!(!report["ending"]["remedy"].as_str().unwrap().is_empty(), "{more:?}");
        }
    }
}

#[test]
fn machines_of_one_template_differ_and_know_the_time() {
    for (lab, root) in both() {
        let drawn = || {
            let ran = run(&lab, &root, &[], &["sh", "-c", "head -c 16 /dev/urandom | od -An -tx1; date +%s"]);
            assert_eq!(ran.code(), 0, "{}", ran.told());
            let text = ran.out();
            let (random, time) = text.trim().rsplit_once('\n').unwrap();
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            assert!(now.abs_diff(time.trim().parse().unwrap()) < 60, "{text}");
            random.to_owned()
        };
        assert_ne!(drawn(), drawn());
    }
}

#[test]
fn a_name_without_a_rule_is_denied() {
    let Some((lab, root)) = as_root() else { return };
    let script = "curl -s -o /dev/null --max-time 20 http://203.0.113.1/ ; echo $?";
    let report = json(&lab, &root, &["--allow", "example.com:80"], &["sh", "-c", script]);
    assert_ne!(report["stdout"]["text"], "0\n", "{report}");
    let hits: Vec<_> = report["hits"].as_array().unwrap().iter().map(|hit| hit["kind"].clone()).collect();
    assert!(hits.contains(&"egress_denied".into()), "{report}");
}

#[test]
fn a_time_limit_ends_it_and_its_files_still_come_out() {
    for (lab, root) in both() {
        let out = lab.folder("out");
        let script = "trap '' TERM; echo early > /out/f; while :; do sleep 1; done";
        let more = ["--timeout", "8s", "--out", out.to_str().unwrap()];
        let report = json(&lab, &root, &more, &["sh", "-c", script]);
        assert_eq!(report["ending"]["cause"], "timed_out", "{report}");
        assert_eq!(std::fs::read_to_string(out.join("f")).unwrap(), "early\n", "{report}");
    }
}

#[test]
fn a_machine_that_is_killed_is_told_and_leaves_nothing() {
    let Some((lab, root)) = as_root() else { return };
    let child = long(&lab, &root);
    let machine = machine_of(child.id()).expect("no QEMU beneath the run");
    kill(machine);
    let ran = collect(child, b"");
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let lost = report["hits"].as_array().unwrap().iter().find(|hit| hit["kind"] == "sandbox_lost");
    assert!(lost.is_some_and(|hit| hit["detail"].as_str().unwrap().contains("QEMU")), "{report}");
    assert_ne!(ran.code(), 0);
    assert!(poll(Duration::from_secs(20), || machines(&lab).is_empty()), "{:?}", machines(&lab));
}

#[test]
fn a_keeper_that_is_killed_takes_its_machine_along() {
    let Some((lab, root)) = as_root() else { return };
    let mut child = long(&lab, &root);
    let machine = machine_of(child.id()).expect("no QEMU beneath the run");
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = || !Path::new(&format!("/proc/{machine}")).exists();
    assert!(poll(Duration::from_secs(20), gone), "QEMU lives on");
    assert!(poll(Duration::from_secs(20), || machines(&lab).is_empty()), "{:?}", machines(&lab));
}

#[test]
fn a_template_that_is_damaged_is_no_machine() {
    let Some((lab, root)) = as_root() else { return };
    // Copies of this test's own, to be spoilt.
    for name in ["disks", "templates"] {
        let (link, own) = (lab.state().join(name), lab.path().join(name));
        let shared = std::fs::read_link(&link).unwrap();
        let mut copy = std::process::Command::new("cp");
        copy.args(["-a", "--sparse=always"]).arg(&shared).arg(&own);
        assert!(copy.status().unwrap().success());
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
    }
    for entry in std::fs::read_dir(lab.path().join("templates")).unwrap().flatten() {
        let state = entry.path().join("state");
        if state.exists() {
            std::fs::write(state, b"no state of a machine").unwrap();
        }
    }
    let report = json(&lab, &root, &[], &["true"]);
    assert_eq!(report["ending"]["cause"], "not_started", "{report}");
}

/// A run that says that it has begun, and then goes on.
fn long(lab: &Lab, root: &Path) -> Child {
    let mut command = lab.fumehood();
    let out = lab.folder("out");
    command.args(["run", "--json", "--out", out.to_str().unwrap()]).args(flags(root));
    command.args(["--", "sleep", "600"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let begun = || !machines(lab).is_empty() && machine_of(child.id()).is_some();
    assert!(poll(Duration::from_secs(50), begun), "no machine");
    // Once it has taken its state it runs on its own; the command starts then.
    std::thread::sleep(Duration::from_secs(3));
    child
}

/// The folders of machines that live, or were left.
fn machines(lab: &Lab) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(lab.state().join("machines")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

/// The QEMU that a process has started.
fn machine_of(parent: u32) -> Option<u32> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.starts_with("qemu")
    })
}

fn kill(pid: u32) {
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
}
