//! System calls on files, beyond those of `call`.

use crate::call::{self, Errno, Fd, address, new_fd, plain, raw, word};
use alloc::vec::Vec;

pub(crate) const EIO: Errno = Errno(5);
const ENODATA: Errno = Errno(61);
pub(crate) const ELOOP: Errno = Errno(40);
pub(crate) const EBADMSG: Errno = Errno(74);

pub(crate) const O_RDONLY: u64 = 0;
pub(crate) const O_RDWR: u64 = 2;
const O_WRONLY: u64 = 1;
const O_CREAT: u64 = 0o100;
const O_EXCL: u64 = 0o200;
pub(crate) const O_NONBLOCK: u64 = 0o4000;
pub(crate) const O_DIRECTORY: u64 = 0o200_000;
pub(crate) const O_NOFOLLOW: u64 = 0o400_000;
const O_CLOEXEC: u64 = 0o2_000_000;

const CURRENT: i32 = -100;
/// Kinds of files, in the upper bits of a mode.
pub(crate) const KIND: u32 = 0o170_000;
pub(crate) const KIND_FOLDER: u32 = 0o040_000;
pub(crate) const KIND_FILE: u32 = 0o100_000;
pub(crate) const KIND_LINK: u32 = 0o120_000;
pub(crate) const KIND_CHARACTER: u32 = 0o020_000;

/// What is asked of a file.
#[derive(Clone, Copy)]
pub(crate) struct Stat {
    pub(crate) mode: u32,
    pub(crate) size_bytes: u64,
    pub(crate) device: u64,
}

/// A second number for a descriptor, above those that commands get.
pub(crate) fn above(number: i32) -> Result<Fd, Errno> {
    // F_DUPFD_CLOEXEC.
    plain(72, [word(number), 1030, 10, 0, 0, 0]).map(new_fd)
}

/// Puts nothing at 0 to 3, so that no descriptor of ours ever has one of those numbers.
pub(crate) fn occupy_standard() -> Result<(), Errno> {
    let null = open(None, b"/dev/null\0", O_RDWR)?;
    for number in 0..=3 {
        if null.number() != number {
            call::duplicate(null.number(), number)?;
        }
    }
    // Where it got one of them by itself it stays.
    if (0..=3).contains(&null.number()) {
        core::mem::forget(null);
    }
    Ok(())
}

pub(crate) fn set_nonblocking(file: &Fd) -> Result<(), Errno> {
    // F_GETFL, F_SETFL.
    let flags = plain(72, [word(file.number()), 3, 0, 0, 0, 0])?;
    plain(72, [word(file.number()), 4, flags | O_NONBLOCK, 0, 0, 0]).map(drop)
}

/// The same, where no other setting is made.
pub(crate) fn set_fresh_nonblocking(file: &Fd) -> Result<(), Errno> {
    plain(72, [word(file.number()), 4, O_NONBLOCK, 0, 0, 0]).map(drop)
}

/// (read end, write end), both closed on exec.
pub(crate) fn pipe() -> Result<(Fd, Fd), Errno> {
    let mut ends = [0_i32; 2];
    // SAFETY: `ends` has room for two numbers.
    unsafe { raw(293, [address(ends.as_mut_ptr()), O_CLOEXEC, 0, 0, 0, 0]) }?;
    Ok((Fd::own(ends[0]), Fd::own(ends[1])))
}

pub(crate) fn read(file: &Fd, room: &mut [u8]) -> Result<usize, Errno> {
    let words = [word(file.number()), address(room.as_mut_ptr()), room.len() as u64, 0, 0, 0];
    // SAFETY: `room` is borrowed for writing, and as long as is said.
    unsafe { raw(0, words) }.map(|count| count as usize)
}

pub(crate) fn write(file: &Fd, bytes: &[u8]) -> Result<usize, Errno> {
    let words = [word(file.number()), address(bytes.as_ptr()), bytes.len() as u64, 0, 0, 0];
    // SAFETY: `bytes` is borrowed, and as long as is said.
    unsafe { raw(1, words) }.map(|count| count as usize)
}

/// No more will be written to this socket.
pub(crate) fn shut_down(socket: &Fd) {
    // SHUT_WR.
    let _ = plain(48, [word(socket.number()), 1, 0, 0, 0, 0]);
}

/// A name with the zero that the kernel wants.
pub(crate) fn terminated(name: &[u8]) -> Vec<u8> {
    let mut name = name.to_vec();
    name.push(0);
    name
}

/// Opens a path that ends in a zero, relative to a folder or to where we are. A link is not followed at its
/// end.
pub(crate) fn open(folder: Option<&Fd>, path: &[u8], flags: u64) -> Result<Fd, Errno> {
    open_with(folder, path, flags, 0)
}

pub(crate) fn open_folder(folder: Option<&Fd>, path: &[u8]) -> Result<Fd, Errno> {
    open(folder, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW)
}

pub(crate) fn open_file(folder: &Fd, name: &[u8]) -> Result<Fd, Errno> {
    open(Some(folder), name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK)
}

