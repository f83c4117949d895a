//! `fumehood discard`: the changes of a run are thrown away.

use crate::layers::{Meant, Picked};
use crate::refusal::Refusal;
use crate::{screen, usage};
use clap::Parser;
use fumehood_model::event::Event;
use fumehood_runtime::files::text::escape_path;
use std::ffi::OsString;
use std::process::ExitCode;

/// Throw the changes of a run away.
///
/// The workspace was never touched, and is not touched now. The record stays.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
struct Args {
    #[command(flatten)]
    meant: Meant,
}

const EXAMPLES: &str = "Examples:
  fumehood discard                    the latest over this folder
  fumehood discard --session web";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("discard", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(line) => {
            screen::say(&line);
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: &Args) -> Result<String, Refusal> {
    let picked = Picked::open(&args.meant)?;
    if let Some(found) = picked.living() {
        let why = format!("`{}` lives, and its processes have these files open", found.id);
        let remedy = format!("`fumehood stop {}` ends it, and its changes with it", found.id);
        return Err(Refusal::new("discard the changes", why, remedy));
    }
    let gone = format!(
        "the changes of {} to {} are gone",
        picked.title(),
        escape_path(&picked.layer.meta.workspace())
    );
    picked.recorded(|_, record| record(&Event::LayerDiscarded {}))?.map_err(|error| {
        Refusal::new(
            "record it",
            error.to_string(),
            fumehood_model::remedy::of(&error).unwrap_or("`fumehood audit verify` looks at the record"),
        )
    })?;
    picked.remove()?;
    Ok(gone)
}
