//! Changes of directories, as the kernel tells of them.
//!
//! **Invariant:** reading is total: whatever the kernel's buffer holds, it is events or an error.

use crate::dirfd::{Held, checked, owned};
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;

/// Where `struct inotify_event` has its fields: watch, mask, cookie, length, name.
const HEADER_BYTES: usize = 16;
const BUFFER_BYTES: usize = 64 * 1024;
const MASK: u32 = libc::IN_CREATE
    | libc::IN_CLOSE_WRITE
    | libc::IN_MODIFY
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_ONLYDIR
    | libc::IN_EXCL_UNLINK;

/// Tells of what happens in the directories that were added.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

/// One directory that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Watch(i32);

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Created,
    Written,
    Removed,
    MovedAway,
    MovedHere,
    Attributes,
    /// The directory itself is no longer watched: it is gone.
    Ended,
    /// Some that happened is not told: there was more than is kept.
    Lost,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Where; of [`What::Lost`], nowhere.
    pub watch: Watch,
    pub what: What,
    pub is_dir: bool,
    /// Absent where it is the directory itself.
    pub name: Option<OsString>,
}

// === impl Inotify ===

impl Inotify {
    /// One that watches nothing yet; reading it never waits.
    ///
    /// # Errors
    /// The kernel's own: this user has too many.
    pub fn new() -> io::Result<Self> {
        // SAFETY: flags only.
        let answer = unsafe { libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC) };
        owned(checked(answer.into())?).map(Self)
    }

    /// Watches a directory that is held. One that is watched already gives the same watch.
    ///
    /// # Errors
    /// The kernel's own: not readable by the thread, too many watches.
    pub fn add(&self, dir: &Held) -> io::Result<Watch> {
        let path = CString::new(dir.by_number())?;
        // SAFETY: the descriptor is held by `self`; the path is NUL-terminated and outlives the call.
        let answer = unsafe { libc::inotify_add_watch(self.0.as_raw_fd(), path.as_ptr(), MASK) };
        checked(answer.into())?;
        Ok(Watch(answer))
    }

    /// Watches it no longer.
    pub fn remove(&self, watch: Watch) {
        // SAFETY: numbers only; a watch that is gone already is the kernel's error, and no harm.
        let _ = unsafe { libc::inotify_rm_watch(self.0.as_raw_fd(), watch.0) };
    }

    /// What happened since it was asked last; nothing, if nothing did.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn read(&self) -> io::Result<Vec<Event>> {
        let mut buffer = vec![0_u8; BUFFER_BYTES];
        // SAFETY: the descriptor is held by `self`, and the kernel writes at most the buffer's own length.
        let answer = unsafe { libc::read(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
        let Ok(length) = usize::try_from(answer) else {
            let error = io::Error::last_os_error();
            let nothing = matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if nothing { Ok(Vec::new()) } else { Err(error) };
        };
        buffer.truncate(length);
        Ok(parse(&buffer))
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn parse(mut rest: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((header, after)) = rest.split_at_checked(HEADER_BYTES) {
        let word = |at: usize| {
            let bytes = header.get(at..at + 4).and_then(|bytes| <[u8; 4]>::try_from(bytes).ok());
            u32::from_ne_bytes(bytes.unwrap_or_default())
        };
        let Some((name, after)) = after.split_at_checked(word(12) as usize) else { break };
        rest = after;
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        let name = (!name.is_empty()).then(|| OsString::from_vec(name.to_vec()));
        let (watch, mask) = (Watch(word(0).cast_signed()), word(4));
        let is_dir = mask & libc::IN_ISDIR != 0;
        events.extend(what(mask).map(|what| Event { watch, what, is_dir, name }));
    }
    events
}

fn what(mask: u32) -> Option<What> {
    const TABLE: [(u32, What); 9] = [
        (libc::IN_Q_OVERFLOW, What::Lost),
        (libc::IN_IGNORED, What::Ended),
        (libc::IN_CREATE, What::Created),
        (libc::IN_MODIFY, What::Written),
        (libc::IN_CLOSE_WRITE, What::Written),
        (libc::IN_DELETE, What::Removed),
        (libc::IN_MOVED_FROM, What::MovedAway),
        (libc::IN_MOVED_TO, What::MovedHere),
        (libc::IN_ATTRIB, What::Attributes),
    ];
    TABLE.iter().find(|(bit, _)| mask & bit != 0).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dirfd::{DirHandle, LastLink};
    use std::path::Path;

    #[test]
    fn what_happens_in_a_watched_directory_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let dir = DirHandle::open(folder.path()).unwrap();
        let inotify = Inotify::new().unwrap();
        let watch = inotify.add(&dir.inside(Path::new("/"), LastLink::Follow).unwrap()).unwrap();
        assert_eq!(inotify.read().unwrap(), []);
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::rename(folder.path().join("sub"), folder.path().join("moved")).unwrap();
        let events = inotify.read().unwrap();
        let told: Vec<_> = events.iter().map(|event| (event.what, event.is_dir)).collect();
        assert_eq!(told, [(What::Created, true), (What::MovedAway, true), (What::MovedHere, true)]);
        assert!(events.iter().all(|event| event.watch == watch));
    }

    #[test]
    fn a_buffer_that_is_cut_off_ends_the_list() {
        let mut bytes = vec![0_u8; HEADER_BYTES];
        bytes[4] = libc::IN_CREATE as u8;
        bytes[5] = (libc::IN_CREATE >> 8) as u8;
        bytes[12] = 200;
        assert_eq!(parse(&bytes), []);
        assert_eq!(parse(&bytes[..7]), []);
    }
}
