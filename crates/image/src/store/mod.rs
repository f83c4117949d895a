//! Images on this host, by content.
//!
//! ```text
//! lock                      held by whoever changes something
//! layers/DIFF-ID/{tree,marks}     one layer unpacked, and what it says of those below
//! roots/CHAIN-ID/           layers brought together; its files are those of the layers
//! images/DIGEST.json        manifest and configuration as they came
//! names/HASH.json           which image a name means
//! erofs/CHAIN-ID.erofs      a root as one file, for levels that take a disk
//! tmp/N/                    what is being made: nobody's once the lock is free
//! ```
//!
//! **Invariant:** what stands under `layers`, `roots`, `images` and `names` is whole and on stable storage: it was made under
//! `tmp`, synced, and renamed.
//! **Invariant:** who changes something holds the lock; who only reads needs none.

mod erofs;
mod images;
mod making;
mod remove;

pub use images::{Image, Listed};
pub use making::Making;
pub use remove::{Pruned, Removed};

use crate::digest::Digest;
use crate::fault::{Code, Fault};
use fumehood_model::image::ImageRoot;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

const FOLDERS: [&str; 6] = ["layers", "roots", "images", "names", "erofs", "tmp"];

/// The images of one user.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

/// An image that a run stands on: it is not removed until this is dropped.
#[derive(Debug)]
#[must_use = "the image may be removed when this is dropped"]
pub struct Held(#[expect(dead_code, reason = "its lock is what counts")] File);

// === impl Store ===

impl Store {
    /// The store at `root`, whether it is there or not. `root` lies in a folder that is its user's alone.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// Makes what is missing of it.
    pub fn make(&self) -> Result<(), Fault> {
        let made =
            make(&self.root).and_then(|()| FOLDERS.iter().try_for_each(|name| make(&self.root.join(name))));
        made.map_err(|error| Fault::store("make the store of images", &error))
    }

    /// The folder that is an image's root: `usr`, `etc` and the rest are in it. Read-only to whoever gets it.
    pub fn root_folder(&self, image: &Image) -> PathBuf {
        self.roots(&image.config.chain())
    }

    /// Every image as a run may ask for it: by its names, and by `@` and its digest.
    pub fn all(&self) -> Result<BTreeMap<String, ImageRoot>, Fault> {
        let mut all = BTreeMap::new();
        for listed in self.list()? {
            let root = ImageRoot {
                name: listed.name.clone().unwrap_or_default(),
                digest: listed.image.digest.to_string(),
                folder: self.root_folder(&listed.image),
            };
            all.insert(format!("@{}", listed.image.digest), root.clone());
            all.extend(listed.name.map(|name| (name, root)));
        }
        Ok(all)
    }

    /// Keeps an image from being removed.
    pub fn hold(&self, root: &ImageRoot) -> Result<Held, Fault> {
        let gone = || {
            Fault::new(Code::NotFound, format!("the image `{}` was removed just now", root.name))
                .with_remedy("pull it again")
        };
        let held = File::open(&root.folder).map_err(|_| gone())?;
        held.try_lock_shared().map_err(|_| gone())?;
        if is_same(&held, &root.folder) { Ok(Held(held)) } else { Err(gone()) }
    }

    fn roots(&self, chain: &Digest) -> PathBuf {
        self.root.join("roots").join(chain.hex())
    }

    fn layer(&self, diff_id: &Digest) -> PathBuf {
        self.root.join("layers").join(diff_id.hex())
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Whether the open folder is still the one at `path`.
fn is_same(held: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let key = |facts: fs::Metadata| (facts.dev(), facts.ino());
    held.metadata().map(key).ok().zip(fs::symlink_metadata(path).map(key).ok()).is_some_and(|(a, b)| a == b)
}
