//! From a source to the store: resolve, verify, unpack, name.
//!
//! ```text
//! index ─► manifest ─► configuration ─► layer ─► digest ─► gzip, zstd ─► diff-id ─► reader ─► folder ┐
//!                                        └────────────── each one that is not there yet ─────────────┤
//!                                                            name ◄─ image ◄─ root ◄─────────────────┘
//! ```

use crate::decode::{Decoded, Packing};
use crate::digest::{Digest, Verified};
use crate::fault::{Code, Fault};
use crate::limits::Limits;
use crate::manifest::{Config, Descriptor, Document, MOST_INDEXES, Manifest};
use crate::source::Source;
use crate::store::{Image, Making, Store};
use crate::tar::Archive;
use crate::unpack::unpack;
use fumehood_model::image::{Reference, Version};
use std::io::{self, Read};

/// What is told on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Another pull is at work.
    Waiting,
    /// The image is known.
    Resolved { layers: usize, bytes: u64 },
    /// A layer begins; `known` where it is there already.
    Layer { number: usize, of: usize, bytes: u64, known: bool },
    /// So many bytes more of the layer have come.
    Came { bytes: u64 },
    /// The layers are brought together.
    Joining,
}

/// Hears of each step.
pub type Tell<'t> = &'t mut dyn FnMut(Step);

/// What came of a pull.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pulled {
    pub image: Image,
    pub name: Reference,
    /// Devices and pipes that the layers hold and the root does not.
    pub special: u64,
}

/// What is left of the limits.
#[derive(Debug)]
struct Budget {
    limits: Limits,
    entries: u64,
    unpacked: u64,
}

/// One image, resolved.
struct Resolved {
    manifest_bytes: Vec<u8>,
    manifest: Manifest,
    config_bytes: Vec<u8>,
    config: Config,
}

/// Brings the image of `source` to `store` under `name`, or under the name that the source gives it.
pub fn pull(
    store: &Store,
    source: &mut dyn Source,
    name: Option<&Reference>,
    limits: &Limits,
    tell: Tell<'_>,
) -> Result<Pulled, Fault> {
    let name = name.cloned().or_else(|| source.name()).ok_or_else(|| {
        Fault::new(Code::BadSource, "the source has no name for its image")
            .with_remedy("give it one: `--as NAME`")
    })?;
    let resolved = resolve(source, &name, limits)?;
    tell(Step::Resolved {
        layers: resolved.manifest.layers.len(),
        bytes: resolved.manifest.layers.iter().map(|layer| layer.size).sum(),
    });
    let mut making = store.lock(&mut || tell(Step::Waiting))?;
    let mut budget = Budget { limits: *limits, entries: 0, unpacked: 0 };
    let of = resolved.manifest.layers.len();
    let mut special: u64 = 0;
    for (number, (layer, diff_id)) in
        (1..).zip(resolved.manifest.layers.iter().zip(&resolved.config.diff_ids))
    {
        let known = making.has_layer(diff_id);
        tell(Step::Layer { number, of, bytes: layer.size, known });
        if !known {
            let left_out = keep_layer(&mut making, source, (layer, diff_id), &mut budget, tell);
            special += left_out.map_err(|fault| fault.of(&format!("layer {number}")))?;
        }
    }
    tell(Step::Joining);
    making.keep_root(&resolved.config.chain(), &resolved.config.diff_ids)?;
    let image = making.keep_image(&resolved.manifest_bytes, &resolved.config_bytes)?;
    making.name(&name, &image.digest)?;
    Ok(Pulled { image, name, special })
}

fn resolve(source: &mut dyn Source, name: &Reference, limits: &Limits) -> Result<Resolved, Fault> {
    let top = source.top(limits.document_bytes)?;
    small(&top.bytes, limits)?;
    if let Some(asked) = asked(source, name)
        && Digest::of(&top.bytes) != asked
    {
        return Err(Fault::new(
            Code::BadDigest,
            "the source answered with another image than the one asked for",
        ));
    }
    let (mut bytes, mut media_type) = (top.bytes, top.media_type);
    for _ in 0..=MOST_INDEXES {
        match Document::parse(&bytes, media_type.as_deref())? {
            Document::Index(index) => {
                let chosen = index.choose()?;
                let reader = source.manifest(chosen)?;
                bytes = exactly(reader, chosen, "a manifest", limits)?;
                media_type = Some(chosen.media_type.clone());
            }
            Document::Manifest(manifest) => {
                manifest.check(limits)?;
                let reader = source.blob(&manifest.config)?;
                let config_bytes = exactly(reader, &manifest.config, "the configuration", limits)?;
                let config = Config::parse(&config_bytes, manifest.layers.len())?;
                return Ok(Resolved { manifest_bytes: bytes, manifest, config_bytes, config });
            }
        }
    }
    Err(Fault::new(Code::BadManifest, "an index leads to an index, again and again"))
}

