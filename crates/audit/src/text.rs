//! Bytes as text, and text that is too long.
//!
//! Argument lists, file names and messages come from inside and are not to be trusted: they need not
//! be UTF-8, and may be as long as memory. [`text`] shows any bytes as text from which the same bytes
//! can be read back; a [`cut`] text says that it was cut, and vouches for the whole.

use crate::digest::Digest;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Shows any bytes as text. UTF-8 stands for itself; another byte becomes `\xNN`. So that the two can
/// not be confused, backslashes are doubled where an `x` or an escaped byte follows, and only there.
pub fn text(bytes: impl AsRef<[u8]>) -> String {
    let bytes = bytes.as_ref();
    if let Ok(whole) = std::str::from_utf8(bytes)
        && !whole.contains("\\x")
    {
        return whole.to_owned();
    }
    let mut shown = String::with_capacity(bytes.len().saturating_mul(2));
    for chunk in bytes.utf8_chunks() {
        let mut backslashes = 0;
        for letter in chunk.valid().chars() {
            if letter == 'x' {
                double(&mut shown, backslashes);
            }
            backslashes = if letter == '\\' { backslashes + 1 } else { 0 };
            shown.push(letter);
        }
        for byte in chunk.invalid() {
            double(&mut shown, backslashes);
            backslashes = 0;
            shown.push_str(&format!("\\x{byte:02x}"));
        }
    }
    shown
}

/// [`text`] of what the system gives as a name.
pub fn os_text(name: impl AsRef<OsStr>) -> String {
    text(name.as_ref().as_bytes())
}

/// The bytes that [`text`] showed.
pub fn bytes(shown: &str) -> Vec<u8> {
    let mut read = Vec::with_capacity(shown.len());
    let mut rest = shown.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let run = rest.iter().take_while(|byte| **byte == b'\\').count();
        let (slashes, tail) = rest.split_at_checked(run).unwrap_or((rest, &[]));
        if run == 0 {
            read.push(*first);
            rest = after;
        } else if tail.first() == Some(&b'x') {
            read.extend(slashes.iter().take(run / 2));
            rest = tail;
            if let Some((escaped, tail)) = escaped(tail).filter(|_| run % 2 == 1) {
                read.push(escaped);
                rest = tail;
            } else if let [_, tail @ ..] = tail {
                read.push(b'x');
                rest = tail;
            }
        } else {
            read.extend_from_slice(slashes);
            rest = tail;
        }
    }
    read
}

/// Cuts a text to `limit_bytes`, and adds how long it was and its digest. The result is longer than
/// the limit exactly when something was cut, so no text can pass for a cut one.
pub(crate) fn cut(text: &str, limit_bytes: usize) -> String {
    let kept = text.get(..text.floor_char_boundary(limit_bytes)).unwrap_or_default();
    let whole = Digest::of(text.as_bytes());
    format!("{kept}… ({} bytes, sha256 {whole})", text.len())
}

fn double(shown: &mut String, backslashes: usize) {
    shown.extend(std::iter::repeat_n('\\', backslashes));
}

fn escaped(tail: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, rest) = tail.strip_prefix(b"x")?.split_at_checked(2)?;
    let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    Some((byte, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ordinary_text_stands_for_itself() {
        for ordinary in ["", "ls", "naïve 日本語", r"grep '\d+\\' C:\dir", "\u{1b}[31m"] {
            assert_eq!(text(ordinary), ordinary);
        }
        assert_eq!(text(b"a\xffb"), r"a\xffb");
        assert_eq!(text(br"a\xffb"), r"a\\xffb");
        assert_eq!(text(b"\\\xff"), r"\\\xff");
    }

    #[test]
    fn a_cut_text_says_so_and_no_whole_text_can() {
        let long = "é".repeat(100);
        let cut = cut(&long, 51);
        assert!(cut.starts_with(&"é".repeat(25)) && !cut.starts_with(&"é".repeat(26)));
        assert!(cut.contains("200 bytes") && cut.contains(&Digest::of(long.as_bytes()).to_string()));
        assert!(cut.len() > 51);
    }

    proptest! {
        #[test]
        fn the_same_bytes_are_read_back(raw in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(bytes(&text(&raw)), raw);
        }

        #[test]
        fn backslashes_are_read_back(raw in "[\\\\xf0a]{0,24}", tail in any::<u8>()) {
            let raw = [raw.as_bytes(), &[tail]].concat();
            prop_assert_eq!(bytes(&text(&raw)), raw);
        }
    }
}
