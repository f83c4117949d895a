//! Names and contents as text: reversible, one line, and harmless to a terminal.
//!
//! A guest chooses names. A newline would forge a line of the record, an escape sequence would move
//! the cursor, a bidirectional mark would show another name than the one that is meant. So all of them
//! are written as `\xNN` (a byte) or `\u{N}` (a character), and a backslash as `\\`. What was escaped
//! can be read back, so the same form holds paths in the journal.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path as text. See the module.
pub fn escape_path(path: &Path) -> String {
    escape(path.as_os_str().as_bytes())
}

/// Bytes as text. See the module.
pub fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            push(&mut text, letter);
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// A line of content for a person: as [`escape`], but a tab stays and a backslash is not doubled.
pub fn escape_line(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter == '\t' || letter == '\\' { text.push(letter) } else { push(&mut text, letter) }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// Reads back what [`escape_path`] wrote. `None` when it did not.
pub fn unescape_path(text: &str) -> Option<PathBuf> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((plain, after)) = rest.split_once('\\') {
        bytes.extend_from_slice(plain.as_bytes());
        if let Some(after) = after.strip_prefix('\\') {
            bytes.push(b'\\');
            rest = after;
        } else if let Some(after) = after.strip_prefix('x') {
            let (digits, after) = after.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            let (digits, after) = after.strip_prefix("u{")?.split_once('}')?;
            let letter = char::from_u32(u32::from_str_radix(digits, 16).ok()?)?;
            bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            rest = after;
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(PathBuf::from(OsString::from_vec(bytes)))
}

fn push(text: &mut String, letter: char) {
    if letter == '\\' {
        text.push_str("\\\\");
    } else if misleads(letter) {
        text.push_str(&format!("\\u{{{:x}}}", u32::from(letter)));
    } else {
        text.push(letter);
    }
}

/// Whether a character moves the cursor, reorders or hides its neighbours, or breaks the line.
fn misleads(letter: char) -> bool {
    letter.is_control() || invisible(letter)
}

/// Whether a character has no shape of its own: zero-width, bidirectional, separators, tags.
pub(crate) fn invisible(letter: char) -> bool {
    matches!(letter,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_moves_a_terminal_is_written_out() {
        assert_eq!(escape(b"a\nb\x1b[31m"), "a\\u{a}b\\u{1b}[31m");
        assert_eq!(escape("x\u{202e}gpj.exe".as_bytes()), "x\\u{202e}gpj.exe");
        assert_eq!(escape(b"\xff\\"), "\\xff\\\\");
        assert_eq!(escape("Grüße 日本".as_bytes()), "Grüße 日本");
        assert_eq!(escape_line(b"\ta\\b\r"), "\ta\\b\\u{d}");
    }

    proptest! {
        #[test]
        fn a_name_reads_back(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            let text = escape_path(&path);
            prop_assert!(!text.chars().any(char::is_control));
            prop_assert_eq!(unescape_path(&text), Some(path));
        }
    }
}
