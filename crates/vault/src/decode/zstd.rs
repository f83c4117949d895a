//! Zstandard frames, fed to the decoder one block at a time.
//!
//! The decoder would take all blocks that it is given and keep their output; a block of four bytes can
//! stand for 128 KiB. So the frame is parted here, and a block is given only when the output of the one
//! before is gone. The window's bytes come out when the frame goes on or ends.

use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::Read;

/// What RFC 9659 allows for a content coding.
const WINDOW_LIMIT_BYTES: u64 = 8 * 1024 * 1024;
/// The format's own limit.
const BLOCK_LIMIT_BYTES: usize = 128 * 1024;
const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The input is no sequence of frames.
pub(super) struct Damaged;

/// A body of one or more frames.
pub(super) struct Frames {
    decoder: FrameDecoder,
    next: Next,
    /// What came of the piece that `next` says.
    pending: Vec<u8>,
    checksum: bool,
    /// Whether the decoder may hold output.
    draining: bool,
}

/// Which piece is being collected.
#[derive(Clone, Copy)]
enum Next {
    FrameHeader,
    Block,
    /// So many bytes of a frame that is to be skipped.
    Skipped(u32),
}

/// A block's header.
struct Block {
    last: bool,
    content: usize,
}

// === impl Frames ===

impl Default for Frames {
    fn default() -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW_LIMIT_BYTES);
        Self { decoder, next: Next::FrameHeader, pending: Vec::new(), checksum: false, draining: false }
    }
}

impl Frames {
    /// Whether a frame has ended and no other begun.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.next, Next::FrameHeader) && self.pending.is_empty() && !self.draining
    }

    /// Uses input until there is output, or none is left. How much was used, and written.
    pub(super) fn decode(&mut self, input: &[u8], space: &mut [u8]) -> Result<(usize, usize), Damaged> {
        let mut used = 0;
        loop {
            if self.draining {
                let written = self.decoder.read(space).map_err(|_| Damaged)?;
                if written > 0 {
                    return Ok((used, written));
                }
                self.draining = false;
            }
            let rest = input.get(used..).unwrap_or_default();
            if rest.is_empty() {
                return Ok((used, 0));
            }
            used += self.take(rest)?;
        }
    }

    /// Takes some input, and acts on a piece that is whole with it.
    fn take(&mut self, input: &[u8]) -> Result<usize, Damaged> {
        if let Next::Skipped(left) = self.next {
            let taken = input.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let left = left.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
            self.next = if left == 0 { Next::FrameHeader } else { Next::Skipped(left) };
            return Ok(taken);
        }
        let wanted = self.wanted()?;
        let taken = input.len().min(wanted.saturating_sub(self.pending.len()));
        self.pending.extend_from_slice(input.get(..taken).unwrap_or_default());
        // What was taken may say that more is wanted.
        if self.pending.len() == self.wanted()? {
            self.act()?;
        }
        Ok(taken)
    }

    /// How long the piece is, as far as what there is of it says.
    fn wanted(&self) -> Result<usize, Damaged> {
        match self.next {
            Next::FrameHeader => frame_header(&self.pending),
            Next::Block => match block(&self.pending)? {
                None => Ok(3),
                Some(block) if block.last && self.checksum => Ok(3 + block.content + 4),
                Some(block) => Ok(3 + block.content),
            },
            Next::Skipped(_) => Ok(0),
        }
    }

    fn act(&mut self) -> Result<(), Damaged> {
        match self.next {
            Next::FrameHeader if self.pending.starts_with(&MAGIC) => {
                self.decoder.reset(self.pending.as_slice()).map_err(|_| Damaged)?;
                self.checksum = self.pending.get(4).is_some_and(|descriptor| descriptor & 0b100 != 0);
                self.next = Next::Block;
            }
            Next::FrameHeader => {
                let length = self.pending.get(4..8).and_then(|bytes| bytes.try_into().ok()).ok_or(Damaged)?;
                self.next = match u32::from_le_bytes(length) {
                    0 => Next::FrameHeader,
                    length => Next::Skipped(length),
                };
            }
            Next::Block => {
                let last = block(&self.pending)?.is_some_and(|block| block.last);
                let strategy = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(self.pending.as_slice(), strategy).map_err(|_| Damaged)?;
                self.draining = true;
                self.next = if last { Next::FrameHeader } else { Next::Block };
            }
            Next::Skipped(_) => {}
        }
        self.pending.clear();
        Ok(())
    }
}

fn frame_header(pending: &[u8]) -> Result<usize, Damaged> {
    let Some((magic, rest)) = pending.split_first_chunk::<4>() else { return Ok(4) };
    if let [0x50..=0x5f, 0x2a, 0x4d, 0x18] = magic {
        return Ok(8);
    }
    if *magic != MAGIC {
        return Err(Damaged);
    }
    let Some(descriptor) = rest.first() else { return Ok(5) };
    let single = descriptor & 0b10_0000 != 0;
    let size = match (descriptor >> 6, single) {
        (0, false) => 0,
        (0, true) => 1,
        (1, _) => 2,
        (2, _) => 4,
        _ => 8,
    };
    let dictionary = match descriptor & 0b11 {
        3 => 4,
        other => usize::from(other),
    };
    Ok(5 + usize::from(!single) + dictionary + size)
}

fn block(pending: &[u8]) -> Result<Option<Block>, Damaged> {
    let Some([a, b, c]) = pending.first_chunk::<3>() else { return Ok(None) };
    let header = u32::from_le_bytes([*a, *b, *c, 0]);
    let size = usize::try_from(header >> 3).map_err(|_| Damaged)?;
    let kind = (header >> 1) & 0b11;
    // The fourth kind is not defined, and a run-length block is one byte that is repeated.
    if kind == 3 || size > BLOCK_LIMIT_BYTES {
        return Err(Damaged);
    }
    Ok(Some(Block { last: header & 1 == 1, content: if kind == 1 { 1 } else { size } }))
}
