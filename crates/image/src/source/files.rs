//! Files by their names, in a folder or in an archive.

use crate::fault::{Code, Fault, text};
use crate::tar::{Archive, Name, What};
use fumehood_sys::dirfd::{DirHandle, is_link_in_the_way};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek as _, SeekFrom};
use std::path::Path;

/// In an archive of one image there are a few for each layer.
const MOST_FILES: usize = 100_000;
/// Links to links.
const MOST_LINKS: usize = 8;

/// A set of files.
#[derive(Debug)]
pub(super) enum Files {
    Folder(DirHandle),
    Archive { file: File, index: HashMap<Name, Place> },
}

/// Where a file is in an archive.
#[derive(Clone, Debug)]
pub(super) enum Place {
    At { offset: u64, size: u64 },
    Link(Name),
}

/// A file and its length.
pub(super) type Opened<'s> = (Box<dyn Read + 's>, u64);

// === impl Files ===

impl Files {
    pub(super) fn folder(path: &Path) -> Result<Self, Fault> {
        DirHandle::open(path).map(Self::Folder).map_err(|error| {
            Fault::new(Code::BadSource, format!("`{}` can not be opened: {error}", path.display()))
        })
    }

    /// Reads the archive once, and notes where each file is.
    pub(super) fn archive(path: &Path) -> Result<Self, Fault> {
        let failed =
            |error: std::io::Error| Fault::new(Code::BadSource, format!("`{}`: {error}", path.display()));
        let file = File::open(path).map_err(failed)?;
        if !file.metadata().map_err(failed)?.is_file() {
            let why = format!("`{}` is neither a folder nor a file", path.display());
            return Err(Fault::new(Code::BadSource, why));
        }
        let mut index = HashMap::new();
        let mut archive = Archive::new(BufReader::with_capacity(1 << 20, &file));
        loop {
            let entry = archive.next_entry().map_err(|fault| fault.of(&path.display().to_string()))?;
            let Some(entry) = entry else { break };
            let place = match entry.what {
                What::File => Place::At { offset: archive.position(), size: entry.size },
                What::Link(target) => match beside(&entry.name, &target) {
                    Some(target) => Place::Link(target),
                    None => continue,
                },
                What::Same(target) => Place::Link(target),
                What::Folder | What::Special => continue,
            };
            index.insert(entry.name, place);
            if index.len() > MOST_FILES {
                return Err(Fault::new(Code::TooLarge, "the archive holds more files than images have"));
            }
        }
        Ok(Self::Archive { file, index })
    }

    /// A file and its length; `None` where there is none of that name.
    pub(super) fn open<'s>(&'s mut self, name: &str) -> Result<Option<Opened<'s>>, Fault> {
        let wanted = Name::parse(name.as_bytes())?;
        let failed = |error: std::io::Error| {
            Fault::new(Code::BadSource, format!("`{}` can not be read: {error}", text(name.as_bytes())))
        };
        match self {
            Self::Folder(folder) => match folder.read(wanted.path()) {
                Ok((file, stat)) => Ok(Some((Box::new(file), stat.size))),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
                Err(error) if is_link_in_the_way(&error) => {
                    Err(Fault::new(Code::BadSource, format!("`{}` is a link", wanted.shown())))
                }
                Err(error) => Err(failed(error)),
            },
            Self::Archive { file, index } => {
                let Some((offset, size)) = find(index, wanted) else { return Ok(None) };
                file.seek(SeekFrom::Start(offset)).map_err(failed)?;
                Ok(Some((Box::new(BufReader::new(file.take(size))), size)))
            }
        }
    }

    /// A small file whole.
    pub(super) fn small(&mut self, name: &str, most_bytes: u64) -> Result<Option<Vec<u8>>, Fault> {
        let Some((reader, _)) = self.open(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = reader.take(most_bytes.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| Fault::new(Code::BadSource, format!("`{name}` can not be read: {error}")))?;
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most_bytes {
            return Err(Fault::new(Code::TooLarge, format!("`{name}` is larger than one can be")));
        }
        Ok(Some(bytes))
    }
}

fn find(index: &HashMap<Name, Place>, mut wanted: Name) -> Option<(u64, u64)> {
    for _ in 0..MOST_LINKS {
        match index.get(&wanted)? {
            Place::At { offset, size } => return Some((*offset, *size)),
            Place::Link(target) => wanted = target.clone(),
        }
    }
    None
}

/// Where a relative link in an archive leads, by names alone; `None` where it leads out.
fn beside(name: &Name, target: &[u8]) -> Option<Name> {
    let (folder, _) = name.split()?;
    let mut parts: Vec<&[u8]> =
        if target.first() == Some(&b'/') { Vec::new() } else { folder.parts().collect() };
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Name::parse(&parts.join(&b'/')).ok()
}
