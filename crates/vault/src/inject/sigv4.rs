//! Signs a request again that was signed with the placeholder's keys (AWS Signature Version 4).
//!
//! The client's own signature says for which day, region and service it is and which fields it covers;
//! all of that is kept, and computed again over the head as it is now, with the real keys. A session
//! token is set and covered where the keys have one, and removed where not. What can not be signed again
//! is refused with its reason: presigned links, signatures of each chunk of a body, the asymmetric
//! kind, and version 2.

mod canonical;

use super::fields::{remove, set};
use super::{Head, InjectError, request, shape};
use crate::encode::{Case, hex};
use crate::secret::Secret;
use hmac::{Hmac, KeyInit, Mac};
use http::header::{AUTHORIZATION, HeaderName};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const CONTENT_HASH: &str = "x-amz-content-sha256";
const DATE: &str = "x-amz-date";
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
/// A client that names more fields is not one that we know.
const SIGNED_LIMIT: usize = 256;

/// What is known of the body when the head is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// There is a body, and it was not read.
    Unread,
    /// There is none.
    Empty,
    /// All of it.
    Bytes(&'a [u8]),
}

/// What the rule binds the keys to.
pub(super) struct Bound<'a> {
    pub(super) region: Option<&'a str>,
    pub(super) service: Option<&'a str>,
}

/// The client's `Authorization`, taken apart.
struct Signed {
    day: String,
    region: String,
    service: String,
    fields: Vec<String>,
}

struct Keys<'a> {
    id: &'a str,
    key: &'a [u8],
    token: Option<&'a [u8]>,
}

/// Whether the body must be read before [`inject`](super::inject) can sign: the head does not say its
/// hash. Of S3 it always does; of the other services, whose bodies are small, it does not.
pub fn needs_payload(head: &Head<'_>) -> bool {
    !head.fields.contains_key(CONTENT_HASH)
}

/// Replaces the client's signature by one of the real keys.
pub(super) fn sign(
    head: &mut Head<'_>,
    bound: &Bound<'_>,
    secret: &Secret,
    payload: Payload<'_>,
) -> Result<(), InjectError> {
    let keys = keys(secret)?;
    refuse_others(head, secret)?;
    let mut signed = signed(head, secret)?;
    within(bound, &signed, secret)?;
    let time = one_field(head, DATE).ok_or_else(|| request(secret, "it has no `x-amz-date`"))?;
    if !is_time(&time) || !time.starts_with(&signed.day) {
        return Err(request(secret, "its `x-amz-date` is not a time of the day that it is signed for"));
    }
    let hash = payload_hash(head, payload, secret)?;

    remove(head, &TOKEN);
    signed.fields.retain(|name| name != TOKEN.as_str());
    if let Some(token) = keys.token {
        set(head, &TOKEN, token, secret)?;
        signed.fields.push(TOKEN.as_str().to_owned());
    }
    signed.fields.sort_unstable();
    signed.fields.dedup();

    let names = signed.fields.join(";");
    let canonical = canonical::request(head, &signed.service, &signed.fields, &hash)
        .ok_or_else(|| request(secret, "its signature covers a field that it does not have"))?;
    let digest = Sha256::digest(&*canonical);
    let scope = format!("{}/{}/{}/aws4_request", signed.day, signed.region, signed.service);
    let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", lower_hex(&digest));
    let signature = signature(keys.key, &signed, text.as_bytes());
    let value =
        format!("{ALGORITHM} Credential={}/{scope}, SignedHeaders={names}, Signature={signature}", keys.id);
    set(head, &AUTHORIZATION, value.as_bytes(), secret)
}

fn keys(secret: &Secret) -> Result<Keys<'_>, InjectError> {
    let form = || {
        shape(secret, "it is not `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with `:SESSION_TOKEN` if there is one")
    };
    let mut parts = secret.expose().splitn(3, |byte| *byte == b':');
    let id = parts.next().and_then(|id| std::str::from_utf8(id).ok()).ok_or_else(form)?;
    let key = parts.next().filter(|key| !key.is_empty()).ok_or_else(form)?;
    if id.is_empty()
        || !id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    {
        return Err(form());
    }
    Ok(Keys { id, key, token: parts.next().filter(|token| !token.is_empty()) })
}

/// A signature in the query would go out beside ours.
fn refuse_others(head: &Head<'_>, secret: &Secret) -> Result<(), InjectError> {
    let query = head.uri.query().unwrap_or_default();
    let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    for name in names {
        let name = crate::encode::unpercent(name.as_bytes(), true).to_ascii_lowercase();
        let presigned: [&[u8]; 6] = [
            b"x-amz-signature",
            b"x-amz-credential",
            b"x-amz-algorithm",
            b"x-amz-security-token",
            b"awsaccesskeyid",
            b"signature",
        ];
        if presigned.contains(&name.as_slice()) {
            return Err(request(
                secret,
                "it is presigned in its query; let the client sign in the `Authorization` field",
            ));
        }
    }
    Ok(())
}

