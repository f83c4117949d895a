//! The process level where namespaces are forbidden: the host's own tree, cut by Landlock.
//!
//! Nothing is mounted, so nothing is where it is at other levels: `/workspace`, `/out`, HOME and `/tmp` are folders
//! of the run's own on disk, or the host folder that is shown, and the command is told by its working directory and
//! its variables. What can not be held in this way is refused.
//!
//! **Invariant:** nothing here is writable but the run's own folder, its session's HOME, its caches and a workspace
//! that is written through.

use crate::broker::Broker;
use crate::etc;
use crate::identity::Identity;
use crate::root::c_path;
use crate::shape::SCOPES;
use fumehood_backend::Placement;
use fumehood_model::enforcement::{Clause, Unenforceable};
use fumehood_model::envelope::{Envelope, Root, WorkspaceMode};
use fumehood_model::exec::ExecRequest;
use fumehood_sys::host;
use fumehood_sys::landlock::{Access, Ruleset};
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink,
};
use std::path::{Path, PathBuf};

/// The host's system folders.
const SYSTEM: &[&str] = &["/usr", "/opt", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"];
/// Of the host's `/etc`, beside what every level shows: who is who, which programs look up for themselves.
const NAMES: &[&str] = &["passwd", "group", "nsswitch.conf"];
/// The devices of a minimal `/dev`. Terminals are made outside.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// How many processors there are.
const PROCESSORS: &str = "/sys/devices/system/cpu";
/// Of `/proc`, what is not about any process. Landlock could not tell a process's own part from another's.
const FACTS: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/filesystems",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/uptime",
    "/proc/version",
    "/proc/vmstat",
    "/proc/sys/kernel/cap_last_cap",
    "/proc/sys/kernel/ngroups_max",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/random/uuid",
    "/proc/sys/vm/overcommit_memory",
];

/// What is handed over to a run by name.
const WORKSPACE: &str = "/workspace";
const OUT: &str = "/out";
const TMP: &str = "/tmp";

/// Where the places of a sandbox are on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folders {
    base: PathBuf,
    workspace: PathBuf,
    home: PathBuf,
    home_at: PathBuf,
}

/// What a launch holds while the sandbox lives.
#[derive(Debug)]
pub(crate) struct Held {
    /// The kernel makes a file of `/proc` anew when nobody has it, and a rule is about the one that it was given.
    _facts: Vec<File>,
    pub(crate) output: Option<OwnedFd>,
    /// Sets modes and times where the uid is not the sandbox's own.
    pub(crate) broker: Option<Broker>,
}

/// Whether this shape can hold an envelope.
pub(crate) fn check(
    envelope: &Envelope,
    placement: &Placement,
    landlock: u32,
    why: &str,
) -> Result<(), Unenforceable> {
    let cannot = |clause, what: &str, remedy: &str| {
        let why = format!("{what}, because {why}");
        Err(Unenforceable {
            clause,
            why,
            remedy: format!("{remedy}, or allow namespaces here: `fumehood doctor` says how"),
        })
    };
    let files = envelope.filesystem();
    let own = host::euid() == 0;
    if landlock < SCOPES {
        let what = format!("this kernel's Landlock (version {landlock}) can not keep signals inside");
        return cannot(Clause::Privilege, &what, "boot Linux 6.12 or later");
    }
    if matches!(files.root, Root::Directory(_)) {
        return cannot(Clause::Filesystem, "an image can not be shown as `/`", "leave `--image` out");
    }
    match files.workspace.as_ref().map(|workspace| workspace.mode) {
        Some(WorkspaceMode::CopyOnWrite) => {
            return cannot(
                Clause::Filesystem,
                "a workspace can not be copy-on-write",
                "show it with `:ro`, or let it be written with `:rw`",
            );
        }
        Some(WorkspaceMode::ReadWrite) if own => {
            return cannot(
                Clause::Filesystem,
                "a workspace can not be written by another uid than its owner's",
                "show it with `:ro`, run as its owner",
            );
        }
        Some(WorkspaceMode::ReadWrite | WorkspaceMode::ReadOnly) | None => {}
    }
    if placement.living.as_ref().is_some_and(|living| living.warm.is_some()) {
        return cannot(
            Clause::Filesystem,
            "a prepared interpreter can not be shown",
            "make it without, or use the level `container`",
        );
    }
    if let Some(mount) = files.mounts.iter().find(|mount| mount.at != mount.source) {
        let what = format!("`{}` can not be shown at `{}`", mount.source.display(), mount.at.display());
        return cannot(Clause::Filesystem, &what, "show it at its own path");
    }
    let folders = Folders::of(envelope, placement);
    let stray = files.inputs.iter().find(|input| folders.scratch(&input.at).is_none());
    if let Some(input) = stray {
        let what = format!("nothing can be put at `{}`", input.at.display());
        return cannot(
            Clause::Filesystem,
            &what,
            "put inputs beneath `/workspace`, `/tmp` or HOME, and show no workspace",
        );
    }
    if own && (files.session.is_some() || !files.caches.is_empty()) {
        return cannot(
            Clause::Filesystem,
            "a session or a cache can not be another uid's than its owner's",
            "leave `--session` and `--cache` out, run as an ordinary user",
        );
    }
    if let Some((_, at)) = placement.caches.iter().find(|(_, at)| folders.scratch(at).is_none()) {
        let what = format!("a cache can not be at `{}`", at.display());
        return cannot(Clause::Filesystem, &what, "name a place beneath HOME or `/tmp`");
    }
    if placement.gateway.is_some() || !envelope.network().publish.is_empty() {
        return cannot(
            Clause::Network,
            "no network can be made whose other end is ours",
            "leave the network rules out",
        );
    }
    Ok(())
}

