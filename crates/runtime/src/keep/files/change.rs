//! Making folders, moving and removing.

use super::content::free_name;
use super::failure::{bad_request, failed};
use super::{GuestFiles, MOST_LEVELS, Place, checked, too_deep};
use fumehood_keep::wire::{Failure, FailureCode};
use fumehood_sys::dirfd::{CopyError, DirHandle, Kind, RenameMode, copy};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

/// Names that are read of a folder at a time, so that a large one is not held.
const BATCH: usize = 1024;
/// How often a folder is gone over that is being written to meanwhile.
const PASSES: u32 = 10_000;

// === impl GuestFiles ===

impl GuestFiles {
    /// Makes a folder, with all folders to it.
    ///
    /// # Errors
    /// `exists` where anything stands there; the sandbox's user may not.
    pub fn make_dir(&self, path: &str) -> Result<(), Failure> {
        let path = checked(path)?;
        let _rights = self.rights()?;
        let made = match self.root.inside(path, fumehood_sys::dirfd::LastLink::Follow) {
            // Of `/` itself, too.
            Ok(_) => Err(io::Error::from(io::ErrorKind::AlreadyExists)),
            Err(_) => self.place(path, true).and_then(|place| place.parent.make_dir(&place.name, 0o755)),
        };
        made.map_err(|error| failed("make the folder", path, &error))
    }

    /// Moves a file, folder or link, with the folders to its new place made; what stands there is replaced, unless
    /// it is a folder that is not empty. From one file system to another it is copied, put in place, and then
    /// removed.
    ///
    /// # Errors
    /// There is no such thing, or the sandbox's user may not. Devices, pipes and sockets do not cross file systems.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Failure> {
        let (from, to) = (checked(from)?, checked(to)?);
        let _rights = self.rights()?;
        let fault = |error: io::Error| failed("move", from, &error);
        let source = self.place(from, false).map_err(fault)?;
        if source.parent.look(&source.name).map_err(fault)?.is_none() {
            return Err(fault(io::Error::from(io::ErrorKind::NotFound)));
        }
        let target = self.place(to, true).map_err(|error| failed("move to", to, &error))?;
        match source.parent.rename(&source.name, &target.parent, &target.name, RenameMode::Replace) {
            Err(error) if error.kind() == io::ErrorKind::CrossesDevices => carry(&source, &target),
            moved => moved.map_err(fault),
        }
    }

    /// Removes a file or link, or a folder with all that is in it. Nothing is followed, and nothing removed of what
    /// is mounted in it.
    ///
    /// # Errors
    /// There is no such thing; the sandbox's user may not; something keeps writing to it.
    pub fn remove(&self, path: &str) -> Result<(), Failure> {
        let path = checked(path)?;
        if path.file_name().is_none() {
            return Err(bad_request("remove the folder", "the path ends with no name".to_owned()));
        }
        let _rights = self.rights()?;
        let removed = self.place(path, false).and_then(|place| remove(&place.parent, &place.name, 0));
        removed.map_err(|error| failed("remove", path, &error))
    }
}

/// Copies to a name beside the target, puts that in place, and removes the source.
pub(super) fn carry(source: &Place, target: &Place) -> Result<(), Failure> {
    let temp = free_name(|name| copy_tree((&source.parent, &source.name), (&target.parent, name), 0));
    let ((), temp) = temp.map_err(|error| uncarried(source, &error))?;
    let put = target.parent.rename(&temp, &target.parent, &target.name, RenameMode::Replace);
    if let Err(error) = put {
        let _ = remove(&target.parent, &temp, 0);
        return Err(failed("move to", &target.path, &error));
    }
    remove(&source.parent, &source.name, 0)
        .map_err(|error| failed("remove, after it was copied to its new place,", &source.path, &error))
}

fn uncarried(source: &Place, error: &io::Error) -> Failure {
    if error.kind() != io::ErrorKind::Unsupported {
        return failed("move", &source.path, error);
    }
    Failure {
        code: FailureCode::Unsupported,
        message: format!("move `{}`", source.path.display()),
        cause: error.to_string(),
        remediation: "move within one file system, or leave it out".to_owned(),
    }
}

type At<'a> = (&'a DirHandle, &'a OsStr);

/// Copies one thing and all in it. What was made is removed again where it fails.
fn copy_tree(from: At<'_>, (to, name): (&DirHandle, &OsString), level: u32) -> io::Result<()> {
    let copied = copy_one(from, (to, name), level);
    // A name that was taken is not ours.
    if copied.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AlreadyExists) {
        let _ = remove(to, name, 0);
    }
    copied
}

fn copy_one((from, name): At<'_>, (to, new_name): At<'_>, level: u32) -> io::Result<()> {
    if level > MOST_LEVELS {
        return Err(too_deep());
    }
    let held = from.child(name)?;
    let stat = held.stat()?;
    match stat.kind {
        Kind::File => {
            let (file, _) = held.open_file()?;
            let made = to.create_new(new_name, 0o600)?;
            copy(&file, &made, u64::MAX, &mut |_| true).map_err(|error| match error {
                CopyError::Read(error) | CopyError::Write(error) => error,
                CopyError::TooLarge { .. } | CopyError::Stopped => io::Error::other(error),
            })?;
            made.set_mode(stat.mode & 0o777)?;
            made.set_mtime(stat.mtime)
        }
        Kind::Link => to.make_link(&held.read_link()?, new_name),
        Kind::Dir => {
            let dir = held.into_dir();
            to.make_dir(new_name, 0o700)?;
            let made = to.sub(Path::new(new_name))?;
            for entry in dir.list()? {
                let child = entry?.name;
                copy_one((&dir, &child), (&made, &child), level + 1)?;
            }
            made.set_mode(stat.mode & 0o777)
        }
        Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
            let why = format!("there is a {} in it, and it goes to another file system", stat.kind.word());
            Err(io::Error::new(io::ErrorKind::Unsupported, why))
        }
    }
}

fn remove(parent: &DirHandle, name: &OsStr, level: u32) -> io::Result<()> {
    if level > MOST_LEVELS {
        return Err(too_deep());
    }
    let stat = parent.stat_at(name)?;
    if stat.kind != Kind::Dir {
        return parent.remove_file(name);
    }
    for _pass in 0..PASSES {
        match parent.remove_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
            done => return done,
        }
        // Fails at what is mounted there.
        let dir = parent.sub(Path::new(name))?;
        let mut names = Vec::new();
        for entry in dir.list()?.take(BATCH) {
            names.push(entry?.name);
        }
        for child in names {
            match remove(&dir, &child, level + 1) {
                // Gone meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done?,
            }
        }
    }
    Err(io::Error::from(io::ErrorKind::DirectoryNotEmpty))
}
