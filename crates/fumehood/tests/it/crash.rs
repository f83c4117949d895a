//! Every step of a sandbox's life, and the end of each of our processes at it.
//!
//! A process stops itself at a named step ([`fumehood_keep::fault`]); one process is ended there as a crash ends it; the
//! others go on, and the daemon is started again. Then each sandbox is of use or honestly ended, the registry and the
//! disk speak of the same ones, every record has its end, and when all were stopped nothing is left.

use crate::lab::{self, Caller, DEADLINE, Lab, am_root, finish, poll};
use crate::residue::Host;
use crate::serve::{Daemon, key};
use fumehood_keep::fault::{Point, VARIABLE};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// Whom a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Daemon,
    Keeper,
    Reaper,
    Init,
}

/// What is done to a sandbox that is there, as one request: method, what follows its path, body.
type Act = (&'static str, &'static str, Value);

/// A walk through one transition.
struct Transition {
    name: &'static str,
    points: &'static [Point],
    flags: &'static [&'static str],
    /// What the sandbox is made with; none is made before where the act makes one.
    made: Option<Value>,
    /// What is done before.
    before: Vec<Act>,
    act: Doing,
}

/// What leads to the steps.
enum Doing {
    Create,
    Ask(Act),
    /// Removes the snapshot `kept`.
    Unsnapshot,
    /// Nothing: time does it.
    Wait,
    /// The daemon starts again.
    Start,
    /// The keeper dies, which wakes its reaper.
    Kill,
}

struct Walk<'a> {
    lab: &'a Lab,
    faults: PathBuf,
    key: String,
    before: Host,
    /// Pairs of step and victim that were walked.
    walked: usize,
}

/// Those of each step; every one of them in the full profile.
fn victims() -> &'static [Victim] {
    const ALL: [Victim; 4] = [Victim::Daemon, Victim::Keeper, Victim::Reaper, Victim::Init];
    if std::env::var_os("FUMEHOOD_TEST_FULL").is_some() { &ALL } else { &ALL[..2] }
}

/// Walks all of it, and tells of everything that went wrong, each time from a fresh place.
fn walk(transitions: &[Transition]) {
    let mut flaws = Vec::new();
    for transition in transitions {
        let began = std::time::Instant::now();
        let mut count = 0;
        let mut steps =
            transition.points.iter().flat_map(|point| victims().iter().map(|victim| (*point, *victim)));
        loop {
            let lab = Lab::new(if am_root() { Caller::Root } else { Caller::User });
            let mut walk = Walk::new(&lab);
            let went = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for (point, victim) in steps.by_ref() {
                    walk.step(transition, point, victim);
                }
                walk.verify();
            }));
            count += walk.walked;
            match went {
                Ok(()) => break,
                Err(flaw) => flaws.push(*flaw.downcast::<String>().unwrap_or_default()),
            }
        }
        println!("{}: {count} ends in {:?}", transition.name, began.elapsed());
        assert!(count > 0, "nobody was ended at {}", transition.name);
    }
    assert!(flaws.is_empty(), "{} flaws:\n{}", flaws.len(), flaws.join("\n"));
}

