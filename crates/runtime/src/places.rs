//! Where on the host the parts of a run are: its layer, its session's HOME, its caches.

use crate::egress::ports;
use crate::files::collect::{CollectError, Target};
use crate::files::disk::{self, Disk, NoDisk};
use crate::files::layer::{Layer, LayerError};
use crate::finish::Finished;
use crate::keep::snapshot;
use crate::run::RunRequest;
use crate::state::State;
use fumehood_backend::{LayerDisk, LayerPlace, LivingPlace, Placement};
use fumehood_model::envelope::{Cache, Cleanup, Envelope, WorkspaceMode};
use fumehood_model::id::TaskId;
use fumehood_model::report::Changes;
use fumehood_sys::dirfd::{DirHandle, DirLock};
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The places of one run.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) placement: Placement,
    pub(crate) layer: Option<Layer>,
    /// The layer's folder, when it is this run's alone.
    pub(crate) own_layer: Option<PathBuf>,
    /// Where outputs go, held since before the command could move it.
    pub(crate) output: Option<Target>,
}

/// Why a place could not be made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    #[error("open the workspace `{}`", path.display())]
    Workspace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("find the place for outputs")]
    Output(#[source] CollectError),
    #[error("make the layer of the workspace")]
    Layer(#[source] LayerError),
    #[error("the session `{name}` belongs to the workspace `{}`", workspace.display())]
    OtherWorkspace { name: String, workspace: PathBuf },
    #[error("take the session, which another run is using")]
    SessionBusy,
    #[error("make `{}`", path.display())]
    Folder {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

// === impl Places ===

impl Places {
    /// The placement of a run that is only looked at: nothing is made.
    pub(crate) fn imagined(state: &State, request: &RunRequest) -> Placement {
        Placement {
            id: TaskId::new(0, 0),
            shared: state.shared(),
            scratch: state.scratch().join("0"),
            layer: imagined_layer(state, &request.envelope),
            home: None,
            home_at: request.home_at.clone(),
            caches: Vec::new(),
            toolchains: request.toolchains.clone(),
            gateway: request.envelope.network().egress.as_ref().map(ports::gateway),
            files: Vec::new(),
            living: None,
        }
    }

    /// Undoes [`Places::make`] for a run that did not happen.
    pub(crate) fn give_back(&self) {
        if let Some(layer) = &self.own_layer {
            let _ = remove_layer(layer);
        }
    }

    /// The root of the layer's own file system.
    pub(crate) fn disk(&self) -> Option<Arc<OwnedFd>> {
        match &self.placement.layer.as_ref()?.disk {
            LayerDisk::Image { mount, .. } => mount.clone(),
            LayerDisk::Folder { .. } => None,
        }
    }

    /// A living sandbox begins with a machine that was written down.
    pub(crate) fn begin_with(&mut self, machine: PathBuf) {
        if let Some(living) = &mut self.placement.living {
            living.machine = Some(machine);
        }
    }

    /// What a living sandbox has on disk, part by part.
    pub(crate) fn parts(&self) -> io::Result<Vec<snapshot::Part>> {
        let mut parts = Vec::new();
        if let Some(home) = &self.placement.home {
            parts.push((snapshot::HOME, DirHandle::open_no_link(home)?));
        }
        if let Some(workspace) = self.placement.living.as_ref().and_then(|living| living.workspace.as_ref()) {
            parts.push((snapshot::WORKSPACE, DirHandle::open_no_link(workspace)?));
        }
        if let Some(layer) = &self.layer {
            parts.push((snapshot::UPPER, layer.upper().map_err(io::Error::other)?));
        }
        Ok(parts)
    }

    /// Keeps a layer that changes something, unless the envelope says otherwise.
    pub(crate) fn settle(&self, envelope: &Envelope, finished: &Finished) {
        let unchanged = finished.changes.is_none_or(|changes| changes == Changes::default());
        if (unchanged && !finished.layer_unread) || *envelope.cleanup() == Cleanup::RemoveAll {
            self.give_back();
        } else if let (Some(layer), Some(_), Some(_)) = (&self.layer, self.disk(), &self.own_layer) {
            disk::keep(layer.dir());
        }
    }

    /// Makes the places of a living sandbox in a folder of its own, which is there.
    pub(crate) fn make_living(
        state: &State,
        id: &TaskId,
        request: &RunRequest,
        folder: &Path,
    ) -> Result<Self, PlaceError> {
        let envelope = &request.envelope;
        let owner = owner_of(envelope);
        let home = folder.join("home");
        make_folder(&home, owner)?;
        let workspace = envelope.filesystem().workspace.is_none().then(|| folder.join("workspace"));
        workspace.as_deref().map_or(Ok(()), |workspace| make_folder(workspace, owner))?;
        let (layer, layer_place) = layer(state, id, envelope, Kept::Living(folder))?.unzip();
        let placement = Placement {
            id: id.clone(),
            shared: state.shared(),
            scratch: state.scratch().join(id.as_str()),
            layer: layer_place,
            home: Some(home),
            home_at: request.home_at.clone(),
            caches: caches(state, envelope, &request.home_at, owner)?,
            toolchains: request.toolchains.clone(),
            gateway: envelope.network().egress.as_ref().map(ports::living),
            files: Vec::new(),
            living: Some(LivingPlace { workspace, machine: None }),
        };
        Ok(Self { placement, layer, own_layer: None, output: None })
    }

    /// Makes what is missing.
    pub(crate) fn make(state: &State, id: &TaskId, request: &RunRequest) -> Result<Self, PlaceError> {
        let envelope = &request.envelope;
        let owner = owner_of(envelope);
        let output = envelope.filesystem().output.as_ref();
        let output = output.map(|path| Target::find(path)).transpose().map_err(PlaceError::Output)?;
        let session = envelope.filesystem().session.as_ref().map(|name| (name, state.sessions().join(name)));
        if let Some((_, folder)) = &session {
            make_folder(folder, None)?;
        }
        let home = session.as_ref().map(|(_, folder)| folder.join("home"));
        if let Some(home) = &home {
            make_folder(home, owner)?;
        }
        let kept = session.as_ref().map_or(Kept::Run, |(name, folder)| Kept::Session(name, folder));
        let (layer, layer_place) = layer(state, id, envelope, kept)?.unzip();
        let own_layer = layer_place.as_ref().filter(|_| session.is_none()).map(|layer| layer.folder.clone());
        let placement = Placement {
            id: id.clone(),
            shared: state.shared(),
            scratch: state.scratch().join(id.as_str()),
            layer: layer_place,
            home,
            home_at: request.home_at.clone(),
            caches: caches(state, envelope, &request.home_at, owner)?,
            toolchains: request.toolchains.clone(),
            gateway: envelope.network().egress.as_ref().map(ports::gateway),
            files: Vec::new(),
            living: None,
        };
        Ok(Self { placement, layer, own_layer, output })
    }
}

/// Whose a layer is.
#[derive(Clone, Copy, Debug)]
enum Kept<'a> {
    Run,
    /// The session's name and folder.
    Session(&'a String, &'a Path),
    /// The folder of a living sandbox.
    Living(&'a Path),
}

/// The layer of a copy-on-write workspace: the session's, or one of this run's own.
fn layer(
    state: &State,
    id: &TaskId,
    envelope: &Envelope,
    kept: Kept<'_>,
) -> Result<Option<(Layer, LayerPlace)>, PlaceError> {
    let workspace = envelope.filesystem().workspace.as_ref();
    let Some(workspace) = workspace.filter(|workspace| workspace.mode == WorkspaceMode::CopyOnWrite) else {
        return Ok(None);
    };
    let source = DirHandle::open(&workspace.source)
        .map_err(|source| PlaceError::Workspace { path: workspace.source.clone(), source })?;
    let (path, session) = match kept {
        Kept::Run => (state.layers().join(id.as_str()), None),
        Kept::Session(name, folder) => (folder.join("layer"), Some(name)),
        Kept::Living(folder) => (folder.join("layer"), None),
    };
    let open = |path: &Path| {
        DirHandle::open(path).map_err(|source| PlaceError::Folder { path: path.to_owned(), source })
    };
    // Two first runs of one session must not both make it: what one wrote would be lost to the other.
    let maker = session.map(|_| make_folder(&path, None).and_then(|()| open(&path))).transpose()?;
    let _made_by_us = maker.as_ref().map(lock_unmade).transpose()?.flatten();
    if let Some(name) = session.filter(|_| path.join("meta.json").exists()) {
        let layer = Layer::open_in(open(&path)?, name).map_err(PlaceError::Layer)?;
        // A layer tells what differs from one folder. Over another it would hide and show the wrong files.
        if !layer.is_over(&source) {
            let workspace = layer.meta.workspace();
            return Err(PlaceError::OtherWorkspace { name: name.clone(), workspace });
        }
        let disk = disk_of(&layer, None)?;
        return Ok(Some((layer, LayerPlace { folder: path, disk })));
    }
    make_folder(&path, None)?;
    let dir = open(&path)?;
    let (disk, refused) = match Disk::make(&dir, &state.shared(), envelope.resources().disk_bytes) {
        Ok(disk) => (Some(disk), None),
        Err(refused) => (None, Some(refused)),
    };
    let layer = Layer::create_on((dir, disk), id, &workspace.source, &source).map_err(PlaceError::Layer)?;
    let disk = disk_of(&layer, refused)?;
    Ok(Some((layer, LayerPlace { folder: path, disk })))
}

/// The lock of a session's layer, while that is still to be made.
fn lock_unmade(dir: &DirHandle) -> Result<Option<DirLock<'_>>, PlaceError> {
    let failed = |source| PlaceError::Layer(LayerError::Part { part: ".", source });
    let is_made = || dir.look(OsStr::new("meta.json")).map(|found| found.is_some()).map_err(failed);
    if is_made()? {
        return Ok(None);
    }
    match dir.try_lock().map_err(failed)? {
        Some(lock) => Ok(Some(lock)),
        None => Err(PlaceError::SessionBusy),
    }
}

/// What an open layer lies on; `refused` says why it is not a file system of its own.
fn disk_of(layer: &Layer, refused: Option<NoDisk>) -> Result<LayerDisk, PlaceError> {
    Ok(match layer.disk().map_err(PlaceError::Layer)? {
        Some((bytes, mount)) => LayerDisk::Image { bytes, mount: Some(mount) },
        None => LayerDisk::Folder {
            why: refused
                .map_or_else(|| "the session began without".to_owned(), |refused| refused.to_string()),
        },
    })
}

/// What a layer of that envelope would lie on.
fn imagined_layer(state: &State, envelope: &Envelope) -> Option<LayerPlace> {
    let workspace = envelope.filesystem().workspace.as_ref()?;
    (workspace.mode == WorkspaceMode::CopyOnWrite).then(|| {
        let disk = match Disk::foresee(&state.shared(), envelope.resources().disk_bytes) {
            Ok(bytes) => LayerDisk::Image { bytes, mount: None },
            Err(refused) => LayerDisk::Folder { why: refused.to_string() },
        };
        LayerPlace { folder: PathBuf::new(), disk }
    })
}

/// Host folder and guest path of each cache. One per project and kind: nothing that one project's code
/// wrote is read by another's.
fn caches(
    state: &State,
    envelope: &Envelope,
    home: &Path,
    owner: Option<(u32, u32)>,
) -> Result<Vec<(PathBuf, PathBuf)>, PlaceError> {
    let project = envelope.filesystem().workspace.as_ref().map(|workspace| workspace.source.clone());
    let project = project.or_else(|| std::env::current_dir().ok()).unwrap_or_default();
    let place = |cache: &Cache| {
        let guest = match cache {
            Cache::Npm => home.join(".npm"),
            Cache::Pip => home.join(".cache/pip"),
            Cache::Cargo => home.join(".cargo/registry"),
            Cache::Directory(path) => path.clone(),
        };
        let mut hash = Sha256::new();
        for part in [&project, &guest] {
            hash.update(part.as_os_str().as_encoded_bytes());
            hash.update([0]);
        }
        let key: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let host = state.caches().join(key);
        make_folder(&host, owner)?;
        Ok((host, guest))
    };
    envelope.filesystem().caches.iter().map(place).collect()
}

/// Folders that the sandbox writes belong to whom its workspace belongs to.
fn owner_of(envelope: &Envelope) -> Option<(u32, u32)> {
    let workspace = envelope.filesystem().workspace.as_ref()?;
    let meta = fs::metadata(&workspace.source).ok()?;
    Some((meta.uid(), meta.gid()))
}

fn make_folder(path: &Path, owner: Option<(u32, u32)>) -> Result<(), PlaceError> {
    let failed = |source| PlaceError::Folder { path: path.to_owned(), source };
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(failed(source)),
        Ok(()) => match owner.filter(|_| fumehood_sys::host::euid() == 0) {
            Some((uid, gid)) => std::os::unix::fs::chown(path, Some(uid), Some(gid)).map_err(failed),
            None => Ok(()),
        },
    }
}

/// Removes a layer of one run, with nothing followed out of it.
pub(crate) fn remove_layer(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    crate::files::discard::remove_tree(&DirHandle::open(parent)?, name)
}
