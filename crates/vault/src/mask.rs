//! Takes real values out of what a server answers.
//!
//! A [`Masker`] holds, for a set of secrets, every form that `forms` knows: as it is, percent-encoded,
//! base64 at three alignments, hexadecimal, JSON and HTML escapes, reversed. What it finds it replaces
//! by the same form of the placeholder, of the same length, so that lengths and framing stay true and a
//! program that compares an echo with what it sent is content.
//!
//! A [`MaskStream`] does so over chunks of any size. It keeps back only an end that may be the
//! beginning of a form, most often nothing, so an event stream is not delayed; and a chunk in which
//! nothing is found is handed on as a range of itself.
//!
//! Not found: a value that was changed by other means (encrypted, compressed inside another format,
//! split by other text), and up to six bits at each end of a base64 form, which are mixed with a
//! neighbour's. The wall is that a credential goes to its bound host alone; this is the net beneath.

use crate::forms::forms;
use crate::placeholder::Placeholder;
use crate::search::{Letters, Search};
use crate::secret::{Secret, SecretName};
use http::{HeaderMap, HeaderValue};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use zeroize::Zeroizing;

/// The most bytes of a possible beginning that [`MaskStream::release`] lets go.
pub const RELEASE_LIMIT_BYTES: usize = 4;

/// A shorter piece of a value is looked for in the whole alone: a password `admin` by itself is a word.
const LEAST_PIECE_BYTES: usize = 6;

/// What to look for, and what to write instead. Cheap to clone; shared by all streams of a sandbox.
#[derive(Clone)]
pub struct Masker(Arc<Patterns>);

struct Patterns {
    search: Search,
    /// What is written for each needle of the search, and whose it is, as an index into the names.
    masks: Vec<(Vec<u8>, usize)>,
    names: Vec<SecretName>,
}

/// One body or one direction of a connection, being masked.
pub struct MaskStream {
    masker: Masker,
    /// An end that may be the beginning of a form.
    held: Zeroizing<Vec<u8>>,
    /// How many of the held bytes were handed on already.
    released: usize,
    /// How often each name was found.
    found: Vec<u64>,
}

/// A piece of output.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes of the chunk that was just given, unchanged.
    Chunk(Range<usize>),
    /// Other bytes: a mask, or an end that had been held.
    Bytes(&'a [u8]),
}

enum Step {
    Same(Range<usize>),
    Masked { pattern: usize },
}

// === impl Masker ===

impl Masker {
    /// Looks for these secrets. A value that was renewed is given beside its successor, with the same
    /// placeholder, for as long as an answer to the old one may come.
    pub fn new<'a>(secrets: impl IntoIterator<Item = (&'a Secret, &'a Placeholder)>) -> Self {
        let (mut needles, mut masks) = (Vec::<Zeroizing<Vec<u8>>>::new(), Vec::new());
        let mut names = Vec::<SecretName>::new();
        for (secret, placeholder) in secrets {
            let name = names.iter().position(|name| name == secret.name()).unwrap_or_else(|| {
                names.push(secret.name().clone());
                names.len() - 1
            });
            for (real, stand_in) in pairs(secret, placeholder) {
                for form in forms(real, stand_in) {
                    if !needles.contains(&form.needle) {
                        needles.push(form.needle);
                        masks.push((form.mask, name));
                    }
                }
            }
        }
        Self(Arc::new(Patterns { search: Search::new(needles, Letters::Exact), masks, names }))
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.0.search.is_empty()
    }

    /// Begins one body, or one direction of a connection.
    pub fn stream(&self) -> MaskStream {
        let found = vec![0; self.0.names.len()];
        MaskStream { masker: self.clone(), held: Zeroizing::default(), released: 0, found }
    }

    /// Masks a text that is there as a whole. `None` where nothing was found.
    pub fn whole(&self, text: &[u8]) -> Option<Vec<u8>> {
        self.0.search.find(text, 0)?;
        let mut out = Vec::with_capacity(text.len());
        self.0.walk(text, 0..text.len(), End::Last, &mut |step| match step {
            Step::Same(range) => out.extend_from_slice(text.get(range).unwrap_or_default()),
            Step::Masked { pattern } => out.extend_from_slice(self.0.mask(pattern)),
        });
        Some(out)
    }

    /// Masks the fields of a response's head or of its trailers, and says whose values were in them. A
    /// field whose *name* holds a value is removed.
    pub fn fields(&self, fields: &mut HeaderMap) -> Vec<SecretName> {
        let mut found = Vec::new();
        let names: Vec<_> =
            fields.keys().filter(|name| self.owners(name.as_str().as_bytes(), &mut found)).cloned().collect();
        for name in names {
            fields.remove(name);
        }
        for (_, value) in fields.iter_mut() {
            if !self.owners(value.as_bytes(), &mut found) {
                continue;
            }
            let masked = self.whole(value.as_bytes()).unwrap_or_default();
            // A mask is made of visible characters, so this can not fail; were it to, nothing leaks.
            *value = HeaderValue::from_bytes(&masked).unwrap_or_else(|_| HeaderValue::from_static("masked"));
        }
        found
    }

    /// Whether a value is in `text`; whose is added to `found`.
    fn owners(&self, text: &[u8], found: &mut Vec<SecretName>) -> bool {
        let mut at = 0;
        while let Some(one) = self.0.search.find(text, at) {
            at = one.range.end;
            let owner = self.0.masks.get(one.needle).and_then(|(_, name)| self.0.names.get(*name));
            found.extend(owner.filter(|owner| !found.contains(owner)).cloned());
        }
        at > 0
    }
}

