//! Files that come in: entries become files beneath a folder.
//!
//! Every step is taken from an open folder through no link, so that what is put never lands elsewhere.

use crate::call::{self, Errno, Fd};
use crate::carry::Foul;
use crate::entry::{ENTRY_BYTES, Entry, Front, What};
use crate::file;
use crate::frame::{Credit, INPUT, Person, Report, WINDOW_BYTES};
use crate::line::Line;
use alloc::vec::Vec;

/// A tree that is being made.
pub(crate) struct Store {
    root: Fd,
    owner: Option<Person>,
    queue: Vec<u8>,
    window: u32,
    ended: bool,
    /// The file whose content comes now.
    open: Option<Open>,
    /// Folders whose modes are set when everything in them is made.
    folders: Vec<(Vec<u8>, u16)>,
}

struct Open {
    file: Fd,
    left: u64,
    mode: u16,
}

// === impl Store ===

impl Store {
    pub(crate) fn begin(path: &[u8], owner: Option<Person>) -> Result<Self, Errno> {
        let root = file::open_folder(None, &file::terminated(path))?;
        Ok(Self {
            root,
            owner,
            queue: Vec::new(),
            window: WINDOW_BYTES,
            ended: false,
            open: None,
            folders: Vec::new(),
        })
    }

    pub(crate) fn accept(&mut self, bytes: &[u8]) -> Result<(), Foul> {
        let count = bytes.len() as u32;
        if self.ended || count > self.window {
            return Err(Foul);
        }
        self.window -= count;
        self.queue.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn end(&mut self) -> Result<(), Foul> {
        if self.ended {
            return Err(Foul);
        }
        self.ended = true;
        Ok(())
    }

    /// Makes what has come. `false`: the channel is closed.
    pub(crate) fn advance(&mut self, number: u32, line: &mut Line) -> bool {
        let queue = core::mem::take(&mut self.queue);
        let made = self.make(&queue);
        let taken = match made {
            Ok(taken) => taken,
            Err(errno) => {
                line.say(&Report::Failed { channel: number, errno: errno.0 });
                return false;
            }
        };
        self.queue = queue;
        self.queue.drain(..taken);
        if taken > 0 && !self.ended {
            self.window += taken as u32;
            line.say(&Report::Credit(Credit { channel: number, stream: INPUT, bytes: taken as u32 }));
        }
        if !self.ended {
            return true;
        }
        let whole = self.queue.is_empty() && self.open.is_none();
        match if whole { self.set_modes() } else { Err(file::EBADMSG) } {
            Ok(()) => line.say(&Report::Done { channel: number }),
            Err(errno) => line.say(&Report::Failed { channel: number, errno: errno.0 }),
        }
        false
    }

    /// Says how many bytes were used.
    fn make(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut taken = 0;
        while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
            if let Some(open) = &mut self.open {
                taken += open.fill(rest)?;
                self.close_full()?;
                continue;
            }
            match Entry::parse(rest) {
                Front::Entry(entry, length) => {
                    self.enter(&entry)?;
                    self.close_full()?;
                    taken += length;
                }
                Front::More if rest.len() < ENTRY_BYTES => break,
                Front::More | Front::Garbage => return Err(file::EBADMSG),
            }
        }
        Ok(taken)
    }

    fn close_full(&mut self) -> Result<(), Errno> {
        if let Some(open) = self.open.take_if(|open| open.left == 0) {
            file::set_mode(&open.file, open.mode)?;
        }
        Ok(())
    }

    fn enter(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        let (folder, name) = self.parent(entry.path)?;
        let folder = folder.as_ref().unwrap_or(&self.root);
        let name = file::terminated(name);
        match entry.what {
            What::File { mode, size_bytes } => {
                vacate(folder, &name)?;
                let made = file::create(folder, &name)?;
                self.own(&made)?;
                self.open = Some(Open { file: made, left: size_bytes, mode });
            }
            What::Folder { mode } | What::OpaqueFolder { mode } => {
                match file::make_folder(folder, &name) {
                    Ok(()) | Err(call::EEXIST) => {}
                    Err(errno) => return Err(errno),
                }
                self.own(&file::open_folder(Some(folder), &name)?)?;
                self.folders.push((entry.path.to_vec(), mode));
            }
            What::Link { target } => {
                vacate(folder, &name)?;
                file::make_link(&file::terminated(target), folder, &name)?;
                if let Some(Person { uid, gid }) = self.owner {
                    file::set_link_owner(folder, &name, uid, gid)?;
                }
            }
            What::Whiteout => vacate(folder, &name)?,
            What::Other => return Err(file::EBADMSG),
        }
        Ok(())
    }

    /// The folder that a path lies in (`None`: the root), and its last name.
    fn parent<'a>(&self, path: &'a [u8]) -> Result<(Option<Fd>, &'a [u8]), Errno> {
        let mut at: Option<Fd> = None;
        let mut names = path.split(|byte| *byte == b'/').peekable();
        while let Some(name) = names.next() {
            if names.peek().is_none() {
                return Ok((at, name));
            }
            at = Some(file::open_folder(Some(at.as_ref().unwrap_or(&self.root)), &file::terminated(name))?);
        }
        Err(file::EBADMSG)
    }

    fn own(&self, file: &Fd) -> Result<(), Errno> {
        match self.owner {
            Some(Person { uid, gid }) => file::set_owner(file, uid, gid),
            None => Ok(()),
        }
    }

    /// The deepest first, so that a folder that may not be entered any more is the last.
    fn set_modes(&mut self) -> Result<(), Errno> {
        let folders = core::mem::take(&mut self.folders);
        for (path, mode) in folders.iter().rev() {
            let (folder, name) = self.parent(path)?;
            let folder = folder.as_ref().unwrap_or(&self.root);
            file::set_mode(&file::open_folder(Some(folder), &file::terminated(name))?, *mode)?;
        }
        Ok(())
    }
}

// === impl Open ===

impl Open {
    fn fill(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let written = file::write(&self.file, bytes.get(..most).unwrap_or_default())?;
        self.left -= written as u64;
        Ok(written)
    }
}

/// Makes sure that nothing bears a name. A folder stays, and is in the way.
fn vacate(folder: &Fd, name: &[u8]) -> Result<(), Errno> {
    match file::remove(folder, name) {
        Ok(()) | Err(call::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}
