//! Launching one sandbox: the whole order of things, on one page.

use crate::bare::{self, Folders, Held};
use crate::cgroup::{Cgroup, Hierarchy};
use crate::control::Control;
use crate::gateway::{self, Laid, Plumbing};
use crate::identity::Identity;
use crate::init_image;
use crate::instance::{NativeInstance, Parts};
use crate::plan::{NativePlan, Sources};
use crate::root::{RootBuilder, beneath, c_path, c_string, proc};
use crate::shape::{self, Shape};
use crate::syscalls::{self, SetId, Shared};
use crate::usage;
use fumehood_backend::{ExecError, GuestStdio, LaunchError};
use fumehood_model::envelope::{Envelope, WorkspaceMode};
use fumehood_model::exec::ExecRequest;
use fumehood_sys::landlock::{Access, Ruleset};
use fumehood_sys::launch::{self, Beside, Op, Program, SpawnError};
use fumehood_sys::notify::Listener;
use fumehood_sys::{process, socket};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

/// Below this the launcher places init's own descriptors.
const FIRST_FREE_DESCRIPTOR: i32 = 10;
/// Tag of the packet that carries the handle of `/out`, and of the one that carries the root's.
const OUTPUT: u8 = 1;
const ROOT: u8 = 2;
/// Tag of the filter's listener.
const LISTENER: u8 = 3;

/// `ELOOP`
const LINK_IN_THE_WAY: i32 = 40;

/// Everything that is made before the child exists.
#[derive(Debug)]
pub(crate) struct LaunchParts {
    identity: Identity,
    cgroup: Option<Cgroup>,
    /// Its maker uses what the next one has made, so it goes first.
    plumbing: Plumbing,
    /// Prepared network, ipc and uts namespaces.
    namespaces: Option<Beside>,
    root: Root,
    rest: Program,
    control: Control,
    /// Our end of the socket on which the child hands over folders.
    handles: OwnedFd,
    etc: Option<File>,
    /// Where there is no root to copy them into on the way in.
    inputs: Vec<OpenInput>,
}

/// A host file that is copied in.
#[derive(Debug)]
struct OpenInput {
    file: File,
    /// Absolute, inside.
    at: String,
    /// A program stays one; nothing else of the mode enters.
    mode: u32,
}

/// Descriptors that go into the child.
#[derive(Debug)]
struct Gifts {
    inputs: Vec<OpenInput>,
    init: OwnedFd,
    init_end: OwnedFd,
    handles: OwnedFd,
}

/// The private root: made beside us, or still to be made by the child, or none.
#[derive(Debug)]
enum Root {
    Made(Beside),
    ToMake(Sources),
    /// There is none: the sandbox sees the host's.
    Absent,
}

/// Starts making the namespaces in which nothing else of a launch happens. Needs root in the host's
/// user namespace.
pub(crate) fn begin_namespaces() -> io::Result<Beside> {
    let mut program = Program::default();
    program.push("make the namespaces", Op::QuietNamespaces);
    furnish(&mut program);
    program.push("keep the namespaces", Op::KeepQuiet);
    Beside::start(program)
}

/// What is set up once in the network and uts namespaces.
fn furnish(program: &mut Program) {
    program.push("bring loopback up", Op::LoopbackUp);
    program.push("set the host name", Op::Hostname(c_string("sandbox")));
}

/// Starts putting the root together, in the mount namespace that the sandbox will live in. With root only: the
/// mounts of an ordinary user must be made in the sandbox's own user namespace.
fn begin_root(plan: &NativePlan, identity: &Identity, sources: Sources) -> io::Result<Beside> {
    let mut program = Program::default();
    program.push("clear the file mode mask", Op::ClearUmask);
    program.push("take a mount namespace", Op::MountNamespace);
    program.push("make the mounts private", Op::MountsPrivate);
    program.extend(RootBuilder::new(plan, identity).build(sources));
    program.push("keep the mount namespace", Op::KeepMounts);
    program.push("enter the private root", Op::EnterRoot);
    Beside::start(program)
}

