//! What holds for every spec and every envelope.

use super::*;
use crate::enforcement::Clause;
use crate::image::ImageRoot;
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use std::path::PathBuf;
use std::time::Duration;

// Few values of each, so that two envelopes often agree and often differ.
fn mode() -> impl Strategy<Value = WorkspaceMode> + Clone {
    select(vec![WorkspaceMode::ReadOnly, WorkspaceMode::CopyOnWrite, WorkspaceMode::ReadWrite])
}

fn filesystem() -> impl Strategy<Value = Filesystem> + Clone {
    let path = |text: &str| PathBuf::from(text);
    let image = |hex: &str| {
        let digest = format!("sha256:{}", hex.repeat(64));
        Root::Image(ImageRoot { name: "docker.io/library/x:1".to_owned(), digest, folder: path("/store/x") })
    };
    let folders = [Root::Directory(path("/img/a")), Root::Directory(path("/img/b"))];
    let root = select([vec![Root::HostSystem, image("a"), image("b")], folders.to_vec()].concat());
    let workspace = option::of(
        (select(vec![path("/w/a"), path("/w/b")]), mode())
            .prop_map(|(source, mode)| Workspace { source, mode }),
    );
    let mount = |source: &str, at: &str| Mount { source: path(source), at: path(at), access: Access::Read };
    let mounts = subsequence(vec![mount("/m/a", "/a"), mount("/m/b", "/b"), mount("/m/c", "/c")], 0..=3);
    let input = |source: &str, at: &str| Input { source: path(source), at: path(at) };
    let inputs = subsequence(vec![input("/i/a", "/workspace/a"), input("/i/b", "/in/b")], 0..=2);
    let output = option::of(select(vec![path("/o/a"), path("/o/b")]));
    let caches =
        subsequence(vec![Cache::Npm, Cache::Pip, Cache::Cargo, Cache::Directory(path("/cache"))], 0..=4);
    let session = option::of(select(vec!["s".to_owned(), "t".to_owned()]));
    (root, workspace, mounts, inputs, output, caches, session).prop_map(
        |(root, workspace, mounts, inputs, output, caches, session)| Filesystem {
            root,
            workspace,
            mounts,
            inputs,
            output,
            caches,
            session,
        },
    )
}

fn resources() -> impl Strategy<Value = Resources> + Clone {
    let step = 1u64..4;
    let small = 1u32..4;
    (
        (step.clone(), small.clone(), small.clone(), step.clone()),
        (step.clone(), small, option::of((1u64..4).prop_map(Duration::from_secs)), step),
    )
        .prop_map(
            |(
                (memory_bytes, cpu_millis, processes, disk_bytes),
                (file_size_bytes, open_files, timeout, output_bytes),
            )| {
                Resources {
                    memory_bytes,
                    cpu_millis,
                    processes,
                    disk_bytes,
                    file_size_bytes,
                    open_files,
                    timeout,
                    output_bytes,
                }
            },
        )
}

fn envelope() -> impl Strategy<Value = Envelope> + Clone {
    let set = |name: &str, value: &str| Variable::Set(name.to_owned(), value.to_owned());
    let environment = subsequence(vec![Variable::Copy("A".to_owned()), set("B", "1"), set("B", "2")], 0..=3);
    let privilege = (select(vec![1000u32, 1001]), select(vec![Syscalls::Default, Syscalls::Debug]))
        .prop_map(|(uid, syscalls)| Privilege { uid, syscalls });
    let cleanup = select(vec![Cleanup::Remove, Cleanup::RemoveAll]);
    (filesystem(), privilege, environment, resources(), cleanup).prop_map(
        |(filesystem, privilege, environment, resources, cleanup)| Envelope {
            filesystem,
            network: Network::default(),
            secrets: Vec::new(),
            privilege,
            environment,
            resources,
            cleanup,
        },
    )
}

/// A child that is contained in `parent`, by the choices in `keep`.
fn contained(parent: &Envelope, keep: &[bool]) -> Envelope {
    let mut child = parent.clone();
    let mut choices = keep.iter().copied().cycle();
    let mut choice = || choices.next().unwrap_or(false);
    child.filesystem.mounts.retain(|_| choice());
    child.filesystem.inputs.retain(|_| choice());
    child.filesystem.caches.retain(|_| choice());
    child.environment.retain(|_| choice());
    child.filesystem.output = child.filesystem.output.filter(|_| choice());
    child.filesystem.session = child.filesystem.session.filter(|_| choice());
    if choice() {
        child.filesystem.workspace = None;
    } else if let Some(workspace) = &mut child.filesystem.workspace {
        workspace.mode = WorkspaceMode::ReadOnly;
    }
    if choice() {
        child.privilege.syscalls = Syscalls::Default;
        child.cleanup = Cleanup::RemoveAll;
        child.resources.memory_bytes = 1;
        child.resources.processes = 1;
        child.resources.timeout = Some(Duration::from_millis(1));
    }
    child
}