impl Drop for Walk<'_> {
    /// Nobody stands there for ever.
    fn drop(&mut self) {
        for name in names(&self.faults) {
            if let Some(pid) = name.rsplit_once('.').and_then(|(_, pid)| pid.parse().ok()) {
                signal("CONT", pid);
            }
        }
        self.disarm();
        self.keepers().into_iter().for_each(|pid| signal("TERM", pid));
    }
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn new(lab: &'a Lab) -> Self {
        let (faults, key) = (lab.folder("faults"), key(lab, &["--scope", "admin"]));
        Self { lab, faults, key, before: Host::now(lab), walked: 0 }
    }

    /// The record is whole.
    fn verify(&self) {
        let mut verify = self.lab.fumehood();
        verify.args(["audit", "verify"]);
        let verified = finish(verify, b"");
        assert_eq!(verified.code(), 0, "{}", verified.told());
    }

    fn start(&self, flags: &[&str]) -> Daemon<'a> {
        let mut command = Daemon::command(self.lab, flags);
        command.env(VARIABLE, &self.faults);
        Daemon::of(self.lab, self.key.clone(), command)
    }

    fn arm(&self, point: Point) {
        // Whole or not at all: a process may look at this moment.
        let new = self.faults.join("new");
        std::fs::write(&new, format!("{point:?}")).unwrap();
        self.lab.give(&new);
        std::fs::rename(new, self.faults.join("armed")).unwrap();
    }

    fn disarm(&self) {
        for entry in std::fs::read_dir(&self.faults).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
    }

    /// One process at one step.
    fn step(&mut self, transition: &Transition, point: Point, victim: Victim) {
        let what = format!("{} at {point:?}, {victim:?} ended", transition.name);
        let daemon = self.start(transition.flags);
        if transition.flags.contains(&"--pool") {
            assert!(poll(DEADLINE, || waiting(&daemon) == 1), "{what}: no pool");
        }
        let id = transition.made.as_ref().map(|body| daemon.create(body));
        for (method, path, body) in &transition.before {
            let path = format!("/v1/sandboxes/{}{path}", id.as_deref().unwrap());
            let (status, told) = daemon.ask(method, &path, body);
            assert!((200..300).contains(&status), "{what}: before it: {told}");
        }
        self.arm(point);
        let mut acting = Acting::new(self, transition, daemon, id.as_deref());
        let stopped = self.stopped(point).unwrap_or_else(|| panic!("{what}: nobody came by"));
        let found = self.find(victim, stopped, &acting);
        if let Some(pid) = found {
            signal("KILL", pid);
            self.walked += 1;
        }
        if found != Some(stopped) {
            signal("CONT", stopped);
        }
        let answered = acting.settle();
        self.disarm();
        drop(acting);
        let daemon = self.start(&["--most-pool", "0"]);
        self.judge(&daemon, &what, id.as_deref(), answered);
        daemon.end();
        self.judge_records(&what);
    }

    /// Who stands at the point.
    fn stopped(&self, point: Point) -> Option<u32> {
        let mut stopped = None;
        poll(DEADLINE, || {
            let entries = std::fs::read_dir(&self.faults).unwrap().flatten();
            let mut names = entries.filter_map(|entry| entry.file_name().into_string().ok());
            let name = names.find_map(|name| name.strip_prefix(&format!("{point:?}."))?.parse().ok());
            stopped = name.filter(|pid| state_of(*pid) == Some('T'));
            stopped.is_some()
        });
        stopped
    }

    /// The process of this role that has to do with who stands there.
    fn find(&self, victim: Victim, stopped: u32, acting: &Acting<'_>) -> Option<u32> {
        let daemon = acting.daemon_pid();
        let roles = [("fumehood-keeper", Victim::Keeper), ("fumehood-reaper", Victim::Reaper)];
        let own = roles.iter().find(|(name, _)| name_of(stopped) == *name).map(|(_, role)| *role);
        let keeper = match own {
            Some(Victim::Keeper) => Some(stopped),
            Some(_) => parent(stopped).filter(|pid| name_of(*pid) == "fumehood-keeper"),
            None => self.keepers().into_iter().max(),
        };
        let children = || keeper.into_iter().flat_map(children);
        match victim {
            Victim::Daemon => Some(daemon),
            Victim::Keeper => keeper,
            Victim::Reaper if own == Some(Victim::Reaper) => Some(stopped),
            Victim::Reaper => children().find(|pid| name_of(*pid) == "fumehood-reaper"),
            Victim::Init => children().find(|pid| {
                let exe = std::fs::read_link(format!("/proc/{pid}/exe"));
                exe.is_ok_and(|exe| exe.to_string_lossy().contains("memfd:fumehood-init"))
            }),
        }
    }

    fn keepers(&self) -> Vec<u32> {
        let mark = self.lab.path().to_str().unwrap();
        let ours = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            name_of(*pid) == "fumehood-keeper" && lab::contains(&environment, mark)
        };
        pids().filter(ours).collect()
    }

    fn on_disk(&self) -> BTreeSet<String> {
        names(&self.lab.state().join("sandboxes"))
    }

    /// What a restart finds, and what is left when all is stopped.
    fn judge(&self, daemon: &Daemon<'_>, what: &str, id: Option<&str>, answered: Option<(u16, Value)>) {
        let (mut listed, mut there) = (BTreeSet::new(), BTreeSet::new());
        let same = poll(DEADLINE, || {
            self.age();
            (listed, there) = (daemon.list().into_iter().collect(), self.on_disk());
            listed == there
        });
        assert!(same, "{what}: the registry has {listed:?}, the disk {there:?}");
        // Who was told of a sandbox finds it, or why it is no more.
        let told = answered.filter(|(status, _)| *status == 201);
        let told = told.and_then(|(_, body)| body["id"].as_str().map(str::to_owned));
        let (_, ended) = daemon.ask("GET", "/v1/sandboxes?state=ended&limit=1000", &Value::Null);
        for id in id.map(str::to_owned).into_iter().chain(told).filter(|id| !listed.contains(id)) {
            let found = ended["sandboxes"].as_array().unwrap().iter().find(|one| one["id"] == json!(id));
            let cause =
                found.unwrap_or_else(|| panic!("{what}: {id} is not told of"))["ended"]["cause"].clone();
            assert!(["stopped", "expired", "lost"].map(Value::from).contains(&cause), "{what}: {cause}");
        }
        for id in &listed {
            let path = format!("/v1/sandboxes/{id}/execs?output=whole");
            let (status, answer) = daemon.ask("POST", &path, &json!({ "shell": "printf ok" }));
            if status == 200 {
                assert_eq!(answer["stdout"]["text"], "ok", "{what}: {answer}");
                let (_, sandbox) = daemon.ask("GET", &format!("/v1/sandboxes/{id}"), &Value::Null);
                assert!(sandbox["expires_ms"].is_u64(), "{what}: it lives for ever: {sandbox}");
            } else {
                assert!(
                    poll(DEADLINE, || !daemon.list().contains(id)),
                    "{what}: {id} is of no use: {answer}"
                );
            }
            let (status, told) = daemon.ask("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null);
            assert!([204, 404].contains(&status), "{what}: {told}");
        }
        let (_, snapshots) = daemon.ask("GET", "/v1/snapshots", &Value::Null);
        for snapshot in snapshots.as_array().unwrap() {
            let name = snapshot["name"].as_str().unwrap();
            let (status, told) = daemon.ask("DELETE", &format!("/v1/snapshots/{name}"), &Value::Null);
            assert_eq!(status, 204, "{what}: {told}");
        }
        let (own, mark) = (format!("process {}", daemon.child.id()), self.lab.path().to_str().unwrap());
        let mut left = Vec::new();
        let clean = poll(DEADLINE, || {
            // One whose keeper was slow is born when all others were found; the daemon takes it in.
            self.age();
            for id in daemon.list() {
                daemon.ask("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null);
            }
            left = Host::now(self.lab).beyond(&self.before);
            // What others do on this host is theirs.
            let ours = |one: &&String| {
                one.starts_with("process ") || one.starts_with("cgroup ") || one.contains(mark)
            };
            left = left.iter().filter(ours).filter(|one| **one != own).cloned().collect();
            for folder in ["state/sandboxes", "state/snapshots", "state/layers", "state.scratch"] {
                let names = names(&self.lab.path().join(folder));
                left.extend(names.into_iter().map(|name| format!("{folder}/{name}")));
            }
            left.is_empty()
        });
        assert!(clean, "{what}: left: {left:#?}");
        assert_eq!(daemon.list(), Vec::<String>::new(), "{what}");
    }

    /// A record that is not closed belongs to something that lives.
    fn judge_records(&self, what: &str) {
        for name in names(&self.lab.state().join("records")) {
            if name == "index.jsonl" {
                continue;
            }
            let text = std::fs::read_to_string(self.lab.state().join("records").join(&name)).unwrap();
            let last: Value = serde_json::from_str(text.lines().last().unwrap_or("null")).unwrap();
            assert!(last.to_string().contains("task.closed"), "{what}: {name} ends with {last}");
        }
    }

    /// A folder whose keeper died before its record is left for a minute, lest it is one that begins.
    fn age(&self) {
        for id in self.on_disk() {
            if !self.lab.state().join(format!("records/{id}.jsonl")).exists() {
                let folder = self.lab.state().join("sandboxes").join(id);
                // It may go at this moment.
                let mut touch = Command::new("touch");
                touch.args(["-c", "-d", "2 minutes ago"]).arg(folder).stderr(Stdio::null());
                assert!(touch.status().is_ok());
            }
        }
    }
}

/// What goes on while a process stands still.
struct Acting<'a> {
    daemon: Option<Daemon<'a>>,
    starting: Option<Child>,
    request: Option<JoinHandle<Option<(u16, Value)>>>,
}

