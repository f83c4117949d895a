//! Paths of requests, by segment, and what a rule says of them.
//!
//! A rule that is bound to a path is only as good as the agreement between us and the server about
//! what a path means. Where readers are known to differ, a request under such a rule is refused.

use serde::{Serialize, Serializer};
use std::fmt;

/// A request's path: decoded once, dot segments resolved, and the query left as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlPath {
    segments: Vec<Vec<u8>>,
    /// The same for servers to whom an encoded slash is a character and no separator.
    whole: Vec<Vec<u8>>,
    query: Option<String>,
    /// What to send on: the path as it came, or resolved where it had dot segments.
    sent: String,
    ambiguous: Option<PathFlaw>,
}

/// Why a path can not be judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathFlaw {
    #[error("the path does not begin with `/`")]
    NotAbsolute,
    #[error("the path has a character that no path has")]
    Character,
    #[error("the path has a `%` that encodes nothing")]
    Encoding,
    #[error("the path leads above its root")]
    AboveRoot,
    #[error("servers read this path in different ways")]
    Ambiguous,
}

/// Which paths a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    segments: Vec<Vec<u8>>,
    whole: Vec<Vec<u8>>,
    /// Whether everything below counts too (`/**`).
    below: bool,
}

// === impl UrlPath ===

impl UrlPath {
    /// Reads the target of a request in origin form, `/path?query`.
    pub fn parse(target: &str) -> Result<Self, PathFlaw> {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.to_owned())),
            None => (target, None),
        };
        if !path.starts_with('/') {
            return Err(PathFlaw::NotAbsolute);
        }
        // Only what splits a path for some readers, or ends a line, is refused: clients do send a few
        // characters that have no place in a path.
        let sendable = |byte: u8| byte > b' ' && byte != 0x7f && !b"\\#".contains(&byte);
        if !path.bytes().all(sendable) || !target.bytes().all(|byte| byte > b' ' && byte != 0x7f) {
            return Err(PathFlaw::Character);
        }
        let raw: Vec<&str> = path.split('/').skip(1).collect();
        let mut decoded = Vec::with_capacity(raw.len());
        for segment in &raw {
            decoded.push(decode(segment)?);
        }
        let ambiguous = ambiguity(&decoded).then_some(PathFlaw::Ambiguous);
        let has_dots = decoded.iter().any(|segment| is_dots(segment));
        let segments = resolve(split(&decoded, |_| true))?;
        // Where it can not be read this way, it has dots beside encoded slashes, which is ambiguous anyhow.
        let whole = resolve(split(&decoded, is_scoped)).unwrap_or_else(|_| segments.clone());
        let resolved = if has_dots { resolve_raw(&raw) } else { path.to_owned() };
        let sent = match &query {
            Some(query) => format!("{resolved}?{query}"),
            None => resolved,
        };
        Ok(Self { segments, whole, query, sent, ambiguous })
    }

    /// The target to send on, in origin form.
    pub fn sent(&self) -> &str {
        &self.sent
    }

    /// The same without its query.
    pub fn sent_path(&self) -> &str {
        self.sent.split_once('?').map_or(&self.sent, |(path, _)| path)
    }

    /// What follows the first `?`, as it came.
    pub fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// Why a rule that is bound to a path must not judge this one.
    pub fn ambiguous(&self) -> Option<PathFlaw> {
        self.ambiguous
    }

    /// The value of a query parameter that stands there once, and plainly.
    pub(super) fn only_parameter(&self, name: &str) -> Option<&str> {
        let mut found = self.query()?.split('&').filter_map(|pair| pair.split_once('='));
        let value = found.by_ref().find(|(known, _)| *known == name).map(|(_, value)| value)?;
        found.all(|(known, _)| known != name).then_some(value)
    }

    pub(super) fn segments(&self) -> &[Vec<u8>] {
        &self.segments
    }

    /// Whether every server parts it at the same places.
    pub(super) fn is_parted_alike(&self) -> bool {
        self.segments == self.whole
    }
}

// === impl PathPattern ===

