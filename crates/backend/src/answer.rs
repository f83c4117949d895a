//! What a piece of work on files answers that a guest does by itself: one source, compiled into who says it inside too.
//!
//! ```text
//! +  entry │ entry … end │ entry, chunks, a chunk of no bytes │ changes …         - error number (4)
//! entry   kind (1) mode (4) uid (4) gid (4) size (8) modified (8 + 4) lengths (2 + 2) path link
//! change  kind (1) length (2) path                        chunk   length (4) bytes
//! ```
//!
//! **Invariant:** parsing is total: any bytes give something, ask for more, or are refused.

/// It works.
pub const OK: u8 = b'+';
/// It does not: an error number follows.
pub const FAILED: u8 = b'-';
/// The end of a list.
pub const END: u8 = b'.';

/// The fixed part of an entry.
pub const PIECE_BYTES: usize = 37;
/// The fixed part of a change.
pub const CHANGE_BYTES: usize = 3;

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    File,
    Folder,
    Link,
    Other,
}

/// One entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    /// Seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    pub path: &'a [u8],
    /// What a link holds.
    pub link: &'a [u8],
}

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Created,
    Written,
    Removed,
    Moved,
    Mode,
}

/// What stands at the front of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front<T> {
    /// That, in so many bytes.
    Whole(T, usize),
    /// More bytes are needed.
    More,
    /// None of ours.
    Garbage,
}

// === impl Piece ===

impl<'a> Piece<'a> {
    /// Reads what is at the front; `None` is the end of a list.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Front<Option<Self>> {
        let kind = match bytes.first() {
            None => return Front::More,
            Some(&END) => return Front::Whole(None, 1),
            Some(b'f') => Kind::File,
            Some(b'd') => Kind::Folder,
            Some(b'l') => Kind::Link,
            Some(b'o') => Kind::Other,
            Some(_) => return Front::Garbage,
        };
        let mut reader = Reader(bytes.get(1..).unwrap_or_default());
        let mut read = || {
            let (mode, uid, gid) = (reader.u32()?, reader.u32()?, reader.u32()?);
            let (size, seconds, nanos) = (reader.u64()?, reader.u64()?.cast_signed(), reader.u32()?);
            let lengths = (usize::from(reader.u16()?), usize::from(reader.u16()?));
            let rest = reader.0;
            let path = rest.get(..lengths.0)?;
            let link = rest.get(lengths.0..lengths.0 + lengths.1)?;
            Some(Self { kind, mode, uid, gid, size, modified: (seconds, nanos), path, link })
        };
        match read() {
            None => Front::More,
            Some(piece) => Front::Whole(Some(piece), PIECE_BYTES + piece.path.len() + piece.link.len()),
        }
    }

    /// Writes it. A path or link that is too long to be told is cut.
    pub fn print(&self, out: &mut impl Extend<u8>) {
        let cut = |text: &'a [u8]| text.get(..text.len().min(usize::from(u16::MAX))).unwrap_or_default();
        let (path, link) = (cut(self.path), cut(self.link));
        let letter = match self.kind {
            Kind::File => b'f',
            Kind::Folder => b'd',
            Kind::Link => b'l',
            Kind::Other => b'o',
        };
        put(out, &[letter]);
        put(out, &self.mode.to_le_bytes());
        put(out, &self.uid.to_le_bytes());
        put(out, &self.gid.to_le_bytes());
        put(out, &self.size.to_le_bytes());
        put(out, &self.modified.0.to_le_bytes());
        put(out, &self.modified.1.to_le_bytes());
        for text in [path, link] {
            put(out, &u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
        }
        put(out, path);
        put(out, link);
    }
}

/// Ends a list.
pub fn end(out: &mut impl Extend<u8>) {
    put(out, &[END]);
}

/// Writes a change.
pub fn changed(change: Change, path: &[u8], out: &mut impl Extend<u8>) {
    let path = path.get(..path.len().min(usize::from(u16::MAX))).unwrap_or_default();
    let letter = match change {
        Change::Created => b'c',
        Change::Written => b'w',
        Change::Removed => b'r',
        Change::Moved => b'm',
        Change::Mode => b'a',
    };
    put(out, &[letter]);
    put(out, &u16::try_from(path.len()).unwrap_or(u16::MAX).to_le_bytes());
    put(out, path);
}

/// Reads the change at the front.
#[must_use]
pub fn change(bytes: &[u8]) -> Front<(Change, &[u8])> {
    let change = match bytes.first() {
        None => return Front::More,
        Some(b'c') => Change::Created,
        Some(b'w') => Change::Written,
        Some(b'r') => Change::Removed,
        Some(b'm') => Change::Moved,
        Some(b'a') => Change::Mode,
        Some(_) => return Front::Garbage,
    };
    let mut reader = Reader(bytes.get(1..).unwrap_or_default());
    let length = reader.u16().map(usize::from);
    match length.and_then(|length| reader.0.get(..length)) {
        None => Front::More,
        Some(path) => Front::Whole((change, path), CHANGE_BYTES + path.len()),
    }
}

fn put(out: &mut impl Extend<u8>, bytes: &[u8]) {
    out.extend(bytes.iter().copied());
}

/// Takes little-endian numbers off the front.
struct Reader<'a>(&'a [u8]);

// === impl Reader ===

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}
