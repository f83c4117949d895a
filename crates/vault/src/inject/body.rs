//! Replaces the placeholder where it stands in a body of text.

use super::{Head, InjectError, Injected, Place, request};
use crate::encode::{Case, html, json, percent};
use crate::placeholder::Placeholder;
use crate::secret::Secret;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

/// A body must be there as a whole, so it is small.
pub const BODY_LIMIT_BYTES: usize = 1024 * 1024;
/// Fields that say a digest of the body, which would no longer be true.
const DIGESTS: [&str; 6] =
    ["content-md5", "digest", "content-digest", "repr-digest", "x-amz-content-sha256", "signature-input"];

/// How the text of a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Json,
    Form,
    Markup,
    Plain,
}

/// Puts the value in the place of the placeholder in `body`, and sets the length.
///
/// The body that comes back holds the value and is wiped when dropped. `count` is 0 if the placeholder
/// is nowhere in it: then nothing of the secret was used, and the body is as it was.
pub fn body(
    head: &mut Head<'_>,
    body: &[u8],
    secret: &Secret,
    placeholder: &Placeholder,
    now_unix_millis: u64,
) -> Result<(Zeroizing<Vec<u8>>, Injected), InjectError> {
    if !secret.is_good_at(now_unix_millis) {
        return Err(InjectError::Expired(secret.name().clone()));
    }
    if body.len() > BODY_LIMIT_BYTES {
        return Err(request(secret, "its body is larger than 1 MiB, so it is not looked through"));
    }
    let writing = writing(head.fields, secret)?;
    let mut pairs: Vec<(Vec<u8>, Zeroizing<Vec<u8>>)> = Vec::new();
    for style in 0..STYLES {
        let needle = written(placeholder.as_str().as_bytes(), writing, style);
        if !pairs.iter().any(|(known, _)| *known == needle) {
            pairs.push((needle, Zeroizing::new(written(secret.expose(), writing, style))));
        }
    }
    if writing == Writing::Json && std::str::from_utf8(secret.expose()).is_err() {
        return Err(super::shape(secret, "it is not UTF-8, and its place is in JSON"));
    }
    let (replaced, count) = replace(body, &pairs);
    if count > 0 {
        if let Some(name) = DIGESTS.iter().find(|name| head.fields.contains_key(**name)) {
            return Err(request(secret, digest_reason(name)));
        }
        head.fields
            .try_insert(CONTENT_LENGTH, HeaderValue::from(replaced.len()))
            .map_err(|_| request(secret, "it has more fields than can be counted"))?;
        // The whole body is there, so it is sent with its length.
        head.fields.remove(TRANSFER_ENCODING);
        head.fields.remove(HeaderName::from_static("trailer"));
    }
    Ok((replaced, Injected { secret: secret.name().clone(), place: Place::Body, count }))
}

fn digest_reason(name: &str) -> &'static str {
    if name == "x-amz-content-sha256" {
        "its body is signed; bind the keys with `sigv4`"
    } else {
        "it has a digest of its body, which the value would make wrong; switch the digest off in the client"
    }
}

fn writing(fields: &HeaderMap, secret: &Secret) -> Result<Writing, InjectError> {
    for coding in fields.get_all(CONTENT_ENCODING) {
        if !coding.as_bytes().eq_ignore_ascii_case(b"identity") {
            return Err(request(secret, "its body is compressed; let the client send it as it is"));
        }
    }
    let kind = fields.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.to_ascii_lowercase();
    let mut parts = kind.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let charset = parts.find_map(|part| part.strip_prefix("charset=")).unwrap_or("utf-8").trim_matches('"');
    if !matches!(charset, "utf-8" | "utf8" | "us-ascii" | "iso-8859-1") {
        return Err(request(secret, "the text of its body is not UTF-8"));
    }
    let markup = media.ends_with("+xml") || matches!(media, "application/xml" | "text/xml" | "text/html");
    match media {
        "application/json" | "text/json" => Ok(Writing::Json),
        other if other.ends_with("+json") => Ok(Writing::Json),
        "application/x-www-form-urlencoded" => Ok(Writing::Form),
        _ if markup => Ok(Writing::Markup),
        "application/graphql" | "application/x-ndjson" | "application/jsonl" => {
            Ok(if media == "application/graphql" { Writing::Plain } else { Writing::Json })
        }
        other if other.starts_with("text/") => Ok(Writing::Plain),
        _ => Err(request(secret, "its `Content-Type` is not JSON, a form or text")),
    }
}