impl PathPattern {
    /// Reads a rule's path. `**` stands only at the end; no query, no `*` elsewhere, no dots.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (front, below) = match text.strip_suffix("/**") {
            Some(front) => (if front.is_empty() { "/" } else { front }, true),
            None => (text, false),
        };
        if text.contains('?') || text.contains('#') {
            return Err("a rule's path has no query and no fragment");
        }
        if front.contains('*') {
            return Err("`**` stands alone, at the end of the path");
        }
        let path = UrlPath::parse(front).map_err(|_| "it is no path")?;
        if path.ambiguous.is_some() || path.sent() != front {
            return Err("write the path without dot segments and encoded slashes");
        }
        let UrlPath { mut segments, mut whole, .. } = path;
        for reading in [&mut segments, &mut whole] {
            if below && reading.last().is_some_and(Vec::is_empty) {
                reading.pop();
            }
        }
        Ok(Self { segments, whole, below })
    }

    /// Everything.
    pub const fn any() -> Self {
        Self { segments: Vec::new(), whole: Vec::new(), below: true }
    }

    /// Whether the path is one of these, to every server that reads it.
    pub fn matches(&self, path: &UrlPath) -> bool {
        self.reaches([&path.segments, &path.whole], false)
    }

    /// Whether every path of `other` is one of `self`'s.
    pub fn covers(&self, other: &Self) -> bool {
        self.reaches([&other.segments, &other.whole], other.below)
    }

    fn reaches(&self, readings: [&Vec<Vec<u8>>; 2], below: bool) -> bool {
        [&self.segments, &self.whole].into_iter().zip(readings).all(|(own, other)| {
            let is_exact = !below && other.len() == own.len();
            other.starts_with(own) && (self.below || is_exact)
        })
    }

    /// Whether it says nothing at all.
    pub fn is_any(&self) -> bool {
        self.below && self.segments.is_empty()
    }

    pub(super) fn segments(&self) -> &[Vec<u8>] {
        &self.segments
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.whole {
            f.write_str("/")?;
            for byte in segment {
                match byte {
                    b'!'
                    | b'$'
                    | b'&'..=b')'
                    | b'+'..=b'.'
                    | b'0'..=b';'
                    | b'='
                    | b'@'..=b'Z'
                    | b'_'
                    | b'a'..=b'z'
                    | b'~' => {
                        write!(f, "{}", char::from(*byte))?;
                    }
                    byte => write!(f, "%{byte:02X}")?,
                }
            }
        }
        if !self.below {
            return Ok(());
        }
        // One slash before `/**` is read as none.
        f.write_str(if self.whole.last().is_some_and(Vec::is_empty) { "//**" } else { "/**" })
    }
}

impl Serialize for PathPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

fn decode(segment: &str) -> Result<Vec<u8>, PathFlaw> {
    let mut out = Vec::with_capacity(segment.len());
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(PathFlaw::Encoding) };
        let value = u8::try_from(high * 16 + low).map_err(|_| PathFlaw::Encoding)?;
        if value < 0x20 || value == 0x7f {
            return Err(PathFlaw::Character);
        }
        out.push(value);
    }
    Ok(out)
}

/// Segments, parted at their encoded slashes where `parts` says so.
fn split(segments: &[Vec<u8>], parts: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let pieces = segments.iter().flat_map(|segment| {
        let parted = parts(segment);
        segment.split(move |byte| parted && *byte == b'/')
    });
    pieces.map(<[u8]>::to_vec).collect()
}

/// npm writes the name of a scoped package as one segment, and its registries take it for two.
fn is_scoped(segment: &[u8]) -> bool {
    segment.starts_with(b"@")
}

fn is_dots(segment: &[u8]) -> bool {
    matches!(segment, b"." | b"..")
}

/// Whether readers are known to differ: slashes that are encoded, dots that are encoded twice,
/// parameters after dots, and dots across empty segments.
fn ambiguity(segments: &[Vec<u8>]) -> bool {
    let pieces: Vec<&[u8]> =
        segments.iter().flat_map(|segment| segment.split(|byte| *byte == b'/')).collect();
    let dotted = pieces.iter().any(|piece| is_dots(piece));
    let parameters = pieces.iter().any(|piece| piece.starts_with(b"..;") || piece.starts_with(b".;"));
    let slashed = segments.iter().any(|segment| segment.contains(&b'/'));
    // The last piece is empty where a path ends in a slash, which is no matter.
    let empty = pieces.split_last().is_some_and(|(_, front)| front.iter().any(|piece| piece.is_empty()));
    let twice = |segment: &Vec<u8>| {
        segment.windows(3).any(|three| ESCAPES.iter().any(|escape| three.eq_ignore_ascii_case(escape)))
    };
    let odd = segments.iter().any(|segment| segment.contains(&b'\\') || twice(segment));
    parameters || odd || (dotted && (slashed || empty))
}

/// What a path must not hold once it was decoded: a second reader would decode it again.
const ESCAPES: [&[u8]; 4] = [b"%2e", b"%2f", b"%5c", b"%25"];

fn resolve(segments: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, PathFlaw> {
    let last = segments.len().saturating_sub(1);
    let mut out: Vec<Vec<u8>> = Vec::with_capacity(segments.len());
    for (place, segment) in segments.into_iter().enumerate() {
        match segment.as_slice() {
            b"." => {}
            b".." => {
                out.pop().ok_or(PathFlaw::AboveRoot)?;
            }
            _ => {
                out.push(segment);
                continue;
            }
        }
        // `/a/..` is the folder, as `/a/../` is.
        if place == last {
            out.push(Vec::new());
        }
    }
    Ok(out)
}

/// The same on the text as it came, so that what is sent is what was judged.
fn resolve_raw(raw: &[&str]) -> String {
    let last = raw.len().saturating_sub(1);
    let mut out: Vec<&str> = Vec::with_capacity(raw.len());
    for (place, segment) in raw.iter().enumerate() {
        let decoded = decode(segment).unwrap_or_default();
        match decoded.as_slice() {
            b"." => {}
            b".." => drop(out.pop()),
            _ => {
                out.push(segment);
                continue;
            }
        }
        if place == last {
            out.push("");
        }
    }
    format!("/{}", out.join("/"))
}
