//! The state folder: one per user, 0700, owned by that user, or refused.
//!
//! ```text
//! records/ID.jsonl     one file a task             layers/ID/{meta.json,upper,work}   copy-on-write layers
//! records/index.jsonl  the per-user chain          sessions/NAME/{meta.json,home,upper,work}
//! sandboxes/ID/        living sandboxes                 snapshots/NAME/  their files, kept
//! caches/KEY/          one per project and kind    shared/      host-made parts and mount points
//! fetched/KEY          answers of `fetch`, kept for a moment
//! scratch/ID           what a sandbox without a root of its own writes (with root: beside this folder)
//! trusted.json         pinned fumehood.toml files
//! ```
//!
//! An overlay takes no other overlay's layer. Where the folder is itself on one, as in most containers,
//! and layers have no file system of their own (`files::disk`), `layers`, `sessions`, `sandboxes` and `snapshots` are in memory,
//! in `/dev/shm/fumehood-UID/KEY`: made, owned and judged the same.

use crate::files::disk::Disk;
use fumehood_sys::host;
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Made in this order, so that the last one being there means that all are.
const FOLDERS: [&str; 7] =
    ["records", "caches", "shared", "shared/root", "shared/lower", "shared/layer", "shared/empty"];

/// Those that hold layers, in the same order.
const LAYERED: [&str; 4] = ["layers", "sessions", "sandboxes", "snapshots"];
const MEMORY: &str = "/dev/shm";

/// A state folder that was found to be ours.
#[derive(Clone, Debug)]
pub struct State {
    root: PathBuf,
    /// Where `layers` and `sessions` are.
    layered: PathBuf,
}

/// Why a folder can not hold state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the state folder `{}` {what}", path.display())]
    Unsafe { path: PathBuf, what: &'static str, remedy: String },
    #[error("the state folder `{}` can not be used", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

// === impl State ===

impl State {
    /// Opens, and makes where it is missing, the folder at `root`.
    pub fn open(root: PathBuf) -> Result<Self, StateError> {
        if let Some(parent) = root.parent().filter(|_| fs::symlink_metadata(&root).is_err()) {
            let failed = |source| StateError::Io { path: root.clone(), source };
            DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
        }
        own(&root)?;
        fill(&root, &FOLDERS)?;
        let layered = match in_memory(&root) {
            None => root.clone(),
            Some((ours, layered)) => {
                own(&ours)?;
                own(&layered)?;
                layered
            }
        };
        fill(&layered, &LAYERED)?;
        Ok(Self { root, layered })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the records are.
    pub fn records(&self) -> PathBuf {
        self.root.join("records")
    }

    /// Where the layers of copy-on-write runs are.
    pub fn layers(&self) -> PathBuf {
        self.layered.join("layers")
    }

    /// Where sessions keep their layer and HOME.
    pub fn sessions(&self) -> PathBuf {
        self.layered.join("sessions")
    }

    /// Where living sandboxes are: a folder each, that bears its id.
    pub fn sandboxes(&self) -> PathBuf {
        self.layered.join("sandboxes")
    }

    /// Where snapshots of their files are.
    pub fn snapshots(&self) -> PathBuf {
        self.layered.join("snapshots")
    }

    /// Where caches are.
    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// Where answers of `fetch` are kept for a moment. Not made before the first.
    pub fn fetched(&self) -> PathBuf {
        self.root.join("fetched")
    }

    /// Folders on disk of sandboxes without a root of their own, one a run; not made before the first. With root
    /// it is beside the state folder, which is closed to every other uid, so to a sandbox's too.
    pub fn scratch(&self) -> PathBuf {
        if host::euid() != 0 {
            return self.root.join("scratch");
        }
        let mut beside = self.root.as_os_str().to_owned();
        beside.push(".scratch");
        beside.into()
    }

    /// Parts that are the same for every run, and folders that a launch mounts on in its own namespace.
    pub fn shared(&self) -> PathBuf {
        self.root.join("shared")
    }
}

/// The caller's folder in memory and the one of this state folder in it, where layers must be there.
fn in_memory(root: &Path) -> Option<(PathBuf, PathBuf)> {
    let folder = File::open(root).ok()?;
    if !host::is_overlay(folder.as_raw_fd()) || Disk::possible().is_ok() {
        return None;
    }
    let hash = Sha256::digest(root.as_os_str().as_encoded_bytes());
    let key: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let ours = Path::new(MEMORY).join(format!("fumehood-{}", host::euid()));
    let layered = ours.join(key);
    Some((ours, layered))
}

/// Makes a folder where it is missing, and refuses one that others could have made.
fn own(path: &Path) -> Result<(), StateError> {
    let failed = |source| StateError::Io { path: path.to_owned(), source };
    make(path).map_err(failed)?;
    judge(path, &fs::symlink_metadata(path).map_err(failed)?)
}

/// Makes what is missing in a folder of ours.
fn fill(root: &Path, folders: &[&str]) -> Result<(), StateError> {
    let last = folders.last().map(|last| fs::symlink_metadata(root.join(last)));
    if last.is_some_and(|last| last.is_ok()) {
        return Ok(());
    }
    let failed = |source| StateError::Io { path: root.to_owned(), source };
    folders.iter().try_for_each(|folder| make(&root.join(folder))).map_err(failed)
}

fn judge(path: &Path, meta: &fs::Metadata) -> Result<(), StateError> {
    let refuse = |what, remedy: String| Err(StateError::Unsafe { path: path.to_owned(), what, remedy });
    if meta.file_type().is_symlink() {
        return refuse("is a link", "name the folder itself with `FUMEHOOD_STATE`".to_owned());
    }
    if !meta.is_dir() {
        return refuse("is not a folder", "move it away, or name another with `FUMEHOOD_STATE`".to_owned());
    }
    if meta.uid() != host::euid() {
        return refuse(
            "belongs to another user",
            "name a folder of your own with `FUMEHOOD_STATE`".to_owned(),
        );
    }
    if meta.mode() & 0o077 != 0 {
        return refuse("can be entered by others", format!("chmod 700 `{}`", path.display()));
    }
    Ok(())
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_new_folder_is_private_and_opens_again() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().join("deep/state");
        State::open(root.clone()).unwrap();
        assert_eq!(fs::metadata(&root).unwrap().mode() & 0o777, 0o700);
        State::open(root).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_enter_or_that_is_a_link_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let open = base.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(State::open(open.clone()), Err(StateError::Unsafe { .. })));
        fs::set_permissions(&open, fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::symlink(&open, base.path().join("link")).unwrap();
        assert!(matches!(State::open(base.path().join("link")), Err(StateError::Unsafe { .. })));
    }
}
