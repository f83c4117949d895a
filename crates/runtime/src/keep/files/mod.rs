//! The files of a living sandbox, seen and changed from outside while it runs.
//!
//! A guest chose every name, link and type there, and may swap them while we look. So each path is looked up by the
//! kernel with the guest's own root as the root: a link inside leads inside, whatever it says, and nothing is ever
//! looked up on the host. And each verb does its work with the rights of the sandbox's user: what the sandbox could
//! not read, make or remove, its caller can not either, and what is made is the sandbox's.
//!
//! **Invariant:** no path leads out of the root, and nothing but a regular file is opened for its content.
//! **Invariant:** no verb holds more of a file than one chunk, nor more of a folder than it answers with.

mod change;
mod content;
mod failure;
pub(crate) mod inside;
mod list;
mod transfer;
mod watch;

pub use content::{Content, Upload};
pub use transfer::{Caller, busy};
pub use watch::Watcher;

use failure::{bad_request, failed};
use fumehood_keep::wire::{Entry, EntryKind, Failure, FailureCode, MOST_PATH_BYTES};
use fumehood_sys::dirfd::{DirHandle, Held, Kind, LastLink, Stat};
use fumehood_sys::rights::Rights;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// As the kernel's own limit on links in one lookup.
const MOST_LINKS: u32 = 40;
/// The deepest folder that a list, a copy or a removal goes down to, counted from where it starts: each level holds a
/// descriptor.
const MOST_LEVELS: u32 = 128;
/// How an owner is shown who has no number inside.
const UNMAPPED: u32 = 65_534;

/// A handle of the guest's `/`, and whose rights are used beneath it.
#[derive(Debug)]
pub struct GuestFiles {
    root: DirHandle,
    owner: (u32, u32),
    shown: (u32, u32),
}

/// One name in a folder that is held.
#[derive(Debug)]
struct Place {
    parent: DirHandle,
    name: OsString,
    /// For people.
    path: PathBuf,
}

// === impl GuestFiles ===

impl GuestFiles {
    /// Beneath `root`, with the rights of `owner`, as the kernel numbers user and group outside; `shown` is how
    /// these are numbered inside.
    #[must_use]
    pub fn new(root: OwnedFd, owner: (u32, u32), shown: (u32, u32)) -> Arc<Self> {
        Arc::new(Self { root: root.into(), owner, shown })
    }

    /// What stands at `path`; of a link, the link.
    ///
    /// # Errors
    /// Nothing stands there, or it can not be reached.
    pub fn stat(&self, path: &str) -> Result<Entry, Failure> {
        let path = checked(path)?;
        let _rights = self.rights()?;
        let held = self.root.inside(path, LastLink::Hold);
        let entry = held.and_then(|held| self.entry(&held, &clean(path)));
        entry.map_err(|error| failed("look at", path, &error))
    }

    fn rights(&self) -> Result<Rights, Failure> {
        let taken = Rights::take(self.owner.0, self.owner.1);
        taken.map_err(|error| failed("take the sandbox's rights for", Path::new("/"), &error))
    }

    fn entry(&self, held: &Held, path: &Path) -> io::Result<Entry> {
        let stat = held.stat()?;
        // Where it may not be read, there is nothing to show.
        let link = (stat.kind == Kind::Link).then(|| held.read_link().ok()).flatten();
        Ok(self.shown(&stat, path, link.as_deref()))
    }

    fn shown(&self, stat: &Stat, path: &Path, link: Option<&OsStr>) -> Entry {
        let number = |of: u32, owner: u32, shown: u32| if of == owner { shown } else { UNMAPPED };
        let millis = stat.mtime.secs.saturating_mul(1000);
        Entry {
            path: path.to_string_lossy().into_owned(),
            odd: path.to_str().is_none(),
            kind: match stat.kind {
                Kind::File => EntryKind::File,
                Kind::Dir => EntryKind::Folder,
                Kind::Link => EntryKind::Link,
                Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => EntryKind::Other,
            },
            size: stat.size,
            mode: stat.mode,
            owner: number(stat.uid, self.owner.0, self.shown.0),
            group: number(stat.gid, self.owner.1, self.shown.1),
            modified_ms: millis.saturating_add(i64::from(stat.mtime.nanos / 1_000_000)),
            link: link.map(|link| link.to_string_lossy().into_owned()),
        }
    }

    /// The folder of `path`, held, and its last name. With `make`, the folders to it are made.
    fn place(&self, path: &Path, make: bool) -> io::Result<Place> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path ends with no name"));
        };
        let held = match self.folder(parent) {
            Err(error) if make && error.kind() == io::ErrorKind::NotFound => {
                self.make_folders(parent).and_then(|()| self.folder(parent))?
            }
            found => found?,
        };
        Ok(Place { parent: held, name: name.to_owned(), path: clean(path) })
    }

    /// As [`GuestFiles::place`], but a link there is followed to where it leads, whether or not something is there.
    fn place_followed(&self, path: &Path) -> io::Result<Place> {
        let shown = clean(path);
        let mut path = path.to_owned();
        for _link in 0..MOST_LINKS {
            let place = self.place(&path, true)?;
            let held = match place.parent.child(&place.name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(Place { path: shown, ..place });
                }
                held => held?,
            };
            if held.stat()?.kind != Kind::Link {
                return Ok(Place { path: shown, ..place });
            }
            let target = held.read_link()?;
            // An absolute one takes the whole path's place.
            path = path.parent().unwrap_or(Path::new("/")).join(target);
        }
        Err(io::Error::from_raw_os_error(failure::ELOOP))
    }

    fn folder(&self, path: &Path) -> io::Result<DirHandle> {
        let held = self.root.inside(path, LastLink::Follow)?;
        if held.stat()?.kind == Kind::Dir {
            Ok(held.into_dir())
        } else {
            Err(io::Error::from(io::ErrorKind::NotADirectory))
        }
    }

    /// Makes what is missing on the way to `path`, and `path`.
    fn make_folders(&self, path: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut at = path;
        let mut above = loop {
            match self.folder(at) {
                Ok(found) => break found,
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Err(error) => {
                    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return Err(error) };
                    missing.push(name);
                    at = parent;
                }
            }
        };
        while let Some(name) = missing.pop() {
            match above.make_dir(name, 0o755) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let made = above.child(name)?;
            // Something else was put there meanwhile, or a link that leads nowhere was there.
            if made.stat()?.kind != Kind::Dir {
                return Err(io::Error::from(io::ErrorKind::NotADirectory));
            }
            above = made.into_dir();
        }
        Ok(())
    }
}

/// A path as it may be asked for.
fn checked(path: &str) -> Result<&Path, Failure> {
    if path.len() > MOST_PATH_BYTES {
        return Err(bad_request("read the path", format!("it is longer than {MOST_PATH_BYTES} bytes")));
    }
    if !path.starts_with('/') || path.contains('\0') {
        let shown = path.chars().take(100).collect::<String>();
        return Err(bad_request("read the path", format!("`{}` is not absolute", shown.escape_default())));
    }
    Ok(Path::new(path))
}

/// How a path is shown: with one `/` between names, and no `.` or `..`.
fn clean(path: &Path) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

fn too_deep() -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("folders lie more than {MOST_LEVELS} deep"))
}

/// A code of its own for what is not to be mistaken for another fault.
fn not_a_file(path: &Path, what: &str) -> Failure {
    Failure {
        code: FailureCode::NotAFile,
        message: format!("open `{}`", path.display()),
        cause: format!("it is a {what}"),
        remediation: "name a regular file".to_owned(),
    }
}

#[cfg(test)]
mod tests;
