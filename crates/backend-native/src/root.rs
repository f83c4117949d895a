//! The private root: from an envelope and a placement to launch operations, in order.
//!
//! ```text
//! /            memory-backed, the sandbox's own; everything below is put onto it
//! /usr /opt    the host's, read-only            (or the folders of `--image`)
//! /etc         made for sandboxes, read-only    /proc    fresh, with paths masked
//! /dev         null zero full random urandom tty, pts, shm
//! /sys         a few made files about processors
//! /tmp /var/tmp /run/user   scratch             HOME     scratch, or the session's
//! /workspace   scratch, or the workspace        /out     scratch, collected afterwards
//! ```

use crate::Bare;
use crate::identity::Identity;
use crate::image::Kind;
use crate::plan::Sources;
use fumehood_backend::Placement;
use fumehood_model::envelope::{Envelope, WorkspaceMode};
use fumehood_sys::launch::{Attributes, Op, Program, Root as NewRoot};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path};
use std::sync::Arc;

/// A read-only view without devices.
pub const READ_ONLY: Attributes = Attributes { read_only: true, devices: false, executable: true };
/// A writable view without devices.
pub const WRITABLE: Attributes = Attributes { read_only: false, devices: false, executable: true };

/// Devices of a minimal `/dev`.
const DEVICES: &[(&str, u32, u32)] =
    &[("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// Files of `/proc` that anybody could read and that tell about the host. Those that only root can open
/// (`kcore`, `kmsg`, `timer_list`, `sysrq-trigger` …), or that tell nothing to others (`kallsyms`), need no cover: nobody inside is root to the kernel,
/// and each cover costs every start and every end of a sandbox a mount.
const MASKED_FILES: &[&str] = &["keys", "key-users", "latency_stats", "sched_debug"];
const MASKED_FOLDERS: &[&str] = &["acpi", "asound", "bus", "scsi"];
/// Shown, and not writable.
const FROZEN: &[&str] = &["sys"];

/// Links every `/dev` has.
const DEVICE_LINKS: &[(&str, &str)] = &[
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Folders that are scratch for everybody inside, and theirs alone.
const SCRATCH: &[(&str, u32)] =
    &[("tmp", 0o1777), ("var/tmp", 0o1777), ("dev/shm", 0o1777), ("run/lock", 0o1777)];

/// Builds the root of one sandbox.
#[derive(Debug)]
pub struct RootBuilder<'a> {
    envelope: &'a Envelope,
    placement: &'a Placement,
    identity: &'a Identity,
    bare: Option<&'a Bare>,
    /// Whether a [`frame`] is there already.
    framed: bool,
    program: Program,
}

// === impl RootBuilder ===

impl<'a> RootBuilder<'a> {
    #[must_use]
    pub fn new(envelope: &'a Envelope, placement: &'a Placement, identity: &'a Identity) -> Self {
        Self { envelope, placement, identity, bare: None, framed: false, program: Program::default() }
    }

    /// With these files in the place of a system.
    pub(crate) fn bare(self, bare: Option<&'a Bare>) -> Self {
        Self { bare, ..self }
    }

    /// From a [`frame`] on, in place of the host's root.
    pub(crate) fn framed(self) -> Self {
        Self { framed: true, ..self }
    }

    /// Whether what [`frame`] makes is part of this root.
    pub(crate) fn has_frame(&self) -> bool {
        self.identity.own && self.bare.is_none() && self.envelope.filesystem().root.folder().is_none()
    }

    /// The operations from the host's root to the guest's, without entering it.
    pub fn build(mut self, sources: Sources) -> Program {
        let etc = sources.etc.clone();
        let overlay = sources.layer(self.placement, &mut self.program);
        if self.framed {
            self.resize();
        } else {
            self.base();
        }
        match self.bare {
            None => self.system(etc.as_deref()),
            Some(bare) => self.files(bare),
        }
        if !self.framed {
            self.devices();
        }
        self.sys();
        self.scratch();
        self.home();
        if self.bare.is_none() {
            self.toolchains();
        }
        self.workspace(overlay);
        self.caches();
        self.views();
        self.made_files();
        self.program
    }

    fn step(&mut self, phrase: &'static str, op: Op) {
        self.program.push(phrase, op);
    }

    fn base(&mut self) {
        let at = c_path(&self.placement.shared.join("root"));
        let size_bytes = scratch_bytes(self.envelope);
        base(&mut self.program, at, (size_bytes, inodes(size_bytes)), self.identity.own);
    }

    /// A frame has the size that most roots have.
    fn resize(&mut self) {
        let size_bytes = scratch_bytes(self.envelope);
        if size_bytes != FRAME_BYTES {
            let inodes = inodes(size_bytes);
            self.step("make the private root", Op::ResizeRoot { size_bytes, inodes });
        }
    }

    /// The system folders, in whichever of the two shapes hosts have: links into `/usr`, or folders.
    fn system(&mut self, etc: Option<&Path>) {
        let image = self.envelope.filesystem().root.folder().map(Path::to_owned);
        if !self.framed {
            system_folders(&mut self.program, image.as_deref());
        }
        match image {
            None => {
                if let Some(etc) = etc {
                    self.bind("show /etc", etc, "etc", READ_ONLY);
                }
            }
            Some(image) => {
                // One program alone needs none.
                if std::fs::symlink_metadata(image.join("etc")).is_ok() {
                    self.bind_within("show the image's /etc", &image, "etc");
                }
                if let Some(over) = etc {
                    self.lay_over("name the resolver", over, "etc");
                }
                self.rest_of_image(&image);
            }
        }
    }

    /// What else an image has: its application, its data. What the sandbox makes for itself is not the image's.
    fn rest_of_image(&mut self, image: &Path) {
        for (name, kind) in crate::image::rest(image, &self.placement.home_at) {
            match kind {
                Kind::Shown => self.bind_within("show the image", image, &name),
                Kind::Empty => self.folder(&name, 0o755),
                Kind::Link(target) => {
                    let (to, path) = (c_path(&target), c_string(&name));
                    self.step("show the image", Op::Symlink { to, path });
                }
            }
        }
    }

    /// All there is of programs, where there is no system.
    fn files(&mut self, bare: &Bare) {
        for (host, guest) in &bare.files {
            let at = beneath(guest);
            self.parents(&at);
            self.bind("show the engine's files", host, &at, READ_ONLY);
        }
    }

    fn devices(&mut self) {
        if self.identity.own {
            device_nodes(&mut self.program);
        } else {
            for (name, ..) in DEVICES {
                let path = format!("dev/{name}");
                let attributes = Attributes { read_only: false, devices: true, executable: false };
                self.bind("show the devices", &Path::new("/").join(&path), &path, attributes);
            }
        }
        device_links(&mut self.program);
    }

    /// What programs read to count processors. Nothing of the host's `/sys` is there.
    fn sys(&mut self) {
        let last = self.envelope.resources().cpu_millis.div_ceil(1000).max(1) - 1;
        let list = if last == 0 { "0\n".to_owned() } else { format!("0-{last}\n") };
        let list = Arc::new(list.into_bytes());
        for folder in ["sys/devices", "sys/devices/system", "sys/devices/system/cpu"] {
            self.folder(folder, 0o755);
        }
        for name in ["online", "possible", "present"] {
            let path = c_string(&format!("sys/devices/system/cpu/{name}"));
            let content = Arc::clone(&list);
            self.step("make /sys", Op::WriteFile { path, after: None, content, mode: 0o444 });
        }
    }

    fn scratch(&mut self) {
        if !self.framed {
            scratch(&mut self.program);
        }
        let user = format!("run/user/{}", self.identity.inside.0);
        self.owned_folder(&user, 0o700);
        if self.envelope.filesystem().output.is_some() {
            self.owned_folder("out", 0o755);
        }
    }

    fn home(&mut self) {
        let at = beneath(&self.placement.home_at);
        self.parents(&at);
        self.owned_folder(&at, 0o755);
        if let Some(kept) = self.placement.home.clone() {
            self.idmapped("show the session's HOME", &kept, &at, WRITABLE);
        }
    }

    /// After the workspace, which would cover one that lies in it.
    fn caches(&mut self) {
        for (host, guest) in self.placement.caches.clone() {
            let at = beneath(&guest);
            self.owned_parents(&at);
            self.idmapped("show the cache", &host, &at, WRITABLE);
        }
    }

    fn toolchains(&mut self) {
        for root in self.placement.toolchains.clone() {
            let at = beneath(&root);
            self.owned_parents(&at);
            self.bind("show the toolchains", &root, &at, READ_ONLY);
        }
    }

    fn workspace(&mut self, overlay: Option<Op>) {
        let workspace = self.envelope.filesystem().workspace.clone();
        self.owned_folder("workspace", 0o755);
        match workspace.map(|workspace| (workspace.mode, workspace.source)) {
            None => {
                if let Some(own) = self.placement.living.clone().and_then(|living| living.workspace) {
                    self.idmapped("show the workspace", &own, "workspace", WRITABLE);
                }
            }
            Some((WorkspaceMode::CopyOnWrite, _)) => {
                if let Some(overlay) = overlay {
                    self.step("mount the workspace", overlay);
                }
            }
            Some((WorkspaceMode::ReadOnly, source)) => {
                self.view("show the workspace", &source, "workspace");
            }
            Some((WorkspaceMode::ReadWrite, source)) => {
                self.idmapped("show the workspace", &source, "workspace", WRITABLE);
            }
        }
    }

    fn views(&mut self) {
        for mount in self.envelope.filesystem().mounts.clone() {
            let at = beneath(&mount.at);
            self.parents(&at);
            self.view("show a read-only path", &mount.source, &at);
        }
    }

    /// Files that were made for this sandbox, and the places where they stand before the host's own.
    fn made_files(&mut self) {
        const PHRASE: &str = "put the sandbox's own files in";
        for file in self.placement.files.clone() {
            let (after, content) = (file.after, file.content);
            let at = beneath(&file.at);
            self.parents(&at);
            let path = c_string(&at);
            self.step(PHRASE, Op::WriteFile { path, after, content, mode: 0o444 });
            for covered in &file.covers {
                let (with, target) = (c_string(&at), c_string(&beneath(covered)));
                self.step(PHRASE, Op::Cover { with, target });
            }
        }
    }

    fn bind(&mut self, phrase: &'static str, source: &Path, target: &str, attributes: Attributes) {
        let op = Op::Bind { source: c_path(source), target: c_string(target), attributes, idmap: None };
        self.step(phrase, op);
    }

    /// A read-only view of a folder of a root, which an image's links can not lead out of.
    fn bind_within(&mut self, phrase: &'static str, root: &Path, name: &str) {
        self.step(phrase, within(root, name));
    }

    /// Files of ours over a folder that is already shown, which stays read-only.
    fn lay_over(&mut self, phrase: &'static str, over: &Path, target: &str) {
        let mut lowers = crate::plan::escaped(over).into_bytes();
        lowers.extend([b":", target.as_bytes()].concat());
        let lowers = c_bytes(OsStr::from_bytes(&lowers));
        let (source, stage) = (c_path(over), c_path(over));
        self.step(phrase, Op::View { source, lowers, stage, target: c_string(target), idmap: None });
    }

    /// A view in which what belongs to the source's owner belongs to the sandbox.
    fn idmapped(&mut self, phrase: &'static str, source: &Path, target: &str, attributes: Attributes) {
        let idmap = crate::plan::idmap(self.identity, source);
        let op = Op::Bind { source: c_path(source), target: c_string(target), attributes, idmap };
        self.step(phrase, op);
    }

    /// A read-only view, through which a folder's sockets can not be reached.
    fn view(&mut self, phrase: &'static str, source: &Path, target: &str) {
        if !source.is_dir() {
            return self.idmapped(phrase, source, target, READ_ONLY);
        }
        let idmap = crate::plan::idmap(self.identity, source);
        let stage = self.placement.shared.join("lower");
        let shown = if idmap.is_some() { &stage } else { source };
        let mut lowers = crate::plan::escaped(shown).into_bytes();
        lowers.push(b':');
        lowers.extend(crate::plan::escaped(&self.placement.shared.join("empty")).as_bytes());
        let op = Op::View {
            source: c_path(source),
            lowers: c_bytes(OsStr::from_bytes(&lowers)),
            stage: c_path(&stage),
            target: c_string(target),
            idmap,
        };
        self.step(phrase, op);
    }

    fn folder(&mut self, path: &str, mode: u32) {
        folder(&mut self.program, path, mode);
    }

    fn owned_folder(&mut self, path: &str, mode: u32) {
        let owner = self.identity.own.then_some(self.identity.kernel);
        self.step("make the folders of the root", Op::MakeDir { path: c_string(path), mode, owner });
    }

    /// Folders above a mount point, for everybody.
    fn parents(&mut self, path: &str) {
        for parent in parents(path) {
            self.folder(&parent, 0o755);
        }
    }

    /// Folders above a mount point; those beneath HOME and the workspace belong to the sandbox.
    fn owned_parents(&mut self, path: &str) {
        let home = beneath(&self.placement.home_at);
        for parent in parents(path) {
            if Path::new(&parent).starts_with(&home) || Path::new(&parent).starts_with("workspace") {
                self.owned_folder(&parent, 0o755);
            } else {
                self.folder(&parent, 0o755);
            }
        }
    }
}

/// What any root is made of that root makes on the host's own system: what [`RootBuilder::build`] leaves out when it
/// is [`RootBuilder::framed`]. It needs no envelope, so it is made before there is one.
///
/// It is put over the host's root, where it hides nothing of the host's from its maker: a path that begins with `/`
/// is looked up beneath what the maker has as its root, not on what lies on that.
pub(crate) fn frame() -> Program {
    let mut program = Program::default();
    base(&mut program, c_string("/"), (FRAME_BYTES, inodes(FRAME_BYTES)), true);
    system_folders(&mut program, None);
    device_nodes(&mut program);
    device_links(&mut program);
    scratch(&mut program);
    program
}

/// The size of a root under the limits that hold where none are named.
const FRAME_BYTES: u64 = 2 << 30;

fn inodes(size_bytes: u64) -> u64 {
    (size_bytes / 8192).clamp(16_384, 4_000_000)
}

fn base(program: &mut Program, at: CString, (size_bytes, inodes): (u64, u64), devices: bool) {
    let root = NewRoot { at, size_bytes, inodes, devices };
    program.push("make the private root", Op::NewRoot(root));
    for name in ["etc", "usr", "proc", "dev", "dev/pts", "sys", "var", EMPTY, "run", "run/user"] {
        folder(program, name, 0o755);
    }
}

/// The host's, or those of an image.
fn system_folders(program: &mut Program, image: Option<&Path>) {
    const SHOW: &str = "show the system folders";
    let base = image.unwrap_or(Path::new("/"));
    for name in ["usr", "opt"] {
        match image {
            None if base.join(name).is_dir() => {
                let (source, target) = (c_path(&base.join(name)), c_string(name));
                program.push(SHOW, Op::Bind { source, target, attributes: READ_ONLY, idmap: None });
            }
            Some(image) if std::fs::symlink_metadata(image.join(name)).is_ok() => {
                program.push(SHOW, within(image, name));
            }
            None | Some(_) => {}
        }
    }
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let path = base.join(name);
        if let Ok(target) = std::fs::read_link(&path) {
            let (to, path) = (c_path(&target), c_string(name));
            program.push("link the system folders", Op::Symlink { to, path });
        } else if path.is_dir() {
            program.push(SHOW, within(base, name));
        }
    }
}

fn within(root: &Path, name: &str) -> Op {
    Op::BindWithin {
        root: c_path(root),
        source: c_string(name),
        target: c_string(name),
        attributes: READ_ONLY,
    }
}

fn device_nodes(program: &mut Program) {
    for (name, major, minor) in DEVICES {
        let path = c_string(&format!("dev/{name}"));
        program.push("make the devices", Op::Device { path, major: *major, minor: *minor });
    }
}

fn device_links(program: &mut Program) {
    for (name, to) in DEVICE_LINKS {
        let path = c_string(&format!("dev/{name}"));
        program.push("link the devices", Op::Symlink { to: c_string(to), path });
    }
    program.push("mount /dev/pts", Op::Devpts { target: c_string("dev/pts") });
}

fn scratch(program: &mut Program) {
    for (name, mode) in SCRATCH {
        folder(program, name, *mode);
    }
}

fn folder(program: &mut Program, path: &str, mode: u32) {
    program.push("make the folders of the root", Op::MakeDir { path: c_string(path), mode, owner: None });
}

/// An empty folder of the new root that nobody inside can write.
const EMPTY: &str = "var/empty";

/// The steps of `/proc`, which must be mounted from within the sandbox's own pid namespace. What covers
/// its paths comes from the new root itself, not from the host.
pub fn proc() -> Program {
    let mut program = Program::default();
    program.push("mount /proc", Op::Proc { target: c_string("proc") });
    for name in MASKED_FILES {
        program.push("mask /proc", Op::MaskFile { target: c_string(&format!("proc/{name}")) });
    }
    for name in MASKED_FOLDERS {
        let target = c_string(&format!("proc/{name}"));
        program.push("mask /proc", Op::Cover { with: c_string(EMPTY), target });
    }
    for name in FROZEN {
        program.push("freeze /proc", Op::MaskWrites { target: c_string(&format!("proc/{name}")) });
    }
    program
}

/// Scratch is memory; half of what the sandbox may use, and not more than its disk limit.
pub fn scratch_bytes(envelope: &Envelope) -> u64 {
    let limits = envelope.resources();
    limits.disk_bytes.min(limits.memory_bytes / 2).max(1 << 20)
}

/// A guest path, relative to the new root.
pub fn beneath(path: &Path) -> String {
    let parts = path.components().filter_map(|component| match component {
        Component::Normal(part) => Some(part.to_string_lossy().into_owned()),
        Component::RootDir | Component::CurDir | Component::ParentDir | Component::Prefix(_) => None,
    });
    parts.collect::<Vec<_>>().join("/")
}

fn parents(path: &str) -> Vec<String> {
    let mut parents: Vec<String> =
        Path::new(path).ancestors().skip(1).map(|parent| parent.to_string_lossy().into_owned()).collect();
    parents.retain(|parent| !parent.is_empty());
    parents.reverse();
    parents
}

pub fn c_path(path: &Path) -> CString {
    c_bytes(path.as_os_str())
}

pub fn c_string(text: &str) -> CString {
    c_bytes(OsStr::new(text))
}

/// Checked paths have no NUL; one that did would name nothing.
fn c_bytes(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_default()
}
