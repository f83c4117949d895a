//! What is left on the host when our own processes are ended at any moment: nothing.
//!
//! Each test runs alone, counts what the host has before and after, and names whatever is new.

use crate::lab::{self, Caller, Lab};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Long enough for the reaper's published second, on a busy machine.
pub(crate) const SETTLED: Duration = Duration::from_secs(20);

/// All that could be left behind, by name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Host {
    processes: BTreeSet<String>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    namespaces: BTreeSet<String>,
    loops: BTreeSet<String>,
    scratch: BTreeSet<String>,
}

// === impl Host ===

impl Host {
    /// What there is now that could be ours.
    pub(crate) fn now(lab: &Lab) -> Self {
        let mark = lab.path().to_str().unwrap();
        Self {
            processes: processes(lab, mark),
            mounts: lines("/proc/self/mountinfo", |line| line.contains("fumehood")),
            cgroups: cgroups(Path::new("/sys/fs/cgroup"), &tasks(lab)),
            namespaces: namespaces(mark),
            loops: folder("/sys/block", |name| {
                let file = Path::new("/sys/block").join(name).join("loop/backing_file");
                std::fs::read_to_string(file).is_ok_and(|image| image.contains(mark))
            }),
            // The places of other tests that run beside this one are theirs.
            scratch: ["/tmp", "/var/tmp", "/dev/shm", "/run"]
                .iter()
                .flat_map(|path| {
                    folder(path, |name| name.contains("fumehood") && !name.starts_with("fumehood-test-"))
                })
                .collect(),
        }
    }

    /// What is here and was not there.
    pub(crate) fn beyond(&self, before: &Self) -> Vec<String> {
        [
            (&self.processes, &before.processes),
            (&self.mounts, &before.mounts),
            (&self.cgroups, &before.cgroups),
            (&self.namespaces, &before.namespaces),
            (&self.loops, &before.loops),
            (&self.scratch, &before.scratch),
        ]
        .iter()
        .flat_map(|(now, then)| now.difference(then).cloned())
        .collect()
    }
}

/// Processes that carry this place's name in their arguments or their environment, and the first processes of
/// sandboxes that belong to it. Those of others that run on this host are not counted.
fn processes(lab: &Lab, mark: &str) -> BTreeSet<String> {
    let tasks = tasks(lab);
    let above = ancestors(std::process::id());
    let own = std::process::id();
    let ours = |pid: u32| pid != own && (is_marked(pid, mark) || is_our_init(pid, mark, &tasks, &above));
    pids().into_iter().filter(|pid| ours(*pid)).map(|pid| format!("process {pid}")).collect()
}

fn pids() -> Vec<u32> {
    folder("/proc", |_| true).iter().filter_map(|name| name.parse().ok()).collect()
}

/// Whoever was started by this place's commands has it among the variables, and keeps it through a fork.
fn is_marked(pid: u32, mark: &str) -> bool {
    ["cmdline", "environ"].iter().any(|file| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        lab::contains(&bytes, mark)
    })
}

/// The first process of a sandbox has neither arguments nor variables of ours: it is known by its cgroup, or
/// by its keeper, or, when that is gone, by whoever orphans of ours fall to.
fn is_our_init(pid: u32, mark: &str, tasks: &BTreeSet<String>, above: &[u32]) -> bool {
    let runs = std::fs::read_link(format!("/proc/{pid}/exe"));
    if !runs.is_ok_and(|exe| exe.to_string_lossy().contains("memfd:fumehood-init")) {
        return false;
    }
    let cgroup = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    tasks.iter().any(|task| cgroup.contains(task))
        || parent(pid).is_some_and(|keeper| above.contains(&keeper) || is_marked(keeper, mark))
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}

fn ancestors(pid: u32) -> Vec<u32> {
    std::iter::successors(parent(pid), |pid| parent(*pid)).take_while(|pid| *pid != 0).collect()
}

/// Namespaces that a process of this place lives in, other than this test's own.
fn namespaces(mark: &str) -> BTreeSet<String> {
    let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    let mut found = BTreeSet::new();
    for pid in pids() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let Ok(namespace) = std::fs::metadata(format!("/proc/{pid}/ns/net")) else { continue };
        if namespace.ino() != own && lab::contains(&line, mark) {
            found.insert(format!("network namespace {}", namespace.ino()));
        }
    }
    found
}

