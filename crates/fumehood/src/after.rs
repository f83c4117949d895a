//! What is said on standard error when a run is over: at most one line for each thing to know.

use fumehood_model::ending::{Ending, Hit, HitKind};
use fumehood_model::enforcement::{Clause, Enforcement};
use fumehood_model::envelope::Cleanup;
use fumehood_model::id::TaskId;
use fumehood_model::report::{Changes, Collected, RunReport};
use std::path::Path;

/// What the lines need to know beside the report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Circumstances<'a> {
    /// The folder of `--out`.
    pub(crate) out: Option<&'a Path>,
    pub(crate) cleanup: &'a Cleanup,
    pub(crate) session: Option<&'a str>,
    /// Whether `--timeout` or a file said the time.
    pub(crate) timeout_written: bool,
}

/// How it ended, unless the command simply ended.
pub(crate) fn ending(ending: &Ending, timeout_written: bool) -> Option<String> {
    let line = match ending {
        Ending::Exited { .. } => return None,
        Ending::Signalled { signal: 31, .. } => {
            "ended by SIGSYS: it made a system call that is not allowed; `--syscalls debug` allows those of debuggers".to_owned()
        }
        Ending::Signalled { signal, name } => format!("ended by {name} (signal {signal}), sent from inside or by the kernel"),
        Ending::TimedOut { limit_ms } => {
            let why = if timeout_written { "`--timeout`" } else { "no `--timeout` was given" };
            format!("timed out after {} ({why}); give it longer, as in `--timeout 10m`", millis(*limit_ms))
        }
        Ending::OutOfMemory { limit, limit_bytes, peak_bytes } => format!(
            "out of memory: {limit} is {} (`--mem`), and {} were in use; give it more, as in `--mem {}`",
            bytes(*limit_bytes),
            bytes(*peak_bytes),
            size_flag(limit_bytes.saturating_mul(2))
        ),
        Ending::Killed { name, .. } => format!("ended by {name}, as you asked"),
        Ending::Halted => "halted by the kill switch".to_owned(),
        Ending::LimitPassed { limit, limit_bytes, peak_bytes } => {
            let flag = limit_flag(limit);
            format!(
                "ended: {} of {limit} were used and {} are allowed (`{flag}`); give it more, as in `{flag} {}`",
                bytes(*peak_bytes),
                bytes(*limit_bytes),
                size_flag(limit_bytes.saturating_mul(2))
            )
        }
        Ending::NotStarted { step, why, remedy } => return Some(not_started(step, why, remedy)),
        Ending::Lost => "lost: the keeper died before the command ended; `fumehood audit show` says how far it came".to_owned(),
    };
    Some(line)
}

/// Everything else that there is to know.
pub(crate) fn lines(report: &RunReport, about: Circumstances<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(hits(&report.hits, report.dropped_bytes));
    lines.extend(watches(&report.enforcement));
    lines.extend(report.collected.and_then(|collected| nothing_collected(collected, about.out)));
    lines.extend(report.changes.and_then(|changes| changed(&report.task, changes, about)));
    lines
}

fn not_started(step: &str, why: &str, remedy: &str) -> String {
    // That the command is not there says it all.
    let known = step.is_empty() || step == "find the command";
    let line = if known { why.to_owned() } else { format!("failed to {step}: {why}") };
    if remedy.is_empty() { line } else { format!("{line}\n  remedy: {remedy}") }
}

