//! Opening the record's files: never through a link, never anything but a plain file.

use fumehood_model::id::TaskId;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The index's name in the records folder.
pub(crate) const INDEX_NAME: &str = "index.jsonl";
/// What follows a task's id in the name of its file.
pub(crate) const SUFFIX: &str = ".jsonl";
/// The extension of a record that has yet to be locked. One that stays is of a keeper that was killed just then.
const UNNAMED: &str = "new";
/// A link is refused, and a pipe in a file's place can not make us wait.
const FLAGS: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// Where the record of `task` is.
pub fn task_path(records: &Path, task: &TaskId) -> PathBuf {
    records.join(format!("{task}{SUFFIX}"))
}

/// Where the index is.
pub fn index_path(records: &Path) -> PathBuf {
    records.join(INDEX_NAME)
}

/// Makes a file that was not there, and locks it before it has its name: nobody ever finds it and takes its task for
/// one that has ended.
pub(crate) fn create_locked(path: &Path) -> Result<File> {
    let unnamed = path.with_extension(UNNAMED);
    let file = create(&unnamed)?;
    let named = file.lock().and_then(|()| {
        if std::fs::symlink_metadata(path).is_ok() {
            return Err(ErrorKind::AlreadyExists.into());
        }
        // Ids are unique, so nobody else makes it meanwhile; a rename is all that every file system can do.
        std::fs::rename(&unnamed, path)
    });
    if named.is_err() {
        let _ = std::fs::remove_file(&unnamed);
    }
    named.map(|()| file)
}

fn create(path: &Path) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true).create_new(true).mode(0o600).custom_flags(FLAGS);
    match options.open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let folder = path.parent().ok_or(ErrorKind::NotFound)?;
            match DirBuilder::new().mode(0o700).create(folder) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
                Ok(()) | Err(_) => options.open(path),
            }
        }
        opened => opened,
    }
}

/// Opens a file to add to it, and makes it where it is missing. The caller checks what it got.
pub(crate) fn append_or_create(path: &Path) -> Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).custom_flags(FLAGS).open(path)
}

/// Opens a plain file that is there, to add to it.
pub(crate) fn append(path: &Path) -> Result<File> {
    plain(OpenOptions::new().read(true).append(true).custom_flags(FLAGS).open(path)?)
}

/// Opens a plain file that is there, to read it.
pub(crate) fn read(path: &Path) -> Result<File> {
    plain(OpenOptions::new().read(true).custom_flags(FLAGS).open(path)?)
}

/// Whether somebody holds the lock that a live task's keeper holds on its file. Not to be asked through a
/// handle that holds the lock itself: it would be given back.
pub(crate) fn is_live(file: &File) -> bool {
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => true,
        Ok(()) => {
            // Closing the file would give the lock back too; this does it sooner.
            let _ = file.unlock();
            false
        }
        Err(TryLockError::Error(_)) => false,
    }
}

fn plain(file: File) -> Result<File> {
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "not a plain file"))
    }
}