/// The tasks that this place's state folder has a record of: others' runs are not counted.
fn tasks(lab: &Lab) -> BTreeSet<String> {
    let records = folder(lab.state().join("records").to_str().unwrap(), |name| name.ends_with(".jsonl"));
    records.iter().map(|name| name.trim_end_matches(".jsonl").to_owned()).collect()
}

fn cgroups(root: &Path, tasks: &BTreeSet<String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let Ok(entries) = std::fs::read_dir(root) else { return found };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if tasks.iter().any(|task| entry.file_name().to_string_lossy().contains(task)) {
                found.insert(format!("cgroup {}", path.display()));
            }
            found.extend(cgroups(&path, tasks));
        }
    }
    found
}

fn lines(file: &str, keep: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| keep(line)).map(|line| format!("{file}: {line}")).collect()
}

fn folder(path: &str, keep: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(path) else { return BTreeSet::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| keep(name))
        .collect()
}

/// Folders of the state that belong to single runs: none of these runs has a workspace to keep.
fn run_folders(lab: &Lab) -> BTreeSet<String> {
    ["state/layers", "state/scratch", "state.scratch"]
        .iter()
        .flat_map(|name| folder(lab.path().join(name).to_str().unwrap(), |_| true))
        .collect()
}

/// How a run is started: the level, and what the host permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Container,
    Process,
    /// The process level where no namespace can be made.
    Bare,
}

fn start(lab: &Lab, script: &str) -> Child {
    start_as(lab, Form::Container, script)
}

