//! The operations of a launch, as values, and the loop that applies them.

use super::command::Command;
use super::net::{self, Gateway};
use super::{ids, lockdown, mount, node};
use crate::bpf::Filter;
use crate::landlock::Ruleset;
use crate::notify;
use crate::raw::{self, Errno};
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// A launch: operations in order, each with the phrase that names it when it fails.
#[derive(Debug, Default)]
pub struct Program {
    steps: Vec<(Op, &'static str)>,
}

/// How a mount may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    pub read_only: bool,
    /// Whether device nodes work. Only `/dev` has them.
    pub devices: bool,
    /// Whether programs can be executed from it.
    pub executable: bool,
}

/// Who owns a new file, as kernel ids. `None` leaves the creator.
pub type Owner = Option<(u32, u32)>;

/// Where the new root is put while it is built, and its size.
#[derive(Debug)]
pub struct Root {
    /// An existing host folder, covered only in the child's own mount namespace.
    pub at: CString,
    pub size_bytes: u64,
    pub inodes: u64,
    /// Whether device nodes work on it. Only a launcher with root can make any.
    pub devices: bool,
}

/// One operation. Relative paths are beneath the new root, which [`Op::NewRoot`] makes the working
/// directory, and no link on their way is followed; absolute ones are the host's until [`Op::EnterRoot`],
/// and the guest's after it.
#[derive(Debug)]
pub enum Op {
    /// Ask to be killed with the keeper.
    DieWithParent,
    /// Run at the priority that any program has: neither under a realtime policy nor before others of its kind.
    /// Before [`Op::JoinCgroup`], which the kernel can refuse to one that does not.
    OrdinaryPriority,
    /// Make files and folders with the modes that are given.
    ClearUmask,
    /// Enter a v1 cgroup through its open `cgroup.procs`.
    JoinCgroup(OwnedFd),
    /// Take a cgroup namespace whose root is where we are now.
    CgroupNamespace,
    /// Take network, ipc and uts namespaces of our own.
    QuietNamespaces,
    /// Take a mount namespace of our own.
    MountNamespace,
    /// Leave handles of those three as what was made.
    KeepQuiet,
    /// Leave a handle of the mount namespace as what was made. It is found by the host's `/proc`, so before
    /// [`Op::EnterRoot`].
    KeepMounts,
    /// Enter a prepared namespace.
    EnterNamespace(OwnedFd),
    /// Make a single-entry user namespace mapping: (inside, outside) for uid and gid.
    MapIds {
        uid: (u32, u32),
        gid: (u32, u32),
    },
    /// Become (uid, gid) with no other groups, then take a user namespace with that mapping.
    LateUserNamespace {
        inside: (u32, u32),
        outside: (u32, u32),
    },
    /// Become (uid, gid) with no other groups, in the user namespace that we are in.
    Become {
        ids: (u32, u32),
    },
    /// Be root in the user namespace that was entered, with no other groups.
    BecomeRoot,
    /// Bring loopback up.
    LoopbackUp,
    /// Take a network namespace as a gateway's is, for an [`Op::Gateway`] that is yet to come.
    GatewayNetwork,
    /// Make a gateway and join a network to it.
    Gateway(Box<Gateway>),
    /// Start that in a companion of this child, which is in the network namespace to be joined.
    BeginGateway(Arc<Gateway>),
    AwaitGateway(Arc<Gateway>),
    /// Redirect all TCP that arrives in this network namespace, as a gateway for every port does.
    Redirect,
    Hostname(CString),
    /// Nothing mounted here is seen by the host.
    MountsPrivate,
    /// A fresh memory-backed root; becomes the working directory.
    NewRoot(Root),
    /// Give that root, where the working directory is, another size.
    ResizeRoot {
        size_bytes: u64,
        inodes: u64,
    },
    /// Put a detached mount onto a host folder. The descriptor goes on showing it, wherever it is mounted.
    Attach {
        tree: Arc<OwnedFd>,
        at: CString,
    },
    /// A view of a host path. With `idmap`, ids are seen through that user namespace. Where the
    /// source is a file, the target is made as a file.
    Bind {
        source: CString,
        target: CString,
        attributes: Attributes,
        idmap: Option<OwnedFd>,
    },
    /// As `Bind` of a folder of the tree at the host path `root`, which is not trusted: its links lead where
    /// they would if that tree were the whole system.
    BindWithin {
        root: CString,
        source: CString,
        target: CString,
        attributes: Attributes,
    },
    /// A read-only view of a host folder through which no socket of the host can be reached: the sandbox
    /// sees copies of the inodes, and a socket is found by its inode. Host paths are absolute and escaped
    /// as layers; `stage` is where an id-mapped source is put first.
    View {
        source: CString,
        lowers: CString,
        stage: CString,
        target: CString,
        idmap: Option<OwnedFd>,
    },
    /// An empty memory-backed folder with its own size.
    Tmpfs {
        target: CString,
        size_bytes: u64,
        mode: u32,
        owner: Owner,
        attributes: Attributes,
    },
    /// A copy-on-write view: absolute, escaped layer paths.
    Overlay {
        lower: CString,
        upper: CString,
        work: CString,
        target: CString,
    },
    Proc {
        target: CString,
    },
    Devpts {
        target: CString,
    },
    /// Hide a path of the new root behind its `dev/null`, if it exists.
    MaskFile {
        target: CString,
    },
    /// Hide a path of the new root behind another one, if it exists.
    Cover {
        with: CString,
        target: CString,
    },
    /// Make an existing folder of the new root read-only, if it exists.
    MaskWrites {
        target: CString,
    },
    MakeDir {
        path: CString,
        mode: u32,
        owner: Owner,
    },
    Symlink {
        to: CString,
        path: CString,
    },
    /// A new file beneath the root: what is in `after`, from its beginning, and then `content`.
    WriteFile {
        path: CString,
        after: Option<Arc<OwnedFd>>,
        content: Arc<Vec<u8>>,
        mode: u32,
    },
    /// Copy an open host file to a new file beneath the root, following no links there.
    CopyFile {
        from: OwnedFd,
        path: CString,
        mode: u32,
        owner: Owner,
    },
    /// A character device node (major, minor).
    Device {
        path: CString,
        major: u32,
        minor: u32,
    },
    /// Make a folder of the host the working directory.
    WorkIn(CString),
    /// Make the working directory `/` and let go of the host's root.
    EnterRoot,
    /// Send a handle of a guest folder through this socket, with one byte of tag.
    SendFolder {
        path: CString,
        socket: OwnedFd,
        tag: u8,
    },
    /// Set one resource limit, soft and hard.
    Limit {
        resource: u32,
        value: u64,
    },
    /// See at most this many processors.
    Processors(u32),
    /// Be a likelier victim of memory pressure than the host's own processes.
    OomScore(CString),
    /// Give up every capability, for good.
    DropCapabilities,
    /// The two halves of that: what no program may gain, which takes a capability, and what we have.
    LimitCapabilities,
    ClearCapabilities,
    NoNewPrivileges,
    Landlock(Ruleset),
    /// Place descriptors: this one at 3, `/dev/null` at 0, 1 and 2, and close the rest on exec.
    Descriptors {
        control: OwnedFd,
    },
    /// Place descriptors: these at 0, 1 and 2, and close the rest on exec. Each has a number above those.
    Streams([OwnedFd; 3]),
    /// Place descriptors for a program that is not ours: `/dev/null` at 0 and 1, `error` at 2, the others from 3
    /// on in their order; close the rest on exec. All of them must have higher numbers than these.
    Handover {
        error: OwnedFd,
        descriptors: Vec<OwnedFd>,
    },
    /// Install a filter, and send its listener through this socket with one byte of tag.
    Seccomp {
        filter: Filter,
        socket: OwnedFd,
        tag: u8,
    },
    /// Execute a program by its path, with arguments and an environment.
    BecomeProgram(Command),
    /// Execute an open program with an empty environment.
    Execute {
        program: OwnedFd,
        name: CString,
    },
    /// Execute the program at a path of the guest's with arguments, the first of which names it, and an empty
    /// environment. [`super::MOST_ARGUMENTS`] at most.
    ExecutePath {
        path: CString,
        arguments: Vec<CString>,
    },
}

