//! The cleanup wall: what one run leaves, the next does not find, and the host does not keep.

use super::{ALL, EVERY, alone};
use crate::bench::{Bench, Job, poll, survivors};
use crate::finding::Finding;
use crate::probe::{Probe, Side, Wall};
use std::io;
use std::process::Stdio;
use std::time::Duration;

const C: Wall = Wall::Cleanup;
/// Where programs leave things.
const PLACES: [&str; 8] = [".", "/tmp", "/var/tmp", "/dev/shm", "/run", "/out", "/etc", "/srv"];

pub(super) fn probes() -> Vec<Probe> {
    vec![
        alone(("C01", C, "find what the run before left in files"), EVERY, files),
        alone(("C02", C, "find what the run before left in memory"), ALL, memory),
        alone(("C03", C, "leave processes, mounts or cgroups on the host"), EVERY, host),
        alone(("C04", C, "outlive a keeper that is killed"), EVERY, killed),
        alone(("C13", C, "leave anything in the project or at home"), EVERY, project),
    ]
}

fn files(bench: &Bench, side: Side) -> io::Result<Finding> {
    let mark = crate::canary::canary()?;
    let shared = bench.fresh("shared")?.display().to_string();
    let places: Vec<&str> = if side == Side::Open { vec![&shared] } else { PLACES.to_vec() };
    let words = |verb: &str| -> Vec<String> {
        ["C", verb, &mark].into_iter().chain(places.iter().copied()).map(str::to_owned).collect()
    };
    let first = bench.run(side, &Job { steps: vec![words("leave")], ..Job::default() })?;
    if first.told.step("C").number("left ").unwrap_or(0) < 1 {
        return Ok(Finding::Unclear(format!("nothing was left: {}", first.outcome())));
    }
    let second = bench.run(side, &Job { steps: vec![words("find")], ..Job::default() })?;
    let found = second.told.step("C").facts("found").next().map(str::to_owned);
    Ok(match found {
        Some(found) => Finding::Through(format!("found in {}", found.split(' ').next().unwrap_or_default())),
        None => second.told.step("C").whole(),
    })
}

fn memory(bench: &Bench, side: Side) -> io::Result<Finding> {
    let (leave, find) = (["C", "leave-memory"], ["D", "find-memory"]);
    const SHUT: &[&str] = &["ENOENT", "ENOSYS", "EPERM", "EACCES"];
    if side == Side::Open {
        // Both in one set of namespaces, which goes with them.
        let came = bench.run(side, &Job::step(&["D", "memory-shared"]).capable())?;
        return Ok(came.told.step("D").doors(SHUT));
    }
    bench.run(side, &Job::step(&leave))?;
    let table = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    if table.lines().any(|line| line.trim_start().starts_with(&0x4648_4f44.to_string())) {
        return Ok(Finding::Through("shared memory was left on the host".to_owned()));
    }
    Ok(bench.run(side, &Job::step(&find))?.told.step("D").doors(SHUT))
}

/// What of a run the host still has: processes with its mark, mounts and control groups of its own.
fn left(mark: &str, mounts: usize, groups: usize) -> Vec<String> {
    let mut found = Vec::new();
    let alive = survivors(mark);
    if !alive.is_empty() {
        found.push(format!("{} processes", alive.len()));
    }
    if own_mounts(mark) > mounts {
        found.push("mounts".to_owned());
    }
    if own_groups(mark) > groups {
        found.push("control groups".to_owned());
    }
    found
}

fn own_mounts(mark: &str) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter(|line| line.contains(mark)).count()
}

/// Control groups that are named after a task of this self-test: those whose record stands in its state.
fn own_groups(tasks: &str) -> usize {
    let mut count = 0;
    let mut folders = vec![(std::path::PathBuf::from("/sys/fs/cgroup"), 0)];
    while let Some((folder, depth)) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            count += usize::from(entry.file_name().to_string_lossy().contains(tasks));
            if depth < 5 {
                folders.push((entry.path(), depth + 1));
            }
        }
    }
    count
}

