//! From an envelope to a plan: what holds each clause here, and what launching it will take.

use crate::cgroup::Hierarchy;
use crate::identity::Identity;
use crate::instance::NativeInstance;
use crate::launch::LaunchParts;
use crate::root::{c_path, c_string, scratch_bytes};
use crate::{Native, etc, gateway, launch};
use fumehood_backend::{Instance, LaunchError, LayerDisk, LayerPlace, Placement, Plan};
use fumehood_model::enforcement::{Clause, Enforcement, Mechanism, Strength, Unenforceable};
use fumehood_model::envelope::{Envelope, Root, WorkspaceMode};
use fumehood_model::quantity;
use fumehood_sys::launch::{Beside, Op, Program};
use fumehood_sys::{host, idmap};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Rules about renames need this version of Landlock; older ones would break ordinary programs.
const LANDLOCK_NEEDED: u32 = 2;

/// A file system is this much smaller than what it was asked for, at most, for being whole.
const SIZE_STEP: u64 = 1 << 20;

/// One envelope on this host.
#[derive(Debug)]
pub(crate) struct NativePlan {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) host_cpus: u32,
    pub(crate) envelope: Envelope,
    pub(crate) placement: Placement,
    pub(crate) landlock: u32,
    /// Made while the rest is prepared, where that was possible.
    pub(crate) namespaces: Option<Beside>,
    /// Whether everything is prepared when it begins, the cgroup too.
    pub(crate) pooled: bool,
    /// What was made ahead of the launch: a server keeps a pool of plans that have begun.
    begun: Option<Begun>,
    enforcement: Enforcement,
}

/// How far a plan that has begun came.
#[derive(Debug)]
enum Begun {
    /// The parts are made; the child is not.
    Prepared(Box<LaunchParts>),
    /// The whole sandbox stands, with its first process waiting for a command (ADR 0021).
    Parked(Box<NativeInstance>),
}

/// What the root is built from, beyond envelope and placement.
#[derive(Debug)]
pub struct Sources {
    /// Made for the sandbox: its `/etc`, or what is laid over an image's.
    pub etc: Option<PathBuf>,
    /// Keeps that folder there while the sandbox lives.
    pub hold: Option<std::fs::File>,
    /// The id mapping of the workspace, where it is copy-on-write and we have root.
    lower: Option<(OwnedFd, OwnedFd)>,
    copy_on_write: Option<PathBuf>,
}

// === impl NativePlan ===

impl NativePlan {
    pub(crate) fn new(
        native: &Native,
        envelope: &Envelope,
        placement: &Placement,
    ) -> Result<Self, Unenforceable> {
        let landlock = native
            .landlock
            .filter(|abi| *abi >= LANDLOCK_NEEDED)
            .ok_or_else(|| no_landlock(native.landlock))?;
        placement.gateway.as_ref().map_or(Ok(()), |spec| gateway::check(spec, &placement.shared))?;
        let enforcement = enforcement(native, envelope, placement, landlock);
        Ok(Self {
            hierarchy: native.hierarchy.clone(),
            host_cpus: native.host_cpus,
            envelope: envelope.clone(),
            placement: placement.clone(),
            landlock,
            namespaces: native.namespaces.take(),
            pooled: native.pooled,
            begun: None,
            enforcement,
        })
    }

    /// A file that goes in is recorded before it is read, so a sandbox with inputs is not built ahead.
    fn can_park(&self) -> bool {
        self.pooled && self.envelope.filesystem().inputs.is_empty()
    }
}

impl Plan for NativePlan {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn begin(&mut self) {
        // What can not be made here is tried again by the launch, which says why.
        self.begun = LaunchParts::prepare(self).ok().and_then(|parts| {
            if self.can_park() {
                launch::launch(self, parts).ok().map(|instance| Begun::Parked(Box::new(instance)))
            } else {
                Some(Begun::Prepared(Box::new(parts)))
            }
        });
    }

    fn launch(mut self: Box<Self>) -> Result<Box<dyn Instance>, LaunchError> {
        let parts = match self.begun.take() {
            Some(Begun::Parked(instance)) if instance.is_idle() => return Ok(instance),
            Some(Begun::Prepared(parts)) => *parts,
            // One that was ended while it waited is built again, as if nothing had begun.
            Some(gone @ Begun::Parked(_)) => {
                gone.abandon();
                LaunchParts::prepare(&mut self)?
            }
            None => LaunchParts::prepare(&mut self)?,
        };
        launch::launch(&self, parts).map(|instance| Box::new(instance) as Box<dyn Instance>)
    }
}

impl Drop for NativePlan {
    /// A plan that began and was never launched leaves nothing.
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            begun.abandon();
        }
    }
}

// === impl Begun ===

impl Begun {
    /// Removes what would outlive us of a sandbox that will not be.
    fn abandon(self) {
        match self {
            Self::Prepared(parts) => parts.abandon(),
            Self::Parked(instance) => instance.abandon(),
        }
    }
}

