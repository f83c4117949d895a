//! `fumehood diff`: what a run changed in its copy of the workspace.

use crate::layers::{Meant, Picked};
use crate::refusal::Refusal;
use crate::{screen, usage};
use clap::Parser;
use fumehood_runtime::files::changes::{Change, ChangeKind, ChangeList};
use fumehood_runtime::files::text::escape_path;
use std::ffi::OsString;
use std::process::ExitCode;

/// Show what a run changed in its copy of the workspace.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    meant: Meant,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "A added, M modified, P other permissions, T another kind, D deleted.

Examples:
  fumehood diff                       the latest run that changed something
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
    for change in &list.changes {
        screen::say(&format!("{} {}", letter(change), escape_path(&change.path)));
    }
    for left in &list.unread {
        screen::tell(&format!("? {}: {}", escape_path(&left.path), left.why));
    }
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

const fn letter(change: &Change) -> &'static str {
    match change.kind {
        ChangeKind::Added => "A",
        ChangeKind::Modified => "M",
        ChangeKind::ModeChanged => "P",
        ChangeKind::TypeChanged => "T",
        ChangeKind::Deleted => "D",
    }
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
