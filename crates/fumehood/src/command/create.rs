//! `fumehood create`: a sandbox that lives on until it is stopped.

use super::{KEEPER, NetworkArguments, RunArguments};
use crate::host::{self, Places, Terminals};
use crate::image_config;
use crate::refusal::Refusal;
use crate::{config, images, sandboxes, scope, screen, spec, tasks, usage};
use clap::Parser;
use fumehood_keep::wire::{Born, Spec};
use fumehood_model::image::is_folder;
use fumehood_model::level::{Blast, Level, Trust};
use fumehood_model::quantity;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, SystemTime};

/// Make a sandbox that lives on between commands.
///
/// It has its own HOME and `/workspace`, which live as long as it does, and lives until it is stopped (`fumehood
/// stop`), or its time is over (`--ttl`). Its id is printed; `fumehood exec ID -- COMMAND` runs commands in it.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// Project folder, seen at `/workspace`. What is written goes to a layer of the sandbox's own; `:ro` forbids
    /// writing, `:rw` writes to the folder itself
    #[arg(long, short = 'w', value_name = "DIR[:ro|:rw]", help_heading = "Files")]
    workspace: Option<OsString>,
    /// Copy a file in: to `/workspace`, or to DEST. May be repeated
    #[arg(long = "in", value_name = "FILE[:DEST]", help_heading = "Files")]
    inputs: Vec<OsString>,
    /// Show a host file or folder read-only, at its own path or at DEST. May be repeated
    #[arg(long = "ro", value_name = "PATH[:DEST]", help_heading = "Files")]
    read_only: Vec<OsString>,
    /// Keep a cache for this project: `npm`, `pip`, `cargo`, or a folder inside. May be repeated
    #[arg(long = "cache", value_name = "KIND|DIR", help_heading = "Files")]
    caches: Vec<String>,
    /// Begin with the files of a snapshot (`fumehood snapshot ID NAME`)
    #[arg(long, value_name = "NAME", help_heading = "Files")]
    snapshot: Option<String>,
    /// Stand on an image of the store, or on an unpacked root folder, in place of the host's system folders
    #[arg(long, value_name = "NAME|DIR", help_heading = "Files")]
    image: Option<OsString>,
    /// Stand on a template that was built (`fumehood template build NAME`), in place of the host's system folders
    #[arg(long, value_name = "NAME", conflicts_with = "image", help_heading = "Files")]
    template: Option<String>,
    /// Pull the image first, where it is not in the store
    #[arg(long, requires = "image", help_heading = "Files")]
    pull: bool,

    #[command(flatten)]
    network: NetworkArguments,

    /// Stop it after this time: `30m`, `8h` [default: it lives until it is stopped]
    #[arg(long, value_name = "TIME", help_heading = "Limits", allow_hyphen_values = true)]
    ttl: Option<String>,
    /// Pause it when nobody has used it for so long, and its processes do nothing; the next verb wakes it
    #[arg(long, value_name = "TIME", help_heading = "Limits", allow_hyphen_values = true)]
    idle_pause: Option<String>,
    /// End each command after this time, unless it says otherwise [default: none]
    #[arg(long, value_name = "TIME", help_heading = "Limits", allow_hyphen_values = true)]
    timeout: Option<String>,
    /// Memory of everything inside, scratch included [default: 4GiB, or half of the host's]
    #[arg(
        long = "mem",
        visible_alias = "memory",
        value_name = "SIZE",
        help_heading = "Limits",
        allow_hyphen_values = true
    )]
    memory: Option<String>,
    /// Processors: `2`, `0.5` [default: all]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits", allow_hyphen_values = true)]
    cpus: Option<String>,
    /// Processes and threads [default: 512]
    #[arg(long, value_name = "NUMBER", help_heading = "Limits", allow_hyphen_values = true)]
    pids: Option<u32>,
    /// Bytes that may be kept on disk [default: 10GiB]
    #[arg(long, value_name = "SIZE", help_heading = "Limits", allow_hyphen_values = true)]
    disk: Option<String>,

    /// Level: `process`, `container`, `gvisor` or `microvm`. Left out, it follows from --trust and --blast
    #[arg(long, value_name = "LEVEL", help_heading = "Isolation", value_parser = spec::level_parser(), hide_possible_values = true)]
    level: Option<Level>,
    /// At `microvm`, take a processor that is emulated by software: not a security boundary that QEMU vouches for
    #[arg(long, help_heading = "Isolation")]
    accept_tcg: bool,
    /// How far the input can be trusted: `low`, `medium`, `high` [default: medium]
    #[arg(long, value_name = "TRUST", help_heading = "Isolation", value_parser = spec::trust_parser(), hide_possible_values = true)]
    trust: Option<Trust>,
    /// The worst it could do: `low`, `medium`, `high` [default: medium]
    #[arg(long, value_name = "BLAST", help_heading = "Isolation", value_parser = spec::blast_parser(), hide_possible_values = true)]
    blast: Option<Blast>,
    /// Take the envelope from this file; flags go on top
    #[arg(long, value_name = "FILE", help_heading = "Isolation")]
    config: Option<PathBuf>,
    /// Be this user id inside [default: 1000]
    #[arg(long, value_name = "UID", help_heading = "Isolation", allow_hyphen_values = true)]
    user: Option<u32>,

    /// Let a host variable into every command, or set one. May be repeated
    #[arg(long = "env", short = 'e', value_name = "NAME[=VALUE]", help_heading = "Commands")]
    env: Vec<OsString>,
    /// A label, for `fumehood ls`. May be repeated
    #[arg(long = "label", value_name = "NAME=VALUE", help_heading = "Output")]
    labels: Vec<String>,
    /// Print one JSON object
    #[arg(long, help_heading = "Output")]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  id=$(fumehood create --ttl 1h)
  fumehood exec $id -- sh -c 'echo hello > note'
  fumehood exec $id -- cat note
  fumehood stop $id
  A project, and what a tool needs to install packages:
    fumehood create --workspace . --preset npm";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    scope::enter("create", &words);
    let args: Args = match usage::parse_or_tell("create", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refusal) => {
            refusal.tell();
            ExitCode::FAILURE
        }
    }
}

