//! From an envelope to a plan: what holds each clause here, and what launching it will take.

use crate::bare::{self, Folders};
use crate::cgroup::Hierarchy;
use crate::identity::Identity;
use crate::instance::NativeInstance;
use crate::launch::LaunchParts;
use crate::root::{c_path, c_string};
use crate::shape::Shape;
use crate::{Bare, Native, enforcement, etc, gateway, launch};
use fumehood_backend::{
    GuestStdio, Instance, LaunchError, LayerDisk, LayerPlace, Placement, Plan, StartError,
};
use fumehood_model::enforcement::{Clause, Enforcement, Unenforceable};
use fumehood_model::envelope::{Envelope, Root, WorkspaceMode};
use fumehood_model::exec::ExecRequest;
use fumehood_model::level::Level;
use fumehood_sys::idmap;
use fumehood_sys::launch::{Beside, Op, Program};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Rules about renames need this version of Landlock; older ones would break ordinary programs.
const LANDLOCK_NEEDED: u32 = 2;

/// One envelope on this host.
#[derive(Debug)]
pub(crate) struct NativePlan {
    pub(crate) hierarchy: Hierarchy,
    pub(crate) host_cpus: u32,
    pub(crate) envelope: Envelope,
    pub(crate) placement: Placement,
    pub(crate) landlock: u32,
    pub(crate) shape: Shape,
    /// Its maker uses what the next one has made, so it goes first.
    pub(crate) gateway: Option<gateway::Foreseen>,
    /// Made while the rest is prepared, where that was possible.
    pub(crate) namespaces: Option<Beside>,
    /// What is part of any root, likewise.
    pub(crate) frame: Option<Beside>,
    /// Whether everything is prepared when it begins, the cgroup too.
    pub(crate) pooled: bool,
    /// What stands in the place of a system, if that is not to be there.
    pub(crate) bare: Option<Bare>,
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

/// Whether there are system folders in a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    Present,
    Absent,
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
        let shape = match native.level {
            Level::Process => {
                let network = placement.gateway.is_some() || !envelope.network().publish.is_empty();
                Shape::of_process(network, landlock, &placement.shared)
            }
            Level::Wasm | Level::Container | Level::Gvisor | Level::Microvm => Shape::Container,
        };
        if let Shape::Bare { why } = &shape {
            bare::check(envelope, placement, landlock, why)?;
        }
        placement.gateway.as_ref().map_or(Ok(()), |spec| gateway::check(spec, &placement.shared))?;
        let enforcement = enforcement::of(native, envelope, placement, (landlock, &shape));
        Ok(Self {
            hierarchy: native.hierarchy.clone(),
            host_cpus: native.host_cpus,
            envelope: envelope.clone(),
            placement: placement.clone(),
            landlock,
            shape,
            gateway: native.gateway.take(),
            namespaces: native.namespaces.take(),
            frame: native.frame.take(),
            pooled: native.pooled,
            bare: None,
            begun: None,
            enforcement,
        })
    }

    /// What has begun, if it is still good, and otherwise all of it anew.
    fn take(&mut self) -> Result<Begun, LaunchError> {
        match self.begun.take() {
            Some(Begun::Parked(instance)) if instance.is_idle() => return Ok(Begun::Parked(instance)),
            Some(prepared @ Begun::Prepared(_)) => return Ok(prepared),
            // One that was ended while it waited is built again, as if nothing had begun.
            Some(gone @ Begun::Parked(_)) => gone.abandon(),
            None => {}
        }
        LaunchParts::prepare(self).map(|parts| Begun::Prepared(Box::new(parts)))
    }

    /// Whether its root has a system.
    pub(crate) fn system(&self) -> System {
        if self.bare.is_some() { System::Absent } else { System::Present }
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

    fn adapt(&self, request: &mut ExecRequest) {
        if !self.shape.has_root() {
            let output = self.envelope.filesystem().output.is_some();
            Folders::of(&self.envelope, &self.placement).adapt(request, output);
        }
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
        let instance = match self.take()? {
            Begun::Parked(instance) => instance,
            Begun::Prepared(parts) => Box::new(launch::launch(&self, *parts)?),
        };
        Ok(instance)
    }

    fn start(
        mut self: Box<Self>,
        request: &ExecRequest,
        stdio: GuestStdio,
    ) -> Result<Box<dyn Instance>, StartError> {
        match self.take()? {
            Begun::Parked(mut instance) => {
                instance.exec(request, stdio)?;
                Ok(instance)
            }
            // Without a root its terminal is made outside, by the instance.
            Begun::Prepared(parts) if !self.shape.has_root() => {
                let mut instance = launch::launch(&self, *parts)?;
                instance.exec(request, stdio)?;
                Ok(Box::new(instance))
            }
            Begun::Prepared(mut parts) => {
                let exec = parts.exec(request, stdio).inspect_err(|_| parts.abandon())?;
                let mut instance = launch::launch(&self, *parts)?;
                instance.runs(exec);
                Ok(Box::new(instance))
            }
        }
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
    /// Makes what the root is built from, with a system or without any.
    ///
    /// # Errors
    /// The sandbox's `/etc` could not be made.
    pub fn find(
        envelope: &Envelope,
        placement: &Placement,
        identity: &Identity,
        system: System,
    ) -> std::io::Result<Self> {
        let resolver = placement.gateway.as_ref().map(|_| fumehood_backend::gateway::ADDRESS);
        let system = match (system, &envelope.filesystem().root) {
            (System::Absent, _) => None,
            (System::Present, Root::HostSystem) => Some(etc::System::Host),
            // Without a network it needs nobody to ask for names.
            (System::Present, Root::Directory(_) | Root::Image(_)) => resolver.map(|_| etc::System::Image),
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