// === impl Acting ===

impl<'a> Acting<'a> {
    fn new(walk: &Walk<'_>, transition: &Transition, daemon: Daemon<'a>, id: Option<&str>) -> Self {
        let (port, key) = (daemon.port, daemon.key.clone());
        let send = |method: &'static str, path: String, body: Value| {
            let key = key.clone();
            Some(std::thread::spawn(move || attempt(port, &key, method, &path, &body)))
        };
        let of = |path: &str| format!("/v1/sandboxes/{}{path}", id.unwrap_or_default());
        let (mut daemon, mut starting) = (Some(daemon), None);
        let request = match &transition.act {
            Doing::Create => send("POST", "/v1/sandboxes".to_owned(), json!({})),
            Doing::Ask((method, path, body)) => send(method, of(path), body.clone()),
            Doing::Unsnapshot => send("DELETE", "/v1/snapshots/kept".to_owned(), Value::Null),
            Doing::Wait => None,
            Doing::Start => {
                // It is armed by now: the one that ends does not come by.
                daemon.take().unwrap().crash();
                let mut command = Daemon::command(walk.lab, &[]);
                command.env(VARIABLE, &walk.faults).stdin(Stdio::null()).stderr(Stdio::null());
                starting = Some(command.spawn().unwrap());
                None
            }
            Doing::Kill => {
                // Its reaper bears its name until it has had its first turn.
                let has_reaper =
                    |pid: u32| children(pid).into_iter().any(|pid| name_of(pid) == "fumehood-reaper");
                assert!(poll(DEADLINE, || walk.keepers().into_iter().all(has_reaper)), "no reaper");
                walk.keepers().into_iter().for_each(|pid| signal("KILL", pid));
                None
            }
        };
        Self { daemon, starting, request }
    }

    fn daemon_pid(&self) -> u32 {
        let child = self.starting.as_ref().or(self.daemon.as_ref().map(|daemon| &daemon.child));
        child.unwrap().id()
    }

    /// Waits for the answer, and ends the daemon as a crash does.
    fn settle(&mut self) -> Option<(u16, Value)> {
        let answered = self.request.take().and_then(|request| request.join().unwrap());
        if let Some(daemon) = self.daemon.take() {
            daemon.crash();
        }
        if let Some(mut starting) = self.starting.take() {
            starting.kill().unwrap();
            starting.wait().unwrap();
        }
        answered
    }
}

