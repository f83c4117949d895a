//! OCI images as roots: pulled from a registry, a layout or an archive, verified, unpacked by a strict reader, kept by
//! content, and shown read-only to as many sandboxes as like.
//!
//! Everything that is read here was written by others. Nothing is believed that a digest does not hold, nothing is
//! placed but beneath an open handle and through no link, and every size and number has an end.
//!
//! **Invariant:** an image of the store is whole: its documents, layers and root were verified and synced before it had a
//! name.

pub mod build;
mod decode;
mod digest;
mod fault;
mod limits;
mod manifest;
mod marks;
mod merge;
mod pull;
pub mod source;
mod store;
pub mod tar;
mod unpack;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use fault::{Code, Fault};
pub use limits::Limits;
pub use manifest::{Config, Descriptor, Document, Index, Manifest};
pub use pull::{Pulled, Step, Tell, pull};
pub use store::{Held, Image, Listed, Making, Pruned, Removed, Store};