/// How far a child came and what it made. Lives in memory that parent and child share.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The failed step and its error number, or one of the marks below.
    fate: AtomicU64,
    products: Products,
    /// Whether the child will store nothing more; waited on by address.
    finished: AtomicU32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Fate {
    /// The child started and has not said more.
    Running,
    /// It is about to execute its program, or has.
    Executing,
    Failed {
        step: usize,
        errno: Errno,
    },
}

/// Descriptors that were made, in order.
#[derive(Debug)]
pub(super) struct Products([AtomicI32; MOST_PRODUCTS]);

/// A gateway makes more than anything else does.
const MOST_PRODUCTS: usize = net::MOST_PORTS + net::FIXED_SOCKETS + net::MOST_TAPS;

const RUNNING: u64 = u64::MAX;
const EXECUTING: u64 = u64::MAX - 1;
const NO_PRODUCT: i32 = -1;

// === impl Program ===

impl Program {
    /// Adds one step. `phrase` completes "failed to …".
    pub fn push(&mut self, phrase: &'static str, op: Op) {
        self.steps.push((op, phrase));
    }

    /// Adds all steps of another program.
    pub fn extend(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }

    pub(super) fn len(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn phrase(&self, step: usize) -> &'static str {
        match self.steps.get(step) {
            Some((Op::Gateway(gateway), _)) => gateway.phrase(),
            Some((Op::AwaitGateway(gateway), _)) => gateway.phrase(),
            Some((_, phrase)) => phrase,
            None => "execute init",
        }
    }

