//! Signed heads: an index that was written anew, digests and all, is told from the true one by a key that whoever did
//! so does not have, or by a head that was kept elsewhere.
//!
//! The key is one a user: Ed25519, made at first use, in a file that its owner alone may read. A signature stands in
//! the index as a line of its own, and vouches for the number of lines before it, the digest of the last of them,
//! and the time that it bears.

use crate::digest::{Digest, Head};
use crate::error::RecordError;
use crate::index::{Entry, Index};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// What is signed begins so. The number is the version.
const LABEL: &[u8] = b"fumehood record head 1\n";
/// Far above what a private key takes.
const KEY_LIMIT_BYTES: u64 = 4096;
/// A name for a key that is being made; the process's number keeps two apart.
const NEW: &str = "record.key.new";

/// The public half of a key, as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PublicKey([u8; 32]);

/// An Ed25519 signature, as 128 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signature([u8; 64]);

/// A head with its signature: what is kept where whoever could change the record can not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedHead {
    pub lines: u64,
    pub head: Digest,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub key: PublicKey,
    pub signature: Signature,
}

/// What is wrong with a text that should be a key or a signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not as many characters of 0-9 and a-f as it should be")]
pub struct BadHex;

/// Why there is no key to sign with.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("read the key `{}`", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("make the key `{}`", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("use the key `{}`, which others than its owner may read or write, or which is no plain file", path.display())]
    Open { path: PathBuf },
    #[error("use the key `{}`, which is no Ed25519 key", path.display())]
    Damaged { path: PathBuf },
}

/// Why a head was not signed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// A key to sign with.
pub struct SigningKey(Ed25519KeyPair);

// === impl SigningKey ===

impl SigningKey {
    /// Reads the key at `path`, and makes it where there is none.
    pub fn open_or_make(path: &Path) -> Result<Self, KeyError> {
        match Self::open(path) {
            Err(KeyError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
                make(path).map_err(|source| KeyError::Make { path: path.to_owned(), source })?;
                Self::open(path)
            }
            opened => opened,
        }
    }

    /// Reads the key at `path`.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let unread = |source| KeyError::Read { path: path.to_owned(), source };
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(unread)?;
        let found = file.metadata().map_err(unread)?;
        if !found.is_file() || found.mode() & 0o077 != 0 {
            return Err(KeyError::Open { path: path.to_owned() });
        }
        let mut words = Vec::new();
        file.take(KEY_LIMIT_BYTES).read_to_end(&mut words).map_err(unread)?;
        let pair = Ed25519KeyPair::from_pkcs8(&words);
        words.fill(0);
        pair.map(Self).map_err(|_| KeyError::Damaged { path: path.to_owned() })
    }

    /// What others know it by.
    pub fn public(&self) -> PublicKey {
        let mut key = [0; 32];
        let known = self.0.public_key().as_ref();
        if known.len() == key.len() {
            key.copy_from_slice(known);
        }
        PublicKey(key)
    }

    /// Vouches for a head.
    pub fn sign(&self, head: &Head, at_ms: u64) -> SignedHead {
        let mut signature = [0; 64];
        let made = self.0.sign(&message(head.lines, &head.hash, at_ms));
        if made.as_ref().len() == signature.len() {
            signature.copy_from_slice(made.as_ref());
        }
        let (key, signature) = (self.public(), Signature(signature));
        SignedHead { lines: head.lines, head: head.hash, at_ms, key, signature }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SigningKey").field(&self.public()).finish()
    }
}

/// Makes a key under another name, and gives it its own unless somebody was faster.
fn make(path: &Path) -> io::Result<()> {
    let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let made = made.map_err(|_| io::Error::other("the kernel gives no random bytes"))?;
    let new = path.with_file_name(format!("{NEW}.{}", std::process::id()));
    let _ = std::fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(made.as_ref()).and_then(|()| file.sync_all());
    let named = written.and_then(|()| match std::fs::hard_link(&new, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    let _ = std::fs::remove_file(&new);
    named?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Where the key of a records folder is: beside it.
pub fn key_path(records: &Path) -> PathBuf {
    records.with_file_name("record.key")
}

/// Signs the index as it is now, unless its last line is a signature by this very key, and says what was signed. The
/// key is made where there is none.
pub fn sign(records: &Path, key: &Path, at_ms: u64) -> Result<SignedHead, SignError> {
    let key = SigningKey::open_or_make(key)?;
    Ok(Index::open(records)?.sign(at_ms, &key)?)
}

fn message(lines: u64, head: &Digest, at_ms: u64) -> Vec<u8> {
    let mut message = LABEL.to_vec();
    message.extend_from_slice(&lines.to_be_bytes());
    message.extend_from_slice(&at_ms.to_be_bytes());
    message.extend_from_slice(&head.hex());
    message
}

// === impl SignedHead ===

impl SignedHead {
    /// Whether the signature is right.
    pub fn is_right(&self) -> bool {
        let key = UnparsedPublicKey::new(&ED25519, self.key.0);
        key.verify(&message(self.lines, &self.head, self.at_ms), &self.signature.0).is_ok()
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry::Signed { key: self.key, signature: self.signature }
    }
}

// === impl PublicKey ===

impl PublicKey {
    /// Reads one back.
    pub fn parse(text: &str) -> Result<Self, BadHex> {
        unhex(text).map(Self).ok_or(BadHex)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl TryFrom<String> for PublicKey {
    type Error = BadHex;

    fn try_from(text: String) -> Result<Self, BadHex> {
        Self::parse(&text)
    }
}

impl From<PublicKey> for String {
    fn from(key: PublicKey) -> Self {
        key.to_string()
    }
}

// === impl Signature ===

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for Signature {
    type Error = BadHex;

    fn try_from(text: String) -> Result<Self, BadHex> {
        unhex(&text).map(Self).ok_or(BadHex)
    }
}

impl From<Signature> for String {
    fn from(signature: Signature) -> Self {
        signature.to_string()
    }
}

/// Lower-case digits, two a byte, and nothing else.
fn unhex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = (crate::digest::nibble(*high)? << 4) | crate::digest::nibble(*low)?;
    }
    Some(bytes)
}
