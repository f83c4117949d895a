//! What is named by a path.

#![expect(clippy::too_many_arguments, reason = "the signatures are WASI's own")]

use super::Call;
use super::errno::Errno;
use super::files::times;
use super::layout::{filestat, flags_in};
use super::table::Entry;
use super::walk::{Last, Place, walk};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno as Kernel;
use std::os::fd::AsFd as _;

/// `lookupflags`: a link at the end is followed.
const FOLLOW: u32 = 1;
// `oflags`
const CREATE: u32 = 1;
const DIRECTORY: u32 = 1 << 1;
const EXCLUSIVE: u32 = 1 << 2;
const TRUNCATE: u32 = 1 << 3;
// `rights`
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 6;
const READ_FOLDER: u64 = 1 << 14;

const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);

const fn last(flags: u32) -> Last {
    if flags & FOLLOW == 0 { Last::Keep } else { Last::Follow }
}

fn place(call: &Call<'_>, fd: u32, path: u32, length: u32, last: Last) -> Result<Place, Errno> {
    let path = call.memory.slice(path, length)?;
    walk(call.host.table.get(fd)?.as_fd(), path, last)
}

/// One that a name is made in or removed from: the folder itself has none.
fn named(call: &Call<'_>, fd: u32, path: u32, length: u32) -> Result<Place, Errno> {
    let text = call.memory.slice(path, length)?;
    let plain = text.iter().rposition(|byte| *byte != b'/').map_or(text.len(), |at| at + 1);
    let mut place = walk(call.host.table.get(fd)?.as_fd(), text.get(..plain).unwrap_or(text), Last::Keep)?;
    place.must_be_folder = plain < text.len();
    if place.name == "." { Err(Errno::INVAL) } else { Ok(place) }
}

pub(super) fn make_folder(call: &mut Call<'_>, fd: u32, path: u32, length: u32) -> Result<(), Errno> {
    let place = named(call, fd, path, length)?;
    Ok(rustix::fs::mkdirat(&place.folder, &place.name, FOLDER_MODE)?)
}

pub(super) fn remove_folder(call: &mut Call<'_>, fd: u32, path: u32, length: u32) -> Result<(), Errno> {
    let place = named(call, fd, path, length)?;
    Ok(rustix::fs::unlinkat(&place.folder, &place.name, AtFlags::REMOVEDIR)?)
}

pub(super) fn remove_file(call: &mut Call<'_>, fd: u32, path: u32, length: u32) -> Result<(), Errno> {
    let place = named(call, fd, path, length)?;
    if place.must_be_folder {
        return Err(Errno::NOTDIR);
    }
    Ok(rustix::fs::unlinkat(&place.folder, &place.name, AtFlags::empty())?)
}

pub(super) fn look(
    call: &mut Call<'_>,
    fd: u32,
    flags: u32,
    path: u32,
    length: u32,
    to: u32,
) -> Result<(), Errno> {
    let place = place(call, fd, path, length, last(flags))?;
    let stat = rustix::fs::statat(&place.folder, &place.name, AtFlags::SYMLINK_NOFOLLOW)?;
    let bytes = filestat(&stat);
    if place.must_be_folder && bytes.get(16) != Some(&3) {
        return Err(Errno::NOTDIR);
    }
    call.memory.write(to, &bytes)
}

