//! The resource wall: taking too much, staying too long.

use super::{ALL, EVERY, alone};
use crate::bench::{Bench, Came, Job, poll, survivors};
use crate::finding::Finding;
use crate::probe::{Probe, Side, Wall};
use std::io;
use std::process::Stdio;
use std::time::{Duration, Instant};

const R: Wall = Wall::Resources;

pub(super) fn probes() -> Vec<Probe> {
    vec![
        alone(("R01", R, "fork 300 times under a limit of 64 processes"), ALL, forks),
        alone(("R02", R, "fill 300 MiB of memory under a limit of 96 MiB"), EVERY, memory),
        alone(("R03", R, "write 100 MiB of scratch under a limit of 32 MiB"), EVERY, scratch),
        alone(("R04", R, "open more files than the limit"), ALL, files),
        alone(("R05", R, "flood both streams past the cap"), EVERY, flood),
        alone(("R09", R, "outlive its time, deaf to every signal"), EVERY, |bench, side| {
            outlive(bench, side, "stay")
        }),
        alone(("R10", R, "outlive its time as a daemon that holds the streams"), ALL, |bench, side| {
            outlive(bench, side, "daemon")
        }),
        alone(("R13", R, "leave 200 dead children to the first process"), ALL, orphans),
    ]
}

/// Quiet where fewer came about than were asked for.
fn fewer(came: &Came, word: &str, most: i64) -> Finding {
    match came.told.step("R").number(word) {
        Some(count) if count >= most => Finding::Through(format!("{word}{count}")),
        Some(_) => Finding::Quiet,
        // The signal for a file that is too large.
        None if came.told.step("R").lines.iter().any(|line| line.ends_with("by signal 25")) => Finding::Quiet,
        None => match came.cause() {
            "out_of_memory" | "limit_passed" | "killed" | "signalled" => Finding::Quiet,
            _ => Finding::Unclear(format!("the count was not told: {}", came.outcome())),
        },
    }
}

fn forks(bench: &Bench, side: Side) -> io::Result<Finding> {
    Ok(fewer(&bench.run(side, &Job::step(&["R", "forks", "300"]).flags(["--pids", "64"]))?, "made ", 300))
}

fn memory(bench: &Bench, side: Side) -> io::Result<Finding> {
    let came = bench.run(side, &Job::step(&["R", "fill-memory", "300"]).flags(["--mem", "96MiB"]))?;
    let whole = came.told.step("R").number("filled ").is_some_and(|filled| filled >= 300);
    if whole {
        return Ok(Finding::Through("300 MiB were filled".to_owned()));
    }
    let refused =
        came.told.step("R").lines.iter().any(|line| line.ends_with("ENOMEM") || line.contains("by signal 9"));
    // Where the attack's own process was ended and its parent lived on, the keeper says so.
    let met = came.report.get("hits").is_some_and(|hits| hits.to_string().contains("out_of_memory"));
    Ok(match came.cause() {
        "out_of_memory" | "limit_passed" => Finding::Quiet,
        _ if met => Finding::Quiet,
        _ if refused => Finding::Quiet,
        _ => Finding::Unclear(came.outcome()),
    })
}

fn scratch(bench: &Bench, side: Side) -> io::Result<Finding> {
    let file = if side == Side::Open {
        bench.fresh("scratch")?.join("large").display().to_string()
    } else {
        "/tmp/large".to_owned()
    };
    let job = Job::step(&["R", "fill-file", "100", &file]).flags(["--disk", "32MiB", "--mem", "256MiB"]);
    Ok(fewer(&bench.run(side, &job)?, "filled ", 100))
}

fn files(bench: &Bench, side: Side) -> io::Result<Finding> {
    // As many as this process may have itself: the envelope's own ceiling is below it.
    let limits = std::fs::read_to_string("/proc/self/limits")?;
    let soft = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse::<i64>().ok());
    let most = soft.unwrap_or(1024).saturating_sub(64).clamp(64, 20_000);
    let limit = (most / 2).max(32).to_string();
    let job = Job::step(&["R", "files", &most.to_string()]);
    let config = bench.fresh("config")?.join("fumehood.toml");
    std::fs::write(&config, format!("[resources]\nopen-files = {limit}\n"))?;
    let job = job.flags(["--config".to_owned(), config.display().to_string()]);
    Ok(fewer(&bench.run(side, &job)?, "opened ", most))
}