fn hits(hits: &[Hit], dropped_bytes: u64) -> Option<String> {
    // What was not let out was told when it happened.
    let told = hits.iter().filter(|hit| hit.kind != HitKind::EgressDenied);
    let (left, met): (Vec<&Hit>, Vec<&Hit>) = told.partition(|hit| hit.kind == HitKind::NotCollected);
    let mut parts: Vec<String> = met.into_iter().map(|hit| one_hit(hit, dropped_bytes)).collect();
    let left: Vec<String> = left.into_iter().map(|hit| one_hit(hit, dropped_bytes)).collect();
    if !left.is_empty() {
        parts.push(format!("did not cross: {}", left.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("on the way: {}", parts.join("; ")))
}

fn one_hit(hit: &Hit, dropped_bytes: u64) -> String {
    let Hit { kind, detail, count, .. } = hit;
    match kind {
        HitKind::OutputLimit => {
            format!("{} of output were past the limit and dropped (`--max-output`)", bytes(dropped_bytes))
        }
        HitKind::OutOfMemory => {
            format!("{count} of its processes {} ended for want of memory (`--mem`)", was(*count))
        }
        HitKind::DiskFull => full(detail),
        HitKind::TooManyProcesses => {
            format!("{} met the process limit (`--pids`)", plural(*count, "fork", "forks"))
        }
        HitKind::Denied => {
            let debugs = detail == "ptrace" || detail.starts_with("process_vm");
            let way = if debugs { " (`--syscalls debug` allows it)" } else { "" };
            format!("`{detail}` was refused {}{way}", times(*count))
        }
        HitKind::EgressDenied => format!("denied {}: {detail}", times(*count)),
        HitKind::SandboxLost => format!("the sandbox failed: {detail}"),
        HitKind::NetworkLost => format!("its network ended: {detail}"),
        HitKind::LeftoverProcesses => {
            format!(
                "{} outlived the command and {} ended",
                plural(*count, "process", "processes"),
                was(*count)
            )
        }
        HitKind::RecordOpen => format!("the record of this run could not be ended: {detail}"),
        HitKind::OutputLost => format!("output was lost: {detail}"),
        HitKind::NotCollected if *count > 1 => format!("{detail} (and {} more)", count - 1),
        HitKind::NotCollected => detail.clone(),
    }
}

/// What was full, and by which flags it grows: scratch is memory, so its size follows from two.
fn full(detail: &str) -> String {
    match detail {
        "no room left" => {
            "scratch was full: it holds half of `--mem`, at most `--disk`; a `--workspace` holds more"
                .to_owned()
        }
        "the workspace's layer" => "the layer of the workspace was full (`--disk`)".to_owned(),
        _ => format!("a write met the disk limit (`--disk`): {detail}"),
    }
}

/// The watches that stand in for a cgroup.
pub(crate) fn watched_limits(enforcement: &Enforcement) -> Vec<&'static str> {
    const EVERYWHERE: [&str; 2] = ["keeper", "byte-watch"];
    let resources = enforcement.watches().filter(|(clause, _)| *clause == Clause::Resources);
    resources.map(|(_, mechanism)| mechanism.name).filter(|name| !EVERYWHERE.contains(name)).collect()
}

/// Told where memory has no limit in the kernel. That time, output and bytes on disk are watched is so
/// everywhere, and no news.
fn watches(enforcement: &Enforcement) -> Option<String> {
    let names = watched_limits(enforcement);
    (!names.is_empty()).then(|| {
        format!(
            "the memory limit is watched here, not held by the kernel ({}); `fumehood doctor` says what would hold it",
            names.join(", ")
        )
    })
}

fn nothing_collected(collected: Collected, out: Option<&Path>) -> Option<String> {
    let out = out?;
    (collected.files == 0)
        .then(|| format!("the command left no file in `/out`, so nothing came to `{}`", out.display()))
}

fn changed(task: &TaskId, changes: Changes, about: Circumstances<'_>) -> Option<String> {
    let Changes { added, modified, deleted, .. } = changes;
    let parts: Vec<String> = [(added, "added"), (modified, "modified"), (deleted, "deleted")]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if parts.is_empty() {
        return None;
    }
    let parts = parts.join(", ");
    Some(match (about.cleanup, about.session) {
        (Cleanup::RemoveAll, _) => format!("{parts}; dropped, as `cleanup.keep-layer = false` asks"),
        (Cleanup::Remove, session) => {
            let which = session.map_or_else(|| task.to_string(), |name| format!("--session {name}"));
            format!(
                "{parts}; `fumehood diff {which}` shows, `fumehood apply {which}` brings back, \
                 `fumehood discard {which}` drops"
            )
        }
    })
}

fn limit_flag(limit: &str) -> &'static str {
    match limit {
        "disk" => "--disk",
        "memory" => "--mem",
        "processes" => "--pids",
        _ => "--max-output",
    }
}

/// Bytes as people read them.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let Some((unit, name)) = UNITS.iter().find(|(unit, _)| count >= *unit) else {
        return plural(count, "byte", "bytes");
    };
    let whole = count / unit;
    let tenth = (count % unit) * 10 / unit;
    if tenth == 0 { format!("{whole} {name}") } else { format!("{whole}.{tenth} {name}") }
}

