//! The OCI image layout: `oci-layout`, `index.json`, `blobs/sha256/HEX`; in a folder, or in an archive.

use super::files::Files;
use super::{Source, Top};
use crate::digest::Digest;
use crate::fault::{Code, Fault};
use crate::manifest::{Descriptor, Document, Index, OCI_INDEX};
use fumehood_model::image::Reference;
use fumehood_model::text::shown;
use std::io::Read;
use std::path::Path;

const TAG: &str = "org.opencontainers.image.ref.name";
const NAME: &str = "io.containerd.image.name";
const INDEX_BYTES: u64 = 4 << 20;

/// A layout of which one image is meant.
#[derive(Debug)]
pub(super) struct Layout {
    files: Files,
    index: Vec<u8>,
    /// The entry that is meant; all of them where there is one image alone.
    chosen: Option<Descriptor>,
    name: Option<Reference>,
}

/// The image of the layout at `path`: the one of this tag, or the only one.
pub fn folder(path: &Path, tag: Option<&str>) -> Result<Box<dyn Source>, Fault> {
    let mut files = Files::folder(path)?;
    if files.small("oci-layout", INDEX_BYTES)?.is_none() {
        let why = format!("`{}` is no image layout: it has no file `oci-layout`", path.display());
        return Err(Fault::new(Code::BadSource, why)
            .with_remedy("name a layout, or use an unpacked root with `--image` as it is"));
    }
    Ok(Box::new(Layout::new(files, tag)?))
}

// === impl Layout ===

impl Layout {
    pub(super) fn new(mut files: Files, tag: Option<&str>) -> Result<Self, Fault> {
        let index = files.small("index.json", INDEX_BYTES)?;
        let index = index.ok_or_else(|| Fault::new(Code::BadSource, "the layout has no `index.json`"))?;
        let Document::Index(list) = Document::parse(&index, Some(OCI_INDEX))? else {
            return Err(Fault::new(Code::BadManifest, "`index.json` is no index"));
        };
        let chosen = choose(list, tag)?;
        let name = chosen.as_ref().and_then(name_of);
        Ok(Self { files, index, chosen, name })
    }

    fn open(&mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + '_>, Fault> {
        let path = format!("blobs/sha256/{}", descriptor.digest.hex());
        let found = self.files.open(&path)?;
        found.map(|(reader, _)| reader).ok_or_else(|| {
            Fault::new(Code::NotFound, format!("the layout has no `{path}`"))
                .with_remedy("copy the layout anew, with all of its blobs")
        })
    }
}

impl Source for Layout {
    fn top(&mut self, most_bytes: u64) -> Result<Top, Fault> {
        let Some(chosen) = self.chosen.clone() else {
            return Ok(Top { bytes: self.index.clone(), media_type: Some(OCI_INDEX.to_owned()) });
        };
        let mut bytes = Vec::new();
        let read = self.open(&chosen)?.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| Fault::reading(Code::BadSource, "read a manifest", error))?;
        if Digest::of(&bytes) != chosen.digest {
            return Err(Fault::new(Code::BadDigest, "a manifest is not what its digest says"));
        }
        Ok(Top { bytes, media_type: Some(chosen.media_type) })
    }

    fn manifest<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.open(descriptor)
    }

    fn blob<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.open(descriptor)
    }

    fn name(&self) -> Option<Reference> {
        self.name.clone()
    }
}

/// The entry of the tag. Without a tag `None`, for all: they may be one image for several machines.
fn choose(list: Index, tag: Option<&str>) -> Result<Option<Descriptor>, Fault> {
    let Some(tag) = tag else {
        let mut entries = list.entries();
        return match (entries.next(), entries.next()) {
            (Some(only), None) => Ok(Some(only.clone())),
            (None, _) => Err(Fault::new(Code::NotFound, "the layout holds no image")),
            (Some(_), Some(_)) => Ok(None),
        };
    };
    let tagged = |entry: &Descriptor| entry.annotations.get(TAG).is_some_and(|known| known == tag);
    let mut tags: Vec<String> =
        list.entries().filter_map(|entry| entry.annotations.get(TAG)).cloned().collect();
    tags.truncate(8);
    let list = list.filtered(tagged);
    let mut entries = list.entries();
    match (entries.next(), entries.next()) {
        (Some(only), None) => Ok(Some(only.clone())),
        (Some(_), Some(_)) => list.choose().cloned().map(Some),
        (None, _) => {
            let there =
                if tags.is_empty() { String::new() } else { format!("; there are {}", tags.join(", ")) };
            let why = shown(&format!("the layout has no image `{tag}`{there}"));
            Err(Fault::new(Code::NotFound, why))
        }
    }
}

/// A whole name among the annotations. A tag alone is none.
fn name_of(entry: &Descriptor) -> Option<Reference> {
    let tag = entry.annotations.get(TAG).filter(|tag| tag.contains(['/', ':']));
    entry.annotations.get(NAME).or(tag).and_then(|name| Reference::parse(name).ok())
}
