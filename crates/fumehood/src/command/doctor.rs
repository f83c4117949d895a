//! `fumehood doctor`: what this host can hold, level by level and clause by clause.

use crate::after::watched_limits;
use crate::attempt::{self, Finding};
use crate::remedies::{Obstacle, Settings};
use crate::{backends, screen, tasks, usage};
use clap::Parser;
use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength};
use fumehood_model::level::Level;
#[cfg(feature = "microvm")]
use fumehood_runtime::state::State;
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;

/// Say what this host can hold, and how it could hold more.
///
/// It is found by doing: a sandbox is started, and ended at once. Exit code 1 where none could be.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Example:
  fumehood doctor --json";

/// The whole answer.
#[derive(Debug, Serialize)]
struct Diagnosis {
    version: &'static str,
    kernel: String,
    uid: u32,
    container: Option<&'static str>,
    levels: Vec<LevelState>,
}

/// What was found of one level.
#[derive(Debug, Serialize)]
struct LevelState {
    level: Level,
    holds: bool,
    /// Why it was not tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    clauses: Vec<ClauseState>,
    findings: Vec<Finding>,
    /// Settings of this host that stand in the way, or would hold more.
    obstacles: Vec<Obstacle>,
}

#[derive(Debug, Serialize)]
struct ClauseState {
    clause: Clause,
    held: Held,
    by: Vec<Mechanism>,
}

/// How a clause is held here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Held {
    /// By the kernel, at the moment that something is tried.
    Kernel,
    /// In part by a watch: noticed after the fact.
    Watch,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("doctor", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let settings = Settings::now();
    let diagnosis = Diagnosis {
        version: env!("CARGO_PKG_VERSION"),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        uid: settings.uid,
        container: settings.container,
        levels: Level::ALL.map(|level| examine(level, &settings)).into_iter().collect(),
    };
    if args.json {
        screen::say_json(&diagnosis);
    } else {
        screen::say(&text(&diagnosis).join("\n"));
    }
    if diagnosis.levels.iter().any(|level| level.holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn examine(level: Level, settings: &Settings) -> LevelState {
    let empty = |note: String| LevelState {
        level,
        holds: false,
        note: Some(note),
        clauses: Vec::new(),
        findings: Vec::new(),
        obstacles: Vec::new(),
    };
    if !backends::LEVELS.contains(&level) {
        return empty("this version does not have it".to_owned());
    }
    let state = match tasks::state() {
        Ok(state) => state,
        Err(refusal) => return empty(format!("{}; {}", refusal.why, refusal.remedy)),
    };
    #[cfg(feature = "microvm")]
    if level == Level::Microvm {
        return LevelState { level, ..machine(&state) };
    }
    let findings = attempt::all(level, &state);
    let enforcement =
        findings.iter().rfind(|finding| finding.works).map(|finding| finding.enforcement.clone());
    let enforcement = enforcement.unwrap_or_default();
    let mut obstacles = Vec::new();
    if findings.iter().any(|finding| !finding.works) {
        obstacles.extend(settings.obstacles());
    }
    if !watched_limits(&enforcement).is_empty() {
        obstacles.push(settings.delegation());
    }
    let holds = findings.first().is_some_and(|finding| finding.works);
    LevelState { level, holds, note: None, clauses: clauses(&enforcement), findings, obstacles }
}

/// A machine is not started: its first start makes an image of the system folders, which takes a minute.
#[cfg(feature = "microvm")]
fn machine(state: &State) -> LevelState {
    use fumehood_backend_microvm::{Microvm, kvm};
    let missing = Microvm::missing(state.root());
    let kvm = kvm::works();
    let note = match &kvm {
        Ok(()) => "by KVM, which ran a guest of our own".to_owned(),
        Err(why) => {
            format!("by software emulation alone, with `--accept-tcg`: KVM does not work here ({why})")
        }
    };
    let obstacles = missing.into_iter().map(|missing| Obstacle {
        what: format!("{} is missing: {}", missing.what, missing.why),
        remedy: missing.remedy,
    });
    let obstacles: Vec<Obstacle> = obstacles.collect();
    LevelState {
        level: Level::Microvm,
        holds: obstacles.is_empty(),
        note: Some(note),
        clauses: Vec::new(),
        findings: Vec::new(),
        obstacles,
    }
}

fn clauses(enforcement: &Enforcement) -> Vec<ClauseState> {
    let state = |clause: Clause| {
        let by = enforcement.of(clause).to_vec();
        let watched = by.iter().any(|mechanism| mechanism.strength == Strength::Watch);
        ClauseState { clause, held: if watched { Held::Watch } else { Held::Kernel }, by }
    };
    Clause::ALL.into_iter().map(state).filter(|state| !state.by.is_empty()).collect()
}

fn text(diagnosis: &Diagnosis) -> Vec<String> {
    let Diagnosis { version, kernel, uid, container, levels } = diagnosis;
    let who = if *uid == 0 { "root".to_owned() } else { format!("an ordinary user (uid {uid})") };
    let place = container.map(|kind| format!(", in a container ({kind})")).unwrap_or_default();
    let mut lines = vec![format!("fumehood {version} on Linux {kernel}, as {who}{place}")];
    for level in levels {
        level_text(level, &mut lines);
    }
    lines
}

fn level_text(state: &LevelState, lines: &mut Vec<String>) {
    let verdict = if state.holds { "yes" } else { "no" };
    let note = state.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
    lines.push(format!("\n{:<11}{verdict}{note}", state.level.name()));
    for finding in &state.findings {
        if finding.works {
            lines.push(format!("  {} was started and ended", finding.what));
        } else {
            lines.push(format!("  {} could not be started: {}", finding.what, finding.why));
            paste(&finding.remedy, lines);
        }
    }
    for clause in &state.clauses {
        let held = match clause.held {
            Held::Kernel => "held by the kernel",
            Held::Watch => "in part only watched",
        };
        lines.push(format!("  {:<12}{held}", clause.clause.name()));
        for mechanism in &clause.by {
            let watch = if mechanism.strength == Strength::Watch { " (noticed after the fact)" } else { "" };
            lines.push(format!("    {}{watch}: {}", mechanism.name, mechanism.detail));
        }
    }
    for obstacle in &state.obstacles {
        lines.push(format!("  {}", obstacle.what));
        paste(&obstacle.remedy, lines);
    }
}

fn paste(remedy: &str, lines: &mut Vec<String>) {
    if !remedy.is_empty() {
        lines.push("  remedy:".to_owned());
        lines.extend(remedy.lines().map(|line| format!("      {line}")));
    }
}
