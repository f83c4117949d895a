//! What is kept of a stream: its last bytes, each known by its number since the beginning.

use fumehood_keep::wire::KEPT_OUTPUT_BYTES;

/// A stream that says little holds little.
const FIRST_BYTES: usize = 4 << 10;
/// The most that is read at once.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;

/// The last bytes of a stream.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    bytes: Vec<u8>,
    head: usize,
    length: usize,
    /// The number of the first byte that is kept.
    start: u64,
}

// === impl Ring ===

impl Ring {
    pub(crate) const fn start(&self) -> u64 {
        self.start
    }

    /// The number that the next byte will have: how many there were.
    pub(crate) const fn end(&self) -> u64 {
        self.start + self.length as u64
    }

    /// Bytes from that number on, as many as lie in one piece.
    pub(crate) fn at(&self, from: u64) -> &[u8] {
        let skipped = usize::try_from(from.saturating_sub(self.start)).unwrap_or(usize::MAX);
        if skipped >= self.length {
            return &[];
        }
        let first = (self.head + skipped) % self.bytes.len();
        let last = (first + self.length - skipped).min(self.bytes.len());
        self.bytes.get(first..last).unwrap_or_default()
    }

    /// A place to read into. What is before `floor` may be forgotten for it; `None` when that does not make room.
    pub(crate) fn room(&mut self, floor: u64) -> Option<&mut [u8]> {
        if self.length == self.bytes.len() && self.bytes.len() < KEPT_OUTPUT_BYTES {
            self.bytes.rotate_left(self.head);
            self.head = 0;
            let larger = (self.bytes.len() * 2).clamp(FIRST_BYTES, KEPT_OUTPUT_BYTES);
            self.bytes.resize(larger, 0);
        }
        if self.length == self.bytes.len() {
            let read = floor.clamp(self.start, self.end()) - self.start;
            let forgotten = usize::try_from(read).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            self.head = (self.head + forgotten) % self.bytes.len();
            self.length -= forgotten;
            self.start += forgotten as u64;
        }
        let tail = (self.head + self.length) % self.bytes.len();
        let end =
            if tail >= self.head && self.length < self.bytes.len() { self.bytes.len() } else { self.head };
        let end = end.min(tail + CHUNK_BYTES);
        self.bytes.get_mut(tail..end).filter(|room| !room.is_empty())
    }

    /// Whether [`Ring::room`] would give something.
    pub(crate) const fn has_room(&self, floor: u64) -> bool {
        self.length < KEPT_OUTPUT_BYTES || floor > self.start
    }

    /// So many bytes were put there.
    pub(crate) fn commit(&mut self, count: usize) {
        self.length = (self.length + count).min(self.bytes.len());
    }

    /// Keeps the numbers alone.
    pub(crate) fn forget(&mut self) {
        *self = Self { start: self.end(), ..Self::default() };
    }

    /// Memory that is held.
    pub(crate) const fn held(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(ring: &mut Ring, bytes: &[u8], floor: u64) -> usize {
        let Some(room) = ring.room(floor) else { return 0 };
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        ring.commit(count);
        count
    }

    fn all(ring: &Ring) -> Vec<u8> {
        let (mut from, mut found) = (ring.start(), Vec::new());
        while from < ring.end() {
            let piece = ring.at(from);
            assert!(!piece.is_empty());
            found.extend_from_slice(piece);
            from += piece.len() as u64;
        }
        found
    }

    #[test]
    fn what_is_not_yet_read_is_never_forgotten() {
        let mut ring = Ring::default();
        let piece = vec![7; CHUNK_BYTES];
        let mut written = 0;
        while written < KEPT_OUTPUT_BYTES {
            written += put(&mut ring, &piece, 0);
        }
        assert!(!ring.has_room(0));
        assert_eq!(put(&mut ring, &piece, 0), 0);
        assert_eq!(ring.start(), 0);
        assert!(put(&mut ring, &piece, 10) > 0);
        assert_eq!(ring.start(), 10);
    }

    proptest! {
        #[test]
        fn the_last_bytes_are_kept_in_order(pieces in prop::collection::vec(1_usize..400_000, 1..12)) {
            let (mut ring, mut told) = (Ring::default(), Vec::new());
            for (index, length) in pieces.into_iter().enumerate() {
                let mut rest: &[u8] = &vec![u8::try_from(index).unwrap(); length];
                told.extend_from_slice(rest);
                while !rest.is_empty() {
                    let count = put(&mut ring, rest, u64::MAX);
                    prop_assert!(count > 0);
                    rest = &rest[count..];
                }
            }
            prop_assert_eq!(ring.end(), told.len() as u64);
            let start = usize::try_from(ring.start()).unwrap();
            prop_assert!(all(&ring) == told[start..]);
            prop_assert!(told.len() - start >= told.len().min(KEPT_OUTPUT_BYTES - CHUNK_BYTES));
        }
    }
}
