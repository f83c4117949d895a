//! `fumehood halt`: the kill switch.

use super::daemon;
use crate::refusal::Refusal;
use crate::{screen, tasks, usage};
use clap::Parser;
use fumehood_server::serve;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;

/// Cut the network of sandboxes, freeze them, and take no new work, until it is released.
///
/// It has a socket of its own, and survives a restart of the daemon.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// One sandbox; or the word `release`, to take a halt back
    #[arg(value_name = "ID|release")]
    what: Option<String>,
    /// With `release`: the one sandbox
    #[arg(value_name = "ID", hide = true)]
    id: Option<String>,
    /// All of one team
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    team: Option<String>,
    /// All there are
    #[arg(long)]
    all: bool,
    /// End them too, and remove everything of them
    #[arg(long)]
    destroy: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood halt --all
  fumehood halt --team builds --destroy
  fumehood halt release --all";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("halt", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(outcome) => report(&outcome),
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: &Args) -> Result<Value, Refusal> {
    let is_release = args.what.as_deref() == Some("release");
    let id = if is_release { args.id.as_ref() } else { args.what.as_ref() };
    let mut body = json!({ "id": id, "team": args.team, "all": args.all });
    if !is_release && let Some(body) = body.as_object_mut() {
        body.insert("destroy".to_owned(), args.destroy.into());
    }
    let path = if is_release { "/v1/release" } else { "/v1/halt" };
    let state = tasks::state()?;
    let answer = daemon::at(&serve::halt_socket(state.root()), "POST", path, &body)?;
    answer.ok_or_else(|| {
        Refusal::new(
            "reach the kill switch",
            "no daemon runs on this state folder",
            "start it with `fumehood serve`; `fumehood stop ID` ends a sandbox without it",
        )
    })
}

fn report(outcome: &Value) -> ExitCode {
    let list = |name: &str| outcome.get(name).and_then(Value::as_array).cloned().unwrap_or_default();
    for id in list("done") {
        screen::say(id.as_str().unwrap_or_default());
    }
    let failed = list("failed");
    for pair in &failed {
        let part = |at: usize| pair.get(at).and_then(Value::as_str).unwrap_or_default();
        screen::tell(&format!("fumehood: not reached: {}: {}", part(0), part(1)));
    }
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
