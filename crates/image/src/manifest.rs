//! Indexes, manifests and configurations, of both families of media types.

use crate::digest::Digest;
use crate::fault::{Code, Fault};
use crate::limits::Limits;
use fumehood_model::text::shown;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Of an image that is for another use than to be run.
const ATTESTATION: &str = "unknown";
/// An index may name another; not for ever.
pub(crate) const MOST_INDEXES: usize = 4;

/// What a piece of content is, how long, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    pub annotations: BTreeMap<String, String>,
}

/// What a document of a registry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Index(Index),
    Manifest(Manifest),
}

/// Which manifest is for which machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    entries: Vec<(Descriptor, Option<Platform>)>,
}

/// One image: its configuration, and its layers from the lowest on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// What of an image's configuration is of use here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub env: Vec<String>,
    pub working_dir: String,
    pub user: String,
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// Of each layer unpacked, from the lowest on.
    pub diff_ids: Vec<Digest>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Platform {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDescriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    #[serde(default)]
    schema_version: u64,
    #[serde(default)]
    media_type: Option<String>,
    #[serde(default)]
    manifests: Option<Vec<RawDescriptor>>,
    #[serde(default)]
    config: Option<RawDescriptor>,
    #[serde(default)]
    layers: Option<Vec<RawDescriptor>>,
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    #[serde(default)]
    config: Option<RawSettings>,
    rootfs: RawRootfs,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawSettings {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawRootfs {
    diff_ids: Vec<String>,
}

/// As we write one for an archive that has none.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    schema_version: u64,
    media_type: &'a str,
    config: WrittenDescriptor<'a>,
    layers: Vec<WrittenDescriptor<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenDescriptor<'a> {
    media_type: &'a str,
    digest: &'a str,
    size: u64,
}

// === impl WrittenDescriptor ===

impl<'a> WrittenDescriptor<'a> {
    fn of(descriptor: &'a Descriptor) -> Self {
        Self { media_type: &descriptor.media_type, digest: descriptor.digest.as_str(), size: descriptor.size }
    }
}

// === impl Document ===

impl Document {
    /// Reads one. `announced` is the media type that came beside it, where one did.
    pub fn parse(bytes: &[u8], announced: Option<&str>) -> Result<Self, Fault> {
        let raw: RawDocument = json(bytes, "manifest")?;
        let said = raw.media_type.as_deref();
        // Two readers of an ambiguous document would see two images.
        if let (Some(said), Some(announced)) = (said, announced.filter(|announced| is_known(announced)))
            && said != announced
        {
            let why = format!("a manifest says it is `{}` and came as `{announced}`", shown(said));
            return Err(Fault::new(Code::BadManifest, why));
        }
        if raw.schema_version != 2 {
            return Err(Fault::new(Code::BadManifest, "a manifest is not of version 2"));
        }
        let kind = said.or(announced.filter(|announced| is_known(announced)));
        match (raw.manifests, raw.config, raw.layers) {
            (Some(manifests), None, None) if kind.is_none_or(is_index) => {
                Index::read(manifests).map(Self::Index)
            }
            (None, Some(config), Some(layers)) if kind.is_none_or(is_manifest) => {
                let layers = layers.into_iter().map(descriptor).collect::<Result<_, _>>()?;
                Ok(Self::Manifest(Manifest { config: descriptor(config)?, layers }))
            }
            _ => Err(Fault::new(Code::BadManifest, "a manifest is neither an image's nor an index, or both")),
        }
    }
}

// === impl Index ===

impl Index {
    fn read(manifests: Vec<RawDescriptor>) -> Result<Self, Fault> {
        let entry = |mut raw: RawDescriptor| {
            let platform = raw.platform.take();
            descriptor(raw).map(|descriptor| (descriptor, platform))
        };
        Ok(Self { entries: manifests.into_iter().map(entry).collect::<Result<_, _>>()? })
    }

    /// The entry for this machine. One that does not say which machine it is for is taken where it is the only one.
    pub fn choose(&self) -> Result<&Descriptor, Fault> {
        let fits = |platform: &Platform| {
            platform.os == "linux" && platform.architecture == "amd64" && plain(platform.variant.as_deref())
        };
        let named = self.entries.iter().find(|(_, platform)| platform.as_ref().is_some_and(fits));
        if let Some((found, _)) = named {
            return Ok(found);
        }
        if let [(only, None)] = self.entries.as_slice() {
            return Ok(only);
        }
        let word = |platform: &Platform| format!("{}/{}", platform.os, platform.architecture);
        let mut others: Vec<String> =
            self.entries.iter().filter_map(|(_, platform)| platform.as_ref().map(word)).collect();
        others.retain(|other| !other.contains(ATTESTATION));
        others.truncate(8);
        let there =
            if others.is_empty() { String::new() } else { format!(", only for {}", others.join(", ")) };
        Err(Fault::new(Code::NoPlatform, shown(&format!("there is no image for linux/amd64{there}"))))
    }

    /// The entries, with whatever they are for.
    pub fn entries(&self) -> impl Iterator<Item = &Descriptor> {
        self.entries.iter().map(|(descriptor, _)| descriptor)
    }

    /// The same index with the entries that `keep` keeps.
    #[must_use]
    pub(crate) fn filtered(mut self, keep: impl Fn(&Descriptor) -> bool) -> Self {
        self.entries.retain(|(descriptor, _)| keep(descriptor));
        self
    }
}

// === impl Manifest ===

impl Manifest {
    /// Whether the configuration is an image's, and sizes and number are within bounds.
    pub fn check(&self, limits: &Limits) -> Result<(), Fault> {
        if self.layers.len() > limits.layers {
            let why = format!("there are {} layers; {} are the most", self.layers.len(), limits.layers);
            return Err(Fault::new(Code::TooLarge, why));
        }
        let sum = self.layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        if sum.is_none_or(|sum| sum > limits.sent_bytes) {
            let why = format!("its layers are larger than {} GiB", limits.sent_bytes >> 30);
            return Err(Fault::new(Code::TooLarge, why));
        }
        if self.config.size > limits.document_bytes {
            return Err(Fault::new(Code::TooLarge, "its configuration is larger than one can be"));
        }
        Ok(())
    }

    /// The text of a manifest for layers that came without one.
    pub(crate) fn write(config: (&Digest, u64), layers: &[(Digest, u64)]) -> Vec<u8> {
        let described = |media_type: &str, digest: &Digest, size: u64| Descriptor {
            media_type: media_type.to_owned(),
            digest: digest.clone(),
            size,
            annotations: BTreeMap::new(),
        };
        let layers = layers.iter().map(|(digest, size)| described(OCI_LAYER, digest, *size)).collect();
        Self { config: described(OCI_CONFIG, config.0, config.1), layers }.text()
    }

    /// Its text.
    pub(crate) fn text(&self) -> Vec<u8> {
        let written = Written {
            schema_version: 2,
            media_type: OCI_MANIFEST,
            config: WrittenDescriptor::of(&self.config),
            layers: self.layers.iter().map(WrittenDescriptor::of).collect(),
        };
        serde_json::to_vec(&written).unwrap_or_default()
    }
}

// === impl Config ===

impl Config {
    /// Reads one, for `layers` layers.
    pub fn parse(bytes: &[u8], layers: usize) -> Result<Self, Fault> {
        let raw: RawConfig = json(bytes, "configuration")?;
        if raw.os != "linux" || raw.architecture != "amd64" {
            let why = shown(&format!("the image is for {}/{}, not linux/amd64", raw.os, raw.architecture));
            return Err(Fault::new(Code::NoPlatform, why));
        }
        let diff_ids: Vec<Digest> =
            raw.rootfs.diff_ids.iter().map(|text| Digest::parse(text)).collect::<Result<_, _>>()?;
        if diff_ids.len() != layers {
            let why = format!("the configuration tells of {} layers, and there are {layers}", diff_ids.len());
            return Err(Fault::new(Code::BadManifest, why));
        }
        let settings = raw.config.unwrap_or_default();
        Ok(Self {
            env: settings.env.unwrap_or_default(),
            working_dir: settings.working_dir.unwrap_or_default(),
            user: settings.user.unwrap_or_default(),
            entrypoint: settings.entrypoint.unwrap_or_default(),
            cmd: settings.cmd.unwrap_or_default(),
            diff_ids,
        })
    }

    /// What the whole stack of layers is called.
    pub fn chain(&self) -> Digest {
        let mut ids = self.diff_ids.iter();
        let first = ids.next().cloned().unwrap_or_else(|| Digest::of(b""));
        ids.fold(first, |chain, id| Digest::of(format!("{chain} {id}").as_bytes()))
    }
}

fn descriptor(raw: RawDescriptor) -> Result<Descriptor, Fault> {
    Ok(Descriptor {
        media_type: raw.media_type,
        digest: Digest::parse(&raw.digest)?,
        size: raw.size,
        annotations: raw.annotations.unwrap_or_default(),
    })
}

/// Levels of the instruction set are not looked at: `v1` is every such processor.
fn plain(variant: Option<&str>) -> bool {
    variant.is_none_or(|variant| variant.is_empty() || variant == "v1")
}

fn is_index(media_type: &str) -> bool {
    matches!(media_type, OCI_INDEX | DOCKER_INDEX)
}

fn is_manifest(media_type: &str) -> bool {
    matches!(media_type, OCI_MANIFEST | DOCKER_MANIFEST)
}

fn is_known(media_type: &str) -> bool {
    is_index(media_type) || is_manifest(media_type)
}

pub(crate) fn json<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T, Fault> {
    serde_json::from_slice(bytes).map_err(|error| {
        let why = format!("a {what} can not be read: {}", shown(&error.to_string()));
        Fault::new(Code::BadManifest, why)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(media_type: &str, platform: &str) -> String {
        let digest = Digest::of(platform.as_bytes());
        let platform = match platform.split_once('/') {
            Some((os, architecture)) => {
                format!(r#","platform":{{"os":"{os}","architecture":"{architecture}"}}"#)
            }
            None => String::new(),
        };
        format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":7{platform}}}"#)
    }

    fn index(entries: &[&str]) -> Result<Digest, Fault> {
        let list: Vec<String> = entries.iter().map(|entry| described(OCI_MANIFEST, entry)).collect();
        let text = format!(r#"{{"schemaVersion":2,"manifests":[{}]}}"#, list.join(","));
        match Document::parse(text.as_bytes(), Some(OCI_INDEX))? {
            Document::Index(index) => index.choose().map(|found| found.digest.clone()),
            Document::Manifest(_) => Err(Fault::new(Code::BadManifest, "no index")),
        }
    }

    #[test]
    fn the_entry_for_this_machine_is_chosen() {
        assert_eq!(index(&["linux/arm64", "linux/amd64"]), Ok(Digest::of(b"linux/amd64")));
        assert_eq!(index(&["only"]), Ok(Digest::of(b"only")));
        let fault = index(&["linux/arm64", "unknown/unknown"]).unwrap_err();
        assert_eq!(fault.code, Code::NoPlatform);
        assert!(fault.why.ends_with("only for linux/arm64"), "{}", fault.why);
        assert_eq!(index(&["a", "b"]).unwrap_err().code, Code::NoPlatform);
    }

    #[test]
    fn an_ambiguous_document_is_refused() {
        let one = described(OCI_MANIFEST, "x");
        let both = format!(r#"{{"schemaVersion":2,"manifests":[{one}],"config":{one},"layers":[]}}"#);
        assert_eq!(Document::parse(both.as_bytes(), None).unwrap_err().code, Code::BadManifest);
        let said =
            format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{one},"layers":[]}}"#);
        assert!(Document::parse(said.as_bytes(), Some(OCI_MANIFEST)).is_ok());
        assert!(Document::parse(said.as_bytes(), Some("application/json")).is_ok());
        assert_eq!(Document::parse(said.as_bytes(), Some(OCI_INDEX)).unwrap_err().code, Code::BadManifest);
        assert_eq!(Document::parse(b"{\"schemaVersion\":1}", None).unwrap_err().code, Code::BadManifest);
    }

    #[test]
    fn a_chain_is_the_digest_of_the_chain_below_and_the_layer() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let one = Config { diff_ids: vec![a.clone()], ..Config::default() };
        let two = Config { diff_ids: vec![a.clone(), b.clone()], ..Config::default() };
        assert_eq!(one.chain(), a);
        assert_eq!(two.chain(), Digest::of(format!("{a} {b}").as_bytes()));
    }
}
