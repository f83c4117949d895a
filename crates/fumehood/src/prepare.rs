//! Everything that is settled before a run: the envelope, the level, the command and what it is given.

use crate::backends::Early;
use crate::command::RunArguments;
use crate::config::{self, Spoken};
use crate::host::{self, Places, Terminals};
use crate::image_config::{self, Standing};
use crate::refusal::Refusal;
use crate::{backends, images, paths, spec};
use fumehood_backend::Backend;
use fumehood_model::ending::Ending;
use fumehood_model::envelope::Envelope;
use fumehood_model::exec::ExecRequest;
use fumehood_model::image::is_folder;
use fumehood_model::level::{Blast, Choice, Level, Question, Reason, Stake, TRIFECTA, Trust};
use fumehood_runtime::environment;
use fumehood_runtime::run::{OutputMode, RunRequest};
use fumehood_runtime::tape::Tape;
use fumehood_runtime::toolchains::{Host, Resolution, Toolchains, Views, resolve};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The working directory inside, and where the workspace is seen.
pub(crate) const WORKSPACE: &str = "/workspace";

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
    /// Held until the run is over.
    _standing: Option<Standing>,
}

/// Settles everything. Starts nothing, and writes nothing.
pub(crate) fn prepare(args: &RunArguments, early: Early) -> Result<Prepared, Refusal> {
    if args.image.is_none() {
        has_command(args, &args.command)?;
    }
    let terminals = Terminals::now();
    let places = Places::now()?;
    let mut flags = spec::of_flags(args, &places.cwd)?;
    let mut defaults = host::defaults(args, terminals, &places);
    if !args.network.presets.is_empty() {
        defaults.presets = host::presets(places.home.as_deref())?;
    }
    if args.pull {
        image_config::pull_missing(args, &flags)?;
    }
    if args.image.as_deref().and_then(OsStr::to_str).is_some_and(|text| !is_folder(text)) {
        defaults.images = images::all(places.state.as_deref())?;
    }
    let Spoken { mut layered, note } = config::settle(&flags, args, &defaults)?;
    let standing = Standing::of(&layered.envelope)?;
    if let (Some(uid), None) = (standing.as_ref().and_then(Standing::user), layered.spec.privilege.user) {
        flags.privilege.user = Some(uid);
        layered = config::settle(&flags, args, &defaults)?.layered;
    }
    let argv = match &standing {
        Some(standing) if args.command.is_empty() => standing.command(),
        Some(_) | None => args.command.clone(),
    };
    has_command(args, &argv)?;
    let (trust, blast) =
        (layered.spec.trust.unwrap_or(Trust::Medium), layered.spec.blast.unwrap_or(Blast::Medium));
    let stake = Stake::of(&layered.envelope);
    let question = Question { asked: layered.spec.level, floor: backends::floor()?, trust, blast, stake };
    let choice = backends::settle(&question)?;
    paths::check(&layered.envelope, &defaults)?;
    if !args.explain {
        early.foresee(&layered.envelope);
    }
    let mut notes: Vec<String> = note.into_iter().collect();
    notes.extend(level_note(&choice, &question, terminals));
    notes.extend(backends::caution(choice.level).map(str::to_owned));
    let tape = if args.tape {
        let spec = serde_json::to_value(layered.spec.clone().rebased(&places.cwd));
        Tape::Keep { spec: spec.unwrap_or_default() }
    } else {
        Tape::None
    };
    let timeout_written = layered.spec.resources.timeout.is_some();
    let shown = (&layered.envelope, standing.as_ref());
    let command = Command::new(args, shown, argv, &places, (choice.level, terminals));
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
        tape,
    };
    // Last: a flaw in what was typed is told first, whatever this host can hold.
    let backend = early.backend(request.choice.level, args)?;
    Ok(Prepared { request, backend, resolution, notes, timeout_written, _standing: standing })
}

