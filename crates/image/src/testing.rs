//! Archives and images for tests, hostile ones too, written byte by byte.

use crate::digest::Digest;
use crate::fault::{Code, Fault};
use crate::manifest::{Descriptor, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST};
use crate::source::{Source, Top};
use fumehood_model::image::Reference;
use std::collections::HashMap;
use std::io::Read;

/// An archive being written.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tar(Vec<u8>);

/// A source in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    pub(crate) blobs: HashMap<Digest, Vec<u8>>,
    pub(crate) top: Vec<u8>,
    pub(crate) name: Option<Reference>,
}

// === impl Tar ===

impl Tar {
    pub(crate) fn file(self, name: &str, content: &[u8]) -> Self {
        self.entry(b'0', name.as_bytes(), b"", content)
    }

    pub(crate) fn folder(self, name: &str) -> Self {
        self.entry(b'5', name.as_bytes(), b"", b"")
    }

    pub(crate) fn link(self, name: &str, to: &str) -> Self {
        self.entry(b'2', name.as_bytes(), to.as_bytes(), b"")
    }

    pub(crate) fn same(self, name: &str, to: &str) -> Self {
        self.entry(b'1', name.as_bytes(), to.as_bytes(), b"")
    }

    pub(crate) fn pax(self, records: &[(&str, &str)]) -> Self {
        let text: String = records.iter().map(|(key, value)| record(key, value)).collect();
        self.entry(b'x', b"pax", b"", text.as_bytes())
    }

    /// Any entry, with the right checksum.
    pub(crate) fn entry(mut self, kind: u8, name: &[u8], link: &[u8], content: &[u8]) -> Self {
        let mut block = [0_u8; 512];
        let mut put = |at: usize, bytes: &[u8]| {
            block[at..at + bytes.len()].copy_from_slice(bytes);
        };
        put(0, name);
        put(100, b"0004755\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"00000001750\0");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, link);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(block);
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    /// With the two blocks at its end.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }

    pub(crate) fn open(self) -> Vec<u8> {
        self.0
    }
}

fn record(key: &str, value: &str) -> String {
    let bare = key.len() + value.len() + 3;
    let length = (1..6).map(|digits| bare + digits).find(|sum| sum.to_string().len() == sum - bare).unwrap();
    format!("{length} {key}={value}\n")
}

// === impl Memory ===

impl Memory {
    /// An image of these layers, plain.
    pub(crate) fn image(layers: &[Vec<u8>]) -> Self {
        let mut memory = Self { name: Reference::parse("test:1").ok(), ..Self::default() };
        let ids: Vec<String> = layers.iter().map(|layer| format!("\"{}\"", Digest::of(layer))).collect();
        let config =
            format!(r#"{{"os":"linux","architecture":"amd64","rootfs":{{"diff_ids":[{}]}}}}"#, ids.join(","));
        let config = memory.put(OCI_CONFIG, config.into_bytes());
        let layers: Vec<String> = layers.iter().map(|layer| memory.put(OCI_LAYER, layer.clone())).collect();
        memory.top = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{}]}}"#, layers.join(","))
            .into_bytes();
        memory
    }

    pub(crate) fn put(&mut self, media_type: &str, bytes: Vec<u8>) -> String {
        let digest = Digest::of(&bytes);
        let size = bytes.len();
        self.blobs.insert(digest.clone(), bytes);
        format!(r#"{{"mediaType":"{media_type}","digest":"{digest}","size":{size}}}"#)
    }
}

impl Source for Memory {
    fn top(&mut self, _most_bytes: u64) -> Result<Top, Fault> {
        Ok(Top { bytes: self.top.clone(), media_type: Some(OCI_MANIFEST.to_owned()) })
    }

    fn manifest<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        self.blob(descriptor)
    }

    fn blob<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault> {
        let found = self.blobs.get(&descriptor.digest);
        let bytes = found.ok_or_else(|| Fault::new(Code::NotFound, "no such blob"))?;
        Ok(Box::new(bytes.as_slice()))
    }

    fn name(&self) -> Option<Reference> {
        self.name.clone()
    }
}
