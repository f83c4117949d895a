//! Images that are made here: of this host's own system, of a folder, or on another image of the store.
//!
//! What is made goes the way of what is pulled: an archive that our own strict reader takes apart, held to its digest. So a
//! template is an image like any other, and one made twice of the same files is one image.

mod elf;
mod layer;
mod tree;

pub use layer::Layer;
pub use tree::{Selection, Tree};

use crate::digest::Digest;
use crate::fault::{Code, Fault};
use crate::limits::Limits;
use crate::manifest::{Descriptor, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
use crate::pull::{Pulled, Tell, pull};
use crate::source::{Source, Top};
use crate::store::{Image, Store};
use fumehood_model::image::Reference;
use std::collections::BTreeMap;
use std::io::Read;

/// What an image says of what runs on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub env: BTreeMap<String, String>,
    /// Where a command starts, if it says so.
    pub cwd: Option<String>,
    /// What runs where no command is named.
    pub command: Vec<String>,
}

/// Layers that are ours, on those of an image of the store.
#[derive(Debug)]
struct Made<'l> {
    manifest: Vec<u8>,
    config: (Digest, Vec<u8>),
    layers: &'l [Layer],
}

/// Makes an image of `layers`, on `base` where there is one, and gives it a name.
///
/// # Errors
/// There are too many layers, or the store can not be written.
pub fn image(
    store: &Store,
    (base, layers): (Option<&Image>, &[Layer]),
    settings: &Settings,
    name: &Reference,
    tell: Tell<'_>,
) -> Result<Pulled, Fault> {
    let mut made = Made::new(base, layers, settings)?;
    pull(store, &mut made, Some(name), &Limits::default(), tell)
}

// === impl Made ===

impl<'l> Made<'l> {
    fn new(base: Option<&Image>, layers: &'l [Layer], settings: &Settings) -> Result<Self, Fault> {
        let mut diff_ids = base.map(|base| base.config.diff_ids.clone()).unwrap_or_default();
        diff_ids.extend(layers.iter().map(|layer| layer.digest.clone()));
        if diff_ids.is_empty() {
            return Err(Fault::new(Code::BadSource, "the image would be empty"));
        }
        let config = config(base, &diff_ids, settings);
        let digest = Digest::of(&config);
        let mut descriptors = base.map(|base| base.manifest.layers.clone()).unwrap_or_default();
        descriptors.extend(layers.iter().map(|layer| Descriptor {
            media_type: OCI_LAYER.to_owned(),
            digest: layer.digest.clone(),
            size: layer.size,
            annotations: BTreeMap::new(),
        }));
        let config_size = u64::try_from(config.len()).unwrap_or(u64::MAX);
        let config_descriptor = Descriptor {
            media_type: OCI_CONFIG.to_owned(),
            digest: digest.clone(),
            size: config_size,
            annotations: BTreeMap::new(),
        };
        let manifest = Manifest { config: config_descriptor, layers: descriptors }.text();
        Ok(Self { manifest, config: (digest, config), layers })
    }
}

impl Source for Made<'_> {
    fn top(&mut self, _most_bytes: u64) -> Result<Top, Fault> {
        Ok(Top { bytes: self.manifest.clone(), media_type: Some(OCI_MANIFEST.to_owned()) })
    }

    fn manifest<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.blob(descriptor)
    }

    fn blob<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        if descriptor.digest == self.config.0 {
            return Ok(Box::new(self.config.1.as_slice()));
        }
        let own = self.layers.iter().find(|layer| layer.digest == descriptor.digest);
        // Those below are in the store, and not asked for, unless they were removed meanwhile.
        let own = own.ok_or_else(|| Fault::new(Code::NotFound, "the image below was removed meanwhile"))?;
        let read = own.read().map_err(|error| Fault::store("read a layer", &error))?;
        Ok(Box::new(read))
    }

    fn name(&self) -> Option<Reference> {
        None
    }
}

fn config(base: Option<&Image>, diff_ids: &[Digest], settings: &Settings) -> Vec<u8> {
    let mut env = base.map(|base| base.config.env.clone()).unwrap_or_default();
    for (name, value) in &settings.env {
        env.retain(|known| known.split('=').next() != Some(name.as_str()));
        env.push(format!("{name}={value}"));
    }
    let below = base.map(|base| &base.config);
    let cwd =
        settings.cwd.clone().or_else(|| below.map(|below| below.working_dir.clone())).unwrap_or_default();
    let (entry, command) = match below {
        Some(below) if settings.command.is_empty() => (below.entrypoint.clone(), below.cmd.clone()),
        _ => (Vec::new(), settings.command.clone()),
    };
    let ids: Vec<&str> = diff_ids.iter().map(Digest::as_str).collect();
    let written = serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Env": env,
            "WorkingDir": cwd,
            "User": below.map(|below| below.user.clone()).unwrap_or_default(),
            "Entrypoint": entry,
            "Cmd": command,
        },
        "rootfs": { "type": "layers", "diff_ids": ids },
    });
    serde_json::to_vec(&written).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_made_image_is_an_image_and_another_stands_on_it() {
        let place = tempfile::tempdir().unwrap();
        let store = Store::at(place.path().join("images"));
        let name = |text: &str| Reference::parse(text).unwrap();
        let layer = |file: &str| {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir(root.path().join("bin")).unwrap();
            std::fs::write(root.path().join("bin").join(file), file).unwrap();
            Layer::write(&Tree::of_folder(root.path()).unwrap(), place.path()).unwrap()
        };
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let settings = Settings { env, cwd: None, command: vec!["/bin/one".to_owned()] };
        let mut quiet = |_| {};
        let one = image(&store, (None, &[layer("one")]), &settings, &name("localhost/one"), &mut quiet)
            .unwrap()
            .image;
        let two = image(
            &store,
            (Some(&one), &[layer("two")]),
            &Settings::default(),
            &name("localhost/two"),
            &mut quiet,
        );
        let two = two.unwrap().image;
        assert_eq!(two.config.env, ["A=1"]);
        assert_eq!(two.config.cmd, ["/bin/one"]);
        let root = store.all().unwrap().get("localhost/two:latest").unwrap().folder.clone();
        assert!(root.join("bin/one").is_file() && root.join("bin/two").is_file());
        let again =
            image(&store, (None, &[layer("one")]), &settings, &name("localhost/again"), &mut quiet).unwrap();
        assert_eq!(again.image.digest, one.digest);
        assert!(image(&store, (None, &[]), &settings, &name("localhost/none"), &mut quiet).is_err());
    }
}
