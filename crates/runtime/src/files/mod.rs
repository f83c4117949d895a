//! The files wall: what crosses between the sandbox and the host, and how.
//!
//! Everything here takes open directories and works beneath them: a guest chose the names, the links
//! and the types, and may swap them while we look. It owns the collector of `/out`, the layers that
//! copy-on-write runs leave behind, and the ways back from a layer: show, apply, discard. It does not
//! know how a sandbox is started.
//!
//! **Invariant:** nothing crosses but regular files, directories and (on apply) links that stay beneath
//! the workspace; no set-id bit, owner, attribute or device of the guest's reaches the host.
//! **Invariant:** a change to the host is recorded before it is made; when recording fails, we stop.

pub mod apply;
pub mod autorun;
pub mod changes;
pub mod collect;
pub mod diff;
pub mod discard;
pub mod disk;
pub mod layer;
mod lines;
pub mod text;

use fumehood_model::event::Event;
use fumehood_sys::dirfd::DirHandle;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Writes one event into the record. Called before the act; its error stops the act.
pub type Record<'a> = dyn FnMut(&Event) -> io::Result<()> + 'a;

/// One object that did not cross.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Below the folder that was read; empty for the whole.
    pub path: PathBuf,
    pub why: String,
}

// === impl Refusal ===

impl Refusal {
    /// A refusal of `path`.
    pub fn new(path: impl Into<PathBuf>, why: impl Into<String>) -> Self {
        Self { path: path.into(), why: why.into() }
    }

    /// How it stands in the record.
    pub fn event(&self) -> Event {
        Event::FileRefused { path: text::escape_path(&self.path), why: self.why.clone() }
    }
}

/// The folder part and the name of a relative path.
fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    Some((path.parent()?, path.file_name()?))
}

/// How many components a relative path has.
fn depth(path: &Path) -> usize {
    path.components().count()
}

/// The digest and the length of a regular file.
fn digest(root: &DirHandle, path: &Path) -> io::Result<(String, u64)> {
    let (mut file, _) = root.read(path)?;
    let mut hash = Sha256::new();
    let mut bytes: u64 = 0;
    let mut buffer = vec![0_u8; 128 * 1024];
    loop {
        let read = file.read(&mut buffer)?;
        let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
        hash.update(chunk);
        bytes = bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
    }
    Ok((hex(hash), bytes))
}

/// The digest as 64 lower-case hexadecimal digits.
fn hex(hash: Sha256) -> String {
    use std::fmt::Write;
    hash.finalize().iter().fold(String::with_capacity(64), |mut text, byte| {
        // Writing into a `String` can not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
