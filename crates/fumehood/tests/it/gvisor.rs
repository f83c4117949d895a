//! The gvisor level: what is refused, how it ends, and what is left when its processes are ended.

use crate::lab::{Caller, Lab, await_word, collect, finish, installed, poll};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Long enough for a start of gVisor and an end of everything, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Whether the level can be tried here; if not, says so where the tests' output is read.
pub(crate) fn available() -> bool {
    let there = installed("runsc") && Caller::Root.available();
    if !there {
        println!("NOT-APPLICABLE: gVisor's tests want root and `runsc`");
    }
    there
}

/// Processes that are in the cgroup of a task of this place.
fn members(lab: &Lab) -> Vec<(u32, String)> {
    let records = std::fs::read_dir(lab.state().join("records")).into_iter().flatten().flatten();
    let tasks: Vec<String> = records
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".jsonl").map(str::to_owned))
        .filter(|task| task != "index")
        .collect();
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let cgroup = std::fs::read_to_string(entry.path().join("cgroup")).ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        tasks.iter().any(|task| cgroup.contains(task)).then(|| (pid, name.trim().to_owned()))
    })
    .collect()
}

/// Folders of cgroups that bear the name of a task of this place.
fn cgroups(lab: &Lab) -> String {
    let records = std::fs::read_dir(lab.state().join("records")).into_iter().flatten().flatten();
    let mut found = String::new();
    for task in records.filter_map(|entry| entry.file_name().into_string().ok()) {
        let name = format!("*{}*", task.trim_end_matches(".jsonl"));
        let listed = Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-name", &name]).output();
        found.push_str(&String::from_utf8_lossy(&listed.unwrap().stdout));
    }
    found
}

fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(sent.success(), "no process {pid}");
}

fn sleeping(lab: &Lab) -> std::process::Child {
    let mut command = lab.fumehood();
    command.args(["run", "--level", "gvisor", "--", "sh", "-c", "echo ready; sleep 1000"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    await_word(&mut child, "ready\n").unwrap();
    // `runsc` itself, the sandbox and its gofer.
    assert!(members(lab).len() >= 3, "{:?}", members(lab));
    child
}

#[test]
fn an_ordinary_user_is_refused_with_a_remedy() {
    if !installed("runsc") {
        return println!("NOT-APPLICABLE: there is no `runsc`");
    }
    let lab = Lab::new(Caller::User);
    let ran = lab.run(&["--level", "gvisor"], &["echo", "it ran"]);
    assert_eq!(ran.code(), 125, "{}", ran.told());
    assert!(!ran.out().contains("it ran"), "{}", ran.told());
    assert!(ran.err().contains("no second user") && ran.err().contains("sudo"), "{}", ran.told());
}

#[test]
fn without_a_runsc_that_is_what_it_should_be_nothing_starts() {
    if !available() {
        return;
    }
    let old = "#!/bin/sh\necho runsc version 0.0~20221219.0\n";
    let dead = "#!/bin/sh\necho runsc version release-20240101.0; [ \"$1\" = --version ] || exit 9\n";
    let mute = "#!/bin/sh\ntrue\n";
    for (content, said) in [(mute, "which version"), (old, "too old"), (dead, "execute runsc")] {
        let lab = Lab::new(Caller::Root);
        let other = lab.file("runsc", content);
        std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let script = "for at in /usr/bin/runsc /usr/local/bin/runsc; do \
             [ -e $at ] && mount --bind \"$0\" $at; done; exec \"$@\"";
        let mut command = lab.command("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&other).arg(lab.binary());
        command.args(["run", "--level", "gvisor", "--", "echo", "it ran"]);
        let ran = finish(command, b"");
        assert_eq!(ran.code(), 125, "{}", ran.told());
        assert!(!ran.out().contains("it ran"), "{}", ran.told());
        assert!(ran.err().contains(said) && ran.err().contains("remedy"), "{}", ran.told());
        assert_eq!(cgroups(&lab), "");
    }
}

#[test]
fn the_record_names_the_version() {
    if !available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let (report, ran) = lab.json(&["--level", "gvisor"], &["true"]);
    assert_eq!(report["ending"]["cause"], "exited", "{}", ran.told());
    assert!(report["enforcement"].to_string().contains("runsc 20"), "{}", report["enforcement"]);
}

#[test]
fn a_runsc_that_is_ended_midway_is_told() {
    if !available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let child = sleeping(&lab);
    // The first of them is `runsc run` itself, and the first process of its namespace.
    let (first, _) = members(&lab).into_iter().min().unwrap();
    signal(first, "-KILL");
    let ran = collect(child, b"");
    assert!(ran.err().contains("the sandbox failed: runsc was ended by signal 9"), "{}", ran.told());
    assert!(poll(PATIENCE, || members(&lab).is_empty() && cgroups(&lab).is_empty()), "{:?}", members(&lab));
}

#[test]
fn a_killed_keeper_leaves_nothing() {
    if !available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let mut child = sleeping(&lab);
    signal(child.id(), "-KILL");
    child.wait().unwrap();
    assert!(poll(PATIENCE, || members(&lab).is_empty() && cgroups(&lab).is_empty()), "{:?}", members(&lab));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(lab.path().to_str().unwrap()), "{mounts}");
}

#[test]
fn streams_are_whole_and_endings_true() {
    if !available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let at = ["--level", "gvisor"];
    let script = "head -c 3000000 /dev/zero | tr '\\0' x; echo told >&2; exit 9";
    let ran = lab.run(&at, &["sh", "-c", script]);
    assert_eq!((ran.code(), ran.stdout.len()), (9, 3_000_000), "{}", ran.err());
    assert!(ran.err().contains("told"));
    let ran = lab.run(&["--level", "gvisor", "--timeout", "1s"], &["sleep", "1000"]);
    assert_eq!(ran.code(), 124, "{}", ran.told());
    let (report, ran) = lab.json(&at, &["sh", "-c", "kill -SEGV $$"]);
    assert_eq!(report["ending"]["signal"], 11, "{}", ran.told());
    let (report, ran) = lab.json(&at, &["sh", "-c", "sleep 1000 & sleep 1000 & true"]);
    assert!(report["hits"].to_string().contains("leftover_processes"), "{}", ran.told());
}

#[test]
fn input_is_carried_and_its_end_too() {
    if !available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let mut command = lab.fumehood();
    command.args(["run", "--level", "gvisor", "--", "sh", "-c", "echo ready; wc -c"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    await_word(&mut child, "ready\n").unwrap();
    let ran = collect(child, &[b'z'; 500_000]);
    assert_eq!(ran.out().trim(), "500000", "{}", ran.told());
}
