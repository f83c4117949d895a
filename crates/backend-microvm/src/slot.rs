//! The second disk: a place in the machine where each one made from a template may have another content.
//!
//! A guest asks a disk for its size once, when it boots. So the size is always the same, and what is behind the
//! content is a hole.

use crate::image;
use crate::machine::failed;
use fumehood_backend::LaunchError;
use fumehood_sys::memfd::{self, Purpose};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;

/// Larger than any workspace that can be shown; nothing of it takes room.
pub(crate) const BYTES: u64 = 1 << 40;

/// The name of a workspace's image, where it has one.
pub(crate) const IMAGE: &str = "workspace.erofs";

/// Gives what is in one folder to another, where there is something: one file with two names.
pub(crate) fn share(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from.join(IMAGE), to.join(IMAGE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The one of a folder.
pub(crate) fn of_folder(folder: &Path) -> io::Result<OwnedFd> {
    match File::open(folder.join(IMAGE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => empty(),
        found => Ok(found?.into()),
    }
}

/// One without content.
pub(crate) fn empty() -> io::Result<OwnedFd> {
    let file = File::from(memfd::open(c"fumehood-slot", Purpose::Read)?);
    file.set_len(BYTES)?;
    // A descriptor that could write is not what a read-only disk is opened with.
    Ok(File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?.into())
}

/// A folder as it is now, owned by `uid` inside. Its file has no name when this returns, unless it is kept.
pub(crate) fn of_workspace(
    source: &Path,
    folder: &Path,
    stage: &Path,
    (uid, kept): (u32, bool),
) -> Result<OwnedFd, LaunchError> {
    let path = folder.join(IMAGE);
    image::workspace(source, &path, stage, uid)?;
    let step = |error: io::Error| failed("make the workspace's disk", &error);
    let open = File::options().write(true).open(&path).and_then(|file| file.set_len(BYTES));
    let file = open.and_then(|()| File::open(&path)).map_err(step)?;
    if !kept {
        fs::remove_file(&path).map_err(step)?;
    }
    Ok(file.into())
}
