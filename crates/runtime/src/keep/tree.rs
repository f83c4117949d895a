//! Copying a whole tree that a guest filled, as it is: owners, modes, times, attributes, links, holes, and what an
//! overlay takes for "deleted".
//!
//! **Invariant:** no link is followed, neither where it is read nor where it is written.

use super::ahead::{Ahead, Key, Placed};
use fumehood_sys::dirfd::{Attribute, DirHandle, Kind, Means, RenameMode, Stat};
use fumehood_sys::host;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

/// Each level holds two descriptors.
const MOST_LEVELS: u32 = 200;

/// A user and a group.
pub(crate) type Owner = (u32, u32);

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Content that is not shared with what it was copied from.
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// A copy under way.
#[derive(Debug)]
struct Copy<'a> {
    top: &'a DirHandle,
    /// Whose things become whose.
    owners: &'a [(Owner, Owner)],
    means: Means,
    done: Copied,
    /// Where files with more than one name are in the copy.
    linked: HashMap<Key, PathBuf>,
    /// What was copied before.
    ahead: Option<&'a mut Ahead>,
}

/// Makes the empty directory `to` the same as `from`. What belongs to the first of a pair of `owners` belongs to the
/// second in the copy. Sockets are left out: nobody listens to a copy.
pub(crate) fn copy(
    from: &DirHandle,
    to: &DirHandle,
    owners: &[(Owner, Owner)],
    ahead: Option<&mut Ahead>,
) -> io::Result<Copied> {
    let (means, done, linked) = (Means::default(), Copied::default(), HashMap::new());
    let mut copy = Copy { top: to, owners, means, done, linked, ahead };
    copy.fill((from, &from.stat()?), to, Path::new(""), 0)?;
    Ok(copy.done)
}

// === impl Copy ===

impl Copy<'_> {
    fn fill(
        &mut self,
        (from, stat): (&DirHandle, &Stat),
        to: &DirHandle,
        path: &Path,
        level: u32,
    ) -> io::Result<()> {
        if level > MOST_LEVELS {
            let why = format!("its folders lie more than {MOST_LEVELS} deep");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, why));
        }
        for entry in from.list()? {
            let name = entry?.name;
            let stat = from.stat_at(&name)?;
            self.done.entries += 1;
            match stat.kind {
                Kind::File => self.file((from, &stat), to, (path, &name))?,
                Kind::Dir => {
                    let below = from.sub(Path::new(&name))?;
                    to.make_dir(&name, 0o700)?;
                    let made = to.sub(Path::new(&name))?;
                    self.fill((&below, &stat), &made, &path.join(&name), level + 1)?;
                }
                Kind::Link => {
                    to.make_link(&from.read_link(&name)?, &name)?;
                    self.give_at(to, &name, &stat)?;
                }
                Kind::CharDevice if stat.is_whiteout() => {
                    to.make_whiteout(&name)?;
                    self.give_at(to, &name, &stat)?;
                }
                Kind::Fifo => {
                    to.make_fifo(&name)?;
                    self.give_at(to, &name, &stat)?;
                }
                Kind::Socket | Kind::CharDevice | Kind::BlockDevice => self.done.entries -= 1,
            }
        }
        for attribute in from.attributes()?.iter().filter(kept) {
            to.set_attribute(attribute)?;
        }
        if let Some((uid, gid)) = self.owner(stat) {
            to.set_owner(uid, gid)?;
        }
        to.set_mode(stat.mode)?;
        to.set_mtime(stat.mtime)
    }

    fn file(
        &mut self,
        (from, stat): (&DirHandle, &Stat),
        to: &DirHandle,
        (path, name): (&Path, &OsStr),
    ) -> io::Result<()> {
        let key = (stat.dev.0, stat.dev.1, stat.ino);
        if stat.links > 1 {
            let first = self.linked.get(&key).and_then(|first| Some((first.parent()?, first.file_name()?)));
            // Where the first can not be reached any more, it is two files.
            if let Some((parent, first)) = first
                && self.top.sub(parent).and_then(|parent| parent.hard_link(first, to, name)).is_ok()
            {
                return Ok(());
            }
        }
        let ahead = self.ahead.as_deref_mut().and_then(|ahead| ahead.place(key, to, name));
        let (file, made, stat) = if let Some(Placed { source, copy, bytes }) = ahead {
            self.done.bytes += bytes;
            let stat = source.stat()?;
            (source, copy, stat)
        } else {
            let (file, stat) = from.read(Path::new(name))?;
            let made = to.create_new(name, 0o600)?;
            self.done.bytes += file.clone_to(&made, stat.size, &mut self.means)?;
            (file, made, stat)
        };
        for attribute in file.attributes()?.iter().filter(kept) {
            made.set_attribute(attribute)?;
        }
        if let Some((uid, gid)) = self.owner(&stat) {
            made.set_owner(uid, gid)?;
        }
        made.set_mode(stat.mode)?;
        made.set_mtime(stat.mtime)?;
        if stat.links > 1 {
            self.linked.insert(key, path.join(name));
        }
        Ok(())
    }

    fn give_at(&self, to: &DirHandle, name: &OsStr, stat: &Stat) -> io::Result<()> {
        if let Some((uid, gid)) = self.owner(stat) {
            to.set_owner_at(name, uid, gid)?;
        }
        // The kernel takes the umask from a new one's mode.
        if stat.kind == Kind::Fifo {
            let held = to.child(name)?;
            fumehood_sys::metadata::set_mode(std::os::fd::AsFd::as_fd(&held), stat.mode)?;
        }
        to.set_mtime_at(name, stat.mtime)
    }

    /// Who it is to be given to; nobody, where only the caller can have things.
    fn owner(&self, stat: &Stat) -> Option<Owner> {
        if host::euid() != 0 {
            return None;
        }
        let (uids, gids) = (
            self.owners.iter().map(|(from, to)| (from.0, to.0)),
            self.owners.iter().map(|(from, to)| (from.1, to.1)),
        );
        let map = |id: u32, mut pairs: Box<dyn Iterator<Item = (u32, u32)> + '_>| {
            pairs.find(|(from, _)| *from == id).map_or(id, |(_, to)| to)
        };
        Some((map(stat.uid, Box::new(uids)), map(stat.gid, Box::new(gids))))
    }
}

/// What users and overlays write, and nothing that gives power on the host.
fn kept(attribute: &&Attribute) -> bool {
    let name = attribute.0.to_bytes();
    name.starts_with(b"user.") || name.starts_with(b"trusted.overlay.")
}

/// Puts a finished folder under its name; `false` where there is one.
pub(crate) fn publish(parent: &DirHandle, temp: &OsStr, name: &OsStr) -> io::Result<bool> {
    match parent.rename(temp, parent, name, RenameMode::NoReplace) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        done => done.map(|()| true),
    }
}