fn start_as(lab: &Lab, form: Form, script: &str) -> Child {
    let mut command = match form {
        Form::Container | Form::Process => lab.fumehood(),
        Form::Bare => {
            let mut command = lab.command(&lab.forbidding()[0]);
            command.args(&lab.forbidding()[1..]).arg(lab.binary());
            command
        }
    };
    let level = if form == Form::Container { "container" } else { "process" };
    command
        .args(["run", "-q", "--level", level, "--", "sh", "-c"])
        .arg(format!("{script} # {}", lab.path().display()));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn kill(pid: u32) {
    let mut command = Command::new("kill");
    // It may have ended by itself: the moment is random.
    let _may_be_gone = command.args(["-KILL", &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
}

/// The processes beneath a process, whatever session they are in.
fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for child in pids().into_iter().filter(|child| parent(*child) == Some(pid)) {
        found.push(child);
        found.extend(descendants(child));
    }
    found
}

/// Waits until nothing is left beyond what there was; names what stays.
fn settled(lab: &Lab, before: &Host) {
    let mut left = Vec::new();
    let clean = lab::poll(SETTLED, || {
        left = Host::now(lab).beyond(before);
        left.is_empty()
    });
    assert!(clean, "left on the host: {left:#?}");
    assert_eq!(run_folders(lab), BTreeSet::new(), "left in the state folder");
}

/// A number below `below`, not the same in each round.
fn dice(below: u64) -> u64 {
    u64::from(u16::from_le_bytes(lab::random(2).try_into().unwrap())) % below
}

fn rounds(fast: u64, full: u64) -> u64 {
    if std::env::var_os("FUMEHOOD_TEST_FULL").is_some() { full } else { fast }
}

fn ended_at_random_moments(caller: Caller, whom: fn(&Child) -> Vec<u32>) {
    forms_ended_at_random_moments(caller, Form::Container, whom);
}

fn forms_ended_at_random_moments(caller: Caller, form: Form, whom: fn(&Child) -> Vec<u32>) {
    if !caller.available() {
        return;
    }
    let lab = Lab::alone(caller);
    // The first run may make what all runs share.
    assert!(start_as(&lab, form, "true").wait().unwrap().success());
    let before = Host::now(&lab);
    for _ in 0..rounds(15, 150) {
        let mut child = start_as(&lab, form, "(setsid sleep 50 &) ; sleep 50");
        std::thread::park_timeout(Duration::from_micros(dice(40_000)));
        for pid in whom(&child) {
            kill(pid);
        }
        kill(child.id());
        child.wait().unwrap();
    }
    // Where the reaper was ended too, the next command of ours cleans what it left.
    assert!(start_as(&lab, form, "true").wait().unwrap().success());
    settled(&lab, &before);
}

/// The first milliseconds of a run, in which helpers of the keeper come and go: the makers of id maps, one for
/// each view, those who make namespaces and root beside it, the child, the reaper.
#[test]
fn a_keeper_in_its_first_milliseconds() {
    const WINDOW_US: u64 = 8_000;
    if !Caller::Root.available() {
        return;
    }
    let lab = Lab::alone(Caller::Root);
    let project = lab.folder("project");
    let views: Vec<_> = (0..VIEWS).map(|number| lab.folder(&format!("view-{number}"))).collect();
    let run = |views: &[PathBuf]| {
        let mut command = lab.fumehood();
        command.args(["run", "-q", "--workspace"]).arg(&project);
        for view in views {
            command.arg("--ro").arg(view);
        }
        command.args(["--", "sleep", "50"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    assert!(start(&lab, "true").wait().unwrap().success());
    let before = Host::now(&lab);
    let rounds = rounds(192, 1_000);
    for round in 0..rounds {
        // With all views most of the window belongs to the makers; without them it reaches the command.
        let mut child = run(if round % 2 == 0 { &views } else { &[] });
        // Each part of the window gets its share, and no two rounds the same moment.
        let part = WINDOW_US / rounds;
        std::thread::park_timeout(Duration::from_micros(round * part + dice(part.max(1))));
        kill_now(&mut child);
    }
    // A layer whose run did not come to its record is left for a minute, lest it is somebody's that begins.
    age(&lab);
    assert!(start(&lab, "true").wait().unwrap().success());
    assert!(lab::poll(SETTLED, || run_folders(&lab).is_empty()), "layers: {:?}", run_folders(&lab));
    settled(&lab, &before);
}

/// Makers of id maps in one run: with so many, a fair part of the rounds ends while one of them lives.
const VIEWS: usize = 24;

/// Without a program in between, which takes a millisecond to start.
fn kill_now(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Makes every layer look as if it had been made a while ago.
fn age(lab: &Lab) {
    let layers = lab.state().join("layers");
    for layer in run_folders(lab) {
        let mut age = Command::new("touch");
        assert!(age.args(["-d", "2 minutes ago"]).arg(layers.join(layer)).status().unwrap().success());
    }
}

#[test]
fn the_keeper_of_root() {
    ended_at_random_moments(Caller::Root, |_| Vec::new());
}

#[test]
fn the_keeper_of_a_user() {
    ended_at_random_moments(Caller::User, |_| Vec::new());
}

/// Reaper, init and the command: one of them first, then the keeper.
#[test]
fn any_process_of_root() {
    ended_at_random_moments(Caller::Root, one_of);
}

#[test]
fn any_process_of_a_user() {
    ended_at_random_moments(Caller::User, one_of);
}

#[test]
fn processes_of_the_process_level() {
    for caller in [Caller::Root, Caller::User] {
        for whom in [(|_| Vec::new()) as fn(&Child) -> Vec<u32>, one_of] {
            forms_ended_at_random_moments(caller, Form::Process, whom);
        }
    }
}

#[test]
fn processes_of_the_process_level_without_namespaces() {
    for caller in [Caller::Root, Caller::User] {
        for whom in [(|_| Vec::new()) as fn(&Child) -> Vec<u32>, one_of] {
            forms_ended_at_random_moments(caller, Form::Bare, whom);
        }
    }
}

/// A keeper that is ended while a module is compiled in a sandbox of its own, or while it runs.
#[cfg(feature = "wasm")]
#[test]
fn a_keeper_with_a_module() {
    for caller in [Caller::Root, Caller::User] {
        if !caller.available() {
            continue;
        }
        let lab = Lab::alone(caller);
        assert!(start(&lab, "true").wait().unwrap().success());
        let before = Host::now(&lab);
        for round in 0..rounds(8, 80) {
            // Another module each time, so that each is compiled.
            let text = format!(
                "(module (memory (export \"memory\") 1) (data (i32.const 0) \"{round}\") (func (export \"_start\") (loop $l (br $l))))"
            );
            let module = lab.file("spin.wasm", wat::parse_str(text).unwrap());
            let mut command = lab.fumehood();
            command.args(["run", "-q", "--level", "wasm", "--"]).arg(module).arg(lab.path());
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            std::thread::park_timeout(Duration::from_micros(dice(300_000)));
            kill_now(&mut child);
        }
        assert!(start(&lab, "true").wait().unwrap().success());
        settled(&lab, &before);
        let kept = folder(lab.state().join("shared/wasm").to_str().unwrap(), |_| true);
        let strange = kept.iter().find(|name| !name.ends_with(".made") && !name.ends_with(".code"));
        assert_eq!(strange, None, "{kept:?}");
    }
}

fn one_of(child: &Child) -> Vec<u32> {
    let all = descendants(child.id());
    let count = u64::try_from(all.len()).unwrap();
    if count == 0 { all } else { vec![all[usize::try_from(dice(count)).unwrap()]] }
}

/// When a process of ours is ended and the keeper lives, the run still ends, and says how.
#[test]
fn a_run_whose_init_is_ended_still_ends() {
    let forms = [Form::Container, Form::Process, Form::Bare];
    let callers = [Caller::Root, Caller::User];
    for (caller, form) in callers.into_iter().flat_map(|caller| forms.map(|form| (caller, form))) {
        if !caller.available() {
            continue;
        }
        let lab = Lab::alone(caller);
        assert!(start_as(&lab, form, "true").wait().unwrap().success());
        let before = Host::now(&lab);
        for _ in 0..rounds(5, 50) {
            let mut child = start_as(&lab, form, "echo ready; sleep 50");
            lab::await_word(&mut child, "ready").unwrap();
            for pid in descendants(child.id()) {
                kill(pid);
            }
            let status = lab::wait(&mut child, Duration::from_secs(20));
            if status.is_none() {
                kill(child.id());
                child.wait().unwrap();
            }
            assert!(status.is_some_and(|status| !status.success()), "{status:?}");
        }
        assert!(start_as(&lab, form, "true").wait().unwrap().success());
        settled(&lab, &before);
    }
}

/// Many runs, a tenth of them ended: nothing stays.
#[test]
fn many_runs_with_a_tenth_ended() {
    for caller in [Caller::Root, Caller::User] {
        if !caller.available() {
            continue;
        }
        let lab = Lab::alone(caller);
        assert!(start(&lab, "true").wait().unwrap().success());
        let before = Host::now(&lab);
        for round in 0..rounds(100, 1_000) {
            let mut child = start(&lab, "echo x > /tmp/x; true");
            if round % 10 == 0 {
                std::thread::park_timeout(Duration::from_micros(dice(20_000)));
                kill(child.id());
            }
            child.wait().unwrap();
        }
        settled(&lab, &before);
    }
}

/// The count must be able to see what it counts.
#[test]
fn a_process_that_is_left_is_seen() {
    let lab = Lab::alone(Caller::User);
    let before = Host::now(&lab);
    let mut child =
        Command::new("sh").args(["-c", "read x # $0"]).arg(lab.path()).stdin(Stdio::piped()).spawn().unwrap();
    assert!(lab::poll(Duration::from_secs(10), || !Host::now(&lab).beyond(&before).is_empty()));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_layer_whose_run_was_killed_before_its_record_goes() {
    let lab = Lab::new(Caller::User);
    assert!(start(&lab, "true").wait().unwrap().success());
    let unused = lab.folder("state/layers/1m8mjcwsfwc31fdn");
    // Its record was moved away by its owner; what it changes is still theirs.
    let changed = lab.folder("state/layers/1m8mjcwsfwc31fdp");
    for part in ["1m8mjcwsfwc31fdn/upper", "1m8mjcwsfwc31fdn/work", "1m8mjcwsfwc31fdp/upper"] {
        lab.folder(&format!("state/layers/{part}"));
    }
    lab.file("state/layers/1m8mjcwsfwc31fdp/upper/written", "kept");
    let mut age = Command::new("touch");
    assert!(age.args(["-d", "2 minutes ago"]).args([&unused, &changed]).status().unwrap().success());
    assert!(start(&lab, "true").wait().unwrap().success());
    assert!(lab::poll(SETTLED, || !unused.exists()), "the layer stays");
    assert!(changed.join("upper/written").exists(), "a layer with changes went");
}

/// Its reapers may still be at work in a place's state folder when the place goes.
#[test]
fn a_place_goes_while_its_reapers_work() {
    // Only an ordinary user may have to be given a copy of the binary.
    let caller = if lab::am_root() { Caller::Root } else { Caller::User };
    for round in 0..rounds(12, 60) {
        let lab = Lab::new(caller);
        let path = lab.path().to_owned();
        assert!(start(&lab, "true").wait().unwrap().success());
        // From the moment at which the reaper begins to end to the one at which it syncs what it wrote.
        std::thread::park_timeout(Duration::from_micros(dice(3_000)));
        drop(lab);
        assert!(!path.exists(), "left in round {round}: {:?}", folder(path.to_str().unwrap(), |_| true));
    }
}