// === impl Sources ===

impl Sources {
    /// Makes what the root is built from.
    ///
    /// # Errors
    /// The sandbox's `/etc` could not be made.
    pub fn find(envelope: &Envelope, placement: &Placement, identity: &Identity) -> std::io::Result<Self> {
        let resolver = placement.gateway.as_ref().map(|_| fumehood_backend::gateway::ADDRESS);
        let system = match envelope.filesystem().root {
            Root::HostSystem => Some(etc::System::Host),
            // Without a network it needs nobody to ask for names.
            Root::Directory(_) => resolver.map(|_| etc::System::Image),
        };
        let (uid, home) = (envelope.privilege().uid, placement.home_at.as_path());
        let made =
            system.map(|system| etc::folder(&placement.shared, etc::Guest { system, uid, home, resolver }));
        let (etc, hold) = made.transpose()?.map(|etc::Etc { path, hold }| (path, hold)).unzip();
        let copy_on_write = envelope
            .filesystem()
            .workspace
            .as_ref()
            .filter(|workspace| workspace.mode == WorkspaceMode::CopyOnWrite)
            .map(|workspace| workspace.source.clone());
        let lower = copy_on_write
            .as_ref()
            .and_then(|source| Some((idmap(identity, source)?, idmap(identity, source)?)));
        Ok(Self { etc, hold, lower, copy_on_write })
    }

    /// Adds the steps that put the layers where an overlay can be made of them, and gives the overlay.
    ///
    /// With root, id-mapped views of workspace and layer are put onto folders of ours, in the child's
    /// own mount namespace: an overlay takes its layers by path, and keeps its own hold on them.
    pub(crate) fn layer(self, placement: &Placement, program: &mut Program) -> Option<Op> {
        let (source, LayerPlace { folder: layer, disk }) = (self.copy_on_write?, placement.layer.clone()?);
        if let LayerDisk::Image { mount: Some(mount), .. } = disk {
            let op = Op::Attach { tree: mount, at: c_path(&layer) };
            program.push("attach the layer's file system", op);
        }
        let (lower, layer) = match self.lower {
            None => (source, layer),
            Some((for_lower, for_layer)) => {
                let (lower_at, layer_at) = (placement.shared.join("lower"), placement.shared.join("layer"));
                for (from, to, idmap) in [(&source, &lower_at, for_lower), (&layer, &layer_at, for_layer)] {
                    let op = Op::Bind {
                        source: c_path(from),
                        target: c_path(to),
                        attributes: crate::root::WRITABLE,
                        idmap: Some(idmap),
                    };
                    program.push("see the workspace as the sandbox's own", op);
                }
                (lower_at, layer_at)
            }
        };
        Some(Op::Overlay {
            lower: escaped(&lower),
            upper: escaped(&layer.join("upper")),
            work: escaped(&layer.join("work")),
            target: c_string("workspace"),
        })
    }
}

/// A namespace in which the owner of `source` is the sandbox; `None` for an ordinary user, who is the
/// sandbox already, and where nothing has to change.
pub(crate) fn idmap(identity: &Identity, source: &Path) -> Option<OwnedFd> {
    if !identity.own {
        return None;
    }
    let meta = std::fs::metadata(source).ok()?;
    let uids = idmap::exchange(meta.uid(), identity.kernel.0);
    let gids = idmap::exchange(meta.gid(), identity.kernel.1);
    idmap::namespace(&uids, &gids).ok()
}

/// Layer paths are a list with `:`, and `\` quotes.
pub(crate) fn escaped(path: &Path) -> CString {
    let mut bytes = Vec::new();
    for byte in path.as_os_str().as_bytes() {
        if matches!(byte, b':' | b'\\') {
            bytes.push(b'\\');
        }
        bytes.push(*byte);
    }
    c_path(Path::new(&std::ffi::OsString::from_vec(bytes)))
}

fn no_landlock(found: Option<u32>) -> Unenforceable {
    let why = match found {
        Some(abi) => format!("this kernel's Landlock (version {abi}) can not judge renames"),
        None => "this kernel has no Landlock, or it is not switched on".to_owned(),
    };
    let remedy = "boot with `lsm=landlock,…` on Linux 5.19 or later, or allow the landlock system calls in the outer container".to_owned();
    Unenforceable { clause: Clause::Filesystem, why, remedy }
}

