//! The state folder: one per user, 0700, owned by that user, or refused.
//!
//! ```text
//! records/ID.jsonl     one file a task             layers/ID/{meta.json,upper,work}   copy-on-write layers
//! records/index.jsonl  the per-user chain          sessions/NAME/{meta.json,home,upper,work}
//! caches/KEY/          one per project and kind    shared/      host-made parts and mount points
//! trusted.json         pinned fumehood.toml files
//! ```

use fumehood_sys::host;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Made in this order, so that the last one being there means that all are.
const FOLDERS: [&str; 9] = [
    "records",
    "layers",
    "sessions",
    "caches",
    "shared",
    "shared/root",
    "shared/lower",
    "shared/layer",
    "shared/empty",
];

/// A state folder that was found to be ours.
#[derive(Clone, Debug)]
pub struct State {
    root: PathBuf,
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
        let failed = |source| StateError::Io { path: root.clone(), source };
        match fs::symlink_metadata(&root) {
            Ok(meta) => judge(&root, &meta)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = root.parent() {
                    DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(failed)?;
                }
                make(&root).map_err(failed)?;
                judge(&root, &fs::symlink_metadata(&root).map_err(failed)?)?;
            }
            Err(source) => return Err(failed(source)),
        }
        let state = Self { root: root.clone() };
        if fs::symlink_metadata(state.shared().join("empty")).is_err() {
            FOLDERS.iter().try_for_each(|folder| make(&root.join(folder))).map_err(failed)?;
        }
        Ok(state)
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
        self.root.join("layers")
    }

    /// Where sessions keep their layer and HOME.
    pub fn sessions(&self) -> PathBuf {
        self.root.join("sessions")
    }

    /// Where caches are.
    pub fn caches(&self) -> PathBuf {
        self.root.join("caches")
    }

    /// Parts that are the same for every run, and folders that a launch mounts on in its own namespace.
    pub fn shared(&self) -> PathBuf {
        self.root.join("shared")
    }
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
