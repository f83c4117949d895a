//! Files that go out: what is beneath a folder becomes entries.
//!
//! A file that changes while it is sent keeps the size that was said of it: what is missing is zeros.

use crate::call::{self, Errno, Fd};
use crate::carry::Foul;
use crate::entry::{ENTRY_BYTES, Entry, MODE_BITS, What};
use crate::file::{self, KIND_CHARACTER, KIND_FILE, KIND_FOLDER, KIND_LINK, Stat};
use crate::frame::{OUTPUT, PATH_BYTES, PAYLOAD_BYTES, Report, Sink, Tree, WINDOW_BYTES};
use crate::line::Line;
use alloc::vec::Vec;

/// Folders within folders. Each costs a descriptor.
const DEEPEST: usize = 200;
const LIST_BYTES: usize = 8 * 1024;
/// Where the name begins in what the kernel says of an entry.
const NAME: usize = 19;

/// A tree that is being sent.
pub(crate) struct Walk {
    tree: Tree,
    credit: u32,
    folders: Vec<Level>,
    /// The path of the innermost folder, each name with a `/` behind it.
    path: Vec<u8>,
    /// The file whose content goes now, and what is left of it.
    open: Option<(Fd, u64)>,
    /// Heads that were made and are not sent.
    ready: Ready,
}

/// A folder on the way.
struct Level {
    folder: Fd,
    list: Vec<u8>,
    at: usize,
    path_length: usize,
}

#[derive(Default)]
struct Ready(Vec<u8>);

impl Sink for Ready {
    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

// === impl Walk ===

impl Walk {
    pub(crate) fn begin(path: &[u8], tree: Tree) -> Result<Self, Errno> {
        let folder = file::open_folder(None, &file::terminated(path))?;
        let level = Level { folder, list: Vec::new(), at: 0, path_length: 0 };
        let (path, ready) = (Vec::new(), Ready::default());
        Ok(Self { tree, credit: WINDOW_BYTES, folders: [level].into(), path, open: None, ready })
    }

    pub(crate) fn allow(&mut self, bytes: u32) -> Result<(), Foul> {
        self.credit = self.credit.checked_add(bytes).filter(|sum| *sum <= WINDOW_BYTES).ok_or(Foul)?;
        Ok(())
    }

    pub(crate) const fn may_go_on(&self) -> bool {
        self.credit > 0
    }

    /// Sends what may be sent. `false`: the channel is closed.
    pub(crate) fn advance(&mut self, number: u32, line: &mut Line) -> bool {
        while self.credit > 0 && line.has_room() {
            match self.step(number, line) {
                Ok(true) => {}
                Ok(false) => {
                    line.say(&Report::Done { channel: number });
                    return false;
                }
                Err(errno) => {
                    line.say(&Report::Failed { channel: number, errno: errno.0 });
                    return false;
                }
            }
        }
        true
    }

    /// Sends one piece. `false`: there was none.
    fn step(&mut self, number: u32, line: &mut Line) -> Result<bool, Errno> {
        let most = PAYLOAD_BYTES.min(self.credit as usize);
        let place = (number, OUTPUT);
        if !self.ready.0.is_empty() {
            let count = self.ready.0.len().min(most);
            let ready = self.ready.0.get(..count).unwrap_or_default();
            line.say_data(place, count, |room| {
                room.copy_from_slice(ready);
                Ok(count)
            })?;
            self.ready.0.drain(..count);
            self.credit -= count as u32;
            return Ok(true);
        }
        if let Some((file, left)) = &mut self.open {
            let most = usize::try_from(*left).unwrap_or(most).min(most);
            let sent = line.say_data(place, most, |room| match file::read(file, room)? {
                0 => Ok(room.len()),
                count => Ok(count),
            })?;
            *left -= sent as u64;
            self.credit -= sent as u32;
            self.open.take_if(|(_, left)| *left == 0);
            return Ok(true);
        }
        // As many heads as make a piece.
        while self.ready.0.len() < PAYLOAD_BYTES - ENTRY_BYTES && self.open.is_none() {
            if !self.next_entry()? {
                return Ok(!self.ready.0.is_empty());
            }
        }
        Ok(true)
    }