/// One request, whose answer may not come.
fn attempt(port: u16, key: &str, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).ok()?;
    let head = format!("{method} {path} HTTP/1.0\r\nHost: localhost\r\nX-API-KEY: {key}\r\n");
    stream.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.get(9..12)?.parse().ok()?, serde_json::from_str(body).unwrap_or(Value::Null)))
}

fn waiting(daemon: &Daemon<'_>) -> u64 {
    let text = attempt_text(daemon.port, &daemon.key, "/metrics").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("fumehood_pool_waiting "));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

fn attempt_text(port: u16, key: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    let request = format!("GET {path} HTTP/1.0\r\nHost: localhost\r\nX-API-KEY: {key}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn pids() -> impl Iterator<Item = u32> {
    names(Path::new("/proc")).into_iter().filter_map(|name| name.parse().ok())
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim().to_owned()
}

fn stat_of(pid: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit_once(") ")?.1.to_owned())
}

fn state_of(pid: u32) -> Option<char> {
    stat_of(pid)?.chars().next()
}

fn parent(pid: u32) -> Option<u32> {
    stat_of(pid)?.split(' ').nth(1)?.parse().ok()
}

fn children(pid: u32) -> Vec<u32> {
    pids().filter(|child| parent(*child) == Some(pid)).collect()
}

fn signal(name: &str, pid: u32) {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null());
    // It may have ended by itself.
    assert!(kill.status().is_ok());
}

const PAUSE: &str = "/pause";

fn plain(name: &'static str, points: &'static [Point], act: Doing) -> Transition {
    Transition { name, points, flags: &["--most-pool", "0"], made: Some(json!({})), before: Vec::new(), act }
}

fn births() -> Vec<Transition> {
    use Point::*;
    const CREATE: &[Point] = &[
        CreateAsked,
        CreateSpawned,
        CreateBorn,
        CreateRegistered,
        BirthFolder,
        BirthPlaced,
        BirthRestored,
        BirthRecorded,
        BirthLaunched,
        BirthReaper,
        BirthListening,
        BirthDescribed,
        BirthTold,
    ];
    let claim = &[PoolBorn, ClaimRegistered, ClaimDone, ClaimRecorded];
    vec![
        Transition { made: None, ..plain("create", CREATE, Doing::Create) },
        Transition { made: None, flags: &["--pool", "1"], ..plain("claim", claim, Doing::Create) },
    ]
}

