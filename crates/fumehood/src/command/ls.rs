//! `fumehood ls`: living sandboxes, or the commands of one.

use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::{screen, tasks, usage};
use clap::Parser;
use fumehood_keep::wire::{Ask, ExecStatus, Said, Sandbox, Status};
use fumehood_model::quantity::{show_bytes, show_duration};
use fumehood_model::text::{cut, shown};
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

const COMMAND_CHARS: usize = 60;
/// Labels of the daemon's begin so.
const OWN_LABELS: &str = "fumehood.";

/// List living sandboxes, or the commands of one.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// List the commands of this sandbox: those that run, and the last that have ended
    #[arg(value_name = "ID")]
    id: Option<String>,
    /// List also those that wait in a pool of the daemon, and belong to nobody
    #[arg(long)]
    all: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood ls
  fumehood ls 1m8n            what runs in it";

/// One sandbox, as `--json` prints it.
#[derive(Serialize)]
struct Listed {
    id: String,
    kept: bool,
    status: Option<Status>,
    sandbox: Option<Sandbox>,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("ls", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let outcome = match &args.id {
        Some(id) => commands(id, args.json),
        None => everything(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn everything(args: &Args) -> Result<(), Refusal> {
    let Args { json, all: with_pooled, .. } = *args;
    sandboxes::sweep(&tasks::state()?);
    let all = sandboxes::all()?;
    let (mut shown, mut pooled) = (false, 0);
    for found in all {
        let (kept, status) = (found.is_kept(), found.status());
        // One that is being made, or that is on its way out.
        if !kept && status.is_none() {
            continue;
        }
        if status.as_ref().is_some_and(|status| status.pooled) && !with_pooled {
            pooled += 1;
            continue;
        }
        shown = true;
        if json {
            let listed = Listed { id: found.id.to_string(), kept, status, sandbox: found.description() };
            screen::say_json(&listed);
        } else {
            screen::say(&line(&found, status.as_ref()));
        }
    }
    if !shown && !json {
        let pooled = match pooled {
            0 => String::new(),
            count => format!(" ({count} wait in pools of the daemon: `--all` shows them)"),
        };
        screen::note(&format!("no sandbox lives{pooled}; `fumehood create` makes one"));
    }
    Ok(())
}

fn line(found: &Found, status: Option<&Status>) -> String {
    let labels = found.description().map(|description| description.spec.labels).unwrap_or_default();
    // Whose it is, is for the daemon to know.
    let labels = labels.iter().filter(|(name, _)| !name.starts_with(OWN_LABELS));
    let labels: String = labels.map(|(name, value)| format!("  {}={}", shown(name), shown(value))).collect();
    let Some(status) = status else { return format!("{}  ended, files kept{labels}", found.id) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let since =
        |ms: u64| show_duration(Duration::from_secs(now.saturating_sub(Duration::from_millis(ms)).as_secs()));
    let memory = status.memory_bytes.map(|bytes| format!("  {}", show_bytes(bytes))).unwrap_or_default();
    let left = status.expires_ms.map(|at| {
        let left = Duration::from_millis(at).saturating_sub(now);
        format!("  ends in {}", show_duration(Duration::from_secs(left.as_secs())))
    });
    format!(
        "{}  {:<8}{:<10} {} old  {} running{memory}{}{labels}",
        found.id,
        if status.pooled { "waiting".to_owned() } else { format!("{:?}", status.phase).to_lowercase() },
        status.level,
        since(status.born_ms),
        status.running,
        left.unwrap_or_default(),
    )
}

fn commands(id: &str, json: bool) -> Result<(), Refusal> {
    let found = sandboxes::pick(id)?;
    let Said::Execs { execs } = found.call(&Ask::List)? else {
        return Err(found.unreached(&fumehood_keep::client::CallError::Closed));
    };
    for exec in &execs {
        if json {
            screen::say_json(exec);
        } else {
            screen::say(&command_line(exec));
        }
    }
    Ok(())
}

fn command_line(exec: &ExecStatus) -> String {
    let state = exec.ending.as_ref().map_or("running", |ending| ending.cause());
    let words: Vec<String> = exec.argv.iter().map(|word| shown(word)).collect();
    let tag = exec.tag.as_ref().map(|tag| format!("  ({})", shown(tag))).unwrap_or_default();
    format!("{:>4}  {state:<12} {}{tag}", exec.exec, cut(&words.join(" "), COMMAND_CHARS))
}