/// Builds every wall, then starts the guest's first process. What was made is removed if a step fails.
pub(crate) fn launch(plan: &NativePlan, parts: LaunchParts) -> Result<NativeInstance, LaunchError> {
    let LaunchParts { identity, cgroup, plumbing, namespaces, root, rest, control, handles, etc, inputs } =
        parts;
    let held = if plan.shape.has_root() { None } else { Some(settle(plan, &identity, inputs)?) };
    let cgroup = if plan.pooled { cgroup } else { make_cgroup(plan)? };
    let fresh = plan.shape.namespaces(namespaces.as_ref(), &identity);
    let mut program = Program::default();
    let made = enter(&mut program, &plan.shape, &identity, cgroup.as_ref()).and_then(|()| {
        plumbing.begin_in_child(&mut program);
        let maker = root.place(plan, &identity, &mut program)?;
        // It joins the namespaces that are taken from their maker then.
        let laid = plumbing.place(&mut program)?;
        enter_namespaces(&mut program, &plan.shape, namespaces.as_ref())?;
        Ok((laid, maker))
    });
    program.extend(rest);
    let spawned = made.and_then(|made| Ok((launch::spawn(&program, fresh, None)?, made)));
    drop(program);
    match spawned {
        Ok((spawned, (Laid { mut sockets, maker: plumber }, maker))) => {
            let Handed { output, root, listener, sockets: sent } = receive_handles(&handles);
            sockets.extend(sent);
            let (output, held) = match held {
                None => (output, None),
                Some(mut held) => (held.output.take(), Some(held)),
            };
            let gateway = plan.placement.gateway.as_ref().map(|spec| gateway::named(spec, sockets));
            let gateway =
                gateway.transpose().map_err(|error| prepare("take the gateway's sockets", &error))?;
            let makers = [namespaces, plumber, maker];
            let listener = listener.map(Listener::from);
            let parts = Parts {
                _identity: identity,
                _etc: etc,
                cgroup,
                spawned,
                control,
                output,
                root,
                listener,
                gateway,
                held,
                _makers: makers,
            };
            NativeInstance::new(parts).map_err(|error| prepare("watch the sandbox", &error))
        }
        Err(error) => {
            remove(cgroup.as_ref());
            shape::doubt(&plan.placement.shared);
            Err(explain(&error))
        }
    }
}

/// What is done outside where there is no root to do it in: the run's own folders, with its inputs.
fn settle(plan: &NativePlan, identity: &Identity, inputs: Vec<OpenInput>) -> Result<Held, LaunchError> {
    let folders = Folders::of(&plan.envelope, &plan.placement);
    let made = folders.make(&plan.envelope, &plan.placement, identity);
    let held = made.map_err(|error| prepare("make the sandbox's folders", &error))?;
    for OpenInput { mut file, at, mode } in inputs {
        folders
            .copy_in(&mut file, (std::path::Path::new(&at), mode), identity)
            .map_err(|error| prepare("copy the inputs in", &error))?;
    }
    // What outlives the first process, were that killed, comes to us.
    process::adopt_orphans().map_err(|error| prepare("adopt what the sandbox leaves", &error))?;
    Ok(held)
}

fn make_cgroup(plan: &NativePlan) -> Result<Option<Cgroup>, LaunchError> {
    let made = plan.hierarchy.create(&plan.placement.id, plan.envelope.resources(), plan.host_cpus);
    made.map_err(|error| prepare("make the cgroup", &error))
}

fn remove(cgroup: Option<&Cgroup>) {
    let folders: Vec<_> = cgroup.into_iter().flat_map(Cgroup::folders).cloned().collect();
    // A folder that stays is found again by its name.
    let _ = crate::cgroup::remove(&folders);
}

fn enter_namespaces(program: &mut Program, shape: &Shape, made: Option<&Beside>) -> Result<(), SpawnError> {
    match made {
        None if shape.has_network() => furnish(program),
        None if shape.has_root() => program.push("set the host name", Op::Hostname(c_string("sandbox"))),
        None => {}
        Some(maker) => {
            for namespace in maker.finish()? {
                program.push("enter the namespaces", Op::EnterNamespace(namespace));
            }
        }
    }
    Ok(())
}

