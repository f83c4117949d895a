//! Reads a chain from its start: tells good lines, seals of crashes, and everything that is neither.
//!
//! A *torn tail* is what a crash in the middle of one `write` leaves: bytes with no newline after the
//! last good line. The next writer ends them with a newline and goes on with a seal that vouches for
//! exactly those bytes. Anything else that is not a line of the chain is a break: a bad line that
//! *has* its newline (no crash writes one), a gap in the numbers, a line that does not follow. Sealing
//! such a place lets the chain go on, and stays a break for ever. (Whoever seals can die too, and then
//! the torn bytes are two: half a line, and half of the very seal that belongs after it.)

use crate::digest::Head;
use crate::line::{self, Flaw, LINE_LIMIT_BYTES, Line, Place};
use crate::tail::Seal;
use fumehood_model::id::TaskId;
use serde_json::Value;
use std::io::{BufRead, Read as _, Result};

/// Damage larger than this is not looked through for a seal.
const REGION_LIMIT_BYTES: usize = 4 << 20;
/// So many deaths at the same place are believed; more are damage.
const CRASHES: u32 = 4;

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
pub(crate) struct Walk<'a, R> {
    input: R,
    head: Head,
    task: Option<&'a TaskId>,
    /// A whole line after a break, from which the walk goes on.
    restart: Option<Line>,
}

// === impl Walk ===

impl<'a, R: BufRead> Walk<'a, R> {
    /// Starts at `head`, before the first byte of `input`: the file of `task`, or the index.
    pub(crate) fn new(input: R, head: Head, task: Option<&'a TaskId>) -> Self {
        Self { input, head, task, restart: None }
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
        // How often somebody died here, as long as nothing speaks against it.
        let mut crashes = Some(1).filter(|_| region.len() < LINE_LIMIT_BYTES);
        loop {
            let Some(piece) = self.piece()? else {
                let torn = crashes.is_some() && !region.ends_with(b"\n");
                return Ok(Some(if torn { Step::Torn { bytes: region } } else { self.broken(flaw, None) }));
            };
            match parse(&piece) {
                Ok(line) => return Ok(Some(self.after_damage(&region, line, flaw, crashes.is_some()))),
                Err(_) if region.len() > REGION_LIMIT_BYTES => region.clear(),
                Err(_) => {}
            }
            crashes = crashes.filter(|count| *count < CRASHES && self.is_half_a_seal(&piece, &region));
            crashes = crashes.map(|count| count + 1);
            region.extend_from_slice(&piece);
        }
    }

    /// The step over `region` to the whole line after it.
    fn after_damage(&mut self, region: &[u8], line: Line, flaw: Flaw, crash: bool) -> Step {
        let seal = sealed(&line, region).filter(|_| line.follows(&self.head).is_ok());
        match seal {
            Some(Seal { torn_bytes, ended: false, .. }) if crash => {
                self.accept(line.clone());
                Step::Sealed { line, torn_bytes }
            }
            Some(Seal { torn_bytes: bytes, .. }) => self.broken(Flaw::Overwritten { bytes }, Some(line)),
            None => self.broken(flaw, Some(line)),
        }
    }

    /// Whether `piece` is how the line begins that would seal `region`.
    fn is_half_a_seal(&self, piece: &[u8], region: &[u8]) -> bool {
        let piece = piece.strip_suffix(b"\n").unwrap_or(piece);
        let before = format!("{{\"seq\":{},\"at_ms\":", self.head.lines);
        let digits = piece.strip_prefix(before.as_bytes()).unwrap_or_default();
        let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
        let at_ms =
            digits.fold(0_u64, |sum, digit| sum.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')));
        let Some(seal) = Seal::of(region.strip_suffix(b"\n").unwrap_or(region)) else { return false };
        let mut whole = Vec::with_capacity(512);
        let place = Place { at_ms, task: self.task, head: self.head };
        line::write(&mut whole, &place, &seal).is_ok() && whole.starts_with(piece)
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

/// The seal in `line`, if it is one over exactly `region` and its newline.
fn sealed(line: &Line, region: &[u8]) -> Option<Seal> {
    let mut fields = line.fields.clone();
    fields.insert("event".to_owned(), Value::String(line.event.clone()));
    let seal: Seal = serde_json::from_value(Value::Object(fields)).ok()?;
    let found = Seal::of(region)?;
    (found.ended && found.torn_bytes == seal.torn_bytes && found.sha256 == seal.sha256).then_some(seal)
}

fn parse(piece: &[u8]) -> std::result::Result<Line, Flaw> {
    Line::parse(piece.strip_suffix(b"\n").ok_or(Flaw::NotARecord)?)
}
