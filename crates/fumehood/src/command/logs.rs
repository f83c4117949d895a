//! `fumehood logs`: what a command of a living sandbox has said, and says.

use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::{screen, usage};
use clap::Parser;
use fumehood_keep::client::{CallError, Frame};
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, ExecStatus, Said};
use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

/// Show the output of a command of a living sandbox.
///
/// The last mebibyte of each stream is kept.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// The sandbox, or the beginning of its id
    #[arg(value_name = "ID")]
    id: String,
    /// The command's number [default: the last one]
    #[arg(value_name = "NUMBER")]
    exec: Option<u32>,
    /// Go on with what it says until it ends
    #[arg(long, short = 'f')]
    follow: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood logs 1m8n            what the last command said
  fumehood logs -f 1m8n 3       what command 3 says, until it ends";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("logs", words) {
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
    let found = sandboxes::pick(&args.id)?;
    let command = command(&found, args.exec)?;
    let mut connection = found.ask(&Ask::Attach { exec: command.exec, stdout_from: 0, stderr_from: 0 })?;
    // Without `--follow`, as much as there is now; what was forgotten does not come.
    let (mut left, kept) =
        (command.stdout_bytes + command.stderr_bytes, fumehood_keep::wire::KEPT_OUTPUT_BYTES as u64);
    if command.stdout_bytes > kept || command.stderr_bytes > kept {
        left = command.stdout_bytes.min(kept) + command.stderr_bytes.min(kept);
    }
    while args.follow || command.ending.is_some() || left > 0 {
        match connection.next().map_err(|error| found.unreached(&error))? {
            Some(Frame::Bytes(kind, bytes)) => {
                left = left.saturating_sub(bytes.len() as u64);
                if kind == Kind::Stderr {
                    let _ = std::io::stderr().write_all(&bytes);
                } else {
                    screen::say_bytes(&bytes);
                }
            }
            Some(Frame::Said(Said::Failed(failure))) => return Err(found.failed(failure)),
            Some(Frame::Said(Said::Ended { .. })) | None => break,
            Some(Frame::Said(_)) => {}
        }
    }
    Ok(())
}

fn command(found: &Found, number: Option<u32>) -> Result<ExecStatus, Refusal> {
    let Said::Execs { execs } = found.call(&Ask::List)? else {
        return Err(found.unreached(&CallError::Closed));
    };
    let meant = match number {
        Some(number) => execs.into_iter().find(|exec| exec.exec == number),
        None => execs.into_iter().next_back(),
    };
    meant.ok_or_else(|| {
        let why = match number {
            Some(number) => format!("there is no command {number} in `{}`, or it ended long ago", found.id),
            None => format!("no command has run in `{}`", found.id),
        };
        Refusal::new("find the command", why, format!("`fumehood ls {}` lists them", found.id))
    })
}
