//! Everything that is settled before a run: the envelope, the level, the command and what it is given.

use crate::backends::Early;
use crate::command::RunArguments;
use crate::config::{self, Spoken};
use crate::host::{self, Places, Terminals};
use crate::refusal::Refusal;
use crate::{backends, paths, spec};
use fumehood_backend::Backend;
use fumehood_model::ending::Ending;
use fumehood_model::envelope::{Envelope, Root};
use fumehood_model::exec::ExecRequest;
use fumehood_model::level::{Blast, Choice, Level, Reason, Trust};
use fumehood_runtime::environment;
use fumehood_runtime::run::{OutputMode, RunRequest};
use fumehood_runtime::toolchains::{Host, Resolution, Toolchains, Views, resolve};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The working directory inside, and where the workspace is seen.
const WORKSPACE: &str = "/workspace";

/// A run that could begin.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) request: RunRequest,
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) resolution: Resolution,
    /// Lines for standard error before the run.
    pub(crate) notes: Vec<String>,
    /// Whether somebody wrote the wall clock down.
    pub(crate) timeout_written: bool,
}

/// Settles everything. Starts nothing, and writes nothing.
pub(crate) fn prepare(args: &RunArguments, early: Early) -> Result<Prepared, Refusal> {
    if !args.explain && args.command.first().is_none_or(|command| command.is_empty()) {
        let why = if args.command.is_empty() { "there is no command to run" } else { "the command is empty" };
        return Err(Refusal::new("read the arguments", why, "name one: `fumehood run -- python3 script.py`"));
    }
    let terminals = Terminals::now();
    let places = Places::now()?;
    let flags = spec::of_flags(args, &places.cwd)?;
    let mut defaults = host::defaults(args, terminals, &places);
    if !args.network.presets.is_empty() {
        defaults.presets = host::presets(places.home.as_deref())?;
    }
    let Spoken { layered, note } = config::settle(&flags, args, &defaults)?;
    let (trust, blast) =
        (layered.spec.trust.unwrap_or(Trust::Medium), layered.spec.blast.unwrap_or(Blast::Medium));
    let choice = backends::settle(layered.spec.level, trust, blast)?;
    paths::check(&layered.envelope, &defaults)?;
    let mut notes: Vec<String> = note.into_iter().collect();
    notes.extend(level_note(&choice, terminals));
    notes.extend(backends::caution(choice.level).map(str::to_owned));
    let timeout_written = layered.spec.resources.timeout.is_some();
    let command = Command::new(args, &layered.envelope, &places, terminals);
    notes.extend(command.notes());
    notes.extend(left_behind(&args.command, &layered.envelope, &places.cwd));
    let Command { toolchains, resolution, exec, home_at, .. } = command;
    let request = RunRequest {
        envelope: layered.envelope,
        choice,
        exec,
        output: if args.json { OutputMode::Capture } else { OutputMode::Stream },
        toolchains: toolchains.roots,
        home_at,
    };
    // Last: a flaw in what was typed is told first, whatever this host can hold.
    let accepted = backends::Accepted { tcg: args.accept_tcg };
    let backend = early.backend(request.choice.level, accepted)?;
    Ok(Prepared { request, backend, resolution, notes, timeout_written })
}

/// The command, and what it is given.
#[derive(Debug)]
struct Command {
    exec: ExecRequest,
    home_at: PathBuf,
    toolchains: Toolchains,
    resolution: Resolution,
    views: Views,
    /// Host variables that should enter and are not set.
    unset: Vec<String>,
}

// === impl Prepared ===

impl Prepared {
    /// Says where the host has a command that is not inside.
    pub(crate) fn mend(&self, ending: &mut Ending) {
        if let Ending::NotStarted { step, why, remedy } = ending
            && step == "find the command"
        {
            let name = self.request.exec.argv.first().map(|word| word.to_string_lossy()).unwrap_or_default();
            (*why, *remedy) = not_found(&name, &self.resolution);
        }
    }
}

// === impl Command ===

