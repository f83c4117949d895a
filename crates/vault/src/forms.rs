//! Every form in which a value is looked for, each beside what is put in its place.
//!
//! Built from pairs (real, stand-in): the masker looks for the real one and writes the stand-in; the
//! guard looks for the stand-in. A form and its replacement have the same length, always.

use crate::encode::{Alphabet, Case, base64_inside, hex, html, is_unreserved, json, percent};
use zeroize::Zeroizing;

/// Shorter forms are not looked for: they would be found in text that has nothing to do with it.
const LEAST_FORM_BYTES: usize = 4;
/// What stands in the place of a form whose own replacement has another length.
const FILLER: u8 = b'x';

/// One thing to look for.
pub(crate) struct Form {
    pub(crate) needle: Zeroizing<Vec<u8>>,
    pub(crate) mask: Vec<u8>,
}

/// All forms of `real`, with those of `stand_in` as masks. The first is the value as it is.
pub(crate) fn forms(real: &[u8], stand_in: &[u8]) -> Vec<Form> {
    let mut out: Vec<Form> = Vec::new();
    // A stand-in of another length would shift its forms against the real one's.
    let shaped = if real.len() == stand_in.len() { stand_in.to_vec() } else { vec![FILLER; real.len()] };
    for (needle, mask) in writings(real).into_iter().zip(writings(&shaped)) {
        let needle = Zeroizing::new(needle);
        if needle.len() < LEAST_FORM_BYTES || out.iter().any(|form| form.needle == needle) {
            continue;
        }
        let mask = if mask.len() == needle.len() { mask } else { vec![FILLER; needle.len()] };
        out.push(Form { needle, mask });
    }
    out
}

/// The writings of one value, always as many and in the same order.
fn writings(value: &[u8]) -> Vec<Vec<u8>> {
    let mut out = vec![value.to_vec()];
    for case in [Case::Upper, Case::Lower] {
        out.extend(percent_writings(value, case));
        out.push(hex(value, case));
    }
    out.extend(base64_writings(value));
    out.extend(json_writings(value));
    for apostrophe in [&b"&#39;"[..], b"&#x27;", b"&apos;", b"&#039;", b"'"] {
        out.push(html(value, apostrophe));
    }
    out.push(value.iter().rev().copied().collect());
    out
}

fn percent_writings(value: &[u8], case: Case) -> Vec<Vec<u8>> {
    let form = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'*' | b' ');
    let plus = |text: Vec<u8>| text.into_iter().map(|byte| if byte == b' ' { b'+' } else { byte }).collect();
    let component = |byte: u8| is_unreserved(byte) || matches!(byte, b'!' | b'\'' | b'(' | b')' | b'*');
    let path =
        |byte: u8| component(byte) || matches!(byte, b'$' | b'&' | b'+' | b',' | b';' | b'=' | b':' | b'@');
    let whole = |byte: u8| path(byte) || matches!(byte, b'/' | b'?' | b'#');
    vec![
        percent(value, case, is_unreserved),
        percent(value, case, component),
        percent(value, case, path),
        percent(value, case, whole),
        percent(value, case, |byte| is_unreserved(byte) || byte == b'/'),
        plus(percent(value, case, form)),
        percent(value, case, |_| false),
    ]
}

/// Base64 at each of its three alignments, in both alphabets, and as it stands in a URL or in JSON.
fn base64_writings(value: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for before in 0..3 {
        let standard = base64_inside(value, before, Alphabet::Standard);
        out.push(percent(&standard, Case::Upper, is_unreserved));
        out.push(percent(&standard, Case::Lower, is_unreserved));
        let escaped = String::from_utf8_lossy(&standard);
        out.push(json(&escaped, Case::Lower, true, |_| false));
        out.push(standard);
        out.push(base64_inside(value, before, Alphabet::UrlSafe));
    }
    out
}

/// What well-known writers of JSON make of it. A value that is no UTF-8 stands in no JSON text.
fn json_writings(value: &[u8]) -> Vec<Vec<u8>> {
    const COUNT: usize = 9;
    let Ok(text) = std::str::from_utf8(value) else { return vec![Vec::new(); COUNT] };
    let foreign = |c: char| !c.is_ascii();
    let page = |c: char| matches!(c, '<' | '>' | '&');
    let out = vec![
        json(text, Case::Lower, false, |_| false),
        json(text, Case::Lower, true, |_| false),
        json(text, Case::Lower, false, foreign),
        json(text, Case::Lower, true, foreign),
        json(text, Case::Lower, false, page),
        json(text, Case::Lower, false, |c| page(c) || matches!(c, '=' | '\'')),
        json(text, Case::Upper, false, |c| foreign(c) || page(c) || matches!(c, '"' | '\'' | '+' | '`')),
        json(text, Case::Lower, false, |_| true),
        json(text, Case::Upper, false, |_| true),
    ];
    debug_assert_eq!(out.len(), COUNT);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_plain_token_has_few_forms() {
        let count = forms(b"ghp_16C7e42F292c6912E7710c838347Ae178B4a", &[b'x'; 40]).len();
        assert!(count <= 14, "{count} forms");
    }

    proptest! {
        /// A form is as long as its mask, none is there twice, and none is too short.
        #[test]
        fn forms_and_masks_go_together(
            real in proptest::collection::vec(any::<u8>(), 1..60),
            stand_in in proptest::collection::vec(any::<u8>(), 1..60),
        ) {
            let all = forms(&real, &stand_in);
            for (index, form) in all.iter().enumerate() {
                prop_assert_eq!(form.needle.len(), form.mask.len());
                prop_assert!(form.needle.len() >= LEAST_FORM_BYTES);
                prop_assert!(!all[..index].iter().any(|other| other.needle == form.needle));
            }
        }
    }
}
