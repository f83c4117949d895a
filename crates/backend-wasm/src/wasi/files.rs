//! What is done with an open descriptor.

#![expect(clippy::too_many_arguments, reason = "the signatures are WASI's own")]

use super::Call;
use super::errno::Errno;
use super::layout::{fdstat, filestat, flags_in, flags_out};
use super::table::Entry;
use rustix::fs::{Advice, FallocateFlags, FileType, SeekFrom, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use std::io::IoSlice;

pub(super) fn advise(call: &mut Call<'_>, fd: u32, at: u64, length: u64, advice: u32) -> Result<(), Errno> {
    let advice = match advice {
        0 => Advice::Normal,
        1 => Advice::Sequential,
        2 => Advice::Random,
        3 => Advice::WillNeed,
        4 => Advice::DontNeed,
        5 => Advice::NoReuse,
        _ => return Err(Errno::INVAL),
    };
    let length = std::num::NonZeroU64::new(length);
    Ok(rustix::fs::fadvise(call.host.table.get(fd)?, at, length, advice)?)
}

pub(super) fn allocate(call: &mut Call<'_>, fd: u32, at: u64, length: u64) -> Result<(), Errno> {
    Ok(rustix::fs::fallocate(call.host.table.get(fd)?, FallocateFlags::empty(), at, length)?)
}

pub(super) fn close(call: &mut Call<'_>, fd: u32) -> Result<(), Errno> {
    call.host.table.remove(fd).map(drop)
}

pub(super) fn sync(call: &mut Call<'_>, fd: u32) -> Result<(), Errno> {
    Ok(rustix::fs::fsync(call.host.table.get(fd)?)?)
}

pub(super) fn data_sync(call: &mut Call<'_>, fd: u32) -> Result<(), Errno> {
    Ok(rustix::fs::fdatasync(call.host.table.get(fd)?)?)
}

pub(super) fn status(call: &mut Call<'_>, fd: u32, to: u32) -> Result<(), Errno> {
    let entry = call.host.table.get(fd)?;
    let mut kind = entry.kind()?;
    // A device that is no terminal can be asked for its place, and answers that it has none.
    if kind == FileType::CharacterDevice && !rustix::termios::isatty(entry) {
        kind = FileType::Unknown;
    }
    let flags = flags_out(rustix::fs::fcntl_getfl(entry)?);
    call.memory.write(to, &fdstat(kind, flags))
}

pub(super) fn set_flags(call: &mut Call<'_>, fd: u32, flags: u32) -> Result<(), Errno> {
    let flags = u16::try_from(flags).map_err(|_| Errno::INVAL)?;
    Ok(rustix::fs::fcntl_setfl(call.host.table.get(fd)?, flags_in(flags))?)
}

/// Rights are not where this level's walls are, so giving some up is taken note of by nobody.
pub(super) fn set_rights(call: &mut Call<'_>, fd: u32, _base: u64, _inherited: u64) -> Result<(), Errno> {
    call.host.table.get(fd).map(drop)
}

pub(super) fn look(call: &mut Call<'_>, fd: u32, to: u32) -> Result<(), Errno> {
    let stat = rustix::fs::fstat(call.host.table.get(fd)?)?;
    call.memory.write(to, &filestat(&stat))
}

pub(super) fn set_length(call: &mut Call<'_>, fd: u32, length: u64) -> Result<(), Errno> {
    Ok(rustix::fs::ftruncate(call.host.table.get(fd)?, length)?)
}

pub(super) fn set_times(
    call: &mut Call<'_>,
    fd: u32,
    read: u64,
    written: u64,
    which: u32,
) -> Result<(), Errno> {
    let times = times(read, written, which)?;
    Ok(rustix::fs::futimens(call.host.table.get(fd)?, &times)?)
}

/// What a module wants two times to be: each kept, given, or now.
pub(super) fn times(read: u64, written: u64, which: u32) -> Result<Timestamps, Errno> {
    let time = |given: bool, now: bool, nanos: u64| match (given, now) {
        (true, true) => Err(Errno::INVAL),
        (false, false) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT }),
        (false, true) => Ok(Timespec { tv_sec: 0, tv_nsec: UTIME_NOW }),
        (true, false) => {
            let seconds = i64::try_from(nanos / 1_000_000_000).map_err(|_| Errno::OVERFLOW)?;
            let rest = i64::try_from(nanos % 1_000_000_000).map_err(|_| Errno::OVERFLOW)?;
            Ok(Timespec { tv_sec: seconds, tv_nsec: rest })
        }
    };
    let bit = |bit: u32| which & bit != 0;
    Ok(Timestamps {
        last_access: time(bit(1), bit(2), read)?,
        last_modification: time(bit(4), bit(8), written)?,
    })
}

