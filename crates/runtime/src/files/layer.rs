//! One copy-on-write layer of the state folder: what it is for, and its folders.
//!
//! ```text
//! ID/meta.json     what it lies over, and since when     ID/upper   what the sandbox wrote
//! ID/journal.jsonl an application under way              ID/work    the overlay's own
//! ```
//!
//! Where it has a file system of its own (`files::disk`), `upper` and `work` lie in `ID/disk.img`.

use super::Record;
use super::changes::{self, ChangeList, ReadError, ReadLimits};
use super::discard::remove_tree;
use super::disk::{Disk, IMAGE};
use super::text::{escape_path, unescape_path};
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use fumehood_sys::dirfd::{DirHandle, DirLock, RenameMode, Stat, Time, is_root};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The only form of `meta.json` so far.
const VERSION: u32 = 1;
/// Far above what a path and a few numbers take.
const META_LIMIT_BYTES: u64 = 64 * 1024;
const META: &str = "meta.json";
const UPPER: &str = "upper";
const WORK: &str = "work";

/// What a layer lies over, and since when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerMeta {
    version: u32,
    /// The task that made it.
    pub task: TaskId,
    /// The host folder, as text that reads back (`files::text`).
    workspace: String,
    /// Device (major, minor) and inode of that folder, so that another one in its place is noticed.
    workspace_dev: (u32, u32),
    workspace_ino: u64,
    /// The kernel's file clock when the layer was made. What changed later on the host is a conflict.
    started_secs: i64,
    started_nanos: u32,
}

/// An open layer.
#[derive(Debug)]
pub struct Layer {
    dir: DirHandle,
    disk: Option<Disk>,
    pub meta: LayerMeta,
}

/// Why a layer can not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    #[error("there is no layer `{name}`; it was applied, discarded, or nothing had changed")]
    Missing { name: String },
    #[error("make the layer `{name}`")]
    Make {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("read `meta.json` of the layer `{name}`")]
    Meta {
        name: String,
        #[source]
        source: io::Error,
    },
    #[error("open the workspace `{}` of the layer", escape_path(path))]
    Workspace {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("`{}` is not the folder that the layer was made over", escape_path(path))]
    OtherWorkspace { path: PathBuf },
    #[error("the layer `{name}` is in use by a run or another command")]
    Busy { name: String },
    #[error("read the layer")]
    Read(#[from] ReadError),
    #[error("work on `{part}` of the layer")]
    Part {
        part: &'static str,
        #[source]
        source: io::Error,
    },
}

// === impl LayerMeta ===

impl LayerMeta {
    /// The host folder.
    pub fn workspace(&self) -> PathBuf {
        unescape_path(&self.workspace).unwrap_or_else(|| PathBuf::from(&self.workspace))
    }

    /// Device (major, minor) and inode of the host folder.
    pub(crate) const fn workspace_id(&self) -> ((u32, u32), u64) {
        (self.workspace_dev, self.workspace_ino)
    }

    /// When the layer was made, by the clock that stamps files.
    pub const fn started(&self) -> Time {
        Time { secs: self.started_secs, nanos: self.started_nanos }
    }

    fn is_over(&self, stat: &Stat) -> bool {
        (self.workspace_dev, self.workspace_ino) == (stat.dev, stat.ino)
    }
}

// === impl Layer ===

impl Layer {
    /// Makes `layers/ID` over an open workspace folder.
    ///
    /// `workspace` is the absolute path where `source` was opened. As root the two folders get the workspace's owner, so
    /// that an idmapped overlay writes files that belong to that user; the mode is the workspace's.
    pub fn create(
        layers: &DirHandle,
        task: &TaskId,
        workspace: &Path,
        source: &DirHandle,
    ) -> Result<Self, LayerError> {
        let name = task.as_str();
        let failed = |source| LayerError::Make { name: name.to_owned(), source };
        layers.make_dir(OsStr::new(name), 0o700).map_err(failed)?;
        let made = layers
            .sub(Path::new(name))
            .map_err(failed)
            .and_then(|dir| Self::create_in(dir, task, workspace, source));
        if made.is_err() {
            // The first failure is the one to tell.
            let _ = remove_tree(layers, OsStr::new(name));
        }
        made
    }

