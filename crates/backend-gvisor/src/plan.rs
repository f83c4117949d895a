//! From an envelope to a plan: what holds each clause here.

use crate::Gvisor;
use crate::launch::{self, Parts};
use crate::machine::Sandbox;
use crate::runsc::{Runsc, cannot};
use fumehood_backend::{Instance, LaunchError, Placement, Plan};
use fumehood_backend_native::cgroup::{self, Hierarchy};
use fumehood_backend_native::root::scratch_bytes;
use fumehood_backend_native::{enforcement, gateway};
use fumehood_guest::GuestInstance;
use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength, Unenforceable};
use fumehood_model::envelope::{Envelope, Resources};
use fumehood_model::quantity;
use std::time::Duration;

/// How long one that is ended may take to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(5);

/// What gVisor's own kernel, its gofer and `runsc` take beside what the guest may use.
const OVERHEAD_BYTES: u64 = 128 << 20;
/// A thread of the guest's is up to so many of the host's, and gVisor has some for itself.
const THREADS_EACH: u32 = 4;
const OWN_THREADS: u32 = 256;

/// One envelope on this host.
#[derive(Debug)]
pub(crate) struct GvisorPlan {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) host_cpus: u32,
    pub(crate) envelope: Envelope,
    pub(crate) placement: Placement,
    pub(crate) runsc: Runsc,
    /// Whether everything is started when it begins.
    pooled: bool,
    begun: Option<Begun>,
    enforcement: Enforcement,
}

/// How far a plan that has begun came.
#[derive(Debug)]
enum Begun {
    Prepared(Box<Parts>),
    /// gVisor runs, with `guestd` waiting for a command.
    Parked(Box<GuestInstance<Sandbox>>),
}

// === impl GvisorPlan ===

impl GvisorPlan {
    pub(crate) fn new(
        gvisor: &Gvisor,
        envelope: &Envelope,
        placement: &Placement,
    ) -> Result<Self, Unenforceable> {
        let runsc = Runsc::find(&placement.shared)?;
        if fumehood_sys::host::euid() != 0 {
            return Err(cannot(
                "gVisor must be root in its own user namespace and know the guest's user beside it, and an ordinary user can map no second user".to_owned(),
                "run it as root (`sudo fumehood run --level gvisor`), where neither gVisor nor the guest is the host's root",
            ));
        }
        if let Hierarchy::None { why } = &gvisor.hierarchy {
            return Err(Unenforceable {
                clause: Clause::Resources,
                why: format!("gVisor's processes can be limited by a cgroup alone, and {why}"),
                remedy: "give this host's cgroup tree the memory and pids controllers".to_owned(),
            });
        }
        if placement.living.as_ref().is_some_and(|living| living.warm.is_some()) {
            return Err(Unenforceable {
                clause: Clause::Filesystem,
                why: "gVisor's kernel can not go on with a prepared interpreter".to_owned(),
                remedy: "make it without, or use the level `container`".to_owned(),
            });
        }
        placement.gateway.as_ref().map_or(Ok(()), |spec| gateway::check(spec, &placement.shared))?;
        let enforcement = enforcement(gvisor, &runsc, envelope, placement);
        Ok(Self {
            hierarchy: gvisor.hierarchy.clone(),
            host_cpus: gvisor.host_cpus,
            envelope: envelope.clone(),
            placement: placement.clone(),
            runsc,
            pooled: gvisor.pooled,
            begun: None,
            enforcement,
        })
    }

    /// The limits of the cgroup around everything.
    pub(crate) fn around(&self) -> Resources {
        around(self.envelope.resources())
    }
}

fn around(limits: &Resources) -> Resources {
    Resources {
        memory_bytes: limits.memory_bytes.saturating_add(OVERHEAD_BYTES),
        processes: limits.processes.saturating_mul(THREADS_EACH).saturating_add(OWN_THREADS),
        ..limits.clone()
    }
}

impl Plan for GvisorPlan {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn begin(&mut self) {
        // What can not be made here is tried again by the launch, which says why.
        self.begun = Parts::prepare(self).ok().and_then(|parts| {
            // A file that goes in is recorded before it is read, so a sandbox with inputs is not started ahead.
            if self.pooled && self.envelope.filesystem().inputs.is_empty() {
                launch::launch(self, parts).ok().map(|instance| Begun::Parked(Box::new(instance)))
            } else {
                Some(Begun::Prepared(Box::new(parts)))
            }
        });
    }

