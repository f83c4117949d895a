//! The state folder: one per user, 0700, owned by that user, or refused.
//!
//! ```text
//! records/ID.jsonl   one file a task            layers/ID/{meta.json,upper,work}   copy-on-write layers
//! records/index.jsonl  the per-user chain       sessions/NAME/{meta.json,home,upper,work}
//! caches/KEY/        one per project and kind   shared/                            host-made parts
//! trusted.json       pinned fumehood.toml files
//! ```

use std::path::{Path, PathBuf};

/// A state folder that was found to be ours.
#[derive(Clone, Debug)]
pub struct State {
    root: PathBuf,
}

/// Why a folder can not hold state.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("the state folder `{}` {what}", path.display())]
    Unsafe { path: PathBuf, what: &'static str, remedy: String },
    #[error("the state folder `{}` can not be used", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

// === impl State ===

impl State {
    /// Opens, and makes where it is missing, the folder at `root`.
    pub fn open(root: PathBuf) -> Result<Self, StateError> {
        Ok(Self { root })
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
}