fn host(bench: &Bench, side: Side) -> io::Result<Finding> {
    let mark = format!("mark-{}", crate::canary::canary()?);
    if side == Side::Open {
        // Somebody who leaves a process behind.
        let mut command = bench.command(side, &Job::step(&["C", "pause", &mark]), &mark)?;
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        poll(Duration::from_secs(10), || survivors(&mark).len() > 1);
        let found = left(&mark, 0, 0);
        end_all(&mark);
        child.wait()?;
        return Ok(Finding::through_if(!found.is_empty(), found.join(", ")));
    }
    for _ in 0..3 {
        let came = bench.run(side, &Job::step(&["C", "daemon", &mark]))?;
        let task = came.report.get("task").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
        if task.is_empty() {
            return Ok(Finding::Unclear(came.outcome()));
        }
        let mut found = Vec::new();
        // The reaper of a run goes on for a moment after it.
        let clean = poll(Duration::from_secs(10), || {
            found = left(&mark, 0, 0);
            found.extend(left(&task, 0, 0));
            found.is_empty()
        });
        if !clean {
            return Ok(Finding::Through(found.join(", ")));
        }
    }
    Ok(Finding::Quiet)
}

fn killed(bench: &Bench, side: Side) -> io::Result<Finding> {
    let mark = format!("mark-{}", crate::canary::canary()?);
    let job = Job::step(&["C", "stay", &mark]);
    let mut command = bench.command(side, &job, &mark)?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let inside = || {
        let line = |pid: &u32| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let attack = |line: Vec<u8>| {
            line.split(|byte| *byte == 0).next().is_some_and(|first| first.ends_with(b"attack"))
        };
        survivors(&mark).iter().filter(|pid| attack(line(pid))).count()
    };
    let shared = matches!(
        bench.level,
        fumehood_model::level::Level::Process | fumehood_model::level::Level::Container
    );
    // Where the host does not see the guest's processes, the runner's own must do.
    let running = poll(Duration::from_secs(15), || {
        if shared || side == Side::Open { inside() > 1 } else { !survivors(&mark).is_empty() }
    });
    child.kill()?;
    child.wait()?;
    if !running {
        return Ok(Finding::Unclear("it did not come to run".to_owned()));
    }
    let mut count = 0;
    let clean = poll(if side == Side::Open { Duration::ZERO } else { Duration::from_secs(10) }, || {
        count = survivors(&mark).len();
        count == 0
    });
    end_all(&mark);
    Ok(Finding::through_if(!clean, format!("{count} processes outlived it")))
}

/// Ends what carries a mark; it is random, so that nobody else does.
fn end_all(mark: &str) {
    for pid in survivors(mark) {
        if let Ok(pidfd) = fumehood_sys::process::open_pidfd(i32::try_from(pid).unwrap_or(0)) {
            let _ = fumehood_sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), 9);
        }
    }
}

fn project(bench: &Bench, side: Side) -> io::Result<Finding> {
    let project = bench.fresh("project")?;
    let names = |folder: &std::path::Path| -> Vec<std::ffi::OsString> {
        let mut names: Vec<_> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        names
    };
    std::fs::write(project.join("file"), "x")?;
    let home = bench.scene(side).home();
    let before = (names(&project), names(&home));
    if side == Side::Open {
        bench.run(side, &Job::step(&["C", "leave", "x", &project.display().to_string()]))?;
    } else {
        let workspace = project.display().to_string();
        let came = bench.run(
            side,
            &Job::step(&["C", "leave", "x", ".", "/workspace"]).flags(["--workspace", &workspace]),
        )?;
        if !came.told.ended {
            return Ok(Finding::Unclear(came.outcome()));
        }
    }
    let after = (names(&project), names(&home));
    Ok(Finding::through_if(after != before, "the project or the home has new entries"))
}
