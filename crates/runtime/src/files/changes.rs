//! What a layer changes: the upper folder of an overlay, read against the host folder below it.
//!
//! Only the upper folder is walked; of the host folder only the names that the upper one has are looked
//! up (and the children of a directory that the guest replaced), so the size of a workspace costs
//! nothing. What the kernel copied up without a change is not a change: content is compared, since the
//! guest can set sizes and times as it likes.
//!
//! How the kernel says things in an upper folder: a character device 0:0 is a deleted name, a directory
//! with the attribute `overlay.opaque` hides the one below it, `overlay.origin` marks a file that was
//! copied up from below.

use super::text::escape_path;
use super::{Refusal, depth, split};
use fumehood_model::report::Changes;
use fumehood_sys::dirfd::{DirHandle, Kind, Stat};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Bytes that are compared before files of equal size are called modified unread.
const COMPARE_BYTES: u64 = 1 << 30;
const CHUNK_BYTES: usize = 64 * 1024;

/// The ceilings of one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLimits {
    /// Names of the upper folder.
    pub names: u64,
    /// Components of a path.
    pub depth: usize,
}

/// One path that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Below the workspace, bytes as they are.
    pub path: PathBuf,
    pub kind: ChangeKind,
    /// What the layer has there.
    pub now: Node,
    /// What the host has there.
    pub before: Option<Stat>,
}

/// How a path differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It was not there.
    Added,
    /// The same kind of object with another content (of a link: another target).
    Modified,
    /// The same content with other permission bits.
    ModeChanged,
    /// Another kind of object.
    TypeChanged,
    /// It is gone; a directory with all below it.
    Deleted,
}

/// What a layer has at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    File {
        stat: Stat,
        /// Whether the kernel copied it up from a file that was there when the layer was made, under
        /// this name or, moved since, another. Only asked where the host's folder is there and the
        /// file is not.
        copied_up: bool,
    },
    Dir {
        stat: Stat,
        /// As for a file; only asked where the host has nothing.
        copied_up: bool,
    },
    Link {
        target: OsString,
        stat: Stat,
    },
    /// A pipe, a socket or a device: shown, never applied.
    Special(Kind),
    Gone,
}

/// All that a layer changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeList {
    /// Parents before their children; siblings by name.
    pub changes: Vec<Change>,
    /// What could not be read as a change: too deep, too many, unreadable.
    pub unread: Vec<Refusal>,
}

/// Why a layer can not be read.
#[derive(Debug, thiserror::Error)]
#[error("read `{}` of the layer", escape_path(path))]
pub struct ReadError {
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// One directory still to be read.
struct Waiting {
    path: PathBuf,
    /// Whether the host's directory of that path shows through.
    merged: bool,
}

struct Reading<'a> {
    upper: &'a DirHandle,
    lower: &'a DirHandle,
    limits: ReadLimits,
    names: u64,
    compared: u64,
    list: ChangeList,
    waiting: Vec<Waiting>,
}

// === impl ReadLimits ===

impl Default for ReadLimits {
    fn default() -> Self {
        Self { names: 2_000_000, depth: 256 }
    }
}

// === impl ChangeList ===

impl ChangeList {
    /// How many paths of each kind, and the bytes of the new contents.
    pub fn count(&self) -> Changes {
        let mut count = Changes::default();
        for change in &self.changes {
            match change.kind {
                ChangeKind::Added => count.added += 1,
                ChangeKind::Modified | ChangeKind::ModeChanged | ChangeKind::TypeChanged => {
                    count.modified += 1
                }
                ChangeKind::Deleted => count.deleted += 1,
            }
            if let Node::File { stat, .. } = &change.now
                && change.kind != ChangeKind::ModeChanged
            {
                count.bytes = count.bytes.saturating_add(stat.size);
            }
        }
        count
    }

    /// Whether there is nothing to show, apply or keep.
    pub const fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.unread.is_empty()
    }
}

/// Reads `upper`, an overlay's upper folder, against `lower`, the host's folder.
pub fn read(upper: &DirHandle, lower: &DirHandle, limits: ReadLimits) -> Result<ChangeList, ReadError> {
    let mut reading = Reading {
        upper,
        lower,
        limits,
        names: 0,
        compared: 0,
        list: ChangeList::default(),
        waiting: vec![Waiting { path: PathBuf::new(), merged: true }],
    };
    while let Some(next) = reading.waiting.pop() {
        reading.directory(&next)?;
    }
    // The walk is deepest-last within a branch, not across branches; a stable order is by path.
    reading.list.changes.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(reading.list)
}