/// What follows once the root is there: enter it, fill it, limit, lock down, execute.
fn rest(plan: &NativePlan, identity: &Identity, gifts: Gifts) -> Result<Program, LaunchError> {
    let Gifts { inputs, init, init_end, handles } = gifts;
    let mut program = Program::default();
    if plan.shape.has_root() {
        program.extend(proc());
        if !identity.own {
            program.push("enter the private root", Op::EnterRoot);
        }
    }
    copy_in(&mut program, inputs, identity);
    let listener = handles.try_clone().map_err(|error| prepare("share the output folder", &error))?;
    if plan.shape.has_root() {
        send_handles(&mut program, &plan.envelope, handles)
            .map_err(|error| prepare("share the output folder", &error))?;
    }
    limit(&mut program, plan, identity);
    lock_down(&mut program, plan, identity, init_end, listener);
    program.push("execute init", Op::Execute { program: init, name: c_string("init") });
    Ok(program)
}

// === impl Root ===

impl Root {
    /// Adds the steps that make the root the working directory. Gives its maker, if it has one.
    fn place(
        self,
        plan: &NativePlan,
        identity: &Identity,
        program: &mut Program,
    ) -> Result<Option<Beside>, SpawnError> {
        match self {
            Self::Absent => Ok(None),
            Self::ToMake(sources) => {
                program.extend(RootBuilder::new(plan, identity).build(sources));
                Ok(None)
            }
            Self::Made(maker) => {
                for namespace in maker.finish()? {
                    program.push("enter the private root", Op::EnterNamespace(namespace));
                }
                Ok(Some(maker))
            }
        }
    }
}

// === impl LaunchParts ===

impl LaunchParts {
    /// Makes them. What takes long is begun beside us, and waited for by the launch.
    pub(crate) fn prepare(plan: &mut NativePlan) -> Result<Self, LaunchError> {
        let step = |step: &'static str| move |error: io::Error| prepare(step, &error);
        let identity = Identity::take(plan.envelope.privilege().uid).map_err(|_| no_identity())?;
        let rooted = plan.shape.has_root();
        let sources = rooted.then(|| Sources::find(plan, &identity)).transpose();
        let mut sources = sources.map_err(step("make the sandbox's /etc"))?;
        let etc = sources.as_mut().and_then(|sources| sources.hold.take());
        let mut namespaces = plan.namespaces.take().filter(|_| plan.shape.has_network());
        let foreseen = plan.gateway.take();
        if identity.own && plan.shape.has_network() {
            namespaces = namespaces.or_else(|| begin_namespaces().ok());
        }
        let (handles, theirs) = socket::pair().map_err(step("make the control socket"))?;
        let gateway = plan.placement.gateway.as_ref();
        let plumbing = Plumbing::begin(gateway, (namespaces.as_ref(), foreseen), &theirs);
        let plumbing = plumbing.map_err(step("make the gateway"))?;
        let root = match sources {
            None => Root::Absent,
            Some(sources) if identity.own => {
                Root::Made(begin_root(plan, &identity, sources).map_err(step("make the private root"))?)
            }
            Some(sources) => Root::ToMake(sources),
        };
        let opened = open_inputs(&plan.envelope)?;
        let (to_child, inputs) = if rooted { (opened, Vec::new()) } else { (Vec::new(), opened) };
        let init = init_image::memfd().and_then(|file| process::move_up(file, FIRST_FREE_DESCRIPTOR));
        let init = init.map_err(step("make the image of init"))?;
        let (control, init_end) = Control::new().map_err(step("make the control socket"))?;
        let rest = rest(plan, &identity, Gifts { inputs: to_child, init, init_end, handles: theirs })?;
        // It is the one part that outlives a process that dies here. A pool's owner is there to remove it;
        // else it is left to the launch, which comes after the record.
        let cgroup = if plan.pooled { make_cgroup(plan)? } else { None };
        Ok(Self { identity, cgroup, plumbing, namespaces, root, rest, control, handles, etc, inputs })
    }

    /// Hands over a command that the first process will find when it starts.
    pub(crate) fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<u32, ExecError> {
        self.control.exec(request, stdio, true)
    }

