//! A strict reader of tar archives: one pass, nothing placed, every doubt an error.
//!
//! Readers of this format disagree about damaged and ambiguous archives, and an attacker lives in the difference.
//! So what could be read in two ways is not read: two long names for one entry, content where none belongs,
//! data after the end, a size that a global header sets.

mod header;
mod name;
mod pax;

pub use name::Name;

use crate::fault::{Code, Fault, text};
use header::{BLOCK_BYTES, Form, Header};
use pax::Pax;
use std::io::{self, ErrorKind, Read};

/// Extended headers and long names are held in memory.
const EXTENSION_BYTES: u64 = 1 << 20;
/// What is read at once of what is behind the end.
const REST_BYTES: usize = 64 << 10;
/// Targets of links: the kernel's own limit.
const TARGET_BYTES: usize = 4095;

/// One thing that an archive holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Name,
    pub what: What,
    /// Bytes of content that follow; zero for all but files.
    pub size: u64,
    /// Seconds and nanoseconds since 1970.
    pub mtime: (u64, u32),
    /// Whether anybody may execute it.
    pub executable: bool,
}

/// What an entry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    File,
    Folder,
    /// A symbolic link that holds these bytes.
    Link(Vec<u8>),
    /// Another name of an entry.
    Same(Name),
    /// A device, or a named pipe.
    Special,
}

/// An archive, as far as it was read.
#[derive(Debug)]
pub struct Archive<R> {
    inner: R,
    /// Of the entry's content, unread.
    left: u64,
    /// Of the entry's last block, behind the content.
    padding: u64,
    position: u64,
    ended: bool,
}

/// What came before an entry and is about it.
#[derive(Debug, Default)]
struct Before {
    pax: Option<Pax>,
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

// === impl Archive ===

impl<R: Read> Archive<R> {
    /// An archive that begins where `inner` is.
    pub fn new(inner: R) -> Self {
        Self { inner, left: 0, padding: 0, position: 0, ended: false }
    }

    /// The next entry; what was not read of the one before is passed over. `None` at the end.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Fault> {
        let mut before = Before::default();
        loop {
            self.pass_over()?;
            let Some(block) = self.block()? else {
                return before.is_empty().then_some(None).ok_or_else(cut);
            };
            let Some(header) = Header::parse(&block)? else {
                if !before.is_empty() {
                    return Err(cut());
                }
                self.end()?;
                return Ok(None);
            };
            let size = header.size()?;
            match header.kind() {
                b'x' => {
                    let pax = Pax::parse(&self.extension(size)?)?;
                    once(&mut before.pax, pax)?;
                }
                b'g' => {
                    if Pax::parse(&self.extension(size)?)?.is_about_an_entry() {
                        return Err(bad("a global header tells of one entry"));
                    }
                }
                b'L' => {
                    let name = self.long(size)?;
                    once(&mut before.name, name)?;
                }
                b'K' => {
                    let link = self.long(size)?;
                    once(&mut before.link, link)?;
                }
                _ => return self.entry(&header, before).map(Some),
            }
        }
    }

    /// Bytes of the archive before what is read next.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The reader, wherever it is.
    pub fn into_inner(self) -> R {
        self.inner
    }

    fn entry(&mut self, header: &Header<'_>, before: Before) -> Result<Entry, Fault> {
        let Before { pax, name, link } = before;
        let pax = pax.unwrap_or_default();
        if pax.sparse || header.kind() == b'S' {
            return Err(Fault::new(Code::Unsupported, "a sparse file is in a layer"));
        }
        let raw_name = either(pax.path, name, || header.name())?;
        let raw_link = either(pax.link, link, || header.link())?;
        let size = pax.size.map_or_else(|| header.size(), Ok)?;
        let folder = header.form == Form::Old && raw_name.ends_with(b"/");
        let name = Name::parse(&raw_name)?;
        let what = match header.kind() {
            b'0' | 0 | b'7' if folder => What::Folder,
            b'0' | 0 | b'7' => What::File,
            b'1' => What::Same(Name::parse(&raw_link)?),
            b'2' => What::Link(target(&name, raw_link)?),
            b'3' | b'4' | b'6' => What::Special,
            b'5' => What::Folder,
            other => {
                let why = format!("`{}` is of an unknown kind, `{}`", name.shown(), text(&[other]));
                return Err(Fault::new(Code::Unsupported, why));
            }
        };
        if what != What::File && size != 0 {
            return Err(bad("an entry that is no file has content").of(&format!("`{}`", name.shown())));
        }
        if name.is_root() && what != What::Folder {
            return Err(Fault::new(Code::Escapes, "an entry that is no folder takes the image's root"));
        }
        self.expect(size);
        let mtime = pax.mtime.map_or_else(|| header.mtime().map(|secs| (secs, 0)), Ok)?;
        Ok(Entry { name, what, size, mtime, executable: header.mode()? & 0o111 != 0 })
    }