/// Everything that may be read, used and written. What is not named is denied.
pub(crate) fn ruleset(envelope: &Envelope, placement: &Placement, landlock: u32) -> Ruleset {
    let mut ruleset = Ruleset::new(landlock);
    let mut allow = |path: &Path, access| ruleset.allow(c_path(path), access);
    for path in SYSTEM.iter().chain([&PROCESSORS]).chain(FACTS) {
        allow(Path::new(path), Access::Read);
    }
    for name in etc::COPIED.iter().chain(NAMES) {
        allow(&Path::new("/etc").join(name), Access::Read);
    }
    for path in DEVICES {
        allow(Path::new(path), Access::Use);
    }
    for path in &placement.toolchains {
        allow(path, Access::Read);
    }
    let files = envelope.filesystem();
    for mount in &files.mounts {
        allow(&mount.source, Access::Read);
    }
    if let Some(workspace) = &files.workspace {
        let access = match workspace.mode {
            WorkspaceMode::ReadWrite => Access::Write,
            WorkspaceMode::ReadOnly | WorkspaceMode::CopyOnWrite => Access::Read,
        };
        allow(&workspace.source, access);
    }
    allow(&placement.scratch, Access::Write);
    for path in placement.home.iter().chain(placement.caches.iter().map(|(host, _)| host)) {
        allow(path, Access::Write);
    }
    ruleset
}

// === impl Folders ===

impl Folders {
    pub(crate) fn of(envelope: &Envelope, placement: &Placement) -> Self {
        let base = placement.scratch.clone();
        let workspace = envelope.filesystem().workspace.as_ref();
        Self {
            workspace: workspace.map_or_else(|| base.join("workspace"), |workspace| workspace.source.clone()),
            home: placement.home.clone().unwrap_or_else(|| base.join("home")),
            home_at: placement.home_at.clone(),
            base,
        }
    }

    /// The command's first working directory.
    pub(crate) fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Those that may be written.
    fn writable(&self, envelope: &Envelope, placement: &Placement) -> Vec<PathBuf> {
        let files = envelope.filesystem();
        let through = files.workspace.iter().filter(|workspace| workspace.mode == WorkspaceMode::ReadWrite);
        let mut folders = vec![self.base.clone()];
        folders.extend(through.map(|workspace| workspace.source.clone()));
        folders.extend(placement.home.iter().cloned());
        folders.extend(placement.caches.iter().map(|(host, _)| host.clone()));
        folders
    }

    /// Where a path of the envelope really is.
    pub(crate) fn place(&self, path: &Path) -> PathBuf {
        let named = [
            (Path::new(WORKSPACE), self.workspace.clone()),
            (Path::new(OUT), self.base.join("out")),
            (Path::new(TMP), self.base.join("tmp")),
            (self.home_at.as_path(), self.home.clone()),
        ];
        let found = named.iter().find_map(|(at, to)| Some(to.join(path.strip_prefix(at).ok()?)));
        // Joining nothing leaves a slash at the end.
        found.unwrap_or_else(|| path.to_owned()).components().collect()
    }

