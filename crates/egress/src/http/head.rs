//! Heads of HTTP/1 messages, read strictly: bytes have one meaning, or are refused.
//!
//! What is refused here is what readers are known to take in different ways: line ends that are not
//! CR LF, folded lines, spaces before a colon, a NUL. Nothing is repaired.

use super::limits;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// The head of a request, checked as text, not yet judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// A token; never empty.
    pub method: String,
    /// As it came: no spaces and no control characters.
    pub target: String,
    pub version: Version,
    pub fields: HeaderMap,
}

/// The head of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: StatusCode,
    pub version: Version,
    pub fields: HeaderMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Http10,
    Http11,
}

/// Why bytes are no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadFlaw {
    #[error("the head is longer than 64 KiB")]
    Long,
    #[error("the head has more than 128 fields")]
    Fields,
    #[error("{0}")]
    Form(&'static str),
}

// === impl RequestHead ===

impl RequestHead {
    /// Reads a head at the start of `bytes`, and says how long it is. `None`: it is not complete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadFlaw> {
        let Some((first, fields, length)) = lines(bytes)? else { return Ok(None) };
        let mut words = first.split(|byte| *byte == b' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(HeadFlaw::Form("the request line is not a method, a target and a version"));
        };
        if method.is_empty() || method.len() > 32 || !method.iter().all(|byte| is_token(*byte)) {
            return Err(HeadFlaw::Form("the method is no method"));
        }
        let target = match std::str::from_utf8(target) {
            Ok(target) if !target.is_empty() => target.to_owned(),
            Ok(_) | Err(_) => return Err(HeadFlaw::Form("the request's target is no text")),
        };
        let method = String::from_utf8_lossy(method).into_owned();
        Ok(Some((Self { method, target, version: Version::parse(version)?, fields }, length)))
    }
}

// === impl ResponseHead ===

impl ResponseHead {
    /// Reads a head at the start of `bytes`, and says how long it is. `None`: it is not complete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadFlaw> {
        let Some((first, fields, length)) = lines(bytes)? else { return Ok(None) };
        let (version, rest) = match first.split_first_chunk::<9>() {
            Some((version, rest)) if version.ends_with(b" ") => (version.trim_ascii_end(), rest),
            Some(_) | None => return Err(HeadFlaw::Form("the status line is none")),
        };
        let (code, reason) = rest.split_first_chunk::<3>().ok_or(HeadFlaw::Form("there is no status"))?;
        if !(reason.is_empty() || reason.starts_with(b" ")) {
            return Err(HeadFlaw::Form("the status is no number of three digits"));
        }
        let status = StatusCode::from_bytes(code)
            .map_err(|_| HeadFlaw::Form("the status is no number of three digits"))?;
        if status.as_u16() > 599 {
            return Err(HeadFlaw::Form("the status is beyond 599"));
        }
        Ok(Some((Self { status, version: Version::parse(version)?, fields }, length)))
    }
}

// === impl Version ===

impl Version {
    fn parse(text: &[u8]) -> Result<Self, HeadFlaw> {
        match text {
            b"HTTP/1.1" => Ok(Self::Http11),
            b"HTTP/1.0" => Ok(Self::Http10),
            _ => Err(HeadFlaw::Form("the version is neither HTTP/1.1 nor HTTP/1.0")),
        }
    }
}

/// Reads the fields after a body that came in chunks: lines, then an empty one. `None`: not complete.
pub(crate) fn trailers(bytes: &[u8]) -> Result<Option<(HeaderMap, usize)>, HeadFlaw> {
    if bytes.starts_with(b"\r\n") {
        return Ok(Some((HeaderMap::new(), 2)));
    }
    let Some(end) = end_of_head(bytes)? else { return Ok(None) };
    let text = bytes.get(..end).unwrap_or_default();
    Ok(Some((fields(text)?, end)))
}

/// The first line, the fields, and the length of all.
type Lines<'a> = (&'a [u8], HeaderMap, usize);

