//! `fumehood audit`: the record, listed, shown and verified.

use crate::refusal::Refusal;
use crate::{screen, tasks, usage};
use clap::{Parser, Subcommand};
use fumehood_audit::Digest;
use fumehood_model::id::TaskId;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// What is returned when the record is not whole, or can not be read.
const NOT_WHOLE: u8 = 1;

/// List, show and verify the record of what ran.
///
/// Every act of a run is written down before it is done, each line chained to the one before it.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One line for each task
    List {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// What one task did, line by line
    Show {
        /// The task, or the beginning of its id; the latest where left out
        #[arg(value_name = "ID")]
        task: Option<String>,
        /// Print the lines as they stand in the record
        #[arg(long)]
        json: bool,
    },
    /// Find lines and files that were changed, removed, moved or cut; exit code 1 where there are any
    Verify {
        /// A digest that `verify` printed earlier, kept elsewhere: finds that the end was cut
        #[arg(long, value_name = "HEX")]
        expect_head: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "Examples:
  fumehood audit show                 the latest run
  fumehood audit verify               is everything as it was written?
  fumehood audit verify --expect-head $(cat head.txt)";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("audit", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let outcome = match args.what {
        What::List { json } => list(json),
        What::Show { task, json } => show(task.as_deref(), json),
        What::Verify { expect_head, json } => verify(expect_head.as_deref(), json),
    };
    outcome.unwrap_or_else(|refusal| {
        refusal.tell();
        ExitCode::from(NOT_WHOLE)
    })
}

fn list(json: bool) -> Result<ExitCode, Refusal> {
    let tasks = fumehood_audit::list(&records()?).map_err(|error| unreadable(&error))?;
    if json {
        tasks.iter().for_each(screen::say_json);
    } else {
        screen::say_raw(&fumehood_audit::show_list(&tasks));
    }
    Ok(ExitCode::SUCCESS)
}

fn show(typed: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let task: TaskId = tasks::with_record(&tasks::state()?, typed)?;
    let transcript = fumehood_audit::read(&records()?, &task).map_err(|error| unreadable(&error))?;
    if json {
        transcript.lines.iter().for_each(screen::say_json);
    } else {
        screen::say_raw(&fumehood_audit::show(&transcript));
    }
    // A crash leaves half a line too: what is no line is told, and the rest is shown.
    Ok(if transcript.unreadable_bytes > 0 { ExitCode::from(NOT_WHOLE) } else { ExitCode::SUCCESS })
}

fn verify(expected: Option<&str>, json: bool) -> Result<ExitCode, Refusal> {
    let digest = expected.map(Digest::parse).transpose().map_err(|_| {
        let shown = fumehood_model::text::shown(expected.unwrap_or_default());
        let why = format!("`{shown}` is no digest");
        Refusal::new(
            "read the arguments",
            why,
            "give the 64 hexadecimal digits that `fumehood audit verify` printed after `head`",
        )
    })?;
    let report = fumehood_audit::verify(&records()?, digest.as_ref()).map_err(|error| unreadable(&error))?;
    if json {
        screen::say_json(&report);
    } else {
        screen::say_raw(&fumehood_audit::show_report(&report));
    }
    Ok(if report.is_whole() { ExitCode::SUCCESS } else { ExitCode::from(NOT_WHOLE) })
}

fn records() -> Result<PathBuf, Refusal> {
    Ok(tasks::state()?.root().join("records"))
}

fn unreadable(error: &fumehood_audit::ReadError) -> Refusal {
    let missing = error.source.kind() == std::io::ErrorKind::NotFound;
    if missing {
        return Refusal::new(
            "read the record",
            "nothing is recorded yet",
            "`fumehood run -- true` runs something",
        );
    }
    Refusal::new(
        "read the record",
        format!("failed to {error}: {}", error.source),
        "check who owns the file; `FUMEHOOD_STATE` names the folder",
    )
}
