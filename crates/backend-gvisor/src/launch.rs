//! Launching one sandbox: the whole order of things, on one page.
//!
//! Two roots are made in a mount namespace of our own: the guest's, as at the container level, and around it
//! the one that `runsc` sees. Beside that a companion makes the network in a user namespace that has no id of
//! the host's, which `runsc` will live in, so that it may take the link over.

use crate::bundle::{self, FILTER, GUESTD};
use crate::machine::Sandbox;
use crate::plan::GvisorPlan;
use fumehood_backend::LaunchError;
use fumehood_backend_native::cgroup::{self, Cgroup};
use fumehood_backend_native::gateway::{self, Laid, Plumbing, Stack};
use fumehood_backend_native::identity::Identity;
use fumehood_backend_native::plan::{Sources, System};
use fumehood_backend_native::root::{READ_ONLY, RootBuilder, c_path, c_string};
use fumehood_backend_native::steps::{
    Handed, OUTPUT, OpenInput, ROOT, copy_in, explain, no_identity, open_inputs, prepare,
};
use fumehood_backend_native::syscalls::{self, SetId};
use fumehood_guest::GuestInstance;
use fumehood_guest::host::Terms;
use fumehood_guest::image;
use fumehood_sys::idmap::{self, Range};
use fumehood_sys::launch::{
    self, Attributes, Beside, Command, Namespaces, Op, Program, Root as NewRoot, SpawnError,
};
use fumehood_sys::{process, socket};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Below this the launcher places the streams.
const FIRST_FREE_DESCRIPTOR: i32 = 10;
/// How long gVisor may take to start `guestd`, on a machine with much else to do.
const PATIENCE: Duration = Duration::from_secs(30);
/// The root that `runsc` sees holds its state and nothing else.
const OUTER_BYTES: u64 = 16 << 20;
const OUTER_INODES: u64 = 4096;
/// `RLIMIT_CORE` on this target.
const CORE: u32 = 4;

/// Devices that `runsc` opens.
const DEVICES: [(&str, u32, u32); 3] = [("dev/null", 1, 3), ("dev/zero", 1, 5), ("dev/urandom", 1, 9)];

/// Everything that is made before the child exists.
#[derive(Debug)]
pub(crate) struct Parts {
    /// The guest's, and that of `runsc`.
    identities: [Identity; 2],
    users: OwnedFd,
    /// Its maker uses what the next one has made, so it goes first.
    plumbing: Plumbing,
    namespaces: Beside,
    root: Beside,
    inputs: Vec<OpenInput>,
    /// Both ends of the socket on which the child hands over folders.
    handles: (OwnedFd, OwnedFd),
    etc: Option<File>,
}

/// The child's standard streams, and our ends of them.
#[derive(Debug)]
struct Streams {
    theirs: [OwnedFd; 3],
    to: OwnedFd,
    from: OwnedFd,
    words: OwnedFd,
}

// === impl Parts ===

impl Parts {
    /// Makes them. What takes long is begun beside us, and waited for by the launch.
    pub(crate) fn prepare(plan: &GvisorPlan) -> Result<Self, LaunchError> {
        let step = |step: &'static str| move |error: io::Error| prepare(step, &error);
        let take = |uid| Identity::take(uid).map_err(|error| no_identity(&error));
        let identities = [take(plan.envelope.privilege().uid)?, take(0)?];
        let [guest, outer] = &identities;
        let users = users(guest, outer).map_err(step("make gVisor's user namespace"))?;
        let namespaces = begin_namespaces(&users).map_err(step("make the namespaces"))?;
        let handles = socket::pair().map_err(step("make the control socket"))?;
        let wished = plan.placement.gateway.as_ref();
        let plumbing = Plumbing::begin(wished, Stack::Other, (Some(&namespaces), None), &handles.1);
        let plumbing = plumbing.map_err(step("make the gateway"))?;
        let mut sources = Sources::find(&plan.envelope, &plan.placement, guest, System::Present)
            .map_err(step("make the sandbox's /etc"))?;
        let etc = sources.hold.take();
        let root = begin_root(plan, (guest, outer), sources).map_err(step("make the private root"))?;
        let inputs = open_inputs(&plan.envelope)?;
        Ok(Self { identities, users, plumbing, namespaces, root, inputs, handles, etc })
    }
}

/// A user namespace in which root and the guest's user are kernel ids that nothing else has.
fn users(guest: &Identity, outer: &Identity) -> io::Result<OwnedFd> {
    let one = |inside, outside| Range { inside, outside, count: 1 };
    let map = |pick: fn(&(u32, u32)) -> u32| {
        vec![one(0, pick(&outer.kernel)), one(pick(&guest.inside), pick(&guest.kernel))]
    };
    idmap::namespace(&map(|ids| ids.0), &map(|ids| ids.1))
}

/// Starts making the namespaces that `runsc` owns: the network's above all.
fn begin_namespaces(users: &OwnedFd) -> io::Result<Beside> {
    let mut program = Program::default();
    program.push("enter gVisor's user namespace", Op::EnterNamespace(users.try_clone()?));
    program.push("enter gVisor's user namespace", Op::BecomeRoot);
    program.push("make the namespaces", Op::QuietNamespaces);
    program.push("bring loopback up", Op::LoopbackUp);
    program.push("set the host name", Op::Hostname(c_string("sandbox")));
    program.push("keep the namespaces", Op::KeepQuiet);
    Beside::start(program)
}