impl Command {
    fn new(args: &RunArguments, envelope: &Envelope, places: &Places, terminals: Terminals) -> Self {
        let views = views(envelope);
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let home = places.home.as_deref().unwrap_or(Path::new("/nonexistent"));
        let host = Host::new(home, &lookup);
        let cwd = Path::new(WORKSPACE).join(args.cwd.as_deref().unwrap_or(Path::new("")));
        let cwd: PathBuf = cwd.components().collect();
        let name = args.command.first().map_or(Path::new(""), Path::new);
        let toolchains = Toolchains::find(&host, &views, name);
        let resolution = resolve(&host, &toolchains, &views, name, (&cwd, &places.cwd));
        let home_at = environment::home_at(places.home.as_deref(), views.image);
        let shell = shell(&views);
        let env = environment::environment(&variables, envelope.environment(), &toolchains, &home_at, shell);
        let unset = environment::missing(&variables, envelope.environment());
        let unset = unset.into_iter().map(str::to_owned).collect();
        let terminal = terminals.wanted(args).then(host::window_size);
        let exec = ExecRequest { argv: args.command.clone(), env, cwd, terminal };
        Self { exec, home_at, toolchains, resolution, views, unset }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .unset
            .iter()
            .map(|name| format!("`--env {name}`: it is not set here, so it is not set inside"))
            .collect();
        let Resolution { inside, host, flag } = &self.resolution;
        if self.resolution.differs(&self.toolchains, &self.views)
            && let (Some(inside), Some(host)) = (inside, host)
        {
            let way = flag.as_ref().map(|flag| format!("; `{flag}` brings that one in")).unwrap_or_default();
            notes.push(format!("runs `{}`; on the host it is `{}`{way}", inside.display(), host.display()));
        }
        notes
    }
}

/// An argument that names something of this folder, where this folder is not in the sandbox: the likeliest
/// mistake of a first run.
fn left_behind(command: &[OsString], envelope: &Envelope, cwd: &Path) -> Option<String> {
    let files = envelope.filesystem();
    if files.workspace.is_some() {
        return None;
    }
    let brought = |word: &Path| files.inputs.iter().any(|input| input.at == Path::new(WORKSPACE).join(word));
    let missed = command.iter().skip(1).map(Path::new).find(|word| {
        let plain = word.is_relative() && !word.as_os_str().as_encoded_bytes().starts_with(b"-");
        plain && word.file_name().is_some() && !brought(word) && cwd.join(word).is_file()
    })?;
    let name = missed.to_string_lossy();
    let name = fumehood_model::text::shown(&name);
    Some(format!(
        "`{name}` is in this folder, which is not in the sandbox; `--in {name}` or `--workspace .` brings it in"
    ))
}

/// What the sandbox says of a command that it does not have.
fn not_found(name: &str, resolution: &Resolution) -> (String, String) {
    let name = &fumehood_model::text::shown(name);
    match (&resolution.host, &resolution.flag) {
        (Some(host), Some(flag)) if host.as_os_str() == name.as_str() => {
            (format!("`{name}` is on the host, but not in the sandbox"), format!("add `{flag}`"))
        }
        (Some(host), Some(flag)) => (
            format!("there is no `{name}` in the sandbox; the host has it at `{}`", host.display()),
            format!("add `{flag}`"),
        ),
        (Some(host), None) => (
            format!("`{name}` is at `{}` on the host and can not be run inside", host.display()),
            "check the interpreter in its first line and the links that lead to it".to_owned(),
        ),
        (None, _) if name.contains('/') => (
            format!("there is no `{name}` in the sandbox, and none on the host"),
            "check the spelling; relative paths start at `/workspace`".to_owned(),
        ),
        (None, _) => (
            format!("there is no `{name}` in the sandbox, and none on the host's PATH"),
            format!(
                "check the spelling, or install it on the host; a shell's own word needs a shell: `sh -c '{name} …'`"
            ),
        ),
    }
}

/// What was chosen and what would be stronger: for somebody who looks, and did not choose it.
fn level_note(choice: &Choice, terminals: Terminals) -> Option<String> {
    let Reason::Table { trust, blast } = choice.reason else { return None };
    // A level that can not be had is no advice.
    let stronger: Vec<&str> =
        backends::for_choice().filter(|level| *level > choice.level).map(Level::name).collect();
    let stronger =
        if stronger.is_empty() { String::new() } else { format!("; stronger: {}", stronger.join(", ")) };
    let (trust, blast) = (spec::trust_name(trust), spec::blast_name(blast));
    terminals.stderr.then(|| format!("level {} (trust {trust}, blast {blast}){stronger}", choice.level))
}

fn views(envelope: &Envelope) -> Views {
    let files = envelope.filesystem();
    let mut shown: Vec<(PathBuf, PathBuf)> = Vec::new();
    let image = match &files.root {
        Root::Directory(folder) => {
            shown.push((folder.clone(), PathBuf::from("/")));
            true
        }
        Root::HostSystem => false,
    };
    shown
        .extend(files.workspace.iter().map(|workspace| (workspace.source.clone(), PathBuf::from(WORKSPACE))));
    shown.extend(files.mounts.iter().map(|mount| (mount.source.clone(), mount.at.clone())));
    shown.extend(files.inputs.iter().map(|input| (input.source.clone(), input.at.clone())));
    Views { shown, image }
}

fn shell(views: &Views) -> &'static str {
    let bash = "/bin/bash";
    let source = views.host_path(Path::new(bash));
    if source.is_some_and(|source| std::fs::symlink_metadata(source).is_ok()) { bash } else { "/bin/sh" }
}
