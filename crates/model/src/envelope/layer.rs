//! One spec laid over another, and what a file that was found by itself may say.
//!
//! Policy never comes from the attacker's folder: a file that nobody named or trusted may only
//! narrow what the flags alone would give.

use super::file::{FileFlaw, Located};
use super::{
    CleanupSpec, CredentialsSpec, Defaults, Envelope, EnvelopeSpec, FilesystemSpec, Flaw, NetworkSpec,
    PrivilegeSpec, ResourcesSpec,
};
use crate::level::{Blast, Trust, choose};

/// A file and flags, together.
#[derive(Clone, Debug, PartialEq)]
pub struct Layered {
    /// The whole spec: level, trust and blast are read from here.
    pub spec: EnvelopeSpec,
    pub envelope: Envelope,
}

/// Why a file and flags do not make an envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerError {
    /// The flags by themselves, or together with a good file, are flawed.
    Flags(Vec<Flaw>),
    /// The file is flawed.
    File(Vec<FileFlaw>),
    /// The file was found by itself and asks for more than the flags alone would give.
    Widens(Vec<FileFlaw>),
}

// === impl EnvelopeSpec ===

impl EnvelopeSpec {
    /// `flags` over `self`: a field that the flags have wins; lists are joined, those of `self`
    /// first. A variable that the flags name is theirs alone.
    #[must_use]
    pub fn overlay(self, flags: Self) -> Self {
        let Self { level, trust, blast, filesystem, network, privilege, credentials, resources, cleanup } =
            flags;
        let NetworkSpec {} = network;
        Self {
            level: level.or(self.level),
            trust: trust.or(self.trust),
            blast: blast.or(self.blast),
            filesystem: self.filesystem.overlay(filesystem),
            network: self.network,
            privilege: self.privilege.overlay(privilege),
            credentials: self.credentials.overlay(credentials),
            resources: self.resources.overlay(resources),
            cleanup: CleanupSpec { keep_layer: cleanup.keep_layer.or(self.cleanup.keep_layer) },
        }
    }
}

impl FilesystemSpec {
    fn overlay(self, flags: Self) -> Self {
        let Self { image, workspace, workspace_mode, read_only, inputs, output, caches, session } = flags;
        Self {
            image: image.or(self.image),
            workspace: workspace.or(self.workspace),
            workspace_mode: workspace_mode.or(self.workspace_mode),
            read_only: joined(self.read_only, read_only),
            inputs: joined(self.inputs, inputs),
            output: output.or(self.output),
            caches: joined(self.caches, caches),
            session: session.or(self.session),
        }
    }
}

impl PrivilegeSpec {
    fn overlay(self, flags: Self) -> Self {
        let Self { user, syscalls } = flags;
        Self { user: user.or(self.user), syscalls: syscalls.or(self.syscalls) }
    }
}

impl CredentialsSpec {
    fn overlay(mut self, flags: Self) -> Self {
        self.set.retain(|name, _| !flags.env.contains(name));
        self.env.retain(|name| !flags.set.contains_key(name));
        self.set.extend(flags.set);
        Self { env: joined(self.env, flags.env), set: self.set }
    }
}

impl ResourcesSpec {
    fn overlay(self, flags: Self) -> Self {
        let Self { memory, cpus, processes, disk, file_size, open_files, timeout, output } = flags;
        Self {
            memory: memory.or(self.memory),
            cpus: cpus.or(self.cpus),
            processes: processes.or(self.processes),
            disk: disk.or(self.disk),
            file_size: file_size.or(self.file_size),
            open_files: open_files.or(self.open_files),
            timeout: timeout.or(self.timeout),
            output: output.or(self.output),
        }
    }
}

/// A file that the operator named with `--config`, or trusted: it says what it says, and flags win.
/// `file` is [`Located::rebased`] to its own folder.
pub fn named_file(flags: &EnvelopeSpec, file: &Located, defaults: &Defaults) -> Result<Layered, LayerError> {
    file.check(defaults).map_err(LayerError::File)?;
    let spec = file.spec().clone().overlay(flags.clone());
    let envelope = Envelope::check(&spec, defaults).map_err(LayerError::Flags)?;
    Ok(Layered { spec, envelope })
}

/// A file that was found by itself: it may lower what the flags alone would give, and add nothing.
/// `file` is [`Located::rebased`] to its own folder.
pub fn found_file(flags: &EnvelopeSpec, file: &Located, defaults: &Defaults) -> Result<Layered, LayerError> {
    let parent = Envelope::check(flags, defaults).map_err(LayerError::Flags)?;
    let layered = named_file(flags, file, defaults)?;
    let mut widens: Vec<FileFlaw> = choice_widens(flags, &layered.spec)
        .into_iter()
        .chain(
            parent.widenings(&layered.envelope).into_iter().map(|widening| (widening.field, widening.what)),
        )
        .map(|(field, what)| FileFlaw {
            line: file.line(field, None),
            field: Some(field.to_owned()),
            what: format!("{what}, and a file that was found by itself may only narrow"),
            remedy: "name it with `--config FILE`, or trust it with `fumehood trust FILE`".to_owned(),
        })
        .collect();
    if widens.is_empty() {
        return Ok(layered);
    }
    widens.sort_by_key(|flaw| flaw.line);
    Err(LayerError::Widens(widens))
}

/// The ways in which `spec` asks for less isolation than the flags alone would give.
fn choice_widens(flags: &EnvelopeSpec, spec: &EnvelopeSpec) -> Vec<(&'static str, String)> {
    let trust = |spec: &EnvelopeSpec| spec.trust.unwrap_or(Trust::Medium);
    let blast = |spec: &EnvelopeSpec| spec.blast.unwrap_or(Blast::Medium);
    let alone = choose(flags.level, trust(flags), blast(flags)).level;
    let together = choose(spec.level, trust(spec), blast(spec)).level;
    let mut found = Vec::new();
    if together < alone {
        let field = if spec.level.is_some() { "level" } else { "trust" };
        found.push((field, format!("the level `{together}` is weaker than `{alone}`")));
    }
    if trust(spec) > trust(flags) {
        found.push(("trust", "it trusts the input more".to_owned()));
    }
    if blast(spec) < blast(flags) {
        found.push(("blast", "it takes the worst case to be milder".to_owned()));
    }
    found
}

/// The entries of both, earlier first; what is in both stands once.
fn joined(mut earlier: Vec<String>, later: Vec<String>) -> Vec<String> {
    let fresh: Vec<String> = later.into_iter().filter(|entry| !earlier.contains(entry)).collect();
    earlier.extend(fresh);
    earlier
}