/// Starts putting both roots together, in the mount namespace that they will be seen in.
fn begin_root(
    plan: &GvisorPlan,
    (guest, outer): (&Identity, &Identity),
    sources: Sources,
) -> io::Result<Beside> {
    let mut program = Program::default();
    program.push("clear the file mode mask", Op::ClearUmask);
    program.push("take a mount namespace", Op::MountNamespace);
    program.push("make the mounts private", Op::MountsPrivate);
    program.extend(RootBuilder::new(&plan.envelope, &plan.placement, guest).build(sources));
    let guestd = made(c_string(GUESTD), image::BYTES.to_vec(), 0o555);
    program.push("put guestd in", guestd);
    let filter = syscalls::filter_alone(plan.envelope.privilege().syscalls, SetId::of(&plan.envelope));
    let filter = made(c_string(FILTER), filter.bytes(), 0o444);
    program.push("put the system call filter in", filter);
    program.extend(outer_root(plan, outer)?);
    program.push("keep the mount namespace", Op::KeepMounts);
    program.push("enter gVisor's root", Op::EnterRoot);
    Beside::start(program)
}

/// The root that `runsc` sees: itself, its bundle and state, three devices, and the guest's root.
fn outer_root(plan: &GvisorPlan, outer: &Identity) -> io::Result<Program> {
    const PHRASE: &str = "make gVisor's root";
    let shared = &plan.placement.shared;
    let at = shared.join("gvisor");
    match std::fs::create_dir(&at) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut program = Program::default();
    let mut step = |op| program.push(PHRASE, op);
    step(Op::NewRoot(NewRoot {
        at: c_path(&at),
        size_bytes: OUTER_BYTES,
        inodes: OUTER_INODES,
        devices: true,
    }));
    for name in ["bundle", "dev", "empty", "etc", "proc", "rootfs", "tmp"] {
        step(Op::MakeDir { path: c_string(name), mode: 0o755, owner: None });
    }
    step(Op::MakeDir { path: c_string("state"), mode: 0o700, owner: Some(outer.kernel) });
    for (name, major, minor) in DEVICES {
        step(Op::Device { path: c_string(name), major, minor });
    }
    let whole = Attributes { read_only: false, devices: true, executable: true };
    let guest = Op::Bind {
        source: c_path(&shared.join("root")),
        target: c_string("rootfs"),
        attributes: whole,
        idmap: None,
    };
    step(guest);
    let program_file = c_path(&plan.runsc.path);
    step(Op::Bind { source: program_file, target: c_string("runsc"), attributes: READ_ONLY, idmap: None });
    step(made(c_string("bundle/config.json"), bundle::config(&plan.envelope), 0o444));
    Ok(program)
}

fn made(path: CString, content: Vec<u8>, mode: u32) -> Op {
    Op::WriteFile { path, after: None, content: Arc::new(content), mode }
}

/// Builds every wall, starts gVisor, and waits until `guestd` answers from inside. What was made is removed if
/// a step fails.
pub(crate) fn launch(plan: &GvisorPlan, parts: Parts) -> Result<GuestInstance<Sandbox>, LaunchError> {
    let around = plan.around();
    let freezes = plan.placement.living.is_some();
    let cgroup = plan.hierarchy.create(&plan.placement.id, &around, plan.host_cpus, freezes);
    let cgroup = cgroup.map_err(|error| prepare("make the cgroup", &error))?;
    let folders: Vec<_> = cgroup.iter().flat_map(Cgroup::folders).cloned().collect();
    let launched = spawn(plan, parts, cgroup);
    if launched.is_err() {
        // A folder that stays is found again by its name.
        let _ = cgroup::remove(&folders);
    }
    launched
}