/// Writers escape more or less; the value is written as the placeholder was found.
const STYLES: usize = 5;

fn written(value: &[u8], writing: Writing, style: usize) -> Vec<u8> {
    let form = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'*');
    let plus = |text: Vec<u8>| text.into_iter().map(|byte| if byte == b' ' { b'+' } else { byte }).collect();
    match (writing, style) {
        (Writing::Json, _) => {
            let text = String::from_utf8_lossy(value);
            let page = |c: char| matches!(c, '<' | '>' | '&');
            match style {
                0 => json(&text, Case::Lower, false, |_| false),
                1 => json(&text, Case::Lower, true, |_| false),
                2 => json(&text, Case::Lower, false, page),
                3 => json(&text, Case::Lower, false, |c| page(c) || matches!(c, '=' | '\'')),
                _ => json(&text, Case::Upper, false, |c| {
                    page(c) || !c.is_ascii() || matches!(c, '"' | '\'' | '+' | '`')
                }),
            }
        }
        (Writing::Form, 0) => plus(percent(value, Case::Upper, |byte| form(byte) || byte == b' ')),
        (Writing::Form, 1) => percent(value, Case::Upper, crate::encode::is_unreserved),
        (Writing::Form, 2) => percent(value, Case::Lower, crate::encode::is_unreserved),
        (Writing::Form, 3) => percent(value, Case::Upper, |byte| {
            form(byte) || matches!(byte, b'~' | b'!' | b'\'' | b'(' | b')')
        }),
        // Written without encoding by a careless client: where that reads as one value, the right
        // encoding of the real one takes its place.
        (Writing::Form, _) => {
            percent(value, Case::Upper, |byte| form(byte) || matches!(byte, b':' | b'/' | b'@'))
        }
        (Writing::Markup, 0) => html(value, b"&#39;"),
        (Writing::Markup, 1) => html(value, b"&apos;"),
        (Writing::Markup, _) => html(value, b"'"),
        (Writing::Plain, _) => value.to_vec(),
    }
}

/// Every find of a needle, replaced by its partner; the longest where several begin at one place.
fn replace(body: &[u8], pairs: &[(Vec<u8>, Zeroizing<Vec<u8>>)]) -> (Zeroizing<Vec<u8>>, usize) {
    use crate::search::{Letters, Search};
    let needles = pairs.iter().map(|(needle, _)| Zeroizing::new(needle.clone())).collect();
    let search = Search::new(needles, Letters::Exact);
    let mut finds = Vec::new();
    let mut at = 0;
    while let Some(found) = search.find(body, at) {
        at = found.range.end;
        finds.push(found);
    }
    // Made once at its full size: a vector that grows leaves copies behind.
    let longest = pairs.iter().map(|(_, value)| value.len()).max().unwrap_or(0);
    let mut out = Zeroizing::new(Vec::with_capacity(body.len() + finds.len() * longest));
    let mut at = 0;
    for found in &finds {
        out.extend_from_slice(body.get(at..found.range.start).unwrap_or_default());
        out.extend_from_slice(pairs.get(found.needle).map_or(&[], |(_, value)| value));
        at = found.range.end;
    }
    out.extend_from_slice(body.get(at..).unwrap_or_default());
    (out, finds.len())
}
