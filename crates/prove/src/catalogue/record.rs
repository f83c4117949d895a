//! The record wall: writing it from inside, changing it afterwards, writing a false line into it.

use super::{ALL, EVERY, alone};
use crate::bench::{Bench, Came, Job};
use crate::finding::Finding;
use crate::probe::{Probe, Side, Wall};
use std::io;
use std::path::{Path, PathBuf};

const U: Wall = Wall::Record;

pub(super) fn probes() -> Vec<Probe> {
    vec![
        alone(("U01", U, "write a false line by an argument"), EVERY, injection),
        alone(("U02", U, "edit, remove, swap and double lines"), EVERY, tampering),
        alone(("U05", U, "write to the record from inside"), ALL, from_inside),
        alone(("U07", U, "hide the end of a run by killing its keeper"), EVERY, torn),
    ]
}

/// A state folder of its own, with the record of one run in it, and that run's task.
fn recorded(bench: &Bench, words: Option<Vec<String>>) -> io::Result<(PathBuf, String, Came)> {
    let state = bench.fresh_state()?;
    let env = vec![("FUMEHOOD_STATE".to_owned(), state.display().to_string())];
    let came = bench.run(Side::Walled, &Job { env, words, ..Job::step(&["U", "descriptors"]) })?;
    let task = came.report.get("task").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    if task.is_empty() {
        return Err(io::Error::other(came.outcome()));
    }
    Ok((state, task, came))
}

fn file_of(state: &Path, task: &str) -> PathBuf {
    state.join("records").join(format!("{task}.jsonl"))
}

/// Whether the judge of records finds this one whole.
fn whole(state: &Path) -> io::Result<bool> {
    let report = fumehood_audit::verify(&state.join("records"), None).map_err(io::Error::other)?;
    Ok(report.is_whole())
}

/// An argument that is a line of a record. The control is a log that writes arguments as they are.
fn injection(bench: &Bench, side: Side) -> io::Result<Finding> {
    let mark = crate::canary::canary()?;
    let false_line = format!("x\"}}\n{{\"seq\":9,\"event\":\"{mark}\"}}\n\u{1b}[2J\r");
    let text = if side == Side::Open {
        format!("{{\"argv\":\"{false_line}\"}}\n")
    } else {
        let words = ["do", "n", "U", "list", &false_line].map(str::to_owned).to_vec();
        let (state, task, _) = recorded(bench, Some(words))?;
        if !whole(&state)? {
            return Ok(Finding::Through("the record is not whole any more".to_owned()));
        }
        std::fs::read_to_string(file_of(&state, &task))?
    };
    if !text.contains(&mark) {
        return Ok(Finding::Unclear("the argument is not in the record".to_owned()));
    }
    let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let own = lines
        .filter(|line| line.get("event").and_then(serde_json::Value::as_str) == Some(mark.as_str()))
        .count();
    let raw = text.contains('\u{1b}');
    Ok(Finding::through_if(own > 0 || raw, "the argument became a line of its own"))
}

/// Every change of a line must be noticed. The control is a reader that looks at lines one by one.
fn tampering(bench: &Bench, side: Side) -> io::Result<Finding> {
    let (state, task, _) = recorded(bench, None)?;
    let path = file_of(&state, &task);
    let original = std::fs::read_to_string(&path)?;
    if !whole(&state)? {
        return Ok(Finding::Unclear("an untouched record is not whole".to_owned()));
    }
    let lines: Vec<&str> = original.lines().collect();
    let [first, second, rest @ ..] = lines.as_slice() else {
        return Ok(Finding::Unclear("the record has less than two lines".to_owned()));
    };
    let text = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let changes = [
        ("edited", original.replacen("container", "kontainer", 1).replacen("descriptors", "descriptorz", 1)),
        ("removed", text(&[&[*first], rest].concat())),
        ("swapped", text(&[&[*second, *first], rest].concat())),
        ("doubled", text(&[&[*first, *first, *second], rest].concat())),
        ("cut", text(lines.get(..lines.len().saturating_sub(1)).unwrap_or_default())),
    ];
    for (name, changed) in changes {
        if changed == original {
            return Ok(Finding::Unclear(format!("nothing was {name}")));
        }
        std::fs::write(&path, &changed)?;
        let noticed = match side {
            Side::Walled => !whole(&state)?,
            Side::Open => {
                changed.lines().any(|line| serde_json::from_str::<serde_json::Value>(line).is_err())
            }
        };
        if !noticed {
            return Ok(Finding::Through(format!("a line was {name}, and nobody noticed")));
        }
    }
    Ok(Finding::Quiet)
}

/// The attacker knows the path.
fn from_inside(bench: &Bench, side: Side) -> io::Result<Finding> {
    let (state, task, _) = recorded(bench, None)?;
    let path = file_of(&state, &task);
    let before = std::fs::read(&path)?;
    let index = state.join("records/index.jsonl").display().to_string();
    let file = path.display().to_string();
    let env = vec![("FUMEHOOD_STATE".to_owned(), state.display().to_string())];
    let words =
        ["U", "write", &file, &index, &format!("/proc/1/root{file}"), &format!("/proc/self/root{file}")];
    let came = bench.run(side, &Job { env, ..Job::step(&words) })?;
    if std::fs::read(&path)? != before {
        return Ok(Finding::Through("the record was changed".to_owned()));
    }
    Ok(came.told.step("U").done())
}

/// A run whose keeper was killed is told as lost, by the next who looks, and the chain goes on. The control is a
/// list that shows what it was told, and nothing of what is missing.
fn torn(bench: &Bench, side: Side) -> io::Result<Finding> {
    let state = bench.fresh_state()?;
    let env = vec![("FUMEHOOD_STATE".to_owned(), state.display().to_string())];
    let mark = format!("mark-{}", crate::canary::canary()?);
    let mut command =
        bench.command(Side::Walled, &Job { env: env.clone(), ..Job::step(&["U", "stay", &mark]) }, &mark)?;
    let null = std::process::Stdio::null;
    let mut child = command.stdin(null()).stdout(null()).stderr(null()).spawn()?;
    let records = state.join("records");
    let begun = crate::bench::poll(std::time::Duration::from_secs(15), || {
        let text = std::fs::read_dir(&records)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        text.into_iter().any(|text| text.contains("exec.started"))
    });
    child.kill()?;
    child.wait()?;
    if !begun {
        return Ok(Finding::Unclear("it did not come to run".to_owned()));
    }
    let second = bench.run(Side::Walled, &Job { env, ..Job::step(&["U", "descriptors"]) })?;
    if !second.told.ended {
        return Ok(Finding::Unclear(second.outcome()));
    }
    let told = || -> io::Result<bool> {
        let tasks = fumehood_audit::list(&records).map_err(io::Error::other)?;
        let lost = tasks.first().is_some_and(|task| match side {
            Side::Walled => task.life == fumehood_audit::Life::Lost || task.cause.as_deref() == Some("lost"),
            // All that a log without an index could say: that it began.
            Side::Open => task.argv.is_empty(),
        });
        Ok(lost && whole(&state)?)
    };
    // The reaper of the first may still be writing that it was lost.
    let patience = std::time::Duration::from_secs(if side == Side::Walled { 10 } else { 0 });
    let told = crate::bench::poll(patience, || told().unwrap_or(false));
    Ok(Finding::through_if(!told, "a run that was killed is not told as lost"))
}
