//! Texts of others, made safe to show.

/// Longer values are cut in messages.
const SHOWN_CHARS: usize = 100;

/// A value as it may stand in a message: control and direction-changing characters escaped, and cut
/// to a hundred characters. What a found file says is not ours, and a terminal obeys what it is sent.
pub fn shown(text: &str) -> String {
    cut(text, SHOWN_CHARS)
}

/// The same with another length.
pub fn cut(text: &str, most_chars: usize) -> String {
    let mut out = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == most_chars {
            out.push('…');
            break;
        }
        if is_plain(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out
}

/// All of a text of several lines, with nothing in it that a terminal would obey.
pub fn lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '\n' || is_plain(c) { out.push(c) } else { out.extend(c.escape_default()) }
    }
    out
}

/// Whether a terminal shows `c` and does nothing else.
fn is_plain(c: char) -> bool {
    let invisible =
        matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !c.is_control() && !invisible
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_do_not_reach_a_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\u{202e}c\né"), "a\\u{1b}[2Jb\\u{202e}c\\né");
        assert_eq!(lines("a\nb\u{1b}[2J"), "a\nb\\u{1b}[2J");
        assert_eq!(shown(&"x".repeat(500)).chars().count(), SHOWN_CHARS + 1);
    }
}