    /// Applies every step in order. Returns when one failed, or when none executed a program.
    pub(super) fn apply(&self, outcome: &Outcome) {
        self.apply_after(0, outcome);
    }

    /// As [`Program::apply`], for a program whose first step counts as number `first`.
    pub(super) fn apply_after(&self, first: usize, outcome: &Outcome) {
        for (step, (op, _)) in (first..).zip(&self.steps) {
            if matches!(op, Op::Execute { .. } | Op::BecomeProgram(_) | Op::ExecutePath { .. }) {
                outcome.fate.store(EXECUTING, Ordering::Release);
            }
            if let Err(Errno(errno)) = op.apply(&outcome.products) {
                let packed = (step as u64) << 32 | u64::from(errno.cast_unsigned());
                outcome.fate.store(packed, Ordering::Release);
                return;
            }
        }
    }
}

// === impl Op ===

impl Op {
    /// Runs in the child: kernel calls only.
    fn apply(&self, products: &Products) -> Result<(), Errno> {
        let keep = |made: i32| products.keep(made);
        match self {
            Self::DieWithParent => ids::die_with_parent(),
            Self::OrdinaryPriority => lockdown::ordinary_priority(),
            Self::ClearUmask => node::clear_umask(),
            Self::JoinCgroup(procs) => ids::join_cgroup(procs),
            Self::CgroupNamespace => ids::cgroup_namespace(),
            Self::QuietNamespaces => ids::quiet_namespaces(),
            Self::MountNamespace => ids::mount_namespace(),
            Self::KeepQuiet => ids::quiet_handles().map(|made| made.into_iter().for_each(keep)),
            Self::KeepMounts => ids::mounts_handle().map(keep),
            Self::EnterNamespace(namespace) => ids::enter(namespace),
            Self::MapIds { uid, gid } => ids::map(*uid, *gid),
            Self::LateUserNamespace { inside, outside } => ids::late_user_namespace(*inside, *outside),
            Self::Become { ids } => ids::become_user(*ids),
            Self::BecomeRoot => ids::become_root(),
            Self::LoopbackUp => ids::loopback_up(),
            Self::GatewayNetwork => net::network().map(drop),
            Self::Gateway(gateway) => gateway.make(&keep),
            Self::BeginGateway(gateway) => gateway.begin(),
            Self::AwaitGateway(gateway) => gateway.finish(),
            Self::Redirect => net::try_redirect(),
            Self::Hostname(name) => ids::hostname(name),
            Self::MountsPrivate => mount::private(),
            Self::NewRoot(root) => mount::new_root(root),
            Self::ResizeRoot { size_bytes, inodes } => mount::resize_root(*size_bytes, *inodes),
            Self::Attach { tree, at } => mount::attach(tree, at),
            Self::Bind { source, target, attributes, idmap } => {
                mount::bind(source, target, *attributes, idmap.as_ref())
            }
            Self::BindWithin { root, source, target, attributes } => {
                mount::bind_within(root, source, target, *attributes)
            }
            Self::View { source, lowers, stage, target, idmap } => {
                mount::view(source, lowers, idmap.as_ref().map(|idmap| (idmap, stage.as_c_str())), target)
            }
            Self::Tmpfs { target, size_bytes, mode, owner, attributes } => {
                mount::tmpfs(target, *size_bytes, *mode, *owner, *attributes)
            }
            Self::Overlay { lower, upper, work, target } => mount::overlay(lower, upper, work, target),
            Self::Proc { target } => mount::proc(target),
            Self::Devpts { target } => mount::devpts(target),
            Self::MaskFile { target } => mount::mask(c"dev/null", target),
            Self::Cover { with, target } => mount::mask(with, target),
            Self::MaskWrites { target } => mount::mask(target, target),
            Self::MakeDir { path, mode, owner } => node::make_dir(path, *mode, *owner),
            Self::Symlink { to, path } => node::symlink(to, path),
            Self::WriteFile { path, after, content, mode } => {
                node::write_file(path, after.as_deref(), content, *mode)
            }
            Self::CopyFile { from, path, mode, owner } => node::copy_file(from, path, *mode, *owner),
            Self::Device { path, major, minor } => node::device(path, *major, *minor),
            Self::WorkIn(folder) => node::work_in(folder),
            Self::EnterRoot => mount::enter_root(),
            Self::SendFolder { path, socket, tag } => node::send_folder(path, socket, *tag),
            Self::Limit { resource, value } => lockdown::limit(*resource, *value),
            Self::Processors(count) => lockdown::processors(*count),
            Self::OomScore(score) => lockdown::oom_score(score),
            Self::DropCapabilities => {
                lockdown::limit_capabilities().and_then(|()| lockdown::clear_capabilities())
            }
            Self::LimitCapabilities => lockdown::limit_capabilities(),
            Self::ClearCapabilities => lockdown::clear_capabilities(),
            Self::NoNewPrivileges => lockdown::no_new_privileges(),
            Self::Landlock(ruleset) => ruleset.enforce(),
            Self::Streams(streams) => lockdown::streams(streams),
            Self::BecomeProgram(command) => lockdown::become_program(command),
            Self::Descriptors { control } => lockdown::descriptors(control),
            Self::Handover { error, descriptors } => lockdown::handover(error, descriptors),
            Self::Seccomp { filter, socket, tag } => {
                notify::hand_over(filter.enforce(), socket.as_raw_fd(), *tag)
            }
            Self::Execute { program, name } => lockdown::execute(program, name),
            Self::ExecutePath { path, arguments } => lockdown::execute_path(path, arguments),
        }
    }
}

