//! The folder of one self-test, and the guard that removes it whatever becomes of us.
//!
//! The guard is a process of the attacker's program that waits for the end of a pipe which we hold. When we end, by
//! ourselves or by a signal, it ends whoever is left of our process group and removes the folder.

use crate::attack;
use crate::bench::ProveError;
use crate::canary::canary;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A folder that goes with us.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    state: PathBuf,
    guard: Child,
    group: i32,
}

// === impl Folder ===

impl Folder {
    /// Makes it in the folder for temporary files, and sets the guard.
    pub(crate) fn make() -> Result<Self, ProveError> {
        let path =
            std::env::temp_dir().join(format!("fumehood-prove-{}", canary().map_err(ProveError::scratch)?));
        let made = std::fs::DirBuilder::new().mode(0o755).create(&path).and_then(|()| {
            // Whatever the umask is: sandboxes of root's have users of their own.
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))
        });
        made.map_err(ProveError::scratch)?;
        let state = state_of(&path);
        let guard = attack::place(&path).and_then(|attack| guard(&attack, [&path, &state]));
        match guard {
            Ok((guard, group)) => Ok(Self { path, state, guard, group }),
            Err(error) => {
                // What could not be guarded is removed at once.
                let _ = std::fs::remove_dir_all(&path);
                Err(ProveError::scratch(error))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the runs of this self-test keep their state.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// The attacker's program.
    pub(crate) fn attack(&self) -> PathBuf {
        self.path.join("attack")
    }

    /// The same as a module.
    pub(crate) fn module(&self) -> PathBuf {
        self.path.join("attack.wasm")
    }

    /// The process group that the guard ends.
    pub(crate) const fn group(&self) -> i32 {
        self.group
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // It can only fail where the guard is gone, and then nobody is left to wait for.
        let _ = self.guard.wait();
    }
}

/// Beneath the folder; on an overlay, which takes no other overlay's layers, in memory.
fn state_of(path: &Path) -> PathBuf {
    let overlay =
        std::fs::File::open(path).is_ok_and(|file| fumehood_sys::host::is_overlay(file.as_raw_fd()));
    match path.file_name().filter(|_| overlay) {
        Some(name) => Path::new("/dev/shm").join(name),
        None => path.join("state"),
    }
}

fn guard(attack: &Path, folders: [&PathBuf; 2]) -> io::Result<(Child, i32)> {
    let mut command = Command::new(attack);
    command.arg("guard").args(folders).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.current_dir("/").env_clear().process_group(0);
    let mut guard = command.spawn()?;
    let mut word = [0; 9];
    if let Some(stdout) = guard.stdout.as_mut() {
        stdout.read_exact(&mut word)?;
    }
    let group = i32::try_from(guard.id()).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok((guard, group))
}
