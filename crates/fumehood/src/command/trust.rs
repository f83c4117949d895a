//! `fumehood trust`: a `fumehood.toml` may say more than less, until it changes.

use crate::host::Places;
use crate::refusal::Refusal;
use crate::{config, screen, tasks, usage};
use clap::Parser;
use fumehood_runtime::trust;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Trust a `fumehood.toml` as it is now.
///
/// A file that is found by itself may only narrow what a run may do, because the code that is run
/// could have written it. Trusted, it counts in full, until a byte of it changes.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// The file; the nearest `fumehood.toml` where left out
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// List the files that are trusted
    #[arg(long, conflicts_with_all = ["remove", "file"])]
    list: bool,
    /// Trust it no longer
    #[arg(long)]
    remove: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood trust                      the nearest fumehood.toml
  fumehood trust --remove fumehood.toml
  fumehood trust --list";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("trust", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(lines) => {
            lines.iter().for_each(|line| screen::say(line));
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: &Args) -> Result<Vec<String>, Refusal> {
    let state = tasks::state()?;
    let root = state.root();
    if args.list {
        let files = trust::list(root).map_err(|error| config::distrusted(&error))?;
        return Ok(files.iter().map(|file| format!("{}  {}", file.sha256, shown(&file.path))).collect());
    }
    let file = nearest(args.file.as_deref())?;
    if args.remove {
        let known = trust::untrust(root, &file).map_err(|error| config::distrusted(&error))?;
        let line = if known { "is trusted no longer" } else { "was not trusted" };
        return Ok(vec![format!("`{}` {line}", shown(&file))]);
    }
    let text = config::read(&file)?;
    config::parse_alone(&text, &shown(&file))?;
    trust::trust(root, &file, text.as_bytes()).map_err(|error| config::distrusted(&error))?;
    Ok(vec![format!(
        "`{}` is trusted until it changes; `fumehood run --explain` shows what it gives",
        shown(&file)
    )])
}

/// The file that was named, or the one that a run here would find.
fn nearest(named: Option<&Path>) -> Result<PathBuf, Refusal> {
    let places = Places::now()?;
    let found = match named {
        Some(named) => config::real_path(&places.cwd.join(named)),
        None => config::find(&places.cwd, places.home.as_deref()),
    };
    found.ok_or_else(|| match named {
        Some(named) => {
            let why = format!("there is no `{}`", shown(named));
            Refusal::new("find the file", why, "check the spelling")
        }
        None => Refusal::new(
            "find the file",
            format!("there is no `{}` here or above", config::FILE_NAME),
            "name one: `fumehood trust FILE`",
        ),
    })
}

fn shown(path: &Path) -> String {
    fumehood_model::text::shown(&path.to_string_lossy())
}