fn attempt(args: Args) -> Result<(), Refusal> {
    let json = args.json;
    sandboxes::sweep(&tasks::state()?);
    show(&start(&spec_of(args)?)?, json)
}

/// Says what became of a birth.
pub(super) fn show(born: &Born, json: bool) -> Result<(), Refusal> {
    match born {
        Born::Ready { id, .. } if !json => screen::say(id.as_str()),
        Born::Ready { .. } => screen::say_json(born),
        Born::Failed(failure) => {
            return Err(Refusal::new(
                &failure.message,
                format!("failed to {}: {}", failure.message, failure.cause),
                failure.remediation.clone(),
            ));
        }
    }
    Ok(())
}

/// What is asked of the keeper: the same words as a run's, put together in the same way.
fn spec_of(args: Args) -> Result<Spec, Refusal> {
    let (ttl, labels, snapshot) = (expiry(args.ttl.as_deref())?, labels(&args.labels)?, args.snapshot);
    let accept_tcg = args.accept_tcg;
    let image = args.template.as_deref().map(super::template::built).transpose()?.or(args.image);
    let idle_pause_ms = idle_pause(args.idle_pause.as_deref())?;
    let run = RunArguments {
        workspace: args.workspace,
        inputs: args.inputs,
        read_only: args.read_only,
        caches: args.caches,
        image,
        pull: args.pull,
        network: args.network,
        timeout: args.timeout,
        memory: args.memory,
        cpus: args.cpus,
        pids: args.pids,
        disk: args.disk,
        level: args.level,
        trust: args.trust,
        blast: args.blast,
        config: args.config,
        env: args.env,
        user: args.user,
        ..RunArguments::default()
    };
    let (places, terminals) = (Places::now()?, Terminals::now());
    let flags = spec::of_flags(&run, &places.cwd)?;
    let mut defaults = host::defaults(&run, terminals, &places);
    if !run.network.presets.is_empty() {
        defaults.presets = host::presets(places.home.as_deref())?;
    }
    if run.pull {
        image_config::pull_missing(&run, &flags)?;
    }
    if run.image.as_deref().and_then(OsStr::to_str).is_some_and(|text| !is_folder(text)) {
        defaults.images = images::all(places.state.as_deref())?;
    }
    let config::Spoken { layered, note } = config::settle(&flags, &run, &defaults)?;
    if let Some(note) = note {
        screen::note(&note);
    }
    let words = layered.spec.rebased(&places.cwd);
    let envelope = serde_json::to_value(&words)
        .map_err(|error| Refusal::new("write the envelope", error.to_string(), ""))?;
    let actor = format!("uid:{}", fumehood_sys::host::euid());
    Ok(Spec {
        envelope,
        labels,
        snapshot,
        expires_ms: ttl,
        actor,
        accept_tcg,
        idle_pause_ms,
        ..Spec::default()
    })
}

