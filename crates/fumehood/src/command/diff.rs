//! `fumehood diff`: what a run changed in its copy of the workspace.

use crate::layers::{self, Meant, Picked};
use crate::refusal::Refusal;
use crate::{screen, usage};
use clap::Parser;
use fumehood_runtime::files::changes::{Change, ChangeKind, ChangeList};
use fumehood_runtime::files::diff::{Detail, show};
use fumehood_runtime::files::text::escape_path;
use std::ffi::OsString;
use std::process::ExitCode;

/// Show what a run changed in its copy of the workspace.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    meant: Meant,
    /// Name the paths alone, not the lines that changed
    #[arg(long)]
    paths: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "A added, M modified, X other permissions, T another kind, D deleted.

Examples:
  fumehood diff                       the latest run over this folder that changed something
  fumehood diff --session web";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("diff", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: &Args) -> Result<(), Refusal> {
    let picked = Picked::open(&args.meant)?;
    let list = picked.changes()?;
    if args.json {
        screen::say_json(&json(&picked, &list));
        return Ok(());
    }
    let detail = if args.paths { Detail::Paths } else { Detail::Lines };
    let mut text = Vec::new();
    show(&picked.layer, &list, detail, &mut text).map_err(|error| layers::failed(&error))?;
    screen::say_bytes(&text);
    Ok(())
}

fn json(picked: &Picked, list: &ChangeList) -> serde_json::Value {
    let changes: Vec<_> = list
        .changes
        .iter()
        .map(|change| serde_json::json!({ "change": word(change), "path": escape_path(&change.path) }))
        .collect();
    serde_json::json!({
        "task": picked.task(),
        "workspace": escape_path(&picked.layer.meta.workspace()),
        "changes": changes,
        "count": list.count(),
    })
}

const fn word(change: &Change) -> &'static str {
    match change.kind {
        ChangeKind::Added => "added",
        ChangeKind::Modified => "modified",
        ChangeKind::ModeChanged => "mode_changed",
        ChangeKind::TypeChanged => "type_changed",
        ChangeKind::Deleted => "deleted",
    }
}
