//! What `docker save` writes: an archive that is a layout too, or, from older versions, `manifest.json` and the
//! layers that it names. The older form has no digests of its layers as they are; they are taken here.

use super::files::Files;
use super::layout::Layout;
use super::{Source, Top};
use crate::digest::{Digest, Verified};
use crate::fault::{Code, Fault};
use crate::manifest::{Descriptor, Manifest, OCI_MANIFEST, json};
use fumehood_model::image::Reference;
use fumehood_model::text::shown;
use serde::Deserialize;
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

const DOCUMENT_BYTES: u64 = 4 << 20;
const MOST_LAYERS: usize = 256;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// An archive of the older form.
#[derive(Debug)]
struct Old {
    files: Files,
    manifest: Vec<u8>,
    /// Which file each digest is.
    names: HashMap<Digest, String>,
    name: Option<Reference>,
}

/// The image in the archive at `path`: the one of this tag, or the only one.
pub fn archive(path: &Path, tag: Option<&str>) -> Result<Box<dyn Source>, Fault> {
    let mut files = Files::archive(path)?;
    if files.open("oci-layout")?.is_some() && files.open("index.json")?.is_some() {
        return Ok(Box::new(Layout::new(files, tag)?));
    }
    let Some(list) = files.small("manifest.json", DOCUMENT_BYTES)? else {
        let why = format!("`{}` is no archive of an image", path.display());
        return Err(Fault::new(Code::BadSource, why)
            .with_remedy("write one with `docker save` or `skopeo copy … docker-archive:FILE`"));
    };
    let saved = choose(json(&list, "manifest")?, tag)?;
    Ok(Box::new(Old::new(files, &saved)?))
}

// === impl Old ===

impl Old {
    fn new(mut files: Files, saved: &Saved) -> Result<Self, Fault> {
        let missing = |name: &str| Fault::new(Code::NotFound, shown(&format!("the archive has no `{name}`")));
        if saved.layers.len() > MOST_LAYERS {
            return Err(Fault::new(Code::TooLarge, format!("there are more than {MOST_LAYERS} layers")));
        }
        let mut names = HashMap::new();
        let mut take = |name: &str| {
            let (reader, size) = files.open(name)?.ok_or_else(|| missing(name))?;
            let hashed = Verified::new(reader, size).finish();
            let (digest, bytes) =
                hashed.map_err(|error| Fault::reading(Code::BadSource, "read the archive", error))?;
            names.insert(digest.clone(), name.to_owned());
            Ok::<_, Fault>((digest, bytes))
        };
        let config = take(&saved.config)?;
        let layers = saved.layers.iter().map(|name| take(name)).collect::<Result<Vec<_>, _>>()?;
        let manifest = Manifest::write((&config.0, config.1), &layers);
        let tag = saved.repo_tags.iter().flatten().next();
        let name = tag.and_then(|tag| Reference::parse(tag).ok());
        Ok(Self { files, manifest, names, name })
    }
}

impl Source for Old {
    fn top(&mut self, _most_bytes: u64) -> Result<Top, Fault> {
        Ok(Top { bytes: self.manifest.clone(), media_type: Some(OCI_MANIFEST.to_owned()) })
    }

    fn manifest<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.blob(descriptor)
    }

    fn blob<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        let missing = || Fault::new(Code::NotFound, format!("the archive has no `{}`", descriptor.digest));
        let name = self.names.get(&descriptor.digest).ok_or_else(missing)?;
        let (reader, _) = self.files.open(name)?.ok_or_else(missing)?;
        Ok(reader)
    }

    fn name(&self) -> Option<Reference> {
        self.name.clone()
    }
}

fn choose(mut list: Vec<Saved>, tag: Option<&str>) -> Result<Saved, Fault> {
    if let Some(tag) = tag {
        list.retain(|saved| {
            let mut tags = saved.repo_tags.iter().flatten();
            tags.any(|known| known == tag || known.rsplit_once(':').is_some_and(|(_, known)| known == tag))
        });
    }
    match (list.len(), list.pop()) {
        (1, Some(only)) => Ok(only),
        (0, _) => Err(Fault::new(Code::NotFound, "the archive holds no such image")),
        _ => Err(Fault::new(Code::BadSource, "the archive holds more than one image")
            .with_remedy("say which: `--ref TAG`")),
    }
}
