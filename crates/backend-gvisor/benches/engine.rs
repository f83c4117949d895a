//! What the gvisor level takes beside `runsc run` of the same command, in the same rounds: one JSON line.
//!
//! `first` is from asking for a sandbox to the first byte that its command writes, and `parked` the same for one
//! that a pool had started; `further` from asking for one
//! more command in it to that command's end. `runsc_first` and `runsc_whole` are `runsc run` with a bundle that
//! shows the host's root read-only, to the first byte and to its end. `pss_kib` is the proportional memory of all
//! processes of one sandbox that is idle.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench prints its line, and stops where it can not measure"
)]

use fumehood_backend::{Backend, Event, GuestStdio, Instance, Placement};
use fumehood_backend_gvisor::Gvisor;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use fumehood_sys::poll::{self, Interest};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 15;
const FURTHER: usize = 10;
const PATIENCE: Duration = Duration::from_secs(30);
const CONFIG: &str = r#"{"ociVersion":"1.0.2","process":{"user":{"uid":1000,"gid":1000},"args":["/bin/echo","x"],
"env":["PATH=/usr/bin:/bin"],"cwd":"/","capabilities":{},"noNewPrivileges":true},
"root":{"path":"/","readonly":true},"hostname":"sandbox","mounts":[{"destination":"/proc","type":"proc","source":"proc"}],
"linux":{"namespaces":[{"type":"pid"},{"type":"network"},{"type":"ipc"},{"type":"uts"},{"type":"mount"}]}}"#;

fn main() {
    let state = tempfile::tempdir_in("/var/tmp").expect("a folder for state");
    for name in ["root", "lower", "layer", "empty", "bundle"] {
        std::fs::create_dir(state.path().join(name)).expect("a folder for mounts");
    }
    std::fs::write(state.path().join("bundle/config.json"), CONFIG).expect("a bundle");
    let (gvisor, pooled, envelope) = (Gvisor::find(), Gvisor::pooled(), envelope());
    let mut times: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    let mut memory = Vec::new();
    for round in 0..ROUNDS {
        let id = TaskId::new(round + 1, u64::from(std::process::id()));
        let start = Instant::now();
        let plan = gvisor.plan(&envelope, &placement(state.path(), id.clone())).expect("a plan");
        let mut instance = plan.launch().expect("a sandbox");
        let (first, _) = one(instance.as_mut(), start);
        times.entry("first").or_default().push(first);
        for _ in 0..FURTHER {
            let (_, whole) = one(instance.as_mut(), Instant::now());
            times.entry("further").or_default().push(whole);
        }
        memory.push(pss_kib(&id));
        drop(instance);
        gvisor.reap(&id).expect("nothing left");
        let id = TaskId::new(round + 1001, u64::from(std::process::id()));
        let mut plan = pooled.plan(&envelope, &placement(state.path(), id.clone())).expect("a plan");
        plan.begin();
        let start = Instant::now();
        let mut instance = plan.launch().expect("a sandbox");
        let (first, _) = one(instance.as_mut(), start);
        times.entry("parked").or_default().push(first);
        drop(instance);
        gvisor.reap(&id).expect("nothing left");
        let (first, whole) = plain(state.path(), round);
        times.entry("runsc_first").or_default().push(first);
        times.entry("runsc_whole").or_default().push(whole);
    }
    memory.sort_unstable();
    let pss = memory.get(memory.len() / 2).copied().unwrap_or_default();
    let shown: Vec<String> = times.into_iter().map(|(name, times)| show(name, times)).collect();
    println!("{{\"bench\":\"gvisor\",\"rounds\":{ROUNDS},\"pss_kib\":{pss},{}}}", shown.join(","));
}

/// Runs `echo`. Times to its first byte and to its end.
fn one(instance: &mut dyn Instance, start: Instant) -> (Duration, Duration) {
    let (stdin, _feed) = fumehood_sys::process::pipe(false).expect("a pipe");
    let (out, stdout) = fumehood_sys::process::pipe(true).expect("a pipe");
    let (_error, stderr) = fumehood_sys::process::pipe(true).expect("a pipe");
    instance.exec(&request(), GuestStdio::Pipes { stdin, stdout, stderr }).expect("an exec");
    let mut out = File::from(out);
    let mut first = None;
    loop {
        let ended = loop {
            match instance.next_event() {
                Some(Event::Ended { .. }) => break true,
                Some(Event::Started) => {}
                Some(other) => unreachable(&other),
                None => break false,
            }
        };
        let mut byte = [0; 16];
        if first.is_none() && out.read(&mut byte).is_ok_and(|count| count > 0) {
            first = Some(start.elapsed());
        }
        if let (true, Some(first)) = (ended, first) {
            return (first, start.elapsed());
        }
        poll::wait(&[(instance.events(), Interest::Read)], Some(PATIENCE)).expect("a wait");
    }
}

#[expect(clippy::panic, reason = "there is nothing to measure")]
fn unreachable(event: &Event) {
    panic!("{event:?}");
}

/// `runsc run`, to its first byte and to its end.
fn plain(state: &Path, round: u64) -> (Duration, Duration) {
    let mut command = Command::new("runsc");
    command.arg("--root").arg(state.join("plain"));
    command.args(["--network=none", "--ignore-cgroups", "--overlay2=none", "run", "--bundle"]);
    command.arg(state.join("bundle")).arg(format!("plain-{round}"));
    let start = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.expect("runsc");
    let mut byte = [0; 1];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut byte).expect("a byte");
    let first = start.elapsed();
    assert!(child.wait().expect("an end").success(), "runsc failed");
    (first, start.elapsed())
}

/// Of all processes in the sandbox's cgroup.
fn pss_kib(id: &TaskId) -> u64 {
    let name = id.to_string();
    let pids = std::fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let ours = pids.filter(|path| {
        std::fs::read_to_string(path.join("cgroup")).is_ok_and(|cgroup| cgroup.contains(&name))
    });
    let pss = |path: PathBuf| {
        let text = std::fs::read_to_string(path.join("smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    ours.filter_map(pss).sum()
}

fn request() -> ExecRequest {
    ExecRequest {
        argv: vec![OsString::from("/bin/echo"), OsString::from("x")],
        env: vec![(OsString::from("PATH"), OsString::from("/usr/bin:/bin"))],
        cwd: PathBuf::from("/workspace"),
        terminal: None,
    }
}

fn envelope() -> Envelope {
    let defaults = Defaults {
        base: PathBuf::from("/"),
        home: None,
        state: None,
        host_memory_bytes: fumehood_sys::host::memory_bytes(),
        host_cpus: fumehood_sys::host::processors(),
        timeout: Some(Duration::from_secs(60)),
        output_bytes: 1 << 20,
        presets: BTreeMap::new(),
        images: BTreeMap::new(),
    };
    Envelope::check(&EnvelopeSpec::default(), &defaults).expect("the empty envelope")
}

fn placement(shared: &Path, id: TaskId) -> Placement {
    Placement {
        id,
        shared: shared.to_owned(),
        scratch: PathBuf::from("/nonexistent"),
        layer: None,
        home: None,
        home_at: PathBuf::from("/home/user"),
        caches: Vec::new(),
        toolchains: Vec::new(),
        gateway: None,
        files: Vec::new(),
        living: None,
    }
}

fn show(name: &str, mut times: Vec<Duration>) -> String {
    times.sort();
    let at =
        |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("\"{name}\":{{\"min_ms\":{:.3},\"p50_ms\":{:.3},\"p90_ms\":{:.3}}}", at(0), at(50), at(90))
}
