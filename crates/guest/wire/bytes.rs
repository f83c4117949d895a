//! Numbers and frames as bytes: what both halves of the protocol are written with.

use super::frame::{Header, MAGIC, VERSION, WINDOW_BYTES};

/// Where a frame is written.
pub trait Sink {
    /// Takes all of `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

/// The kinds of frames.
pub(crate) mod kind {
    pub(crate) const HELLO: u8 = 1;
    pub(crate) const EXEC: u8 = 2;
    pub(crate) const BLOCK: u8 = 3;
    pub(crate) const DATA: u8 = 4;
    pub(crate) const END: u8 = 5;
    pub(crate) const CREDIT: u8 = 6;
    pub(crate) const CLOSE: u8 = 7;
    pub(crate) const SIGNAL: u8 = 8;
    pub(crate) const RESIZE: u8 = 9;
    pub(crate) const DIAL: u8 = 10;
    pub(crate) const PUT: u8 = 11;
    pub(crate) const GET: u8 = 12;
    pub(crate) const PREPARE: u8 = 13;
    pub(crate) const THAW: u8 = 14;
    pub(crate) const METERS: u8 = 15;
    pub(crate) const RELEASE: u8 = 16;
    pub(crate) const KILL_ALL: u8 = 17;
    pub(crate) const STARTED: u8 = 32;
    pub(crate) const NOT_STARTED: u8 = 33;
    pub(crate) const ENDED: u8 = 34;
    pub(crate) const DIALLED: u8 = 35;
    pub(crate) const DONE: u8 = 36;
    pub(crate) const FAILED: u8 = 37;
    pub(crate) const METERED: u8 = 38;
}

/// Writes a header and the parts of its payload.
pub(crate) fn frame(out: &mut impl Sink, (kind, stream, channel): (u8, u8, u32), parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    // A payload that can not be counted is printed as one that no parser accepts.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    Header { length, kind, stream, channel }.print(out);
    parts.iter().for_each(|part| out.put(part));
}

/// What both greetings hold.
pub(crate) fn hello(reader: &mut Reader<'_>) -> Option<u64> {
    (*reader.take::<8>()? == MAGIC && reader.u16()? == VERSION).then_some(())?;
    reader.u64()
}

pub(crate) fn credit(reader: &mut Reader<'_>) -> Option<u32> {
    reader.u32().filter(|bytes| (1..=WINDOW_BYTES).contains(bytes))
}

/// Takes little-endian numbers off the front.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

// === impl Reader ===

impl<'a> Reader<'a> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.take().map(|bytes| u8::from_le_bytes(*bytes))
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.take().map(|bytes| u16::from_le_bytes(*bytes))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.take().map(|bytes| u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.take().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    /// All that is left, if it is anything.
    pub(crate) fn some(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest();
        (!rest.is_empty()).then_some(rest)
    }
}

/// Puts bytes at the front of what is left.
pub(crate) struct Writer<'a>(pub(crate) &'a mut [u8]);

// === impl Writer ===

impl Writer<'_> {
    /// The arrays are as large as what is put into them; a field that did not fit is left zero.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let rest = core::mem::take(&mut self.0);
        if let Some((room, rest)) = rest.split_at_mut_checked(bytes.len()) {
            room.copy_from_slice(bytes);
            self.0 = rest;
        }
    }
}