/// Bytes as a flag takes them.
fn size_flag(count: u64) -> String {
    match count {
        _ if count >= 1 << 30 => format!("{}GiB", count.div_ceil(1 << 30)),
        _ => format!("{}MiB", count.div_ceil(1 << 20).max(1)),
    }
}

/// Milliseconds as people read them.
pub(crate) fn millis(count: u64) -> String {
    match count {
        _ if count < 1_000 => format!("{count} ms"),
        _ if count.is_multiple_of(1_000) => format!("{} s", count / 1_000),
        _ => format!("{}.{} s", count / 1_000, count % 1_000 / 100),
    }
}

fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

const fn was(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_model::enforcement::{Mechanism, Strength};

    fn about<'a>() -> Circumstances<'a> {
        Circumstances { out: None, cleanup: &Cleanup::Remove, session: None, timeout_written: true }
    }

    #[test]
    fn a_plain_exit_says_nothing() {
        assert_eq!(ending(&Ending::Exited { code: 3 }, true), None);
        assert_eq!(hits(&[], 0), None);
        assert_eq!(watches(&Enforcement::default()), None);
        assert_eq!(changed(&TaskId::new(1, 1), Changes::default(), about()), None);
    }

    #[test]
    fn each_ending_names_its_cause_and_its_remedy() {
        let said = |given: &Ending| ending(given, true).unwrap();
        assert_eq!(
            said(&Ending::TimedOut { limit_ms: 60_000 }),
            "timed out after 60 s (`--timeout`); give it longer, as in `--timeout 10m`"
        );
        assert_eq!(
            said(&Ending::OutOfMemory {
                limit: "memory".into(),
                limit_bytes: 64 << 20,
                peak_bytes: 64 << 20
            }),
            "out of memory: memory is 64 MiB (`--mem`), and 64 MiB were in use; give it more, as in `--mem 128MiB`"
        );
        assert_eq!(
            said(&Ending::NotStarted { step: "mount".into(), why: "w".into(), remedy: "r".into() }),
            "failed to mount: w\n  remedy: r"
        );
        assert!(
            said(&Ending::LimitPassed { limit: "disk".into(), limit_bytes: 1 << 20, peak_bytes: 3 << 20 })
                .contains("`--disk 2MiB`")
        );
    }

    #[test]
    fn what_was_met_on_the_way_is_one_line() {
        let hit = |kind, detail: &str, count| Hit { kind, detail: detail.to_owned(), count, first_ms: 0 };
        let line = hits(&[hit(HitKind::OutputLimit, "stdout", 1), hit(HitKind::Denied, "ptrace", 2)], 1536);
        assert_eq!(
            line.unwrap(),
            "on the way: 1.5 KiB of output were past the limit and dropped (`--max-output`); \
             `ptrace` was refused 2 times (`--syscalls debug` allows it)"
        );
        let left = [
            hit(HitKind::NotCollected, "`a`: a device", 1),
            hit(HitKind::OutOfMemory, "memory", 1),
            hit(HitKind::NotCollected, "`b`: a link", 3),
        ];
        assert_eq!(
            hits(&left, 0).unwrap(),
            "on the way: 1 of its processes was ended for want of memory (`--mem`); \
             did not cross: `a`: a device, `b`: a link (and 2 more)"
        );
    }

    #[test]
    fn full_scratch_names_the_flags_that_give_it_room() {
        let hit = Hit { kind: HitKind::DiskFull, detail: "no room left".into(), count: 1, first_ms: 0 };
        let line = hits(&[hit], 0).unwrap();
        assert!(line.contains("`--mem`") && line.contains("`--workspace`"), "{line}");
    }

    #[test]
    fn changes_name_the_ways_on() {
        let id = TaskId::new(1, 1);
        let changes = Changes { added: 2, modified: 1, deleted: 0, bytes: 9 };
        let line = changed(&id, changes, about()).unwrap();
        assert!(line.starts_with("2 added, 1 modified; `fumehood diff "), "{line}");
        let gone = changed(&id, changes, Circumstances { cleanup: &Cleanup::RemoveAll, ..about() }).unwrap();
        assert!(gone.contains("dropped"), "{gone}");
    }

    #[test]
    fn a_watch_on_a_limit_is_told() {
        let watch =
            Mechanism { name: "resident-memory-watch", detail: String::new(), strength: Strength::Watch };
        let line = watches(&Enforcement(vec![(Clause::Resources, vec![watch])])).unwrap();
        assert!(line.contains("resident-memory-watch"), "{line}");
    }
}
