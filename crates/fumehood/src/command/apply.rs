//! `fumehood apply`: the changes of a run come to the workspace.

use crate::layers::{self, Meant, Picked};
use crate::refusal::Refusal;
use crate::sandboxes::Found;
use crate::{screen, usage};
use clap::Parser;
use fumehood_keep::client::CallError;
use fumehood_keep::wire::{self, Ask, Said};
use fumehood_model::report::Changes;
use fumehood_runtime::files::Refusal as Left;
use fumehood_runtime::files::apply::{Applied, ApplyError, Preview, Rest, Terms, apply};
use fumehood_runtime::files::text::{escape_path, unescape_path};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Bring the changes of a run to the workspace.
///
/// Refused, unless you name them: files that your own tools execute by themselves (git hooks, editor
/// tasks, `.envrc` and the like), and paths that changed on the host since the run began. A
/// `fumehood.toml` never comes back. A sandbox that lives stands still meanwhile, and goes on with its copy; what it changes
/// again later is a conflict then, for `--force`.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    meant: Meant,
    /// Bring back this file, or what is in this folder, though your tools execute it. May be repeated
    #[arg(long, value_name = "PATH")]
    allow: Vec<PathBuf>,
    /// Overwrite this path, or what is in this folder, though it changed on the host. May be repeated
    #[arg(long, value_name = "PATH")]
    force: Vec<PathBuf>,
    /// Bring back what can be, and keep the rest
    #[arg(long)]
    partial: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood apply                      everything of the latest run over this folder, or nothing
  fumehood apply --partial            what can be; the rest stays in the layer
  fumehood apply --allow .git/hooks --force src/main.c";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("apply", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(code) => code,
        Err(refusal) => {
            if args.json {
                refusal.say_json()
            } else {
                refusal.tell()
            }
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: &Args) -> Result<ExitCode, Refusal> {
    let picked = Picked::open(&args.meant)?;
    let rest = if args.partial { Rest::Apply } else { Rest::Withhold };
    let terms = Terms { allow: &args.allow, force: &args.force, rest };
    let (applied, held) = if let Some(found) = picked.living() {
        by_keeper(found, args)?
    } else {
        match picked.recorded(|layer, record| apply(layer, terms, record))? {
            Ok(applied) => (applied, false),
            Err(ApplyError::Held(preview)) => (as_applied(*preview), true),
            Err(error) => return Err(stopped(&picked, &error)),
        }
    };
    if args.json {
        screen::say_json(&json(&picked, &applied));
    } else {
        tell(&picked, &applied, held);
    }
    let complete = applied.is_complete();
    // One that lives goes on with it.
    if complete && picked.living().is_none() {
        picked.remove()?;
    }
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The keeper of a sandbox that lives does it, while nothing inside runs. Gives also whether it was held.
fn by_keeper(found: &Found, args: &Args) -> Result<(Applied, bool), Refusal> {
    let texts = |paths: &[PathBuf]| paths.iter().map(|path| escape_path(path)).collect();
    let ask = Ask::Apply { allow: texts(&args.allow), force: texts(&args.force), partial: args.partial };
    let Said::Applied { done, refused, conflicts, notes, held } = found.call(&ask)? else {
        return Err(found.unreached(&CallError::Closed));
    };
    let left = |all: Vec<wire::Left>| {
        let one = |left: wire::Left| {
            let path = unescape_path(&left.path).unwrap_or_else(|| PathBuf::from(left.path));
            Left { path, why: left.why }
        };
        all.into_iter().map(one).collect()
    };
    let (refusals, conflicts, notes) = (left(refused), left(conflicts), left(notes));
    Ok((Applied { done, refusals, conflicts, notes }, held))
}

/// Why it went no further, and where to look.
fn stopped(picked: &Picked, error: &ApplyError) -> Refusal {
    let refusal = layers::failed(error);
    let closed = match error {
        ApplyError::Step { source, .. } => source.kind() == std::io::ErrorKind::PermissionDenied,
        ApplyError::Layer(_)
        | ApplyError::Read(_)
        | ApplyError::Held(_)
        | ApplyError::Journal(_)
        | ApplyError::Record { .. }
        | ApplyError::Stopped(_) => false,
    };
    let workspace = escape_path(&picked.layer.meta.workspace());
    let task = picked.task();
    let remedy = if closed {
        format!("run it as a user who may write in `{workspace}`; the layer is still there")
    } else {
        format!("`fumehood audit show {task}` says what was done; what was not is still in the layer")
    };
    Refusal { remedy, ..refusal }
}

fn as_applied(preview: Preview) -> Applied {
    let Preview { refusals, conflicts, notes } = preview;
    Applied { done: Changes::default(), refusals, conflicts, notes }
}

fn tell(picked: &Picked, applied: &Applied, held: bool) {
    for (lines, mark) in
        [(&applied.refusals, "refused"), (&applied.conflicts, "conflict"), (&applied.notes, "note")]
    {
        for Left { path, why } in lines {
            let path = escape_path(path);
            let way = if mark == "conflict" { format!(" (`--force {path}`)") } else { String::new() };
            screen::tell(&format!("{mark:<9} {path}: {why}{way}"));
        }
    }
    let Changes { added, modified, deleted, .. } = applied.done;
    let workspace = escape_path(&picked.layer.meta.workspace());
    let task = picked.words();
    if held {
        screen::note(&format!(
            "nothing was applied: {} refused, {} in conflict\n  remedy: {}",
            applied.refusals.len(),
            applied.conflicts.len(),
            ways(applied, &task)
        ));
        return;
    }
    screen::say(&format!("{added} added, {modified} modified, {deleted} deleted in {workspace}"));
    if !applied.is_complete() {
        let drops =
            if picked.living().is_some() { "" } else { &*format!(", `fumehood discard {task}` drops it") };
        screen::note(&format!("the rest stays: `fumehood diff {task}` shows it{drops}"));
    }
}

/// The ways on: the flags that the lines above name, where they name any, and to go without the rest.
fn ways(applied: &Applied, task: &str) -> String {
    let rest = format!("`fumehood apply {task} --partial` for the rest");
    let named = !applied.conflicts.is_empty() || applied.refusals.iter().any(|left| left.why.contains("`--"));
    if named { format!("add the flags that the lines name, or {rest}") } else { rest }
}

fn json(picked: &Picked, applied: &Applied) -> serde_json::Value {
    let lines = |lines: &[Left]| {
        let each = |left: &Left| serde_json::json!({ "path": escape_path(&left.path), "why": left.why });
        lines.iter().map(each).collect::<Vec<_>>()
    };
    serde_json::json!({
        "task": picked.task(),
        "applied": applied.done,
        "refused": lines(&applied.refusals),
        "conflicts": lines(&applied.conflicts),
        "notes": lines(&applied.notes),
        "complete": applied.is_complete(),
    })
}
