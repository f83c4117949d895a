//! A place to launch from that holds nothing.

use super::SpawnError;
use super::op::{Op, Outcome, Program, Root};
use crate::raw::Errno;
use std::ffi::CString;
use std::io;

/// Moves this process into a mount namespace with nothing in it but an empty folder at the absolute path
/// `keep`. Every launch from there copies one mount instead of the host's whole table, and has nothing to
/// let go of. Needs root; there is no way back.
///
/// Preconditions: this process has one thread, and needs no path of the host any more.
pub fn enclose(keep: &CString) -> Result<(), SpawnError> {
    let mut program = Program::default();
    program.push("take a mount namespace", Op::MountNamespace);
    program.push("make the mounts private", Op::MountsPrivate);
    let root = Root { at: keep.clone(), size_bytes: 1 << 20, inodes: 1024, devices: false };
    program.push("make an empty root", Op::NewRoot(root));
    for folder in above(keep) {
        program.push("make an empty root", Op::MakeDir { path: folder, mode: 0o755, owner: None });
    }
    program.push("enter the empty root", Op::EnterRoot);
    let outcome = Outcome::default();
    program.apply(&outcome);
    match outcome.fate() {
        super::op::Fate::Failed { step, errno: Errno(errno) } => {
            Err(SpawnError::Step { step: program.phrase(step), source: io::Error::from_raw_os_error(errno) })
        }
        super::op::Fate::Running | super::op::Fate::Executing => Ok(()),
    }
}

/// Every folder on the way to an absolute path, relative to the root, and the last itself.
fn above(path: &CString) -> Vec<CString> {
    let mut folders = Vec::new();
    let bytes = path.as_bytes();
    for end in (1..=bytes.len()).filter(|end| bytes.get(*end).is_none_or(|byte| *byte == b'/')) {
        let part = bytes.get(1..end).unwrap_or(&[]);
        folders.extend(CString::new(part).ok().filter(|part| !part.is_empty()));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_folder_on_the_way_is_made() {
        let folders = above(&CString::new("/var/lib/x").unwrap());
        let expected = ["var", "var/lib", "var/lib/x"].map(|part| CString::new(part).unwrap());
        assert_eq!(folders, expected);
    }
}