    /// Where such a path is, if that is in the run's own folder.
    fn scratch(&self, path: &Path) -> Option<PathBuf> {
        let place = self.place(path);
        (place != self.base && place.starts_with(&self.base)).then_some(place)
    }

    /// Puts the real paths into a request.
    pub(crate) fn adapt(&self, request: &mut ExecRequest, output: bool) {
        request.cwd = self.place(&request.cwd);
        if let Some(command) = request.argv.first_mut().filter(|command| Path::new(command).is_absolute()) {
            *command = self.place(Path::new(command)).into();
        }
        for (name, value) in &mut request.env {
            if name == "HOME" {
                *value = self.place(Path::new(value)).into();
            }
        }
        let mut told =
            vec![("TMPDIR", self.base.join("tmp")), ("FUMEHOOD_WORKSPACE", self.workspace.clone())];
        if output {
            told.push(("FUMEHOOD_OUT", self.base.join("out")));
        }
        for (name, place) in told {
            if !request.env.iter().any(|(known, _)| known == name) {
                request.env.push((name.into(), place.into()));
            }
        }
    }

    /// Makes what is missing, for `identity`, and opens what has to stay open.
    pub(crate) fn make(
        &self,
        envelope: &Envelope,
        placement: &Placement,
        identity: &Identity,
    ) -> io::Result<Held> {
        let owner = identity.own.then_some(identity.kernel);
        let all = self.base.parent().ok_or(io::ErrorKind::InvalidInput)?;
        claim(all, if identity.own { 0o711 } else { 0o700 })?;
        make_dir(&self.base, owner)?;
        for name in ["home", "tmp", "workspace", "out"] {
            make_dir(&self.base.join(name), owner)?;
        }
        for (host, at) in &placement.caches {
            let Some(place) = self.scratch(at) else { continue };
            make_parents(&place, &self.base, owner)?;
            symlink(host, place)?;
        }
        let output = envelope.filesystem().output.as_ref();
        let output = output.map(|_| File::open(self.base.join("out"))).transpose()?.map(OwnedFd::from);
        // One that is not there is in no rule either.
        let facts = FACTS.iter().filter_map(|path| open_path(Path::new(path)).ok()).collect();
        let broker =
            if identity.own { None } else { Some(Broker::new(&self.writable(envelope, placement))?) };
        Ok(Held { _facts: facts, output, broker })
    }

    /// Copies one open file in. Nobody else has been in these folders, so no link is in the way.
    pub(crate) fn copy_in(
        &self,
        from: &mut File,
        (at, mode): (&Path, u32),
        identity: &Identity,
    ) -> io::Result<()> {
        let place = self.scratch(at).ok_or(io::ErrorKind::InvalidInput)?;
        let owner = identity.own.then_some(identity.kernel);
        make_parents(&place, &self.base, owner)?;
        let mut to = File::options().write(true).create_new(true).mode(mode).open(&place)?;
        io::copy(from, &mut to)?;
        own(&place, owner)
    }
}

/// Makes the folder above all runs, or finds it to be ours alone.
fn claim(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let meta = fs::symlink_metadata(path)?;
    if !meta.is_dir() || meta.uid() != host::euid() || meta.mode() & 0o022 != 0 {
        let why = format!("`{}` is not a folder of ours alone", path.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    // Nothing here depends on the caller's file mode mask.
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn make_parents(place: &Path, base: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    let above: Vec<_> = place.ancestors().skip(1).take_while(|folder| *folder != base).collect();
    for folder in above.into_iter().rev() {
        match make_dir(folder, owner) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => other?,
        }
    }
    Ok(())
}

fn make_dir(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)?;
    own(path, owner)
}

fn own(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    owner.map_or(Ok(()), |(uid, gid)| chown(path, Some(uid), Some(gid)))
}

/// A hold on a file, without reading it.
fn open_path(path: &Path) -> io::Result<File> {
    /// `O_PATH` on this target.
    const HOLD: i32 = 0o10_000_000;
    fs::OpenOptions::new().read(true).custom_flags(HOLD).open(path)
}
