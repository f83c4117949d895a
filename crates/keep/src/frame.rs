//! Frames: one byte of kind, four of length (big-endian), then so many bytes.
//!
//! **Invariant:** parsing is total, and no frame is longer than [`MOST_BYTES`].

/// The longest payload of one frame.
pub const MOST_BYTES: usize = 1 << 20;
/// The bytes before a payload.
pub const HEADER_BYTES: usize = 5;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An [`crate::wire::Ask`] or a [`crate::wire::Said`], as JSON.
    Json,
    /// Output of a command.
    Stdout,
    Stderr,
    /// Output of a command's terminal.
    Terminal,
    /// Input for a command.
    Input,
    /// No more input: its end of file.
    InputEnd,
    /// Content of a file.
    Data,
    /// No more of it.
    DataEnd,
}

/// Not a frame of this protocol: nothing after it can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    #[error("a frame of the unknown kind {0}")]
    Kind(u8),
    #[error("a frame of {0} bytes, of {MOST_BYTES} at most")]
    Length(u32),
}

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: Kind,
    /// At most [`MOST_BYTES`].
    pub length: usize,
}

// === impl Kind ===

impl Kind {
    const ALL: [(Self, u8); 8] = [
        (Self::Json, b'J'),
        (Self::Stdout, b'O'),
        (Self::Stderr, b'E'),
        (Self::Terminal, b'T'),
        (Self::Input, b'I'),
        (Self::InputEnd, b'C'),
        (Self::Data, b'D'),
        (Self::DataEnd, b'Z'),
    ];

    const fn letter(self) -> u8 {
        match self {
            Self::Json => b'J',
            Self::Stdout => b'O',
            Self::Stderr => b'E',
            Self::Terminal => b'T',
            Self::Input => b'I',
            Self::InputEnd => b'C',
            Self::Data => b'D',
            Self::DataEnd => b'Z',
        }
    }
}

// === impl Header ===

impl Header {
    /// Reads the fixed part.
    ///
    /// # Errors
    /// It is not one.
    pub fn parse(bytes: [u8; HEADER_BYTES]) -> Result<Self, Flaw> {
        let [letter, a, b, c, d] = bytes;
        let kind = Kind::ALL.iter().find(|(_, known)| *known == letter).map(|(kind, _)| *kind);
        let kind = kind.ok_or(Flaw::Kind(letter))?;
        let length = u32::from_be_bytes([a, b, c, d]);
        match usize::try_from(length) {
            Ok(length) if length <= MOST_BYTES => Ok(Self { kind, length }),
            Ok(_) | Err(_) => Err(Flaw::Length(length)),
        }
    }

    /// The fixed part of a frame of `length` bytes, which is at most [`MOST_BYTES`].
    #[must_use]
    pub fn print(kind: Kind, length: usize) -> [u8; HEADER_BYTES] {
        // One that is longer is printed as one that no parser takes.
        let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
        [kind.letter(), a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_read_is_printed_again(bytes: [u8; HEADER_BYTES]) {
            if let Ok(header) = Header::parse(bytes) {
                prop_assert_eq!(Header::print(header.kind, header.length), bytes);
            }
        }
    }

    #[test]
    fn every_kind_has_a_letter_of_its_own() {
        for (kind, letter) in Kind::ALL {
            assert_eq!(kind.letter(), letter);
            assert_eq!(Header::parse(Header::print(kind, 3)), Ok(Header { kind, length: 3 }));
        }
        assert_eq!(Header::parse([b'?', 0, 0, 0, 0]), Err(Flaw::Kind(b'?')));
        assert!(matches!(Header::parse([b'J', 0xff, 0, 0, 0]), Err(Flaw::Length(_))));
    }
}
