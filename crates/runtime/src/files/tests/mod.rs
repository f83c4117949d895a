//! The files wall against trees that a hostile guest could make. Several need root, as `mknod` does.

mod collecting;
pub(in crate::files) mod layers;
mod removing;

use super::*;
use fumehood_sys::dirfd::DirHandle;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use tempfile::TempDir;

/// A folder and its handle.
pub(in crate::files) struct Place {
    pub(in crate::files) temp: TempDir,
    pub(in crate::files) dir: DirHandle,
}

impl Place {
    pub(in crate::files) fn new() -> Self {
        let temp = tempfile::tempdir().unwrap();
        let dir = DirHandle::open(temp.path()).unwrap();
        Self { temp, dir }
    }

    pub(in crate::files) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.temp.path().join(path)
    }

    pub(in crate::files) fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let path = self.at(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }

    pub(in crate::files) fn text(&self, path: impl AsRef<Path>) -> String {
        std::fs::read_to_string(self.at(path)).unwrap()
    }

    pub(in crate::files) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).symlink_metadata().is_ok()
    }

    /// Every path below, sorted.
    pub(in crate::files) fn tree(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut waiting = vec![self.temp.path().to_owned()];
        while let Some(dir) = waiting.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                found.push(entry.path().strip_prefix(self.temp.path()).unwrap().to_owned());
                if entry.file_type().unwrap().is_dir() {
                    waiting.push(entry.path());
                }
            }
        }
        found.sort();
        found
    }
}

pub(in crate::files) fn bytes(text: &[u8]) -> &OsStr {
    OsStr::from_bytes(text)
}

pub(in crate::files) fn mode_of(path: impl AsRef<Path>) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    path.as_ref().symlink_metadata().unwrap().permissions().mode() & 0o7777
}

pub(in crate::files) fn set_mode(path: impl AsRef<Path>, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a shell script with `$1…` and fails the test when it fails.
pub(in crate::files) fn shell(script: &str, arguments: &[&OsStr]) {
    let status = Command::new("sh").args(["-ec", script, "sh"]).args(arguments).status().unwrap();
    assert!(status.success(), "{script}");
}

/// A record that keeps what it is told.
pub(in crate::files) fn no_record(_event: &Event) -> io::Result<()> {
    Ok(())
}
