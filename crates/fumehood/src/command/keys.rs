//! `fumehood keys`: who may call the daemon over TCP.

use super::daemon;
use crate::refusal::Refusal;
use crate::{screen, tasks, usage};
use clap::{Parser, Subcommand};
use fumehood_server::keys;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::process::ExitCode;

/// Make, list and remove keys of the daemon.
///
/// A key is shown once and kept as a hash. It works with the daemon running or not.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Make a key, and print it
    New {
        /// Its name, for the list and the record
        name: String,
        /// Whose it is: teams do not see each other's sandboxes
        #[arg(long, default_value = "local")]
        team: String,
        /// What it is good for, of `read`, `write`, `exec`, `halt`, `admin`; the first three if left out
        #[arg(long, value_name = "SCOPE", value_delimiter = ',')]
        scope: Vec<String>,
        /// How long it is good
        #[arg(long, value_name = "SECONDS")]
        ttl: Option<u64>,
    },
    /// List the keys, without the keys
    Ls,
    /// Remove a key
    Rm { name: String },
}

const EXAMPLES: &str = "Examples:
  fumehood keys new laptop
  fumehood keys new ci --team builds --scope read,write,exec --ttl 86400
  fumehood keys rm laptop";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("keys", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(args.what) {
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

fn attempt(what: What) -> Result<Vec<String>, Refusal> {
    match what {
        What::New { name, team, scope, ttl } => {
            let scopes = (!scope.is_empty()).then_some(scope);
            let body = json!({ "name": name, "team": team, "scopes": scopes, "ttl_seconds": ttl });
            let made = ask("POST", "/v1/keys", &body)?;
            Ok(vec![text(&made, "key")])
        }
        What::Ls => {
            let keys = ask("GET", "/v1/keys", &Value::Null)?;
            let line = |key: &Value| {
                let scopes: Vec<&str> = key
                    .get("scopes")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .collect();
                format!("{}  team {}  {}", text(key, "name"), text(key, "team"), scopes.join(","))
            };
            Ok(keys.as_array().into_iter().flatten().map(line).collect())
        }
        What::Rm { name } => {
            ask("DELETE", &format!("/v1/keys/{name}"), &Value::Null)?;
            Ok(Vec::new())
        }
    }
}

/// By the daemon where one runs, else by its routes without it.
fn ask(method: &str, path: &str, body: &Value) -> Result<Value, Refusal> {
    if let Some(answer) = daemon::ask(method, path, body)? {
        return Ok(answer);
    }
    let state = tasks::state()?;
    match keys::without_daemon(state.root(), method, path, body) {
        Ok(answer) => Ok(answer),
        // One that was just starting has taken the folder meanwhile, and listens by now.
        Err(error) => daemon::ask(method, path, body)?.ok_or_else(|| daemon::refusal(&error)),
    }
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}
