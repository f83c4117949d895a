//! One self-test, from the first canary to the report.

use crate::bench::{Bench, Came, Job, ProveError};
use crate::catalogue;
use crate::finding::{Finding, Verdict, judge};
use crate::probe::{How, Probe, Side, Wall, Way};
use crate::report::{Counts, Host, Report, Row};
use crate::told::Step;
use fumehood_model::level::Level;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Probes with runs of their own wait more than they work.
const WORKERS: usize = 4;

/// What is to be tested.
#[derive(Clone, Debug)]
pub struct Options {
    /// The binary under test, as it was shipped.
    pub binary: PathBuf,
    pub level: Level,
    /// Only this wall.
    pub wall: Option<Wall>,
    /// Only what is fast.
    pub quick: bool,
    /// As `fumehood --version` says.
    pub version: &'static str,
    /// The caller's own state folder: what takes long to make once is taken from there.
    pub state: PathBuf,
    /// The image that the sandboxes stand on, as `--image` takes it.
    pub image: Option<String>,
    /// Whether a machine may be emulated by software.
    pub accept_tcg: bool,
    /// Whether each attack goes where its wall is open, so that each probe must turn red.
    pub open: bool,
}

/// How many probes there are.
#[must_use]
pub fn catalogue_size() -> usize {
    catalogue::all().len()
}

/// Tests the walls of a level.
///
/// # Errors
/// There is no place for canaries, or the level does not start on this host: then nothing was tested.
pub fn prove(options: &Options) -> Result<Report, ProveError> {
    let started = Instant::now();
    let bench = Bench::make(options)?;
    let all = catalogue::all();
    let chosen: Vec<Probe> = all
        .iter()
        .filter(|probe| options.wall.is_none_or(|wall| wall == probe.wall))
        .filter(|probe| !options.quick || probe.quick())
        .copied()
        .collect();
    let first = first(&bench)?;
    let rows = std::thread::scope(|scope| {
        // A network takes longest to make: it is begun beside the rest.
        let networked = |probe: &Probe| probe.wall == Wall::Network && probe.levels.contains(&options.level);
        if chosen.iter().any(networked) {
            scope.spawn(|| bench.range().is_ok());
        }
        let mut rows = together(&bench, &chosen);
        rows.extend(alone(&bench, &chosen));
        rows
    });
    let mut rows = rows;
    // In the order of the catalogue.
    rows.sort_by_key(|row| all.iter().position(|probe| probe.id == row.id));
    Ok(Report {
        version: options.version,
        at_ms: millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
        level: options.level,
        host: host(bench.root),
        policy_sha256: policy(&bench).unwrap_or_default(),
        enforcement: first.report.get("enforcement").cloned().unwrap_or_default(),
        quick: options.quick,
        open: options.open,
        left_out: all.len().saturating_sub(rows.len()),
        took_ms: millis(started.elapsed()),
        counts: Counts::of(&rows),
        rows,
    })
}

/// A first sandbox: whether the level starts at all, and as what it is.
fn first(bench: &Bench) -> Result<Came, ProveError> {
    let io = |source| ProveError::Io { step: "start a sandbox", source };
    let came = bench.run(Side::Walled, &Job::step(&["first", "levels"])).map_err(io)?;
    if let Some((why, remedy)) = came.refusal() {
        return Err(ProveError::Level { level: bench.level, why, remedy });
    }
    let level = came.report.pointer("/level/level").and_then(Value::as_str).unwrap_or_default();
    if !came.told.ended || level != bench.level.name() {
        let why = format!("a sandbox says that it is of the level `{level}`, and {}", came.outcome());
        return Err(ProveError::Level {
            level: bench.level,
            why,
            remedy: "`fumehood doctor` says more".to_owned(),
        });
    }
    Ok(came)
}

fn not_here(bench: &Bench, probe: &Probe) -> Option<Row> {
    let why = catalogue::not_for(probe, bench.level)
        .or_else(|| catalogue::no_gateway(probe, bench))
        .or_else(|| (probe.obstacle)(bench))?;
    Some(row(probe, Verdict::NotApplicable(why), String::new(), Duration::ZERO))
}

