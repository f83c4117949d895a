//! From an envelope to a machine: what holds each clause here, and what launching it takes.

use crate::dialogue::{Dialogue, Fault};
use crate::image::Image;
use crate::instance::{Belongings, MicroInstance, Output};
use crate::kernel::Kernel;
use crate::machine::{Hardware, Machine, Parts, Place, STATE, Start, failed};
use crate::missing::Missing;
use crate::template::{Recipe, Template};
use crate::tools::Tool;
use crate::unpack::{Limits, Manner};
use crate::{Folders, Microvm};
use crate::{slot, written};
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Instance, LaunchError, LayerDisk, Placement, Plan};
use fumehood_backend_native::cgroup::Cgroup;
use fumehood_backend_native::etc::{self, Guest, System};
use fumehood_backend_native::gateway;
use fumehood_backend_native::identity::Identity;
use fumehood_backend_native::syscalls::{SetId, filter_alone};
use fumehood_guest::entry::{Entry, What};
use fumehood_guest::frame::Person;
use fumehood_guest::host::Terms;
use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength, Unenforceable};
use fumehood_model::envelope::{Envelope, Input, Root, WorkspaceMode};
use fumehood_model::quantity;
use fumehood_sys::dirfd::DirHandle;
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Below this no guest with a system folder boots.
const LEAST_MEMORY: u64 = 128 << 20;
/// What QEMU takes beside its guest's memory.
const OVERHEAD_BYTES: u64 = 384 << 20;
/// Threads of QEMU: one processor, its main loop, and who reads disks.
const QEMU_THREADS: u32 = 96;
/// From a restore to the guest's answer, on a host with much else to do.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// What goes in must be in by then.
const FILL_LIMIT: Duration = Duration::from_secs(600);
/// Files that may come out.
const MOST_NAMES: u64 = 1_000_000;

const NOFILE: u32 = 7;
const NPROC: u32 = 6;
const FSIZE: u32 = 1;
const CORE: u32 = 4;

/// One envelope on this host.
#[derive(Debug)]
pub(crate) struct MicroPlan {
    envelope: Envelope,
    placement: Placement,
    folders: Folders,
    hierarchy: fumehood_backend_native::Hierarchy,
    host_cpus: u32,
    landlock: u32,
    qemu: Tool,
    kernel: Kernel,
    enforcement: Enforcement,
}

// === impl MicroPlan ===

impl MicroPlan {
    pub(crate) fn new(
        level: &Microvm,
        envelope: &Envelope,
        placement: &Placement,
    ) -> Result<Self, Unenforceable> {
        let qemu = Tool::qemu().map_err(Missing::refuse)?;
        let kernel = Kernel::find(&level.folders.kernels).map_err(Missing::refuse)?;
        if !Image::is_made(&level.folders.images, &envelope.filesystem().root) {
            Tool::erofs().map_err(Missing::refuse)?;
        }
        let landlock = level.landlock.filter(|abi| *abi >= 2).ok_or_else(|| Unenforceable {
            clause: Clause::Privilege,
            why: "this kernel has no Landlock that could hold QEMU".to_owned(),
            remedy: "boot with `lsm=landlock,…` on Linux 5.19 or later".to_owned(),
        })?;
        refuse_what_is_not_held(envelope, placement)?;
        placement.gateway.as_ref().map_or(Ok(()), |spec| gateway::check(spec, &placement.shared))?;
        let enforcement = enforcement(level, envelope, placement, &kernel);
        Ok(Self {
            envelope: envelope.clone(),
            placement: placement.clone(),
            folders: level.folders.clone(),
            hierarchy: level.hierarchy.clone(),
            host_cpus: level.host_cpus,
            landlock,
            qemu,
            kernel,
            enforcement,
        })
    }

    fn hardware(&self) -> Hardware {
        Hardware {
            memory_mib: self.envelope.resources().memory_bytes >> 20,
            network: self.placement.gateway.is_some(),
            acpi: self.kernel.needs_acpi(),
        }
    }

