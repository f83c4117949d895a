//! Digests, and the three ways in which a line is tied to what came before it.

use fumehood_model::id::TaskId;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// Hexadecimal digits of a digest.
pub(crate) const HEX_LENGTH: usize = 64;
/// What the first line of an index follows. The number is the version of the format.
const INDEX_LABEL: &[u8] = b"fumehood record index 1\n";
/// Keeps the first link of a task file apart from every other digest. The number is the version.
const TASK_LABEL: &[u8] = b"fumehood record task 1\n";

/// A SHA-256 digest; as text, 64 lower-case hexadecimal digits and nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

/// What is wrong with a text that should be a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 characters of 0-9 and a-f, as `fumehood audit verify` prints them")]
pub struct BadDigest;

/// How far a chain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// Lines so far, which is the number that the next line bears.
    pub lines: u64,
    /// The digest of the last of them.
    pub hash: Digest,
}

// === impl Digest ===

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads a digest back. One digest has one spelling.
    pub fn parse(text: &str) -> Result<Self, BadDigest> {
        Self::parse_bytes(text.as_bytes()).ok_or(BadDigest)
    }

    pub(crate) fn parse_bytes(text: &[u8]) -> Option<Self> {
        let text: &[u8; HEX_LENGTH] = text.try_into().ok()?;
        let (pairs, _) = text.as_chunks::<2>();
        let mut digest = [0; 32];
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = (nibble(*high)? << 4) | nibble(*low)?;
        }
        Some(Self(digest))
    }

    /// The digest of a line whose bytes before `,"hash":"` are `body`.
    pub(crate) fn chain(previous: &Self, body: &[u8]) -> Self {
        Self(Sha256::new().chain_update(previous.0).chain_update(body).finalize().into())
    }

    /// The digits, without allocating.
    pub(crate) fn hex(&self) -> [u8; HEX_LENGTH] {
        let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + (nibble - 10) };
        let mut text = [0; HEX_LENGTH];
        let (pairs, _) = text.as_chunks_mut::<2>();
        for ([high, low], byte) in pairs.iter_mut().zip(self.0) {
            *high = digit(byte >> 4);
            *low = digit(byte & 15);
        }
        text
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Digest {
    type Error = BadDigest;

    fn try_from(text: String) -> Result<Self, BadDigest> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

// === impl Head ===

impl Head {
    /// Where an index starts.
    pub(crate) fn of_index() -> Self {
        Self { lines: 0, hash: Digest::of(INDEX_LABEL) }
    }

    /// Where a task's file starts: bound to its id and to the index line that opened it, so that no
    /// file can stand in for another.
    pub(crate) fn of_task(task: &TaskId, opening: &Digest) -> Self {
        let hash = Sha256::new()
            .chain_update(TASK_LABEL)
            .chain_update(task.as_str())
            .chain_update(opening.0)
            .finalize()
            .into();
        Self { lines: 0, hash: Digest(hash) }
    }

    /// The head after one more line.
    pub(crate) fn after(self, hash: Digest) -> Self {
        Self { lines: self.lines.saturating_add(1), hash }
    }
}

pub(crate) fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_digest_has_one_spelling() {
        let digest = Digest::of(b"abc");
        let text = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), text);
        assert_eq!(digest.hex(), text.as_bytes());
        assert_eq!(Digest::parse(text), Ok(digest));
        for wrong in [&text.to_uppercase(), "ba7816bf", "", &format!("{text}0"), &text.replace('b', "g")] {
            assert_eq!(Digest::parse(wrong), Err(BadDigest), "{wrong}");
        }
    }

    #[test]
    fn a_task_file_starts_at_its_own_place() {
        let (one, two) = (TaskId::new(1, 1), TaskId::new(1, 2));
        let (here, there) = (Digest::of(b"here"), Digest::of(b"there"));
        assert_ne!(Head::of_task(&one, &here), Head::of_task(&two, &here));
        assert_ne!(Head::of_task(&one, &here), Head::of_task(&one, &there));
    }
}
