//! The network wall where its gate is asked to go further, or is gone; and what of a secret is kept.

use super::network::{get, run, step, through, whole};
use super::{ALL, alone};
use crate::bench::{Bench, Job, poll, survivors};
use crate::canary::{canary, contains};
use crate::finding::Finding;
use crate::probe::{Probe, Side, Wall};
use crate::range::Share;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const E: Wall = Wall::Network;
/// As the kernel names the gate's process.
const GATE: &str = "fumehood-gate";

pub(super) fn probes() -> Vec<Probe> {
    vec![
        alone(("E37", E, "be led to a denied host by an allowed one's redirect"), ALL, redirected),
        alone(("E41", E, "reach anything once the gate was killed"), ALL, without_its_gate),
        alone(
            ("S14", Wall::Credentials, "find the value of a secret in what a run leaves and says"),
            ALL,
            what_is_kept,
        ),
    ]
}

fn addresses(share: Share) -> Vec<IpAddr> {
    share.sink().parse().into_iter().collect()
}

/// A page that is fetched. The control is a client that goes wherever it is sent.
fn redirected(bench: &Bench, side: Side) -> io::Result<Finding> {
    let range = bench.range()?;
    let share = range.share()?;
    let url = format!("http://{}/to/{}", share.allowed(), share.denied());
    let rule = format!("http://{}", share.allowed());
    let words =
        ["fetch", "--json", "--no-cache", "--timeout", "10s", "--allow", &rule, &url].map(str::to_owned);
    let instead = (side == Side::Walled).then(|| words.to_vec());
    let job = Job { instead, through: range.through(), ..Job::step(&["e", "follow", &url]) };
    let came = bench.run(side, &job)?;
    let seen = range.seen()?;
    let right: Vec<IpAddr> = share.right().parse().into_iter().collect();
    if seen.reached(&right).is_empty() {
        return Ok(Finding::Unclear(format!("not even the allowed host was asked: {}", came.outcome())));
    }
    Ok(through(&seen, &addresses(share)))
}

/// The gate is killed while the command waits; then it tries what was allowed, and what was not.
fn without_its_gate(bench: &Bench, side: Side) -> io::Result<Finding> {
    let range = bench.range()?;
    let (share, mark, nonce) = (range.share()?, canary()?, canary()?);
    let right = share.allowed();
    let later = format!("GET /{mark} HTTP/1.1\\r\\nHost: {right}\\r\\nConnection: close\\r\\n\\r\\n");
    let steps = vec![
        step(&["e0", "tcp", &right, "80", &get(&right)]),
        step(&["e1", "await"]),
        step(&["e2", "tcp", &right, "80", &later]),
        step(&["e3", "tcp", &share.right(), "80", &later]),
        step(&["e4", "tcp", &share.sink(), "80", &later]),
    ];
    let flags = vec!["--allow".to_owned(), format!("http://{right}")];
    let job = Job { flags, steps, through: range.through(), ..Job::default() };
    let mut command = bench.command(side, &job, &nonce)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let first: Vec<IpAddr> = share.right().parse().into_iter().collect();
    let arrived =
        poll(Duration::from_secs(30), || range.seen().is_ok_and(|seen| !seen.reached(&first).is_empty()));
    if arrived && side == Side::Walled {
        match gate_of(child.id()) {
            Some(gate) => end(gate)?,
            None => {
                drop(child.stdin.take());
                bench.running(child, nonce).finish()?;
                return Ok(Finding::Unclear("there is no gate to kill".to_owned()));
            }
        }
    }
    drop(child.stdin.take());
    let came = bench.running(child, nonce).finish()?;
    if !arrived {
        return Ok(Finding::Unclear(format!("nothing arrived before: {}", came.outcome())));
    }
    let seen = range.seen()?;
    let reached = Finding::through_if(seen.read(&mark), "a server read what was sent afterwards");
    Ok(reached.or(|| through(&seen, &addresses(share))).or(|| whole(&came)))
}

/// The gate among the descendants of a run.
fn gate_of(keeper: u32) -> Option<i32> {
    let mut family = vec![keeper];
    let mut found = None;
    // Whoever is beneath is found before what is beneath it.
    while let Some(parent) = family.pop() {
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let own = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<u32>().ok());
            if own != Some(parent) {
                continue;
            }
            family.push(pid);
            if std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default().trim() == GATE {
                found = i32::try_from(pid).ok();
            }
        }
    }
    found
}

fn end(pid: i32) -> io::Result<()> {
    let pidfd = fumehood_sys::process::open_pidfd(pid)?;
    fumehood_sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), 9)?;
    let gone = poll(Duration::from_secs(10), || !Path::new(&format!("/proc/{pid}/fd/0")).exists());
    if gone { Ok(()) } else { Err(io::Error::other("the gate can not be killed")) }
}

/// A run with a secret, that uses it, is refused something and says all it can: the value is in no file of its state, in
/// none of its words, and in no argument of a process. The control is a runner that keeps its variables in a log.
fn what_is_kept(bench: &Bench, side: Side) -> io::Result<Finding> {
    let share = bench.range()?.share()?;
    let secret = canary()?;
    let state = bench.fresh_state()?;
    let rule = format!("https://{} with bearer:PROVED", share.allowed());
    let other = format!("http://{}", share.name(&[&share.sink()], "other.test"));
    let flags = ["--secret", "PROVED=env:PROVE_SECRET", "--allow", &rule].map(str::to_owned);
    let env = vec![
        ("PROVE_SECRET".to_owned(), secret.clone()),
        ("FUMEHOOD_STATE".to_owned(), state.display().to_string()),
    ];
    if side == Side::Open {
        let came = bench.run(side, &Job { env, ..Job::step(&["e", "read", "/proc/self/environ"]) })?;
        std::fs::write(state.join("log"), &came.stdout)?;
    } else {
        let head = "GET / HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer $PROVED\\r\\n\\r\\n";
        let steps = vec![
            step(&["tcp-variables", &share.allowed(), "80", head]),
            step(&["hello", &share.allowed(), "443", &share.allowed()]),
        ];
        let (came, _) = run(bench, side, &[other], steps, Job { env, ..Job::default().flags(flags) })?;
        if !came.told.ended {
            return Ok(Finding::Unclear(came.outcome()));
        }
        let said = [came.report.to_string().into_bytes(), came.stdout, came.stderr].concat();
        if forms(&secret).iter().any(|form| contains(&said, form)) {
            return Ok(Finding::Through("it was said".to_owned()));
        }
    }
    if !survivors(&secret).is_empty() {
        return Ok(Finding::Through("it is an argument of a process".to_owned()));
    }
    let found = search(&state, &forms(&secret));
    Ok(found.map_or(Finding::Quiet, |name| Finding::Through(format!("it stands in `{name}`"))))
}

fn forms(secret: &str) -> Vec<String> {
    use base64::Engine as _;
    let hex = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let base64 = base64::prelude::BASE64_STANDARD_NO_PAD.encode(secret);
    vec![secret.to_owned(), hex, base64, secret.chars().rev().collect()]
}

/// The first file beneath a folder in which a form stands.
fn search(folder: &Path, forms: &[String]) -> Option<String> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().find_map(|entry| {
        let path = entry.path();
        let found = std::fs::symlink_metadata(&path).ok()?;
        if found.is_dir() {
            return search(&path, forms);
        }
        let bytes = if found.is_file() { std::fs::read(&path).ok()? } else { Vec::new() };
        forms
            .iter()
            .any(|form| contains(&bytes, form))
            .then(|| entry.file_name().to_string_lossy().into_owned())
    })
}