/// One widening of each kind: a name, the clause it is in, and what does it.
type Widen = (&'static str, Clause, fn(&mut Envelope));

const WIDENINGS: [Widen; 22] = [
    ("filesystem.image", Clause::Filesystem, |e| {
        e.filesystem.root = Root::Directory(PathBuf::from("/img/new"))
    }),
    ("filesystem.workspace", Clause::Filesystem, |e| {
        e.filesystem.workspace =
            Some(Workspace { source: PathBuf::from("/w/new"), mode: WorkspaceMode::ReadOnly });
    }),
    ("filesystem.workspace-mode", Clause::Filesystem, |e| {
        if let Some(workspace) = &mut e.filesystem.workspace {
            workspace.mode = WorkspaceMode::ReadWrite;
        }
    }),
    ("filesystem.read-only", Clause::Filesystem, |e| {
        let at = PathBuf::from("/new");
        e.filesystem.mounts.push(Mount { source: PathBuf::from("/m/new"), at, access: Access::Read });
    }),
    ("filesystem.read-only", Clause::Filesystem, |e| {
        // A known source at another place is another view.
        let at = PathBuf::from("/elsewhere");
        e.filesystem.mounts.push(Mount { source: PathBuf::from("/m/a"), at, access: Access::Read });
    }),
    ("filesystem.inputs", Clause::Filesystem, |e| {
        e.filesystem.inputs.push(Input { source: PathBuf::from("/i/new"), at: PathBuf::from("/in/new") });
    }),
    ("filesystem.output", Clause::Filesystem, |e| e.filesystem.output = Some(PathBuf::from("/o/new"))),
    ("filesystem.caches", Clause::Filesystem, |e| {
        e.filesystem.caches.push(Cache::Directory(PathBuf::from("/cache/new")));
    }),
    ("filesystem.session", Clause::Filesystem, |e| e.filesystem.session = Some("new".to_owned())),
    ("privilege.user", Clause::Privilege, |e| e.privilege.uid += 7),
    ("privilege.syscalls", Clause::Privilege, |e| e.privilege.syscalls = Syscalls::Debug),
    ("credentials.env", Clause::Credentials, |e| e.environment.push(Variable::Copy("NEW".to_owned()))),
    ("credentials.set", Clause::Credentials, |e| {
        e.environment.push(Variable::Set("A".to_owned(), "new".to_owned()));
    }),
    ("resources.memory", Clause::Resources, |e| e.resources.memory_bytes += 1),
    ("resources.cpus", Clause::Resources, |e| e.resources.cpu_millis += 1),
    ("resources.processes", Clause::Resources, |e| e.resources.processes += 1),
    ("resources.disk", Clause::Resources, |e| e.resources.disk_bytes += 1),
    ("resources.file-size", Clause::Resources, |e| e.resources.file_size_bytes += 1),
    ("resources.open-files", Clause::Resources, |e| e.resources.open_files += 1),
    ("resources.timeout", Clause::Resources, |e| {
        e.resources.timeout = e.resources.timeout.and_then(|time| time.checked_sub(Duration::MAX));
    }),
    ("resources.output", Clause::Resources, |e| e.resources.output_bytes += 1),
    ("cleanup.keep-layer", Clause::Cleanup, |e| e.cleanup = Cleanup::Remove),
];

proptest! {
    #[test]
    fn an_envelope_contains_itself(envelope in envelope()) {
        prop_assert_eq!(envelope.narrow(envelope.clone()), Ok(envelope));
    }

    #[test]
    fn containment_is_transitive(one in envelope(), two in envelope(), keep in vec(any::<bool>(), 8), again in vec(any::<bool>(), 8)) {
        let child = contained(&one, &keep);
        let grandchild = contained(&child, &again);
        prop_assert_eq!(one.widenings(&child), vec![]);
        prop_assert_eq!(child.widenings(&grandchild), vec![]);
        prop_assert_eq!(one.widenings(&grandchild), vec![]);
        // And for any three at all.
        if one.widenings(&two).is_empty() && two.widenings(&child).is_empty() {
            prop_assert_eq!(one.widenings(&child), vec![]);
        }
    }

    #[test]
    fn what_narrow_allows_is_never_larger(parent in envelope(), child in envelope()) {
        let Ok(narrow) = parent.narrow(child.clone()) else { return Ok(()) };
        prop_assert_eq!(&narrow, &child);
        let (of, by) = (&narrow.filesystem, &parent.filesystem);
        prop_assert!(of.mounts.iter().all(|mount| by.mounts.contains(mount)));
        prop_assert!(of.inputs.iter().all(|input| by.inputs.contains(input)));
        prop_assert!(of.caches.iter().all(|cache| by.caches.contains(cache)));
        prop_assert!(of.output.is_none() || of.output == by.output);
        prop_assert!(of.session.is_none() || of.session == by.session);
        prop_assert_eq!(&of.root, &by.root);
        if let Some(workspace) = &of.workspace {
            let held = by.workspace.as_ref().expect("a workspace is never added");
            prop_assert!(workspace.source == held.source && workspace.mode <= held.mode);
        }
        let (of, by) = (&narrow.resources, &parent.resources);
        prop_assert!(of.memory_bytes <= by.memory_bytes && of.cpu_millis <= by.cpu_millis);
        prop_assert!(of.processes <= by.processes && of.open_files <= by.open_files);
        prop_assert!(of.disk_bytes <= by.disk_bytes && of.file_size_bytes <= by.file_size_bytes);
        prop_assert!(of.output_bytes <= by.output_bytes);
        prop_assert!(by.timeout.is_none() || of.timeout.is_some_and(|time| Some(time) <= by.timeout));
        prop_assert!(narrow.environment.iter().all(|variable| parent.environment.contains(variable)));
        prop_assert!(narrow.privilege.uid == parent.privilege.uid && narrow.privilege.syscalls <= parent.privilege.syscalls);
        prop_assert!(parent.cleanup == Cleanup::Remove || narrow.cleanup == Cleanup::RemoveAll);
    }

    #[test]
    fn every_widening_is_refused_under_its_clause(parent in envelope(), keep in vec(any::<bool>(), 8), which in select(WIDENINGS.to_vec())) {
        let (field, clause, widen) = which;
        let mut child = contained(&parent, &keep);
        // The parent's own size, made larger by one step.
        child.resources = parent.resources.clone();
        let before = child.clone();
        widen(&mut child);
        let nothing_to_widen = child == before || parent.widenings(&before) != vec![]
            || (field == "privilege.syscalls" && parent.privilege.syscalls == Syscalls::Debug)
            || (field == "cleanup.keep-layer" && parent.cleanup == Cleanup::Remove)
            || (field == "filesystem.workspace-mode"
                && parent.filesystem.workspace.as_ref().is_some_and(|held| held.mode == WorkspaceMode::ReadWrite));
        if !nothing_to_widen {
            let found = parent.widenings(&child);
            prop_assert!(found.iter().any(|w| w.clause == clause && w.field == field), "{field}: {found:?}");
            prop_assert!(matches!(parent.narrow(child), Err(NarrowError::Widens(clauses)) if clauses.iter().any(|(c, _)| *c == clause)));
        }
    }

    #[test]
    fn check_never_panics_and_never_refuses_without_a_reason(spec in spec()) {
        match Envelope::check(&spec, &Defaults::for_tests()) {
            Ok(envelope) => prop_assert_eq!(envelope.widenings(&envelope), vec![]),
            Err(flaws) => prop_assert!(!flaws.is_empty() && flaws.iter().all(|flaw| !flaw.remedy.is_empty())),
        }
    }

    #[test]
    fn a_checked_envelope_holds_its_invariants(spec in spec()) {
        let Ok(envelope) = Envelope::check(&spec, &Defaults::for_tests()) else { return Ok(()) };
        let files = envelope.filesystem();
        let host = files.mounts.iter().map(|m| &m.source).chain(files.inputs.iter().map(|i| &i.source));
        prop_assert!(host.into_iter().all(|path| path.is_absolute()));
        let places: Vec<_> = files.mounts.iter().map(|m| &m.at).chain(files.inputs.iter().map(|i| &i.at)).collect();
        for (index, place) in places.iter().enumerate() {
            let text = place.to_str().expect("UTF-8");
            prop_assert!(text.starts_with('/') && text.len() > 1 && !text.split('/').any(|name| name == "." || name == ".."));
            prop_assert!(!place.starts_with("/proc") && !place.starts_with("/dev") && !place.starts_with("/sys"));
            prop_assert!(places.iter().skip(index + 1).all(|other| other != place));
        }
        prop_assert!(envelope.resources().memory_bytes > 0 && envelope.resources().cpu_millis > 0);
    }

    #[test]
    fn a_found_file_never_widens(flags in spec(), text in file_text()) {
        let defaults = Defaults::for_tests();
        let Ok(file) = file::parse(&text) else { return Ok(()) };
        let file = file.rebased(std::path::Path::new("/home/ann/evil"));
        if let Ok(layered) = found_file(&flags, &file, &defaults) {
            let alone = Envelope::check(&flags, &defaults).expect("flags alone are good");
            prop_assert_eq!(alone.widenings(&layered.envelope), vec![]);
        }
    }

    #[test]
    fn any_text_is_read_or_refused_with_a_line(text in prop_oneof![any::<String>(), file_text()]) {
        match file::parse(&text) {
            Ok(file) => drop(file.check(&Defaults::for_tests())),
            Err(flaws) => {
                let lines = text.lines().count().max(1) + 1;
                prop_assert!(!flaws.is_empty());
                prop_assert!(flaws.iter().all(|flaw| flaw.line.is_none_or(|line| (1..=lines).contains(&line))), "{flaws:?}");
                prop_assert!(flaws.iter().all(|flaw| !flaw.in_file("f").chars().any(char::is_control)));
            }
        }
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[a-c./:~]{0,8}",
        "(/?(a|b|\\.\\.|\\.|proc|home|ann|work|workspace|etc|tmp)){0,5}(:(/?(a|b|\\.\\.|dev|workspace)){0,3})?",
    ]
}

fn amount() -> impl Strategy<Value = Option<String>> {
    option::of(prop_oneof!["[0-9]{1,4}[KMG]?", "-?[0-9.]{0,30}[a-zA-Z]{0,3}", any::<String>()])
}

fn spec() -> impl Strategy<Value = EnvelopeSpec> {
    let texts = || vec(text(), 0..4);
    let files = (option::weighted(0.2, text()), option::of(text()), option::of(mode()), texts(), texts());
    let more = (
        option::weighted(0.2, text()),
        vec(prop_oneof![Just("npm".to_owned()), text()], 0..3),
        option::weighted(0.2, text()),
    );
    let filesystem = (files, more).prop_map(
        |((image, workspace, workspace_mode, read_only, inputs), (output, caches, session))| FilesystemSpec {
            image,
            workspace,
            workspace_mode,
            read_only,
            inputs,
            output,
            caches,
            session,
        },
    );
    let resources = (
        amount(),
        option::weighted(0.2, "[0-9.]{1,3}"),
        option::weighted(0.2, any::<u32>()),
        amount(),
        amount(),
    )
        .prop_map(|(memory, cpus, processes, disk, timeout)| ResourcesSpec {
            memory,
            cpus,
            processes,
            disk,
            timeout,
            ..ResourcesSpec::default()
        });
    let credentials = (vec("[A-C=]{1,2}", 0..3), btree_map("[A-C=]{1,2}", text(), 0..2))
        .prop_map(|(env, set)| CredentialsSpec { env, set, secrets: Vec::new() });
    let quiet = prop_oneof![
        1 => (filesystem, resources, credentials).boxed(),
        1 => Just((FilesystemSpec::default(), ResourcesSpec::default(), CredentialsSpec::default())).boxed(),
    ];
    quiet.prop_map(|(filesystem, resources, credentials)| EnvelopeSpec {
        filesystem,
        resources,
        credentials,
        ..EnvelopeSpec::default()
    })
}

/// Files that are nearly right.
fn file_text() -> impl Strategy<Value = String> {
    let line = select(vec![
        "[filesystem]",
        "[resources]",
        "[credentials]",
        "[credentials.set]",
        "[privilege]",
        "[cleanup]",
        "[network]",
        "[nothing]",
        "memory = \"1G\"",
        "memory = 0",
        "memory = 1_000_000_000",
        "cpus = 1.5",
        "cpus = \"9\"",
        "processes = -1",
        "processes = \"many\"",
        "timeout = \"5s\"",
        "timeout = nan",
        "disk = 1e400",
        "workspace = \".\"",
        "workspace-mode = \"read-only\"",
        "workspace-mode = \"read-write\"",
        "read-only = [\"a\", \"/proc\"]",
        "read_only = []",
        "inputs = [1, \"x\"]",
        "env = [\"A\", \"A\"]",
        "A = \"\\u0000\"",
        "keep-layer = false",
        "level = \"gvisor\"",
        "trust = \"high\"",
        "blast = \"low\"",
        "\"\\u001b[2J\" = 1",
        "x = { y = { z = 1 } }",
        "a.b.c = 2",
        "= =",
        "\"",
        "user = 0",
        "output = \"1M\"",
        "file-size = \"1K\"",
        "open-files = 70000",
        "caches = [\"npm\"]",
        "session = \"../x\"",
    ]);
    vec(line, 0..8).prop_map(|lines| lines.join("\n"))
}
