//! Making folders, moving and removing.
//!
//! **Invariant:** nothing is followed that is removed or copied, and nothing of another file system is removed.

use super::{DEEPEST, EBUSY, EFBIG, ENOENT, ENOTEMPTY, ENOTSUP, EXDEV, Facts, join, link_target, names, parts};
use crate::call::{self, Errno, address, raw, word};
use crate::file;

pub(super) fn make_folder(path: &[u8]) -> Result<(), Errno> {
    if Facts::followed(path).is_ok() {
        return Err(call::EEXIST);
    }
    make_folders(parts(path)?.0)?;
    make(path)
}

/// Makes what is missing on the way to a folder, and the folder.
pub(super) fn make_folders(path: &[u8]) -> Result<(), Errno> {
    match Facts::followed(path) {
        Ok(facts) if facts.is_folder() => Ok(()),
        Ok(_) => Err(call::ENOTDIR),
        Err(ENOENT) => {
            make_folders(parts(path)?.0)?;
            match make(path) {
                Ok(()) | Err(call::EEXIST) => Ok(()),
                Err(errno) => Err(errno),
            }
        }
        Err(errno) => Err(errno),
    }
}

fn make(path: &[u8]) -> Result<(), Errno> {
    let path = file::terminated(path);
    // mkdir.
    // SAFETY: the path ends in a zero.
    unsafe { raw(83, [address(path.as_ptr()), 0o755, 0, 0, 0, 0]) }.map(drop)
}

/// What is mounted stays where it is.
fn refuse_mount(path: &[u8]) -> Result<Facts, Errno> {
    let facts = Facts::of(path)?;
    let above = Facts::followed(parts(path)?.0)?;
    if facts.device == above.device { Ok(facts) } else { Err(EBUSY) }
}

pub(super) fn rename(from: &[u8], to: &[u8]) -> Result<(), Errno> {
    refuse_mount(from)?;
    make_folders(parts(to)?.0)?;
    match refuse_mount(to) {
        Ok(_) | Err(ENOENT) => {}
        Err(errno) => return Err(errno),
    }
    match put(from, to) {
        Err(EXDEV) => {}
        moved => return moved,
    }
    // What could not be removed from its place is not copied from there.
    may_change(parts(from)?.0)?;
    // Beside the target, then in its place in one step.
    let beside = [to, b".fumehood-move"].concat();
    let copied = copy(from, &beside, 0).and_then(|()| put(&beside, to));
    if copied.is_err() {
        let _ = remove(&beside);
        return copied;
    }
    remove(from)
}

/// Whether names in a folder can be removed.
fn may_change(folder: &[u8]) -> Result<(), Errno> {
    const CURRENT: i32 = -100;
    let folder = file::terminated(folder);
    // faccessat with W_OK and X_OK.
    // SAFETY: the path ends in a zero.
    unsafe { raw(269, [word(CURRENT), address(folder.as_ptr()), 3, 0, 0, 0]) }.map(drop)
}

fn put(from: &[u8], to: &[u8]) -> Result<(), Errno> {
    let (from, to) = (file::terminated(from), file::terminated(to));
    // rename.
    // SAFETY: both paths end in a zero.
    unsafe { raw(82, [address(from.as_ptr()), address(to.as_ptr()), 0, 0, 0, 0]) }.map(drop)
}

fn copy(from: &[u8], to: &[u8], level: u32) -> Result<(), Errno> {
    if level > DEEPEST {
        return Err(EFBIG);
    }
    let facts = Facts::of(from)?;
    match facts.kind() {
        file::KIND_FOLDER => {
            make(to)?;
            for name in names(from)? {
                copy(&join(from, &name), &join(to, &name), level + 1)?;
            }
            let made = file::open(None, &file::terminated(to), file::O_RDONLY | file::O_DIRECTORY)?;
            file::set_mode(&made, (facts.mode & 0o7777) as u16)
        }
        file::KIND_LINK => {
            let (target, at) = (file::terminated(&link_target(from)?), file::terminated(to));
            // symlink.
            // SAFETY: both strings end in a zero.
            unsafe { raw(88, [address(target.as_ptr()), address(at.as_ptr()), 0, 0, 0, 0]) }.map(drop)
        }
        file::KIND_FILE => {
            let source = file::open(None, &file::terminated(from), file::O_RDONLY | file::O_NOFOLLOW)?;
            let made = file::create_at(&file::terminated(to))?;
            let mut room = alloc::vec![0_u8; 64 * 1024];
            loop {
                let count = file::read(&source, &mut room)?;
                let mut rest = room.get(..count).unwrap_or_default();
                if rest.is_empty() {
                    return file::set_mode(&made, (facts.mode & 0o7777) as u16);
                }
                while !rest.is_empty() {
                    let written = file::write(&made, rest)?;
                    rest = rest.get(written..).unwrap_or_default();
                }
            }
        }
        _ => Err(ENOTSUP),
    }
}

pub(super) fn remove(path: &[u8]) -> Result<(), Errno> {
    let facts = refuse_mount(path)?;
    take_away(path, facts.device, 0)
}

fn take_away(path: &[u8], device: u64, level: u32) -> Result<(), Errno> {
    if level > DEEPEST {
        return Err(EFBIG);
    }
    let facts = Facts::of(path)?;
    if facts.device != device {
        return Err(EBUSY);
    }
    let folder = facts.is_folder();
    if folder {
        // Where it can not be removed at all, it is not emptied: something may be mounted there that is not seen.
        match drop_name(path, true) {
            Err(ENOTEMPTY | call::EEXIST) => {}
            done => return done,
        }
        for name in names(path)? {
            match take_away(&join(path, &name), device, level + 1) {
                // Gone meanwhile.
                Ok(()) | Err(ENOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    drop_name(path, folder)
}

fn drop_name(path: &[u8], folder: bool) -> Result<(), Errno> {
    let path = file::terminated(path);
    // rmdir, unlink.
    let number = if folder { 84 } else { 87 };
    // SAFETY: the path ends in a zero.
    unsafe { raw(number, [address(path.as_ptr()), 0, 0, 0, 0, 0]) }.map(drop)
}
