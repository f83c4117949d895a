//! Removing images, and what no image needs.

use super::images::{file_of, name_file, names};
use super::{Making, is_same};
use crate::digest::Digest;
use crate::fault::{Code, Fault};
use fumehood_model::image::{Reference, Version};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

/// What became of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Removed {
    pub name: String,
    pub digest: String,
    /// Whether the image went with it: it had no other name.
    pub image: bool,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    pub images: u64,
    pub roots: u64,
    pub layers: u64,
    /// Roots that runs stand on.
    pub in_use: u64,
}

// === impl Making ===

impl Making<'_> {
    /// Takes a name away, and with its last one the image.
    pub fn remove(&mut self, reference: &Reference) -> Result<Removed, Fault> {
        let wanted = reference.to_string();
        let all = self.store.all_names()?;
        let named = all.iter().find(|named| named.name == wanted);
        let digest = match (named, reference.version()) {
            (Some(named), _) => Digest::parse(&named.digest)?,
            (None, Version::Digest(digest)) => Digest::parse(digest)?,
            (None, Version::Tag(_)) => return Err(absent(reference)),
        };
        let file = self.store.folder("images").join(file_of(&digest));
        if named.is_none() && !file.exists() {
            return Err(absent(reference));
        }
        let others =
            all.iter().filter(|named| named.digest == digest.as_str() && named.name != wanted).count();
        if others == 0 {
            let chain = self.store.image(&digest)?.config.chain();
            if self.is_used(&self.store.roots(&chain)) && !self.is_shared(&chain, &digest)? {
                let why = format!("a run stands on `{}`", reference.short());
                return Err(Fault::new(Code::InUse, why));
            }
        }
        if named.is_some() {
            self.take_away(&self.store.folder("names").join(name_file(&wanted)))?;
        }
        if others == 0 {
            self.take_away(&file)?;
            self.clear()?;
        }
        Ok(Removed { name: wanted, digest: digest.to_string(), image: others == 0 })
    }

    /// Removes images without a name, and what no image needs.
    pub fn prune(&mut self) -> Result<Pruned, Fault> {
        let mut images = 0;
        for listed in self.store.list()?.into_iter().filter(|listed| listed.name.is_none()) {
            self.take_away(&self.store.folder("images").join(file_of(&listed.image.digest)))?;
            images += 1;
        }
        Ok(Pruned { images, ..self.clear()? })
    }

    /// Removes roots and layers that no image needs.
    fn clear(&mut self) -> Result<Pruned, Fault> {
        let (mut roots, mut layers) = (BTreeSet::new(), BTreeSet::new());
        for listed in self.store.list()? {
            roots.insert(listed.image.config.chain().hex().to_owned());
            layers.extend(listed.image.config.diff_ids.iter().map(|id| id.hex().to_owned()));
        }
        let mut pruned = Pruned::default();
        for name in names(&self.store.folder("roots"))?.into_iter().filter(|name| !roots.contains(name)) {
            let root = self.store.folder("roots").join(&name);
            if self.is_used(&root) {
                pruned.in_use += 1;
                continue;
            }
            self.take_away(&root)?;
            self.take_away(&self.store.folder("erofs").join(format!("{name}.erofs")))?;
            pruned.roots += 1;
        }
        for name in names(&self.store.folder("layers"))?.into_iter().filter(|name| !layers.contains(name)) {
            self.take_away(&self.store.folder("layers").join(name))?;
            pruned.layers += 1;
        }
        Ok(pruned)
    }

    /// Whether a run stands on the root.
    fn is_used(&self, root: &Path) -> bool {
        let Ok(held) = File::open(root) else { return false };
        is_same(&held, root) && held.try_lock().is_err()
    }

    /// Whether another image has the same root.
    fn is_shared(&self, chain: &Digest, digest: &Digest) -> Result<bool, Fault> {
        let other =
            |listed: &super::Listed| listed.image.digest != *digest && listed.image.config.chain() == *chain;
        Ok(self.store.list()?.iter().any(other))
    }
}

fn absent(reference: &Reference) -> Fault {
    Fault::new(Code::NotFound, format!("there is no image `{}` in the store", reference.short()))
        .with_remedy("`fumehood image ls` lists them")
}
