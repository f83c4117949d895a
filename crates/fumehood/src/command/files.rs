//! `fumehood files`: single files of a living sandbox.

use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::{screen, usage};
use clap::{Parser, Subcommand};
use fumehood_keep::client::{CallError, Frame};
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Entry, EntryKind, Said};
use fumehood_model::text::shown;
use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

const CHUNK_BYTES: usize = 256 << 10;

/// Read, write and list the files of a living sandbox.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Write a file to standard output
    Cat {
        #[arg(value_name = "ID")]
        id: String,
        #[arg(value_name = "PATH")]
        path: String,
    },
    /// Make or replace a file, from a file of the host or standard input
    Put {
        #[arg(value_name = "ID")]
        id: String,
        #[arg(value_name = "PATH")]
        path: String,
        #[arg(value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// List a folder
    Ls {
        #[arg(value_name = "ID")]
        id: String,
        #[arg(value_name = "PATH", default_value = "/workspace")]
        path: String,
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
}

const EXAMPLES: &str = "Examples:
  fumehood files put 1m8n /workspace/data.csv data.csv
  fumehood files cat 1m8n /workspace/result.json > result.json
  fumehood files ls 1m8n /workspace";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("files", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let outcome = match args.what {
        What::Cat { id, path } => sandboxes::pick(&id).and_then(|found| cat(&found, path)),
        What::Put { id, path, from } => sandboxes::pick(&id).and_then(|found| put(&found, path, from)),
        What::Ls { id, path, json } => sandboxes::pick(&id).and_then(|found| list(&found, path, json)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn cat(found: &Found, path: String) -> Result<(), Refusal> {
    let mut connection = found.ask(&Ask::Read { path, offset: 0, length: None })?;
    found.answer(&mut connection)?;
    loop {
        match connection.next().map_err(|error| found.unreached(&error))? {
            Some(Frame::Bytes(Kind::Data, bytes)) => {
                if std::io::stdout().write_all(&bytes).is_err() {
                    return Ok(());
                }
            }
            Some(Frame::Bytes(..)) => {
                screen::flush();
                return Ok(());
            }
            Some(Frame::Said(Said::Failed(failure))) => return Err(found.failed(failure)),
            Some(Frame::Said(_)) | None => return Err(found.unreached(&CallError::Closed)),
        }
    }
}

fn put(found: &Found, path: String, from: Option<PathBuf>) -> Result<(), Refusal> {
    let unread = |error: std::io::Error| {
        Refusal::new("read the file", error.to_string(), "name a file that you can read")
    };
    let mut source: Box<dyn std::io::Read> = match from {
        Some(from) => Box::new(std::fs::File::open(from).map_err(unread)?),
        None => Box::new(std::io::stdin()),
    };
    let mut connection = found.ask(&Ask::Write { path, mode: None })?;
    let mut bytes = vec![0; CHUNK_BYTES];
    loop {
        let count = source.read(&mut bytes).map_err(unread)?;
        let piece = bytes.get(..count).unwrap_or_default();
        let kind = if piece.is_empty() { Kind::DataEnd } else { Kind::Data };
        // A keeper that refuses says why before it hangs up.
        if connection.send(kind, piece).is_err() || piece.is_empty() {
            return found.answer(&mut connection).map(drop);
        }
    }
}

fn list(found: &Found, path: String, json: bool) -> Result<(), Refusal> {
    let Said::Entries { entries, cut } = found.call(&Ask::ListDir { path, depth: 1 })? else {
        return Err(found.unreached(&CallError::Closed));
    };
    for entry in &entries {
        if json {
            screen::say_json(entry);
        } else {
            screen::say(&line(entry));
        }
    }
    if cut {
        screen::note("there are more; list a folder further down");
    }
    Ok(())
}

fn line(entry: &Entry) -> String {
    let kind = match entry.kind {
        EntryKind::File => '-',
        EntryKind::Folder => 'd',
        EntryKind::Link => 'l',
        EntryKind::Other => '?',
    };
    format!("{kind} {:04o} {:>12}  {}", entry.mode & 0o7777, entry.size, shown(&entry.path))
}
