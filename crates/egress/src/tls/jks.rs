//! Java's trust store in its first format: entries, and a digest over them and a known password.
//!
//! The digest protects nothing; its password is the same everywhere. Java reads this format in place
//! of the newer one, whatever the file's name says.

use aws_lc_rs::digest;

const MAGIC: [u8; 4] = [0xfe, 0xed, 0xfe, 0xed];
const VERSION: u32 = 2;
const TRUSTED_CERTIFICATE: u32 = 2;
const DIGEST_BYTES: usize = 20;
/// Where the number of entries stands.
const COUNT: std::ops::Range<usize> = 8..12;

/// The password that every Java has, in its digest's form, and the words that Java adds to it.
const PASSWORD: &str = "changeit";
const SALT: &[u8] = b"Mighty Aphrodite";

/// Why a trust store can not be added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreFlaw {
    #[error("the trust store is in another format (PKCS #12)")]
    OtherFormat,
    #[error("the trust store is damaged")]
    Damaged,
    #[error("the trust store has another password than `changeit`")]
    OtherPassword,
}

/// One certificate to believe, under a name.
#[derive(Clone, Copy, Debug)]
pub struct Trusted<'a> {
    /// ASCII, lower case.
    pub alias: &'a str,
    pub der: &'a [u8],
}

/// The store with one more certificate in it, in the same memory: a store is long.
///
/// # Errors
/// Where it is no store of this format, or its digest is not the one of its content.
pub fn extend(mut store: Vec<u8>, trusted: Trusted<'_>, unix_millis: u64) -> Result<Vec<u8>, StoreFlaw> {
    let count = checked(&store)?.checked_add(1).ok_or(StoreFlaw::Damaged)?;
    store.truncate(store.len().saturating_sub(DIGEST_BYTES));
    store.get_mut(COUNT).ok_or(StoreFlaw::Damaged)?.copy_from_slice(&count.to_be_bytes());
    entry(&mut store, trusted, unix_millis).ok_or(StoreFlaw::Damaged)?;
    seal(&mut store);
    Ok(store)
}

/// How many entries a store has.
fn checked(store: &[u8]) -> Result<u32, StoreFlaw> {
    let (magic, rest) = store.split_first_chunk::<4>().ok_or(StoreFlaw::Damaged)?;
    if *magic != MAGIC {
        return Err(StoreFlaw::OtherFormat);
    }
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(StoreFlaw::Damaged)?;
    if u32::from_be_bytes(*version) != VERSION {
        return Err(StoreFlaw::OtherFormat);
    }
    let (count, rest) = rest.split_first_chunk::<4>().ok_or(StoreFlaw::Damaged)?;
    if rest.len() < DIGEST_BYTES {
        return Err(StoreFlaw::Damaged);
    }
    let (content, own) = store.split_last_chunk::<DIGEST_BYTES>().ok_or(StoreFlaw::Damaged)?;
    if sealed(content).as_ref() != own {
        return Err(StoreFlaw::OtherPassword);
    }
    Ok(u32::from_be_bytes(*count))
}

/// A store of these certificates. Those that no store can hold are left out.
pub fn store<'a>(certificates: impl IntoIterator<Item = Trusted<'a>>, unix_millis: u64) -> Vec<u8> {
    let mut entries = Vec::new();
    let mut count = 0;
    for trusted in certificates {
        if entry(&mut entries, trusted, unix_millis).is_some() {
            count += 1;
        }
    }
    let mut out = head(count, entries.len() + 64);
    out.extend_from_slice(&entries);
    seal(&mut out);
    out
}

fn head(count: u32, capacity: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(capacity);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_be_bytes());
    out.extend_from_slice(&count.to_be_bytes());
    out
}

/// Appends an entry; nothing where a length does not fit.
fn entry(out: &mut Vec<u8>, trusted: Trusted<'_>, unix_millis: u64) -> Option<()> {
    const KIND: &[u8] = b"X.509";
    let alias = u16::try_from(trusted.alias.len()).ok()?;
    let kind = u16::try_from(KIND.len()).ok()?;
    let length = u32::try_from(trusted.der.len()).ok()?;
    out.extend_from_slice(&TRUSTED_CERTIFICATE.to_be_bytes());
    out.extend_from_slice(&alias.to_be_bytes());
    out.extend_from_slice(trusted.alias.as_bytes());
    out.extend_from_slice(&unix_millis.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(KIND);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(trusted.der);
    Some(())
}

fn seal(out: &mut Vec<u8>) {
    let digest = sealed(out);
    out.extend_from_slice(digest.as_ref());
}

fn sealed(content: &[u8]) -> digest::Digest {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    for unit in PASSWORD.encode_utf16() {
        context.update(&unit.to_be_bytes());
    }
    context.update(SALT);
    context.update(content);
    context.finish()
}
