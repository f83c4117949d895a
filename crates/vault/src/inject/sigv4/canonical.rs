//! The one spelling of a request that both sides compute before they sign.

use super::super::Head;
use crate::encode::{Case, is_unreserved, percent, unpercent};
use zeroize::Zeroizing;

/// The canonical request. `None` where a field that should be covered is not there.
pub(super) fn request(
    head: &Head<'_>,
    service: &str,
    names: &[String],
    payload_hash: &str,
) -> Option<Zeroizing<Vec<u8>>> {
    // Holds the session token, so it is wiped.
    let mut out = Zeroizing::new(Vec::with_capacity(1024));
    out.extend_from_slice(head.method.as_str().as_bytes());
    out.push(b'\n');
    out.extend_from_slice(&path(head.uri.path(), service));
    out.push(b'\n');
    out.extend_from_slice(&query(head.uri.query().unwrap_or_default()));
    out.push(b'\n');
    for name in names {
        out.extend_from_slice(name.as_bytes());
        out.push(b':');
        out.extend_from_slice(&field(head, name)?);
        out.push(b'\n');
    }
    out.push(b'\n');
    out.extend_from_slice(names.join(";").as_bytes());
    out.push(b'\n');
    out.extend_from_slice(payload_hash.as_bytes());
    Some(out)
}

/// S3 takes a path as it is, encoded once. Everywhere else it is freed of `.` and `..` and what stands in
/// the request, encoded already, is encoded again.
fn path(path: &str, service: &str) -> Vec<u8> {
    let plain = |byte: u8| is_unreserved(byte) || byte == b'/';
    let whole = if path.is_empty() { "/" } else { path };
    if service.starts_with("s3") {
        return percent(&unpercent(whole.as_bytes(), false), Case::Upper, plain);
    }
    let mut kept: Vec<&str> = Vec::new();
    for segment in whole.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                kept.pop();
            }
            other => kept.push(other),
        }
    }
    let mut clean = format!("/{}", kept.join("/"));
    if clean.len() > 1 && (whole.ends_with('/') || whole.ends_with("/.") || whole.ends_with("/..")) {
        clean.push('/');
    }
    percent(clean.as_bytes(), Case::Upper, plain)
}

fn query(query: &str) -> Vec<u8> {
    let spelled = |text: &str| percent(&unpercent(text.as_bytes(), true), Case::Upper, is_unreserved);
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (spelled(name), spelled(value)))
        .collect();
    pairs.sort_unstable();
    let joined: Vec<Vec<u8>> = pairs.into_iter().map(|(name, value)| [name, value].join(&b'=')).collect();
    joined.join(&b'&')
}

/// A field's values, each with its spaces made single, joined by commas.
fn field(head: &Head<'_>, name: &str) -> Option<Vec<u8>> {
    let values: Vec<Vec<u8>> =
        head.fields.get_all(name).iter().map(|value| trimmed(value.as_bytes())).collect();
    if !values.is_empty() {
        return Some(values.join(&b','));
    }
    // In HTTP/2 the host is part of the target.
    let authority = head.uri.authority().filter(|_| name == "host")?;
    Some(authority.as_str().as_bytes().to_vec())
}

fn trimmed(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value.trim_ascii() {
        if !(*byte == b' ' && out.last() == Some(&b' ')) {
            out.push(*byte);
        }
    }
    out
}
