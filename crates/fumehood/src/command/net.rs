//! `fumehood net explain URL`: what the rules would do with a request, without sending anything.

use super::NetworkArguments;
use crate::refusal::Refusal;
use crate::{network, screen, usage};
use clap::{Parser, Subcommand};
use fumehood_model::code::NOT_STARTED;
use fumehood_model::egress::{Ask, Denial, Identity, Permit, Request, Scheme, Table, UrlPath};
use serde::Serialize;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

const STEP: &str = "read the arguments";

/// Say what rules would do with a request, and why.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Judge one URL, or `HOST:PORT`, by the rules of the flags or of a file. Sends nothing
    Explain(Box<Explain>),
}

#[derive(Debug, Parser)]
#[command(max_term_width = 100)]
struct Explain {
    /// `https://api.example.com/v1/items`, `http://…`, or `db.example.com:5432`
    #[arg(value_name = "URL")]
    url: String,
    /// The method of the request
    #[arg(long, short = 'X', value_name = "METHOD", default_value = "GET")]
    method: String,
    /// Take the rules from this file; flags go on top
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    network: NetworkArguments,
}

const EXAMPLES: &str = "Examples:
  fumehood net explain https://api.example.com/v1/items --allow 'GET https://api.example.com/v1/**'
  fumehood net explain db.example.com:5432 --config fumehood.toml

Exit codes: 0 allowed, 1 denied, 125 the rules or the URL could not be read.";

/// What is printed.
#[derive(Serialize)]
struct Verdict {
    asked: String,
    method: Option<String>,
    allowed: bool,
    rule: Option<String>,
    secret: Option<String>,
    tls_is_opened: bool,
    reason: Option<&'static str>,
    why: Option<String>,
    remedy: Option<String>,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("net", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let Verb::Explain(args) = args.verb;
    match explain(&args) {
        Ok(verdict) => {
            if args.json {
                screen::say_json(&verdict);
            } else {
                verdict.say();
            }
            ExitCode::from(u8::from(!verdict.allowed))
        }
        Err(refusal) => {
            refusal.tell();
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn explain(args: &Explain) -> Result<Verdict, Refusal> {
    let (identity, path) = target(&args.url)?;
    let envelope = network::envelope(args.config.as_deref(), &args.network, None)?;
    let asked = format!("{identity}{}", path.as_ref().map_or("", |path| path.sent_path()));
    let request = path.as_ref().map(|path| Request { method: &args.method, path });
    let method = request.map(|request| request.method.to_owned());
    let Some(egress) = envelope.network().egress.clone() else {
        let remedy = Denial::NoRule.remedy(&identity, request);
        let why = "there is no network: no rule was given".to_owned();
        return Ok(Verdict::denied(asked, method, ("no_network", why, remedy)));
    };
    let table = Table::new(egress);
    let opened = identity.scheme == Scheme::Https && table.opening(&identity.host, identity.port()).open_tls;
    // What passes unread is judged without its path.
    let read = opened || identity.scheme == Scheme::Http;
    let request = request.filter(|_| read);
    match table.decide(Ask { identity: &identity, request }) {
        Ok(permit) => Ok(Verdict::allowed(asked, method, &table, &permit, opened)),
        Err(denial) => {
            let told = (denial.code(), denial.to_string(), denial.remedy(&identity, request));
            Ok(Verdict::denied(asked, method, told))
        }
    }
}

/// Who is asked for, and the path of the request where it is one.
fn target(text: &str) -> Result<(Identity, Option<UrlPath>), Refusal> {
    let flawed = |why: String| Refusal::new(STEP, format!("`{text}`: {why}"), "write a URL, or `HOST:PORT`");
    let (scheme, rest) = match text.split_once("://") {
        Some(("https", rest)) => (Scheme::Https, rest),
        Some(("http", rest)) => (Scheme::Http, rest),
        Some((other, _)) => {
            return Err(flawed(format!("`{other}` is no scheme that leaves; HTTP and TCP do")));
        }
        None => (Scheme::Tcp, text),
    };
    let (authority, path) = match rest.find(['/', '?']) {
        Some(at) => rest.split_at_checked(at).unwrap_or((rest, "")),
        None => (rest, ""),
    };
    let identity = Identity::from_authority(scheme, authority).map_err(|flaw| flawed(flaw.to_string()))?;
    if scheme == Scheme::Tcp {
        return Ok((identity, None));
    }
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let path = UrlPath::parse(&path).map_err(|flaw| flawed(flaw.to_string()))?;
    Ok((identity, Some(path)))
}

// === impl Verdict ===

impl Verdict {
    fn allowed(
        asked: String,
        method: Option<String>,
        table: &Table,
        permit: &Permit<'_>,
        tls_is_opened: bool,
    ) -> Self {
        Self {
            asked,
            method,
            allowed: true,
            rule: Some(table.show(permit.rule())),
            secret: permit.binding().map(ToString::to_string),
            tls_is_opened,
            reason: None,
            why: None,
            remedy: None,
        }
    }

    fn denied(
        asked: String,
        method: Option<String>,
        (reason, why, remedy): (&'static str, String, String),
    ) -> Self {
        Self {
            asked,
            method,
            allowed: false,
            rule: None,
            secret: None,
            tls_is_opened: false,
            reason: Some(reason),
            why: Some(why),
            remedy: Some(remedy),
        }
    }

    fn say(&self) {
        let asked = match &self.method {
            Some(method) => format!("{method} {}", self.asked),
            None => self.asked.clone(),
        };
        if self.allowed {
            let rule = self.rule.as_deref().unwrap_or_default();
            let how = if self.tls_is_opened { ", and TLS is opened for it" } else { "" };
            screen::say(&format!("allowed: {asked}\n  by `{rule}`{how}"));
            if let Some(secret) = &self.secret {
                screen::say(&format!("  with a secret: `{secret}`"));
            }
            screen::say("  if its name resolves to a public address, or to one that is opened to it");
        } else {
            let (why, remedy) = (self.why.as_deref(), self.remedy.as_deref());
            screen::say(&format!("denied: {asked}\n  {}", why.unwrap_or_default()));
            screen::say(&format!("  {}", remedy.unwrap_or_default()));
        }
    }
}
