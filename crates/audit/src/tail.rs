//! The end of a file that others write too: its last good line, and what a crash left after it.

use crate::digest::{Digest, Head};
use crate::line::{self, Line, Place};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Result;
use std::os::unix::fs::FileExt;

/// Enough for twenty lines of an index, so that one read is the rule.
const FIRST_WINDOW: u64 = 8 << 10;
/// How far back a good line is looked for. More damage than this is not sealed but refused.
const LAST_WINDOW: u64 = 4 << 20;

/// The name of a seal.
pub(crate) const SEALED: &str = "record.sealed";

/// The line that goes on after a torn one. It vouches for exactly the bytes that were found, so nothing
/// can be slipped in, or taken away, under its name later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename = "record.sealed")]
pub(crate) struct Seal {
    /// Bytes between the last good line and this one, without the newline that ends them.
    pub(crate) torn_bytes: u64,
    pub(crate) sha256: Digest,
    /// Whether that newline was there already. A crash leaves none: then it is damage.
    pub(crate) ended: bool,
}

/// Where a chain goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tail {
    pub(crate) head: Head,
    /// What must be mended first.
    pub(crate) torn: Option<Torn>,
}

/// What a crash left after the last good line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Torn {
    /// Half a line, and what is to be said of it.
    Half(Seal),
    /// A line that lacks nothing but its newline, and the head that it makes.
    Unended(Head),
}

// === impl Seal ===

impl Seal {
    /// What to say of the bytes after the last good line, if there are any.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        let (region, ended) = match bytes.strip_suffix(b"\n") {
            Some(region) => (region, true),
            None => (bytes, false),
        };
        if bytes.is_empty() {
            return None;
        }
        let torn_bytes = u64::try_from(region.len()).unwrap_or(u64::MAX);
        Some(Self { torn_bytes, sha256: Digest::of(region), ended })
    }
}

// === impl Torn ===

impl Torn {
    /// What the bytes after the line that made `head` are.
    pub(crate) fn of(bytes: &[u8], head: &Head) -> Option<Self> {
        match Line::parse(bytes) {
            Ok(line) if line.follows(head).is_ok() => Some(Self::Unended(head.after(line.hash))),
            Ok(_) | Err(_) => Seal::of(bytes).map(Self::Half),
        }
    }

    /// Puts into `buffer` what makes the chain go on, and answers with the head that it has then.
    pub(crate) fn mend(&self, buffer: &mut Vec<u8>, place: &Place<'_>) -> Result<Head> {
        match self {
            Self::Unended(head) => {
                buffer.push(b'\n');
                Ok(*head)
            }
            Self::Half(seal) => {
                buffer.extend_from_slice(if seal.ended { b"" } else { b"\n" });
                line::write(buffer, place, seal)
            }
        }
    }
}

/// Reads the end of `file`, which has `length` bytes. `None` when no good line is near enough to go on
/// from. A file without any good line goes on from `start`.
pub(crate) fn read(file: &File, length: u64, start: Head) -> Result<Option<Tail>> {
    let mut window = FIRST_WINDOW;
    loop {
        let from = length.saturating_sub(window);
        let mut bytes = vec![0; usize::try_from(length - from).unwrap_or(0)];
        file.read_exact_at(&mut bytes, from)?;
        if let Some((head, good)) = last_good(&bytes, from == 0) {
            let torn = Torn::of(bytes.get(good..).unwrap_or_default(), &head);
            return Ok(Some(Tail { head, torn }));
        }
        if from == 0 {
            return Ok(Some(Tail { head: start, torn: Torn::of(&bytes, &start) }));
        }
        if window >= LAST_WINDOW {
            return Ok(None);
        }
        window *= 8;
    }
}

/// The last line of a file of `length` bytes, if it is a good one.
pub(crate) fn last(file: &File, length: u64) -> Result<Option<Line>> {
    let from = length.saturating_sub(FIRST_WINDOW);
    let mut bytes = vec![0; usize::try_from(length - from).unwrap_or(0)];
    file.read_exact_at(&mut bytes, from)?;
    let line = bytes.strip_suffix(b"\n").and_then(|rest| rest.rsplit(|byte| *byte == b'\n').next());
    Ok(line.and_then(|line| Line::parse(line).ok()))
}

/// The head that the last good line makes, and where the bytes after that line start.
fn last_good(bytes: &[u8], whole: bool) -> Option<(Head, usize)> {
    let newline = |before: usize| bytes.get(..before)?.iter().rposition(|byte| *byte == b'\n');
    let mut end = newline(bytes.len())?;
    loop {
        let before = newline(end);
        let start = match before {
            Some(at) => at + 1,
            None if whole => 0,
            None => return None,
        };
        if let Ok(line) = Line::parse(bytes.get(start..end)?) {
            return Some((Head { lines: line.seq.saturating_add(1), hash: line.hash }, end + 1));
        }
        end = before?;
    }
}