    /// Removes what would outlive us of a sandbox that will not be.
    pub(crate) fn abandon(&self) {
        remove(self.cgroup.as_ref());
    }
}

/// Who the child is, before it changes what it sees.
fn enter(
    program: &mut Program,
    shape: &Shape,
    identity: &Identity,
    cgroup: Option<&Cgroup>,
) -> Result<(), SpawnError> {
    if shape.has_root() {
        // Without a PID namespace the first process must outlive its keeper for a moment, to end all others.
        program.push("tie the sandbox to its keeper", Op::DieWithParent);
    }
    program.push("clear the file mode mask", Op::ClearUmask);
    if shape.has_root() && !identity.own {
        let pair = |inside, outside| (inside, outside);
        let uid = pair(identity.inside.0, identity.kernel.0);
        let gid = pair(identity.inside.1, identity.kernel.1);
        program.push("map the user", Op::MapIds { uid, gid });
    }
    for join in cgroup.iter().flat_map(|cgroup| &cgroup.joins) {
        let join = join.try_clone().map_err(SpawnError::Clone)?;
        program.push("enter the cgroup", Op::JoinCgroup(join));
    }
    if shape.has_root() {
        program.push("take a cgroup namespace", Op::CgroupNamespace);
    }
    if shape.has_root() && !identity.own {
        program.push("make the mounts private", Op::MountsPrivate);
    }
    Ok(())
}

fn copy_in(program: &mut Program, inputs: Vec<OpenInput>, identity: &Identity) {
    let owner = identity.own.then_some(identity.kernel);
    for OpenInput { file, at, mode } in inputs {
        let above: Vec<_> = std::path::Path::new(&at).ancestors().skip(1).map(c_path).collect();
        for folder in above.into_iter().rev().filter(|folder| folder.as_bytes() != b"/") {
            program.push("copy the inputs in", Op::MakeDir { path: folder, mode: 0o755, owner });
        }
        let op = Op::CopyFile { from: file.into(), path: c_string(&at), mode, owner };
        program.push("copy the inputs in", op);
    }
}

fn send_handles(program: &mut Program, envelope: &Envelope, socket: OwnedFd) -> io::Result<()> {
    if envelope.filesystem().output.is_some() {
        let op = Op::SendFolder { path: c_string("/out"), socket: socket.try_clone()?, tag: OUTPUT };
        program.push("share the output folder", op);
    }
    program.push("share the root", Op::SendFolder { path: c_string("/"), socket, tag: ROOT });
    Ok(())
}

/// What the child handed over before anything untrusted ran.
#[derive(Debug, Default)]
struct Handed {
    output: Option<OwnedFd>,
    root: Option<OwnedFd>,
    listener: Option<OwnedFd>,
    /// The gateway's.
    sockets: Vec<OwnedFd>,
}

fn receive_handles(socket: &OwnedFd) -> Handed {
    let mut handed = Handed::default();
    let mut tag = [0_u8; 1];
    while let Ok(packet) = socket::receive(socket.as_fd(), &mut tag) {
        if packet.length == 0 {
            break;
        }
        if tag == [gateway::SOCKETS] {
            handed.sockets.extend(packet.descriptors);
            continue;
        }
        let handle = packet.descriptors.into_iter().next();
        match tag {
            [OUTPUT] => handed.output = handle,
            [LISTENER] => handed.listener = handle,
            _ => handed.root = handle,
        }
    }
    handed
}

fn limit(program: &mut Program, plan: &NativePlan, identity: &Identity) {
    let limits = plan.envelope.resources();
    let mut limit = |resource, value| program.push("set the resource limits", Op::Limit { resource, value });
    limit(libc_resource::CORE, 0);
    limit(libc_resource::NOFILE, u64::from(limits.open_files));
    limit(libc_resource::FSIZE, limits.file_size_bytes);
    if matches!(plan.hierarchy, Hierarchy::None { .. }) {
        // Counted per user and user namespace, so only without one do the caller's other processes matter. Two
        // are init's.
        let others =
            if plan.shape.has_root() || identity.own { 0 } else { usage::threads_of(identity.kernel.0) };
        limit(libc_resource::NPROC, u64::from(limits.processes) + 2 + others);
        limit(libc_resource::DATA, limits.memory_bytes);
    }
    if limits.cpu_millis < plan.host_cpus.saturating_mul(1000) {
        program.push("limit the processors", Op::Processors(limits.cpu_millis.div_ceil(1000).max(1)));
    }
}

