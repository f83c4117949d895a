//! Telling of changes beneath a folder, until the host has enough.

use super::{DEEPEST, EBUSY, Facts, Out, join, names};
use crate::answer::{self, Change};
use crate::call::{self, Errno, Fd, Pollfd, address, new_fd, plain, raw, word};
use crate::file;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

const MOST: usize = 8192;
const CREATE: u32 = 0x100;
const MOVED_TO: u32 = 0x80;
const MOVED_FROM: u32 = 0x40;
const DELETE: u32 = 0x200;
const CLOSE_WRITE: u32 = 8;
const ATTRIBUTES: u32 = 4;
const IGNORED: u32 = 0x8000;
const OVERFLOW: u32 = 0x4000;
const IS_FOLDER: u32 = 0x4000_0000;
/// Only a folder, and no link to one.
const ONLY_FOLDER: u32 = 0x0300_0000;
const WANTED: u32 = CREATE | MOVED_TO | MOVED_FROM | DELETE | CLOSE_WRITE | ATTRIBUTES;
/// The fixed part of what the kernel says: four numbers of four bytes.
const HEAD_BYTES: usize = 16;

struct Watch {
    kernel: Fd,
    places: BTreeMap<u32, Vec<u8>>,
    all: bool,
}

pub(super) fn watch(path: &[u8], all: bool, out: &mut Out) -> Result<(), Errno> {
    // inotify_init1 with IN_CLOEXEC.
    let kernel = plain(294, [0o2_000_000, 0, 0, 0, 0, 0]).map(new_fd)?;
    if !Facts::followed(path)?.is_folder() {
        return Err(call::ENOTDIR);
    }
    let mut watch = Watch { kernel, places: BTreeMap::new(), all };
    watch.add(path, 0, None)?;
    let top = watch.places.keys().next().copied();
    out.begin();
    out.flush()?;
    let mut room = alloc::vec![0_u8; 64 * 1024];
    loop {
        let mut entries = [Pollfd { fd: 0, events: 1, found: 0 }, Pollfd::reading(&watch.kernel)];
        match call::poll_for(&mut entries, -1) {
            Ok(()) | Err(call::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        // The host has nothing to say but that it is over.
        if entries[0].found != 0 {
            return Ok(());
        }
        if entries[1].found != 0 {
            let count = file::read(&watch.kernel, &mut room)?;
            if !watch.tell(room.get(..count).unwrap_or_default(), top, out)? {
                return Err(EBUSY);
            }
            out.flush()?;
        }
    }
}

// === impl Watch ===

impl Watch {
    /// Tells of what the kernel said. `false`: it can not go on.
    fn tell(&mut self, mut bytes: &[u8], top: Option<u32>, out: &mut Out) -> Result<bool, Errno> {
        let mut last = None;
        while let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() {
            let at = |place: usize| {
                let mut four = [0_u8; 4];
                four.iter_mut().zip(head.iter().skip(place * 4)).for_each(|(to, from)| *to = *from);
                u32::from_ne_bytes(four)
            };
            let (number, mask, length) = (at(0), at(1), at(3) as usize);
            let name = rest.get(..length).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
            bytes = rest.get(length..).unwrap_or_default();
            if mask & OVERFLOW != 0 || (mask & IGNORED != 0 && top == Some(number)) {
                return Ok(false);
            }
            if mask & IGNORED != 0 {
                self.places.remove(&number);
                continue;
            }
            let Some(place) = self.places.get(&number) else { continue };
            let path = if name.is_empty() { place.clone() } else { join(place, name) };
            let change = match mask & WANTED {
                CREATE | MOVED_TO => Change::Created,
                MOVED_FROM => Change::Moved,
                DELETE => Change::Removed,
                CLOSE_WRITE => Change::Written,
                ATTRIBUTES => Change::Mode,
                _ => continue,
            };
            // One write is many changes to the kernel.
            if last.as_ref() != Some(&(path.clone(), change)) {
                answer::changed(change, &path, out.room());
                last = Some((path.clone(), change));
            }
            if self.all && mask & IS_FOLDER != 0 && !name.is_empty() {
                match change {
                    Change::Created => self.add(&path, 1, Some(out))?,
                    Change::Moved => self.places.retain(|_, place| !place.starts_with(&path)),
                    Change::Written | Change::Removed | Change::Mode => {}
                }
            }
            out.pass()?;
        }
        Ok(true)
    }

    /// Watches a folder and those below it. With `out`, tells of what is in them already: it came while nobody
    /// looked.
    fn add(&mut self, path: &[u8], level: u32, mut out: Option<&mut Out>) -> Result<(), Errno> {
        if self.places.len() >= MOST || level > DEEPEST {
            return Err(EBUSY);
        }
        let text = file::terminated(path);
        let follow = if level == 0 { 0x0100_0000 } else { ONLY_FOLDER };
        let words = [word(self.kernel.number()), address(text.as_ptr()), u64::from(WANTED | follow), 0, 0, 0];
        // inotify_add_watch.
        // SAFETY: the path ends in a zero.
        match unsafe { raw(254, words) } {
            Ok(number) => drop(self.places.insert(number as u32, path.to_vec())),
            // One below that can not be read, or is gone, is no fault of the one that was asked for.
            Err(_) if level > 0 => return Ok(()),
            Err(errno) => return Err(errno),
        }
        if !self.all {
            return Ok(());
        }
        for name in names(path).unwrap_or_default() {
            let below = join(path, &name);
            if let Some(out) = out.as_deref_mut() {
                answer::changed(Change::Created, &below, out.room());
            }
            if Facts::of(&below).is_ok_and(|facts| facts.is_folder()) {
                self.add(&below, level + 1, out.as_deref_mut())?;
            }
        }
        Ok(())
    }
}
