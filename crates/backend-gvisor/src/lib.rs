//! The gvisor level: `runsc` between the guest and this host's kernel.
//!
//! The guest has the private root of the container level, with the same views, layers and limits. Between it
//! and the host's kernel stands gVisor's own, which answers every system call of the guest in user space.
//! `guestd` is its PID 1, and one stream of frames is all that the keeper and the guest share.
//!
//! ```text
//!  keeper ── stream ──────────────────────────────────────► guestd ─ command
//!     └ child: pid, mount and user namespaces, cgroup         ▲
//!         └ runsc run ─┬─ gofer: opens files of the root      │ guest's system calls
//!                      └─ sandbox: gVisor's kernel ───────────┘ network: the veth to the gateway
//! ```
//!
//! `runsc` itself is walled in: it is root in a user namespace of which no id is the host's, and sees a root
//! of its own in which there is nothing but itself and the guest's.
//!
//! **Invariant:** an instance exists only when `guestd` has answered from inside gVisor.
//! **Invariant:** no process of this level has an id of the host's, nor the host's root, once it executes `runsc`.

mod bundle;
mod launch;
mod machine;
mod plan;
mod runsc;

pub use runsc::Runsc;

use fumehood_backend::{Backend, Placement, Plan, ReapError};
use fumehood_backend_native::cgroup::{self, Hierarchy};
use fumehood_model::enforcement::Unenforceable;
use fumehood_model::envelope::Envelope;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;

/// The gvisor level on this host.
#[derive(Debug)]
pub struct Gvisor {
    hierarchy: Hierarchy,
    host_cpus: u32,
    pooled: bool,
}

// === impl Gvisor ===

impl Gvisor {
    /// Looks at what this host offers. Makes nothing.
    #[must_use]
    pub fn find() -> Self {
        Self { hierarchy: Hierarchy::find(), host_cpus: fumehood_sys::host::processors(), pooled: false }
    }

    /// As [`Gvisor::find`], for who keeps a pool of plans that have begun: gVisor is started then, and the launch
    /// hands it over. Who is killed leaves its cgroup, to be removed by its id.
    #[must_use]
    pub fn pooled() -> Self {
        Self { pooled: true, ..Self::find() }
    }
}

impl Backend for Gvisor {
    fn level(&self) -> Level {
        Level::Gvisor
    }

    fn plan(&self, envelope: &Envelope, placement: &Placement) -> Result<Box<dyn Plan>, Unenforceable> {
        plan::GvisorPlan::new(self, envelope, placement).map(|plan| Box::new(plan) as Box<dyn Plan>)
    }

    fn leftovers(&self) -> Vec<TaskId> {
        self.hierarchy.present()
    }

    fn reap(&self, id: &TaskId) -> Result<(), ReapError> {
        let folders = self.hierarchy.folders(id);
        cgroup::remove(&folders).map_err(|source| ReapError { what: format!("the cgroup of {id}"), source })
    }
}