fn row(probe: &Probe, verdict: Verdict, control: String, took: Duration) -> Row {
    let (id, wall, tries) = (probe.id, probe.wall, probe.tries);
    Row { id, wall, tries, verdict, control, apart: Vec::new(), ms: millis(took) }
}

/// What was seen, without the random name of our folder.
fn shown(bench: &Bench, finding: &Finding) -> String {
    finding.seen().replace(&*bench.folder.path().to_string_lossy(), "…")
}

/// Every probe that is one step among others: one sandbox, and one control, for all of them.
fn together(bench: &Bench, chosen: &[Probe]) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut asked = Vec::new();
    for probe in chosen {
        if let Way::Together { how, step, judge } = probe.way {
            match not_here(bench, probe) {
                Some(row) => rows.push(row),
                None => asked.push((probe, how, step, judge)),
            }
        }
    }
    if asked.is_empty() {
        return rows;
    }
    let started = Instant::now();
    let steps = |side: Side| {
        let words = asked.iter().map(|(probe, how, step, _)| {
            let mut words = vec![probe.id.to_owned()];
            if side == Side::Open {
                words.push(how.word().to_owned());
            }
            words.extend(step(bench.scene(side)));
            words
        });
        words.collect::<Vec<_>>()
    };
    let run = |side: Side| {
        let scene = bench.scene(side);
        // A careless caller: a key in its session, and a secret open on descriptors that nobody was given.
        let attack = bench.folder.attack().display().to_string();
        let through = ["key", scene.key_name(), &scene.secret, "--", &attack, "with", &scene.secret_file()];
        let through = through.map(str::to_owned).to_vec();
        bench.run(side, &Job { steps: steps(side), through, how: How::Given, ..Job::default() })
    };
    let (walled, open) = std::thread::scope(|scope| {
        let open = scope.spawn(|| run(Side::Open));
        let walled = run(bench.attacked);
        (walled, open.join().unwrap_or_else(|_| Err(io::Error::other("the control's thread ended"))))
    });
    let share = started.elapsed() / u32::try_from(asked.len()).unwrap_or(1);
    for (probe, _, _, find) in asked {
        let finding = |side: Side, came: &io::Result<Came>| match came {
            Ok(came) => {
                let mut step = came.told.step(probe.id);
                if side == Side::Walled && bench.attacked == Side::Walled {
                    step = catalogue::apart(bench.level, probe.id, &step).0;
                }
                let scene = bench.scene(if side == Side::Walled { bench.attacked } else { side });
                let found = find(&step, scene);
                let cut = found == Finding::Quiet && !came.told.ended;
                if cut { Finding::Unclear(came.outcome()) } else { found }
            }
            Err(error) => Finding::Unclear(error.to_string()),
        };
        let (behind, beside) = (finding(Side::Walled, &walled), finding(Side::Open, &open));
        let beside = match &open {
            Ok(open) => succeeded(&open.told.step(probe.id), beside),
            Err(_) => beside,
        };
        let behind = match (&walled, &open) {
            (Ok(walled), Ok(open)) if behind == Finding::Quiet => {
                same_attempts(&walled.told.step(probe.id), &open.told.step(probe.id))
            }
            _ => behind,
        };
        let apart = walled.as_ref().map(|came| apart(bench, probe, came)).unwrap_or_default();
        let row = row(probe, judge(&behind, &beside), shown(bench, &beside), share);
        rows.push(Row { apart, ..row });
    }
    rows
}

/// What of an attack the level's own kernel answered, and why that does not count.
fn apart(bench: &Bench, probe: &Probe, came: &Came) -> Vec<String> {
    let (_, found) = catalogue::apart(bench.level, probe.id, &came.told.step(probe.id));
    let told = |apart: &&catalogue::Apart| format!("{} ({}): {}", apart.attempt, apart.answer, apart.why);
    found.iter().map(told).collect()
}

