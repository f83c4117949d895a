//! What a launch is built from: a level, and which of the host's mechanisms stand for it here.
//!
//! The container always has all of its namespaces. The process level takes those that this host permits: with
//! mount and PID namespaces it has a private root, and paths as at every level; where they are forbidden it is the
//! host's own tree, cut by Landlock. Which of the two it is was seen by doing, and is told in the enforcement.

use crate::identity::{self, Identity};
use crate::root::{c_path, c_string};
use fumehood_sys::host;
use fumehood_sys::launch::{self, Beside, Namespaces, Op, Program, Root, SpawnError};
use std::io;
use std::path::Path;

/// The walls of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Every namespace, a private root.
    Container,
    /// A private root and process numbers of its own. `network`: network and ipc namespaces too.
    Rooted { network: bool },
    /// No namespace at all, and why there is none.
    Bare { why: String },
}

/// Below this, signals and abstract sockets can not be kept inside by Landlock.
pub(crate) const SCOPES: u32 = 6;

/// Memory for the root that is tried.
const TRIAL_BYTES: u64 = 1 << 20;
const NO_SPACE: i32 = 28;

// === impl Shape ===

impl Shape {
    /// The shape of the process level here. `network` says whether the envelope needs one; `shared` is where it
    /// is noted what this host permits, for as long as it runs.
    pub(crate) fn of_process(network: bool, landlock: u32, shared: &Path) -> Self {
        // Without scopes, only a namespace keeps abstract sockets apart.
        let network = network || landlock < SCOPES;
        match forbidden(shared) {
            None => Self::Rooted { network },
            Some(why) => Self::Bare { why },
        }
    }

    /// Whether it has network, ipc and uts namespaces.
    pub(crate) const fn has_network(&self) -> bool {
        match self {
            Self::Container => true,
            Self::Rooted { network } => *network,
            Self::Bare { .. } => false,
        }
    }

    /// Whether it has a root and process numbers of its own.
    pub(crate) const fn has_root(&self) -> bool {
        match self {
            Self::Container | Self::Rooted { .. } => true,
            Self::Bare { .. } => false,
        }
    }

    /// The namespaces that its first process is born into. Those in `made` are there already; who has a kernel uid
    /// of its own has its mounts made elsewhere too, and takes a user namespace late.
    pub(crate) const fn namespaces(&self, made: Option<&Beside>, identity: &Identity) -> Namespaces {
        let (root, network) = (self.has_root(), self.has_network());
        let (made, own) = (made.is_some(), identity.own);
        Namespaces {
            pids: root,
            user: root && !own,
            mounts: root && !own,
            quiet: network && !made,
            names: root && !network,
        }
    }
}

/// Why this host forbids what a private root takes; `None` where it permits it. Seen once, that is written down:
/// trying costs as much as a launch does, and a launch that fails still fails.
fn forbidden(shared: &Path) -> Option<String> {
    let note = shared.join("namespaces");
    let here = surroundings();
    if here.is_some() && std::fs::read_to_string(&note).ok() == here {
        return None;
    }
    let forbidden = try_root(shared);
    if let (None, Some(here)) = (&forbidden, here) {
        // Without the note it is tried the next time.
        let _ = std::fs::write(note, here);
    }
    forbidden
}

/// Forgets what was seen: a launch that should have worked did not.
pub(crate) fn doubt(shared: &Path) {
    let _ = std::fs::remove_file(shared.join("namespaces"));
}

/// What decides what is permitted, as far as it can be read: which kernel since when, in which user namespace,
/// behind how many filters.
fn surroundings() -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let user = std::fs::read_link("/proc/self/ns/user").ok()?;
    let most = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").ok()?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let filters = status.lines().find(|line| line.starts_with("Seccomp_filters:"))?;
    Some(format!("{}\n{}\n{}\n{filters}\n", boot.trim(), user.display(), most.trim()))
}

/// Takes the steps on which hosts differ.
fn try_root(shared: &Path) -> Option<String> {
    let own = host::euid() == 0;
    let mut program = Program::default();
    if !own {
        let ids = (host::euid(), host::egid());
        program.push("map the user", Op::MapIds { uid: (1000, ids.0), gid: (1000, ids.1) });
    }
    program.push("make the mounts private", Op::MountsPrivate);
    let at = c_path(&shared.join("root"));
    let root = Root { at, size_bytes: TRIAL_BYTES, inodes: 16, devices: false };
    program.push("make a private root", Op::NewRoot(root));
    program.push("make a private root", Op::MakeDir { path: c_string("proc"), mode: 0o755, owner: None });
    program.push("mount /proc", Op::Proc { target: c_string("proc") });
    if own {
        let ids = (identity::FIRST, identity::FIRST);
        program
            .push("become the sandbox's user", Op::LateUserNamespace { inside: (1000, 1000), outside: ids });
    }
    let fresh = Namespaces { pids: true, user: !own, mounts: true, quiet: false, names: true };
    let (step, error) = match launch::try_out(&program, fresh) {
        Ok(()) | Err(SpawnError::Died) => return None,
        Err(SpawnError::Clone(error)) => ("make namespaces", error),
        Err(SpawnError::Step { step, source }) => (step, source),
    };
    // What is short for a moment is permitted all the same, and the launch says what it lacks.
    let short = matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock)
        || (error.raw_os_error() == Some(NO_SPACE) && !none_allowed());
    (!short).then(|| format!("this host does not let us {step}: {}", crate::steps::reason(&error)))
}

/// Whether the number of user namespaces is limited to none.
fn none_allowed() -> bool {
    std::fs::read_to_string("/proc/sys/user/max_user_namespaces").is_ok_and(|most| most.trim() == "0")
}
