//! The folder of a living sandbox: its socket, what it is, its HOME and what else it keeps.

use fumehood_keep::wire::Sandbox;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

/// The name of the keeper's socket.
pub const SOCKET: &str = "keeper.sock";
/// The name of the file that says what the sandbox is.
pub const DESCRIPTION: &str = "sandbox.json";
/// A mark in the folder of a sandbox that has ended, and whose files were to be kept.
pub const KEPT: &str = "kept";

pub(crate) fn make(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// Listens in the folder, whatever the length of its path.
pub(crate) fn listen(folder: &Path) -> io::Result<UnixListener> {
    let held = File::open(folder)?;
    let place = Path::new("/proc/self/fd").join(held.as_raw_fd().to_string()).join(SOCKET);
    let listener = UnixListener::bind(place)?;
    fs::set_permissions(folder.join(SOCKET), Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Writes what the sandbox is, whole or not at all.
pub(crate) fn describe(folder: &Path, sandbox: &Sandbox) -> io::Result<()> {
    let words = serde_json::to_vec_pretty(sandbox).map_err(io::Error::other)?;
    let new = folder.join("sandbox.json.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&words)?;
    fs::rename(new, folder.join(DESCRIPTION))
}

/// Takes the socket away, and marks the folder as one to be kept.
pub(crate) fn keep(folder: &Path) -> io::Result<()> {
    File::create(folder.join(KEPT))?;
    match fs::remove_file(folder.join(SOCKET)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}
