//! What the engine itself takes, with prepared pools as a server would hold them: one JSON line.
//!
//! A plan of the pool has begun: its sandbox stands, and waits for a command that is not known yet. `launch` is
//! from asking for a sandbox to the command's `execve` being done, with every wall and limit on. `ended` goes on
//! until the command's end is known, `cycle` until everything is removed. `cold` is `launch` with nothing
//! prepared. `fork_exec` is a plain program started and waited for, in the same rounds.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench prints its line, and stops where it can not measure"
)]

use fumehood_backend::{Backend, Event, GuestStdio, Instance, Placement, Plan};
use fumehood_backend_native::Native;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;
const POOL: usize = 8;

fn main() {
    let state = tempfile::tempdir_in("/var/tmp").expect("a folder for state");
    for name in ["root", "lower", "layer", "empty"] {
        std::fs::create_dir(state.path().join(name)).expect("a folder for mounts");
    }
    let (cold_native, native) = (Native::find(), Native::pooled());
    let envelope = envelope();
    let plan = |native: &Native, number: usize| {
        native.plan(&envelope, &placement(state.path(), id(number))).expect("a plan")
    };
    let prepared = |number: usize| {
        let mut plan = plan(&native, number);
        plan.begin();
        (number, plan)
    };
    let mut pool: VecDeque<_> = (0..POOL).map(prepared).collect();
    let (mut launch, mut ended, mut cycle) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cold, mut plain) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        // The pool is filled between requests, and its makers are done before the next one.
        pool.push_back(prepared(POOL + round));
        std::thread::sleep(Duration::from_millis(5));
        if let Some((number, plan)) = pool.pop_front() {
            let [to_exec, to_end, whole] = one(&native, number, plan);
            launch.push(to_exec);
            ended.push(to_end);
            cycle.push(whole);
        }
        let number = ROUNDS * 10 + round;
        let [to_exec, ..] = one(&native, number, plan(&cold_native, number));
        cold.push(to_exec);
        plain.push(fork_exec());
    }
    drop(pool);
    let figures =
        [("launch", launch), ("ended", ended), ("cycle", cycle), ("cold", cold), ("fork_exec", plain)];
    let fields: Vec<String> = figures.into_iter().map(|(name, times)| show(name, times)).collect();
    println!("{{\"bench\":\"engine\",\"rounds\":{ROUNDS},{}}}", fields.join(","));
}

fn id(number: usize) -> TaskId {
    TaskId::new(number as u64, u64::from(std::process::id()))
}

/// Launches, runs `true`, and removes everything. Times to `execve`, to the command's end and to the last.
fn one(native: &Native, number: usize, plan: Box<dyn Plan>) -> [Duration; 3] {
    let start = Instant::now();
    let mut instance = plan.launch().expect("a sandbox");
    let (stdin, _feed) = fumehood_sys::process::pipe(false).expect("a pipe");
    let (_out, stdout) = fumehood_sys::process::pipe(false).expect("a pipe");
    let stderr = stdout.try_clone().expect("a descriptor");
    instance.exec(&request(), GuestStdio::Pipes { stdin, stdout, stderr }).expect("an exec");
    wait_for(instance.as_mut(), |event| matches!(event, Event::Started));
    let to_exec = start.elapsed();
    wait_for(instance.as_mut(), |event| matches!(event, Event::Ended { .. }));
    let to_end = start.elapsed();
    drop(instance);
    native.reap(&id(number)).expect("nothing left");
    [to_exec, to_end, start.elapsed()]
}

fn wait_for(instance: &mut dyn Instance, wanted: impl Fn(&Event) -> bool) {
    loop {
        while let Some(event) = instance.next_event() {
            assert!(!matches!(event, Event::Gone | Event::NotStarted(_)), "{event:?}");
            if wanted(&event) {
                return;
            }
        }
        let set = [(instance.events(), fumehood_sys::poll::Interest::Read)];
        fumehood_sys::poll::wait(&set, Some(Duration::from_secs(10))).expect("a wait");
    }
}

fn fork_exec() -> Duration {
    let start = Instant::now();
    std::process::Command::new("/bin/true").status().expect("true");
    start.elapsed()
}

fn request() -> ExecRequest {
    ExecRequest {
        argv: vec![OsString::from("/bin/true")],
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
    };
    Envelope::check(&EnvelopeSpec::default(), &defaults).expect("the empty envelope")
}

fn placement(shared: &Path, id: TaskId) -> Placement {
    Placement {
        id,
        shared: shared.to_owned(),
        layer: None,
        home: None,
        home_at: PathBuf::from("/home/user"),
        caches: Vec::new(),
        toolchains: Vec::new(),
    }
}

fn show(name: &str, mut times: Vec<Duration>) -> String {
    times.sort();
    let at =
        |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("\"{name}\":{{\"p50_ms\":{:.3},\"p90_ms\":{:.3}}}", at(50), at(90))
}
