//! Ways in which a program may write a value down.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// The case of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Lower,
    Upper,
}

/// Which alphabet base64 is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alphabet {
    Standard,
    UrlSafe,
}

fn hex_digit(nibble: u8, case: Case) -> u8 {
    match (nibble & 15, case) {
        (low @ 0..=9, _) => b'0' + low,
        (high, Case::Lower) => b'a' + high - 10,
        (high, Case::Upper) => b'A' + high - 10,
    }
}

fn hex_pair(byte: u8, case: Case) -> [u8; 2] {
    [hex_digit(byte >> 4, case), hex_digit(byte, case)]
}

/// Two digits a byte.
pub(crate) fn hex(value: &[u8], case: Case) -> Vec<u8> {
    value.iter().flat_map(|byte| hex_pair(*byte, case)).collect()
}

/// What RFC 3986 leaves alone.
pub(crate) fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Percent-encoding of every byte that `plain` does not leave alone.
pub(crate) fn percent(value: &[u8], case: Case, plain: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value {
        if plain(*byte) {
            out.push(*byte);
        } else {
            out.push(b'%');
            out.extend(hex_pair(*byte, case));
        }
    }
    out
}

/// Reads percent-encoding; `+` is a space where `form` is set. What is no encoding stays as it is.
pub(crate) fn unpercent(text: &[u8], form: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        let pair = match more {
            [high, low, ..] if *first == b'%' => hex_value(*high).zip(hex_value(*low)),
            _ => None,
        };
        match pair {
            Some((high, low)) => {
                out.push(high << 4 | low);
                rest = more.get(2..).unwrap_or_default();
            }
            None if form && *first == b'+' => out.push(b' '),
            None => out.push(*first),
        }
    }
    out
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

/// The characters of base64 that hold bits of `value` alone when `before` bytes (0, 1 or 2, modulo 3)
/// stand before it and anything after it. Characters at the ends that are mixed with a neighbour's bits
/// are left out: at most six bits at either end.
pub(crate) fn base64_inside(value: &[u8], before: usize, alphabet: Alphabet) -> Vec<u8> {
    let mut padded = vec![0; before];
    padded.extend_from_slice(value);
    let text = match alphabet {
        Alphabet::Standard => STANDARD_NO_PAD.encode(&padded),
        Alphabet::UrlSafe => URL_SAFE_NO_PAD.encode(&padded),
    };
    // 8 bits of one byte reach into the second character, 16 bits of two into the third.
    let start = (before * 8).div_ceil(6);
    let end = padded.len() * 8 / 6;
    text.as_bytes().get(start..end).unwrap_or_default().to_vec()
}

/// A JSON string's inside, where `escaped` says which characters besides `"` and `\` are written as
/// `\uXXXX`, and `slash` whether `/` is written `\/`.
pub(crate) fn json(value: &str, case: Case, slash: bool, escaped: impl Fn(char) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    let mut units = [0_u16; 2];
    for c in value.chars() {
        if escaped(c) {
            for unit in c.encode_utf16(&mut units) {
                out.extend_from_slice(b"\\u");
                out.extend(unit.to_be_bytes().into_iter().flat_map(|byte| hex_pair(byte, case)));
            }
        } else if matches!(c, '"' | '\\') || (slash && c == '/') {
            out.push(b'\\');
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        } else {
            out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    out
}

/// Text of an HTML or XML page; `apostrophe` is how `'` is written.
pub(crate) fn html(value: &[u8], apostrophe: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b'&' => out.extend_from_slice(b"&amp;"),
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            b'\'' => out.extend_from_slice(apostrophe),
            other => out.push(*other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_encoded_is_as_others_write_it() {
        assert_eq!(percent(b"a b/~", Case::Upper, is_unreserved), b"a%20b%2F~");
        assert_eq!(percent(b"a/", Case::Lower, |_| false), b"%61%2f");
        assert_eq!(unpercent(b"a%2Fb+c%zz%2", true), b"a/b c%zz%2");
        assert_eq!(hex(b"\xabz", Case::Upper), b"AB7A");
        assert_eq!(json("a/\"\u{e9}<", Case::Lower, true, |c| c == '<'), "a\\/\\\"é\\u003c".as_bytes());
        assert_eq!(json("😀", Case::Lower, false, |c| !c.is_ascii()), b"\\ud83d\\ude00");
        assert_eq!(html(b"<a&'>", b"&#39;"), b"&lt;a&amp;&#39;&gt;");
    }

    proptest! {
        /// Whatever stands around a value, its inside is found in the encoding of the whole.
        #[test]
        fn the_inside_stands_in_every_encoding(
            before in proptest::collection::vec(any::<u8>(), 0..7),
            value in proptest::collection::vec(any::<u8>(), 4..40),
            after in proptest::collection::vec(any::<u8>(), 0..7),
        ) {
            let whole = [before.as_slice(), &value, &after].concat();
            let inside = base64_inside(&value, before.len() % 3, Alphabet::Standard);
            let text = STANDARD_NO_PAD.encode(&whole);
            prop_assert!(text.as_bytes().windows(inside.len()).any(|window| window == inside));
            let inside = base64_inside(&value, before.len() % 3, Alphabet::UrlSafe);
            let text = URL_SAFE_NO_PAD.encode(&whole);
            prop_assert!(text.as_bytes().windows(inside.len()).any(|window| window == inside));
        }
    }
}