    /// Starts the layer anew, empty and as of now: what a session does once its layer was applied.
    pub fn renew(self, source: &DirHandle) -> Result<Self, LayerError> {
        let Self { dir, disk, meta } = self;
        let failed = |source| LayerError::Make { name: meta.task.to_string(), source };
        let parts = parts(&dir, disk.as_ref()).map_err(failed)?;
        for part in [UPPER, WORK] {
            remove_tree(&parts, OsStr::new(part)).map_err(failed)?;
        }
        Self::create_on((dir, disk), &meta.task, &meta.workspace(), source)
    }

    /// As [`Layer::create`], in an open folder that a session keeps.
    pub fn create_in(
        dir: DirHandle,
        task: &TaskId,
        workspace: &Path,
        source: &DirHandle,
    ) -> Result<Self, LayerError> {
        Self::create_on((dir, None), task, workspace, source)
    }

    /// As [`Layer::create_in`], on a file system of its own that was made in the folder.
    pub fn create_on(
        (dir, disk): (DirHandle, Option<Disk>),
        task: &TaskId,
        workspace: &Path,
        source: &DirHandle,
    ) -> Result<Self, LayerError> {
        let failed = |source| LayerError::Make { name: task.to_string(), source };
        let over = source.stat().map_err(failed)?;
        let parts = parts(&dir, disk.as_ref()).map_err(failed)?;
        for part in [UPPER, WORK] {
            make_part(&parts, OsStr::new(part), &over).map_err(failed)?;
        }
        // The stamp of a new object is the clock that the host's later changes are stamped with;
        // no other clock is exactly that one.
        let started = parts.stat_at(OsStr::new(WORK)).map_err(failed)?.ctime;
        let meta = LayerMeta {
            version: VERSION,
            task: task.clone(),
            workspace: escape_path(workspace),
            workspace_dev: over.dev,
            workspace_ino: over.ino,
            started_secs: started.secs,
            started_nanos: started.nanos,
        };
        let text = serde_json::to_vec(&meta).map_err(|error| failed(error.into()))?;
        write_whole(&dir, OsStr::new(META), &text).map_err(failed)?;
        drop(parts);
        Ok(Self { dir, disk, meta })
    }

    /// Opens `layers/NAME`.
    pub fn open(layers: &DirHandle, task: &TaskId) -> Result<Self, LayerError> {
        match layers.sub(Path::new(task.as_str())) {
            Ok(dir) => Self::open_in(dir, task.as_str()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(LayerError::Missing { name: task.to_string() })
            }
            Err(source) => Err(LayerError::Meta { name: task.to_string(), source }),
        }
    }