fn works() -> Vec<Transition> {
    use Point::*;
    let run = || json!({ "shell": "echo x" });
    let paused = || vec![("POST", PAUSE, Value::Null)];
    let exec = "/execs?output=whole";
    vec![
        plain("exec", &[Entered, ExecRecorded, ExecBegun, ExecEnded], Doing::Ask(("POST", exec, run()))),
        plain(
            "pause",
            &[PauseMarked, ExpireRecorded, PauseTimeless, PauseRecorded, PauseFrozen, PauseDone],
            Doing::Ask(("POST", PAUSE, Value::Null)),
        ),
        Transition {
            before: paused(),
            ..plain(
                "resume",
                &[ResumeRecorded, ResumeThawed, WakeDone, WakeTimed],
                Doing::Ask(("POST", "/resume", json!({}))),
            )
        },
        Transition {
            before: paused(),
            ..plain("wake by traffic", &[ResumeThawed, WakeDone], Doing::Ask(("POST", exec, run())))
        },
        plain("time", &[TtlDone], Doing::Ask(("POST", "/ttl", json!({ "ttl_seconds": 500 })))),
        Transition {
            made: Some(json!({ "idle_pause_seconds": 1 })),
            ..plain("idle pause", &[IdleFound, PauseFrozen], Doing::Wait)
        },
        Transition {
            made: Some(json!({ "ttl_seconds": 1, "on_timeout": "pause" })),
            ..plain("pause by time", &[ExpiryFound, PauseDone], Doing::Wait)
        },
    ]
}

fn files() -> Vec<Transition> {
    use Point::*;
    let write = || ("POST", "/execs?output=whole", json!({ "shell": "echo x > \"$HOME/x\"" }));
    let snapshot = || ("POST", "/snapshots", json!({ "name": "kept" }));
    vec![
        Transition {
            before: vec![write()],
            ..plain(
                "snapshot",
                &[
                    SnapshotMeant,
                    SnapshotFrozen,
                    SnapshotCopied,
                    SnapshotPublished,
                    SnapshotTaken,
                    SnapshotKept,
                ],
                Doing::Ask(snapshot()),
            )
        },
        Transition {
            before: vec![snapshot()],
            ..plain("unsnapshot", &[SnapshotForgotten], Doing::Unsnapshot)
        },
        Transition {
            before: vec![write()],
            ..plain(
                "fork",
                &[SnapshotMeant, SnapshotPublished, ForkTaken, BirthPlaced, BirthRestored, ForkBorn],
                Doing::Ask(("POST", "/fork", json!({ "count": 2 }))),
            )
        },
    ]
}

fn ends() -> Vec<Transition> {
    use Point::*;
    vec![
        plain(
            "stop",
            &[
                StopAsked,
                EndRecorded,
                EndKilled,
                EndReaped,
                EndRemoved,
                EndClosed,
                StopDone,
                ReapWoken,
                ReapReaped,
            ],
            Doing::Ask(("DELETE", "", Value::Null)),
        ),
        Transition {
            made: Some(json!({ "ttl_seconds": 1 })),
            ..plain("end by time", &[EndRecorded, EndRemoved], Doing::Wait)
        },
        plain("death", &[ReapWoken, ReapReaped, ReapRecorded, ReapRemoved], Doing::Kill),
        Transition {
            before: vec![("POST", PAUSE, Value::Null)],
            ..plain("adopt", &[AdoptRead, AdoptAsked, AdoptTaken], Doing::Start)
        },
    ]
}

#[test]
fn whoever_dies_while_a_sandbox_is_made() {
    walk(&births());
}

#[test]
fn whoever_dies_while_a_sandbox_is_used() {
    walk(&works());
}

#[test]
fn whoever_dies_while_files_are_kept() {
    walk(&files());
}

#[test]
fn whoever_dies_while_a_sandbox_ends_or_is_found_again() {
    walk(&ends());
}

#[test]
fn no_step_is_left_out() {
    let all = [births(), works(), files(), ends()];
    let walked: BTreeSet<Point> =
        all.iter().flatten().flat_map(|transition| transition.points.iter().copied()).collect();
    assert_eq!(walked, Point::ALL.iter().copied().collect());
    // Each is where it was put, once: whoever moves code about takes them along.
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let text: String =
        ["server", "runtime"].iter().map(|name| source(&crates.join(name).join("src"))).collect();
    for point in Point::ALL {
        let name = format!("Point::{point:?}");
        let whole = |after: &str| !after.starts_with(|c: char| c.is_ascii_alphanumeric());
        let count = text.split(&name).skip(1).filter(|after| whole(after)).count();
        assert_eq!(count, 1, "{name} stands {count} times in the source");
    }
}

/// All that is written in the files of a folder.
fn source(folder: &Path) -> String {
    let paths = names(folder).into_iter().map(|name| folder.join(name));
    let read = |path: PathBuf| match path.is_dir() {
        true => source(&path),
        false => std::fs::read_to_string(path).unwrap(),
    };
    paths.map(read).collect()
}
