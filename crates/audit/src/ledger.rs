//! The whole index, read and checked: what every task's file must be.

use crate::digest::{Digest, Head};
use crate::index::{BranchPoint, Entry};
use crate::line::Line;
use crate::open;
use crate::sign::{PublicKey, SignedHead};
use crate::walk::{Step, Walk};
use fumehood_model::id::TaskId;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{BufReader, ErrorKind, Read, Result};
use std::path::Path;

/// Where a chain is broken, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Break {
    /// The number of the first line that is not as it was written.
    pub seq: u64,
    pub what: String,
}

/// A place where a crash left half a line, which the next writer sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CrashSeal {
    /// The number of the line that seals it.
    pub seq: u64,
    pub torn_bytes: u64,
}

/// What the index promises about a task's file at one of its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) head: Head,
    pub(crate) kind: MarkKind,
}

/// Which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MarkKind {
    Closed,
    Reopened,
    Reached,
}

/// What the index says about one task.
#[derive(Clone, Debug)]
pub(crate) struct History {
    /// The digest of the line that opened it.
    pub(crate) opening: Digest,
    pub(crate) opened_at_ms: u64,
    pub(crate) marks: Vec<Mark>,
    pub(crate) closed_at_ms: Option<u64>,
    pub(crate) cause: Option<String>,
    /// How far its file had come when it was removed, and where others branch from it.
    pub(crate) pruned: Option<(Head, Vec<BranchPoint>)>,
}

/// A signature in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vouched {
    /// For so many lines.
    pub(crate) lines: u64,
    pub(crate) key: PublicKey,
}

/// The index.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) tasks: HashMap<TaskId, History>,
    /// Tasks in the order in which they were opened.
    pub(crate) order: Vec<TaskId>,
    pub(crate) head: Head,
    /// Bytes of the file that were read.
    pub(crate) length: u64,
    pub(crate) seals: Vec<CrashSeal>,
    /// Bytes of half a line at the end, not sealed yet.
    pub(crate) torn_bytes: u64,
    pub(crate) broken: Option<Break>,
    /// Signatures that are right, in order.
    pub(crate) vouched: Vec<Vouched>,
    /// Whether the digest that was asked for is that of a line before any break.
    pub(crate) met: bool,
}

// === impl Ledger ===

impl Ledger {
    /// Reads the index as it is now, and looks out for the line whose digest is `expected`. A missing
    /// index is an empty one.
    pub(crate) fn read(records: &Path, expected: Option<&Digest>) -> Result<Self> {
        let mut ledger = Self {
            tasks: HashMap::new(),
            order: Vec::new(),
            head: Head::of_index(),
            length: 0,
            seals: Vec::new(),
            torn_bytes: 0,
            broken: None,
            vouched: Vec::new(),
            met: false,
        };
        let file = match open::read(&open::index_path(records)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(ledger),
            opened => opened?,
        };
        // Under the lock no writer is at work; what comes after this length is not ours to judge.
        file.lock_shared()?;
        ledger.length = file.metadata()?.len();
        file.unlock()?;
        let input = BufReader::with_capacity(64 << 10, (&file).take(ledger.length));
        let mut walk = Walk::new(input, ledger.head, None);
        while let Some(step) = walk.step()? {
            ledger.take(step);
            ledger.head = walk.head();
            ledger.met |= ledger.broken.is_none() && expected == Some(&ledger.head.hash);
        }
        Ok(ledger)
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Line(line) => {
                let seq = line.seq;
                if let Err(what) = self.enter(line) {
                    self.broken.get_or_insert(Break { seq, what: what.to_owned() });
                }
            }
            Step::Sealed { line, torn_bytes } => self.seals.push(CrashSeal { seq: line.seq, torn_bytes }),
            Step::Torn { bytes } => self.torn_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX),
            Step::Broken { seq, flaw } => {
                self.broken.get_or_insert(Break { seq, what: flaw.to_string() });
            }
        }
    }

    fn enter(&mut self, line: Line) -> std::result::Result<(), &'static str> {
        if line.event == crate::tail::SEALED {
            // Met only after damage that no crash leaves, which has been told.
            return Ok(());
        }
        let Some(entry) = line.entry() else { return Err("the line says nothing that an index says") };
        let Line { seq, at_ms, task, prev, hash, .. } = line;
        if let Entry::Signed { key, signature } = entry {
            let signed = SignedHead { lines: seq, head: prev, at_ms, key, signature };
            if !signed.is_right() {
                return Err("the signature is not one of what stands here");
            }
            self.vouched.push(Vouched { lines: seq, key });
            return Ok(());
        }
        let Some(task) = task else { return Err("the line names no task") };
        let known = self.tasks.get_mut(&task);
        match (entry, known) {
            (Entry::Opened {}, None) => {
                let history = History {
                    opening: hash,
                    opened_at_ms: at_ms,
                    marks: vec![],
                    closed_at_ms: None,
                    cause: None,
                    pruned: None,
                };
                self.order.push(task.clone());
                self.tasks.insert(task, history);
                Ok(())
            }
            (Entry::Opened {}, Some(_)) => Err("the task was opened before"),
            (Entry::Signed { .. }, _) => Ok(()),
            (_, None) => Err("the task was never opened"),
            (_, Some(history)) if history.pruned.is_some() => Err("the task's file was removed before"),
            (Entry::Closed { lines, head, cause }, Some(history)) => {
                let open = history.closed_at_ms.is_none();
                history.closed_at_ms = Some(at_ms);
                history.cause = cause.or(history.cause.take());
                history.mark(MarkKind::Closed, Head { lines, hash: head });
                if open { Ok(()) } else { Err("the task was closed before") }
            }
            (Entry::Reached { lines, head }, Some(history)) => {
                history.mark(MarkKind::Reached, Head { lines, hash: head });
                Ok(())
            }
            (Entry::Pruned { lines, head, branches }, Some(history)) => {
                let head = Head { lines, hash: head };
                let closed = history.marks.last().filter(|_| history.is_closed()).map(|mark| mark.head);
                history.pruned = Some((head, branches));
                match closed {
                    Some(closed) if closed != head => Err("what was removed is not what was closed"),
                    Some(_) | None => Ok(()),
                }
            }
            (Entry::Reopened { lines, head }, Some(history)) => {
                history.closed_at_ms = None;
                history.mark(MarkKind::Reopened, Head { lines, hash: head });
                Ok(())
            }
        }
    }
}

// === impl History ===

impl History {
    /// Whether the index's last word is that the file is complete.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at_ms.is_some()
    }

    fn mark(&mut self, kind: MarkKind, head: Head) {
        self.marks.push(Mark { head, kind });
    }
}
