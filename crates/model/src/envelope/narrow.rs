//! A child can only narrow.

use super::narrow_network::{widen_network, widen_secrets};
use super::{Cleanup, Envelope, Filesystem, Flaw, Privilege, Resources, Root, Variable, Workspace};
use crate::enforcement::Clause;
use crate::quantity::{show_bytes, show_cpus, show_duration};
use crate::text::shown;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Why a child's envelope was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NarrowError {
    Flawed(Vec<Flaw>),
    /// The clauses in which the child asks for more than its parent has, with what it asks for.
    Widens(Vec<(Clause, String)>),
}

/// One thing in which a child asks for more than its parent has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Widening {
    pub clause: Clause,
    /// The field, as written in a file.
    pub field: &'static str,
    /// What it asks for, against what there is.
    pub what: String,
}

// === impl Envelope ===

impl Envelope {
    /// `child`, if it asks for nothing that `self` does not hold.
    pub fn narrow(&self, child: Self) -> Result<Self, NarrowError> {
        let widenings = self.widenings(&child);
        if widenings.is_empty() {
            return Ok(child);
        }
        let named = widenings.into_iter().map(|w| (w.clause, format!("{}: {}", w.field, w.what)));
        Err(NarrowError::Widens(named.collect()))
    }

    /// Everything in which `child` asks for more than `self` holds; empty where it is contained.
    pub fn widenings(&self, child: &Self) -> Vec<Widening> {
        // Taken apart in full, so that a new clause can not be forgotten here.
        let Self { filesystem, network, privilege, environment, secrets, resources, cleanup } = child;
        let mut found = Vec::new();
        widen_filesystem(&self.filesystem, filesystem, &mut found);
        widen_network(&self.network, network, &mut found);
        widen_privilege(&self.privilege, privilege, &mut found);
        for variable in environment.iter().filter(|variable| !self.environment.contains(variable)) {
            let (field, name) = match variable {
                Variable::Copy(name) => ("credentials.env", name),
                Variable::Set(name, _) => ("credentials.set", name),
            };
            found.push(Widening::new(
                Clause::Credentials,
                field,
                format!("the variable `{}` is added", shown(name)),
            ));
        }
        widen_secrets(&self.secrets, secrets, &mut found);
        widen_resources(&self.resources, resources, &mut found);
        match (&self.cleanup, cleanup) {
            (Cleanup::RemoveAll, Cleanup::Remove) => found.push(Widening::new(
                Clause::Cleanup,
                "cleanup.keep-layer",
                "the layer would be kept, where it is to be removed".to_owned(),
            )),
            (Cleanup::Remove, Cleanup::Remove | Cleanup::RemoveAll)
            | (Cleanup::RemoveAll, Cleanup::RemoveAll) => {}
        }
        found
    }
}

// === impl NarrowError ===

impl fmt::Display for NarrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = match self {
            Self::Flawed(flaws) => flaws.iter().map(Flaw::to_string).collect(),
            Self::Widens(clauses) => {
                clauses.iter().map(|(clause, what)| format!("the {clause} clause widens: {what}")).collect()
            }
        };
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for NarrowError {}

// === impl Widening ===

impl Widening {
    pub(super) fn new(clause: Clause, field: &'static str, what: String) -> Self {
        Self { clause, field, what }
    }
}

