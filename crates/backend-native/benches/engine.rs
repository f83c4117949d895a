//! What the engine itself takes, with prepared pools as a server would hold them: one JSON line.
//!
//! A plan of the pool has begun: its sandbox stands, and waits for a command that is not known yet. `launch` is
//! from asking for a sandbox to the command's `execve` being done, with every wall and limit on. `ended` goes on
//! until the command's end is known, `cycle` until everything is removed. `cold` is `launch` with nothing
//! prepared. `fork_exec` is a plain program started and waited for, in the same rounds. With `net` they are those of
//! a sandbox with a gateway, and with `every` of one whose gateway hears every port; `end` is what closing its
//! sockets takes.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a bench prints its line, and stops where it can not measure"
)]

use fumehood_backend::gateway::{GatewaySpec, Ports};
use fumehood_backend::{Backend, Event, GuestStdio, Instance, Placement, Plan};
use fumehood_backend_native::Native;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use std::cell::Cell;
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
    let next = Cell::new(0);
    let plan = |native: &Native, ports: Option<&Ports>| {
        next.set(next.get() + 1);
        let placement = placement(state.path(), id(next.get()), ports);
        (next.get(), native.plan(&envelope, &placement).expect("a plan"))
    };
    let mut sides = [("", None), ("_net", Some(listed())), ("_every", Some(Ports::Every))]
        .map(|(name, ports)| Side { name, ports, ..Side::default() });
    let prepared = |ports: Option<&Ports>| {
        let (number, mut plan) = plan(&native, ports);
        plan.begin();
        (number, plan)
    };
    for side in &mut sides {
        side.pool = (0..POOL).map(|_| prepared(side.ports.as_ref())).collect();
    }
    let mut plain = Vec::new();
    for _ in 0..ROUNDS {
        for side in &mut sides {
            // The pool is filled between requests, and its makers are done before the next one.
            side.pool.push_back(prepared(side.ports.as_ref()));
            std::thread::sleep(Duration::from_millis(5));
            if let Some((number, plan)) = side.pool.pop_front() {
                let took = one(&native, number, plan);
                side.launch.push(took.to_exec);
                side.ended.push(took.to_end);
                side.cycle.push(took.whole);
                side.end.push(took.end);
            }
            let (number, plan) = plan(&cold_native, side.ports.as_ref());
            side.cold.push(one(&cold_native, number, plan).to_exec);
        }
        plain.push(fork_exec());
    }
    let mut fields: Vec<String> = sides.into_iter().flat_map(Side::shown).collect();
    fields.push(show("fork_exec", plain));
    println!("{{\"bench\":\"engine\",\"rounds\":{ROUNDS},{}}}", fields.join(","));
}

/// The ports of a usual set of rules.
fn listed() -> Ports {
    Ports::Listed(vec![22, 80, 443, 5432])
}

/// One kind of sandbox, and its times.
#[derive(Debug, Default)]
struct Side {
    name: &'static str,
    ports: Option<Ports>,
    pool: VecDeque<(usize, Box<dyn Plan>)>,
    launch: Vec<Duration>,
    ended: Vec<Duration>,
    cycle: Vec<Duration>,
    cold: Vec<Duration>,
    end: Vec<Duration>,
}

// === impl Side ===

impl Side {
    fn shown(self) -> [String; 5] {
        let Self { name, launch, ended, cycle, cold, end, .. } = self;
        [("launch", launch), ("ended", ended), ("cycle", cycle), ("cold", cold), ("end", end)]
            .map(|(figure, times)| show(&format!("{figure}{name}"), times))
    }
}

/// Times of one sandbox.
struct Took {
    to_exec: Duration,
    to_end: Duration,
    whole: Duration,
    end: Duration,
}

fn id(number: usize) -> TaskId {
    TaskId::new(number as u64, u64::from(std::process::id()))
}

/// Launches, runs `true`, and removes everything. Times to `execve`, to the command's end and to the last.
fn one(native: &Native, number: usize, plan: Box<dyn Plan>) -> Took {
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
    let gateway = instance.take_gateway();
    let ending = Instant::now();
    drop(gateway);
    let end = ending.elapsed();
    drop(instance);
    native.reap(&id(number)).expect("nothing left");
    Took { to_exec, to_end, whole: start.elapsed(), end }
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
        presets: std::collections::BTreeMap::new(),
        images: std::collections::BTreeMap::new(),
    };
    Envelope::check(&EnvelopeSpec::default(), &defaults).expect("the empty envelope")
}

fn placement(shared: &Path, id: TaskId, ports: Option<&Ports>) -> Placement {
    Placement {
        id,
        shared: shared.to_owned(),
        scratch: shared.join("scratch"),
        layer: None,
        home: None,
        home_at: PathBuf::from("/home/user"),
        caches: Vec::new(),
        toolchains: Vec::new(),
        gateway: ports.map(|ports| GatewaySpec { ports: ports.clone() }),
        files: Vec::new(),
        living: None,
    }
}

fn show(name: &str, mut times: Vec<Duration>) -> String {
    times.sort();
    let at =
        |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default().as_secs_f64() * 1e3;
    format!("\"{name}\":{{\"p50_ms\":{:.3},\"p90_ms\":{:.3}}}", at(50), at(90))
}