fn lock_down(
    program: &mut Program,
    plan: &NativePlan,
    identity: &Identity,
    init_end: OwnedFd,
    listener: OwnedFd,
) {
    if plan.shape.has_root() {
        if identity.own {
            let op = Op::LateUserNamespace { inside: identity.inside, outside: identity.kernel };
            program.push("become the sandbox's user", op);
        }
        program.push("drop the capabilities", Op::DropCapabilities);
    } else {
        if identity.own {
            program.push("drop the capabilities", Op::LimitCapabilities);
            program.push("become the sandbox's user", Op::Become { ids: identity.kernel });
        }
        program.push("drop the capabilities", Op::ClearCapabilities);
        let folders = Folders::of(&plan.envelope, &plan.placement);
        program.push("enter the workspace", Op::WorkIn(c_path(folders.workspace())));
    }
    program.push("forbid new privileges", Op::NoNewPrivileges);
    program.push("place the descriptors", Op::Descriptors { control: init_end });
    let rules = if plan.shape.has_root() {
        ruleset(plan)
    } else {
        bare::ruleset(&plan.envelope, &plan.placement, plan.landlock)
    };
    program.push("enforce Landlock", Op::Landlock(rules));
    let workspace = plan.envelope.filesystem().workspace.as_ref();
    let set_id = match workspace.map(|workspace| workspace.mode) {
        // What it writes is on the host's own disk.
        _ if !plan.shape.has_root() => SetId::Refused,
        Some(WorkspaceMode::ReadWrite) => SetId::Refused,
        Some(WorkspaceMode::CopyOnWrite | WorkspaceMode::ReadOnly) | None => SetId::Allowed,
    };
    let shared = match &plan.shape {
        Shape::Container | Shape::Rooted { network: true } => Shared::Nothing,
        Shape::Rooted { network: false } => Shared::Network,
        Shape::Bare { .. } => Shared::Everything { user: !identity.own },
    };
    let filter = syscalls::filter(plan.envelope.privilege().syscalls, set_id, shared);
    let op = Op::Seccomp { filter, socket: listener, tag: LISTENER };
    program.push("enforce the system call filter", op);
}

/// Everything that is there may be read; only what is the sandbox's own may be written.
fn ruleset(plan: &NativePlan) -> Ruleset {
    let mut ruleset = Ruleset::new(plan.landlock);
    ruleset.allow(c_string("/"), Access::Read);
    ruleset.allow(c_string("/dev"), Access::Use);
    ruleset.allow(c_string("/proc"), Access::Use);
    // What is not the sandbox's own beneath `/run` and `/var` is held by permission bits.
    for path in ["/dev/shm", "/tmp", "/var", "/run", "/workspace", "/out"] {
        ruleset.allow(c_string(path), Access::Write);
    }
    ruleset.allow(c_path(&plan.placement.home_at), Access::Write);
    for (_, guest) in &plan.placement.caches {
        ruleset.allow(c_path(guest), Access::Write);
    }
    ruleset
}

fn open_inputs(envelope: &Envelope) -> Result<Vec<OpenInput>, LaunchError> {
    let open = |input: &fumehood_model::envelope::Input| {
        let fail = |why: String| LaunchError {
            step: format!("read the input `{}`", input.source.display()),
            why,
            remedy: "name a file that you can read with `--in`; a folder is shown with `--ro`".to_owned(),
        };
        let (file, host_mode) = open_plain(&input.source).map_err(|error| fail(reason(&error)))?;
        let mode = if host_mode & 0o111 == 0 { 0o644 } else { 0o755 };
        Ok(OpenInput { file, at: format!("/{}", beneath(&input.at)), mode })
    };
    envelope.filesystem().inputs.iter().map(open).collect()
}

