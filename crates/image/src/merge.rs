//! Layers brought together: one folder that is the image's root, its files those of the layers.
//!
//! **Invariant:** no file of a layer is written, and nothing but names is removed: a file may stand in other images.

use crate::fault::{Code, Fault};
use crate::marks::Marks;
use crate::tar::Name;
use crate::unpack::{FOLDER_MODE, kind, no_file, open_folder, unmade, unreached};
use fumehood_sys::dirfd::{DirHandle, Kind};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};

/// Puts one more layer on top of `root`.
pub(crate) fn apply(root: &DirHandle, tree: &DirHandle, marks: &Marks) -> Result<(), Fault> {
    for name in &marks.gone {
        of(name, gone(root, name))?;
    }
    for name in &marks.emptied {
        of(name, emptied(root, name))?;
    }
    let mut waiting = vec![Name::default()];
    while let Some(folder) = waiting.pop() {
        of(&folder, lay(root, tree, marks, &folder, &mut waiting))?;
    }
    for (name, target) in &marks.links {
        of(name, link(root, name, target))?;
    }
    Ok(())
}

fn of<T>(name: &Name, result: Result<T, Fault>) -> Result<T, Fault> {
    result.map_err(|fault| if name.is_root() { fault } else { fault.of(&format!("`{}`", name.shown())) })
}

/// One folder of the layer.
fn lay(
    root: &DirHandle,
    tree: &DirHandle,
    marks: &Marks,
    folder: &Name,
    waiting: &mut Vec<Name>,
) -> Result<(), Fault> {
    let from = tree.sub(folder.path()).map_err(|error| unreached(&error))?;
    let to = root.sub(folder.path()).map_err(|error| unreached(&error))?;
    for last in names(&from)? {
        let name = folder.join(&last);
        if kind(&from, &last)? == Some(Kind::Dir) {
            let implied = marks.implied.contains(&name);
            of(&name, lay_folder(&to, &last, implied))?;
            waiting.push(name);
        } else {
            of(&name, lay_file(&from, &to, &last))?;
        }
    }
    Ok(())
}

fn lay_folder(to: &DirHandle, last: &OsStr, implied: bool) -> Result<(), Fault> {
    match kind(to, last)? {
        Some(Kind::Dir) => return Ok(()),
        // What stands below would have been followed by others.
        Some(_) if implied => {
            return Err(Fault::new(Code::Escapes, "a path leads through what is no folder"));
        }
        Some(_) => to.remove_file(last).map_err(|error| unmade(&error))?,
        None => {}
    }
    to.make_dir(last, FOLDER_MODE).map_err(|error| unmade(&error))?;
    open_folder(to, last).map(drop)
}

fn lay_file(from: &DirHandle, to: &DirHandle, last: &OsStr) -> Result<(), Fault> {
    let mut done = from.hard_link(last, to, last);
    if done.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
        remove(to, last)?;
        done = from.hard_link(last, to, last);
    }
    match done {
        Err(error) if error.kind() == ErrorKind::TooManyLinks => copy(from, to, last),
        other => other.map_err(|error| unmade(&error)),
    }
}

/// A file that has as many names as the file system allows.
fn copy(from: &DirHandle, to: &DirHandle, last: &OsStr) -> Result<(), Fault> {
    if kind(from, last)? == Some(Kind::Link) {
        let target = from.read_link(last).map_err(|error| unmade(&error))?;
        return to.make_link(&target, last).map_err(|error| unmade(&error));
    }
    let (mut source, stat) = from.read(last.as_ref()).map_err(|error| unreached(&error))?;
    let copied = to.create_new(last, stat.mode).and_then(|mut file| {
        io::copy(&mut source, &mut file)?;
        file.set_mode(stat.mode)?;
        file.set_mtime(stat.mtime)
    });
    copied.map_err(|error| unmade(&error))
}

fn link(root: &DirHandle, name: &Name, target: &Name) -> Result<(), Fault> {
    let (Some((folder, last)), Some((beside, from))) = (name.split(), target.split()) else {
        return Err(no_file(target));
    };
    let beside = match root.sub(beside.path()) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_file(target)),
        other => other.map_err(|error| unreached(&error))?,
    };
    if !matches!(kind(&beside, from)?, Some(Kind::File | Kind::Link)) {
        return Err(no_file(target));
    }
    let folder = root.sub(folder.path()).map_err(|error| unreached(&error))?;
    match kind(&folder, last)? {
        Some(Kind::Dir) => return Err(Fault::new(Code::Escapes, "a folder stands where a file should")),
        Some(_) => folder.remove_file(last).map_err(|error| unmade(&error))?,
        None => {}
    }
    beside.hard_link(from, &folder, last).map_err(|error| unmade(&error))
}

/// A name that is not there needs not to go.
fn gone(root: &DirHandle, name: &Name) -> Result<(), Fault> {
    let Some((folder, last)) = name.split() else { return Ok(()) };
    match root.sub(folder.path()) {
        Ok(folder) => remove(&folder, last),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(unreached(&error)),
    }
}

fn emptied(root: &DirHandle, name: &Name) -> Result<(), Fault> {
    match root.sub(name.path()) {
        Ok(folder) => clear(&folder),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(()),
        Err(error) => Err(unreached(&error)),
    }
}

fn clear(folder: &DirHandle) -> Result<(), Fault> {
    names(folder)?.iter().try_for_each(|name| remove(folder, name))
}

/// Removes a name and all beneath it. Depth is bounded by what a [`Name`] can be.
fn remove(at: &DirHandle, name: &OsStr) -> Result<(), Fault> {
    match kind(at, name)? {
        None => Ok(()),
        Some(Kind::Dir) => {
            clear(&at.sub(name.as_ref()).map_err(|error| unreached(&error))?)?;
            at.remove_dir(name).map_err(|error| unmade(&error))
        }
        Some(_) => at.remove_file(name).map_err(|error| unmade(&error)),
    }
}

fn names(folder: &DirHandle) -> Result<Vec<OsString>, Fault> {
    let list = folder.list().map_err(|error| unreached(&error))?;
    list.map(|entry| entry.map(|entry| entry.name))
        .collect::<io::Result<_>>()
        .map_err(|error| unreached(&error))
}
