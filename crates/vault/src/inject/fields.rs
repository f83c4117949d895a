//! One field of the head, or one parameter of the query.

use super::{Head, InjectError, request, shape};
use crate::encode::{Case, is_unreserved, percent, unpercent};
use crate::secret::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HeaderName};
use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use zeroize::Zeroizing;

/// Whether a field frames the message, or says where it goes.
pub(super) fn is_framing(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(
        name,
        "host"
            | "content-length"
            | "transfer-encoding"
            | "connection"
            | "te"
            | "trailer"
            | "upgrade"
            | "keep-alive"
            | "expect"
            | "content-encoding"
            | "content-type"
            | "http2-settings"
            | "forwarded"
    ) || name.starts_with("proxy-")
        || name.starts_with("x-forwarded-")
        || name.starts_with("sec-websocket-")
}

pub(super) fn bearer(head: &mut Head<'_>, secret: &Secret) -> Result<(), InjectError> {
    let value = secret.expose();
    if value.contains(&b' ') {
        return Err(shape(
            secret,
            "a bearer token has no space; a whole header value is bound with `header`",
        ));
    }
    let text = Zeroizing::new([b"Bearer ", value].concat());
    set(head, &AUTHORIZATION, &text, secret)
}

pub(super) fn basic(head: &mut Head<'_>, user: Option<&str>, secret: &Secret) -> Result<(), InjectError> {
    let value = secret.expose();
    let pair = match user {
        Some(user) => Zeroizing::new([user.as_bytes(), b":", value].concat()),
        None if value.contains(&b':') => Zeroizing::new(value.to_vec()),
        None => {
            let why =
                "it has no `:`; give `user:password`, or name the user in the rule, as in `basic:USER:NAME`";
            return Err(shape(secret, why));
        }
    };
    let text = Zeroizing::new(format!("Basic {}", *Zeroizing::new(STANDARD.encode(&*pair))));
    set(head, &AUTHORIZATION, text.as_bytes(), secret)
}

pub(super) fn whole(head: &mut Head<'_>, name: &HeaderName, secret: &Secret) -> Result<(), InjectError> {
    set(head, name, secret.expose(), secret)
}

/// Sets a field, and removes those that a server may take for the same: gateways that turn fields into
/// variables do not tell `-` from `_`.
pub(super) fn set(
    head: &mut Head<'_>,
    name: &HeaderName,
    text: &[u8],
    secret: &Secret,
) -> Result<(), InjectError> {
    let mut value = HeaderValue::from_bytes(text).map_err(|_| shape(secret, "no field can carry it"))?;
    // Not shown by `Debug`, and not kept in a connection's table of fields.
    value.set_sensitive(true);
    remove(head, name);
    head.fields
        .try_insert(name.clone(), value)
        .map_err(|_| request(secret, "it has more fields than can be counted"))?;
    Ok(())
}

pub(super) fn remove(head: &mut Head<'_>, name: &HeaderName) {
    let plain = |name: &HeaderName| name.as_str().replace('_', "-");
    let wanted = plain(name);
    let alike: Vec<_> = head.fields.keys().filter(|other| plain(other) == wanted).cloned().collect();
    for other in alike {
        head.fields.remove(other);
    }
}

pub(super) fn query(head: &mut Head<'_>, parameter: &str, secret: &Secret) -> Result<(), InjectError> {
    let mut pairs = Vec::new();
    for pair in head.uri.query().unwrap_or_default().split('&') {
        if names(pair, parameter) || pair.is_empty() {
            continue;
        }
        // Some servers part a query at `;` as well, and would see two values.
        if pair.split(';').any(|inner| names(inner, parameter)) {
            return Err(request(
                secret,
                "its query names the parameter after a `;`, which servers read differently",
            ));
        }
        pairs.push(pair);
    }
    let name = percent(parameter.as_bytes(), Case::Upper, is_unreserved);
    let value = Zeroizing::new(percent(secret.expose(), Case::Upper, is_unreserved));
    let mut text = Zeroizing::new(head.uri.path().as_bytes().to_vec());
    text.push(b'?');
    for pair in pairs {
        text.extend_from_slice(pair.as_bytes());
        text.push(b'&');
    }
    text.extend_from_slice(&name);
    text.push(b'=');
    text.extend_from_slice(&value);
    let target = PathAndQuery::try_from(text.as_slice())
        .map_err(|_| request(secret, "with it, path and query are longer than 64 KiB"))?;
    let mut parts = std::mem::take(head.uri).into_parts();
    parts.path_and_query = Some(target);
    *head.uri = Uri::from_parts(parts).map_err(|_| request(secret, "its target has no path"))?;
    Ok(())
}

/// Whether a pair of a query has this name, however it is written. Case is not told apart, as many
/// servers do not.
fn names(pair: &str, parameter: &str) -> bool {
    let name = pair.split('=').next().unwrap_or_default();
    unpercent(name.as_bytes(), true).eq_ignore_ascii_case(parameter.as_bytes())
}
