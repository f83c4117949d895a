//! One line: how it is written, and how its exact bytes are checked.
//!
//! `{"seq":N,"at_ms":N,"task":ID,"prev":HEX,"event":NAME,…,"hash":HEX}` and a newline. `hash` is always
//! the last member, and is the SHA-256 of the 32 raw bytes of `prev` followed by every byte of the line
//! before `,"hash":"`. So a verifier needs no canonical JSON, and no byte of a line can change unseen.

use crate::digest::{Digest, HEX_LENGTH, Head};
use crate::index::Entry;
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::io::Write;

/// The longest line that is written or read. What the caps let through is well below it.
pub(crate) const LINE_LIMIT_BYTES: usize = 1 << 20;
/// What stands between a line's body and its digest.
const HASH_OPEN: &[u8] = b",\"hash\":\"";
/// What stands after the digest.
const HASH_CLOSE: &[u8] = b"\"}";

/// A line whose digest is right. Whether it stands at its right place only its chain can tell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    /// Its number in its file, from 0.
    pub seq: u64,
    /// Milliseconds since 1970 by the host's clock, which may jump: the order is that of `seq`.
    pub at_ms: u64,
    /// Absent in the index where a line is about the index itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    pub prev: Digest,
    /// The event's stable name.
    pub event: String,
    /// The event's own fields.
    #[serde(flatten)]
    pub fields: Map<String, Value>,
    pub hash: Digest,
}

/// The part of a line that its place decides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) at_ms: u64,
    pub(crate) task: Option<&'a TaskId>,
    pub(crate) head: Head,
}

/// What is wrong with a line, or with the place where it stands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("the line is no record")]
    NotARecord,
    #[error("the line is longer than {LINE_LIMIT_BYTES} bytes")]
    TooLong,
    #[error("the line was changed: its digest is another")]
    Changed,
    #[error("line {found} stands here: a line was removed, added, doubled or moved")]
    OutOfOrder { found: u64 },
    #[error("the line does not follow the one before it")]
    Unchained,
    #[error("the line belongs to another task")]
    OtherTask,
    #[error("{bytes} bytes were overwritten, which no crash does")]
    Overwritten { bytes: u64 },
}

// === impl Line ===

impl Line {
    /// The event, if this version knows it.
    pub fn known(&self) -> Option<Event> {
        let mut fields = self.fields.clone();
        fields.insert("event".to_owned(), Value::String(self.event.clone()));
        serde_json::from_value(Value::Object(fields)).ok()
    }

    /// What it says of a task, or of all of them, where it is one of the index.
    pub(crate) fn entry(&self) -> Option<Entry> {
        let mut fields = self.fields.clone();
        fields.insert("event".to_owned(), Value::String(self.event.clone()));
        serde_json::from_value(Value::Object(fields)).ok()
    }

    /// Reads one line, without its newline, and checks its digest.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Flaw> {
        if bytes.len() >= LINE_LIMIT_BYTES {
            return Err(Flaw::TooLong);
        }
        let rest = bytes.strip_suffix(HASH_CLOSE).ok_or(Flaw::NotARecord)?;
        let split = rest.len().checked_sub(HEX_LENGTH).ok_or(Flaw::NotARecord)?;
        let (rest, hex) = rest.split_at_checked(split).ok_or(Flaw::NotARecord)?;
        let body = rest.strip_suffix(HASH_OPEN).ok_or(Flaw::NotARecord)?;
        let hash = Digest::parse_bytes(hex).ok_or(Flaw::NotARecord)?;
        let line: Self = serde_json::from_slice(bytes).map_err(|_| Flaw::NotARecord)?;
        if line.hash == hash && Digest::chain(&line.prev, body) == hash {
            Ok(line)
        } else {
            Err(Flaw::Changed)
        }
    }

    /// Whether the line is the next one after `head`.
    pub(crate) fn follows(&self, head: &Head) -> Result<(), Flaw> {
        if self.seq != head.lines {
            return Err(Flaw::OutOfOrder { found: self.seq });
        }
        if self.prev == head.hash { Ok(()) } else { Err(Flaw::Unchained) }
    }
}

/// Appends the next line of a chain to `buffer` and answers with the head it makes. `event` must
/// serialize as an object with an `event` member. On an error `buffer` is as it was.
pub(crate) fn write(
    buffer: &mut Vec<u8>,
    place: &Place<'_>,
    event: &impl Serialize,
) -> std::io::Result<Head> {
    let start = buffer.len();
    let written = write_at(buffer, start, place, event);
    if written.is_err() {
        buffer.truncate(start);
    }
    written
}

fn write_at(
    buffer: &mut Vec<u8>,
    start: usize,
    place: &Place<'_>,
    event: &impl Serialize,
) -> std::io::Result<Head> {
    let Place { at_ms, task, head } = place;
    write!(buffer, "{{\"seq\":{},\"at_ms\":{at_ms}", head.lines)?;
    if let Some(task) = task {
        write!(buffer, ",\"task\":\"{task}\"")?;
    }
    buffer.extend_from_slice(b",\"prev\":\"");
    buffer.extend_from_slice(&head.hash.hex());
    buffer.push(b'"');
    let seam = buffer.len();
    serde_json::to_writer(&mut *buffer, event)?;
    // The event's object is spliced into ours: its opening brace becomes a comma, its closing one goes.
    match buffer.get_mut(seam) {
        Some(brace) if *brace == b'{' => *brace = b',',
        _ => return Err(std::io::ErrorKind::InvalidInput.into()),
    }
    buffer.pop();
    let hash = Digest::chain(&head.hash, buffer.get(start..).unwrap_or_default());
    buffer.extend_from_slice(HASH_OPEN);
    buffer.extend_from_slice(&hash.hex());
    buffer.extend_from_slice(HASH_CLOSE);
    if buffer.len() - start >= LINE_LIMIT_BYTES {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    buffer.push(b'\n');
    Ok(head.after(hash))
}
