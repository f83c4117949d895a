//! One spec laid over another, and what a file that was found by itself may say.
//!
//! Policy never comes from the attacker's folder: a file that nobody named or trusted may only
//! narrow what the flags alone would give.

use super::file::{FileFlaw, Located};
use super::paths;
use super::{
    CleanupSpec, CredentialsSpec, Defaults, Envelope, EnvelopeSpec, FilesystemSpec, Flaw, NetworkSpec,
    PrivilegeSpec, ResourcesSpec,
};
use crate::image;
use crate::level::{Blast, Trust, required};
use std::path::Path;

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
    /// The same with every relative host path joined to `folder`. Joining is not for callers: in
    /// `SRC:DEST` a colon in the name of the folder must not become the separator.
    #[must_use]
    pub fn rebased(mut self, folder: &Path) -> Self {
        let files = &mut self.filesystem;
        // The name of an image is the same everywhere.
        let root = files.image.as_mut().filter(|text| image::is_folder(text));
        for path in root.into_iter().chain(files.workspace.as_mut()).chain(files.output.as_mut()) {
            *path = paths::rebase(path, folder);
        }
        for entry in &mut files.read_only {
            *entry = paths::rebase_view(entry, folder);
        }
        for entry in &mut files.inputs {
            *entry = paths::rebase_input(entry, folder);
        }
        for entry in &mut self.network.authorities {
            *entry = paths::rebase_after(entry, "=", folder);
        }
        for entry in &mut self.credentials.secrets {
            *entry = paths::rebase_after(entry, "=file:", folder);
        }
        self
    }

    /// `flags` over `self`: a field that the flags have wins; lists are joined, those of `self`
    /// first. A variable that the flags name is theirs alone.
    #[must_use]
    pub fn overlay(self, flags: Self) -> Self {
        let Self { level, trust, blast, filesystem, network, privilege, credentials, resources, cleanup } =
            flags;
        Self {
            level: level.or(self.level),
            trust: trust.or(self.trust),
            blast: blast.or(self.blast),
            filesystem: self.filesystem.overlay(filesystem),
            network: self.network.overlay(network),
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

impl NetworkSpec {
    fn overlay(self, flags: Self) -> Self {
        let Self { net, allow, allow_cidr, resolve, presets, publish, limits, upstream, authorities } = flags;
        Self {
            net: net.or(self.net),
            allow: joined(self.allow, allow),
            allow_cidr: joined(self.allow_cidr, allow_cidr),
            resolve: joined(self.resolve, resolve),
            presets: joined(self.presets, presets),
            publish: joined(self.publish, publish),
            limits: joined(self.limits, limits),
            upstream: upstream.or(self.upstream),
            authorities: joined(self.authorities, authorities),
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
        Self { env: joined(self.env, flags.env), set: self.set, secrets: joined(self.secrets, flags.secrets) }
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
            what,
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
    let level = |spec: &EnvelopeSpec| spec.level.unwrap_or_else(|| required(trust(spec), blast(spec)));
    let (alone, together) = (level(flags), level(spec));
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

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::*;

    /// Flags as `run --workspace . --in data.csv --mem 1G --env LANG` gives them.
    fn flags() -> EnvelopeSpec {
        let text = |text: &str| text.to_owned();
        EnvelopeSpec {
            filesystem: FilesystemSpec {
                workspace: Some(text(".")),
                inputs: vec![text("data.csv")],
                ..FilesystemSpec::default()
            },
            credentials: CredentialsSpec { env: vec![text("LANG")], ..CredentialsSpec::default() },
            resources: ResourcesSpec { processes: Some(100), ..ResourcesSpec::default() },
            ..EnvelopeSpec::default()
        }
    }

    fn located(text: &str) -> Located {
        file::read(text, Path::new("/home/ann/work"), &Defaults::for_tests()).expect("the file is good")
    }

    #[test]
    fn a_found_file_may_lower_and_flags_win() {
        let file = located(
            "level = \"gvisor\"\ntrust = \"low\"\nblast = \"high\"\n[filesystem]\nworkspace-mode = \"read-only\"\n\
             [resources]\nmemory = \"64M\"\ntimeout = \"5s\"\noutput = \"1K\"\ndisk = \"1G\"\nprocesses = 7\n\
             [cleanup]\nkeep-layer = false\n",
        );
        // The input would land in the workspace, which the file makes read-only.
        let flags = EnvelopeSpec {
            filesystem: FilesystemSpec { inputs: Vec::new(), ..flags().filesystem },
            ..flags()
        };
        let layered = found_file(&flags, &file, &Defaults::for_tests()).expect("it only narrows");
        let resources = layered.envelope.resources();
        assert_eq!(resources.memory_bytes, 64 << 20);
        assert_eq!(resources.file_size_bytes, 1 << 30);
        assert_eq!(resources.processes, 100, "flags win");
        assert_eq!(layered.spec.level, Some(crate::level::Level::Gvisor));
    }

    #[test]
    fn a_found_file_may_add_nothing() {
        for (text, field) in [
            ("level = \"process\"", "level"),
            ("trust = \"high\"", "trust"),
            ("blast = \"low\"", "blast"),
            ("[filesystem]\nimage = \"/img\"", "filesystem.image"),
            ("[filesystem]\nworkspace-mode = \"read-write\"", "filesystem.workspace-mode"),
            ("[filesystem]\nread-only = [\"/srv\"]", "filesystem.read-only"),
            ("[filesystem]\ninputs = [\"/srv/key\"]", "filesystem.inputs"),
            ("[filesystem]\noutput = \"/srv/o\"", "filesystem.output"),
            ("[filesystem]\ncaches = [\"npm\"]", "filesystem.caches"),
            ("[filesystem]\nsession = \"s\"", "filesystem.session"),
            ("[privilege]\nuser = 1001", "privilege.user"),
            ("[privilege]\nsyscalls = \"debug\"", "privilege.syscalls"),
            ("[credentials]\nenv = [\"AWS_SECRET_ACCESS_KEY\"]", "credentials.env"),
            ("[credentials]\nset = { LD_PRELOAD = \"/x\" }", "credentials.set"),
            ("[resources]\nmemory = \"5G\"", "resources.memory"),
            ("[resources]\ntimeout = \"2m\"", "resources.timeout"),
            ("[resources]\noutput = \"11M\"", "resources.output"),
            ("[resources]\nopen-files = 5000", "resources.open-files"),
        ] {
            let mut flags = flags();
            // Read-write would refuse the input by itself, which is another matter.
            flags.filesystem.inputs.clear();
            let refused = found_file(&flags, &located(text), &Defaults::for_tests());
            let Err(LayerError::Widens(widens)) = refused else { panic!("{text}: {refused:?}") };
            let first = widens.first().expect("a reason");
            assert_eq!(first.field.as_deref(), Some(field));
            assert_eq!(first.line, Some(text.lines().count()));
            assert!(first.remedy.contains("--config") && first.remedy.contains("fumehood trust"));
            assert!(named_file(&flags, &located(text), &Defaults::for_tests()).is_ok(), "{text} by name");
        }
    }

    #[test]
    fn a_found_file_may_let_nothing_more_out() {
        let network = NetworkSpec {
            net: Some("proxy".to_owned()),
            limits: vec!["requests=10".to_owned()],
            ..NetworkSpec::default()
        };
        let flags = EnvelopeSpec { network, ..flags() };
        for (text, field) in [
            // By name it opens the address also where it is the host's own, which the public reach does not.
            ("[network]\nallow = [\"203.0.113.5:22\"]", "network.allow"),
            ("[network]\nallow = [\"10.0.0.1:22\"]", "network.allow"),
            ("[network]\nallow = [\"host.fumehood.internal:22\"]", "network.allow"),
            ("[network]\nallow-cidr = [\"10.0.0.0/8:22\"]", "network.allow-cidr"),
            (
                "[network]\nallow = [\"db.example.com\"]\nresolve = [\"db.example.com=10.0.0.0/8\"]",
                "network.resolve",
            ),
            ("[network]\npublish = [\"8080\"]", "network.publish"),
        ] {
            let refused = found_file(&flags, &located(text), &Defaults::for_tests());
            let Err(LayerError::Widens(widens)) = refused else { panic!("{text}: {refused:?}") };
            assert_eq!(widens.first().and_then(|flaw| flaw.field.as_deref()), Some(field), "{text}");
        }
        let lifted = located("[network]\nallow = [\"api.example.com\"]\nlimits = [\"requests=11\"]");
        let layered = found_file(&flags, &lifted, &Defaults::for_tests()).expect("the lower one holds, too");
        let egress = layered.envelope.network().egress.clone().expect("there is a network");
        assert!(egress.ceilings.iter().any(|one| one.most == 10));
    }

    #[test]
    fn a_found_workspace_is_an_addition() {
        let refused = found_file(
            &EnvelopeSpec::default(),
            &located("[filesystem]\nworkspace = \".\"\n"),
            &Defaults::for_tests(),
        );
        let Err(LayerError::Widens(widens)) = refused else { panic!("{refused:?}") };
        assert_eq!(widens.first().and_then(|flaw| flaw.line), Some(2));
    }

    #[test]
    fn lists_are_joined_and_a_flag_takes_its_variable_over() {
        let file = located(
            "[filesystem]\nread-only = [\"/srv\"]\n[credentials]\nset = { LANG = \"C\", X = \"1\" }\n",
        );
        let flags = EnvelopeSpec {
            filesystem: FilesystemSpec { read_only: vec!["/opt/x".to_owned()], ..flags().filesystem },
            ..flags()
        };
        let layered = named_file(&flags, &file, &Defaults::for_tests()).expect("both are good");
        assert_eq!(layered.envelope.filesystem().mounts.len(), 2);
        assert_eq!(layered.spec.credentials.env, ["LANG"]);
        assert_eq!(layered.spec.credentials.set.len(), 1);
    }

    #[test]
    fn the_flaw_is_laid_at_the_door_of_its_author() {
        let bad_flags = EnvelopeSpec {
            resources: ResourcesSpec { memory: Some("x".to_owned()), ..flags().resources },
            ..flags()
        };
        let file = located("");
        assert!(matches!(found_file(&bad_flags, &file, &Defaults::for_tests()), Err(LayerError::Flags(_))));
        let bad_file = file::parse("[resources]\nmemory = \"x\"").expect("it is TOML");
        assert!(matches!(found_file(&flags(), &bad_file, &Defaults::for_tests()), Err(LayerError::File(_))));
    }

    #[test]
    fn a_colon_in_the_folder_is_no_separator() {
        let files = FilesystemSpec {
            read_only: vec!["lib".to_owned(), "x:y".to_owned()],
            inputs: vec!["data.csv".to_owned()],
            ..FilesystemSpec::default()
        };
        let spec =
            EnvelopeSpec { filesystem: files, ..EnvelopeSpec::default() }.rebased(Path::new("/srv/a:b"));
        assert_eq!(spec.clone().rebased(Path::new("/elsewhere")), spec, "once is enough");
        let envelope = Envelope::check(&spec, &Defaults::for_tests()).expect("all are good");
        let sources: Vec<_> =
            envelope.filesystem().mounts.iter().map(|mount| mount.source.to_str()).collect();
        assert_eq!(sources, [Some("/srv/a:b/lib"), Some("/srv/a:b/x")]);
        let inputs: Vec<_> = envelope.filesystem().inputs.iter().map(|input| input.source.to_str()).collect();
        assert_eq!(inputs, [Some("/srv/a:b/data.csv")]);
    }
}