/// Splits a head into its first line and its fields.
fn lines(bytes: &[u8]) -> Result<Option<Lines<'_>>, HeadFlaw> {
    let Some(end) = end_of_head(bytes)? else { return Ok(None) };
    let text = bytes.get(..end).unwrap_or_default();
    let first = text.iter().position(|byte| *byte == b'\r').unwrap_or(end);
    let (line, rest) = text.split_at_checked(first).unwrap_or_default();
    if line.iter().any(|byte| *byte < b' ' || *byte == 0x7f) {
        return Err(HeadFlaw::Form("the first line has a control character"));
    }
    let rest = rest.strip_prefix(b"\r\n").unwrap_or_default();
    Ok(Some((line, fields(rest)?, end)))
}

/// Where the empty line ends. Every line before it ends in CR LF, and neither byte stands alone.
fn end_of_head(bytes: &[u8]) -> Result<Option<usize>, HeadFlaw> {
    let seen = bytes.get(..limits::HEAD_BYTES).unwrap_or(bytes);
    let mut line_length = 0_usize;
    let mut iter = seen.iter().enumerate();
    while let Some((place, byte)) = iter.next() {
        match byte {
            b'\r' => match iter.next() {
                Some((end, b'\n')) if line_length == 0 => {
                    // An empty line before anything else is no head.
                    return if place == 0 {
                        Err(HeadFlaw::Form("there is an empty line before the head"))
                    } else {
                        Ok(Some(end + 1))
                    };
                }
                Some((_, b'\n')) => line_length = 0,
                Some(_) => return Err(HeadFlaw::Form("a CR stands without its LF")),
                None => break,
            },
            b'\n' => return Err(HeadFlaw::Form("an LF stands without its CR")),
            0 => return Err(HeadFlaw::Form("there is a NUL")),
            _ => line_length += 1,
        }
    }
    if seen.len() == limits::HEAD_BYTES { Err(HeadFlaw::Long) } else { Ok(None) }
}

/// Reads `name: value` lines up to the empty one. Line ends were checked before.
fn fields(text: &[u8]) -> Result<HeaderMap, HeadFlaw> {
    let mut fields = HeaderMap::with_capacity(16);
    let mut rest = text;
    let mut count = 0_usize;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\r').unwrap_or(rest.len());
        let (line, after) = rest.split_at_checked(end).unwrap_or_default();
        rest = after.strip_prefix(b"\r\n").unwrap_or_default();
        if line.is_empty() {
            break;
        }
        count += 1;
        if count > limits::FIELDS {
            return Err(HeadFlaw::Fields);
        }
        if line.starts_with(b" ") || line.starts_with(b"\t") {
            return Err(HeadFlaw::Form("a field is folded over two lines"));
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = colon
            .and_then(|colon| line.split_at_checked(colon))
            .ok_or(HeadFlaw::Form("a field has no colon"))?;
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            return Err(HeadFlaw::Form("the name of a field is no name"));
        }
        let value = trim(value.get(1..).unwrap_or_default());
        let name =
            HeaderName::from_bytes(name).map_err(|_| HeadFlaw::Form("the name of a field is no name"))?;
        let value = HeaderValue::from_bytes(value)
            .map_err(|_| HeadFlaw::Form("the value of a field has a control character"))?;
        fields.try_append(name, value).map_err(|_| HeadFlaw::Fields)?;
    }
    Ok(fields)
}

/// Without the spaces and tabs around it, which are no part of a value.
fn trim(mut value: &[u8]) -> &[u8] {
    while let Some((b' ' | b'\t', rest)) = value.split_first() {
        value = rest;
    }
    while let Some((b' ' | b'\t', rest)) = value.split_last() {
        value = rest;
    }
    value
}

pub(crate) const fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'!' | b'#'
                | b'$'
                | b'%'
                | b'&'
                | b'\''
                | b'*'
                | b'+'
                | b'-'
                | b'.'
                | b'^'
                | b'_'
                | b'`'
                | b'|'
                | b'~'
        )
}
