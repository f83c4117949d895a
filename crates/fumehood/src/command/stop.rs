//! `fumehood stop`, `rm`, `pause`, `resume`: what is done to a whole living sandbox.

use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::{screen, tasks, usage};
use clap::Parser;
use fumehood_keep::wire::Ask;
use fumehood_runtime::files::discard::remove_tree;
use fumehood_sys::dirfd::DirHandle;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

/// End living sandboxes: every process, and all files of theirs.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = "Examples:\n  fumehood stop 1m8n\n  fumehood stop --all")]
struct Stop {
    /// The sandboxes, or the beginnings of their ids
    #[arg(value_name = "ID", required_unless_present = "all")]
    ids: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Keep their files in the state folder, until `fumehood rm`
    #[arg(long)]
    keep_files: bool,
}

/// End sandboxes, and remove files of them that were kept.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = "Examples:\n  fumehood rm 1m8n")]
struct Remove {
    /// The sandboxes, or the beginnings of their ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

/// Stop every process of living sandboxes where it is, and give their memory back where the host has swap.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = "Examples:\n  fumehood pause 1m8n\n  fumehood resume 1m8n")]
struct Pause {
    /// The sandboxes, or the beginnings of their ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

/// Let paused sandboxes go on where they were.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = "Examples:\n  fumehood resume 1m8n")]
struct Resume {
    /// The sandboxes, or the beginnings of their ids
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Stop = match usage::parse_or_tell("stop", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let ask = Ask::Stop { keep_files: args.keep_files };
    if !args.all {
        return each(&args.ids, |found| found.call(&ask).map(drop));
    }
    match sandboxes::all() {
        Ok(all) => all
            .iter()
            .filter(|found| !found.is_kept())
            .fold(ExitCode::SUCCESS, |code, found| told(found.call(&ask).map(drop)).unwrap_or(code)),
        Err(refusal) => told(Err(refusal)).unwrap_or(ExitCode::FAILURE),
    }
}

pub(crate) fn remove(words: Vec<OsString>) -> ExitCode {
    match usage::parse_or_tell::<Remove>("rm", words) {
        Ok(args) => each(&args.ids, remove_one),
        Err(code) => code,
    }
}

pub(crate) fn pause(words: Vec<OsString>) -> ExitCode {
    match usage::parse_or_tell::<Pause>("pause", words) {
        Ok(args) => each(&args.ids, |found| found.call(&Ask::Pause).map(drop)),
        Err(code) => code,
    }
}

pub(crate) fn resume(words: Vec<OsString>) -> ExitCode {
    match usage::parse_or_tell::<Resume>("resume", words) {
        Ok(args) => each(&args.ids, |found| found.call(&Ask::Resume).map(drop)),
        Err(code) => code,
    }
}

fn remove_one(found: &Found) -> Result<(), Refusal> {
    if !found.is_kept() {
        return found.call(&Ask::Stop { keep_files: false }).map(drop);
    }
    let failed = |error: std::io::Error| {
        Refusal::new("remove the sandbox", error.to_string(), "check who owns the state folder")
    };
    let folder = DirHandle::open(&tasks::state()?.sandboxes()).map_err(failed)?;
    remove_tree(&folder, OsStr::new(found.id.as_str())).map_err(failed)
}

/// Does it to each; what fails is told, and the others are done all the same.
fn each(ids: &[String], mut act: impl FnMut(&Found) -> Result<(), Refusal>) -> ExitCode {
    ids.iter().fold(ExitCode::SUCCESS, |code, id| {
        told(sandboxes::pick(id).and_then(|found| act(&found))).unwrap_or(code)
    })
}

fn told(outcome: Result<(), Refusal>) -> Option<ExitCode> {
    let refusal = outcome.err()?;
    screen::flush();
    refusal.tell();
    Some(ExitCode::FAILURE)
}
