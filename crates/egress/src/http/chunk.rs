//! The chunked coding, taken apart strictly.

use super::head::{self, HeadFlaw};
use super::limits;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;

/// Where the reader stands in a body that comes in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Line,
    Inside(u64),
    /// The CR LF after a chunk.
    After,
    Trailers,
    Over,
}

/// What came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Data(Bytes),
    /// The end, with the fields that came after it.
    End(HeaderMap),
}

// === impl Chunks ===

impl Chunks {
    pub const fn new() -> Self {
        Self(State::Line)
    }

    /// Takes the next piece from the front of `buffer`. `None`: more bytes are needed.
    pub fn next(&mut self, buffer: &mut BytesMut) -> Result<Option<Piece>, &'static str> {
        loop {
            match self.0 {
                State::Line => {
                    let Some((size, length)) = size_line(buffer)? else { return Ok(None) };
                    let _ = buffer.split_to(length);
                    self.0 = if size == 0 { State::Trailers } else { State::Inside(size) };
                }
                State::Inside(left) => {
                    if buffer.is_empty() {
                        return Ok(None);
                    }
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                    let data = buffer.split_to(most).freeze();
                    let left = left.saturating_sub(u64::try_from(most).unwrap_or(u64::MAX));
                    self.0 = if left == 0 { State::After } else { State::Inside(left) };
                    return Ok(Some(Piece::Data(data)));
                }
                State::After => match buffer.get(..2) {
                    Some(b"\r\n") => {
                        let _ = buffer.split_to(2);
                        self.0 = State::Line;
                    }
                    Some(_) => return Err("a chunk is longer than it said"),
                    None if buffer.first().is_some_and(|byte| *byte != b'\r') => {
                        return Err("a chunk is longer than it said");
                    }
                    None => return Ok(None),
                },
                State::Trailers => {
                    let read = head::trailers(buffer).map_err(|flaw| match flaw {
                        HeadFlaw::Long | HeadFlaw::Fields => "there are too many fields after the body",
                        HeadFlaw::Form(why) => why,
                    })?;
                    let Some((fields, length)) = read else { return Ok(None) };
                    let _ = buffer.split_to(length);
                    self.0 = State::Over;
                    return Ok(Some(Piece::End(fields)));
                }
                State::Over => return Ok(Some(Piece::End(HeaderMap::new()))),
            }
        }
    }

    pub fn is_over(self) -> bool {
        self.0 == State::Over
    }
}

impl Default for Chunks {
    fn default() -> Self {
        Self::new()
    }
}

/// Reads `size[;extension]` CR LF: the size, and the length of the line. Extensions mean nothing
/// to anybody and are not sent on; they are checked so that no reader finds a line end in them.
fn size_line(buffer: &[u8]) -> Result<Option<(u64, usize)>, &'static str> {
    let seen = buffer.get(..limits::CHUNK_LINE_BYTES).unwrap_or(buffer);
    let Some(end) = seen.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        if seen.len() == limits::CHUNK_LINE_BYTES {
            return Err("the line before a chunk is longer than 1 KiB");
        }
        // What is there already must be the beginning of one.
        return number(seen).map(|_| None);
    };
    let size = number(seen.get(..end).unwrap_or_default())?.ok_or("a chunk has no size")?;
    match (buffer.get(end), buffer.get(end + 1)) {
        (Some(b'\r'), Some(b'\n')) => Ok(Some((size, end + 2))),
        (Some(b'\r'), None) => Ok(None),
        (Some(_) | None, _) => Err("the line before a chunk does not end in CR LF"),
    }
}

/// The size that a line begins with; `None` where it has no digit yet.
fn number(line: &[u8]) -> Result<Option<u64>, &'static str> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, rest) = line.split_at_checked(digits).unwrap_or_default();
    let extension = match rest.first() {
        None => true,
        Some(b';') => digits > 0 && rest.iter().all(|byte| *byte == b'\t' || (b' '..0x7f).contains(byte)),
        Some(_) => false,
    };
    if !extension || digits > 15 {
        return Err("the size of a chunk is no number");
    }
    if digits == 0 {
        return Ok(None);
    }
    let number = std::str::from_utf8(number).ok().and_then(|number| u64::from_str_radix(number, 16).ok());
    number.map(Some).ok_or("the size of a chunk is no number")
}
