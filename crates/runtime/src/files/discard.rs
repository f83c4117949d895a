//! Removing a tree that a guest filled: never through a link, never out of the tree, however deep.
//!
//! Depth costs nothing: a subdirectory that is not empty is first moved up to the top of the tree,
//! under a name of ours, so two open directories are enough for any tree, and a run that is cut short
//! goes on where it was.

use fumehood_sys::dirfd::{DirHandle, Kind, RenameMode};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A pass removes one level, so this is the depth that is removed at one go. A tree that is still not
/// empty then is being written to while it is removed.
const PASSES: u32 = 1 << 20;
/// How the name of a tree that is being removed starts.
const ASIDE: &str = ".fumehood-removed-";

/// Removes `name` of `parent` and all below it. Absence is success.
///
/// It loses its name first: a half-removed layer must never be taken for a small one. What a kill leaves
/// behind, the next removal in the same folder, or [`sweep`], removes.
pub fn remove_tree(parent: &DirHandle, name: &OsStr) -> io::Result<()> {
    let mut aside = OsString::from(ASIDE);
    aside.push(name);
    // Too long a name fails here, and is then removed where it is.
    let has_aside = empty_out(parent, &aside).is_ok();
    let is_dir = parent.look(name)?.is_some_and(|stat| stat.kind == Kind::Dir);
    if is_dir && has_aside && parent.rename(name, parent, &aside, RenameMode::NoReplace).is_ok() {
        // Absent: a sweep of another process was quicker.
        absent_is_fine(empty_out(parent, &aside))?;
    } else {
        empty_out(parent, name)?;
    }
    sweep(parent)
}

/// Removes what removals that were killed left in `parent`. One that is under way is left to itself.
pub fn sweep(parent: &DirHandle) -> io::Result<()> {
    for name in names(parent)?.iter().filter(|name| name.as_bytes().starts_with(ASIDE.as_bytes())) {
        let is_free = match parent.sub(Path::new(name)) {
            Ok(dir) => dir.try_lock()?.is_some(),
            // Gone meanwhile, or not to be opened as it is.
            Err(_) => true,
        };
        if is_free {
            absent_is_fine(empty_out(parent, name))?;
        }
    }
    Ok(())
}

fn empty_out(parent: &DirHandle, name: &OsStr) -> io::Result<()> {
    let Some(stat) = parent.look(name)? else { return Ok(()) };
    if stat.kind != Kind::Dir {
        return parent.remove_file(name);
    }
    let top = open_unlocked(parent, name)?;
    // Tells a sweep that this one is looked after. Whoever has the lock already does the same.
    let _lock = top.try_lock()?;
    let mut moved: u64 = 0;
    for _pass in 0..PASSES {
        let names = names(&top)?;
        if names.is_empty() {
            return absent_is_fine(parent.remove_dir(name));
        }
        for child in names {
            remove_child(&top, &child, &mut moved)?;
        }
    }
    Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, "something keeps writing to it"))
}

/// Removes one child of `top`; what is not empty below the child is moved up to `top`.
fn remove_child(top: &DirHandle, name: &OsStr, moved: &mut u64) -> io::Result<()> {
    let Some(stat) = top.look(name)? else { return Ok(()) };
    if stat.kind != Kind::Dir {
        return absent_is_fine(top.remove_file(name));
    }
    if top.remove_dir(name).is_ok() {
        return Ok(());
    }
    let dir = open_unlocked(top, name)?;
    for child in names(&dir)? {
        match dir.look(&child)? {
            None => {}
            Some(stat) if stat.kind != Kind::Dir => absent_is_fine(dir.remove_file(&child))?,
            Some(_) if dir.remove_dir(&child).is_ok() => {}
            Some(_) => move_up(&dir, &child, top, moved)?,
        }
    }
    absent_is_fine(top.remove_dir(name))
}

fn move_up(dir: &DirHandle, name: &OsStr, top: &DirHandle, moved: &mut u64) -> io::Result<()> {
    // Moving a directory writes its own `..`, which needs permission on it.
    unlock(dir, name)?;
    loop {
        *moved += 1;
        match dir.rename(name, top, &moved_name(*moved), RenameMode::NoReplace) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done @ (Ok(()) | Err(_)) => return done,
        }
    }
}

fn moved_name(number: u64) -> OsString {
    OsString::from(format!("{ASIDE}{number}"))
}

fn names(dir: &DirHandle) -> io::Result<Vec<OsString>> {
    dir.list()?.map(|entry| entry.map(|entry| entry.name)).collect()
}

fn open_unlocked(parent: &DirHandle, name: &OsStr) -> io::Result<DirHandle> {
    unlock(parent, name)?;
    parent.sub(Path::new(name))
}

/// Gives the owner back the rights that the guest took away. Root needs none.
fn unlock(parent: &DirHandle, name: &OsStr) -> io::Result<()> {
    let Some(stat) = parent.look(name)? else { return Ok(()) };
    if stat.mode & 0o700 == 0o700 { Ok(()) } else { parent.unlock(name) }
}

fn absent_is_fine(answer: io::Result<()>) -> io::Result<()> {
    match answer {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done @ (Ok(()) | Err(_)) => done,
    }
}