/// Opens a regular file without ever waiting for a fifo, and tells its mode.
fn open_plain(path: &std::path::Path) -> io::Result<(File, u32)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    /// `O_NONBLOCK` on this target.
    const NONBLOCKING: i32 = 0o4000;
    let file = File::options().read(true).custom_flags(NONBLOCKING).open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&meta);
    Ok((file, mode))
}

/// Limit numbers of this target.
mod libc_resource {
    pub(super) const FSIZE: u32 = 1;
    pub(super) const DATA: u32 = 2;
    pub(super) const CORE: u32 = 4;
    pub(super) const NPROC: u32 = 6;
    pub(super) const NOFILE: u32 = 7;
}

fn no_identity() -> LaunchError {
    LaunchError {
        step: "take a kernel uid".to_owned(),
        why: "every uid that was tried is held by another sandbox".to_owned(),
        remedy: "end some of the sandboxes that run on this host".to_owned(),
    }
}

fn prepare(step: &str, error: &io::Error) -> LaunchError {
    LaunchError { step: step.to_owned(), why: reason(error), remedy: remedy(step, error) }
}

fn explain(error: &SpawnError) -> LaunchError {
    match error {
        SpawnError::Clone(source) => prepare("make the namespaces", source),
        SpawnError::Step { step, source } => prepare(step, source),
        SpawnError::Died => LaunchError {
            step: "execute init".to_owned(),
            why: "the first process ended before it ran".to_owned(),
            remedy: "give the sandbox more memory with `--memory`".to_owned(),
        },
    }
}

/// The kernel's word, without the number that Rust adds.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn remedy(step: &str, error: &io::Error) -> String {
    let text = match (step, error.kind()) {
        ("make the namespaces" | "map the user", io::ErrorKind::PermissionDenied) => {
            "this host forbids user namespaces to ordinary users: `fumehood doctor` says what allows them"
        }
        ("make the namespaces", _) => {
            "raise `/proc/sys/user/max_user_namespaces` and its neighbours, or end other sandboxes"
        }
        ("mount /proc", _) => {
            "an outer container covers parts of /proc: start it with `--security-opt systempaths=unconfined`"
        }
        ("mount the workspace", _) => {
            "keep the state folder (`FUMEHOOD_STATE`) on a local file system such as ext4, xfs, btrfs or tmpfs, or show the workspace with `:ro` or `:rw`"
        }
        ("show a read-only path", io::ErrorKind::ReadOnlyFilesystem) => {
            "the place inside does not exist, and its folder is read-only there: give another, as in `--ro PATH:/data/NAME`"
        }
        ("see the workspace as the sandbox's own" | "show the workspace" | "show a read-only path", _) => {
            "the path must exist, and its file system must support id-mapped mounts when root starts the sandbox; an ordinary user needs no such support"
        }
        _ if error.raw_os_error() == Some(LINK_IN_THE_WAY) => {
            "a link stands on the way to that place inside, where an earlier command or the workspace put it: name the place that it leads to, or remove it"
        }
        ("copy the inputs in", io::ErrorKind::AlreadyExists) => {
            "the workspace has a file of that name already: give the input another place, as in `--in FILE:/workspace/in/FILE`"
        }
        ("copy the inputs in", io::ErrorKind::ReadOnlyFilesystem) => {
            "an input's place is in a folder that is read-only inside: give it another, as in `--in FILE:/workspace/in/FILE`"
        }
        ("show the image's /etc", _) => "`--image` takes an unpacked root folder, with `etc` and `usr` in it",
        ("copy the inputs in", _) => {
            "give each input its own destination, and keep them smaller than the scratch folder (half of `--memory`)"
        }
        ("redirect in the gateway", _) => {
            "load the modules nf_tables and nft_nat, or name single ports: those need no packet filter"
        }
        ("make the gateway's network" | "listen in the gateway" | "join the sandbox to its gateway", _) => {
            "the kernel needs IPv6, packet sockets and veth (`CONFIG_IPV6`, `CONFIG_PACKET`, `CONFIG_VETH`), and `/proc/sys/net` writable; without rules none of it is needed"
        }
        (_, io::ErrorKind::StorageFull) => "free some space on the disk of the state folder",
        _ => "`fumehood doctor` looks at what this host can hold",
    };
    text.to_owned()
}
