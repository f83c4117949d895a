//! Placing the entries of one layer in a folder of its own.
//!
//! **Invariant:** every step is taken from an open handle, beneath it, through no link. What is placed is folders
//! (0755), files (0644 or 0755), links as they are, and further names of files of the same layer. Owners, other bits of the
//! mode, attributes, devices and pipes are not.

use crate::fault::{Code, Fault};
use crate::limits::Limits;
use crate::marks::Marks;
use crate::tar::{Archive, Entry, Name, What};
use fumehood_sys::dirfd::{DirHandle, FileHandle, Kind, Time, is_link_in_the_way};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Read, Write as _};
use std::os::unix::ffi::OsStrExt as _;

pub(crate) const FOLDER_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;
const PROGRAM_MODE: u32 = 0o755;
const BUFFER_BYTES: usize = 128 << 10;
/// Before a name: it is gone. Twice: for the writer's own use, but for one.
const WHITEOUT: &[u8] = b".wh.";
const WHITEOUT_META: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// One layer being placed.
#[derive(Debug)]
struct Placer<'t> {
    tree: &'t DirHandle,
    /// The folder of the entry before: most entries stand beside it.
    at: Option<(Name, DirHandle)>,
    marks: Marks,
    buffer: Vec<u8>,
}

/// What a last name means.
enum Meaning<'n> {
    Plain,
    Gone(&'n OsStr),
    Emptied,
    Ignored,
}

/// Places all entries in `tree`, which is empty and ours. `entries` counts those of all layers of the image.
pub(crate) fn unpack<R: Read>(
    archive: &mut Archive<R>,
    tree: &DirHandle,
    entries: &mut u64,
    limits: &Limits,
) -> Result<Marks, Fault> {
    let mut placer = Placer { tree, at: None, marks: Marks::default(), buffer: vec![0; BUFFER_BYTES] };
    while let Some(entry) = archive.next_entry()? {
        *entries = entries.saturating_add(1);
        if *entries > limits.entries {
            let why = format!("the image has more than {} entries", limits.entries);
            return Err(Fault::new(Code::TooLarge, why));
        }
        placer.place(&entry, archive).map_err(|fault| fault.of(&format!("`{}`", entry.name.shown())))?;
    }
    Ok(placer.marks)
}

// === impl Placer ===

impl Placer<'_> {
    fn place(&mut self, entry: &Entry, content: &mut impl Read) -> Result<(), Fault> {
        let Some((folder, last)) = entry.name.split() else { return Ok(()) };
        if folder.parts().any(|part| part.starts_with(WHITEOUT_META)) {
            return Ok(());
        }
        if folder.parts().any(|part| part.starts_with(WHITEOUT)) {
            return Err(Fault::new(Code::BadLayer, "a folder has the name of a mark that something is gone"));
        }
        match meaning(last)? {
            Meaning::Plain => {}
            Meaning::Ignored => return Ok(()),
            Meaning::Emptied => {
                self.marks.emptied.insert(folder);
                return Ok(());
            }
            Meaning::Gone(name) => {
                self.marks.gone.insert(folder.join(name));
                return Ok(());
            }
        }
        match &entry.what {
            What::Folder => self.folder(entry, &folder, last),
            What::File => self.file(entry, (&folder, last), content),
            What::Link(target) => {
                self.put(entry, (&folder, last), |at| at.make_link(OsStr::from_bytes(target), last))
            }
            What::Same(target) => self.same(entry, (&folder, last), target),
            What::Special => {
                self.marks.special = self.marks.special.saturating_add(1);
                Ok(())
            }
        }
    }

    fn folder(&mut self, entry: &Entry, folder: &Name, last: &OsStr) -> Result<(), Fault> {
        let at = self.enter(folder)?;
        match at.make_dir(last, FOLDER_MODE) {
            Ok(()) => open_folder(at, last).map(drop)?,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if kind(at, last)? != Some(Kind::Dir) {
                    return Err(two_kinds());
                }
            }
            Err(error) => return Err(unmade(&error)),
        }
        self.marks.implied.remove(&entry.name);
        self.marks.links.remove(&entry.name);
        Ok(())
    }

    fn file(
        &mut self,
        entry: &Entry,
        (folder, last): (&Name, &OsStr),
        content: &mut impl Read,
    ) -> Result<(), Fault> {
        let mut made = None;
        self.put(entry, (folder, last), |at| {
            made = Some(at.create_new(last, FILE_MODE)?);
            Ok(())
        })?;
        let Some(mut file) = made else { return Ok(()) };
        self.fill(&mut file, content)?;
        let mode = if entry.executable { PROGRAM_MODE } else { FILE_MODE };
        let time = Time { secs: i64::try_from(entry.mtime.0).unwrap_or(0), nanos: entry.mtime.1 };
        file.set_mode(mode).and_then(|()| file.set_mtime(time)).map_err(|error| unmade(&error))
    }

    fn fill(&mut self, file: &mut FileHandle, content: &mut impl Read) -> Result<(), Fault> {
        loop {
            let read = match content.read(&mut self.buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Fault::reading(Code::BadLayer, "read a layer", error)),
            };
            let bytes = self.buffer.get(..read).unwrap_or_default();
            file.write_all(bytes).map_err(|error| unmade(&error))?;
        }
    }

    /// Another name of a file. One that is below is told of; it is looked for when the layers come together.
    fn same(&mut self, entry: &Entry, place: (&Name, &OsStr), target: &Name) -> Result<(), Fault> {
        if let Some(below) = self.marks.links.get(target).cloned() {
            return self.told(entry, place, below);
        }
        let (folder, name) = target.split().ok_or_else(|| no_file(target))?;
        let beside = match self.tree.sub(folder.path()) {
            Ok(beside) => beside,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return self.told(entry, place, target.clone());
            }
            Err(error) => return Err(unreached(&error)),
        };
        match kind(&beside, name)? {
            None => self.told(entry, place, target.clone()),
            Some(Kind::File | Kind::Link) if entry.name == *target => Ok(()),
            Some(Kind::File | Kind::Link) => self.put(entry, place, |at| beside.hard_link(name, at, place.1)),
            Some(_) => Err(no_file(target)),
        }
    }

    fn told(&mut self, entry: &Entry, place: (&Name, &OsStr), target: Name) -> Result<(), Fault> {
        if entry.name == target {
            return Err(no_file(&target));
        }
        let at = self.enter(place.0)?;
        remove(at, place.1)?;
        self.marks.links.insert(entry.name.clone(), target);
        Ok(())
    }

    /// Makes something that is no folder. Of two of one name, the later stands.
    fn put(
        &mut self,
        entry: &Entry,
        (folder, last): (&Name, &OsStr),
        mut make: impl FnMut(&DirHandle) -> io::Result<()>,
    ) -> Result<(), Fault> {
        let at = self.enter(folder)?;
        let mut done = make(at);
        if done.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            remove(at, last)?;
            done = make(at);
        }
        done.map_err(|error| unmade(&error))?;
        self.marks.links.remove(&entry.name);
        Ok(())
    }

    /// The folder of an entry, made where no entry made it.
    fn enter(&mut self, folder: &Name) -> Result<&DirHandle, Fault> {
        if self.at.as_ref().is_none_or(|(name, _)| name != folder) {
            let opened = match self.tree.sub(folder.path()) {
                Err(error) if error.kind() == ErrorKind::NotFound => self.imply(folder)?,
                other => other.map_err(|error| unreached(&error))?,
            };
            self.at = Some((folder.clone(), opened));
        }
        let (_, at) = self.at.as_ref().ok_or_else(|| Fault::new(Code::Store, "a folder was lost"))?;
        Ok(at)
    }

    fn imply(&mut self, folder: &Name) -> Result<DirHandle, Fault> {
        let mut at = self.tree.sub(Name::default().path()).map_err(|error| unreached(&error))?;
        for name in folder.above().chain([folder.clone()]) {
            let Some((_, last)) = name.split() else { continue };
            if self.marks.links.contains_key(&name) {
                return Err(through_a_link());
            }
            at = match at.make_dir(last, FOLDER_MODE) {
                Ok(()) => {
                    let made = open_folder(&at, last)?;
                    self.marks.implied.insert(name);
                    made
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    at.sub(last.as_ref()).map_err(|error| unreached(&error))?
                }
                Err(error) => return Err(unmade(&error)),
            };
        }
        Ok(at)
    }
}

