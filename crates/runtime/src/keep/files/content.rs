//! Content of regular files, in chunks: nothing is held but the chunk.

use super::failure::{bad_request, failed};
use super::{GuestFiles, Place, checked, clean, not_a_file};
use fumehood_keep::wire::{Entry, Failure};
use fumehood_sys::dirfd::{DirHandle, FileHandle, Kind, LastLink, RenameMode};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Tries to find a free name beside the target.
const NAME_TRIES: u32 = 16;
/// The mode of a file that was not there.
const NEW_MODE: u32 = 0o644;

/// An open regular file, at the wanted place.
#[derive(Debug)]
pub struct Content {
    pub entry: Entry,
    /// Reading it never waits for another process. A file that grows meanwhile is read on to `left` alone.
    pub file: File,
    /// Bytes from here on, as the file was when it was opened. A file that shrinks gives fewer.
    pub left: u64,
}

/// A file that is being written, and is not seen before it is whole.
#[derive(Debug)]
pub struct Upload {
    files: Arc<GuestFiles>,
    place: Place,
    file: FileHandle,
    /// The name it has beside the target; none where the file system has files without one.
    temp: Option<OsString>,
    mode: u32,
}

// === impl GuestFiles ===

impl GuestFiles {
    /// Opens a regular file to read `length` bytes (all, if absent) from `offset` on. Links are followed.
    ///
    /// # Errors
    /// There is none, or the sandbox's user may not read it.
    pub fn read(&self, path: &str, offset: u64, length: Option<u64>) -> Result<Content, Failure> {
        let path = checked(path)?;
        let fault = |error: io::Error| failed("read", path, &error);
        let _rights = self.rights()?;
        let held = self.root.inside(path, LastLink::Follow).map_err(fault)?;
        let stat = held.stat().map_err(fault)?;
        if stat.kind != Kind::File {
            return Err(not_a_file(path, stat.kind.word()));
        }
        let (file, stat) = held.open_file().map_err(fault)?;
        let mut file = File::from(OwnedFd::from(file));
        file.seek(SeekFrom::Start(offset)).map_err(fault)?;
        let left = stat.size.saturating_sub(offset).min(length.unwrap_or(u64::MAX));
        Ok(Content { entry: self.shown(&stat, &clean(path), None), file, left })
    }

    /// Begins to write a file, with the folders to it. A link there is followed, also one that leads to nothing yet.
    /// Without a `mode` a file that is replaced keeps its own.
    ///
    /// # Errors
    /// Something else than a file stands there, or the sandbox's user may not write there.
    pub fn write(self: &Arc<Self>, path: &str, mode: Option<u32>) -> Result<Upload, Failure> {
        let path = checked(path)?;
        if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            return Err(bad_request(
                "write the file",
                "the path ends with `/`, as that of a folder".to_owned(),
            ));
        }
        let fault = |error: io::Error| failed("write", path, &error);
        let _rights = self.rights()?;
        let place = self.place_followed(path).map_err(fault)?;
        let there = place.parent.look(&place.name).map_err(fault)?;
        if let Some(there) = there.filter(|there| there.kind != Kind::File) {
            return Err(not_a_file(path, there.kind.word()));
        }
        let kept = there.map_or(NEW_MODE, |there| there.mode & 0o777);
        let mode = mode.map_or(kept, |mode| mode & 0o777);
        let (file, temp) = create(&place.parent).map_err(fault)?;
        Ok(Upload { files: Arc::clone(self), place, file, temp, mode })
    }
}

// === impl Content ===

impl Content {
    /// The next bytes, as many as the buffer takes at most; zero at the end.
    ///
    /// # Errors
    /// The disk's.
    pub fn next(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let room = buffer.get_mut(..most).unwrap_or_default();
        loop {
            match self.file.read(room) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed("read", self.entry.path.as_ref(), &error)),
                Ok(read) => {
                    self.left = self.left.saturating_sub(u64::try_from(read).unwrap_or(u64::MAX));
                    return Ok(read);
                }
            }
        }
    }
}

// === impl Upload ===

impl Upload {
    /// Appends.
    ///
    /// # Errors
    /// The disk is full, or fails.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        // As the sandbox: the last blocks of a disk may be root's alone.
        let _rights = self.files.rights()?;
        self.file.write_all(bytes).map_err(|error| failed("write", &self.place.path, &error))
    }

    /// Puts the file in its place, in one step.
    ///
    /// # Errors
    /// Something else stands there by now, or the folder is gone.
    pub fn finish(mut self) -> Result<Entry, Failure> {
        let _rights = self.files.rights()?;
        let done = self.put();
        let entry = done.and_then(|()| {
            let stat = self.file.stat()?;
            Ok(self.files.shown(&stat, &self.place.path, None))
        });
        entry.map_err(|error| failed("write", &self.place.path, &error))
    }

    fn put(&mut self) -> io::Result<()> {
        self.file.set_mode(self.mode)?;
        if self.temp.is_none() {
            self.temp = Some(named(&self.file, &self.place.parent)?);
        }
        let Some(temp) = &self.temp else { return Ok(()) };
        let Place { parent, name, .. } = &self.place;
        parent.rename(temp, parent, name, RenameMode::Replace)?;
        self.temp = None;
        Ok(())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let (Some(temp), Ok(_rights)) = (&self.temp, self.files.rights()) {
            // What is under that name by now is the sandbox's in any case.
            let _ = self.place.parent.remove_file(temp);
        }
    }
}

/// A file to fill: without a name where that can be, so that nothing is left of it when we are killed.
fn create(parent: &DirHandle) -> io::Result<(FileHandle, Option<OsString>)> {
    if let Ok(file) = parent.create_unnamed(0o600) {
        return Ok((file, None));
    }
    free_name(|name| parent.create_new(name, 0o600)).map(|(file, name)| (file, Some(name)))
}

fn named(file: &FileHandle, parent: &DirHandle) -> io::Result<OsString> {
    free_name(|name| file.name(parent, name)).map(|((), name)| name)
}

pub(super) fn free_name<T>(make: impl Fn(&OsString) -> io::Result<T>) -> io::Result<(T, OsString)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut tries = 0;
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from(format!(".fumehood-{}-{number}.part", std::process::id()));
        match make(&name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tries < NAME_TRIES => tries += 1,
            done => return done.map(|made| (made, name)),
        }
    }
}