fn enforcement(native: &Native, envelope: &Envelope, placement: &Placement, landlock: u32) -> Enforcement {
    let kernel = |name, detail: String| Mechanism { name, detail, strength: Strength::Kernel };
    let root = host::euid() == 0;
    let user_namespace = if root {
        "a user namespace and a kernel uid of its own"
    } else {
        "a user namespace; its kernel uid is the caller's, shared with the caller's other sandboxes"
    };
    let filesystem = vec![
        kernel(
            "mount-namespace",
            "a private memory-backed root; the host's folders are read-only views".to_owned(),
        ),
        kernel(
            "landlock",
            format!(
                "version {landlock}; makes and removes files only in scratch, HOME, /workspace, /out and caches; opens what is in /dev and /proc as it is"
            ),
        ),
    ];
    let network = gateway::mechanisms(placement.gateway.as_ref());
    let privilege = vec![
        kernel("user-namespace", user_namespace.to_owned()),
        kernel("capabilities", "none; no_new_privs; bounding set empty".to_owned()),
        kernel(
            "seccomp",
            format!("allow-list `{:?}`; 32-bit and x32 calls are killed", envelope.privilege().syscalls)
                .to_lowercase(),
        ),
        kernel("pid-namespace", "sees and signals its own processes only".to_owned()),
    ];
    let credentials = vec![
        kernel("empty-environment", "only named variables enter; no host descriptor does".to_owned()),
        kernel("mount-namespace", "no file of the home folder is visible but toolchains".to_owned()),
    ];
    let cleanup = vec![
        kernel("pid-namespace", "every process ends with init, and init with its keeper".to_owned()),
        kernel("mount-namespace", "mounts and scratch vanish with the last process".to_owned()),
    ];
    Enforcement(vec![
        (Clause::Filesystem, filesystem),
        (Clause::Network, network),
        (Clause::Privilege, privilege),
        (Clause::Credentials, credentials),
        (Clause::Resources, resources(native, envelope, placement)),
        (Clause::Cleanup, cleanup),
    ])
}

fn resources(native: &Native, envelope: &Envelope, placement: &Placement) -> Vec<Mechanism> {
    let limits = envelope.resources();
    let kernel = |name, detail: String| Mechanism { name, detail, strength: Strength::Kernel };
    let watch = |name, detail: String| Mechanism { name, detail, strength: Strength::Watch };
    let memory = quantity::show_bytes(limits.memory_bytes);
    let grouped = format!(
        "memory {memory}, {} processes, {} cpu",
        limits.processes,
        quantity::show_cpus(limits.cpu_millis)
    );
    let mut held = match &native.hierarchy {
        Hierarchy::V2 { .. } => vec![kernel("cgroup-v2", grouped)],
        Hierarchy::V1 { .. } => vec![kernel("cgroup-v1", grouped)],
        Hierarchy::None { why } => vec![
            kernel(
                "rlimits",
                format!(
                    "{} processes in its user namespace; data of each process {memory}",
                    limits.processes
                ),
            ),
            watch(
                "resident-memory-watch",
                format!(
                    "all together {memory}, looked at every 50 ms; memory files, System V segments and socket buffers are not seen ({why})"
                ),
            ),
        ],
    };
    held.push(kernel(
        "tmpfs-size",
        format!("scratch {} in memory", quantity::show_bytes(scratch_bytes(envelope))),
    ));
    held.push(kernel(
        "rlimits",
        format!(
            "file size {}, {} open files, no core files",
            quantity::show_bytes(limits.file_size_bytes),
            limits.open_files
        ),
    ));
    held.extend(disk(envelope, placement));
    held.push(kernel("pid-namespace", "at the wall clock every process ends with its first".to_owned()));
    held
}

/// What holds the disk limit for the layer.
#[must_use]
pub fn disk(envelope: &Envelope, placement: &Placement) -> Vec<Mechanism> {
    let Some(workspace) = &envelope.filesystem().workspace else { return Vec::new() };
    let limit_bytes = envelope.resources().disk_bytes;
    let limit = quantity::show_bytes(limit_bytes);
    let watch = |detail| Mechanism { name: "byte-watch", detail, strength: Strength::Watch };
    let image = |bytes: u64, detail| Mechanism {
        name: "loop-image",
        detail: format!("the layer is a file system of {} in a file{detail}", quantity::show_bytes(bytes)),
        strength: Strength::Kernel,
    };
    match (workspace.mode, placement.layer.as_ref().map(|layer| &layer.disk)) {
        // What a read-write workspace takes is the host's own, and nobody counts it.
        (WorkspaceMode::ReadOnly | WorkspaceMode::ReadWrite, _) => Vec::new(),
        (WorkspaceMode::CopyOnWrite, Some(LayerDisk::Image { bytes, .. })) if *bytes > limit_bytes => vec![
            image(*bytes, ", as the session began with"),
            watch(format!("{limit} of it, looked at every second")),
        ],
        (WorkspaceMode::CopyOnWrite, Some(LayerDisk::Image { bytes, .. })) => {
            let less = limit_bytes - bytes > SIZE_STEP;
            vec![image(*bytes, if less { "; there was no room for more when it was made" } else { "" })]
        }
        (WorkspaceMode::CopyOnWrite, Some(LayerDisk::Folder { why })) => {
            vec![watch(format!("disk-backed layer {limit}, looked at every second ({why})"))]
        }
        (WorkspaceMode::CopyOnWrite, None) => {
            vec![watch(format!("disk-backed layer {limit}, looked at every second"))]
        }
    }
}
