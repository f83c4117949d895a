//! The container level: namespaces, a private root, capabilities dropped, a system call allow-list,
//! Landlock and resource limits, on this host's kernel. And the process level, which is the same launch with
//! fewer steps: of namespaces it takes those that the host permits and the envelope needs (`shape`).
//!
//! Both work as root and as an ordinary user, and say which of the two mechanisms for a clause is in
//! force. What they can not hold they refuse.
//!
//! **Invariant:** an [`instance::NativeInstance`] exists only after every operation of its launch
//! program has succeeded; the program of PID 1 is executed last.
//!
//! Its parts are open to levels that put another wall within the same private root: [`root`], [`cgroup`],
//! [`identity`], [`gateway`] and [`steps`].

mod bare;
mod broker;
pub mod cgroup;
pub mod control;
pub mod enforcement;
pub mod etc;
pub mod freeze;
pub mod gateway;
pub mod identity;
mod image;
pub mod init_image;
mod instance;
mod launch;
mod orphans;
pub mod plan;
pub mod root;
mod shape;
pub mod steps;
pub mod syscalls;
pub mod usage;

pub use cgroup::Hierarchy;

use fumehood_backend::gateway::GatewaySpec;
use fumehood_backend::{Backend, Placement, Plan, ReapError};
use fumehood_model::enforcement::Unenforceable;
use fumehood_model::envelope::Envelope;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use fumehood_sys::launch::Beside;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};

/// The container level, or the process level, on this host.
#[derive(Debug)]
pub struct Native {
    level: Level,
    hierarchy: Hierarchy,
    landlock: Option<u32>,
    host_cpus: u32,
    /// For the plan that wishes for the same one. Its maker uses what the next one has made, so it goes first.
    gateway: RefCell<Option<gateway::Foreseen>>,
    /// For the next plan to take.
    namespaces: RefCell<Option<Beside>>,
    /// Likewise: what is part of any root.
    frame: RefCell<Option<Beside>>,
    /// Likewise: what is the same for each gateway.
    network: RefCell<Option<Beside>>,
    pooled: bool,
    /// Where the folders of sandboxes without a root are, once one was planned.
    scratch: RefCell<Option<PathBuf>>,
}

/// What a sandbox holds where it needs no system: single files, shown read-only. A host path and a guest path each;
/// everybody inside can read them if everybody on the host could, whatever folder they are in.
#[derive(Clone, Debug, Default)]
pub struct Bare {
    pub files: Vec<(PathBuf, PathBuf)>,
}

/// What is guessed of a sandbox before it is known.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The container level, or the process level, which takes few namespaces.
    pub level: Level,
    /// Its root is the host's own system.
    pub system: bool,
    /// It has a network beyond loopback.
    pub gateway: bool,
}

// === impl Native ===

impl Native {
    /// As [`Backend::plan`], for a root that has no system folders, no `/etc` and no toolchain: devices, `/proc`,
    /// scratch, what the envelope names, and these files.
    pub fn plan_bare(
        &self,
        envelope: &Envelope,
        placement: &Placement,
        bare: Bare,
    ) -> Result<Box<dyn Plan>, Unenforceable> {
        let mut plan = plan::NativePlan::new(self, envelope, placement)?;
        plan.bare = Some(bare);
        Ok(Box::new(plan))
    }

    /// The container level: looks at what this host offers. Makes nothing.
    pub fn find() -> Self {
        Self {
            level: Level::Container,
            hierarchy: Hierarchy::find(),
            landlock: fumehood_sys::landlock::abi(),
            host_cpus: fumehood_sys::host::processors(),
            gateway: RefCell::new(None),
            namespaces: RefCell::new(None),
            frame: RefCell::new(None),
            network: RefCell::new(None),
            pooled: false,
            scratch: RefCell::new(None),
        }
    }

    /// As [`Native::find`], and starts at once on what any launch takes longest for: with root, whose
    /// sandboxes need not own them, the network, ipc and uts namespaces, and what is part of any root on the host's
    /// own system, or of any gateway, where such will be wanted. Nothing of it is seen by the host.
    pub fn warm(wanted: Wanted) -> Self {
        // Where it can not be made here, the launch makes it, or says why it can not.
        let root = fumehood_sys::host::euid() == 0;
        let begin = |wanted: bool, begin: fn() -> io::Result<Beside>| {
            RefCell::new((root && wanted).then(|| begin().ok()).flatten())
        };
        let apart = wanted.level == Level::Container || wanted.gateway;
        let namespaces = begin(apart, launch::begin_namespaces);
        let network = begin(wanted.gateway, Beside::gateway_network);
        let frame = begin(wanted.system, launch::begin_frame);
        Self { level: wanted.level, namespaces, frame, network, ..Self::find() }
    }

    /// The process level, as [`Native::find`].
    pub fn process() -> Self {
        Self { level: Level::Process, ..Self::find() }
    }

    /// Begins the gateway that the next plan will wish for, where [`Native::warm`] has begun its namespaces.
    pub fn foresee(&self, gateway: &GatewaySpec) {
        let namespaces = self.namespaces.borrow();
        let begun =
            namespaces.as_ref().and_then(|made| gateway::Foreseen::begin(gateway, made, self.network.take()));
        self.gateway.replace(begun);
    }

    /// As [`Native::find`], for who keeps a pool of plans that have begun: the sandbox is built then, and the
    /// launch hands it over. Who is killed leaves its cgroup, to be removed by its id.
    pub fn pooled() -> Self {
        Self { pooled: true, ..Self::find() }
    }
}

impl Backend for Native {
    fn level(&self) -> Level {
        self.level
    }

    fn plan(&self, envelope: &Envelope, placement: &Placement) -> Result<Box<dyn Plan>, Unenforceable> {
        let plan = plan::NativePlan::new(self, envelope, placement)?;
        if !plan.shape.has_root() {
            self.scratch.replace(placement.scratch.parent().map(Path::to_owned));
        }
        Ok(Box::new(plan))
    }

    fn leftovers(&self) -> Vec<TaskId> {
        self.hierarchy.present()
    }

    fn reap(&self, id: &TaskId) -> Result<(), ReapError> {
        if let Some(scratch) = self.scratch.borrow().as_ref() {
            orphans::end_in(&scratch.join(id.as_str()));
        }
        let folders = self.hierarchy.folders(id);
        cgroup::remove(&folders).map_err(|source| ReapError { what: format!("the cgroup of {id}"), source })
    }
}
