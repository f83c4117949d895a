//! Changing the store: the lock, and how something comes to stand in it.

use super::images::{Image, Named, Stored, file_of, name_file, names};
use super::{Store, make};
use crate::digest::Digest;
use crate::fault::{Code, Fault};
use crate::marks::Marks;
use crate::merge;
use fumehood_model::image::Reference;
use fumehood_sys::dirfd::DirHandle;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

const MARKS: &str = "marks";
const TREE: &str = "tree";
/// More than a million names.
const MARKS_BYTES: u64 = 1 << 30;

/// The store, while nobody else changes it.
#[derive(Debug)]
pub struct Making<'s> {
    pub(super) store: &'s Store,
    _lock: File,
    made: u64,
}

/// A place under `tmp`, gone with this unless it was moved.
#[derive(Debug)]
pub(crate) struct Draft {
    path: PathBuf,
}

// === impl Store ===

impl Store {
    /// Takes the lock, and removes what was left unfinished. `waiting` is called where somebody has it.
    pub fn lock(&self, waiting: &mut dyn FnMut()) -> Result<Making<'_>, Fault> {
        self.make()?;
        let failed = |error: &io::Error| Fault::store("lock the store of images", error);
        let lock = File::options().create(true).append(true).open(self.root.join("lock"));
        let lock = lock.map_err(|error| failed(&error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                waiting();
                lock.lock().map_err(|error| failed(&error))?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
        let making = Making { store: self, _lock: lock, made: 0 };
        making.sweep()?;
        Ok(making)
    }
}

// === impl Making ===

impl Making<'_> {
    /// Removes what whoever had the lock before left unfinished. How much.
    fn sweep(&self) -> Result<(), Fault> {
        let tmp = self.store.folder("tmp");
        for name in names(&tmp)? {
            remove(&tmp.join(name)).map_err(|error| Fault::store("remove what a pull left", &error))?;
        }
        Ok(())
    }

    /// Whether the layer is there.
    pub(crate) fn has_layer(&self, diff_id: &Digest) -> bool {
        self.store.layer(diff_id).is_dir()
    }

    /// A place for what is being made.
    pub(crate) fn draft(&mut self) -> Result<Draft, Fault> {
        self.made += 1;
        let path = self.store.folder("tmp").join(self.made.to_string());
        make(&path).map_err(|error| Fault::store("make a folder of the store", &error))?;
        Ok(Draft { path })
    }

    /// A layer that was unpacked into the draft's tree is one of the store's.
    pub(crate) fn keep_layer(&self, draft: Draft, marks: &Marks, diff_id: &Digest) -> Result<(), Fault> {
        let failed = |error: &io::Error| Fault::store("keep a layer", error);
        write(&draft.path.join(MARKS), &marks.write()).map_err(|error| failed(&error))?;
        settle(&draft.path).map_err(|error| failed(&error))?;
        self.keep(draft, &self.store.layer(diff_id))
    }

    /// Brings the layers together, unless that was done.
    pub(crate) fn keep_root(&mut self, chain: &Digest, diff_ids: &[Digest]) -> Result<(), Fault> {
        let place = self.store.roots(chain);
        if place.is_dir() {
            return Ok(());
        }
        let draft = self.draft()?;
        let failed = |error: io::Error| Fault::store("make the image's root", &error);
        fs::set_permissions(&draft.path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
        let root = DirHandle::open_no_link(&draft.path).map_err(failed)?;
        for diff_id in diff_ids {
            let layer = DirHandle::open_no_link(&self.store.layer(diff_id)).map_err(failed)?;
            let marks = layer.read_small(Path::new(MARKS), MARKS_BYTES).map_err(failed)?;
            let tree = layer.sub(Path::new(TREE)).map_err(failed)?;
            merge::apply(&root, &tree, &Marks::read(&marks)?)?;
        }
        settle(&draft.path).map_err(failed)?;
        self.keep(draft, &place)
    }

    /// Keeps manifest and configuration.
    pub(crate) fn keep_image(&mut self, manifest: &[u8], config: &[u8]) -> Result<Image, Fault> {
        let digest = Digest::of(manifest);
        let text = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| Fault::new(Code::BadManifest, "a manifest is not UTF-8 text"))
        };
        let stored = Stored { manifest: text(manifest)?, config: text(config)? };
        self.put("images", &file_of(&digest), &serde_json::to_vec(&stored).unwrap_or_default())?;
        self.store.image(&digest)
    }

    /// Gives an image a name, which another may have had.
    pub fn name(&mut self, name: &Reference, digest: &Digest) -> Result<(), Fault> {
        let named = Named { name: name.to_string(), digest: digest.to_string() };
        self.put("names", &name_file(&named.name), &serde_json::to_vec(&named).unwrap_or_default())
    }

    /// A small file of the store, whole or not at all.
    fn put(&mut self, folder: &str, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        let draft = self.draft()?;
        let (from, to) = (draft.path.join("new"), self.store.folder(folder));
        let put =
            write(&from, bytes).and_then(|()| fs::rename(&from, to.join(name))).and_then(|()| sync(&to));
        put.map_err(|error| Fault::store("write to the store", &error))
    }

    fn keep(&self, draft: Draft, place: &Path) -> Result<(), Fault> {
        let above = place.parent().unwrap_or(Path::new("/"));
        let moved = fs::rename(&draft.path, place).and_then(|()| sync(above));
        moved.map_err(|error| Fault::store("move what was made to its place", &error))
    }

    /// Moves something out of the store's sight, then removes it.
    pub(super) fn take_away(&mut self, path: &Path) -> Result<(), Fault> {
        let failed = |error: io::Error| Fault::store("remove from the store", &error);
        let draft = self.draft()?;
        match fs::rename(path, draft.path.join("old")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(failed)?,
        }
        draft.remove().map_err(failed)
    }
}

// === impl Draft ===

impl Draft {
    /// The folder that a layer is unpacked into.
    pub(crate) fn tree(&self) -> Result<DirHandle, Fault> {
        let tree = self.path.join(TREE);
        let opened = make(&tree).and_then(|()| DirHandle::open_no_link(&tree));
        opened.map_err(|error| Fault::store("make a folder of the store", &error))
    }

    /// The folder itself.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn remove(self) -> io::Result<()> {
        remove(&self.path)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Gone already where it was moved; what stays is swept by the next who takes the lock.
        let _ = remove(&self.path);
    }
}

fn remove(path: &Path) -> io::Result<()> {
    let facts = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    if facts.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Waits until everything beneath is on stable storage: one call, however many files.
fn settle(folder: &Path) -> io::Result<()> {
    DirHandle::open_no_link(folder)?.sync_file_system()
}
