//! Launching one sandbox: the whole order of things, on one page.

use crate::bare::{self, Folders, Held};
use crate::cgroup::{Cgroup, Hierarchy};
use crate::control::Control;
use crate::gateway::{self, Laid, Plumbing, Stack};
use crate::identity::Identity;
use crate::init_image;
use crate::instance::{NativeInstance, Parts};
use crate::plan::{NativePlan, Sources};
use crate::root::{self, RootBuilder, c_path, c_string, proc};
use crate::shape::{self, Shape};
use crate::steps::{
    Handed, LISTENER, OUTPUT, OpenInput, ROOT, copy_in, explain, no_identity, open_inputs, prepare,
};
use crate::syscalls::{self, SetId, Shared};
use crate::usage;
use fumehood_backend::{ExecError, GuestStdio, LaunchError};
use fumehood_model::envelope::Envelope;
use fumehood_model::exec::ExecRequest;
use fumehood_sys::landlock::{Access, Ruleset};
use fumehood_sys::launch::{self, Beside, Op, Program, SpawnError};
use fumehood_sys::notify::Listener;
use fumehood_sys::{process, socket};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

/// Below this the launcher places init's own descriptors.
const FIRST_FREE_DESCRIPTOR: i32 = 10;
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

/// What puts the root of a plan together.
fn builder<'a>(plan: &'a NativePlan, identity: &'a Identity) -> RootBuilder<'a> {
    RootBuilder::new(&plan.envelope, &plan.placement, identity).bare(plan.bare.as_ref())
}

/// Starts making what is part of any root on the host's own system. As [`begin_namespaces`].
pub(crate) fn begin_frame() -> io::Result<Beside> {
    let mut program = mount_namespace();
    program.extend(root::frame());
    Beside::begin(program)
}

/// Starts putting the root together, in the mount namespace that the sandbox will live in. With root only: the
/// mounts of an ordinary user must be made in the sandbox's own user namespace.
fn begin_root(
    plan: &NativePlan,
    identity: &Identity,
    sources: Sources,
    frame: Option<Beside>,
) -> io::Result<Beside> {
    let builder = builder(plan, identity);
    let frame = frame.filter(|_| builder.has_frame());
    let mut program = if frame.is_some() { Program::default() } else { mount_namespace() };
    let builder = if frame.is_some() { builder.framed() } else { builder };
    program.extend(builder.build(sources));
    program.push("keep the mount namespace", Op::KeepMounts);
    program.push("enter the private root", Op::EnterRoot);
    match frame {
        None => Beside::start(program),
        Some(maker) => {
            maker.go_on(program);
            Ok(maker)
        }
    }
}

fn mount_namespace() -> Program {
    let mut program = Program::default();
    program.push("clear the file mode mask", Op::ClearUmask);
    program.push("take a mount namespace", Op::MountNamespace);
    program.push("make the mounts private", Op::MountsPrivate);
    program
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
    let lives_on = plan.placement.living.is_some();
    let spawned = made.and_then(|made| Ok((launch::spawn(&program, fresh, None)?, made)));
    drop(program);
    match spawned {
        Ok((spawned, (Laid { mut sockets, maker: plumber }, maker))) => {
            let Handed { output, root, listener, sockets: sent } = Handed::receive(&handles);
            sockets.extend(sent);
            let (output, held) = match held {
                None => (output, None),
                Some(mut held) => (held.output.take(), Some(held)),
            };
            let gateway = plan.placement.gateway.as_ref().map(|spec| gateway::named(spec, sockets));
            let gateway =
                gateway.transpose().map_err(|error| prepare("take the gateway's sockets", &error))?;
            // For one command they are waited for at its end, when they are long gone; what lives on waits now.
            let makers = [namespaces, plumber, maker].map(|maker| maker.filter(|_| !lives_on));
            let listener = listener.map(Listener::from);
            let parts = Parts {
                identity,
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
    let made = {
        let freezes = plan.placement.living.is_some();
        plan.hierarchy.create(&plan.placement.id, plan.envelope.resources(), plan.host_cpus, freezes)
    };
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
    copy_in(&mut program, inputs, "", identity.own.then_some(identity.kernel));
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
                program.extend(builder(plan, identity).build(sources));
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
        let identity = Identity::take(plan.envelope.privilege().uid).map_err(|error| no_identity(&error))?;
        let rooted = plan.shape.has_root();
        let sources =
            rooted.then(|| Sources::find(&plan.envelope, &plan.placement, &identity, plan.system()));
        let mut sources = sources.transpose().map_err(step("make the sandbox's /etc"))?;
        let etc = sources.as_mut().and_then(|sources| sources.hold.take());
        let mut namespaces = plan.namespaces.take().filter(|_| plan.shape.has_network());
        let foreseen = plan.gateway.take();
        if identity.own && plan.shape.has_network() {
            namespaces = namespaces.or_else(|| begin_namespaces().ok());
        }
        let (handles, theirs) = socket::pair().map_err(step("make the control socket"))?;
        let gateway = plan.placement.gateway.as_ref();
        let plumbing = Plumbing::begin(gateway, Stack::Kernel, (namespaces.as_ref(), foreseen), &theirs);
        let plumbing = plumbing.map_err(step("make the gateway"))?;
        let root = match sources {
            None => Root::Absent,
            Some(sources) if identity.own => {
                let frame = plan.frame.take();
                let made = begin_root(plan, &identity, sources, frame);
                Root::Made(made.map_err(step("make the private root"))?)
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
    program.push("take an ordinary priority", Op::OrdinaryPriority);
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

fn send_handles(program: &mut Program, envelope: &Envelope, socket: OwnedFd) -> io::Result<()> {
    if envelope.filesystem().output.is_some() {
        let op = Op::SendFolder { path: c_string("/out"), socket: socket.try_clone()?, tag: OUTPUT };
        program.push("share the output folder", op);
    }
    program.push("share the root", Op::SendFolder { path: c_string("/"), socket, tag: ROOT });
    Ok(())
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
    // Without a root, what it writes is on the host's own disk.
    let set_id = if plan.shape.has_root() { SetId::of(&plan.envelope) } else { SetId::Refused };
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

/// Limit numbers of this target.
mod libc_resource {
    pub(super) const FSIZE: u32 = 1;
    pub(super) const DATA: u32 = 2;
    pub(super) const CORE: u32 = 4;
    pub(super) const NPROC: u32 = 6;
    pub(super) const NOFILE: u32 = 7;
}