/// A control that was only answered with other errors than the wall's shows no attack at work.
fn succeeded(step: &Step, finding: Finding) -> Finding {
    let attempts = step.attempts();
    let none = !attempts.is_empty() && attempts.iter().all(|(_, result)| *result != "done");
    match finding {
        Finding::Through(what) if none => {
            Finding::Unclear(format!("nothing was done, only answered: {what}"))
        }
        found @ (Finding::Quiet | Finding::Through(_) | Finding::Unclear(_)) => found,
    }
}

/// What the control tried must have been tried behind the wall as well.
fn same_attempts(walled: &Step, open: &Step) -> Finding {
    let tried: Vec<&str> = walled.attempts().iter().map(|(name, _)| *name).collect();
    // Paths differ from side to side; their number does not.
    let missing = open.attempts().len().saturating_sub(tried.len());
    if missing > 0 {
        Finding::Unclear(format!("{missing} attempts of the control were not made"))
    } else {
        Finding::Quiet
    }
}

/// Probes with runs of their own, some at a time.
fn alone(bench: &Bench, chosen: &[Probe]) -> Vec<Row> {
    let rows = Mutex::new(Vec::new());
    let mut asked = Vec::new();
    for probe in chosen {
        if let Way::Alone(act) = probe.way {
            match not_here(bench, probe) {
                Some(row) => keep(&rows, row),
                None => asked.push((probe, act)),
            }
        }
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS.min(asked.len()) {
            scope.spawn(|| {
                while let Some((probe, act)) = asked.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    let side = |side: Side| {
                        act(bench, side).unwrap_or_else(|error| Finding::Unclear(error.to_string()))
                    };
                    let (behind, beside) = (side(bench.attacked), side(Side::Open));
                    let verdict = judge(&behind, &beside);
                    keep(&rows, row(probe, verdict, shown(bench, &beside), started.elapsed()));
                }
            });
        }
    });
    rows.into_inner().unwrap_or_default()
}

fn keep(rows: &Mutex<Vec<Row>>, row: Row) {
    if let Ok(mut rows) = rows.lock() {
        rows.push(row);
    }
}

/// The digest of the envelope of the first sandbox, from its record.
fn policy(bench: &Bench) -> Option<String> {
    let records = bench.state().join("records");
    let tasks = fumehood_audit::list(&records).ok()?;
    let transcript = fumehood_audit::read(&records, &tasks.first()?.task).ok()?;
    let launched = transcript.lines.iter().find(|line| line.event == "sandbox.launched")?;
    let envelope = launched.fields.get("envelope")?;
    // The folder of this self-test is another one each time; the rest of the envelope is not.
    let text = envelope.to_string().replace(&*bench.folder.path().to_string_lossy(), "");
    let digest = Sha256::digest(text.as_bytes());
    Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn host(root: bool) -> Host {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mounts = read("/proc/self/mountinfo");
    let (one, two) = (mounts.contains(" - cgroup "), mounts.contains(" - cgroup2 "));
    Host {
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        arch: std::env::consts::ARCH,
        caller: if root { "root".to_owned() } else { format!("user {}", fumehood_sys::host::euid()) },
        cgroups: match (one, two) {
            (true, true) => "1 and 2",
            (true, false) => "1",
            (false, true) => "2",
            (false, false) => "none",
        },
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::told::Told;

    fn step(lines: &str) -> Step {
        Told::read(format!("step A\n{lines}over A\n").as_bytes(), "N").step("A")
    }

    #[test]
    fn a_control_must_do_something() {
        let through = Finding::Through("x".to_owned());
        assert!(matches!(succeeded(&step("try a EINVAL\n"), through.clone()), Finding::Unclear(_)));
        assert_eq!(succeeded(&step("try a EINVAL\ntry b done\n"), through.clone()), through);
        assert_eq!(succeeded(&step("holds x\n"), through.clone()), through);
    }

    #[test]
    fn an_attempt_that_was_not_made_behind_the_wall_is_unclear() {
        let (one, two) = (step("try a EPERM\n"), step("try a done\ntry b done\n"));
        assert!(matches!(same_attempts(&one, &two), Finding::Unclear(_)));
        assert_eq!(same_attempts(&two, &one), Finding::Quiet);
    }
}
