//! Paths, one name at a time, never out of the folder that they start in.
//!
//! The kernel could do this in one call (`openat2`), but not where that call is refused, and a walk of our own is
//! the same in every sandbox. It is the inner of two walls: beyond the folders that are given there is nothing
//! of the host to be reached.
//!
//! **Invariant:** every name is opened from a folder that is held open, through no link; `..` goes back to a
//! folder that the walk came through, and before the first there is none.

use super::errno::Errno;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, openat, readlinkat, statat};
use rustix::io::Errno as Kernel;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

/// Links that one path may lead through, as the kernel has it.
const MOST_LINKS: u32 = 40;
const LONGEST_PATH: usize = 4096;
/// Folders deep that a walk may hold open at once.
const DEEPEST: usize = 256;

/// The last folder of a path, and the name in it: `.` where the path names the folder itself.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) folder: OwnedFd,
    pub(crate) name: OsString,
    /// A path that ends in `/` names a folder or nothing.
    pub(crate) must_be_folder: bool,
}

/// What becomes of a link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    Follow,
    Keep,
}

/// Walks from `base` along `path` to its last name.
pub(crate) fn walk(base: BorrowedFd<'_>, path: &[u8], last: Last) -> Result<Place, Errno> {
    if path.is_empty() {
        return Err(Errno::NOENT);
    }
    if path.contains(&0) {
        return Err(Errno::INVAL);
    }
    if path.len() > LONGEST_PATH {
        return Err(Errno::NAMETOOLONG);
    }
    let mut names = VecDeque::new();
    ahead(&mut names, path)?;
    let mut folders = vec![rustix::io::fcntl_dupfd_cloexec(base, 0)?];
    let mut links = 0;
    let mut must_be_folder = path.ends_with(b"/");
    loop {
        let name = names.pop_front().unwrap_or_else(|| b".".to_vec());
        let here = folders.last().ok_or(Errno::NOTCAPABLE)?;
        if name == b".." {
            folders.pop();
            if folders.is_empty() {
                return Err(Errno::NOTCAPABLE);
            }
            if names.is_empty() {
                return finish(folders, b".".to_vec(), must_be_folder);
            }
            continue;
        }
        let at_end = names.is_empty();
        let follow = !at_end || last == Last::Follow || must_be_folder;
        if follow && is_link(here, &name)? {
            links += 1;
            if links > MOST_LINKS {
                return Err(Errno::LOOP);
            }
            let target = readlinkat(here, name.as_slice(), Vec::new())?.into_bytes();
            must_be_folder |= at_end && target.ends_with(b"/");
            ahead(&mut names, &target)?;
            continue;
        }
        if at_end {
            return finish(folders, name, must_be_folder);
        }
        if folders.len() >= DEEPEST {
            return Err(Errno::NAMETOOLONG);
        }
        folders.push(enter(here.as_fd(), &name)?);
    }
}

/// Puts the names of a path before those that are still to come.
fn ahead(names: &mut VecDeque<Vec<u8>>, path: &[u8]) -> Result<(), Errno> {
    if path.starts_with(b"/") {
        return Err(Errno::NOTCAPABLE);
    }
    let parts = path.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".");
    for part in parts.rev() {
        names.push_front(part.to_vec());
    }
    if names.len() > LONGEST_PATH {
        return Err(Errno::NAMETOOLONG);
    }
    Ok(())
}

fn is_link(folder: &OwnedFd, name: &[u8]) -> Result<bool, Errno> {
    match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(FileType::from_raw_mode(found.st_mode) == FileType::Symlink),
        // What is to be made is not there yet; what is missing on the way is told by entering it.
        Err(Kernel::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn enter(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(folder, name, flags, Mode::empty())?)
}

fn finish(mut folders: Vec<OwnedFd>, name: Vec<u8>, must_be_folder: bool) -> Result<Place, Errno> {
    let folder = folders.pop().ok_or(Errno::NOTCAPABLE)?;
    Ok(Place { folder, name: OsString::from_vec(name), must_be_folder })
}

/// Opens a folder by its absolute path, as one that is given.
pub(crate) fn open_given(path: &std::path::Path) -> Result<OwnedFd, Kernel> {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Yard {
        _dir: tempfile::TempDir,
        base: OwnedFd,
    }

    fn yard() -> Yard {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        std::fs::create_dir_all(base.join("a/b")).unwrap();
        std::fs::write(dir.path().join("outside"), "secret").unwrap();
        std::fs::write(base.join("a/b/file"), "inside").unwrap();
        for (target, name) in [
            ("../outside", "out"),
            ("/etc/passwd", "absolute"),
            ("a/b", "in"),
            ("loop", "loop"),
            ("../../base/a", "a/around"),
            ("../in/file", "a/through"),
            ("nowhere", "dangling"),
        ] {
            symlink(target, base.join(name)).unwrap();
        }
        let base = open_given(&base).unwrap();
        Yard { _dir: dir, base }
    }

    fn look(yard: &Yard, path: &str, last: Last) -> Result<String, Errno> {
        let place = walk(yard.base.as_fd(), path.as_bytes(), last)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW;
        let file = openat(&place.folder, place.name.as_os_str(), flags, Mode::empty())?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::fs::File::from(file), &mut text).map_err(|_| Errno::ISDIR)?;
        Ok(text)
    }

    #[test]
    fn what_lies_beneath_is_found() {
        let yard = yard();
        for path in ["a/b/file", "./a//b/./file", "a/../a/b/file", "in/file", "in/../b/file", "a/through"] {
            assert_eq!(look(&yard, path, Last::Follow).as_deref(), Ok("inside"), "{path}");
        }
    }

    #[test]
    fn nothing_leads_out() {
        let yard = yard();
        for path in [
            "..",
            "../outside",
            "a/../../outside",
            "out",
            "absolute",
            "/etc/passwd",
            "a/around/b/file",
            "in/../../../outside",
            "out/",
        ] {
            assert_eq!(look(&yard, path, Last::Follow), Err(Errno::NOTCAPABLE), "{path}");
        }
    }

    #[test]
    fn links_are_kept_where_they_are_named_and_loops_end() {
        let yard = yard();
        let place = walk(yard.base.as_fd(), b"out", Last::Keep).unwrap();
        assert_eq!(place.name, "out");
        assert_eq!(walk(yard.base.as_fd(), b"loop", Last::Follow).unwrap_err(), Errno::LOOP);
        assert_eq!(walk(yard.base.as_fd(), b"dangling", Last::Follow).unwrap().name, "nowhere");
        let deep = "a/".repeat(3000);
        assert_eq!(walk(yard.base.as_fd(), deep.as_bytes(), Last::Follow).unwrap_err(), Errno::NAMETOOLONG);
        assert_eq!(walk(yard.base.as_fd(), b"a/b/file/x", Last::Follow).unwrap_err(), Errno::NOTDIR);
    }
}
