//! What keeps a living sandbox.

pub mod files;