    /// Makes the head of the next entry. `false`: there is none.
    fn next_entry(&mut self) -> Result<bool, Errno> {
        let Some(level) = self.folders.last_mut() else { return Ok(false) };
        let Some(name) = level.next_name()? else {
            let length = level.path_length;
            self.folders.pop();
            self.path.truncate(length);
            return Ok(true);
        };
        let outer = self.path.len();
        let bare = name.len() - 1;
        if outer + bare + 1 >= PATH_BYTES {
            return Err(call::ENAMETOOLONG);
        }
        self.path.extend_from_slice(name.get(..bare).unwrap_or_default());
        let inner = self.enter(&name)?;
        match inner {
            Some(folder) if self.folders.len() < DEEPEST => {
                self.path.push(b'/');
                self.folders.push(Level { folder, list: Vec::new(), at: 0, path_length: outer });
            }
            Some(_) => return Err(file::ELOOP),
            None => self.path.truncate(outer),
        }
        Ok(true)
    }

    /// Makes the head of one entry, whose path is set. Gives the folder to go into.
    fn enter(&mut self, name: &[u8]) -> Result<Option<Fd>, Errno> {
        let Some(level) = self.folders.last() else { return Ok(None) };
        let stat = match file::look(&level.folder, name) {
            Ok(stat) => stat,
            // Gone since it was listed.
            Err(call::ENOENT) => return Ok(None),
            Err(errno) => return Err(errno),
        };
        let mode = (stat.mode as u16) & MODE_BITS;
        let mut target = [0; PATH_BYTES];
        let mut inner = None;
        let what = match stat.kind() {
            KIND_FILE => {
                let open = file::open_file(&level.folder, name)?;
                let Stat { size_bytes, .. } = file::stat(&open)?;
                if size_bytes > 0 {
                    self.open = Some((open, size_bytes));
                }
                What::File { mode, size_bytes }
            }
            KIND_FOLDER => {
                let folder = file::open_folder(Some(&level.folder), name)?;
                let opaque = self.tree == Tree::Changes && is_opaque(&folder)?;
                inner = Some(folder);
                if opaque { What::OpaqueFolder { mode } } else { What::Folder { mode } }
            }
            KIND_LINK => {
                let length = file::read_link(&level.folder, name, &mut target)?;
                What::Link { target: target.get(..length).unwrap_or_default() }
            }
            KIND_CHARACTER if stat.device == 0 && self.tree == Tree::Changes => What::Whiteout,
            _ => What::Other,
        };
        Entry { path: &self.path, what }.print(&mut self.ready);
        Ok(inner)
    }
}

fn is_opaque(folder: &Fd) -> Result<bool, Errno> {
    Ok(file::has_mark(folder, b"trusted.overlay.opaque\0")? || file::has_mark(folder, b"user.overlay.opaque\0")?)
}

/// All names in a folder.
pub(crate) fn names(folder: &Fd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut room = Vec::new();
    room.resize(LIST_BYTES, 0);
    let mut names = Vec::new();
    loop {
        let count = file::list(folder, &mut room)?;
        if count == 0 {
            return Ok(names);
        }
        let mut rest = room.get(..count).unwrap_or_default();
        while let Some([low, high]) = rest.get(16..18) {
            let length = usize::from(*low) | usize::from(*high) << 8;
            let name = rest.get(NAME..length).ok_or(file::EIO)?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

// === impl Level ===

impl Level {
    /// The next name of the folder, with the zero behind it.
    fn next_name(&mut self) -> Result<Option<Vec<u8>>, Errno> {
        loop {
            if self.at >= self.list.len() {
                self.list.resize(LIST_BYTES, 0);
                self.at = 0;
                let count = file::list(&self.folder, &mut self.list)?;
                self.list.truncate(count);
                if count == 0 {
                    return Ok(None);
                }
            }
            let rest = self.list.get(self.at..).unwrap_or_default();
            let length = rest.get(16..18).map_or(0, |bytes| usize::from(bytes[0]) | usize::from(bytes[1]) << 8);
            let name = rest.get(NAME..length).ok_or(file::EIO)?;
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            self.at += length;
            if name != b"." && name != b".." {
                return Ok(Some(file::terminated(name)));
            }
        }
    }
}
