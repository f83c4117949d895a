//! Paths and entries of files, as envd shows them.

use super::connect::Fault;
use super::words::rfc3339;
use crate::keeper::Keeper;
use fumehood_keep::wire::{Ask, Entry, EntryKind, Said};
use serde_json::{Value, json};

/// Links that are followed from one to the next.
const MOST_LINKS: u32 = 8;

/// A path as a client wrote it, absolute: from the user's home, `~` being that, without `.` and `..`.
pub(super) fn absolute(home: &str, path: &str) -> String {
    let whole = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{home}/{path}"),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The last part of a path.
pub(super) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or("")
}

/// The folder of a path.
pub(super) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

/// One entry, looked up.
pub(super) async fn look(keeper: &Keeper, path: &str) -> Result<Entry, Fault> {
    match keeper.call(&Ask::Stat { path: path.to_owned() }).await? {
        Said::Entry { entry } => Ok(entry),
        _ => Err(super::envd::strange("Stat")),
    }
}

/// An entry in envd's words. A link has the type of what it leads to.
pub(super) async fn words(keeper: &Keeper, entry: &Entry) -> Value {
    let kind = match entry.kind {
        EntryKind::Link => follow(keeper, entry).await,
        kind => kind,
    };
    let mut words = json!({
        "name": name(&entry.path),
        "type": match kind {
            EntryKind::Folder => "FILE_TYPE_DIRECTORY",
            EntryKind::Link => "FILE_TYPE_SYMLINK",
            EntryKind::File => "FILE_TYPE_FILE",
            EntryKind::Other => "FILE_TYPE_UNSPECIFIED",
        },
        "path": entry.path,
        "size": entry.size.to_string(),
        "mode": entry.mode,
        "permissions": permissions(entry),
        "owner": user(entry.owner),
        "group": user(entry.group),
        "modifiedTime": rfc3339(u64::try_from(entry.modified_ms).unwrap_or(0)),
    });
    if let (Some(target), Some(words)) = (&entry.link, words.as_object_mut()) {
        words.insert("symlinkTarget".to_owned(), json!(absolute(parent(&entry.path), target)));
        words.insert("isSymlink".to_owned(), json!(true));
    }
    words
}

/// The words of every entry.
pub(super) async fn all(keeper: &Keeper, entries: &[Entry]) -> Vec<Value> {
    let mut shown = Vec::with_capacity(entries.len());
    for entry in entries {
        shown.push(words(keeper, entry).await);
    }
    shown
}

/// What a link leads to; a link, where it leads nowhere.
async fn follow(keeper: &Keeper, entry: &Entry) -> EntryKind {
    let mut at = entry.clone();
    for _ in 0..MOST_LINKS {
        let Some(target) = at.link.as_deref() else { return at.kind };
        let path = absolute(parent(&at.path), target);
        match look(keeper, &path).await {
            Ok(found) => at = found,
            Err(_) => return EntryKind::Link,
        }
    }
    EntryKind::Link
}

fn user(id: u32) -> String {
    match id {
        0 => "root".to_owned(),
        1000 => "user".to_owned(),
        other => other.to_string(),
    }
}

/// As `ls` writes them.
fn permissions(entry: &Entry) -> String {
    let kind = match entry.kind {
        EntryKind::Folder => 'd',
        EntryKind::Link => 'L',
        EntryKind::File => '-',
        EntryKind::Other => '?',
    };
    let bits = "rwxrwxrwx"
        .chars()
        .enumerate()
        .map(|(place, letter)| if entry.mode & (0o400 >> place) != 0 { letter } else { '-' });
    std::iter::once(kind).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_absolute_and_never_above_the_root() {
        for (path, is) in [
            ("a", "/home/user/a"),
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("~a", "/home/user/~a"),
            ("/a//b/./c/../d/", "/a/b/d"),
            ("../../../..", "/"),
            ("/ä ö/☃", "/ä ö/☃"),
        ] {
            assert_eq!(absolute("/home/user", path), is, "{path}");
        }
        assert_eq!((name("/a/b"), parent("/a/b"), parent("/a"), name("/")), ("b", "/a", "/", ""));
    }

    #[test]
    fn permissions_read_as_ls_writes_them() {
        let entry = Entry {
            path: "/a".to_owned(),
            odd: false,
            kind: EntryKind::Folder,
            size: 0,
            mode: 0o751,
            owner: 1000,
            group: 0,
            modified_ms: 0,
            link: None,
        };
        assert_eq!(permissions(&entry), "drwxr-x--x");
    }
}