    /// The machine's template, booted if there is none, and its key.
    fn template(&self, image: &Image, place: &Place<'_>) -> Result<(Template, String), LaunchError> {
        let step = |error: io::Error| failed("make the sandbox's /etc", &error);
        let root = &self.envelope.filesystem().root;
        let resolver = self.placement.gateway.as_ref().map(|_| fumehood_backend::gateway::ADDRESS);
        let system = match root {
            Root::HostSystem => Some(System::Host),
            // Without a network it needs nobody to ask for names.
            Root::Directory(_) | Root::Image(_) => resolver.map(|_| System::Image),
        };
        let (uid, home) = (self.envelope.privilege().uid, self.placement.home_at.as_path());
        let made =
            system.map(|system| etc::folder(&self.placement.shared, Guest { system, uid, home, resolver }));
        let made = made.transpose().map_err(step)?;
        let recipe = Recipe {
            hardware: self.hardware(),
            qemu: &self.qemu,
            kernel: &self.kernel,
            image,
            root,
            etc: made.as_ref().map(|etc| etc.path.as_path()),
            setup: self.setup(),
            filter: filter_alone(self.envelope.privilege().syscalls, SetId::Allowed).bytes(),
        };
        let template = Template::of(&recipe, &self.folders.templates, place)?;
        Ok((template, recipe.key()))
    }

    /// What it begins from, where that is a machine that was written down.
    fn written(&self) -> Option<&Path> {
        self.placement.living.as_ref()?.machine.as_deref()
    }

    /// The other end of its network, if it has one, and the link to it.
    fn gateway(&self) -> Result<Option<(Gateway, OwnedFd)>, LaunchError> {
        let Some(spec) = &self.placement.gateway else { return Ok(None) };
        gateway::for_machine(spec).map(Some).map_err(|error| crate::machine::unstarted(&error))
    }

    /// Limits on QEMU and all its threads; the guest's own are its memory and its kernel's.
    fn cgroup(&self) -> Result<Option<Cgroup>, LaunchError> {
        let mut limits = self.envelope.resources().clone();
        limits.memory_bytes = limits.memory_bytes.saturating_add(OVERHEAD_BYTES);
        limits.processes = QEMU_THREADS;
        let made = self.hierarchy.create(&self.placement.id, &limits, self.host_cpus, false);
        made.map_err(|error| failed("make the cgroup", &error))
    }

    /// The second disk: the workspace, if there is one.
    fn slot(&self, stage: &Path) -> Result<OwnedFd, LaunchError> {
        let step = |error: io::Error| failed("make the workspace's disk", &error);
        if let Some(written) = self.written() {
            let folder = self.machine_folder().map_err(step)?;
            return slot::share(written, &folder).and_then(|()| slot::of_folder(&folder)).map_err(step);
        }
        match &self.envelope.filesystem().workspace {
            None => slot::empty().map_err(step),
            Some(workspace) => {
                let folder = self.machine_folder().map_err(step)?;
                let kept = self.placement.living.is_some();
                slot::of_workspace(&workspace.source, &folder, stage, (self.person().uid, kept))
            }
        }
    }

    /// The folder of what this machine leaves, removed when it is reaped.
    fn machine_folder(&self) -> io::Result<PathBuf> {
        let folder = self.folders.machines.join(self.placement.id.as_str());
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(folder)
    }