fn meaning(last: &OsStr) -> Result<Meaning<'_>, Fault> {
    let bytes = last.as_bytes();
    if bytes == OPAQUE {
        return Ok(Meaning::Emptied);
    }
    if bytes.starts_with(WHITEOUT_META) {
        return Ok(Meaning::Ignored);
    }
    match bytes.strip_prefix(WHITEOUT) {
        None => Ok(Meaning::Plain),
        Some(b"" | b"." | b"..") => Err(Fault::new(Code::Escapes, "a mark names nothing that could be gone")),
        Some(name) => Ok(Meaning::Gone(OsStr::from_bytes(name))),
    }
}

/// Opens a folder that we just made, and gives it its mode whatever the umask is.
pub(crate) fn open_folder(at: &DirHandle, name: &OsStr) -> Result<DirHandle, Fault> {
    let made = at.sub(name.as_ref()).map_err(|error| unreached(&error))?;
    made.set_mode(FOLDER_MODE).map_err(|error| unmade(&error))?;
    Ok(made)
}

/// Removes what is no folder, if it is there.
fn remove(at: &DirHandle, name: &OsStr) -> Result<(), Fault> {
    match kind(at, name)? {
        None => Ok(()),
        Some(Kind::Dir) => Err(two_kinds()),
        Some(_) => at.remove_file(name).map_err(|error| unmade(&error)),
    }
}

pub(crate) fn kind(at: &DirHandle, name: &OsStr) -> Result<Option<Kind>, Fault> {
    at.look(name).map(|found| found.map(|stat| stat.kind)).map_err(|error| unreached(&error))
}

fn two_kinds() -> Fault {
    Fault::new(Code::Escapes, "it is there twice, as a folder and as something else")
}

fn through_a_link() -> Fault {
    Fault::new(Code::Escapes, "its path leads through what is no folder")
}

pub(crate) fn no_file(target: &Name) -> Fault {
    Fault::new(
        Code::Escapes,
        format!("it is another name of `{}`, which is no file of the image", target.shown()),
    )
}

/// A lookup failed: through a link, or for the store's own reasons.
pub(crate) fn unreached(error: &io::Error) -> Fault {
    if is_link_in_the_way(error) || error.kind() == ErrorKind::NotADirectory {
        return through_a_link();
    }
    Fault::store("open a folder of the store", error)
}

pub(crate) fn unmade(error: &io::Error) -> Fault {
    Fault::store("write to the store", error)
}