// === impl Reading ===

impl Reading<'_> {
    fn push(&mut self, path: &Path, kind: ChangeKind, now: Node, before: Option<Stat>) {
        self.list.changes.push(Change { path: path.to_owned(), kind, now, before });
    }

    fn unread(&mut self, path: &Path, why: impl Into<String>) {
        self.list.unread.push(Refusal::new(path, why));
    }

    fn directory(&mut self, at: &Waiting) -> Result<(), ReadError> {
        let upper = match self.upper.sub(&at.path) {
            Ok(dir) => dir,
            Err(source) if at.path.as_os_str().is_empty() => {
                return Err(ReadError { path: at.path.clone(), source });
            }
            Err(error) => {
                self.unread(&at.path, format!("could not be opened: {error}"));
                return Ok(());
            }
        };
        let lower = self.lower_directory(&at.path);
        if mark(&upper, "redirect").is_some() {
            self.unread(&at.path, "a moved directory, which a layer of ours can not hold");
            return Ok(());
        }
        let opaque = mark(&upper, "opaque").is_some_and(|value| value == b"y");
        let mut names = Vec::new();
        let mut entries = upper.list().map_err(|source| ReadError { path: at.path.clone(), source })?;
        for entry in &mut entries {
            let entry = entry.map_err(|source| ReadError { path: at.path.clone(), source })?;
            self.names += 1;
            if self.names > self.limits.names {
                self.unread(&at.path, format!("more than {} names", self.limits.names));
                return Ok(());
            }
            names.push(entry.name);
        }
        names.sort();
        if let Some(lower) = lower.as_ref().filter(|_lower| opaque || !at.merged) {
            self.hidden(lower, &at.path, &names);
        }
        for name in names {
            let merged = at.merged && !opaque;
            self.entry(&upper, lower.as_ref(), &at.path.join(&name), merged);
        }
        Ok(())
    }

    /// The host's directory of that path, when it has one.
    fn lower_directory(&self, path: &Path) -> Option<DirHandle> {
        self.lower.sub(path).ok()
    }

    /// Names of the host's directory that a replaced directory does not have: deleted ones.
    fn hidden(&mut self, lower: &DirHandle, path: &Path, kept: &[OsString]) {
        let names = lower.list().and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        match names {
            Err(error) => self.unread(path, format!("the host's directory could not be read: {error}")),
            Ok(names) => {
                for entry in names {
                    if kept.binary_search(&entry.name).is_err()
                        && let Ok(Some(before)) = lower.look(&entry.name)
                    {
                        self.push(&path.join(&entry.name), ChangeKind::Deleted, Node::Gone, Some(before));
                    }
                }
            }
        }
    }

    fn entry(&mut self, upper: &DirHandle, lower: Option<&DirHandle>, path: &Path, merged: bool) {
        let Some((_, name)) = split(path) else { return };
        let now = match upper.look(name) {
            Ok(Some(now)) => now,
            Ok(None) => return,
            Err(error) => return self.unread(path, format!("could not be looked at: {error}")),
        };
        let before = match lower.map_or(Ok(None), |lower| lower.look(name)) {
            Ok(before) => before,
            Err(error) => return self.unread(path, format!("the host's could not be looked at: {error}")),
        };
        match now.kind {
            Kind::CharDevice if now.is_whiteout() => {
                if before.is_some() {
                    self.push(path, ChangeKind::Deleted, Node::Gone, before);
                }
            }
            Kind::File => self.file((upper, lower), path, now, before),
            Kind::Dir => self.sub_directory(upper, path, (now, before), merged),
            Kind::Link => self.link((upper, lower), path, now, before),
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                let kind = before.map_or(ChangeKind::Added, |_there| ChangeKind::TypeChanged);
                self.push(path, kind, Node::Special(now.kind), before);
            }
        }
    }

    fn sub_directory(
        &mut self,
        upper: &DirHandle,
        path: &Path,
        (now, before): (Stat, Option<Stat>),
        merged: bool,
    ) {
        let Some((_, name)) = split(path) else { return };
        let origin = || upper.sub(Path::new(name)).is_ok_and(|dir| mark(&dir, "origin").is_some());
        let node = Node::Dir { stat: now, copied_up: before.is_none() && origin() };
        match before {
            None => self.push(path, ChangeKind::Added, node, None),
            Some(there) if there.kind != Kind::Dir => self.push(path, ChangeKind::TypeChanged, node, before),
            Some(there) if there.mode & 0o777 != now.mode & 0o777 => {
                self.push(path, ChangeKind::ModeChanged, node, before);
            }
            Some(_same) => {}
        }
        if depth(path) >= self.limits.depth {
            return self.unread(path, format!("deeper than {} directories", self.limits.depth));
        }
        self.waiting.push(Waiting { path: path.to_owned(), merged });
    }

    fn link(
        &mut self,
        (upper, lower): (&DirHandle, Option<&DirHandle>),
        path: &Path,
        now: Stat,
        before: Option<Stat>,
    ) {
        let Some((_, name)) = split(path) else { return };
        let target = match upper.read_link(name) {
            Ok(target) => target,
            Err(error) => return self.unread(path, format!("the link could not be read: {error}")),
        };
        let kind = match before {
            None => ChangeKind::Added,
            Some(there) if there.kind != Kind::Link => ChangeKind::TypeChanged,
            Some(_link) => {
                let old = lower.and_then(|lower| lower.read_link(name).ok());
                if old.as_ref() == Some(&target) {
                    return;
                }
                ChangeKind::Modified
            }
        };
        self.push(path, kind, Node::Link { target, stat: now }, before);
    }

    fn file(
        &mut self,
        (upper, lower): (&DirHandle, Option<&DirHandle>),
        path: &Path,
        now: Stat,
        before: Option<Stat>,
    ) {
        let Some((_, name)) = split(path) else { return };
        let kind = match (before, lower) {
            (Some(there), Some(lower)) if there.kind == Kind::File => {
                let same = now.size == there.size && self.same_content(upper, lower, name, now.size);
                if !same {
                    ChangeKind::Modified
                } else if there.mode & 0o777 != now.mode & 0o777 {
                    ChangeKind::ModeChanged
                } else {
                    return;
                }
            }
            (Some(_other), _) => ChangeKind::TypeChanged,
            (None, _) => ChangeKind::Added,
        };
        // Asking opens the file, so only where the answer matters: the host has the folder, not the file.
        let copied_up = before.is_none()
            && lower.is_some()
            && upper.read(Path::new(name)).is_ok_and(|(file, _)| {
                ["user", "trusted"]
                    .iter()
                    .any(|space| matches!(file.attribute(&format!("{space}.overlay.origin")), Ok(Some(_))))
            });
        self.push(path, kind, Node::File { stat: now, copied_up }, before);
    }

    /// Whether two files of equal size hold the same bytes. Anything in doubt is "no".
    fn same_content(&mut self, upper: &DirHandle, lower: &DirHandle, name: &OsStr, size: u64) -> bool {
        self.compared = self.compared.saturating_add(size);
        if self.compared > COMPARE_BYTES {
            return false;
        }
        let (Ok((now, _)), Ok((before, _))) = (upper.read(Path::new(name)), lower.read(Path::new(name)))
        else {
            return false;
        };
        same_bytes(now.take(size), before.take(size)).unwrap_or(false)
    }
}

/// The value of an overlay mark. The two spellings are those of a mount by an ordinary user (which is
/// also ours as root) and of one by root.
fn mark(dir: &DirHandle, mark: &str) -> Option<Vec<u8>> {
    ["user", "trusted"]
        .iter()
        .find_map(|space| dir.attribute(&format!("{space}.overlay.{mark}")).ok().flatten())
}

fn same_bytes(mut a: impl Read, mut b: impl Read) -> io::Result<bool> {
    let (mut left, mut right) = (vec![0_u8; CHUNK_BYTES], vec![0_u8; CHUNK_BYTES]);
    loop {
        let count = fill(&mut a, &mut left)?;
        if fill(&mut b, &mut right)? != count || left.get(..count) != right.get(..count) {
            return Ok(false);
        }
        if count < CHUNK_BYTES {
            return Ok(true);
        }
    }
}

/// Reads until the buffer is full or the source ends.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match source.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