    fn restore(
        &self,
        (template, tap): (Template, Option<OwnedFd>),
        image: &Image,
        place: &Place<'_>,
    ) -> Result<(Machine, Dialogue), LaunchError> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        let slot = self.slot(&place.stage)?;
        let root = image.open().map_err(|error| failed("open the root image", &error))?;
        let Template { memory, state } = template;
        let parts = Parts { memory: memory.into(), root: root.into(), slot, state: state.into(), tap };
        let mut machine = Machine::start(self.hardware(), &Start::Restore, parts, place, deadline)?;
        let restored = match self.written() {
            Some(_) => machine.monitor.restore_still(STATE),
            None => machine.monitor.restore(STATE),
        };
        restored.map_err(|error| machine.broken("restore the machine", &error))?;
        let dialogue = Dialogue::wake(&machine.stream, deadline)
            .map_err(|fault| machine.unanswered("restore the machine", &fault))?;
        Ok((machine, dialogue))
    }

    /// The folders of this sandbox, its workspace, and what goes in.
    fn fill(&self, machine: &Machine, dialogue: &mut Dialogue) -> Result<(), LaunchError> {
        dialogue.extend(Instant::now() + FILL_LIMIT);
        let told = |step: &'static str| move |fault: Fault| machine.unanswered(step, &fault);
        let stream = &machine.stream;
        let made = self.made_files();
        if !made.is_empty() {
            let step = "put the sandbox's own files in";
            dialogue.put(stream, b"/", None, &mut made.as_slice()).map_err(told(step))?;
        }
        if let Some(words) = self.furnish() {
            dialogue.run(stream, &words, "show its workspace").map_err(told("show the workspace"))?;
        }
        if self.written().is_some() {
            return Ok(());
        }
        let person = self.person();
        for input in &self.envelope.filesystem().inputs {
            let mut entries = input_entries(input)?;
            dialogue.put(stream, b"/", Some(person), &mut entries).map_err(told("copy the inputs in"))?;
        }
        Ok(())
    }

    fn person(&self) -> Person {
        let uid = self.envelope.privilege().uid;
        Person { uid, gid: uid }
    }

    /// How the workspace is, in guestd's words.
    fn workspace(&self) -> &'static str {
        match self.envelope.filesystem().workspace.as_ref().map(|workspace| workspace.mode) {
            Some(WorkspaceMode::CopyOnWrite) => "copy-on-write",
            Some(WorkspaceMode::ReadOnly) => "read-only",
            Some(WorkspaceMode::ReadWrite) | None => "empty",
        }
    }

    /// The folders that the machine has when it is booted: what guestd reads in `/setup`.
    fn setup(&self) -> Vec<u8> {
        let limits = self.envelope.resources();
        let scratch = limits.disk_bytes.min(limits.memory_bytes / 2).max(1 << 20);
        let workspace = if self.workspace() == "empty" { "empty" } else { "disk" };
        let out = if self.envelope.filesystem().output.is_some() { "out" } else { "no-out" };
        let (uid, scratch) = (self.person().uid.to_string(), scratch.to_string());
        let home = self.placement.home_at.as_os_str().as_bytes();
        let words = [uid.as_bytes(), scratch.as_bytes(), workspace.as_bytes(), home, out.as_bytes()];
        words.iter().flat_map(|word| word.iter().chain(&[0])).copied().collect()
    }

    /// What `guestd furnish` is told, where this machine differs from its template.
    fn furnish(&self) -> Option<Vec<Vec<u8>>> {
        let covers = self.placement.files.iter().any(|file| !file.covers.is_empty());
        // One that was written down shows its workspace already.
        let workspace = if self.written().is_some() { "empty" } else { self.workspace() };
        if workspace == "empty" && !covers {
            return None;
        }
        let uid = self.person().uid.to_string();
        let words = ["/init", "furnish", &uid, workspace];
        let mut words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        for file in &self.placement.files {
            for covered in &file.covers {
                words.push(file.at.as_os_str().as_bytes().to_vec());
                words.push(covered.as_os_str().as_bytes().to_vec());
            }
        }
        Some(words)
    }

    /// Files of this sandbox alone, as entries beneath `/`.
    fn made_files(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for file in &self.placement.files {
            let path = beneath(&file.at);
            folders_above(&path, &mut bytes);
            let size_bytes = file.content.len() as u64;
            Entry { path: path.as_os_str().as_bytes(), what: What::File { mode: 0o444, size_bytes } }
                .print(&mut bytes);
            bytes.extend_from_slice(&file.content);
        }
        bytes
    }

    /// Where `/out` and the layer go, once the command is over.
    fn outputs(&self) -> Result<Vec<Output>, LaunchError> {
        let step = |error: io::Error| failed("make the folder of the output", &error);
        let limits = Limits { bytes: self.envelope.resources().disk_bytes, names: MOST_NAMES };
        let mut outputs = Vec::new();
        if self.envelope.filesystem().output.is_some() {
            let folder = DirHandle::open(&self.machine_folder().map_err(step)?).map_err(step)?;
            folder.make_dir(OsStr::new("out"), 0o700).map_err(step)?;
            outputs.push(Output::Collected { folder: folder.sub(Path::new("out")).map_err(step)?, limits });
        }
        // One that lives on keeps what it changes.
        if let Some(layer) = self.placement.layer.as_ref().filter(|_| self.placement.living.is_none()) {
            let root = match &layer.disk {
                LayerDisk::Image { mount: Some(mount), .. } => mount.try_clone().map(DirHandle::from),
                LayerDisk::Image { mount: None, .. } | LayerDisk::Folder { .. } => {
                    DirHandle::open(&layer.folder)
                }
            };
            let upper = root.and_then(|root| root.sub(Path::new("upper"))).map_err(step)?;
            let owner = upper.stat().map_err(step)?;
            let owner = (fumehood_sys::host::euid() == 0).then_some((owner.uid, owner.gid));
            outputs.push(Output::Layer { upper, manner: Manner { owner, overlay: true }, limits });
        }
        Ok(outputs)
    }

    fn limits(&self) -> Vec<(u32, u64)> {
        let limits = self.envelope.resources();
        vec![
            (CORE, 0),
            (NOFILE, u64::from(limits.open_files)),
            (FSIZE, limits.file_size_bytes),
            (NPROC, u64::from(limits.processes)),
        ]
    }
}

