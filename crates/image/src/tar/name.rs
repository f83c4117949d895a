//! Names in an archive: bytes, plain components, beneath the image or refused.

use crate::fault::{Code, Fault, text};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The longest name that is looked up, and the longest part of one: the kernel's own limits.
const NAME_BYTES: usize = 4095;
const PART_BYTES: usize = 255;
/// Folders in folders. Deeper ones could not be removed by tools that walk them.
const DEPTH: usize = 256;

/// A name with plain components joined by `/`, without a first or last `/`. Empty: the image's root itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Vec<u8>);

// === impl Name ===

impl Name {
    /// Takes a name of an archive. A `/` at its beginning, `.` and doubled `/` mean nothing and are dropped, as
    /// all readers do; `..` and NUL are refused, not resolved.
    pub fn parse(raw: &[u8]) -> Result<Self, Fault> {
        if raw.contains(&0) {
            return Err(Fault::new(Code::Escapes, format!("the name `{}` holds a NUL", text(raw))));
        }
        let mut parts: Vec<&[u8]> = Vec::new();
        for part in raw.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    let why = format!("the name `{}` leads out of the image", text(raw));
                    return Err(Fault::new(Code::Escapes, why));
                }
                part if part.len() > PART_BYTES => {
                    return Err(Fault::new(Code::TooLarge, format!("the name `{}` is too long", text(raw))));
                }
                part => parts.push(part),
            }
        }
        let joined = parts.join(&b'/');
        if joined.len() > NAME_BYTES || parts.len() > DEPTH {
            return Err(Fault::new(Code::TooLarge, format!("the name `{}` is too long", text(raw))));
        }
        Ok(Self(joined))
    }

    /// The folder and the last part; `None` for the root.
    pub fn split(&self) -> Option<(Self, &OsStr)> {
        let (folder, last) = match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => (self.0.get(..at)?, self.0.get(at + 1..)?),
            None => (&[][..], self.0.as_slice()),
        };
        (!last.is_empty()).then(|| (Self(folder.to_vec()), OsStr::from_bytes(last)))
    }

    /// The folders above it, from the highest on, without the root.
    pub fn above(&self) -> impl Iterator<Item = Self> {
        let ends = self.0.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        ends.filter_map(|(at, _)| self.0.get(..at).map(|above| Self(above.to_vec())))
    }

    /// The same beneath this one.
    #[must_use]
    pub fn join(&self, last: &OsStr) -> Self {
        let mut joined = self.0.clone();
        if !joined.is_empty() {
            joined.push(b'/');
        }
        joined.extend_from_slice(last.as_bytes());
        Self(joined)
    }

    /// Each component.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|part| !part.is_empty())
    }

    /// Whether it is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// As the kernel takes it.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As it may be shown.
    pub fn shown(&self) -> String {
        text(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_plain_or_refused() {
        for (raw, plain) in [
            ("a/b", "a/b"),
            ("/a//b/", "a/b"),
            ("./a/./b", "a/b"),
            ("./", ""),
            ("a/...", "a/..."),
            ("\\..\\x", "\\..\\x"),
        ] {
            assert_eq!(Name::parse(raw.as_bytes()).unwrap().bytes(), plain.as_bytes(), "{raw}");
        }
        for raw in ["..", "a/../b", "/..", "a/..", "a\0b"] {
            assert_eq!(Name::parse(raw.as_bytes()).unwrap_err().code, Code::Escapes, "{raw:?}");
        }
        assert!(Name::parse(&[b'a'; 256]).is_err());
        assert!(Name::parse("a/".repeat(257).as_bytes()).is_err());
    }

    #[test]
    fn a_name_is_taken_apart() {
        let name = Name::parse(b"a/b/c").unwrap();
        let (folder, last) = name.split().unwrap();
        assert_eq!((folder.bytes(), last), (&b"a/b"[..], OsStr::new("c")));
        let above: Vec<_> = name.above().map(|above| above.shown()).collect();
        assert_eq!(above, ["a", "a/b"]);
        assert!(Name::default().split().is_none());
        assert_eq!(folder.join(last), name);
    }
}