/// The digest that the name asks of its source, if it is the source's name.
fn asked(source: &dyn Source, name: &Reference) -> Option<Digest> {
    let own = source.name()?;
    match (own == *name, own.version()) {
        (true, Version::Digest(digest)) => Digest::parse(digest).ok(),
        (true | false, _) => match own.version() {
            Version::Digest(digest) => Digest::parse(digest).ok(),
            Version::Tag(_) => None,
        },
    }
}

fn small(bytes: &[u8], limits: &Limits) -> Result<(), Fault> {
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) <= limits.document_bytes {
        return Ok(());
    }
    Err(Fault::new(Code::TooLarge, format!("a manifest is larger than {} MiB", limits.document_bytes >> 20)))
}

/// A whole document, of the length and digest that its descriptor says.
fn exactly(reader: impl Read, wanted: &Descriptor, what: &str, limits: &Limits) -> Result<Vec<u8>, Fault> {
    if wanted.size > limits.document_bytes {
        return Err(Fault::new(Code::TooLarge, format!("{what} is larger than one can be")));
    }
    let mut bytes = Vec::new();
    let read = reader.take(wanted.size.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| Fault::reading(Code::Unreachable, &format!("read {what}"), error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) != wanted.size {
        return Err(Fault::new(Code::BadSize, format!("{what} is not as long as its descriptor says")));
    }
    if Digest::of(&bytes) != wanted.digest {
        return Err(Fault::new(Code::BadDigest, format!("{what} is not what its digest says")));
    }
    Ok(bytes)
}

/// Unpacks one layer. How many devices and pipes were left out.
fn keep_layer(
    making: &mut Making<'_>,
    source: &mut dyn Source,
    (layer, diff_id): (&Descriptor, &Digest),
    budget: &mut Budget,
    tell: Tell<'_>,
) -> Result<u64, Fault> {
    let packing = Packing::of(&layer.media_type)?;
    let draft = making.draft()?;
    let tree = draft.tree()?;
    let failed = |error: io::Error| Fault::reading(Code::BadLayer, "read a layer", error);
    let mut sent = Verified::new(Watched { inner: source.blob(layer)?, tell }, layer.size);
    let room = budget.limits.unpacked_bytes.saturating_sub(budget.unpacked);
    let decoded = Decoded::new(&mut sent, Some(packing), room, budget.limits).map_err(failed)?;
    let mut archive = Archive::new(Verified::new(decoded, u64::MAX));
    let unpacked = unpack(&mut archive, &tree, &mut budget.entries, &budget.limits);
    let finished =
        unpacked.and_then(|marks| archive.into_inner().finish().map_err(failed).map(|end| (marks, end)));
    // Damage that was sent is told before what it did to the archive.
    let (marks, (found, bytes)) = match finished {
        Ok(finished) => finished,
        Err(fault) if fault.code == Code::BadLayer => return Err(check(sent, layer).err().unwrap_or(fault)),
        Err(fault) => return Err(fault),
    };
    check(sent, layer)?;
    if found != *diff_id {
        return Err(Fault::new(Code::BadDigest, "a layer unpacked is not what the configuration says"));
    }
    budget.unpacked = budget.unpacked.saturating_add(bytes);
    let special = marks.special;
    making.keep_layer(draft, &marks, diff_id)?;
    Ok(special)
}

/// Whether what was sent is what the manifest says.
fn check(sent: Verified<impl Read>, layer: &Descriptor) -> Result<(), Fault> {
    let (digest, bytes) =
        sent.finish().map_err(|error| Fault::reading(Code::Unreachable, "read a layer", error))?;
    if bytes != layer.size {
        let why = format!("a layer has {bytes} bytes, and its descriptor says {}", layer.size);
        return Err(Fault::new(Code::BadSize, why));
    }
    if digest != layer.digest {
        return Err(Fault::new(Code::BadDigest, "a layer is not what its digest says"));
    }
    Ok(())
}

/// Tells of what passes.
struct Watched<'t, R> {
    inner: R,
    tell: Tell<'t>,
}

// === impl Watched ===

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        (self.tell)(Step::Came { bytes: u64::try_from(read).unwrap_or(u64::MAX) });
        Ok(read)
    }
}