impl Plan for MicroPlan {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn launch(self: Box<Self>) -> Result<Box<dyn Instance>, LaunchError> {
        let stage = self.placement.shared.join("root");
        let image = Image::of(&self.envelope.filesystem().root, &self.folders.images, &stage)?;
        let identity =
            Identity::take(NOBODY).map_err(|error| fumehood_backend_native::steps::no_identity(&error))?;
        let place = |joins| Place {
            qemu: &self.qemu.path,
            stage: stage.clone(),
            identity: &identity,
            joins,
            landlock: self.landlock,
        };
        // A machine that boots for all is limited by none.
        let (template, key) = self.template(&image, &place(&[]))?;
        let template = match self.written() {
            None => template,
            Some(written) => {
                let root = image.open().map_err(|error| failed("open the root image", &error))?;
                written::open(written, (&key, self.hardware(), root.into()), &place(&[]))?
            }
        };
        let outputs = self.outputs()?;
        let (gateway, tap) = self.gateway()?.unzip();
        let cgroup = self.cgroup()?;
        let joins = cgroup.as_ref().map_or(&[][..], |cgroup| cgroup.joins.as_slice());
        let restored =
            self.restore((template, tap), &image, &place(joins)).and_then(|(machine, mut dialogue)| {
                self.fill(&machine, &mut dialogue)?;
                Ok((machine, dialogue))
            });
        match restored {
            Ok(machine) => {
                let terms = Terms { person: Some(self.person()), limits: self.limits() };
                let folder = self.folders.machines.join(self.placement.id.as_str());
                let belongings = Belongings { cgroup, identity, gateway, folder, key };
                let instance = MicroInstance::new(machine, belongings, outputs, terms)?;
                Ok(Box::new(instance))
            }
            Err(error) => {
                let folders: Vec<PathBuf> = cgroup.iter().flat_map(Cgroup::folders).cloned().collect();
                // What stays is found again by its name.
                let _ = fumehood_backend_native::cgroup::remove(&folders);
                Err(error)
            }
        }
    }
}

/// Who QEMU sees itself as.
const NOBODY: u32 = 65534;

/// A guest path as entries have it.
fn beneath(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn folders_above(path: &Path, bytes: &mut Vec<u8>) {
    let above: Vec<&Path> = path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()).collect();
    for folder in above.into_iter().rev() {
        let path = folder.as_os_str().as_bytes();
        Entry { path, what: What::Folder { mode: 0o755 } }.print(bytes);
    }
}

/// One input: the folders above it, then it.
fn input_entries(input: &Input) -> Result<impl io::Read, LaunchError> {
    let fail = |why: String| LaunchError {
        step: format!("read the input `{}`", input.source.display()),
        why,
        remedy: "name a file that you can read with `--in`; a folder is shown with `--ro`".to_owned(),
    };
    let file = File::options().read(true).custom_flags(NONBLOCKING).open(&input.source);
    let file = file.map_err(|error| fail(error.to_string()))?;
    let meta = file.metadata().map_err(|error| fail(error.to_string()))?;
    if !meta.is_file() {
        return Err(fail("it is not a regular file".to_owned()));
    }
    let mut head = Vec::new();
    let path = beneath(&input.at);
    folders_above(&path, &mut head);
    let mode = if meta.mode() & 0o111 == 0 { 0o644 } else { 0o755 };
    let what = What::File { mode, size_bytes: meta.len() };
    Entry { path: path.as_os_str().as_bytes(), what }.print(&mut head);
    // One that shrinks while it is read is filled up, as the guest would wait for the rest for ever.
    let content = io::Read::chain(file, io::repeat(0));
    Ok(io::Read::chain(io::Cursor::new(head), io::Read::take(content, meta.len())))
}

