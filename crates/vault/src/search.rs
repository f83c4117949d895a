//! Finds any of many byte strings, fast where there is nothing to find.
//!
//! A window as long as the shortest needle moves over the text. A table, asked with the last few bytes in
//! the window, says how far it can move on without passing over a beginning (after Wu and Manber, 1994).
//! The longer the needles, the fewer bytes are even looked at. Unlike an automaton it is made in
//! microseconds, its size does not grow with the needles, and it can be wiped: needles are secrets.

use std::ops::Range;
use zeroize::Zeroizing;

/// With needles at least this long three bytes are hashed, and two otherwise.
const LONG_NEEDLE: usize = 6;

/// A set of needles. A search finds the leftmost, and the longest of those that begin there.
pub(crate) struct Search {
    needles: Vec<Zeroizing<Vec<u8>>>,
    case: Letters,
    shortest: usize,
    longest: usize,
    /// For each hash, how far the window can move.
    moves: Box<[u8; 1 << 16]>,
    /// The hash of each needle at the window's end, and the needle; sorted.
    ends: Vec<(u16, usize)>,
    /// By first byte, the needles that begin with it.
    beginnings: Vec<Vec<usize>>,
}

/// Whether `A` and `a` are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Letters {
    Exact,
    AnyCase,
}

/// One needle in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) range: Range<usize>,
    /// Which, in the order in which they were given.
    pub(crate) needle: usize,
}

// === impl Search ===

impl Search {
    /// Looks for `needles`. Empty ones are never found.
    pub(crate) fn new(needles: Vec<Zeroizing<Vec<u8>>>, case: Letters) -> Self {
        let lengths = || needles.iter().map(|needle| needle.len()).filter(|length| *length > 0);
        let (shortest, longest) = (lengths().min().unwrap_or(0), lengths().max().unwrap_or(0));
        let mut made = Self {
            case,
            shortest,
            longest,
            moves: Box::new([u8::try_from(furthest(shortest)).unwrap_or(u8::MAX); 1 << 16]),
            ends: Vec::new(),
            beginnings: vec![Vec::new(); 256],
            needles,
        };
        made.fill();
        made
    }

    /// The length of the longest needle, in bytes; 0 where there is none.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.longest == 0
    }

    /// The first find at or after `from`.
    pub(crate) fn find(&self, text: &[u8], from: usize) -> Option<Found> {
        if self.is_empty() {
            return None;
        }
        match (block(self.shortest), self.case) {
            (3, Letters::Exact) => self.scan(text, from, |[a, b, c]| hash([a, b, c])),
            (3, Letters::AnyCase) => self.scan(text, from, |bytes: [u8; 3]| hash(bytes.map(folded))),
            (2, Letters::Exact) => self.scan(text, from, |[a, b]| hash([a, b, 0])),
            (2, Letters::AnyCase) => self.scan(text, from, |[a, b]| hash([folded(a), folded(b), 0])),
            (_, case) => {
                self.scan(text, from, |[a]| hash([if case == Letters::Exact { a } else { folded(a) }, 0, 0]))
            }
        }
    }

    /// The loop itself, made once for each length of block so that nothing in it is decided again.
    #[inline]
    fn scan<const BLOCK: usize>(
        &self,
        text: &[u8],
        from: usize,
        hash: impl Fn([u8; BLOCK]) -> u16,
    ) -> Option<Found> {
        // Where the last block of the window begins, and how far before it the window does.
        let before = self.shortest.checked_sub(BLOCK)?;
        let mut at = from.checked_add(before)?;
        while let Some(bytes) = text.get(at..).and_then(|rest| rest.first_chunk::<BLOCK>()) {
            let hash = hash(*bytes);
            match self.moves.get(usize::from(hash)).copied().unwrap_or(0) {
                0 => {
                    if let Some(found) = self.at(text, at - before, hash) {
                        return Some(found);
                    }
                    at += 1;
                }
                far => at += usize::from(far),
            }
        }
        None
    }

    /// The first place from `from` on whose rest is the beginning of a needle, and not all of it.
    pub(crate) fn beginning(&self, text: &[u8], from: usize) -> usize {
        let start = text.len().saturating_sub(self.longest.saturating_sub(1)).max(from);
        let mut rest = text.get(start..).unwrap_or_default();
        while let Some((first, more)) = rest.split_first() {
            let candidates =
                self.beginnings.get(usize::from(self.fold(*first))).map_or(&[][..], Vec::as_slice);
            let begins = candidates.iter().filter_map(|index| self.needles.get(*index)).any(|needle| {
                needle.len() > rest.len()
                    && needle.get(..rest.len()).is_some_and(|part| self.same(part, rest))
            });
            if begins {
                break;
            }
            rest = more;
        }
        text.len() - rest.len()
    }

    /// The longest needle at `start`, of those whose window ends with `hash`.
    fn at(&self, text: &[u8], start: usize, hash: u16) -> Option<Found> {
        let first = self.ends.partition_point(|(other, _)| *other < hash);
        let alike = self.ends.get(first..)?.iter().take_while(|(other, _)| *other == hash);
        let matches = alike.filter_map(|(_, index)| {
            let end = start.checked_add(self.needles.get(*index)?.len())?;
            let there = self.same(text.get(start..end)?, self.needles.get(*index)?);
            there.then_some(Found { range: start..end, needle: *index })
        });
        matches.max_by_key(|found| found.range.end)
    }

    fn fill(&mut self) {
        let (block, far) = (block(self.shortest), furthest(self.shortest));
        let mut moves = std::mem::replace(&mut self.moves, Box::new([0; 1 << 16]));
        for (index, needle) in self.needles.iter().enumerate() {
            let Some(window) = needle.get(..self.shortest).filter(|window| !window.is_empty()) else {
                continue;
            };
            if let Some(first) = window.first()
                && let Some(of_byte) = self.beginnings.get_mut(usize::from(match self.case {
                    Letters::Exact => *first,
                    Letters::AnyCase => first.to_ascii_lowercase(),
                }))
            {
                of_byte.push(index);
            }
            for (place, bytes) in window.windows(block).enumerate() {
                let hash = self.hash(bytes);
                let rest = u8::try_from(far - 1 - place).unwrap_or(u8::MAX);
                if let Some(entry) = moves.get_mut(usize::from(hash)) {
                    *entry = rest.min(*entry);
                }
                if rest == 0 {
                    self.ends.push((hash, index));
                }
            }
        }
        self.moves = moves;
        self.ends.sort_unstable();
    }

    fn fold(&self, byte: u8) -> u8 {
        match self.case {
            Letters::Exact => byte,
            Letters::AnyCase => byte.to_ascii_lowercase(),
        }
    }

    fn same(&self, one: &[u8], other: &[u8]) -> bool {
        match self.case {
            Letters::Exact => one == other,
            Letters::AnyCase => one.eq_ignore_ascii_case(other),
        }
    }

    fn hash(&self, bytes: &[u8]) -> u16 {
        let byte = |place: usize| bytes.get(place).map_or(0, |byte| self.fold(*byte));
        hash([byte(0), byte(1), byte(2)])
    }
}

