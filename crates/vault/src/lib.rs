//! What happens to credentials: bytes in, bytes out.
//!
//! A sandbox never sees a secret. It sees a [`Placeholder`](placeholder::Placeholder) of the same shape; the
//! gate outside puts the value into a request after that was decided and recorded, and takes it out of
//! what comes back. This crate is everything about that which needs no network, no clock, no file and no
//! thread: time and randomness come in as arguments.
//!
//! ```text
//! bytes of a source ─► source::Given ─► secret::Secret ─► vault::Vault ─► Placeholder, inside
//!
//! a request:   guard::Guard::head ─► decided, recorded ─► inject::inject ─► sent
//!              guard::BodyScan::feed for each chunk       (inject::body for a bounded body, then the scan)
//!              response::ask_for_plain before it is sent, so that the answer can be looked into
//! a response:  response::BodyMask::begin (or CannotLookInside) ─► mask::Masker::fields ─► BodyMask::feed … finish
//! anything else that streams (a WebSocket, a raw TLS stream that was opened): mask::Masker::stream
//! ```
//!
//! **Invariant:** a value is shown by [`Secret::expose`](secret::Secret::expose) alone; no error, no `Debug` and no
//! result of another function here holds any of it, but for the head and body that it was put into.
//!
//! **Invariant:** a form that is looked for and what is put in its place have the same length.
//!
//! **Invariant:** no bytes, from a sandbox or from a server, make anything here panic or grow without bound.

pub mod decode;
pub mod guard;
pub mod inject;
pub mod mask;
pub mod placeholder;
pub mod response;
pub mod secret;
pub mod source;
pub mod vault;

mod encode;
mod forms;
mod search;
#[cfg(test)]
mod testing;