    fn launch(mut self: Box<Self>) -> Result<Box<dyn Instance>, LaunchError> {
        let parts = match self.begun.take() {
            Some(Begun::Parked(mut instance)) => {
                if instance.is_idle() {
                    return Ok(instance);
                }
                // One that was ended while it waited is built again, as if nothing had begun.
                self.abandon(*instance);
                Parts::prepare(&self)?
            }
            Some(Begun::Prepared(parts)) => *parts,
            None => Parts::prepare(&self)?,
        };
        launch::launch(&self, parts).map(|instance| Box::new(instance) as Box<dyn Instance>)
    }
}

impl GvisorPlan {
    /// Ends a sandbox that nobody will use, and removes all of it.
    fn abandon(&self, mut instance: GuestInstance<Sandbox>) {
        instance.kill();
        instance.wait_gone(GONE_LIMIT);
        drop(instance);
        // A folder that stays is found again by its name.
        let _ = cgroup::remove(&self.hierarchy.folders(&self.placement.id));
    }
}

impl Drop for GvisorPlan {
    /// A plan that began and was never launched leaves nothing.
    fn drop(&mut self) {
        if let Some(Begun::Parked(instance)) = self.begun.take() {
            self.abandon(*instance);
        }
    }
}

fn enforcement(gvisor: &Gvisor, runsc: &Runsc, envelope: &Envelope, placement: &Placement) -> Enforcement {
    let kernel = |name, detail: String| Mechanism { name, detail, strength: Strength::Kernel };
    let sentry = || {
        kernel(
            "gvisor",
            format!("a kernel in user space answers every system call; {}, systrap", runsc.describe()),
        )
    };
    let filesystem = vec![
        sentry(),
        kernel(
            "mount-namespace",
            "gVisor opens files of a private memory-backed root; the host's folders are read-only views"
                .to_owned(),
        ),
    ];
    let mut network = gateway::mechanisms(placement.gateway.as_ref());
    network.retain(|mechanism| mechanism.name != "seccomp");
    network.push(kernel(
        "gvisor",
        "the guest's network is gVisor's own, which sends and receives frames on that one link".to_owned(),
    ));
    let privilege = vec![
        sentry(),
        kernel(
            "user-namespace",
            "gVisor is root in a user namespace alone; it and the guest have kernel uids of their own".to_owned(),
        ),
        kernel("capabilities", "the guest has none, and can gain none".to_owned()),
        kernel(
            "seccomp",
            format!(
                "allow-list `{:?}`, kept by gVisor for each command; gVisor's own filters stand around its kernel and its gofer",
                envelope.privilege().syscalls
            )
            .to_lowercase(),
        ),
        kernel("pid-namespace", "the guest sees and signals its own processes only".to_owned()),
    ];
    let credentials = vec![
        kernel(
            "empty-environment",
            "only named variables enter; the guest shares two pipes with the keeper".to_owned(),
        ),
        kernel("mount-namespace", "no file of the home folder is visible but toolchains".to_owned()),
    ];
    let cleanup = vec![
        kernel("pid-namespace", "every process ends with runsc, and runsc with its keeper".to_owned()),
        kernel(
            "mount-namespace",
            "mounts, scratch and gVisor's state vanish with the last process".to_owned(),
        ),
    ];
    Enforcement(vec![
        (Clause::Filesystem, filesystem),
        (Clause::Network, network),
        (Clause::Privilege, privilege),
        (Clause::Credentials, credentials),
        (Clause::Resources, resources(gvisor, envelope, placement)),
        (Clause::Cleanup, cleanup),
    ])
}

fn resources(gvisor: &Gvisor, envelope: &Envelope, placement: &Placement) -> Vec<Mechanism> {
    let limits = envelope.resources();
    let kernel = |name, detail: String| Mechanism { name, detail, strength: Strength::Kernel };
    let around = around(limits);
    let name = if matches!(gvisor.hierarchy, Hierarchy::V2 { .. }) { "cgroup-v2" } else { "cgroup-v1" };
    let mut held = vec![
        kernel(
            name,
            format!(
                "memory {} with gVisor's own, {} of the host's threads, {} cpu",
                quantity::show_bytes(around.memory_bytes),
                around.processes,
                quantity::show_cpus(limits.cpu_millis)
            ),
        ),
        kernel("tmpfs-size", format!("scratch {} in memory", quantity::show_bytes(scratch_bytes(envelope)))),
        kernel(
            "rlimits",
            format!(
                "by gVisor: file size {}, {} open files, no core files",
                quantity::show_bytes(limits.file_size_bytes),
                limits.open_files
            ),
        ),
    ];
    held.extend(enforcement::disk(envelope, placement));
    held.push(kernel("pid-namespace", "at the wall clock every process ends with its first".to_owned()));
    held
}
