//! Reads a chain from its start: tells good lines, seals of crashes, and everything that is neither.
//!
//! A *torn tail* is what a crash in the middle of one `write` leaves: bytes with no newline after the
//! last good line. The next writer ends them with a newline and goes on with a seal that vouches for
//! exactly those bytes. Anything else that is not a line of the chain is a break: a bad line that
//! *has* its newline (no crash writes one), a gap in the numbers, a line that does not follow. Sealing
//! such a place lets the chain go on, and stays a break for ever.

use crate::digest::Head;
use crate::line::{Flaw, LINE_LIMIT_BYTES, Line};
use crate::tail::{Seal, Torn};
use serde_json::Value;
use std::io::{BufRead, Read as _, Result};

/// Damage larger than this is not looked through for a seal.
const REGION_LIMIT_BYTES: usize = 4 << 20;

/// One step along a chain.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// The next line.
    Line(Line),
    /// The next line, which seals what a crash left before it.
    Sealed { line: Line, torn_bytes: u64 },
    /// What a crash left, or a writer at work has not finished, at the end.
    Torn { bytes: Vec<u8> },
    /// The chain is broken where this line should be. It goes on from the next line that is whole.
    Broken { seq: u64, flaw: Flaw },
}

/// A walk along the chain in `input`.
#[derive(Debug)]
pub(crate) struct Walk<R> {
    input: R,
    head: Head,
    /// A whole line after a break, from which the walk goes on.
    restart: Option<Line>,
}

// === impl Walk ===

impl<R: BufRead> Walk<R> {
    /// Starts at `head`, before the first byte of `input`.
    pub(crate) fn new(input: R, head: Head) -> Self {
        Self { input, head, restart: None }
    }

    /// The head after the last line that was met.
    pub(crate) fn head(&self) -> Head {
        self.head
    }

    /// The next step, or `None` at the end. A sealed or broken line moves the head as well.
    pub(crate) fn step(&mut self) -> Result<Option<Step>> {
        if let Some(line) = self.restart.take() {
            return Ok(Some(self.accept(line)));
        }
        let Some(piece) = self.piece()? else { return Ok(None) };
        let flaw = match parse(&piece) {
            Ok(line) => match line.follows(&self.head) {
                Ok(()) => return Ok(Some(self.accept(line))),
                Err(flaw) => return Ok(Some(self.broken(flaw, Some(line)))),
            },
            Err(flaw) => flaw,
        };
        self.past_damage(piece, flaw)
    }

    /// Looks for the line after bytes that are none.
    fn past_damage(&mut self, mut region: Vec<u8>, flaw: Flaw) -> Result<Option<Step>> {
        let mut pieces = 1_u32;
        loop {
            let Some(piece) = self.piece()? else {
                let torn = pieces == 1 && !region.ends_with(b"\n") && region.len() < LINE_LIMIT_BYTES;
                return Ok(Some(if torn { Step::Torn { bytes: region } } else { self.broken(flaw, None) }));
            };
            match parse(&piece) {
                Ok(line) if line.follows(&self.head).is_ok() && vouches(&line, &region) => {
                    let torn_bytes = u64::try_from(region.len().saturating_sub(1)).unwrap_or(u64::MAX);
                    if pieces == 1 && region.len() <= LINE_LIMIT_BYTES {
                        self.accept(line.clone());
                        return Ok(Some(Step::Sealed { line, torn_bytes }));
                    }
                    return Ok(Some(self.broken(Flaw::Overwritten { bytes: torn_bytes }, Some(line))));
                }
                Ok(line) => return Ok(Some(self.broken(flaw, Some(line)))),
                Err(_) if region.len() > REGION_LIMIT_BYTES => region.clear(),
                Err(_) => {}
            }
            pieces = pieces.saturating_add(1);
            region.extend_from_slice(&piece);
        }
    }

    fn accept(&mut self, line: Line) -> Step {
        self.head = Head { lines: line.seq.saturating_add(1), hash: line.hash };
        Step::Line(line)
    }

    fn broken(&mut self, flaw: Flaw, restart: Option<Line>) -> Step {
        self.restart = restart;
        Step::Broken { seq: self.head.lines, flaw }
    }

    /// The bytes up to and with the next newline, or so many as a line may have at most.
    fn piece(&mut self) -> Result<Option<Vec<u8>>> {
        let mut piece = Vec::with_capacity(512);
        let limit = u64::try_from(LINE_LIMIT_BYTES).unwrap_or(u64::MAX);
        self.input.by_ref().take(limit).read_until(b'\n', &mut piece)?;
        Ok(if piece.is_empty() { None } else { Some(piece) })
    }
}

/// Whether `line` is a seal over exactly `region`, newline included.
fn vouches(line: &Line, region: &[u8]) -> bool {
    let Some(torn) = Torn::of(region) else { return false };
    let mut fields = line.fields.clone();
    fields.insert("event".to_owned(), Value::String(line.event.clone()));
    !torn.open && serde_json::from_value::<Seal>(Value::Object(fields)).is_ok_and(|seal| seal == torn.seal)
}

fn parse(piece: &[u8]) -> std::result::Result<Line, Flaw> {
    Line::parse(piece.strip_suffix(b"\n").ok_or(Flaw::NotARecord)?)
}