    /// As [`Layer::open`], in an open folder. `name` is for messages.
    pub fn open_in(dir: DirHandle, name: &str) -> Result<Self, LayerError> {
        let failed = |source| LayerError::Meta { name: name.to_owned(), source };
        let text = dir.read_small(Path::new(META), META_LIMIT_BYTES).map_err(failed)?;
        let meta: LayerMeta = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
        if meta.version != VERSION {
            let what = format!("version {} is not one this program knows", meta.version);
            return Err(failed(io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        let disk = Disk::find(&dir).map_err(failed)?;
        Ok(Self { dir, disk, meta })
    }

    /// Whether whoever made the layer in `dir` was ended meanwhile: no run has ever used it. What it is for is
    /// written last, and an image without it was not mounted for a run.
    pub(crate) fn is_unfinished(dir: &DirHandle) -> bool {
        let absent = |name| matches!(dir.look(OsStr::new(name)), Ok(None));
        absent(META) && absent(UPPER)
    }

    /// The layer's own folder.
    pub const fn dir(&self) -> &DirHandle {
        &self.dir
    }

    /// The size of its own file system, and that file system's root, mounted nowhere. `None` where it lies on
    /// the host's.
    pub fn disk(&self) -> Result<Option<(u64, Arc<OwnedFd>)>, LayerError> {
        let failed = |source| LayerError::Part { part: IMAGE, source };
        let mounted = |disk: &Disk| disk.mount(&self.dir).map(|mount| (disk.bytes(), Arc::clone(mount)));
        self.disk.as_ref().map(mounted).transpose().map_err(failed)
    }

    /// Makes sure that what was written is in the image, where there is one. On an error it is not, and the layer
    /// can be discarded only.
    pub(crate) fn settle(&self) -> Result<(), LayerError> {
        let settled = self.disk.as_ref().map(|disk| disk.settle(&self.dir));
        settled.transpose().map(drop).map_err(|source| LayerError::Part { part: IMAGE, source })
    }

    /// What the sandbox wrote.
    pub fn upper(&self) -> Result<DirHandle, LayerError> {
        self.part(UPPER)
    }

    /// The overlay's working folder.
    pub fn work(&self) -> Result<DirHandle, LayerError> {
        self.part(WORK)
    }

    fn part(&self, part: &'static str) -> Result<DirHandle, LayerError> {
        parts(&self.dir, self.disk.as_ref())
            .and_then(|parts| parts.sub(Path::new(part)))
            .map_err(|source| LayerError::Part { part, source })
    }

    /// Takes the layer until the lock is dropped. A run holds it, and so does whoever applies or removes
    /// it.
    pub fn lock(&self) -> Result<DirLock<'_>, LayerError> {
        match self.dir.try_lock() {
            Ok(Some(lock)) => Ok(lock),
            Ok(None) => Err(LayerError::Busy { name: self.meta.task.to_string() }),
            Err(source) => Err(LayerError::Part { part: ".", source }),
        }
    }

    /// What it changes. Costs what was written, whatever the size of the workspace.
    pub fn changes(&self) -> Result<ChangeList, LayerError> {
        Ok(changes::read(&self.upper()?, &self.workspace()?, ReadLimits::default())?)
    }

    /// Whether `folder` is the one that the layer was made over.
    pub fn is_over(&self, folder: &DirHandle) -> bool {
        folder.stat().is_ok_and(|stat| self.meta.is_over(&stat))
    }

    /// Opens the host folder, and refuses another one in its place.
    pub fn workspace(&self) -> Result<DirHandle, LayerError> {
        let path = self.meta.workspace();
        let failed = |source| LayerError::Workspace { path: path.clone(), source };
        let dir = DirHandle::open(&path).map_err(failed)?;
        let stat = dir.stat().map_err(failed)?;
        if self.meta.is_over(&stat) { Ok(dir) } else { Err(LayerError::OtherWorkspace { path }) }
    }
}

/// The layers there are, the youngest last. What is not named as a task is passed over.
pub fn list(layers: &DirHandle) -> io::Result<Vec<TaskId>> {
    let mut tasks = Vec::new();
    for entry in layers.list()? {
        tasks.extend(entry?.name.to_str().and_then(|name| TaskId::parse(name).ok()));
    }
    tasks.sort();
    Ok(tasks)
}

/// Records that the layer is thrown away, and removes it. One that is in use is left.
pub fn discard(layers: &DirHandle, task: &TaskId, record: &mut Record<'_>) -> Result<(), LayerError> {
    let failed = |source| LayerError::Part { part: ".", source };
    let dir = layers.sub(Path::new(task.as_str())).map_err(|source| {
        let is_missing = source.kind() == io::ErrorKind::NotFound;
        if is_missing { LayerError::Missing { name: task.to_string() } } else { failed(source) }
    })?;
    let Some(_lock) = dir.try_lock().map_err(failed)? else {
        return Err(LayerError::Busy { name: task.to_string() });
    };
    record(&Event::LayerDiscarded {}).map_err(failed)?;
    remove_tree(layers, OsStr::new(task.as_str())).map_err(failed)
}

/// The folder of `upper` and `work`.
fn parts(dir: &DirHandle, disk: Option<&Disk>) -> io::Result<DirHandle> {
    match disk {
        None => dir.sub(Path::new("")),
        Some(disk) => disk.root(dir),
    }
}

fn make_part(dir: &DirHandle, name: &OsStr, over: &Stat) -> io::Result<()> {
    match dir.make_dir(name, 0o700) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        // A folder left by a start that was cut short; opened below without following a link.
        Ok(()) | Err(_) => {}
    }
    let part = dir.sub(Path::new(name))?;
    if is_root() {
        part.set_owner(over.uid, over.gid)?;
    }
    part.set_mode(over.mode & 0o777)
}

/// Writes a small file so that it is under its name whole or not at all.
pub(super) fn write_whole(dir: &DirHandle, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
    let mut temp = name.to_owned();
    temp.push(".new");
    match dir.remove_file(&temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = dir.create_new(&temp, 0o600)?;
    file.write_all(bytes)?;
    file.sync()?;
    dir.rename(&temp, dir, name, RenameMode::Replace)?;
    dir.sync()
}