    fn expect(&mut self, size: u64) {
        let block = u64::try_from(BLOCK_BYTES).unwrap_or(u64::MAX);
        self.left = size;
        self.padding = (block - size % block) % block;
    }

    fn pass_over(&mut self) -> Result<(), Fault> {
        let whole =
            self.left.checked_add(self.padding).ok_or_else(|| bad("an entry is larger than a number"))?;
        let passed = io::copy(&mut (&mut self.inner).take(whole), &mut io::sink())
            .map_err(|error| Fault::reading(Code::BadLayer, "read a layer", error))?;
        self.position = self.position.saturating_add(passed);
        (self.left, self.padding) = (0, 0);
        if passed == whole { Ok(()) } else { Err(cut()) }
    }

    /// A whole block; `None` where the archive ends before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, Fault> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while let Some(space) = block.get_mut(filled..).filter(|space| !space.is_empty()) {
            match self.inner.read(space) {
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(cut()),
                Ok(read) => filled += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::reading(Code::BadLayer, "read a layer", error)),
            }
        }
        self.position = self.position.saturating_add(512);
        Ok(Some(block))
    }

    fn extension(&mut self, size: u64) -> Result<Vec<u8>, Fault> {
        if size > EXTENSION_BYTES {
            return Err(Fault::new(Code::TooLarge, "an extended header is larger than 1 MiB"));
        }
        self.expect(size);
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes)
            .map_err(|error| Fault::reading(Code::BadLayer, "read a layer", error))?;
        Ok(bytes)
    }

    /// A name in a block of its own, with a NUL at its end.
    fn long(&mut self, size: u64) -> Result<Vec<u8>, Fault> {
        let mut bytes = self.extension(size)?;
        if bytes.last() == Some(&0) {
            bytes.pop();
        }
        Ok(bytes)
    }

    /// After the first block of zeros there may be more of them, and nothing else.
    fn end(&mut self) -> Result<(), Fault> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        let mut rest = vec![0; REST_BYTES];
        loop {
            let read = match self.inner.read(&mut rest) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::reading(Code::BadLayer, "read a layer", error)),
            };
            if rest.iter().take(read).any(|byte| *byte != 0) {
                return Err(bad("there is more after its end"));
            }
        }
    }
}

impl<R: Read> Read for Archive<R> {
    /// Reads content of the entry; an archive that ends before it is an error.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let space = buffer.get_mut(..most).unwrap_or_default();
        if space.is_empty() {
            return Ok(0);
        }
        let read = self.inner.read(space)?;
        if read == 0 {
            return Err(cut().into());
        }
        let passed = u64::try_from(read).unwrap_or(u64::MAX);
        self.left = self.left.saturating_sub(passed);
        self.position = self.position.saturating_add(passed);
        Ok(read)
    }
}

// === impl Before ===

impl Before {
    fn is_empty(&self) -> bool {
        self.pax.is_none() && self.name.is_none() && self.link.is_none()
    }
}

fn once<T>(place: &mut Option<T>, value: T) -> Result<(), Fault> {
    match place.replace(value) {
        Some(_) => Err(bad("an entry is told of twice")),
        None => Ok(()),
    }
}

/// One of the two extended spellings, or the plain one.
fn either(
    pax: Option<Vec<u8>>,
    gnu: Option<Vec<u8>>,
    plain: impl FnOnce() -> Vec<u8>,
) -> Result<Vec<u8>, Fault> {
    match (pax, gnu) {
        (Some(_), Some(_)) => Err(bad("an entry has two long names")),
        (Some(one), None) | (None, Some(one)) => Ok(one),
        (None, None) => Ok(plain()),
    }
}

fn target(name: &Name, raw: Vec<u8>) -> Result<Vec<u8>, Fault> {
    if raw.is_empty() || raw.len() > TARGET_BYTES || raw.contains(&0) {
        return Err(bad("a link leads nowhere").of(&format!("`{}`", name.shown())));
    }
    Ok(raw)
}

fn bad(what: &str) -> Fault {
    Fault::new(Code::BadLayer, format!("the archive is damaged: {what}"))
}

fn cut() -> Fault {
    bad("it ends too early")
}
