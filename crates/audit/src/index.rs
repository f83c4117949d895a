//! The per-user chain that opens and closes every task's file.

use crate::digest::{Digest, Head};
use crate::error::RecordError;
use crate::line::{self, Place};
use crate::open;
use crate::sign::{PublicKey, Signature, SignedHead, SigningKey};
use crate::tail::{self, Tail};
use fumehood_model::id::TaskId;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the index says about a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub(crate) enum Entry {
    /// The task's file was made, and is about to get its first line.
    #[serde(rename = "index.opened")]
    Opened {},
    /// The task's file ends here, with this many lines.
    #[serde(rename = "index.closed")]
    Closed {
        lines: u64,
        head: Digest,
        /// How the last exec ended, when one ended since the opening.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<String>,
    },
    /// A later act is about to be added to the task's file, which was found so.
    #[serde(rename = "index.reopened")]
    Reopened { lines: u64, head: Digest },
    /// The file of a task that goes on has come so far. How much of it must be there is known even if it is lost.
    #[serde(rename = "index.reached")]
    Reached { lines: u64, head: Digest },
    /// The task's file, which had come so far, is about to be removed by its owner, for its age.
    #[serde(rename = "index.pruned")]
    Pruned {
        lines: u64,
        head: Digest,
        /// The lines at which records of forks branch from it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        branches: Vec<BranchPoint>,
    },
    /// Everything before this line is as it was when the holder of the key signed it.
    #[serde(rename = "index.signed")]
    Signed { key: PublicKey, signature: Signature },
}

/// A place in a chain: so many lines, and the digest of the last of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BranchPoint {
    pub(crate) lines: u64,
    pub(crate) hash: Digest,
}

/// The index, open to be added to. Locked only while a line is added.
#[derive(Debug)]
pub(crate) struct Index {
    file: File,
    path: PathBuf,
    /// The file's length after our last line, and the head that it had. Nothing needs to be read
    /// when nobody has written since.
    known: Option<(u64, Head)>,
}

// === impl Index ===

impl Index {
    pub(crate) fn open(records: &Path) -> Result<Self, RecordError> {
        let path = open::index_path(records);
        match open::append_or_create(&path) {
            Ok(file) => Ok(Self { file, path, known: None }),
            Err(source) => Err(RecordError::Open { path, source }),
        }
    }

    /// Adds one line and answers with the index's head, which is that line's.
    pub(crate) fn append(&mut self, at_ms: u64, task: &TaskId, entry: &Entry) -> Result<Head, RecordError> {
        self.file.lock().map_err(|source| self.failed(source))?;
        let added = self.append_locked(at_ms, task, entry);
        // It can not fail on a lock that is held; closing the file gives it back as well.
        let _ = self.file.unlock();
        added
    }

    /// Adds a signature of all that is there, unless the last line is one by this key.
    pub(crate) fn sign(&mut self, at_ms: u64, key: &SigningKey) -> Result<SignedHead, RecordError> {
        self.file.lock().map_err(|source| self.failed(source))?;
        let signed = self.sign_locked(at_ms, key);
        let _ = self.file.unlock();
        signed
    }

    fn sign_locked(&mut self, at_ms: u64, key: &SigningKey) -> Result<SignedHead, RecordError> {
        let length = self.file.metadata().map_err(|source| self.failed(source))?.len();
        let Tail { mut head, torn } = self.tail(length)?;
        if torn.is_none()
            && let Some(signed) = self.signed_last(length, key)
        {
            return Ok(signed);
        }
        if torn.is_some() {
            // What is signed is what the next line follows.
            head = self.add_locked(at_ms, None, None)?;
        }
        let signed = key.sign(&head, at_ms);
        self.add_locked(at_ms, None, Some(&signed.entry()))?;
        Ok(signed)
    }

    /// The signature that the last line is, if it is one by this key.
    fn signed_last(&self, length: u64, key: &SigningKey) -> Option<SignedHead> {
        let line = tail::last(&self.file, length).ok()??;
        let at_ms = line.at_ms;
        let (lines, head) = (line.seq, line.prev);
        match line.entry()? {
            Entry::Signed { key: by, signature } if by == key.public() => {
                Some(SignedHead { lines, head, at_ms, key: by, signature }).filter(SignedHead::is_right)
            }
            Entry::Opened {}
            | Entry::Closed { .. }
            | Entry::Reopened { .. }
            | Entry::Reached { .. }
            | Entry::Pruned { .. }
            | Entry::Signed { .. } => None,
        }
    }

    /// Makes what was written last through a power cut.
    pub(crate) fn sync(&self) -> Result<(), RecordError> {
        self.file.sync_data().map_err(|source| self.failed(source))
    }

    fn append_locked(&mut self, at_ms: u64, task: &TaskId, entry: &Entry) -> Result<Head, RecordError> {
        self.add_locked(at_ms, Some(task), Some(entry))
    }

    /// Adds what there is to add, after what a crash left was mended.
    fn add_locked(
        &mut self,
        at_ms: u64,
        task: Option<&TaskId>,
        entry: Option<&Entry>,
    ) -> Result<Head, RecordError> {
        let found = self.file.metadata().map_err(|source| self.failed(source))?;
        if !found.is_file() || found.nlink() == 0 {
            return Err(RecordError::Replaced { path: self.path.clone() });
        }
        let length = found.len();
        let Tail { mut head, torn } = self.tail(length)?;
        let mut buffer = Vec::with_capacity(1024);
        if let Some(torn) = torn {
            let place = Place { at_ms, task: None, head };
            head = torn.mend(&mut buffer, &place).map_err(|source| self.failed(source))?;
        }
        if let Some(entry) = entry {
            let place = Place { at_ms, task, head };
            head = line::write(&mut buffer, &place, entry).map_err(|source| self.failed(source))?;
        }
        self.known = None;
        if let Err(source) = self.file.write_all(&buffer) {
            // Only our own bytes are cut. If that fails too, the next writer seals them.
            let _ = self.file.set_len(length);
            return Err(self.failed(source));
        }
        let written = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        self.known = Some((length.saturating_add(written), head));
        Ok(head)
    }

    fn tail(&self, length: u64) -> Result<Tail, RecordError> {
        match self.known {
            Some((known, head)) if known == length => Ok(Tail { head, torn: None }),
            Some(_) | None => tail::read(&self.file, length, Head::of_index())
                .map_err(|source| self.failed(source))?
                .ok_or_else(|| RecordError::Damaged { path: self.path.clone() }),
        }
    }

    fn failed(&self, source: std::io::Error) -> RecordError {
        RecordError::Write { path: self.path.clone(), source }
    }
}