fn signed(head: &Head<'_>, secret: &Secret) -> Result<Signed, InjectError> {
    let refused = |why| request(secret, why);
    let value = one_field(head, AUTHORIZATION.as_str()).ok_or_else(|| {
        refused("it is not signed; let the client sign with the keys that it finds in the variable")
    })?;
    if value.starts_with("AWS4-ECDSA") {
        return Err(refused("it is signed with the asymmetric version 4a; set one region in the client"));
    }
    if value.starts_with("AWS ") {
        return Err(refused("it is signed with version 2; set the client to version 4"));
    }
    let rest = value
        .strip_prefix(ALGORITHM)
        .filter(|rest| rest.starts_with([' ', '\t']))
        .ok_or_else(|| refused("its `Authorization` is not `AWS4-HMAC-SHA256`"))?;
    let (mut credential, mut names) = (None, None);
    for part in rest.split(',') {
        match part.trim().split_once('=') {
            Some(("Credential", text)) if credential.is_none() => credential = Some(text),
            Some(("SignedHeaders", text)) if names.is_none() => names = Some(text),
            Some(("Signature", _)) => {}
            _ => return Err(refused("its `Authorization` has a part that is not known")),
        }
    }
    let unreadable = || refused("its `Authorization` names no credential, scope or signed fields");
    let (credential, names) = credential.zip(names).ok_or_else(unreadable)?;
    // From the back: a key's id may hold a slash, a scope may not.
    let mut scope = credential.rsplitn(5, '/');
    let (end, service, region, day) = (scope.next(), scope.next(), scope.next(), scope.next());
    let (Some("aws4_request"), Some(service), Some(region), Some(day)) = (end, service, region, day) else {
        return Err(unreadable());
    };
    let word = |text: &str| {
        !text.is_empty()
            && text.len() <= 64
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
    };
    if !word(service) || !word(region) || day.len() != 8 || !day.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(unreadable());
    }
    let fields: Vec<String> = names.split(';').map(str::to_ascii_lowercase).collect();
    if fields.len() > SIGNED_LIMIT
        || fields.iter().any(|name| HeaderName::from_bytes(name.as_bytes()).is_err())
    {
        return Err(unreadable());
    }
    if fields.iter().any(|name| name == AUTHORIZATION.as_str()) || !fields.iter().any(|name| name == "host") {
        return Err(refused("its signature does not cover `host`"));
    }
    Ok(Signed { day: day.to_owned(), region: region.to_owned(), service: service.to_owned(), fields })
}

fn within(bound: &Bound<'_>, signed: &Signed, secret: &Secret) -> Result<(), InjectError> {
    let asked = [("region", bound.region, &signed.region), ("service", bound.service, &signed.service)];
    for (what, bound, asked) in asked {
        if let Some(bound) = bound.filter(|bound| bound != asked) {
            let (asked, bound) = (asked.clone(), bound.to_owned());
            return Err(InjectError::Scope { secret: secret.name().clone(), what, asked, bound });
        }
    }
    Ok(())
}

/// `20150830T123600Z`.
fn is_time(text: &str) -> bool {
    text.len() == 16
        && text.bytes().enumerate().all(|(place, byte)| match place {
            8 => byte == b'T',
            15 => byte == b'Z',
            _ => byte.is_ascii_digit(),
        })
}

fn payload_hash(head: &Head<'_>, payload: Payload<'_>, secret: &Secret) -> Result<String, InjectError> {
    if head.fields.contains_key(CONTENT_HASH) {
        let said = one_field(head, CONTENT_HASH)
            .ok_or_else(|| request(secret, "it has more than one `x-amz-content-sha256`"))?;
        let digest = said.len() == 64 && said.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        return match said.as_str() {
            "UNSIGNED-PAYLOAD" | "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => Ok(said),
            _ if digest => Ok(said),
            chunked if chunked.starts_with("STREAMING-") => Err(request(
                secret,
                "each chunk of its body is signed by the client; switch chunked signing off, or send over \
                 TLS with an unsigned payload",
            )),
            _ => Err(request(secret, "its `x-amz-content-sha256` is not a hash")),
        };
    }
    match payload {
        Payload::Empty => Ok(lower_hex(&Sha256::digest(b""))),
        Payload::Bytes(body) => Ok(lower_hex(&Sha256::digest(body))),
        Payload::Unread => Err(request(secret, "its body is too large to be read before it is signed")),
    }
}

/// The value of a field that is there once, as text.
fn one_field(head: &Head<'_>, name: &str) -> Option<String> {
    let mut values = head.fields.get_all(name).iter();
    let value = values.next()?;
    if values.next().is_some() {
        return None;
    }
    value.to_str().ok().map(str::to_owned)
}

fn signature(key: &[u8], signed: &Signed, text: &[u8]) -> String {
    let first = Zeroizing::new([b"AWS4", key].concat());
    let mut key = mac(&first, signed.day.as_bytes());
    for part in [signed.region.as_bytes(), signed.service.as_bytes(), b"aws4_request"] {
        key = mac(&*key, part);
    }
    lower_hex(&*mac(&*key, text))
}

fn mac(key: &[u8], text: &[u8]) -> Zeroizing<[u8; 32]> {
    // Any length of key is taken, so the error can not come; a MAC under no key would be refused upstream.
    let made = Hmac::<Sha256>::new_from_slice(key).map(|mac| mac.chain_update(text).finalize().into_bytes());
    Zeroizing::new(made.map_or([0; 32], Into::into))
}

fn lower_hex(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&hex(bytes, Case::Lower)).into_owned()
}

#[cfg(test)]
mod tests;