/// Starts a keeper and hears its one answer.
pub(super) fn start(spec: &Spec) -> Result<Born, Refusal> {
    begin(spec)?.answer()
}

/// A keeper that has been told what to make.
pub(super) struct Begun {
    child: Child,
    stdout: ChildStdout,
}

/// Starts a keeper, and does not wait for it.
pub(super) fn begin(spec: &Spec) -> Result<Begun, Refusal> {
    let mut keeper = Command::new("/proc/self/exe");
    keeper.arg(KEEPER).stdin(Stdio::piped()).stdout(Stdio::piped());
    let refused = |error: std::io::Error| {
        let remedy = fumehood_model::remedy::of_io(&error);
        Refusal {
            remedy: remedy.map_or_else(|| unstarted(&error).remedy, str::to_owned),
            ..unstarted(&error)
        }
    };
    let mut child = keeper.spawn().map_err(refused)?;
    let words = spec.told().map_err(|error| unstarted(&error))?;
    let mut stdin = child.stdin.take().ok_or_else(|| unstarted(&"it has no input"))?;
    stdin.write_all(&words).map_err(|error| unstarted(&error))?;
    drop(stdin);
    let stdout = child.stdout.take().ok_or_else(|| unstarted(&"it has no output"))?;
    Ok(Begun { child, stdout })
}

// === impl Begun ===

impl Begun {
    pub(super) fn answer(mut self) -> Result<Born, Refusal> {
        let mut line = String::new();
        BufReader::new(self.stdout).read_line(&mut line).map_err(|error| unstarted(&error))?;
        let born = serde_json::from_str(&line).map_err(|_| unstarted(&"it ended without a word"))?;
        if matches!(born, Born::Failed(_)) {
            // It is on its way out.
            let _ = self.child.wait();
        }
        Ok(born)
    }
}

fn unstarted(error: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(
        "start a keeper",
        format!("no keeper could be started: {error}"),
        "`fumehood doctor` looks at what this host can hold",
    )
}

pub(super) fn expiry(typed: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(typed) = typed else { return Ok(None) };
    let time = quantity::duration(typed).map_err(|error| {
        Refusal::new(
            "read the arguments",
            format!("`--ttl {typed}`: {error}"),
            "write a time, as in `--ttl 30m`",
        )
    })?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Ok(u64::try_from((now + time).as_millis()).ok())
}

fn idle_pause(typed: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(typed) = typed else { return Ok(None) };
    let bad = |why: String| {
        let remedy = "write a time of a second or more, as in `--idle-pause 5m`";
        Refusal::new("read the arguments", format!("`--idle-pause {typed}`: {why}"), remedy)
    };
    let time = quantity::duration(typed).map_err(|error| bad(error.to_string()))?;
    if time < Duration::from_secs(1) {
        return Err(bad("it is less than a second".to_owned()));
    }
    Ok(u64::try_from(time.as_millis()).ok())
}

pub(super) fn labels(typed: &[String]) -> Result<BTreeMap<String, String>, Refusal> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Refusal::new(
            "read the arguments",
            format!("`{text}` is no label"),
            "write `--label NAME=VALUE`",
        )),
    };
    typed.iter().map(pair).collect()
}