// === impl Outcome ===

impl Outcome {
    pub(super) fn fate(&self) -> Fate {
        match self.fate.load(Ordering::Acquire) {
            RUNNING => Fate::Running,
            EXECUTING => Fate::Executing,
            packed => Fate::Failed {
                step: usize::try_from(packed >> 32).unwrap_or(usize::MAX),
                errno: Errno((packed & 0xFFFF_FFFF) as i32),
            },
        }
    }

    /// What was made, once.
    pub(super) fn take_products(&self) -> Vec<OwnedFd> {
        let numbers = self.products.0.iter().map(|place| place.swap(NO_PRODUCT, Ordering::AcqRel));
        // SAFETY: the maker opened it in the descriptor table that it shares with us and uses it no more;
        // the swap gives it to one owner.
        numbers
            .filter(|number| *number != NO_PRODUCT)
            .map(|number| unsafe { OwnedFd::from_raw_fd(number) })
            .collect()
    }

    /// The number of the first thing that was made, once there is nothing more to come. `None` if the making
    /// failed. It stays its owner's.
    pub(super) fn await_first(&self) -> Option<i32> {
        self.wait();
        let first = self.products.0.first()?.load(Ordering::Acquire);
        (matches!(self.fate(), Fate::Running) && first != NO_PRODUCT).then_some(first)
    }

    /// Says that nothing more is stored.
    pub(super) fn finish(&self) {
        self.finished.store(1, Ordering::Release);
        raw::wake(&self.finished);
    }

    /// Sleeps until [`Outcome::finish`].
    pub(super) fn wait(&self) {
        while self.finished.load(Ordering::Acquire) == 0 {
            raw::wait(&self.finished, 0);
        }
    }
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            fate: AtomicU64::new(RUNNING),
            products: Products([const { AtomicI32::new(NO_PRODUCT) }; MOST_PRODUCTS]),
            finished: AtomicU32::new(0),
        }
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        drop(self.take_products());
    }
}

// === impl Products ===

impl Products {
    /// Stores in the first free place. There are as many places as the longest program makes things.
    fn keep(&self, made: i32) {
        let free = self.0.iter().find(|place| place.load(Ordering::Acquire) == NO_PRODUCT);
        if let Some(place) = free {
            place.store(made, Ordering::Release);
        }
    }
}