fn has_command(args: &RunArguments, argv: &[OsString]) -> Result<(), Refusal> {
    if args.explain || argv.first().is_some_and(|command| !command.is_empty()) {
        return Ok(());
    }
    let why = if argv.is_empty() { "there is no command to run" } else { "the command is empty" };
    Err(Refusal::new("read the arguments", why, "name one: `fumehood run -- python3 script.py`"))
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
    fn new(
        args: &RunArguments,
        (envelope, standing): (&Envelope, Option<&Standing>),
        argv: Vec<OsString>,
        places: &Places,
        (level, terminals): (Level, Terminals),
    ) -> Self {
        let views = views(envelope);
        let variables: Vec<(OsString, OsString)> = std::env::vars_os().collect();
        let lookup =
            |name: &str| variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let home = places.home.as_deref().unwrap_or(Path::new("/nonexistent"));
        let host = Host::new(home, &lookup);
        let own = standing.and_then(|standing| standing.folder(args, envelope));
        let cwd = Path::new(WORKSPACE).join(args.cwd.as_deref().or(own).unwrap_or(Path::new("")));
        let cwd: PathBuf = cwd.components().collect();
        let name = argv.first().map_or(Path::new(""), Path::new);
        let (toolchains, resolution) = if level == Level::Wasm {
            // The command is a module of the host, and no program of the host is inside.
            let module = argv.first().map(|_| places.cwd.join(name));
            (Toolchains::default(), Resolution { inside: module, host: None, flag: None })
        } else {
            let mut toolchains = Toolchains::find(&host, &views, name);
            if let Some(path) = standing.and_then(Standing::path) {
                toolchains.use_path(path, &views);
            }
            let resolution = resolve(&host, &toolchains, &views, name, (&cwd, &places.cwd));
            (toolchains, resolution)
        };
        let home_at = environment::home_at(places.home.as_deref(), views.image);
        let shell = shell(&views);
        let mut env =
            environment::environment(&variables, envelope.environment(), &toolchains, &home_at, shell);
        let unset = environment::missing(&variables, envelope.environment());
        let unset = unset.into_iter().map(str::to_owned).collect();
        if let Some(standing) = standing {
            standing.lay_under(&mut env, envelope);
        }
        let terminal = terminals.wanted(args).then(host::window_size);
        let exec = ExecRequest { argv: argv.clone(), env, cwd, terminal };
        Self { exec, home_at, toolchains, resolution, views, unset }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .unset
            .iter()
            .map(|name| format!("`--env {name}`: it is not set here, so it is not set inside"))
            .collect();
        let Resolution { inside, host, flag } = &self.resolution;
        // An image is asked for because it is not the host.
        if !self.views.image
            && self.resolution.differs(&self.toolchains, &self.views)
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

/// What was chosen and what would be stronger: for somebody who looks, and did not choose it. Who named a level
/// that the three together would not have been given is told in any case.
fn level_note(choice: &Choice, question: &Question, terminals: Terminals) -> Option<String> {
    if choice.reason == Reason::Asked {
        return (question.is_trifecta() && choice.level < TRIFECTA).then(|| {
            format!(
                "level {} was named: private data, untrusted input and egress together want {TRIFECTA}, or rules that are bound to methods and a path",
                choice.level
            )
        });
    }
    // A level that can not be had is no advice.
    let stronger: Vec<&str> = backends::stronger(choice.level).into_iter().map(Level::name).collect();
    let stronger =
        if stronger.is_empty() { String::new() } else { format!("; stronger: {}", stronger.join(", ")) };
    let (trust, blast) = (question.trust.name(), question.blast.name());
    let why = match choice.reason {
        Reason::Asked | Reason::Table { .. } => String::new(),
        Reason::Trifecta { .. } => ", private data and egress".to_owned(),
        Reason::Floor { floor, .. } => format!(", the operator's floor {floor}"),
    };
    terminals.stderr.then(|| format!("level {} (trust {trust}, blast {blast}{why}){stronger}", choice.level))
}

pub(crate) fn views(envelope: &Envelope) -> Views {
    let files = envelope.filesystem();
    let mut shown: Vec<(PathBuf, PathBuf)> = Vec::new();
    let image = files.root.folder();
    shown.extend(image.map(|folder| (folder.to_owned(), PathBuf::from("/"))));
    let image = image.is_some();
    shown
        .extend(files.workspace.iter().map(|workspace| (workspace.source.clone(), PathBuf::from(WORKSPACE))));
    shown.extend(files.mounts.iter().map(|mount| (mount.source.clone(), mount.at.clone())));
    shown.extend(files.inputs.iter().map(|input| (input.source.clone(), input.at.clone())));
    Views { shown, image }
}

pub(crate) fn shell(views: &Views) -> &'static str {
    let bash = "/bin/bash";
    let source = views.host_path(Path::new(bash));
    if source.is_some_and(|source| std::fs::symlink_metadata(source).is_ok()) { bash } else { "/bin/sh" }
}
