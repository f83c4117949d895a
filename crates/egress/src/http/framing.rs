//! How long a body is: one answer for every reader, or a refusal.

use super::head::{RequestHead, ResponseHead, Version};
use http::header::{CONTENT_LENGTH, HeaderMap, TRANSFER_ENCODING};
use http::{Method, StatusCode};

/// The length of a body, as its head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// There is none, whatever the fields say.
    None,
    Known(u64),
    Chunked,
    /// Until the sender closes; responses only.
    UntilClose,
}

// === impl Length ===

impl Length {
    /// Of a request. Everything that readers take in different ways is refused.
    pub fn of_request(head: &RequestHead) -> Result<Self, &'static str> {
        let chunked = match transfer_encoding(&head.fields)? {
            Some(_) if head.version == Version::Http10 => return Err("HTTP/1.0 has no `Transfer-Encoding`"),
            Some(true) => true,
            Some(false) => return Err("`Transfer-Encoding` is not exactly `chunked`"),
            None => false,
        };
        match (content_length(&head.fields, Repeated::Refused)?, chunked) {
            (Some(_), true) => Err("`Content-Length` stands beside `Transfer-Encoding`"),
            (None, true) => Ok(Self::Chunked),
            (Some(length), false) => Ok(Self::Known(length)),
            (None, false) => Ok(Self::None),
        }
    }

    /// Of a response to a request of this method.
    pub fn of_response(method: &Method, head: &ResponseHead) -> Result<Self, &'static str> {
        let bodiless = head.status.is_informational()
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if *method == Method::HEAD || bodiless {
            return Ok(Self::None);
        }
        match transfer_encoding(&head.fields)? {
            // The encoding wins, as every reader does it; what is sent on has one of both only.
            Some(true) if head.version == Version::Http11 => return Ok(Self::Chunked),
            Some(_) => return Err("the server uses a `Transfer-Encoding` that is not `chunked`"),
            None => {}
        }
        Ok(content_length(&head.fields, Repeated::Same)?.map_or(Self::UntilClose, Self::Known))
    }

    pub fn is_empty(self) -> bool {
        matches!(self, Self::None | Self::Known(0))
    }
}

/// What to make of a length that is said twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeated {
    Refused,
    /// Good where both say the same.
    Same,
}

/// Whether it is there, and if so, whether it is the one that is known.
fn transfer_encoding(fields: &HeaderMap) -> Result<Option<bool>, &'static str> {
    let mut values = fields.get_all(TRANSFER_ENCODING).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(value), None) => Ok(Some(value.as_bytes().eq_ignore_ascii_case(b"chunked"))),
        (Some(_), Some(_)) => Err("`Transfer-Encoding` stands there twice"),
    }
}

fn content_length(fields: &HeaderMap, repeated: Repeated) -> Result<Option<u64>, &'static str> {
    let mut found = None;
    for value in fields.get_all(CONTENT_LENGTH) {
        let length = digits(value.as_bytes()).ok_or("`Content-Length` is no number")?;
        match found {
            Some(_) if repeated == Repeated::Refused => return Err("`Content-Length` stands there twice"),
            Some(first) if first != length => return Err("two lengths contradict each other"),
            Some(_) | None => found = Some(length),
        }
    }
    Ok(found)
}

/// A number in digits alone; at most 18 of them, so that sums of lengths stay sums.
fn digits(text: &[u8]) -> Option<u64> {
    let good = (1..=18).contains(&text.len()) && text.iter().all(u8::is_ascii_digit);
    let text = good.then(|| std::str::from_utf8(text).ok()).flatten()?;
    text.parse().ok()
}
