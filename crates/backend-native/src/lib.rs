//! The container level: namespaces, a private root, capabilities dropped, a system call allow-list,
//! Landlock and resource limits, on this host's kernel.
//!
//! It works as root and as an ordinary user, and says which of the two mechanisms for a clause is in
//! force. What it can not hold it refuses.
//!
//! **Invariant:** an [`instance::NativeInstance`] exists only after every operation of its launch
//! program has succeeded; the program of PID 1 is executed last.

pub mod cgroup;
pub mod control;
pub mod etc;
pub mod gateway;
pub mod identity;
pub mod init_image;
mod instance;
mod launch;
mod plan;
mod root;
mod syscalls;
mod usage;

pub use cgroup::Hierarchy;

use fumehood_backend::{Backend, Placement, Plan, ReapError};
use fumehood_model::enforcement::Unenforceable;
use fumehood_model::envelope::Envelope;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use fumehood_sys::launch::Beside;
use std::cell::RefCell;

/// The system call filter of a profile, for a guest whose first process installs it: `struct sock_filter` one after
/// the other.
#[must_use]
pub fn guest_filter(profile: fumehood_model::envelope::Syscalls) -> Vec<u8> {
    syscalls::for_guest(profile).bytes()
}

/// The container level on this host.
#[derive(Debug)]
pub struct Native {
    hierarchy: Hierarchy,
    landlock: Option<u32>,
    host_cpus: u32,
    /// For the next plan to take.
    namespaces: RefCell<Option<Beside>>,
    pooled: bool,
}

// === impl Native ===

impl Native {
    /// Looks at what this host offers. Makes nothing.
    pub fn find() -> Self {
        Self {
            hierarchy: Hierarchy::find(),
            landlock: fumehood_sys::landlock::abi(),
            host_cpus: fumehood_sys::host::processors(),
            namespaces: RefCell::new(None),
            pooled: false,
        }
    }

    /// As [`Native::find`], and starts at once on what any launch takes longest for: with root, whose
    /// sandboxes need not own them, the network, ipc and uts namespaces. Nothing of it is seen by the host.
    pub fn warm() -> Self {
        // Where it can not be made here, the launch makes it, or says why it can not.
        let made = (fumehood_sys::host::euid() == 0).then(|| launch::begin_namespaces().ok()).flatten();
        Self { namespaces: RefCell::new(made), ..Self::find() }
    }

    /// As [`Native::find`], for who keeps a pool of plans that have begun: the sandbox is built then, and the
    /// launch hands it over. Who is killed leaves its cgroup, to be removed by its id.
    pub fn pooled() -> Self {
        Self { pooled: true, ..Self::find() }
    }
}

impl Backend for Native {
    fn level(&self) -> Level {
        Level::Container
    }

    fn plan(&self, envelope: &Envelope, placement: &Placement) -> Result<Box<dyn Plan>, Unenforceable> {
        plan::NativePlan::new(self, envelope, placement).map(|plan| Box::new(plan) as Box<dyn Plan>)
    }

    fn leftovers(&self) -> Vec<TaskId> {
        self.hierarchy.present()
    }

    fn reap(&self, id: &TaskId) -> Result<(), ReapError> {
        let folders = self.hierarchy.folders(id);
        cgroup::remove(&folders).map_err(|source| ReapError { what: format!("the cgroup of {id}"), source })
    }
}