pub(super) fn given(call: &mut Call<'_>, fd: u32, to: u32) -> Result<(), Errno> {
    let name = call.host.table.get(fd)?.given_as.as_ref().ok_or(Errno::BADF)?;
    call.memory.write_u32(to, 0)?;
    let length_at = to.checked_add(4).ok_or(Errno::FAULT)?;
    call.memory.write_size(length_at, name.len())
}

pub(super) fn given_name(call: &mut Call<'_>, fd: u32, at: u32, length: u32) -> Result<(), Errno> {
    let name = call.host.table.get(fd)?.given_as.as_ref().ok_or(Errno::BADF)?;
    if name.len() > length as usize {
        return Err(Errno::NAMETOOLONG);
    }
    call.memory.write(at, name)
}

/// Reads into the first vector that holds anything: less than what was asked for is an answer, too.
pub(super) fn read(call: &mut Call<'_>, fd: u32, list: u32, count: u32, to: u32) -> Result<(), Errno> {
    let Some((at, length)) = room(call, list, count)? else { return call.memory.write_u32(to, 0) };
    let entry = call.host.table.get(fd)?;
    let read = rustix::io::read(entry, call.memory.slice_mut(at, length)?)?;
    call.memory.write_size(to, read)
}

pub(super) fn read_at(
    call: &mut Call<'_>,
    fd: u32,
    list: u32,
    count: u32,
    from: u64,
    to: u32,
) -> Result<(), Errno> {
    let Some((at, length)) = room(call, list, count)? else { return call.memory.write_u32(to, 0) };
    let entry = call.host.table.get(fd)?;
    let read = rustix::io::pread(entry, call.memory.slice_mut(at, length)?, from)?;
    call.memory.write_size(to, read)
}

fn room(call: &Call<'_>, list: u32, count: u32) -> Result<Option<(u32, u32)>, Errno> {
    Ok(call.memory.vectors(list, count)?.into_iter().find(|(_, length)| *length > 0))
}

pub(super) fn write(call: &mut Call<'_>, fd: u32, list: u32, count: u32, to: u32) -> Result<(), Errno> {
    put(call, fd, (list, count), to, |entry, slices| rustix::io::writev(entry, slices))
}

pub(super) fn write_at(
    call: &mut Call<'_>,
    fd: u32,
    list: u32,
    count: u32,
    at: u64,
    to: u32,
) -> Result<(), Errno> {
    put(call, fd, (list, count), to, |entry, slices| rustix::io::pwritev(entry, slices, at))
}

fn put(
    call: &mut Call<'_>,
    fd: u32,
    (list, count): (u32, u32),
    to: u32,
    how: impl FnOnce(&Entry, &[IoSlice<'_>]) -> rustix::io::Result<usize>,
) -> Result<(), Errno> {
    let vectors = call.memory.vectors(list, count)?;
    let slices = vectors.into_iter().map(|(at, length)| call.memory.slice(at, length).map(IoSlice::new));
    let slices: Vec<IoSlice<'_>> = slices.collect::<Result<_, _>>()?;
    let written = how(call.host.table.get(fd)?, &slices)?;
    call.memory.write_size(to, written)
}

pub(super) fn renumber(call: &mut Call<'_>, fd: u32, onto: u32) -> Result<(), Errno> {
    call.host.table.renumber(fd, onto)
}

pub(super) fn seek(call: &mut Call<'_>, fd: u32, by: u64, whence: u32, to: u32) -> Result<(), Errno> {
    let by = by.cast_signed();
    let place = match whence {
        0 => SeekFrom::Start(u64::try_from(by).map_err(|_| Errno::INVAL)?),
        1 => SeekFrom::Current(by),
        2 => SeekFrom::End(by),
        _ => return Err(Errno::INVAL),
    };
    let at = rustix::fs::seek(call.host.table.get(fd)?, place)?;
    call.memory.write_u64(to, at)
}

pub(super) fn tell(call: &mut Call<'_>, fd: u32, to: u32) -> Result<(), Errno> {
    let at = rustix::fs::tell(call.host.table.get(fd)?)?;
    call.memory.write_u64(to, at)
}
