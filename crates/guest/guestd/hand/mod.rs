//! One piece of work on files, as a command: `guestd hand VERB …`, for a host that can not see them.
//!
//! It is started as any command of the sandbox's user, so it can do what that user can and nothing else, and every
//! path is one of this guest's. It says `+`, or `-` and an error number; then what `crate::answer` describes.
//!
//! ```text
//! stat PATH             one entry                         mkdir PATH     with the folders to it
//! list PATH DEPTH       entries, and how they end         move FROM TO   across file systems too
//! read PATH FROM COUNT  an entry, then chunks             remove PATH    with all in it
//! write PATH MODE       chunks come in; then one entry    watch PATH ALL changes, until the input ends
//! ```

mod change;
mod content;
mod look;
mod watch;

use crate::answer::{FAILED, OK};
use crate::call::{self, Errno, Fd, address, raw, word};
use crate::file;
use alloc::vec::Vec;

pub(crate) const ENOENT: Errno = Errno(2);
pub(crate) const EBUSY: Errno = Errno(16);
pub(crate) const EXDEV: Errno = Errno(18);
pub(crate) const EISDIR: Errno = Errno(21);
pub(crate) const EINVAL: Errno = Errno(22);
pub(crate) const EFBIG: Errno = Errno(27);
pub(crate) const ENOTEMPTY: Errno = Errno(39);
pub(crate) const ENOTSUP: Errno = Errno(95);
/// Folders within folders.
pub(crate) const DEEPEST: u32 = 128;
/// As the kernel's own limit on links in one lookup.
const MOST_LINKS: u32 = 40;
/// Said at once.
const FULL_BYTES: usize = 64 * 1024;

/// What is said.
pub(crate) struct Out {
    bytes: Vec<u8>,
    begun: bool,
}

/// Does what the words say, and ends.
pub(crate) fn work(words: &[&[u8]]) -> ! {
    call::set_umask(0o022);
    let mut out = Out { bytes: Vec::new(), begun: false };
    let done = match *words {
        [b"stat", path] => look::stat(path, &mut out),
        [b"list", path, depth] => number(depth).and_then(|depth| look::list(path, depth, &mut out)),
        [b"read", path, from, count] => {
            number(from).and_then(|from| content::read(path, (from, number(count)?), &mut out))
        }
        [b"write", path, mode] => number(mode).and_then(|mode| content::write(path, mode, &mut out)),
        [b"mkdir", path] => change::make_folder(path),
        [b"move", from, to] => change::rename(from, to),
        [b"remove", path] => change::remove(path),
        [b"watch", path, all] => watch::watch(path, all == b"1", &mut out),
        _ => Err(EINVAL),
    };
    match done {
        Ok(()) => out.begin(),
        Err(errno) if !out.begun => {
            out.bytes.clear();
            out.bytes.push(FAILED);
            out.bytes.extend_from_slice(&errno.0.to_le_bytes());
        }
        // What was begun is seen to be cut.
        Err(_) => {}
    }
    let _ = out.flush();
    call::exit(0)
}

// === impl Out ===

