//! Fields that are about one connection and not about a message: they end here.

use super::head::{RequestHead, Version};
use fumehood_model::egress::Denial;
use http::header::{
    ALT_SVC, CONNECTION, CONTENT_LENGTH, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::{Method, StatusCode};

/// What a request asks its connection to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upgrade {
    None,
    WebSocket,
}

/// What the client wants of its connection after the answer.
pub(crate) fn wants_close(head: &RequestHead) -> bool {
    head.version == Version::Http10 || has_token(&head.fields, &CONNECTION, "close")
}

/// The upgrade that a request asks for. HTTP/2 in the clear is an offer that a server may leave aside,
/// and this one does; what is not known is refused, as nobody could look inside.
pub(crate) fn upgrade(method: &Method, head: &RequestHead) -> Result<Upgrade, Denial> {
    if !has_token(&head.fields, &CONNECTION, "upgrade") {
        return Ok(Upgrade::None);
    }
    let mut asked = Upgrade::None;
    for value in head.fields.get_all(UPGRADE) {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        for protocol in text.split(',').map(str::trim) {
            if protocol.eq_ignore_ascii_case("websocket") {
                asked = Upgrade::WebSocket;
            } else if !protocol.eq_ignore_ascii_case("h2c") {
                return Err(Denial::Upgrade(protocol.to_owned()));
            }
        }
    }
    let good = *method == Method::GET && head.version == Version::Http11;
    if asked == Upgrade::WebSocket && !good {
        return Err(Denial::Malformed("an upgrade is asked for with GET and HTTP/1.1"));
    }
    Ok(asked)
}

/// Fields by which some servers take another method or path than those of the request line, which were judged.
const OVERRIDES: [&str; 7] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
    "x-original-uri",
    "x-override-url",
];

/// Why a request says two things: what its line asks for, and what a field of it would have done instead.
pub(crate) fn overrides(fields: &HeaderMap) -> Option<Denial> {
    let says = OVERRIDES.iter().any(|name| fields.contains_key(*name));
    says.then_some(Denial::Malformed("a field asks for another method or path than the request line"))
}

/// Takes out of a request what ends here, and what is written anew: host and framing.
pub(crate) fn strip_request(fields: &mut HeaderMap) {
    let trailers = has_token(fields, &TE, "trailers");
    strip(fields);
    fields.remove(HOST);
    fields.remove(CONTENT_LENGTH);
    if trailers {
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// The same of a response. Where it has no body, its length is about something else, and stays.
pub(crate) fn strip_response(method: &Method, status: StatusCode, fields: &mut HeaderMap) {
    let about_another = *method == Method::HEAD || status == StatusCode::NOT_MODIFIED;
    let length = about_another.then(|| fields.get(CONTENT_LENGTH).cloned()).flatten();
    strip(fields);
    fields.remove(CONTENT_LENGTH);
    // Another way to the same host, mostly over UDP: there is none.
    fields.remove(ALT_SVC);
    if let Some(length) = length.filter(|length| length.as_bytes().iter().all(u8::is_ascii_digit)) {
        fields.insert(CONTENT_LENGTH, length);
    }
}

/// Takes out of fields that came after a body what has no place there.
pub(crate) fn strip_trailers(fields: &mut HeaderMap) {
    strip(fields);
    fields.remove(HOST);
    fields.remove(CONTENT_LENGTH);
}

/// Puts the pieces together into which HTTP/2 may split a cookie.
pub(crate) fn join_cookies(fields: &mut HeaderMap) {
    use http::header::COOKIE;
    let pieces: Vec<&[u8]> = fields.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    let whole = HeaderValue::from_bytes(&pieces.join(&b"; "[..]));
    if pieces.len() > 1
        && let Ok(whole) = whole
    {
        fields.insert(COOKIE, whole);
    }
}

fn strip(fields: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(fields, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .collect();
    for name in named {
        fields.remove(name);
    }
    for name in [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE] {
        fields.remove(name);
    }
    for name in ["keep-alive", "proxy-connection", "http2-settings"] {
        fields.remove(name);
    }
}

pub(crate) fn has_token(fields: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(fields, name).any(|own| own.eq_ignore_ascii_case(token))
}

fn tokens<'a>(fields: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = fields.get_all(name).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}
