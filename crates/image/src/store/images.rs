//! Which images there are, and what they are called.

use super::Store;
use crate::digest::Digest;
use crate::fault::{Code, Fault};
use crate::manifest::{Config, Document, Manifest};
use fumehood_model::image::{Reference, Version};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// Two documents, and their escapes.
const FILE_BYTES: u64 = 32 << 20;

/// An image of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Of its manifest.
    pub digest: Digest,
    pub manifest: Manifest,
    pub config: Config,
    /// When it was pulled, in milliseconds since 1970.
    pub pulled_ms: u64,
}

/// An image, and one of its names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// In its whole spelling; `None` where it has none any more.
    pub name: Option<String>,
    pub image: Image,
}

/// As it stands in `images/`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stored {
    pub(super) manifest: String,
    pub(super) config: String,
}

/// As it stands in `names/`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Named {
    pub(super) name: String,
    pub(super) digest: String,
}

// === impl Image ===

impl Image {
    /// Bytes of its layers as they were sent.
    pub fn sent_bytes(&self) -> u64 {
        self.manifest.layers.iter().map(|layer| layer.size).sum()
    }
}

// === impl Store ===

impl Store {
    /// Every name with its image, and the images that have no name, in the order of names.
    pub fn list(&self) -> Result<Vec<Listed>, Fault> {
        let mut listed = Vec::new();
        let mut images = Vec::new();
        for file in names(&self.folder("images"))? {
            let Some(digest) = file.strip_suffix(".json").map(|hex| format!("sha256:{hex}")) else {
                continue;
            };
            images.push(self.image(&Digest::parse(&digest)?)?);
        }
        let mut unnamed = images.clone();
        for Named { name, digest } in self.all_names()? {
            // A name whose image is being removed just now has none.
            let Some(image) = images.iter().find(|image| image.digest.as_str() == digest) else { continue };
            unnamed.retain(|other| other.digest != image.digest);
            listed.push(Listed { name: Some(name), image: image.clone() });
        }
        listed.sort_by(|one, other| one.name.cmp(&other.name));
        listed.extend(unnamed.into_iter().map(|image| Listed { name: None, image }));
        Ok(listed)
    }

    /// The image that a name means.
    pub fn find(&self, reference: &Reference) -> Result<Option<Image>, Fault> {
        let wanted = reference.to_string();
        let named = self.all_names()?.into_iter().find(|named| named.name == wanted);
        let digest = match (named, reference.version()) {
            (Some(named), _) => named.digest,
            (None, Version::Digest(digest)) => digest.clone(),
            (None, Version::Tag(_)) => return Ok(None),
        };
        let digest = Digest::parse(&digest)?;
        if !self.folder("images").join(file_of(&digest)).exists() {
            return Ok(None);
        }
        self.image(&digest).map(Some)
    }

    /// The image of a digest. Its documents are held to their digests again.
    pub fn image(&self, digest: &Digest) -> Result<Image, Fault> {
        let path = self.folder("images").join(file_of(digest));
        let bad = || {
            Fault::new(Code::Store, format!("the image {digest} of the store is damaged"))
                .with_remedy("remove it and pull it again")
        };
        let (bytes, pulled_ms) =
            read(&path).map_err(|error| Fault::store("read an image of the store", &error))?;
        let stored: Stored = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if Digest::of(stored.manifest.as_bytes()) != *digest {
            return Err(bad());
        }
        let Document::Manifest(manifest) = Document::parse(stored.manifest.as_bytes(), None)? else {
            return Err(bad());
        };
        if Digest::of(stored.config.as_bytes()) != manifest.config.digest {
            return Err(bad());
        }
        let config = Config::parse(stored.config.as_bytes(), manifest.layers.len())?;
        Ok(Image { digest: digest.clone(), manifest, config, pulled_ms })
    }

    pub(super) fn all_names(&self) -> Result<Vec<Named>, Fault> {
        let folder = self.folder("names");
        let mut all = Vec::new();
        for file in names(&folder)?.iter().filter(|file| file.ends_with(".json")) {
            let read = match read(&folder.join(file)) {
                // Removed between the two looks.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                other => other.map_err(|error| Fault::store("read a name of the store", &error))?.0,
            };
            let named: Named = serde_json::from_slice(&read)
                .map_err(|_| Fault::new(Code::Store, format!("the name `{file}` of the store is damaged")))?;
            all.push(named);
        }
        Ok(all)
    }
}

pub(super) fn file_of(digest: &Digest) -> String {
    format!("{}.json", digest.hex())
}

/// What a name's file is called: a name may hold what a file's name may not.
pub(super) fn name_file(name: &str) -> String {
    file_of(&Digest::of(name.as_bytes()))
}

/// The names in a folder of the store; a store that is not there has none.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, Fault> {
    let failed = |error: io::Error| Fault::store("list the store of images", &error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let name =
        |entry: io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name().to_string_lossy().into_owned());
    entries.map(name).collect::<io::Result<_>>().map_err(failed)
}

fn read(path: &Path) -> io::Result<(Vec<u8>, u64)> {
    let file = File::open(path)?;
    let changed = file.metadata()?.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut bytes = Vec::new();
    file.take(FILE_BYTES).read_to_end(&mut bytes)?;
    Ok((bytes, u64::try_from(changed.as_millis()).unwrap_or(u64::MAX)))
}
