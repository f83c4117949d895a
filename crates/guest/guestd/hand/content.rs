//! Content of regular files, in chunks: a length of four bytes before each, and one of zero at the end.

use super::change::make_folders;
use super::look::say;
use super::{EISDIR, ENOENT, ENOTSUP, Facts, Out, followed, join, parts};
use crate::call::{self, Errno, Fd, address, plain, raw, word};
use crate::file;
use alloc::vec::Vec;

const CHUNK_BYTES: usize = 64 * 1024;
const NAME_TRIES: u32 = 16;
/// Of a file that was not there.
const NEW_MODE: u32 = 0o644;
/// Says that a file which is replaced keeps its own mode.
const KEEP: u64 = 0o10_000;

fn regular(facts: &Facts) -> Result<(), Errno> {
    match facts.kind() {
        file::KIND_FILE => Ok(()),
        file::KIND_FOLDER => Err(EISDIR),
        _ => Err(ENOTSUP),
    }
}

pub(super) fn read(path: &[u8], (from, count): (u64, u64), out: &mut Out) -> Result<(), Errno> {
    // A device is not even opened.
    regular(&Facts::followed(path)?)?;
    let open = file::open(None, &file::terminated(path), file::O_RDONLY | file::O_NONBLOCK)?;
    let facts = Facts::of_open(&open)?;
    regular(&facts)?;
    out.begin();
    say(path, &facts, out);
    out.flush()?;
    // lseek.
    plain(8, [word(open.number()), from, 0, 0, 0, 0])?;
    let mut left = facts.size_bytes.saturating_sub(from).min(count);
    while left > 0 {
        let most = CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES));
        let room = out.room();
        room.resize(4 + most, 0);
        let got = file::read(&open, room.get_mut(4..).unwrap_or_default())?;
        if got == 0 {
            room.clear();
            break;
        }
        room.truncate(4 + got);
        let length = (got as u32).to_le_bytes();
        room.iter_mut().zip(length).for_each(|(place, byte)| *place = byte);
        out.flush()?;
        left -= got as u64;
    }
    out.room().extend_from_slice(&[0; 4]);
    Ok(())
}

pub(super) fn write(path: &[u8], mode: u64, out: &mut Out) -> Result<(), Errno> {
    let target = followed(path)?;
    let (above, name) = parts(&target)?;
    let kept = match Facts::of(&target) {
        Ok(there) => regular(&there).map(|()| there.mode & 0o777)?,
        Err(ENOENT) => {
            make_folders(above)?;
            NEW_MODE
        }
        Err(errno) => return Err(errno),
    };
    let mode = if mode == KEEP { kept } else { (mode & 0o777) as u32 };
    let _ = name;
    let (open, temp) = create(above)?;
    let whole = take(&open).and_then(|()| file::set_mode(&open, mode as u16)).and_then(|()| {
        let (from, to) = (file::terminated(&temp), file::terminated(&target));
        // rename.
        // SAFETY: both paths end in a zero.
        unsafe { raw(82, [address(from.as_ptr()), address(to.as_ptr()), 0, 0, 0, 0]) }.map(drop)
    });
    if let Err(errno) = whole {
        let temp = file::terminated(&temp);
        // unlink.
        // SAFETY: the path ends in a zero.
        let _ = unsafe { raw(87, [address(temp.as_ptr()), 0, 0, 0, 0, 0]) };
        return Err(errno);
    }
    let facts = Facts::of_open(&open)?;
    out.begin();
    say(path, &facts, out);
    Ok(())
}

/// A new file with a name of its own.
fn create(folder: &[u8]) -> Result<(Fd, Vec<u8>), Errno> {
    let mut random = [0_u8; 8];
    for _ in 0..NAME_TRIES {
        // getrandom.
        // SAFETY: `random` has room for eight bytes.
        unsafe { raw(318, [address(random.as_mut_ptr()), 8, 0, 0, 0, 0]) }?;
        let mut name = b".fumehood-".to_vec();
        for byte in random {
            name.extend([byte >> 4, byte & 15].map(|half| b"0123456789abcdef"[usize::from(half)]));
        }
        let path = join(folder, &name);
        match file::create_at(&file::terminated(&path)) {
            Ok(open) => return Ok((open, path)),
            Err(call::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
    Err(call::EEXIST)
}

/// Writes what comes in, up to its end. An input that stops before that is none.
fn take(to: &Fd) -> Result<(), Errno> {
    let mut room = Vec::new();
    loop {
        let mut length = [0_u8; 4];
        fill(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 {
            return Ok(());
        }
        if length > 16 * CHUNK_BYTES {
            return Err(file::EBADMSG);
        }
        room.resize(length, 0);
        fill(&mut room)?;
        let mut rest = room.as_slice();
        while !rest.is_empty() {
            let count = file::write(to, rest)?;
            rest = rest.get(count..).unwrap_or_default();
        }
    }
}

/// Fills the room from the input.
fn fill(mut room: &mut [u8]) -> Result<(), Errno> {
    let input = core::mem::ManuallyDrop::new(Fd::own(0));
    while !room.is_empty() {
        match file::read(&input, room) {
            Ok(0) => return Err(file::EIO),
            Ok(count) => room = core::mem::take(&mut room).get_mut(count..).unwrap_or_default(),
            Err(call::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
