//! Where an image comes from: a registry, a layout folder, an archive.
//!
//! A source hands out bytes and is believed nothing: whoever takes them holds them to digest and size.

mod archive;
mod credentials;
mod files;
mod layout;
mod post;
mod registry;

pub use archive::archive;
pub use layout::folder;
pub use post::Poster;
pub use registry::Registry;

use crate::fault::Fault;
use crate::manifest::Descriptor;
use fumehood_model::image::Reference;
use std::io::Read;

/// The document that an image begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    pub bytes: Vec<u8>,
    /// What the source says that it is.
    pub media_type: Option<String>,
}

/// Where an image comes from.
pub trait Source {
    /// The index or manifest of the image, at most `most_bytes` of it and one.
    fn top(&mut self, most_bytes: u64) -> Result<Top, Fault>;

    /// Another index or manifest.
    fn manifest<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault>;

    /// A configuration or a layer.
    fn blob<'s>(&'s mut self, descriptor: &Descriptor) -> Result<Box<dyn Read + 's>, Fault>;

    /// The name that the source itself gives the image, where it gives one.
    fn name(&self) -> Option<Reference>;
}
