//! Telling of changes beneath a folder.

use super::failure::failed;
use super::{GuestFiles, MOST_LEVELS, checked, clean};
use fumehood_keep::wire::{Change, Failure, FailureCode};
use fumehood_sys::dirfd::{DirHandle, Held, Kind, LastLink};
use fumehood_sys::inotify::{Event, Inotify, Watch, What};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders that one caller watches at most. The kernel counts them for all callers together.
const MOST_WATCHES: usize = 8192;

/// What one caller watches.
#[derive(Debug)]
pub struct Watcher {
    files: Arc<GuestFiles>,
    inotify: Inotify,
    top: PathBuf,
    top_watch: Option<Watch>,
    recursive: bool,
    /// Where each is, by its path inside.
    places: BTreeMap<Watch, PathBuf>,
}

/// One change: an absolute path inside, as text, and what happened to it.
pub(crate) type Told = (String, Change);

// === impl GuestFiles ===

impl GuestFiles {
    /// Begins to watch a folder; with `recursive` all below it too, and what comes to be there later.
    ///
    /// # Errors
    /// It is no folder, may not be read, or there are more folders than are watched at once.
    pub fn watch(self: &Arc<Self>, path: &str, recursive: bool) -> Result<Watcher, Failure> {
        let path = checked(path)?;
        let fault = |error: io::Error| failed("watch", path, &error);
        let _rights = self.rights()?;
        let held = self.root.inside(path, LastLink::Follow).map_err(fault)?;
        if held.stat().map_err(fault)?.kind != Kind::Dir {
            return Err(fault(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let mut watcher = Watcher {
            files: Arc::clone(self),
            inotify: Inotify::new().map_err(fault)?,
            top: clean(path),
            top_watch: None,
            recursive,
            places: BTreeMap::new(),
        };
        let top = watcher.top.clone();
        watcher.add(held, &top, 0, None)?;
        let mut places = watcher.places.iter();
        watcher.top_watch = places.find(|(_, place)| **place == top).map(|(watch, _)| *watch);
        Ok(watcher)
    }
}

// === impl Watcher ===

impl Watcher {
    /// What happened since it was asked last. Never waits; there is something when the descriptor is readable.
    ///
    /// # Errors
    /// It can not go on: the folder is gone, more happened than could be told, or there are too many folders. What
    /// is watched must then be looked at again.
    pub fn changes(&mut self) -> Result<Vec<Told>, Failure> {
        let _rights = self.files.rights()?;
        let events = self.inotify.read().map_err(|error| failed("watch", &self.top, &error))?;
        let mut told = Vec::new();
        for event in events {
            self.take(&event, &mut told)?;
        }
        // One write is many changes to the kernel.
        told.dedup();
        Ok(told)
    }

    fn take(&mut self, event: &Event, told: &mut Vec<Told>) -> Result<(), Failure> {
        if event.what == What::Lost {
            return Err(self.over(FailureCode::Busy, "more happened than could be told"));
        }
        if event.what == What::Ended {
            self.places.remove(&event.watch);
            let is_top = self.top_watch == Some(event.watch);
            return if is_top { Err(self.over(FailureCode::NotFound, "the folder is gone")) } else { Ok(()) };
        }
        let Some(place) = self.places.get(&event.watch) else { return Ok(()) };
        let path = event.name.as_ref().map_or_else(|| place.clone(), |name| place.join(name));
        let change = match event.what {
            What::Created | What::MovedHere => Change::Created,
            What::Written => Change::Written,
            What::Removed => Change::Removed,
            What::MovedAway => Change::Moved,
            What::Attributes => Change::Mode,
            What::Ended | What::Lost => return Ok(()),
        };
        told.push((path.to_string_lossy().into_owned(), change));
        if self.recursive && event.is_dir && event.name.is_some() {
            match event.what {
                What::MovedAway => self.forget(&path),
                What::Created | What::MovedHere => self.add_found(&path, told)?,
                What::Written | What::Removed | What::Attributes | What::Ended | What::Lost => {}
            }
        }
        Ok(())
    }

    fn add_found(&mut self, path: &Path, told: &mut Vec<Told>) -> Result<(), Failure> {
        let held = self.files.root.inside(path, LastLink::Hold);
        let held = held.ok().filter(|held| held.stat().is_ok_and(|stat| stat.kind == Kind::Dir));
        // Gone again, otherwise.
        held.map_or(Ok(()), |held| self.add(held, path, 1, Some(told)))
    }

    /// Watches a folder and those below it. With `told`, tells of what is in them already: it came while nobody
    /// looked.
    fn add(
        &mut self,
        held: Held,
        path: &Path,
        level: u32,
        mut told: Option<&mut Vec<Told>>,
    ) -> Result<(), Failure> {
        if self.places.len() >= MOST_WATCHES || level > MOST_LEVELS {
            return Err(self.over(FailureCode::Busy, "there are more folders than are watched at once"));
        }
        match self.inotify.add(&held) {
            Ok(watch) => drop(self.places.insert(watch, path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                return Err(self.over(FailureCode::Busy, "this host watches no more folders"));
            }
            // One below that can not be read is no fault of the one that was asked for.
            Err(_) if level > 0 => return Ok(()),
            Err(error) => return Err(failed("watch", path, &error)),
        }
        if !self.recursive {
            return Ok(());
        }
        let dir = held.into_dir();
        for name in names(&dir) {
            let (Ok(child), below) = (dir.child(&name), path.join(&name)) else { continue };
            if let Some(told) = told.as_deref_mut() {
                told.push((below.to_string_lossy().into_owned(), Change::Created));
            }
            if child.stat().is_ok_and(|stat| stat.kind == Kind::Dir) {
                self.add(child, &below, level + 1, told.as_deref_mut())?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, path: &Path) {
        let inotify = &self.inotify;
        self.places.retain(|watch, place| {
            let stays = !place.starts_with(path);
            if !stays {
                inotify.remove(*watch);
            }
            stays
        });
    }

    fn over(&self, code: FailureCode, cause: &str) -> Failure {
        Failure {
            code,
            message: format!("go on watching `{}`", self.top.display()),
            cause: cause.to_owned(),
            remediation: "list the folder to see what is there now, then watch it, or fewer folders, again"
                .to_owned(),
        }
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// What can be read of a folder's names.
fn names(dir: &DirHandle) -> Vec<std::ffi::OsString> {
    let Ok(list) = dir.list() else { return Vec::new() };
    list.map_while(Result::ok).map(|entry| entry.name).take(MOST_NAMES).collect()
}

/// Names of one folder that are looked through for folders in it.
const MOST_NAMES: usize = 100_000;