pub(super) fn set_times(
    call: &mut Call<'_>,
    fd: u32,
    flags: u32,
    path: u32,
    length: u32,
    read: u64,
    written: u64,
    which: u32,
) -> Result<(), Errno> {
    let place = place(call, fd, path, length, last(flags))?;
    let times = times(read, written, which)?;
    Ok(rustix::fs::utimensat(&place.folder, &place.name, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub(super) fn link(
    call: &mut Call<'_>,
    fd: u32,
    flags: u32,
    path: u32,
    length: u32,
    new_fd: u32,
    new_path: u32,
    new_length: u32,
) -> Result<(), Errno> {
    let from = place(call, fd, path, length, last(flags))?;
    let to = named(call, new_fd, new_path, new_length)?;
    if from.must_be_folder || to.must_be_folder {
        return Err(Errno::NOTDIR);
    }
    Ok(rustix::fs::linkat(&from.folder, &from.name, &to.folder, &to.name, AtFlags::empty())?)
}

pub(super) fn open(
    call: &mut Call<'_>,
    fd: u32,
    flags: u32,
    path: u32,
    length: u32,
    making: u32,
    rights: u64,
    _inherited: u64,
    mode: u32,
    to: u32,
) -> Result<(), Errno> {
    // Where the name must not be there yet, a link there is one.
    let last = if making & EXCLUSIVE != 0 { Last::Keep } else { last(flags) };
    let place = place(call, fd, path, length, last)?;
    let mode = u16::try_from(mode).map_err(|_| Errno::INVAL)?;
    let file = open_place(&place, making, rights, flags_in(mode))?;
    let number = call.host.table.add(Entry { file, given_as: None })?;
    call.memory.write_u32(to, number)
}

fn open_place(place: &Place, making: u32, rights: u64, mode: OFlags) -> Result<std::os::fd::OwnedFd, Errno> {
    let asked = |bit: u32| making & bit != 0;
    let folder = asked(DIRECTORY) || place.must_be_folder;
    if folder && asked(CREATE) {
        return Err(if asked(DIRECTORY) { Errno::INVAL } else { Errno::ISDIR });
    }
    let access = match (rights & (READ | READ_FOLDER) != 0, rights & WRITE != 0) {
        (_, _) if folder => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
        (_, false) => OFlags::RDONLY,
    };
    // `O_NOCTTY` and `O_NONBLOCK` would matter for devices alone, of which there are none.
    let mut flags = access | mode | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for (wanted, flag) in [
        (asked(CREATE), OFlags::CREATE),
        (asked(EXCLUSIVE), OFlags::EXCL),
        (asked(TRUNCATE), OFlags::TRUNC),
        (folder, OFlags::DIRECTORY),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    let opened = rustix::fs::openat(&place.folder, &place.name, flags, FILE_MODE);
    match opened {
        // A library asks for every right on a name that it knows nothing of; a folder is only read.
        Err(Kernel::ISDIR) if making == 0 && rights & READ_FOLDER != 0 => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            Ok(rustix::fs::openat(&place.folder, &place.name, flags, FILE_MODE)?)
        }
        opened @ (Ok(_) | Err(_)) => Ok(opened?),
    }
}

pub(super) fn read_link(
    call: &mut Call<'_>,
    fd: u32,
    path: u32,
    length: u32,
    at: u32,
    room: u32,
    to: u32,
) -> Result<(), Errno> {
    let place = place(call, fd, path, length, Last::Keep)?;
    let target = rustix::fs::readlinkat(&place.folder, &place.name, Vec::new())?.into_bytes();
    let shown = target.get(..target.len().min(room as usize)).unwrap_or(&target);
    call.memory.write(at, shown)?;
    call.memory.write_size(to, shown.len())
}

pub(super) fn rename(
    call: &mut Call<'_>,
    fd: u32,
    path: u32,
    length: u32,
    new_fd: u32,
    new_path: u32,
    new_length: u32,
) -> Result<(), Errno> {
    let from = named(call, fd, path, length)?;
    let to = named(call, new_fd, new_path, new_length)?;
    Ok(rustix::fs::renameat(&from.folder, &from.name, &to.folder, &to.name)?)
}

/// A link to an absolute path could only lead out, so none is made.
pub(super) fn symlink(
    call: &mut Call<'_>,
    target: u32,
    target_length: u32,
    fd: u32,
    path: u32,
    length: u32,
) -> Result<(), Errno> {
    let place = named(call, fd, path, length)?;
    let target = call.memory.slice(target, target_length)?;
    match target.first() {
        None => return Err(Errno::NOENT),
        Some(b'/') => return Err(Errno::NOTCAPABLE),
        Some(_) => {}
    }
    if place.must_be_folder {
        return Err(Errno::NOENT);
    }
    Ok(rustix::fs::symlinkat(target, &place.folder, &place.name)?)
}
