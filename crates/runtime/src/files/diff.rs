//! What a layer changes, as text for a person.
//!
//! One line a path (`A` added, `M` modified, `X` mode, `T` another type, `D` deleted), and for text files
//! of moderate size the changed lines. Names and contents are a guest's: all that could move a terminal
//! or mislead a reader is written out (`files::text`). This is for reading, not for `patch`: a binary
//! file, or a name that needs escaping, has no other form here.

use super::changes::{Change, ChangeKind, ChangeList, Node};
use super::layer::{Layer, LayerError};
use super::lines::{self, Edit, Hunk};
use super::text::{escape, escape_line, escape_path};
use fumehood_model::report::Changes;
use fumehood_sys::dirfd::{DirHandle, Kind};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The largest file whose lines are shown.
const SHOWN_BYTES: u64 = 256 * 1024;
/// A line longer than this is cut: minified code is not for reading.
const LINE_BYTES: usize = 2_000;

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// One line a path.
    Paths,
    /// And the changed lines of text files.
    Lines,
}

/// Why a difference can not be shown.
#[derive(Debug, thiserror::Error)]
pub enum ShowError {
    #[error("open the layer or its workspace")]
    Layer(#[from] LayerError),
    #[error("write the difference")]
    Output(#[from] io::Error),
}

/// The letter of a change.
pub const fn letter(kind: ChangeKind) -> char {
    match kind {
        ChangeKind::Added => 'A',
        ChangeKind::Modified => 'M',
        ChangeKind::ModeChanged => 'X',
        ChangeKind::TypeChanged => 'T',
        ChangeKind::Deleted => 'D',
    }
}

/// The line that follows a copy-on-write run: `3 added, 1 modified, 2 deleted (12.4 KB)`; empty for none.
pub fn summary(count: &Changes) -> String {
    let parts: Vec<String> =
        [(count.added, "added"), (count.modified, "modified"), (count.deleted, "deleted")]
            .iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, word)| format!("{number} {word}"))
            .collect();
    if count.bytes == 0 || parts.is_empty() {
        return parts.join(", ");
    }
    format!("{} ({})", parts.join(", "), size(count.bytes))
}

/// Writes the difference.
pub fn show(layer: &Layer, list: &ChangeList, detail: Detail, out: &mut dyn Write) -> Result<(), ShowError> {
    for change in &list.changes {
        writeln!(out, "{} {}{}", letter(change.kind), escape_path(&change.path), remark(change))?;
    }
    for refusal in &list.unread {
        writeln!(out, "? {} ({})", escape_path(&refusal.path), escape_line(refusal.why.as_bytes()))?;
    }
    if detail == Detail::Lines {
        let (upper, workspace) = (layer.upper()?, layer.workspace()?);
        for change in &list.changes {
            content(&upper, &workspace, change, out)?;
        }
    }
    Ok(())
}

/// What one line can not say by its letter.
fn remark(change: &Change) -> String {
    let old = change.before.map(|stat| stat.kind);
    match (&change.now, change.kind) {
        (Node::Link { target, .. }, _) => format!(" -> {}", escape(target.as_bytes())),
        (Node::Special(kind), _) => format!(" (a {}; never applied)", kind.word()),
        (Node::File { stat, .. } | Node::Dir { stat, .. }, ChangeKind::ModeChanged) => {
            let before = change.before.map_or(0, |there| there.mode & 0o777);
            format!(" (mode {before:o} to {:o})", stat.mode & 0o777)
        }
        (Node::File { .. }, ChangeKind::TypeChanged) => format!(" (was a {})", old.map_or("", Kind::word)),
        (Node::File { stat, .. }, _) if stat.mode & 0o7000 != 0 => {
            " (set-id bits are never applied)".to_owned()
        }
        (Node::Dir { .. }, ChangeKind::TypeChanged) => format!("/ (was a {})", old.map_or("", Kind::word)),
        (Node::Dir { .. }, _) => "/".to_owned(),
        (Node::Gone, _) if old == Some(Kind::Dir) => "/ and all in it".to_owned(),
        (Node::File { .. } | Node::Gone, _) => String::new(),
    }
}

fn content(upper: &DirHandle, lower: &DirHandle, change: &Change, out: &mut dyn Write) -> io::Result<()> {
    let was_file = change.before.is_some_and(|stat| stat.kind == Kind::File);
    let (old, new) = match (&change.now, change.kind) {
        (_, ChangeKind::ModeChanged) | (Node::Dir { .. } | Node::Link { .. } | Node::Special(_), _) => {
            return Ok(());
        }
        (Node::Gone, _) if was_file => (text(lower, &change.path), Some(Vec::new())),
        (Node::Gone, _) => return Ok(()),
        (Node::File { .. }, _) if was_file => (text(lower, &change.path), text(upper, &change.path)),
        (Node::File { .. }, _) => (Some(Vec::new()), text(upper, &change.path)),
    };
    let name = escape_path(&change.path);
    let script = old.as_deref().zip(new.as_deref()).and_then(|(old, new)| {
        let (old, new) = (split_lines(old), split_lines(new));
        let script = lines::edits(&old, &new)?;
        Some((old, new, lines::hunks(&script)))
    });
    let Some((old, new, hunks)) = script else {
        return writeln!(out, "\n{name}: differs (binary, or too large to show)");
    };
    if hunks.is_empty() {
        return Ok(());
    }
    let from = if was_file { format!("a/{name}") } else { "/dev/null".to_owned() };
    let to = if change.now == Node::Gone { "/dev/null".to_owned() } else { format!("b/{name}") };
    writeln!(out, "\n--- {from}\n+++ {to}")?;
    hunks.iter().try_for_each(|part| hunk(part, &old, &new, out))
}