/// `O_NONBLOCK` on this target: a fifo is never waited for.
const NONBLOCKING: i32 = 0o4000;

/// What is shown in another way, or not at all, is refused: never left out in silence.
fn refuse_what_is_not_held(envelope: &Envelope, placement: &Placement) -> Result<(), Unenforceable> {
    let filesystem = envelope.filesystem();
    let refuse = |clause, why: &str, remedy: &str| {
        Err(Unenforceable { clause, why: why.to_owned(), remedy: remedy.to_owned() })
    };
    if filesystem.workspace.as_ref().is_some_and(|workspace| workspace.mode == WorkspaceMode::ReadWrite) {
        return refuse(
            Clause::Filesystem,
            "a machine has no hold on the host's own folder, so `:rw` can not be shown",
            "leave `:rw` out: what changes is brought back by `fumehood apply`",
        );
    }
    if filesystem.session.is_some() || (placement.home.is_some() && placement.living.is_none()) {
        return refuse(Clause::Filesystem, "a machine keeps no session", "leave `--session` out");
    }
    if !filesystem.caches.is_empty() {
        return refuse(Clause::Filesystem, "a machine keeps no caches", "leave `--cache` out");
    }
    if !filesystem.mounts.is_empty() {
        return refuse(
            Clause::Filesystem,
            "a machine has no hold on the host's folders, so `--ro` can not be shown",
            "copy files in with `--in`, or show a folder with `--workspace DIR:ro`",
        );
    }
    if placement.gateway.is_some() && fumehood_sys::host::euid() != 0 {
        return refuse(
            Clause::Network,
            "only root can join a machine to a gateway in this version",
            "run it as root, or leave the network rules out",
        );
    }
    if envelope.resources().memory_bytes < LEAST_MEMORY {
        return refuse(
            Clause::Resources,
            "a machine with less than 128 MiB does not boot",
            "give it more: `--mem 256M`",
        );
    }
    Ok(())
}

fn enforcement(level: &Microvm, envelope: &Envelope, placement: &Placement, kernel: &Kernel) -> Enforcement {
    let by = |name, detail: String| Mechanism { name, detail, strength: Strength::Kernel };
    let jail = || {
        by(
            "qemu-jail",
            "QEMU runs in namespaces, a root of read-only system folders, without capabilities and network, behind Landlock and a system call allow-list".to_owned(),
        )
    };
    let emulated = by(
        "tcg",
        "the processor is emulated by software: QEMU does not call that a security boundary".to_owned(),
    );
    let limits = envelope.resources();
    let memory = quantity::show_bytes(limits.memory_bytes);
    let network = match &placement.gateway {
        None => by("no-device", "the machine has no network card".to_owned()),
        Some(_) => by(
            "gateway",
            "its one network card leads to a gateway, whose sockets its keeper holds".to_owned(),
        ),
    };
    let mut resources = vec![
        by("machine-memory", format!("the machine has {memory}; half of it at most is scratch")),
        by("rlimit", format!("inside: {} processes, {} open files", limits.processes, limits.open_files)),
    ];
    if matches!(level.hierarchy, fumehood_backend_native::Hierarchy::None { .. }) {
        resources.push(by("one-processor", "the machine has one processor".to_owned()));
    } else {
        resources.push(by("cgroup", "QEMU's memory, threads and processor time".to_owned()));
    }
    Enforcement(vec![
        (
            Clause::Filesystem,
            vec![
                by("guest-kernel", "its system folders and workspace are read-only disks; what it writes is the machine's memory".to_owned()),
                jail(),
            ],
        ),
        (Clause::Network, vec![network, jail()]),
        (
            Clause::Privilege,
            vec![
                by("guest-kernel", format!("a kernel of its own, {}; no capability, no_new_privs and a system call allow-list inside", kernel.describe())),
                emulated,
                jail(),
            ],
        ),
        (
            Clause::Credentials,
            vec![by("guest-kernel", "only named variables and files enter the machine".to_owned())],
        ),
        (Clause::Resources, resources),
        (
            Clause::Cleanup,
            vec![by("process", "the machine is one process, which ends with its keeper; its memory goes with it".to_owned())],
        ),
    ])
}