fn flood(bench: &Bench, side: Side) -> io::Result<Finding> {
    const EACH_MEBIBYTES: u64 = 12;
    let job = Job::step(&["R", "flood", &EACH_MEBIBYTES.to_string()]).flags(["--max-output", "1MiB"]);
    let came = bench.run(side, &job)?;
    let kept = came.stdout.len().saturating_add(came.stderr.len());
    if kept > 2 << 20 {
        return Ok(Finding::Through(format!("{kept} bytes were kept")));
    }
    let dropped = came.report.get("dropped_bytes").and_then(serde_json::Value::as_u64).unwrap_or(0);
    let hit = came.report.get("hits").is_some_and(|hits| hits.to_string().contains("output_limit"));
    let whole = dropped.saturating_add(u64::try_from(kept).unwrap_or(0)) >= 2 * (EACH_MEBIBYTES << 20);
    Ok(if hit && whole && came.cause() == "exited" {
        Finding::Quiet
    } else {
        Finding::Unclear(format!("the loss was not told: {}", came.outcome()))
    })
}

/// After its time nothing of it is left, and the call has returned.
fn outlive(bench: &Bench, side: Side, verb: &str) -> io::Result<Finding> {
    let mark = format!("mark-{}", crate::canary::canary()?);
    let mut job = Job::step(&["R", verb, &mark]);
    if verb == "daemon" {
        job = job.then(&["Rs", "stay", &mark]);
    }
    if side == Side::Open {
        return unwatched(bench, &job, &mark);
    }
    let started = Instant::now();
    let came = bench.run(side, &job.flags(["--timeout", "1s"]))?;
    let left = survivors(&mark);
    if !left.is_empty() {
        return Ok(Finding::Through(format!("{} processes are left", left.len())));
    }
    if started.elapsed() > Duration::from_secs(20) {
        return Ok(Finding::Through(format!("the call returned after {:?}", started.elapsed())));
    }
    Ok(if came.cause() == "timed_out" { Finding::Quiet } else { Finding::Unclear(came.outcome()) })
}

/// A runner that ends the one process that it knows, politely.
fn unwatched(bench: &Bench, job: &Job, mark: &str) -> io::Result<Finding> {
    let mut command = bench.command(Side::Open, job, mark)?;
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let wanted = if job.steps.len() > 1 { 3 } else { 2 };
    poll(Duration::from_secs(10), || survivors(mark).len() >= wanted);
    let pidfd = fumehood_sys::process::open_pidfd(i32::try_from(child.id()).unwrap_or(0))?;
    fumehood_sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), 15)?;
    child.wait()?;
    let left = survivors(mark);
    for pid in &left {
        // Ours by their mark, which is random; one that ended meanwhile has nothing left to end.
        if let Ok(pidfd) = fumehood_sys::process::open_pidfd(i32::try_from(*pid).unwrap_or(0)) {
            let _ = fumehood_sys::process::send_signal(std::os::fd::AsFd::as_fd(&pidfd), 9);
        }
    }
    Ok(Finding::through_if(!left.is_empty(), format!("{} processes are left", left.len())))
}

/// The control is a first process that buries nobody: ours, whose children these are not.
fn orphans(bench: &Bench, side: Side) -> io::Result<Finding> {
    let came = if side == Side::Open {
        bench.run(side, &Job::step(&["R", "orphans-unburied", "200"]))?
    } else {
        bench.run(side, &Job::step(&["R", "orphans", "200"]))?
    };
    Ok(match came.told.step("R").number("zombies ") {
        Some(0) => came.told.step("R").whole(),
        Some(count) => Finding::Through(format!("{count} dead processes are kept")),
        None => Finding::Unclear(came.outcome()),
    })
}