fn hunk(hunk: &Hunk, old: &[&[u8]], new: &[&[u8]], out: &mut dyn Write) -> io::Result<()> {
    let place = |range: &std::ops::Range<usize>| {
        // An empty side is named by the line before it, as every reader of this form expects.
        let first = if range.is_empty() { range.start } else { range.start + 1 };
        if range.len() == 1 { first.to_string() } else { format!("{first},{}", range.len()) }
    };
    writeln!(out, "@@ -{} +{} @@", place(&hunk.old), place(&hunk.new))?;
    for edit in &hunk.edits {
        let (sign, line) = match edit {
            Edit::Keep(_, at) => (' ', new.get(*at)),
            Edit::Insert(at) => ('+', new.get(*at)),
            Edit::Delete(at) => ('-', old.get(*at)),
        };
        let line = line.copied().unwrap_or_default();
        let shown = escape_line(
            line.strip_suffix(b"\n")
                .unwrap_or(line)
                .get(..LINE_BYTES)
                .unwrap_or(line.strip_suffix(b"\n").unwrap_or(line)),
        );
        let cut = if line.len() > LINE_BYTES + 1 { " ..." } else { "" };
        writeln!(out, "{sign}{shown}{cut}")?;
        if !line.ends_with(b"\n") {
            writeln!(out, "\\ No newline at end of file")?;
        }
    }
    Ok(())
}

/// A file's bytes, when it is text that can be shown.
fn text(root: &DirHandle, path: &Path) -> Option<Vec<u8>> {
    let bytes = root.read_small(path, SHOWN_BYTES).ok()?;
    if bytes.contains(&0) { None } else { Some(bytes) }
}

fn split_lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Bytes for a person, in thousands.
fn size(bytes: u64) -> String {
    let units = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "KB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, word)) => format!("{}.{} {word}", bytes / unit, bytes % unit / (unit / 10)),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::layers::Bench;

    fn shown(bench: &Bench, detail: Detail) -> String {
        let mut out = Vec::new();
        show(&bench.layer(), &bench.list(), detail, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_person_sees_what_changed_and_nothing_moves_the_terminal() {
        let bench = Bench::new(|place| {
            place.write("edit.txt", "one\ntwo\nthree\n");
            place.write("gone.txt", "bye");
            place.write("old/x", "x");
            place.write("tool", "t");
        });
        bench.guest(
            "printf 'one\\n2\\033[31m\\nthree' > edit.txt; rm gone.txt; rm -r old; chmod 755 tool; ln -s tool l; \
             printf 'a\\0b' > bin; printf hi > \"$(printf 'n\\033[2J\\nM forged')\"; mkfifo pipe",
        );
        let text = shown(&bench, Detail::Lines);
        assert_eq!(
            text,
            "A bin\nM edit.txt\nD gone.txt\nA l -> tool\nA n\\u{1b}[2J\\u{a}M forged\nD old/ and all in it\n\
             A pipe (a named pipe; never applied)\nX tool (mode 644 to 755)\n\
             \nbin: differs (binary, or too large to show)\n\
             \n--- a/edit.txt\n+++ b/edit.txt\n@@ -1,3 +1,3 @@\n one\n-two\n-three\n+2\\u{1b}[31m\n+three\n\\ No newline at end of file\n\
             \n--- a/gone.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n\\ No newline at end of file\n\
             \n--- /dev/null\n+++ b/n\\u{1b}[2J\\u{a}M forged\n@@ -0,0 +1 @@\n+hi\n\\ No newline at end of file\n"
        );
        assert!(shown(&bench, Detail::Paths).lines().count() == 8);
    }

    #[test]
    fn a_file_that_is_large_or_quite_another_only_differs() {
        let bench =
            Bench::new(|place| place.write("many", (0..9_000).map(|n| format!("{n}\n")).collect::<String>()));
        bench.guest("seq 20000 28999 > many; seq 100000 > large");
        let text = shown(&bench, Detail::Lines);
        assert_eq!(text.matches("differs").count(), 2, "{text}");
    }

    #[test]
    fn the_summary_is_one_line() {
        let count = Changes { added: 3, modified: 0, deleted: 1, bytes: 12_460 };
        assert_eq!(summary(&count), "3 added, 1 deleted (12.4 KB)");
        assert_eq!(summary(&Changes::default()), "");
    }
}