fn widen_filesystem(parent: &Filesystem, child: &Filesystem, found: &mut Vec<Widening>) {
    let Filesystem { root, workspace, mounts, inputs, output, caches, session } = child;
    let mut add = |field, what| found.push(Widening::new(Clause::Filesystem, field, what));
    let text = |path: &Path| shown(&path.to_string_lossy());
    if parent.root != *root {
        let what = match root {
            Root::HostSystem => "the host's system folders are not what the parent stands on".to_owned(),
            Root::Image(image) => {
                format!(
                    "the image `{}` ({}) is another root than the parent's",
                    shown(&image.name),
                    image.digest
                )
            }
            Root::Directory(image) => format!("the root `{}` is another than the parent's", text(image)),
        };
        add("filesystem.image", what);
    }
    widen_workspace(parent.workspace.as_ref(), workspace.as_ref(), &mut add);
    for mount in mounts {
        let held = parent
            .mounts
            .iter()
            .any(|held| held.source == mount.source && held.at == mount.at && held.access >= mount.access);
        if !held {
            add("filesystem.read-only", format!("a view of `{}` is added", text(&mount.source)));
        }
    }
    for input in inputs.iter().filter(|input| !parent.inputs.contains(input)) {
        add("filesystem.inputs", format!("the input `{}` is added", text(&input.source)));
    }
    if let Some(folder) = output.as_deref().filter(|folder| parent.output.as_deref() != Some(folder)) {
        add("filesystem.output", format!("outputs would be collected into `{}`", text(folder)));
    }
    for cache in caches.iter().filter(|cache| !parent.caches.contains(cache)) {
        add("filesystem.caches", format!("the cache `{}` is added", shown(&cache.to_string())));
    }
    if let Some(name) = session.as_deref().filter(|name| parent.session.as_deref() != Some(name)) {
        add("filesystem.session", format!("the session `{}` is joined", shown(name)));
    }
}

fn widen_workspace(
    parent: Option<&Workspace>,
    child: Option<&Workspace>,
    add: &mut impl FnMut(&'static str, String),
) {
    let Some(child) = child else { return };
    let Some(held) = parent.filter(|held| held.source == child.source) else {
        let source = shown(&child.source.to_string_lossy());
        return add("filesystem.workspace", format!("the workspace `{source}` is added"));
    };
    if child.mode > held.mode {
        add(
            "filesystem.workspace-mode",
            format!("`{}` is more than `{}`", child.mode.name(), held.mode.name()),
        );
    }
}

fn widen_privilege(parent: &Privilege, child: &Privilege, found: &mut Vec<Widening>) {
    let Privilege { uid, syscalls } = child;
    if *uid != parent.uid {
        let what = format!("the user `{uid}` is another than `{}`", parent.uid);
        found.push(Widening::new(Clause::Privilege, "privilege.user", what));
    }
    if *syscalls > parent.syscalls {
        let what = format!("the profile `{}` is more than `{}`", syscalls.name(), parent.syscalls.name());
        found.push(Widening::new(Clause::Privilege, "privilege.syscalls", what));
    }
}

fn widen_resources(parent: &Resources, child: &Resources, found: &mut Vec<Widening>) {
    let Resources {
        memory_bytes,
        cpu_millis,
        processes,
        disk_bytes,
        file_size_bytes,
        open_files,
        timeout,
        output_bytes,
    } = child;
    let mut add = |field, asked: String, held: String| {
        found.push(Widening::new(Clause::Resources, field, format!("`{asked}` is more than `{held}`")));
    };
    for (field, asked, held) in [
        ("resources.memory", *memory_bytes, parent.memory_bytes),
        ("resources.disk", *disk_bytes, parent.disk_bytes),
        ("resources.file-size", *file_size_bytes, parent.file_size_bytes),
        ("resources.output", *output_bytes, parent.output_bytes),
    ] {
        if asked > held {
            let (more, less) = (show_bytes(asked), show_bytes(held));
            // Amounts that look alike when they are cut for people are given in full.
            let alike = more == less;
            add(
                field,
                if alike { asked.to_string() } else { more },
                if alike { held.to_string() } else { less },
            );
        }
    }
    for (field, asked, held) in [
        ("resources.processes", *processes, parent.processes),
        ("resources.open-files", *open_files, parent.open_files),
    ] {
        if asked > held {
            add(field, asked.to_string(), held.to_string());
        }
    }
    if *cpu_millis > parent.cpu_millis {
        add("resources.cpus", show_cpus(*cpu_millis), show_cpus(parent.cpu_millis));
    }
    // No wall clock at all is the most that there is.
    let ends = |timeout: &Option<Duration>| timeout.unwrap_or(Duration::MAX);
    if ends(timeout) > ends(&parent.timeout) {
        let text = |timeout: &Option<Duration>| timeout.map_or_else(|| "no end".to_owned(), show_duration);
        add("resources.timeout", text(timeout), text(&parent.timeout));
    }
}
