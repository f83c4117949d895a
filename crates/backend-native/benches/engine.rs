//! What the engine itself takes, with prepared pools as a server would hold them: one JSON line.
//!
//! `launch` is from asking for a sandbox to the command's `execve` being done, with every wall and limit
//! on. `cycle` goes on until the command has ended and everything is removed. `cold` is `launch` with
//! nothing prepared. `fork_exec` is a plain program started and waited for, in the same rounds.

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
use fumehood_sys::process::Forked;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

const ROUNDS: usize = 200;

fn main() {
    let state = tempfile::tempdir_in("/var/tmp").expect("a folder for state");
    for name in ["root", "lower", "layer", "empty"] {
        std::fs::create_dir(state.path().join(name)).expect("a folder for mounts");
    }
    let native = Native::find();
    let envelope = envelope();
    let spawner = Native::enclosed();
    let plan = |number: usize, begin: bool| {
        let id = id(number);
        let native = if begin { &spawner } else { &native };
        let mut plan = native.plan(&envelope, &placement(state.path(), id)).expect("a plan");
        if begin {
            plan.begin();
        }
        plan
    };
    let direct = |number: usize| native.reap(&id(number)).expect("nothing left");
    let (mut launch, mut cycle, mut cold, mut plain) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for number in ROUNDS..2 * ROUNDS {
        cold.push(one(number, plan(number, false), &direct).0);
        plain.push(fork_exec());
    }
    let pool: Vec<_> = (0..ROUNDS).map(|number| plan(number, true)).collect();
    // The makers of the pool are busy for a moment; a server fills its pool between requests.
    std::thread::sleep(Duration::from_millis(300));
    let reaper = Reaper::fork(&native, state.path());
    if fumehood_sys::host::euid() == 0 {
        let keep = CString::new(state.path().join("root").as_os_str().as_bytes()).expect("a path");
        fumehood_sys::launch::enclose(&keep).expect("an empty place to launch from");
    }
    for (number, prepared) in pool.into_iter().enumerate() {
        let (to_exec, whole) = one(number, prepared, &|number| reaper.reap(number));
        launch.push(to_exec);
        cycle.push(whole);
    }
    let figures = [("launch", launch), ("cycle", cycle), ("cold", cold), ("fork_exec", plain)];
    let fields: Vec<String> = figures.into_iter().map(|(name, times)| show(name, times)).collect();
    println!("{{\"bench\":\"engine\",\"rounds\":{ROUNDS},{}}}", fields.join(","));
    // The folder is the host's, which this process has left; its reaper removes it.
    drop(reaper);
    let _ = state.keep();
}

/// Another process of ours that removes what sandboxes leave, as a server has it.
struct Reaper {
    ask: File,
    answer: File,
}

impl Reaper {
    fn fork(native: &Native, state: &Path) -> Self {
        let (asked, ask) = fumehood_sys::process::pipe(false).expect("a pipe");
        let (answer, answered) = fumehood_sys::process::pipe(false).expect("a pipe");
        match fumehood_sys::process::fork().expect("a fork") {
            Forked::Parent { .. } => Self { ask: ask.into(), answer: answer.into() },
            Forked::Child => {
                drop((ask, answer));
                let (mut asked, mut answered) = (File::from(asked), File::from(answered));
                let mut number = [0_u8; 8];
                while asked.read_exact(&mut number).is_ok() {
                    let done = native.reap(&id(usize::from_ne_bytes(number))).is_ok();
                    let _ = answered.write_all(&[u8::from(done)]);
                }
                let _ = std::fs::remove_dir_all(state);
                fumehood_sys::process::exit_now(0)
            }
        }
    }

    fn reap(&self, number: usize) {
        (&self.ask).write_all(&number.to_ne_bytes()).expect("a reaper");
        let mut done = [0_u8; 1];
        (&self.answer).read_exact(&mut done).expect("an answer");
        assert_eq!(done, [1], "something was left");
    }
}

/// The same in the reaper, which is another process.
fn id(number: usize) -> TaskId {
    static RUN: OnceLock<u64> = OnceLock::new();
    TaskId::new(number as u64, *RUN.get_or_init(|| u64::from(std::process::id())))
}

/// Launches, runs `true`, and removes everything. Times to `execve` and to the end.
fn one(number: usize, plan: Box<dyn Plan>, reap: &dyn Fn(usize)) -> (Duration, Duration) {
    let start = Instant::now();
    let mut instance = plan.launch().expect("a sandbox");
    let (stdin, _feed) = fumehood_sys::process::pipe(false).expect("a pipe");
    let (_out, stdout) = fumehood_sys::process::pipe(false).expect("a pipe");
    let stderr = stdout.try_clone().expect("a descriptor");
    instance.exec(&request(), GuestStdio::Pipes { stdin, stdout, stderr }).expect("an exec");
    wait_for(instance.as_mut(), |event| matches!(event, Event::Started));
    let to_exec = start.elapsed();
    wait_for(instance.as_mut(), |event| matches!(event, Event::Ended { .. }));
    drop(instance);
    reap(number);
    (to_exec, start.elapsed())
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
