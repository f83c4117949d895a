//! `fumehood snapshot`, `fumehood snapshots` and `fumehood fork`: the files of a living sandbox, kept and begun with.

use super::create;
use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::{scope, screen, tasks, usage};
use clap::{Parser, Subcommand};
use fumehood_keep::client::CallError;
use fumehood_keep::wire::{Ask, Born, Failure, Forked, Published, Said, Spec};
use fumehood_model::text::shown;
use fumehood_runtime::keep::snapshot::{self, HIDDEN};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// Children of one fork.
const MOST_CHILDREN: u32 = 1000;

/// Children that are made at the same time.
const AT_ONCE: u32 = 8;

/// Keep the files of a living sandbox as they are now, for sandboxes that begin with them.
///
/// HOME and `/workspace` are kept, or what was changed in the copy of a project; memory, `/tmp` and secrets are not. At
/// the level `microvm` the whole machine is kept, with memory and processes. Every process stands still for the moment that it takes.
#[derive(Debug, Parser)]
#[command(
    max_term_width = 100,
    after_help = "Example:
  fumehood snapshot 1m8n ready
  fumehood create --snapshot ready"
)]
struct SnapshotArgs {
    #[arg(value_name = "ID")]
    id: String,
    #[arg(value_name = "NAME")]
    name: String,
    /// With memory and processes, or not at all: the level `microvm` keeps them, no other does
    #[arg(long)]
    memory: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Make new sandboxes that begin with the files of one that lives, as they are now.
///
/// Each has its own id, record, placeholders of secrets and time to live, and what it writes is its own. Its envelope is the
/// same, or less of it by the flags here; a port that the first one publishes leads to it from another port of the host.
/// The ids are printed. Processes are forked at the level `microvm` alone, but an interpreter that was prepared
/// (`create --warm`) comes along.
#[derive(Debug, Parser)]
#[command(
    max_term_width = 100,
    after_help = "Example:
  fumehood fork 1m8n -n 3
  fumehood fork 1m8n --net none --mem 512MiB"
)]
struct ForkArgs {
    #[arg(value_name = "ID")]
    id: String,
    /// So many
    #[arg(short = 'n', long = "count", value_name = "NUMBER", default_value_t = 1)]
    count: u32,
    /// With memory and processes, or not at all: the level `microvm` forks them, no other does
    #[arg(long)]
    memory: bool,
    /// Stop each after this time: `30m`, `8h` [default: each lives until it is stopped]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    ttl: Option<String>,
    /// How far it reaches: `none`, `dns`, `allow`; no further than the first
    #[arg(long, value_name = "REACH", help_heading = "Less than the first")]
    net: Option<String>,
    /// These rules alone, each a part of what the first may do. May be repeated
    #[arg(long, value_name = "RULE", help_heading = "Less than the first")]
    allow: Vec<String>,
    /// No port of the host leads to it
    #[arg(long, help_heading = "Less than the first")]
    no_publish: bool,
    /// Memory
    #[arg(long, value_name = "SIZE", help_heading = "Less than the first", allow_hyphen_values = true)]
    mem: Option<String>,
    /// Processors
    #[arg(long, value_name = "NUMBER", help_heading = "Less than the first", allow_hyphen_values = true)]
    cpus: Option<String>,
    /// Processes and threads
    #[arg(long, value_name = "NUMBER", help_heading = "Less than the first", allow_hyphen_values = true)]
    pids: Option<u32>,
    /// Bytes that may be kept on disk
    #[arg(long, value_name = "SIZE", help_heading = "Less than the first", allow_hyphen_values = true)]
    disk: Option<String>,
    /// End each command after this time
    #[arg(long, value_name = "TIME", help_heading = "Less than the first", allow_hyphen_values = true)]
    timeout: Option<String>,
    /// A label, in place of those of the first. May be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    labels: Vec<String>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// List and remove snapshots.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, disable_help_subcommand = true)]
struct SnapshotsArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List them
    Ls {
        /// Print one JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Remove one; sandboxes that began with it have files of their own
    Rm {
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
    },
}

pub(crate) fn snapshot_main(words: Vec<OsString>) -> ExitCode {
    usage::parse_or_tell("snapshot", words).map_or_else(|code| code, |args: SnapshotArgs| ended(keep(&args)))
}

pub(crate) fn fork_main(words: Vec<OsString>) -> ExitCode {
    scope::enter("fork", &words);
    usage::parse_or_tell("fork", words).map_or_else(|code| code, |args: ForkArgs| ended(fork(&args)))
}

pub(crate) fn snapshots_main(words: Vec<OsString>) -> ExitCode {
    usage::parse_or_tell("snapshots", words).map_or_else(
        |code| code,
        |args: SnapshotsArgs| {
            ended(match args.what {
                What::Ls { json } => list(json),
                What::Rm { names } => folder().and_then(|folder| {
                    names.iter().try_for_each(|name| {
                        snapshot::remove(&folder, name).map_err(|failure| refused(&failure))
                    })
                }),
            })
        },
    )
}

fn ended(outcome: Result<(), Refusal>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn keep(args: &SnapshotArgs) -> Result<(), Refusal> {
    let found = sandboxes::pick(&args.id)?;
    if args.name.starts_with('.') {
        return Err(Refusal::new(
            "name the snapshot",
            format!("`{}` begins with `.`", shown(&args.name)),
            "begin it with a letter or digit",
        ));
    }
    let said = take(&found, args.name.clone(), args.memory)?;
    if args.json {
        screen::say_json(&said);
    } else if let Said::Snapshot { name, bytes, frozen_us } = said {
        screen::say(&format!(
            "{name}: {bytes} bytes copied; it stood still for {:.1} ms",
            frozen_millis(frozen_us)
        ));
    }
    Ok(())
}

fn take(found: &Found, name: String, memory: bool) -> Result<Said, Refusal> {
    let said = found.call(&Ask::Snapshot { name, memory: memory.then_some(true) })?;
    if matches!(said, Said::Snapshot { .. }) { Ok(said) } else { Err(found.unreached(&CallError::Closed)) }
}

fn frozen_millis(micros: u64) -> f64 {
    std::time::Duration::from_micros(micros).as_secs_f64() * 1000.0
}

fn fork(args: &ForkArgs) -> Result<(), Refusal> {
    const STEP: &str = "fork the sandbox";
    if !(1..=MOST_CHILDREN).contains(&args.count) {
        return Err(Refusal::new(
            STEP,
            format!("{} is no number of children", args.count),
            format!("ask for 1 to {MOST_CHILDREN}"),
        ));
    }
    let found = sandboxes::pick(&args.id)?;
    if found.is_kept() {
        let why =
            format!("`{}` has ended; its files were kept, and nothing keeps them in one state", found.id);
        return Err(Refusal::new(
            STEP,
            why,
            "fork a sandbox that lives, or begin with a snapshot: `fumehood create --snapshot NAME`",
        ));
    }
    let description = found.description().ok_or_else(|| {
        Refusal::new(
            STEP,
            format!("what `{}` is can not be read", found.id),
            "`fumehood ls` lists those that live",
        )
    })?;
    let folder = folder()?;
    // Those of forks that were ended before they could tidy up.
    let _ = snapshot::prune(&folder);
    let expires_ms = create::expiry(args.ttl.as_deref())?;
    let labels =
        if args.labels.is_empty() { description.spec.labels.clone() } else { create::labels(&args.labels)? };
    let random = fumehood_sys::host::random().unwrap_or_else(|_| u64::from(std::process::id()));
    let name = format!("{HIDDEN}{}-{random:016x}", found.id);
    take(&found, name.clone(), args.memory)?;
    let actor = format!("uid:{}", fumehood_sys::host::euid());
    let forked = Some(Forked { narrow: narrow(args) });
    let snapshot = Some(name.clone());
    // What was chosen for it once, whatever would be chosen for less.
    let level = Some(description.level);
    let spec = Spec { snapshot, level, expires_ms, labels, actor, pooled: false, forked, ..description.spec };
    let born = bear(&spec, args.count, args.json);
    let removed = snapshot::remove(&folder, &name).map_err(|failure| refused(&failure));
    born.and(removed)
}

/// Makes so many, some at a time. The first that fails is told once those beside it were shown.
fn bear(spec: &Spec, count: u32, json: bool) -> Result<(), Refusal> {
    let mut left = count;
    while left > 0 {
        let now = left.min(AT_ONCE);
        left -= now;
        let begun: Vec<_> = (0..now).map(|_| create::begin(spec)).collect();
        let shown = begun.into_iter().map(|begun| tell(&begun?.answer()?, json));
        // All of them are heard, or nobody would know of one that lives.
        shown.collect::<Vec<_>>().into_iter().collect::<Result<(), _>>()?;
    }
    Ok(())
}

/// Says which child it is, and how it is reached.
fn tell(born: &Born, json: bool) -> Result<(), Refusal> {
    create::show(born, json)?;
    if let (Born::Ready { id, status, .. }, false) = (born, json) {
        for Published { host_port, port } in &status.published {
            screen::note(&format!("{id}: 127.0.0.1:{host_port} leads to its port {port}"));
        }
    }
    Ok(())
}

/// What the flags say, in the words of an envelope.
fn narrow(args: &ForkArgs) -> Value {
    let mut network = Map::new();
    let mut resources = Map::new();
    let mut set = |name: &str, value: Option<&String>| {
        if let Some(value) = value {
            resources.insert(name.to_owned(), json!(value));
        }
    };
    set("memory", args.mem.as_ref());
    set("cpus", args.cpus.as_ref());
    set("disk", args.disk.as_ref());
    // The largest file is as large as the disk where nobody says; one that was said may be more than the disk is now.
    set("file-size", args.disk.as_ref());
    set("timeout", args.timeout.as_ref());
    if let Some(pids) = args.pids {
        resources.insert("processes".to_owned(), json!(pids));
    }
    if let Some(net) = &args.net {
        network.insert("net".to_owned(), json!(net));
    }
    if !args.allow.is_empty() {
        network.insert("allow".to_owned(), json!(args.allow));
        // A preset is more rules.
        network.insert("presets".to_owned(), Value::Null);
    }
    if args.no_publish {
        network.insert("publish".to_owned(), Value::Null);
    }
    if network.is_empty() && resources.is_empty() {
        return Value::Null;
    }
    json!({ "network": network, "resources": resources })
}

fn list(json: bool) -> Result<(), Refusal> {
    let folder = folder()?;
    let unread = |error: std::io::Error| {
        Refusal::new("list the snapshots", error.to_string(), "look at the state folder's rights")
    };
    snapshot::prune(&folder).map_err(unread)?;
    for snapshot in snapshot::list(&folder).map_err(unread)? {
        if json {
            screen::say_json(&snapshot);
        } else {
            let over = snapshot.workspace.as_deref().map(|path| format!("  over {path}")).unwrap_or_default();
            let what = if snapshot.memory {
                "a whole machine".to_owned()
            } else {
                format!("{} entries", snapshot.entries)
            };
            let line =
                format!("{}  of {}  {what}, {} bytes{over}", snapshot.name, snapshot.sandbox, snapshot.bytes);
            screen::say(&shown(&line));
        }
    }
    Ok(())
}

fn folder() -> Result<PathBuf, Refusal> {
    Ok(tasks::state()?.snapshots())
}

fn refused(failure: &Failure) -> Refusal {
    let Failure { message, cause, remediation, .. } = failure;
    Refusal::new(message, format!("failed to {message}: {cause}"), remediation.clone())
}