impl fmt::Debug for Masker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Masker({} forms of {} secrets)", self.0.masks.len(), self.0.names.len())
    }
}

/// The parts of a value that are masked: all of it, and the pieces that would be a leak by themselves.
/// A piece that stands in the placeholder as it is, such as a user's name, is not one.
fn pairs<'a>(secret: &'a Secret, placeholder: &'a Placeholder) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    let pieces = placeholder.pieces_of(secret.expose()).into_iter();
    let long = pieces.filter(|(piece, _)| piece.len() >= LEAST_PIECE_BYTES);
    std::iter::once((secret.expose(), placeholder.as_str().as_bytes())).chain(long)
}

// === impl Patterns ===

/// Whether more may follow a text.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    More,
    Last,
}

impl Patterns {
    fn mask(&self, pattern: usize) -> &[u8] {
        self.masks.get(pattern).map_or(&[], |(mask, _)| mask)
    }

    /// Steps over `text` from `range.start` to at least `range.end`, or to where it can not be decided
    /// yet. What it decides is what a search over the whole input would: a match that begins before the
    /// held end can neither be preceded nor be made longer by what follows.
    fn walk(&self, text: &[u8], range: Range<usize>, end: End, step: &mut dyn FnMut(Step)) -> usize {
        let mut at = range.start;
        let mut hold = None;
        while at < range.end {
            let undecided = match (end, hold) {
                (End::Last, _) => text.len(),
                (End::More, Some(place)) if place >= at => place,
                (End::More, _) => *hold.insert(self.search.beginning(text, at)),
            };
            match self.search.find(text, at) {
                Some(found) if found.range.start < undecided.min(range.end) => {
                    step(Step::Same(at..found.range.start));
                    at = found.range.end;
                    step(Step::Masked { pattern: found.needle });
                }
                _ => {
                    let until = undecided.min(range.end).max(at);
                    step(Step::Same(at..until));
                    return until;
                }
            }
        }
        at
    }
}

// === impl MaskStream ===

