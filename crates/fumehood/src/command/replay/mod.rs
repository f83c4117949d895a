//! `fumehood replay`: a task of the record, shown, run again without a network, or judged by other rules.

mod again;
mod judge;
mod show;

use crate::refusal::Refusal;
use crate::{scope, screen, tasks, usage};
use clap::Parser;
use fumehood_audit::{TaskState, Transcript};
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use fumehood_runtime::state::State;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

const STEP: &str = "replay the task";

/// Show a task again, run it again, or judge it by other rules.
///
/// Without a flag: what happened, in order, and what was said meanwhile where a tape was kept (`fumehood run --tape`).
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// The task, or the beginning of its id; the latest where left out
    #[arg(value_name = "ID")]
    task: Option<String>,
    /// Run it again from its tape: same command, input and files, requests answered as they were, nothing sent; and
    /// say what came out different
    #[arg(long, conflicts_with_all = ["policy", "cast"])]
    run: bool,
    /// Judge everything it did, and everything it was refused, by the rules and limits of this `fumehood.toml`
    #[arg(long, value_name = "FILE", conflicts_with = "cast")]
    policy: Option<PathBuf>,
    /// Print its output as an asciicast, for players of those
    #[arg(long)]
    cast: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "cast")]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood run --tape --allow api.example.com -- ./report
  fumehood replay                         what happened
  fumehood replay --run                   does it come to the same without a network?
  fumehood replay --policy stricter.toml  what of it would other rules refuse?

Exit codes: 0 nothing is different, 1 something is, 125 it could not be replayed.";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    if words.iter().any(|word| word == "--run") {
        scope::enter("replay", &words);
    }
    let args: Args = match usage::parse_or_tell("replay", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    attempt(&args).unwrap_or_else(|refusal| {
        refusal.tell();
        ExitCode::from(fumehood_model::code::NOT_STARTED)
    })
}

fn attempt(args: &Args) -> Result<ExitCode, Refusal> {
    let state = tasks::state()?;
    let task = tasks::with_record(&state, args.task.as_deref())?;
    let read = fumehood_audit::read(&state.records(), &task);
    let transcript = read.map_err(|error| {
        Refusal::new(STEP, format!("failed to {error}: {}", error.source), "check who owns the file")
    })?;
    if args.run {
        whole(&state, &task)?;
        return again::run(&state, &task, &transcript, args.json);
    }
    if let Some(policy) = &args.policy {
        return judge::judge(&transcript, policy, args.json);
    }
    if args.cast {
        show::cast(&state, &task, &transcript)?;
    } else {
        show::timeline(&state, &task, &transcript, args.json);
    }
    Ok(ExitCode::SUCCESS)
}

/// A record that was changed is shown, with a word about it; nothing is run by it.
fn whole(state: &State, task: &TaskId) -> Result<(), Refusal> {
    let report = fumehood_audit::verify(&state.records(), None)
        .map_err(|error| Refusal::new(STEP, error.to_string(), "check who owns the file"))?;
    let broken = report.tasks.iter().filter(|report| report.task == *task).find_map(|report| {
        let TaskState::Broken { seq, what } = &report.state else { return None };
        Some((seq, what))
    });
    match broken {
        None => Ok(()),
        Some((seq, what)) => Err(Refusal::new(
            STEP,
            format!("its record is broken at line {seq}: {what}"),
            "nothing is run by a record that was changed; `fumehood audit verify` says more",
        )),
    }
}

/// The digest of a task's tape, if one was kept.
fn tape_of(transcript: &Transcript) -> Option<String> {
    transcript.lines.iter().rev().find_map(|line| {
        let Some(Event::TapeKept { sha256 }) = line.known() else { return None };
        Some(sha256)
    })
}

fn unplayed(error: &dyn std::error::Error) -> Refusal {
    let mut why = format!("failed to {error}");
    let mut next = error.source();
    while let Some(cause) = next {
        why = format!("{why}: {cause}");
        next = cause.source();
    }
    Refusal::new(STEP, why, "only what is as it was kept is used; run it once more with `--tape`")
}

fn say(text: &str) {
    screen::say(&fumehood_model::text::shown(text));
}
