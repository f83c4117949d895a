//! The processes that stand between a sandbox and the world, looked at from outside while they work.

use crate::both_callers::both_callers;
use crate::lab::{self, Lab};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Stdio};
use std::time::Duration;

both_callers! {
    the_gate_can_do_nothing_but_speak
    a_secret_is_in_one_process
    nobody_has_to_read_what_is_told_of_the_network
}

/// A run whose program has asked for a name, so that there is a gate, and waits for the end of its input.
fn waiting(lab: &Lab, flags: &[&str]) -> Child {
    let script = "getent hosts api.example.com >&2; echo ready; cat";
    let mut command = lab.fumehood();
    command.args(["run", "--allow", "GET https://api.example.com/**"]).args(flags);
    command.args(["--", "/bin/sh", "-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    lab::await_word(&mut child, "ready").unwrap();
    child
}

/// The process of that name among the children of `parent`, and theirs.
fn find(parent: u32, name: &str) -> Option<u32> {
    let told = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    told.split_whitespace().map(|word| word.parse().unwrap()).find_map(|child: u32| {
        let known = fs::read_to_string(format!("/proc/{child}/comm")).is_ok_and(|comm| comm.trim() == name);
        if known { Some(child) } else { find(child, name) }
    })
}

/// The same; the keeper may stand below a process that changed the user.
fn found(child: &Child, name: &str) -> u32 {
    let mut process = None;
    lab::poll(Duration::from_secs(10), || {
        process = find(child.id(), name);
        process.is_some()
    });
    process.unwrap_or_else(|| panic!("there is no {name}"))
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    let ran = lab::collect(child, b"");
    assert_eq!(ran.code(), 0, "{}", ran.told());
}

fn the_gate_can_do_nothing_but_speak(lab: &Lab) {
    let child = waiting(lab, &[]);
    let gate = found(&child, "fumehood-gate");
    // What it was forked for is done once it listens; it answered a question already.
    let status = fs::read_to_string(format!("/proc/{gate}/status")).unwrap();
    for line in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    assert!(!status.contains("Uid:\t0\t"), "{status}");
    let limits = fs::read_to_string(format!("/proc/{gate}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line.strip_prefix(name).unwrap().split_whitespace().next().unwrap().to_owned()
    };
    assert_eq!(limit("Max data size"), (1_u64 << 30).to_string());
    assert_eq!(limit("Max core file size"), "0");
    end(child);
}

/// Whether a process has these bytes in memory that it can write.
fn holds(process: u32, needle: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
    let memory = fs::File::open(format!("/proc/{process}/mem")).unwrap();
    maps.lines().filter(|line| line.contains(" rw")).any(|line| {
        let (start, rest) = line.split_once('-').unwrap();
        let end = rest.split_once(' ').unwrap().0;
        let place = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, end) = (place(start), place(end));
        let mut bytes = vec![0; usize::try_from(end - start).unwrap()];
        memory.read_exact_at(&mut bytes, start).is_ok() && lab::contains(&bytes, needle)
    })
}

fn a_secret_is_in_one_process(lab: &Lab) {
    if !lab::am_root() {
        println!("not applicable: only root looks into the memory of such processes");
        return;
    }
    let value = lab::canary();
    let file = lab.file("token", &value);
    let secret = format!("TOKEN=file:{}", file.to_str().unwrap());
    let child = waiting(
        lab,
        &["--secret", &secret, "--allow", "https://api.example.com/private/** with bearer:TOKEN"],
    );
    let (gate, reaper) = (found(&child, "fumehood-gate"), found(&child, "fumehood-reaper"));
    assert!(holds(gate, &value), "the one process has it, or this looks in the wrong place");
    assert!(!holds(reaper, &value));
    let keeper = fs::read_to_string(format!("/proc/{gate}/stat")).unwrap();
    let keeper: u32 = keeper.rsplit_once(") ").unwrap().1.split(' ').nth(1).unwrap().parse().unwrap();
    assert!(!holds(keeper, &value));
    end(child);
}

fn nobody_has_to_read_what_is_told_of_the_network(lab: &Lab) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // Almost as much as a pipe takes, so that it is full soon.
    writer.write_all(&[b'.'; 60 << 10]).unwrap();
    let script = "while :; do getent hosts $RANDOM$RANDOM.example.org; done";
    let mut command = lab.fumehood();
    command.args(["run", "--watch-net", "--timeout", "4s", "--allow", "api.example.com"]);
    command.args(["--", "/bin/bash", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut child = command.spawn().unwrap();
    // The lines that are left are told in the end, and then somebody has to read.
    let told = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_secs(12));
        std::io::read_to_string(reader).unwrap()
    });
    found(&child, "bash");
    let keeps = lab::poll(Duration::from_secs(10), || find(child.id(), "bash").is_none());
    assert!(keeps, "the clock was not looked at");
    told.thread().unpark();
    assert!(lab::wait(&mut child, Duration::from_secs(20)).is_some());
    drop(command);
    let told = told.join().unwrap();
    assert!(told.contains(".example.org") && told.contains("4 s"), "{told}");
}