fn hash([a, b, c]: [u8; 3]) -> u16 {
    let [_, _, low, high] = u32::from_le_bytes([a, b, c, 0]).wrapping_mul(0x9e37_79b1).to_le_bytes();
    u16::from_le_bytes([low, high])
}

const fn folded(byte: u8) -> u8 {
    byte.to_ascii_lowercase()
}

/// How many bytes are hashed.
fn block(shortest: usize) -> usize {
    if shortest >= LONG_NEEDLE { 3 } else { shortest.min(2) }
}

/// How far the window moves when its last block stands in no needle.
fn furthest(shortest: usize) -> usize {
    shortest.saturating_sub(block(shortest)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same, said as simply as it can be.
    fn simple(needles: &[Vec<u8>], text: &[u8], from: usize, case: Letters) -> Option<Found> {
        (from..text.len()).find_map(|start| {
            let rest = &text[start..];
            let matches = needles.iter().enumerate().filter(|(_, needle)| {
                let there = rest.get(..needle.len());
                !needle.is_empty()
                    && there.is_some_and(|there| match case {
                        Letters::Exact => there == needle.as_slice(),
                        Letters::AnyCase => there.eq_ignore_ascii_case(needle),
                    })
            });
            let longest = matches.max_by_key(|(index, needle)| (needle.len(), *index))?;
            Some(Found { range: start..start + longest.1.len(), needle: longest.0 })
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn finds_what_a_simple_search_finds(
            needles in proptest::collection::vec(proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'B'), Just(b'b')], 0..9), 0..6),
            text in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'A'), Just(b'b')], 0..60),
            from in 0_usize..70,
            fold in any::<bool>(),
        ) {
            let case = if fold { Letters::AnyCase } else { Letters::Exact };
            let search = Search::new(needles.iter().cloned().map(Zeroizing::new).collect(), case);
            let (mine, expected) = (search.find(&text, from), simple(&needles, &text, from, case));
            prop_assert_eq!(mine.map(|found| found.range), expected.map(|found| found.range));
            let place = search.beginning(&text, from.min(text.len()));
            let begins = |at: usize| needles.iter().any(|needle| {
                needle.len() > text.len() - at && at < text.len() && match case {
                    Letters::Exact => needle.starts_with(&text[at..]),
                    Letters::AnyCase => needle[..text.len() - at].eq_ignore_ascii_case(&text[at..]),
                }
            });
            let first = (from.min(text.len())..text.len()).find(|at| begins(*at)).unwrap_or(text.len());
            prop_assert_eq!(place, first);
        }

        #[test]
        fn finds_long_needles_in_noise(
            needles in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 3..400), 1..5),
            noise in proptest::collection::vec(any::<u8>(), 0..300),
            which in any::<proptest::sample::Index>(),
            place in any::<proptest::sample::Index>(),
        ) {
            let search = Search::new(needles.iter().cloned().map(Zeroizing::new).collect(), Letters::Exact);
            let mut text = noise.clone();
            let at = place.index(noise.len() + 1);
            text.splice(at..at, which.get(&needles).iter().copied());
            let found = search.find(&text, 0).map(|found| found.range);
            prop_assert_eq!(found, simple(&needles, &text, 0, Letters::Exact).map(|found| found.range));
        }
    }
}