fn spawn(
    plan: &GvisorPlan,
    parts: Parts,
    cgroup: Option<Cgroup>,
) -> Result<GuestInstance<Sandbox>, LaunchError> {
    let Parts { identities, users, plumbing, namespaces, root, inputs, handles, etc } = parts;
    let (ours, theirs) = handles;
    let Streams { theirs: streams, to, from, words } =
        Streams::new().map_err(|error| prepare("make the streams", &error))?;
    let mut program = Program::default();
    let fill = |program: &mut Program| -> Result<Laid, SpawnError> {
        enter(program, cgroup.as_ref(), &root)?;
        let [guest, _] = &identities;
        copy_in(program, inputs, bundle::ROOT, Some(guest.kernel));
        send_handles(program, plan, theirs)?;
        limit(program, plan);
        program.push("enter gVisor's user namespace", Op::EnterNamespace(users));
        program.push("enter gVisor's user namespace", Op::BecomeRoot);
        let laid = plumbing.place(program)?;
        for namespace in namespaces.finish()? {
            program.push("enter the namespaces", Op::EnterNamespace(namespace));
        }
        program.push("forbid new privileges", Op::NoNewPrivileges);
        program.push("place the streams", Op::Streams(streams));
        let strings = |words: &[String]| words.iter().map(|word| c_string(word)).collect::<Vec<_>>();
        let arguments = strings(&bundle::arguments(plan.placement.gateway.is_some()));
        let environment = strings(&["PATH=/".to_owned(), "HOME=/".to_owned(), "TMPDIR=/tmp".to_owned()]);
        let command = Command::new(c_string(bundle::PROGRAM), arguments, environment);
        program.push("execute runsc", Op::BecomeProgram(command));
        Ok(laid)
    };
    let fresh = Namespaces { pids: true, ..Namespaces::default() };
    let spawned = fill(&mut program).and_then(|laid| Ok((launch::spawn(&program, fresh, None)?, laid)));
    drop(program);
    let (spawned, Laid { sockets, maker }) = spawned.map_err(|error| explain(&error))?;
    let Handed { output, root: guest_root, .. } = Handed::receive(&ours);
    let sockets = plan.placement.gateway.as_ref().map(|spec| gateway::named(spec, sockets)).transpose();
    let gateway = sockets.map_err(|error| prepare("take the gateway's sockets", &error))?;
    let machine = Sandbox {
        identities,
        _etc: etc,
        cgroup,
        spawned,
        output,
        root: guest_root,
        gateway,
        words: words.into(),
        frozen: false,
        cpu_ms: 0,
        _makers: [Some(namespaces), maker, Some(root)],
    };
    greet(from, to, machine)
}

/// Waits for `guestd`.
fn greet(from: OwnedFd, to: OwnedFd, machine: Sandbox) -> Result<GuestInstance<Sandbox>, LaunchError> {
    use fumehood_guest::instance::Machine as _;
    match GuestInstance::greet((from, to), Terms::default(), machine, PATIENCE) {
        Ok(instance) => Ok(instance),
        Err((error, mut machine)) => {
            let why = if error.kind() == io::ErrorKind::TimedOut {
                format!("nothing answered from inside in {} seconds", PATIENCE.as_secs())
            } else if error.kind() == io::ErrorKind::InvalidData {
                error.to_string()
            } else {
                machine.last_words().unwrap_or_else(|| error.to_string())
            };
            machine.kill();
            machine.wait_gone(Duration::from_secs(5));
            process::reap(&machine.spawned.pidfd);
            Err(LaunchError {
                step: "start gVisor".to_owned(),
                why,
                remedy: "`fumehood doctor` says which runsc this is; another release may run here, and more memory may help".to_owned(),
            })
        }
    }
}

/// Who the child is, before it changes who it is.
fn enter(program: &mut Program, cgroup: Option<&Cgroup>, root: &Beside) -> Result<(), SpawnError> {
    program.push("tie the sandbox to its keeper", Op::DieWithParent);
    program.push("take an ordinary priority", Op::OrdinaryPriority);
    program.push("clear the file mode mask", Op::ClearUmask);
    for join in cgroup.iter().flat_map(|cgroup| &cgroup.joins) {
        let join = join.try_clone().map_err(SpawnError::Clone)?;
        program.push("enter the cgroup", Op::JoinCgroup(join));
    }
    program.push("take a cgroup namespace", Op::CgroupNamespace);
    for namespace in root.finish()? {
        program.push("enter gVisor's root", Op::EnterNamespace(namespace));
    }
    program.push("mount /proc", Op::Proc { target: c_string("proc") });
    // Releases of gVisor take a network namespace for the host's if they see certain files there, which newer
    // kernels show in every one.
    let cover = Op::Cover { with: c_string("empty"), target: c_string("proc/sys/net") };
    program.push("mask /proc", cover);
    Ok(())
}

fn send_handles(program: &mut Program, plan: &GvisorPlan, socket: OwnedFd) -> Result<(), SpawnError> {
    if plan.envelope.filesystem().output.is_some() {
        let path = c_string(&format!("{}/out", bundle::ROOT));
        let second = socket.try_clone().map_err(SpawnError::Clone)?;
        program.push("share the output folder", Op::SendFolder { path, socket: second, tag: OUTPUT });
    }
    program.push("share the root", Op::SendFolder { path: c_string(bundle::ROOT), socket, tag: ROOT });
    Ok(())
}

fn limit(program: &mut Program, plan: &GvisorPlan) {
    let limits = plan.envelope.resources();
    program.push("set the resource limits", Op::Limit { resource: CORE, value: 0 });
    if limits.cpu_millis < plan.host_cpus.saturating_mul(1000) {
        program.push("limit the processors", Op::Processors(limits.cpu_millis.div_ceil(1000).max(1)));
    }
}

// === impl Streams ===

impl Streams {
    fn new() -> io::Result<Self> {
        let up = |file| process::move_up(file, FIRST_FREE_DESCRIPTOR);
        let (stdin, to) = process::pipe(false)?;
        let (from, stdout) = process::pipe(false)?;
        let (words, stderr) = process::pipe(true)?;
        Ok(Self { theirs: [up(stdin)?, up(stdout)?, up(stderr)?], to, from, words })
    }
}
