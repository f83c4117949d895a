//! Doing a piece of file work with another user's rights.
//!
//! Linux keeps a user of its own for file work, for each thread. When it stops being root, the kernel takes from the
//! thread every capability that overrides a file's permissions, and gives them back when it becomes root again. So
//! between [`Rights::take`] and the drop, whatever the thread opens, makes or removes is judged as the user's, and
//! what it makes is the user's.

use crate::raw::{Result, syscall};
use std::io;
use std::marker::PhantomData;

/// Far above what any login has.
const MOST_GROUPS: usize = 1024;
/// Asks who it is without a change: no such user is ever valid.
const NOBODY: u32 = u32::MAX;

/// While this lives, the thread's file work has another user's rights.
#[derive(Debug)]
#[must_use = "the rights are back when this is dropped"]
pub struct Rights {
    /// User, group and the other groups from before; `None` where nothing had to change.
    before: Option<(u32, u32, Vec<u32>)>,
    /// It is this thread's alone.
    _thread: PhantomData<*const ()>,
}

// === impl Rights ===

impl Rights {
    /// Takes the rights of `uid` and `gid`, and of no other group. For whoever is not root nothing changes: there are
    /// no rights to give up.
    ///
    /// # Errors
    /// The kernel refused; nothing is changed then.
    pub fn take(uid: u32, gid: u32) -> io::Result<Self> {
        if crate::host::euid() != 0 {
            return Ok(Self { before: None, _thread: PhantomData });
        }
        let groups = groups()?;
        let before = (fs_user(NOBODY), fs_group(NOBODY), groups);
        set_groups(&[])?;
        let taken = Self { before: Some(before), _thread: PhantomData };
        let (_, _) = (fs_group(gid), fs_user(uid));
        // The calls tell nothing of a failure but that nothing changed.
        if (fs_user(NOBODY), fs_group(NOBODY)) == (uid, gid) {
            Ok(taken)
        } else {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "the user for file work did not change"))
        }
    }
}

impl Drop for Rights {
    fn drop(&mut self) {
        if let Some((uid, gid, groups)) = &self.before {
            // Where one of these fails, the thread is left with fewer rights than it had.
            let (_, _) = (fs_user(*uid), fs_group(*gid));
            let _ = set_groups(groups);
        }
    }
}

fn fs_user(uid: u32) -> u32 {
    set(libc::SYS_setfsuid, uid)
}

fn fs_group(gid: u32) -> u32 {
    set(libc::SYS_setfsgid, gid)
}

/// Answers with who it was before. These calls never fail otherwise.
fn set(call: libc::c_long, id: u32) -> u32 {
    // SAFETY: a number, and nothing of ours is touched but this thread's credentials.
    unsafe { syscall(call, [id as usize, 0, 0, 0, 0, 0]) }.map_or(NOBODY, |before| before as u32)
}

fn groups() -> Result<Vec<u32>> {
    let mut groups = vec![0_u32; MOST_GROUPS];
    let arguments = [groups.len(), groups.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes at most as many groups as are said, which is the buffer's own length.
    let count = unsafe { syscall(libc::SYS_getgroups, arguments) }?;
    groups.truncate(count);
    Ok(groups)
}

/// This thread's alone: the call of the C library would change all of them.
fn set_groups(groups: &[u32]) -> Result<()> {
    let arguments = [groups.len(), groups.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads as many groups as are said, which are live.
    unsafe { syscall(libc::SYS_setgroups, arguments) }.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    #[test]
    fn root_gives_up_what_overrides_permissions_and_has_it_back() {
        if crate::host::euid() != 0 {
            // Nothing to give up: it is said so, and nothing changes.
            assert!(Rights::take(1, 1).unwrap().before.is_none());
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let secret = folder.path().join("secret");
        fs::write(&secret, "of root").unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let of_group = folder.path().join("of-group");
        fs::write(&of_group, "of the group root").unwrap();
        fs::set_permissions(&of_group, fs::Permissions::from_mode(0o060)).unwrap();
        {
            let _rights = Rights::take(4_000_001, 4_000_002).unwrap();
            for path in [&secret, &of_group] {
                assert_eq!(fs::read(path).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
            }
            fs::write(folder.path().join("made"), "").unwrap();
        }
        let made = fs::metadata(folder.path().join("made")).unwrap();
        assert_eq!((made.uid(), made.gid()), (4_000_001, 4_000_002));
        assert_eq!(fs::read(&secret).unwrap(), b"of root");
    }
}
