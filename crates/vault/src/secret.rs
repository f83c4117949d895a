//! A value that never enters a sandbox.
//!
//! Owns the bytes, wipes them when dropped, and shows them to nobody who formats it. What the value may
//! look like is decided here, once: everything that later puts it into a head or a body can rely on
//! there being no line break, NUL or other control byte in it.

use std::fmt;
use zeroize::Zeroizing;

/// Longer values are refused: no server takes a head that large.
pub const SECRET_LIMIT_BYTES: usize = 64 * 1024;
/// Shorter values are refused: one of three characters can not be masked in a response without
/// damage to everything else in it.
pub const SECRET_LEAST_BYTES: usize = 4;
/// The longest name of a secret, in bytes.
const NAME_LIMIT_BYTES: usize = 128;

/// What a secret is called: in rules, in the record, and as the variable that holds its placeholder.
///
/// A letter or `_`, then letters, digits and `_`; 128 bytes at most.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SecretName(String);

/// A text that is no name of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret's name is a letter or `_`, then letters, digits, `_`, as in `GITHUB_TOKEN`; at most 128")]
pub struct BadSecretName;

/// The value of a credential, and until when it is good.
///
/// Not `Clone`, not `Serialize`, not comparable; `Debug` shows the name and two dots.
pub struct Secret {
    name: SecretName,
    value: Zeroizing<Vec<u8>>,
    expires_unix_millis: Option<u64>,
}

/// Why a value can not be a secret. No variant holds any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Nothing there.
    #[error("the value is empty")]
    Empty,
    /// Fewer bytes than can be masked.
    #[error("the value has {bytes} bytes, which is too few to be masked in a response")]
    TooShort {
        /// How many there are.
        bytes: usize,
    },
    /// More bytes than a head can carry.
    #[error("the value has {bytes} bytes, of {SECRET_LIMIT_BYTES}")]
    TooLong {
        /// How many there are.
        bytes: usize,
    },
    /// A CR or LF: it would end the header that it is put into and begin another.
    #[error("the value has a line break at byte {at}, which would begin another header")]
    LineBreak {
        /// Where, from 0.
        at: usize,
    },
    /// A NUL, which many programs take for the end.
    #[error("the value has a NUL at byte {at}")]
    Nul {
        /// Where, from 0.
        at: usize,
    },
    /// Another control byte: no header can carry it.
    #[error("the value has the control byte 0x{byte:02x} at byte {at}, which no header can carry")]
    Control {
        /// Which.
        byte: u8,
        /// Where, from 0.
        at: usize,
    },
}

// === impl SecretName ===

impl SecretName {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<Self, BadSecretName> {
        let begins = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        let goes_on = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if begins && goes_on && text.len() <= NAME_LIMIT_BYTES {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadSecretName)
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Secret ===

impl Secret {
    /// Takes over a value. A refused one is wiped as well.
    ///
    /// `expires_unix_millis` is the first millisecond at which it is no longer used; `None` for a
    /// value without an end.
    pub fn new(
        name: SecretName,
        value: Zeroizing<Vec<u8>>,
        expires_unix_millis: Option<u64>,
    ) -> Result<Self, SecretError> {
        check(&value)?;
        Ok(Self { name, value, expires_unix_millis })
    }

    /// What it is called.
    pub fn name(&self) -> &SecretName {
        &self.name
    }

    /// Until when it is good: milliseconds since 1970, the first at which it is not.
    pub fn expires_unix_millis(&self) -> Option<u64> {
        self.expires_unix_millis
    }

    /// Whether it may still be used at `now_unix_millis`.
    pub fn is_good_at(&self, now_unix_millis: u64) -> bool {
        self.expires_unix_millis.is_none_or(|end| now_unix_millis < end)
    }

    /// The bytes themselves. For the one who puts them into a request, and for the way from the keeper
    /// to the gate; nothing that is printed, recorded or sent inside may be made from them.
    pub fn expose(&self) -> &[u8] {
        &self.value
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({}, ..)", self.name)
    }
}

impl SecretError {
    /// What the operator can do.
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Empty => "check that the variable, file or command gives the value",
            Self::TooShort { .. } => "use a credential of 4 bytes or more",
            Self::TooLong { .. } => "give the token itself, not the file that it came in",
            Self::LineBreak { .. } => {
                "give the token alone on one line; a private key in PEM form can not be put into a request"
            }
            Self::Nul { .. } | Self::Control { .. } => {
                "give the value as text; binary keys are sent in base64"
            }
        }
    }
}

fn check(value: &[u8]) -> Result<(), SecretError> {
    let bytes = value.len();
    if bytes == 0 {
        return Err(SecretError::Empty);
    }
    if bytes > SECRET_LIMIT_BYTES {
        return Err(SecretError::TooLong { bytes });
    }
    // The control byte is named before the length: a lone line break says more than "too short".
    if let Some((at, byte)) = value.iter().copied().enumerate().find(|(_, byte)| byte.is_ascii_control()) {
        return Err(match byte {
            b'\r' | b'\n' => SecretError::LineBreak { at },
            0 => SecretError::Nul { at },
            _ => SecretError::Control { byte, at },
        });
    }
    if bytes < SECRET_LEAST_BYTES {
        return Err(SecretError::TooShort { bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(value: &[u8]) -> Result<Secret, SecretError> {
        let name = SecretName::parse("TOKEN").expect("a name");
        Secret::new(name, Zeroizing::new(value.to_vec()), Some(1_000))
    }

    #[test]
    fn each_rule_is_named() {
        let long = vec![b'x'; SECRET_LIMIT_BYTES + 1];
        let cases: [(&[u8], SecretError); 8] = [
            (b"", SecretError::Empty),
            (b"abc", SecretError::TooShort { bytes: 3 }),
            (&long, SecretError::TooLong { bytes: SECRET_LIMIT_BYTES + 1 }),
            (b"abcd\r", SecretError::LineBreak { at: 4 }),
            (b"ab\ncd", SecretError::LineBreak { at: 2 }),
            (b"abcd\0", SecretError::Nul { at: 4 }),
            (b"abcd\x1b[2J", SecretError::Control { byte: 0x1b, at: 4 }),
            (b"abcd\x7f", SecretError::Control { byte: 0x7f, at: 4 }),
        ];
        for (value, expected) in cases {
            let error = made(value).expect_err("it is refused");
            assert_eq!(error, expected);
            assert!(!error.remedy().is_empty());
        }
        assert!(made(&long[1..]).is_ok());
        assert!(made("pässwörd".as_bytes()).is_ok());
    }

    #[test]
    fn nothing_that_formats_it_sees_it() {
        let secret = made(b"hunter2-hunter2").expect("a value");
        assert_eq!(format!("{secret:?}"), "Secret(TOKEN, ..)");
    }

    #[test]
    fn the_end_is_the_first_moment_at_which_it_is_not_good() {
        let secret = made(b"hunter2").expect("a value");
        assert!(secret.is_good_at(999));
        assert!(!secret.is_good_at(1_000));
    }

    #[test]
    fn a_name_is_a_variables_name() {
        for good in ["A", "_x", "GITHUB_TOKEN", "a1"] {
            assert!(SecretName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "1a", "A-B", "A B", "A=B", "é", "A\n", &"A".repeat(129)] {
            assert!(SecretName::parse(bad).is_err(), "{bad}");
        }
    }
}
