//! The cleanup wall: what one run leaves, the next does not find, and the host does not keep.

use super::bench::{Bench, Job, Wall};
use super::{open, probes};
use crate::lab::{self, Caller};
use fumehood_backend::conformance::Verdict;
use std::path::Path;
use std::process::Stdio;

probes! {
    c01_files_of_the_last_run => c01, control open!(c01);
    c02_memory_of_the_last_run => c02, control c02_control;
    c13_placeholders => c13, control c13_control;
}

const PLACES: &str =
    "/tmp /var/tmp /dev/shm ~ . /run /var/cache /var/lib /etc /usr/local /out /srv /mnt /opt";

pub(super) fn c01(bench: &Bench) -> Verdict {
    let canary = lab::canary();
    let name = format!("left-{canary}");
    let first =
        bench.run(&Job::new(format!("for d in {PLACES}; do echo {canary} > $d/{name}; done; sleep 0")));
    let second = bench.run(&Job::new(format!("for d in {PLACES}; do cat $d/left-*; ls -a $d; done")));
    for place in [
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/run",
        "/var/cache",
        "/var/lib",
        "/etc",
        "/usr/local",
        "/srv",
        "/mnt",
        "/opt",
    ] {
        if std::fs::remove_file(Path::new(place).join(&name)).is_ok() && bench.wall != Wall::Open {
            return Verdict::Breached(format!("a file was left in the host's {place}"));
        }
    }
    match first.finished() {
        Verdict::Held => second.leaks(&canary),
        other => other,
    }
}

pub(super) fn c02(bench: &Bench) -> Verdict {
    let first = bench.run(&Job::new(format!("./probe leave {}", lab::canary())));
    if first.number("left ").is_none() {
        return first.unclear("nothing was left");
    }
    let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    // The key of the probe, as the table shows it.
    if table.lines().any(|line| line.trim_start().starts_with(&0x4648_4f44.to_string())) {
        return Verdict::Breached("shared memory was left on the host".to_owned());
    }
    bench.doors("find", &["ENOENT", "ENOSYS", "EPERM", "EACCES"])
}

/// Both runs in one namespace.
fn c02_control() -> Verdict {
    if !Caller::Root.available() {
        return Verdict::NotApplicable("the control needs root".to_owned());
    }
    let bench = Bench::new(Caller::Root, Wall::Open);
    let came = bench.run(&Job::new("unshare --ipc sh -c './probe leave x; ./probe find'"));
    came.doors(&["ENOENT", "ENOSYS", "EPERM", "EACCES"])
}

/// Everything beneath a folder, by name.
fn listing(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        names.push(path.display().to_string());
        if path.is_dir() && !path.is_symlink() {
            names.extend(listing(&path));
        }
    }
    names.sort();
    names
}

/// No folder of the user has a new entry, after a run and after a run whose keeper was ended.
pub(super) fn c13(bench: &Bench) -> Verdict {
    let project = bench.lab.folder("project");
    std::fs::write(project.join("file"), "x").unwrap();
    bench.lab.give_all(&project);
    let (home, before) = (bench.lab.home(), listing(&project));
    for mode in ["", ":rw", ":ro"] {
        let flags = ["--workspace".to_owned(), format!("{}{mode}", project.display())];
        let came = bench.run(&Job::new("ls").flags(flags.clone()));
        if !came.ended() {
            return came.finished();
        }
        let mut command = bench.command(&Job::new("echo > /tmp/x; sleep 60").flags(flags));
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The record is made before the sandbox; once there are two of them, the second run is on its way.
        lab::poll(std::time::Duration::from_secs(5), || survivors_of(&bench.lab.home()) > 0);
        child.kill().unwrap();
        child.wait().unwrap();
        let verdict = same(&before, &listing(&project), &listing(&home));
        if verdict != Verdict::Held {
            return verdict;
        }
    }
    Verdict::Held
}

/// Processes whose arguments name this place's binary or home: the keeper is one of them.
fn survivors_of(home: &Path) -> usize {
    super::resources::survivors(home.parent().unwrap().to_str().unwrap()).len()
}

fn same(before: &[String], project: &[String], home: &[String]) -> Verdict {
    // The probe itself is copied to `/workspace`, which under `:rw` is the project.
    let fresh: Vec<_> =
        project.iter().filter(|name| !before.contains(name) && !name.ends_with("/probe")).collect();
    if fresh.is_empty() && home.is_empty() {
        Verdict::Held
    } else {
        Verdict::Breached(format!("{fresh:?} {home:?}"))
    }
}

/// bubblewrap makes the mount points that it needs in the user's own folder.
fn c13_control() -> Verdict {
    if !lab::installed("bwrap") {
        return Verdict::NotApplicable("the control is bubblewrap".to_owned());
    }
    let bench = Bench::new(Caller::User, Wall::Open);
    let project = bench.lab.folder("project");
    let before = listing(&project);
    let mut command = bench.lab.command("bwrap");
    command.args(["--dev-bind", "/", "/", "--bind"]).arg(&project).arg(&project).arg("--tmpfs");
    command.arg(project.join("placeholder")).arg("true");
    let ran = lab::finish(command, b"");
    match same(&before, &listing(&project), &[]) {
        Verdict::Held => Verdict::Inconclusive(ran.told()),
        other => other,
    }
}