impl MaskStream {
    /// Takes the next chunk and hands on, in order, what is decided.
    pub fn feed(&mut self, chunk: &[u8], out: &mut dyn FnMut(Piece<'_>)) {
        let patterns = Arc::clone(&self.masker.0);
        if patterns.search.is_empty() {
            if !chunk.is_empty() {
                out(Piece::Chunk(0..chunk.len()));
            }
            return;
        }
        let mut from = 0;
        if !self.held.is_empty() {
            match self.join(&patterns, chunk, out) {
                Some(place) => from = place,
                None => return,
            }
        }
        let found = &mut self.found;
        let end = patterns.walk(chunk, from..chunk.len(), End::More, &mut |step| match step {
            Step::Same(range) if range.is_empty() => {}
            Step::Same(range) => out(Piece::Chunk(range)),
            Step::Masked { pattern } => {
                count(found, &patterns, pattern);
                out(Piece::Bytes(patterns.mask(pattern)));
            }
        });
        self.held.extend_from_slice(chunk.get(end..).unwrap_or_default());
    }

    /// Ends the stream: what was held is handed on, masked where it is a form.
    pub fn finish(&mut self, out: &mut dyn FnMut(Piece<'_>)) {
        let patterns = Arc::clone(&self.masker.0);
        let held = std::mem::take(&mut self.held);
        let mut skip = std::mem::take(&mut self.released);
        let found = &mut self.found;
        patterns.walk(&held, 0..held.len(), End::Last, &mut |step| match step {
            Step::Same(range) => {
                let range = skipped(range, &mut skip);
                if let Some(bytes) = held.get(range).filter(|bytes| !bytes.is_empty()) {
                    out(Piece::Bytes(bytes));
                }
            }
            Step::Masked { pattern } => {
                count(found, &patterns, pattern);
                send_mask(patterns.mask(pattern), &mut skip, out);
            }
        });
    }

    /// For a pause in the stream: hands on what is held if it is at most [`RELEASE_LIMIT_BYTES`], so that
    /// a message that ends by chance like a form begins is not kept from its reader. If the form does
    /// go on, the rest of it is masked all the same.
    pub fn release(&mut self, out: &mut dyn FnMut(Piece<'_>)) {
        if self.held.len() <= RELEASE_LIMIT_BYTES
            && let Some(bytes) = self.held.get(self.released..).filter(|bytes| !bytes.is_empty())
        {
            out(Piece::Bytes(bytes));
            self.released = self.held.len();
        }
    }

    /// How many bytes are kept back now.
    pub fn held_bytes(&self) -> usize {
        self.held.len() - self.released
    }

    /// The secrets that were found so far, and how often: an echo is worth a line in the record.
    pub fn found(&self) -> impl Iterator<Item = (&SecretName, u64)> {
        self.masker.0.names.iter().zip(self.found.iter().copied()).filter(|(_, count)| *count > 0)
    }

    /// Decides what was held together with the beginning of `chunk`. The place in the chunk to go on
    /// from, or nothing if the chunk was used up.
    fn join(&mut self, patterns: &Patterns, chunk: &[u8], out: &mut dyn FnMut(Piece<'_>)) -> Option<usize> {
        let before = self.held.len();
        // With this much after it, every form that begins in the held end is there as a whole.
        let taken = chunk.len().min(patterns.search.longest().saturating_sub(1));
        let mut joined = std::mem::take(&mut self.held);
        joined.extend_from_slice(chunk.get(..taken).unwrap_or_default());
        let until = if taken == chunk.len() { joined.len() } else { before };
        let mut skip = self.released;
        let found = &mut self.found;
        let end = patterns.walk(&joined, 0..until, End::More, &mut |step| match step {
            Step::Same(range) => {
                let range = skipped(range, &mut skip);
                let held = range.start..range.end.min(before);
                if let Some(bytes) = joined.get(held).filter(|bytes| !bytes.is_empty()) {
                    out(Piece::Bytes(bytes));
                }
                if range.end > before {
                    out(Piece::Chunk(range.start.max(before) - before..range.end - before));
                }
            }
            Step::Masked { pattern } => {
                count(found, patterns, pattern);
                send_mask(patterns.mask(pattern), &mut skip, out);
            }
        });
        if taken == chunk.len() {
            self.held.extend_from_slice(joined.get(end..).unwrap_or_default());
            self.released = self.released.saturating_sub(end);
            return None;
        }
        self.released = 0;
        Some(end.saturating_sub(before))
    }
}

impl fmt::Debug for MaskStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MaskStream({:?}, {} bytes held)", self.masker, self.held.len())
    }
}

fn count(found: &mut [u64], patterns: &Patterns, pattern: usize) {
    if let Some(count) = patterns.masks.get(pattern).and_then(|(_, name)| found.get_mut(*name)) {
        *count = count.saturating_add(1);
    }
}

/// A range without what was handed on before.
fn skipped(range: Range<usize>, skip: &mut usize) -> Range<usize> {
    let less = (*skip).min(range.len());
    *skip -= less;
    range.start + less..range.end
}

fn send_mask(mask: &[u8], skip: &mut usize, out: &mut dyn FnMut(Piece<'_>)) {
    let range = skipped(0..mask.len(), skip);
    if let Some(bytes) = mask.get(range).filter(|bytes| !bytes.is_empty()) {
        out(Piece::Bytes(bytes));
    }
}

#[cfg(test)]
mod tests;
