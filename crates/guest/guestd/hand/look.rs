//! What stands at a path, and what lies in a folder.

use super::{DEEPEST, EINVAL, Facts, Out, join, link_target, names};
use crate::answer::{self, Kind, Piece};
use crate::call::Errno;
use crate::file;

/// The most that one list tells.
const MOST: u32 = 10_001;

pub(super) fn stat(path: &[u8], out: &mut Out) -> Result<(), Errno> {
    let facts = Facts::of(path)?;
    out.begin();
    say(path, &facts, out);
    Ok(())
}

pub(super) fn list(path: &[u8], depth: u64, out: &mut Out) -> Result<(), Errno> {
    let depth = u32::try_from(depth).unwrap_or(u32::MAX).min(DEEPEST);
    if depth == 0 {
        return Err(EINVAL);
    }
    let first = names(path)?;
    out.begin();
    let mut left = MOST;
    fill(path, first, depth, &mut left, out)?;
    answer::end(out.room());
    Ok(())
}

fn fill(
    folder: &[u8],
    names_in: alloc::vec::Vec<alloc::vec::Vec<u8>>,
    depth: u32,
    left: &mut u32,
    out: &mut Out,
) -> Result<(), Errno> {
    for name in names_in {
        let path = join(folder, &name);
        let Ok(facts) = Facts::of(&path) else { continue };
        let Some(less) = left.checked_sub(1) else { return Ok(()) };
        *left = less;
        say(&path, &facts, out);
        out.pass()?;
        // One below that can not be read is no fault of the one that was asked for.
        if depth > 1
            && facts.is_folder()
            && let Ok(below) = names(&path)
        {
            fill(&path, below, depth - 1, left, out)?;
        }
    }
    Ok(())
}

/// Says one entry.
pub(super) fn say(path: &[u8], facts: &Facts, out: &mut Out) {
    let (kind, link) = match facts.kind() {
        file::KIND_FILE => (Kind::File, None),
        file::KIND_FOLDER => (Kind::Folder, None),
        file::KIND_LINK => (Kind::Link, link_target(path).ok()),
        _ => (Kind::Other, None),
    };
    let piece = Piece {
        kind,
        mode: facts.mode & 0o7777,
        uid: facts.uid,
        gid: facts.gid,
        size: facts.size_bytes,
        modified: facts.modified,
        path,
        link: link.as_deref().unwrap_or_default(),
    };
    piece.print(out.room());
}