impl Out {
    /// It works so far.
    pub(crate) fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.bytes.push(OK);
        }
    }

    pub(crate) fn room(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Says what is there, if that is much.
    pub(crate) fn pass(&mut self) -> Result<(), Errno> {
        if self.bytes.len() < FULL_BYTES { Ok(()) } else { self.flush() }
    }

    pub(crate) fn flush(&mut self) -> Result<(), Errno> {
        let output = core::mem::ManuallyDrop::new(Fd::own(1));
        let mut rest = self.bytes.as_slice();
        while !rest.is_empty() {
            match file::write(&output, rest) {
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(call::EINTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.bytes.clear();
        Ok(())
    }
}

/// What is at a name.
#[derive(Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size_bytes: u64,
    pub(crate) modified: (i64, u32),
}

// === impl Facts ===

impl Facts {
    /// Of a path; of a link there, the link.
    pub(crate) fn of(path: &[u8]) -> Result<Self, Errno> {
        Self::at(path, 0x100)
    }

    /// Of what a path leads to.
    pub(crate) fn followed(path: &[u8]) -> Result<Self, Errno> {
        Self::at(path, 0)
    }

    fn at(path: &[u8], flags: u64) -> Result<Self, Errno> {
        const CURRENT: i32 = -100;
        let path = file::terminated(path);
        let mut stat = [0_u64; 18];
        let words = [word(CURRENT), address(path.as_ptr()), address(stat.as_mut_ptr()), flags, 0, 0];
        // SAFETY: the path ends in a zero, and `stat` is the 144 bytes that the kernel writes.
        unsafe { raw(262, words) }?;
        Ok(Self::read(&stat))
    }

    pub(crate) fn of_open(file: &Fd) -> Result<Self, Errno> {
        let mut stat = [0_u64; 18];
        // SAFETY: `stat` is the 144 bytes that the kernel writes.
        unsafe { raw(5, [word(file.number()), address(stat.as_mut_ptr()), 0, 0, 0, 0]) }?;
        Ok(Self::read(&stat))
    }

    /// Takes what is needed of the kernel's structure, counted in words of 64 bits.
    const fn read(stat: &[u64; 18]) -> Self {
        Self {
            device: stat[0],
            inode: stat[1],
            mode: stat[3] as u32,
            uid: (stat[3] >> 32) as u32,
            gid: stat[4] as u32,
            size_bytes: stat[6],
            modified: (stat[11] as i64, stat[12] as u32),
        }
    }

    pub(crate) const fn kind(&self) -> u32 {
        self.mode & file::KIND
    }

    pub(crate) const fn is_folder(&self) -> bool {
        self.kind() == file::KIND_FOLDER
    }
}

/// The folder of a path, and its last name. The host gives paths that begin with `/` and have no `//` or `..`.
pub(crate) fn parts(path: &[u8]) -> Result<(&[u8], &[u8]), Errno> {
    let at = path.iter().rposition(|byte| *byte == b'/').ok_or(EINVAL)?;
    let (above, name) = (path.get(..at).unwrap_or_default(), path.get(at + 1..).unwrap_or_default());
    if name.is_empty() {
        return Err(EINVAL);
    }
    Ok((if above.is_empty() { b"/" } else { above }, name))
}

pub(crate) fn join(folder: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
    [folder, slash, name].concat()
}

/// Where a path leads when links at its end are followed, whether or not something is there.
pub(crate) fn followed(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut path = path.to_vec();
    for _ in 0..MOST_LINKS {
        match Facts::of(&path) {
            Ok(facts) if facts.kind() == file::KIND_LINK => {
                let target = link_target(&path)?;
                path = if target.starts_with(b"/") { target } else { join(parts(&path)?.0, &target) };
            }
            Ok(_) | Err(ENOENT) => return Ok(path),
            Err(errno) => return Err(errno),
        }
    }
    Err(file::ELOOP)
}

pub(crate) fn link_target(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let path = file::terminated(path);
    let mut room = [0_u8; crate::frame::PATH_BYTES];
    // readlink.
    // SAFETY: the path ends in a zero, and `room` is as long as is said.
    let count =
        unsafe { raw(89, [address(path.as_ptr()), address(room.as_mut_ptr()), room.len() as u64, 0, 0, 0]) }?;
    Ok(room.get(..count as usize).unwrap_or_default().to_vec())
}

/// The names in a folder, in order.
pub(crate) fn names(folder: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
    let folder = file::open(None, &file::terminated(folder), file::O_RDONLY | file::O_DIRECTORY)?;
    let mut names = crate::walk::names(&folder)?;
    names.sort();
    Ok(names)
}

fn number(text: &[u8]) -> Result<u64, Errno> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0')).ok_or(EINVAL);
    text.iter().try_fold(0_u64, |sum, byte| {
        sum.checked_mul(10).and_then(|sum| sum.checked_add(digit(byte).ok()?)).ok_or(EINVAL)
    })
}
