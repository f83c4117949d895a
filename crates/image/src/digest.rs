//! SHA-256 digests, and readers that hold content to one.

use crate::fault::{Code, Fault};
use fumehood_model::image::is_digest;
use fumehood_model::text::shown;
use sha2::{Digest as _, Sha256};
use std::fmt;
use std::io::{self, Read};

/// What content is called: `sha256:HEX`. Other algorithms are refused where they are read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

/// A reader that hashes what passes, and refuses to pass more than was announced.
#[derive(Debug)]
pub(crate) struct Verified<R> {
    inner: R,
    hash: Sha256,
    passed_bytes: u64,
    most_bytes: u64,
}

// === impl Digest ===

impl Digest {
    /// Reads `sha256:HEX`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if is_digest(text) {
            return Ok(Self(text.to_owned()));
        }
        let why = format!("`{}` is no SHA-256 digest", shown(text));
        let known = text.split_once(':').is_some_and(|(algorithm, _)| algorithm != "sha256");
        Err(Fault::new(if known { Code::Unsupported } else { Code::BadManifest }, why))
    }

    /// Of bytes at hand.
    pub fn of(bytes: &[u8]) -> Self {
        Self::from_hash(Sha256::digest(bytes).as_slice())
    }

    pub(crate) fn from_hash(hash: &[u8]) -> Self {
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("sha256:{hex}"))
    }

    /// The digits alone: safe as a file name.
    pub fn hex(&self) -> &str {
        self.0.strip_prefix("sha256:").unwrap_or_default()
    }

    /// The whole.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Verified ===

impl<R: Read> Verified<R> {
    pub(crate) fn new(inner: R, most_bytes: u64) -> Self {
        Self { inner, hash: Sha256::new(), passed_bytes: 0, most_bytes }
    }

    /// Reads what is left, and answers with digest and length of all that passed.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((Digest::from_hash(self.hash.finalize().as_slice()), self.passed_bytes))
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.hash.update(buffer.get(..read).unwrap_or_default());
        self.passed_bytes = self.passed_bytes.saturating_add(u64::try_from(read).unwrap_or(u64::MAX));
        if self.passed_bytes > self.most_bytes {
            let why = format!("there are more than the {} bytes that were announced", self.most_bytes);
            return Err(Fault::new(Code::BadSize, why).into());
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_held_to_its_length_and_digest() {
        let (digest, bytes) = Verified::new(&b"abc"[..], 3).finish().unwrap();
        assert_eq!((digest, bytes), (Digest::of(b"abc"), 3));
        let error = Verified::new(&b"abcd"[..], 3).finish().unwrap_err();
        assert!(error.to_string().contains("more than the 3 bytes"), "{error}");
    }

    #[test]
    fn other_algorithms_are_told_from_nonsense() {
        assert_eq!(Digest::parse("sha512:00").unwrap_err().code, Code::Unsupported);
        assert_eq!(Digest::parse("sha256:00").unwrap_err().code, Code::BadManifest);
        assert_eq!(Digest::parse(Digest::of(b"").as_str()).unwrap().hex().len(), 64);
    }
}
