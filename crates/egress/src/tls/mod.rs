//! TLS on both sides: opened towards the sandbox, verified towards the server.
//!
//! **Invariant:** the key of a sandbox's authority is in memory alone, and dies with the gate.
//!
//! **Invariant:** no setting turns the verification of a server off.

pub mod ca;
pub mod client;
pub mod jks;
pub mod server;
pub mod trust;

#[cfg(test)]
mod tests;

pub use ca::{Ca, CaError};
pub use client::{Servers, TlsFault};
pub use server::{NotOpened, Opener};

use rustls::crypto::CryptoProvider;
use std::sync::{Arc, LazyLock};

/// The one provider of cryptography; nothing depends on what a process installed.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    Arc::clone(&PROVIDER)
}