/// A new file that nobody else has open.
pub(crate) fn create(folder: &Fd, name: &[u8]) -> Result<Fd, Errno> {
    open_with(Some(folder), name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
}

/// The same, at a path that ends in a zero.
pub(crate) fn create_at(path: &[u8]) -> Result<Fd, Errno> {
    open_with(None, path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, 0o600)
}

fn open_with(folder: Option<&Fd>, path: &[u8], flags: u64, mode: u64) -> Result<Fd, Errno> {
    let at = folder.map_or(CURRENT, Fd::number);
    // SAFETY: every caller's path ends in a zero.
    unsafe { raw(257, [word(at), address(path.as_ptr()), flags | O_CLOEXEC, mode, 0, 0]) }.map(new_fd)
}

pub(crate) fn make_folder(folder: &Fd, name: &[u8]) -> Result<(), Errno> {
    // SAFETY: the name ends in a zero.
    unsafe { raw(258, [word(folder.number()), address(name.as_ptr()), 0o700, 0, 0, 0]) }.map(drop)
}

pub(crate) fn make_link(target: &[u8], folder: &Fd, name: &[u8]) -> Result<(), Errno> {
    let words = [address(target.as_ptr()), word(folder.number()), address(name.as_ptr()), 0, 0, 0];
    // SAFETY: both strings end in a zero.
    unsafe { raw(266, words) }.map(drop)
}

/// Removes a name that is no folder's.
pub(crate) fn remove(folder: &Fd, name: &[u8]) -> Result<(), Errno> {
    // SAFETY: the name ends in a zero.
    unsafe { raw(263, [word(folder.number()), address(name.as_ptr()), 0, 0, 0, 0]) }.map(drop)
}

pub(crate) fn set_mode(file: &Fd, mode: u16) -> Result<(), Errno> {
    plain(91, [word(file.number()), u64::from(mode), 0, 0, 0, 0]).map(drop)
}

pub(crate) fn set_owner(file: &Fd, uid: u32, gid: u32) -> Result<(), Errno> {
    plain(93, [word(file.number()), u64::from(uid), u64::from(gid), 0, 0, 0]).map(drop)
}

pub(crate) fn set_link_owner(folder: &Fd, name: &[u8], uid: u32, gid: u32) -> Result<(), Errno> {
    /// AT_SYMLINK_NOFOLLOW.
    const NO_FOLLOW: u64 = 0x100;
    let at = [word(folder.number()), address(name.as_ptr())];
    // SAFETY: the name ends in a zero.
    unsafe { raw(260, [at[0], at[1], u64::from(uid), u64::from(gid), NO_FOLLOW, 0]) }.map(drop)
}

/// What a name is, not what a link leads to.
pub(crate) fn look(folder: &Fd, name: &[u8]) -> Result<Stat, Errno> {
    let mut stat = [0_u64; 18];
    let words = [word(folder.number()), address(name.as_ptr()), address(stat.as_mut_ptr()), 0x100, 0, 0];
    // SAFETY: the name ends in a zero, and `stat` is the 144 bytes that the kernel writes.
    unsafe { raw(262, words) }?;
    Ok(Stat::of(&stat))
}

pub(crate) fn stat(file: &Fd) -> Result<Stat, Errno> {
    let mut stat = [0_u64; 18];
    // SAFETY: `stat` is the 144 bytes that the kernel writes.
    unsafe { raw(5, [word(file.number()), address(stat.as_mut_ptr()), 0, 0, 0, 0]) }?;
    Ok(Stat::of(&stat))
}

// === impl Stat ===

impl Stat {
    /// Takes what is needed of the kernel's structure, counted in words of 64 bits.
    const fn of(stat: &[u64; 18]) -> Self {
        Self { mode: stat[3] as u32, size_bytes: stat[6], device: stat[5] }
    }

    pub(crate) const fn kind(&self) -> u32 {
        self.mode & KIND
    }
}

pub(crate) fn read_link(folder: &Fd, name: &[u8], room: &mut [u8]) -> Result<usize, Errno> {
    let at = [word(folder.number()), address(name.as_ptr())];
    // SAFETY: the name ends in a zero, and `room` is as long as is said.
    unsafe { raw(267, [at[0], at[1], address(room.as_mut_ptr()), room.len() as u64, 0, 0]) }
        .map(|count| count as usize)
}

/// The next entries of a folder, as the kernel packs them.
pub(crate) fn list(folder: &Fd, room: &mut [u8]) -> Result<usize, Errno> {
    let words = [word(folder.number()), address(room.as_mut_ptr()), room.len() as u64, 0, 0, 0];
    // SAFETY: `room` is borrowed for writing, and as long as is said.
    unsafe { raw(217, words) }.map(|count| count as usize)
}

/// Whether an attribute of a file, whose name ends in a zero, is `y`.
pub(crate) fn has_mark(file: &Fd, name: &[u8]) -> Result<bool, Errno> {
    let mut value = [0_u8; 8];
    let words = [word(file.number()), address(name.as_ptr()), address(value.as_mut_ptr()), 8, 0, 0];
    // SAFETY: the name ends in a zero, and `value` has eight bytes of room.
    match unsafe { raw(193, words) } {
        Ok(count) => Ok(count == 1 && value[0] == b'y'),
        // None of that name, or a file system without any.
        Err(ENODATA | Errno(95)) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The whole of a small file of the kernel's, as far as there is room.
pub(crate) fn small<'a>(path: &[u8], room: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let file = open(None, path, O_RDONLY)?;
    let mut length = 0;
    while let Some(rest) = room.get_mut(length..).filter(|rest| !rest.is_empty()) {
        match read(&file, rest)? {
            0 => break,
            count => length += count,
        }
    }
    Ok(room.get(..length).unwrap_or_default())
}
