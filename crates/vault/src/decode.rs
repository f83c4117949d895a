//! Undoes a content coding, a bounded step at a time.
//!
//! The caller says how much room there is for output; a step ends when the room or the input is used up,
//! so a small input that grows without end costs no memory and can be stopped. The one large thing is
//! the format's own window: 32 KiB for deflate, 16 MiB at most for brotli, 8 MiB for zstd.

mod zstd;

use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};
use std::fmt;

/// Output up to this is never too much.
const FREE_OUTPUT_BYTES: u64 = 64 * 1024 * 1024;
/// Beyond that, more output for a byte of input than this is refused. Deflate can not do more than
/// 1,032; logs and tables do 20 to 100.
const RATIO_LIMIT: u64 = 400;

/// How a body is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `gzip`, `x-gzip`.
    Gzip,
    /// `deflate`: with or without the zlib frame, as servers differ.
    Deflate,
    /// `br`.
    Brotli,
    /// `zstd`.
    Zstd,
}

/// Why a body could not be decoded. The answer must be cut off, not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not what the head says.
    #[error("the body is not the {0:?} that its head says")]
    Damaged(Coding),
    /// It ends too early.
    #[error("the body ends in the middle")]
    Truncated,
    /// Too much output for its input.
    #[error("the body grows more than {RATIO_LIMIT}-fold beyond 64 MiB")]
    Bomb,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How many bytes of the input were used.
    pub used: usize,
    /// Whether to call again at once: there is input left, or output that had no room.
    pub more: bool,
}

/// One body.
pub struct Decoder {
    coding: Coding,
    state: State,
    input_bytes: u64,
    output_bytes: u64,
}

enum State {
    /// Nothing came yet: the kind of a deflate stream shows in its first byte.
    Fresh,
    Flate(Decompress),
    /// Boxed, as it has many kilobytes of tables.
    Brotli(Box<BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>>),
    Zstd(Box<zstd::Frames>),
    /// The end was reached; more gzip members may follow.
    Ended,
}

/// What one call into a format's own decoder did.
struct Turn {
    used: usize,
    written: usize,
    ended: bool,
}

// === impl Decoder ===

impl Decoder {
    /// A decoder at the beginning of a body.
    pub fn new(coding: Coding) -> Self {
        Self { coding, state: State::Fresh, input_bytes: 0, output_bytes: 0 }
    }

    /// Decodes from `input` and appends at most `room` bytes to `out`.
    pub fn step(&mut self, input: &[u8], room: usize, out: &mut Vec<u8>) -> Result<Step, DecodeError> {
        let start = out.len();
        out.resize(start.saturating_add(room), 0);
        let (mut used, mut written) = (0, 0);
        let result = loop {
            let rest = input.get(used..).unwrap_or_default();
            let Some(space) = out.get_mut(start.saturating_add(written)..).filter(|space| !space.is_empty())
            else {
                break Ok(true);
            };
            let turn = match self.turn(rest, space) {
                Ok(turn) => turn,
                Err(error) => break Err(error),
            };
            used += turn.used;
            written += turn.written;
            if turn.ended {
                self.state = State::Ended;
            }
            if turn.used == 0 && turn.written == 0 && !turn.ended {
                // Input is left only if the decoder does not move any more, which is a damaged body.
                break if used < input.len() { Err(DecodeError::Damaged(self.coding)) } else { Ok(false) };
            }
        };
        out.truncate(start.saturating_add(written));
        self.input_bytes = self.input_bytes.saturating_add(u64::try_from(used).unwrap_or(u64::MAX));
        self.output_bytes = self.output_bytes.saturating_add(u64::try_from(written).unwrap_or(u64::MAX));
        let more = result?;
        let allowed = self.input_bytes.saturating_mul(RATIO_LIMIT).max(FREE_OUTPUT_BYTES);
        if self.output_bytes > allowed {
            return Err(DecodeError::Bomb);
        }
        Ok(Step { used, more })
    }

    /// Whether the body may end here. One without a byte may: the answer to `HEAD` has none.
    pub fn finish(&self) -> Result<(), DecodeError> {
        match &self.state {
            State::Ended => Ok(()),
            State::Fresh if self.input_bytes == 0 => Ok(()),
            State::Zstd(frames) if frames.is_between() => Ok(()),
            State::Fresh | State::Flate(_) | State::Brotli(_) | State::Zstd(_) => Err(DecodeError::Truncated),
        }
    }

    fn turn(&mut self, input: &[u8], space: &mut [u8]) -> Result<Turn, DecodeError> {
        let damaged = DecodeError::Damaged(self.coding);
        if matches!(self.state, State::Fresh) {
            let Some(first) = input.first() else { return Ok(Turn { used: 0, written: 0, ended: false }) };
            self.state = fresh(self.coding, *first);
        }
        match &mut self.state {
            State::Fresh => Err(damaged),
            State::Flate(flate) => {
                let (input_before, output_before) = (flate.total_in(), flate.total_out());
                let status = flate.decompress(input, space, FlushDecompress::None).map_err(|_| damaged)?;
                let used = usize::try_from(flate.total_in() - input_before).map_err(|_| damaged)?;
                let written = usize::try_from(flate.total_out() - output_before).map_err(|_| damaged)?;
                Ok(Turn { used, written, ended: matches!(status, Status::StreamEnd) })
            }
            State::Brotli(state) => brotli(state, input, space).ok_or(damaged),
            State::Zstd(frames) => {
                let (used, written) = frames.decode(input, space).map_err(|_| damaged)?;
                Ok(Turn { used, written, ended: false })
            }
            State::Ended => {
                if self.coding == Coding::Gzip && input.first() == Some(&0x1f) {
                    self.state = fresh(self.coding, 0x1f);
                    return self.turn(input, space);
                }
                // What follows the end is padding: it is dropped, as other readers do.
                Ok(Turn { used: input.len(), written: 0, ended: false })
            }
        }
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoder({:?}, {} bytes in, {} out)", self.coding, self.input_bytes, self.output_bytes)
    }
}

fn fresh(coding: Coding, first: u8) -> State {
    match coding {
        Coding::Gzip => State::Flate(Decompress::new_gzip(15)),
        // A zlib frame begins with a nibble of 8 and a window of at most 7; a raw stream whose first
        // block looked so would be a stored or fixed one with bits that no encoder sets.
        Coding::Deflate => State::Flate(Decompress::new(first & 0x0f == 8 && first >> 4 <= 7)),
        Coding::Brotli => {
            let alloc = StandardAlloc::default;
            State::Brotli(Box::new(BrotliState::new_strict(alloc(), alloc(), alloc())))
        }
        Coding::Zstd => State::Zstd(Box::default()),
    }
}

fn brotli(
    state: &mut BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>,
    input: &[u8],
    space: &mut [u8],
) -> Option<Turn> {
    let (mut input_left, mut used) = (input.len(), 0);
    let (mut space_left, mut written, mut total) = (space.len(), 0, 0);
    let result = BrotliDecompressStream(
        &mut input_left,
        &mut used,
        input,
        &mut space_left,
        &mut written,
        space,
        &mut total,
        state,
    );
    match result {
        BrotliResult::ResultSuccess => Some(Turn { used, written, ended: true }),
        BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {
            Some(Turn { used, written, ended: false })
        }
        BrotliResult::ResultFailure => None,
    }
}

#[cfg(test)]
pub(crate) mod tests;
