//! Collecting what a command wrote to `/out` into a folder of the host.
//!
//! The source is a tree that a guest made and may still be changing; the target is a folder that other
//! people of the host may be using. Both are walked by handle. A file crosses by streaming it, under
//! caps, into a file without a name (or a temporary one) and is named at the end: under its final name
//! it is whole or not there. Links, devices, pipes, sockets and hard links never cross; they are listed.
//!
//! **Invariant:** no name of the target is written through: what stands there is replaced when it is a
//! regular file, and otherwise refused.

use super::text::escape_path;
use super::{Record, Refusal, depth, hex, split};
use fumehood_model::event::Event;
use fumehood_model::report::Collected;
use fumehood_sys::dirfd::{CopyError, DirHandle, FileHandle, Kind, RenameMode, Stat, copy};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many refusals are listed by path; the rest are counted.
const LISTED_REFUSALS: usize = 1_000;
/// How the names of files under way start. None of a guest's crosses, so none can be taken for ours.
const RESERVED: &[u8] = b".fumehood-";

/// The ceilings of one collection. All are on what is met or streamed, never on what a size field says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectLimits {
    /// Files and directories that cross.
    pub entries: u64,
    /// Names looked at, whatever they are.
    pub names: u64,
    /// Bytes of all files together.
    pub bytes: u64,
    /// Bytes of one file.
    pub file_bytes: u64,
    /// Components of a path.
    pub depth: usize,
    /// Wall clock of the whole.
    pub time: Duration,
}

/// What one collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub collected: Collected,
    /// The first thousand.
    pub refusals: Vec<Refusal>,
}

/// Why a collection stopped. What had crossed by then stays, whole.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    #[error("open the output folder `{}`, which must be a folder and not a link", escape_path(path))]
    Target {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("read `{}` below `/out`", escape_path(path))]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("write `{}` in the output folder", escape_path(path))]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("record the file `{}`", escape_path(path))]
    Record {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The output folder: the deepest folder on the way to it that is there, held, and what is missing below.
///
/// **Invariant:** nothing that happens to the path after [`Target::find`] leads anywhere else.
#[derive(Debug)]
pub struct Target {
    path: PathBuf,
    base: DirHandle,
    missing: PathBuf,
}

/// One collection under way.
struct Collection<'a, 'r> {
    from: &'a DirHandle,
    to: &'a DirHandle,
    limits: CollectLimits,
    record: &'a mut Record<'r>,
    started: Instant,
    entries: u64,
    names: u64,
    outcome: Outcome,
    /// Directories still to be walked, the next one last.
    waiting: Vec<PathBuf>,
}

/// A file under way: without a name where the file system has such files, so that a kill leaves nothing;
/// else under a temporary name.
struct Fresh<'a> {
    dir: &'a DirHandle,
    file: FileHandle,
    temp: OsString,
    named: bool,
}

/// Whether the walk goes on.
enum Go {
    On,
    Stop,
}

// === impl CollectLimits ===

impl CollectLimits {
    /// The ceilings for a sandbox that could write `disk_bytes`.
    pub const fn for_disk(disk_bytes: u64) -> Self {
        Self {
            entries: 10_000,
            names: 100_000,
            bytes: disk_bytes,
            file_bytes: disk_bytes,
            depth: 128,
            time: Duration::from_secs(600),
        }
    }
}

// === impl Target ===

impl Target {
    /// Finds the place before a command runs that could change what lies on the way. A link in the place of
    /// the folder itself is refused.
    pub fn find(path: &Path) -> Result<Self, CollectError> {
        let failed = |source| CollectError::Target { path: path.to_owned(), source };
        let mut there = path;
        loop {
            let opened = if there == path { DirHandle::open_no_link(path) } else { DirHandle::open(there) };
            match (opened, there.parent()) {
                (Ok(base), _) => {
                    let missing = path.strip_prefix(there).unwrap_or(Path::new("")).to_owned();
                    return Ok(Self { path: path.to_owned(), base, missing });
                }
                (Err(error), Some(parent)) if error.kind() == io::ErrorKind::NotFound => there = parent,
                (Err(error), _) => return Err(failed(error)),
            }
        }
    }

    /// Opens the folder, and makes (0755) what is missing. A link that came to stand on the way is refused.
    pub fn open(&self) -> Result<DirHandle, CollectError> {
        let failed = |source| CollectError::Target { path: self.path.clone(), source };
        let mut dir = self.base.sub(Path::new("")).map_err(failed)?;
        for name in self.missing.iter() {
            match dir.make_dir(name, 0o755) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
                Ok(()) | Err(_) => {}
            }
            dir = dir.sub(Path::new(name)).map_err(failed)?;
        }
        Ok(dir)
    }
}

/// Brings the regular files below `from` to `to`, and lists what it refused.
///
/// `record` is called before a file appears under its final name; its error stops the collection.
/// Modes keep at most `rwx` and pass the umask; the caller owns what appears.
pub fn collect(
    from: &DirHandle,
    to: &DirHandle,
    limits: CollectLimits,
    record: &mut Record<'_>,
) -> Result<Outcome, CollectError> {
    let mut collection = Collection {
        from,
        to,
        limits,
        record,
        started: Instant::now(),
        entries: 0,
        names: 0,
        outcome: Outcome::default(),
        waiting: vec![PathBuf::new()],
    };
    while let Some(path) = collection.waiting.pop() {
        if let Go::Stop = collection.directory(&path)? {
            break;
        }
    }
    Ok(collection.outcome)
}

// === impl Collection ===

impl Collection<'_, '_> {
    fn refuse(&mut self, path: &Path, why: impl Into<String>) -> Result<(), CollectError> {
        self.outcome.collected.refused = self.outcome.collected.refused.saturating_add(1);
        if self.outcome.refusals.len() < LISTED_REFUSALS {
            let refusal = Refusal::new(path, why);
            (self.record)(&refusal.event())
                .map_err(|source| CollectError::Record { path: path.to_owned(), source })?;
            self.outcome.refusals.push(refusal);
        }
        Ok(())
    }

    /// Refuses the rest of the tree: a ceiling of the whole collection was met.
    fn stop(&mut self, path: &Path, why: String) -> Result<Go, CollectError> {
        self.refuse(path, why)?;
        Ok(Go::Stop)
    }

    fn directory(&mut self, path: &Path) -> Result<Go, CollectError> {
        let source = match self.from.sub(path) {
            Ok(dir) => dir,
            Err(error) if path.as_os_str().is_empty() => {
                return Err(CollectError::Read { path: path.to_owned(), source: error });
            }
            Err(error) => {
                self.refuse(path, format!("could not be opened as a directory: {error}"))?;
                return Ok(Go::On);
            }
        };
        let target = match self.to.sub(path) {
            Ok(dir) => dir,
            Err(source) if path.as_os_str().is_empty() => {
                return Err(CollectError::Write { path: path.to_owned(), source });
            }
            Err(error) => {
                self.refuse(
                    path,
                    format!("its directory in the output folder could not be opened: {error}"),
                )?;
                return Ok(Go::On);
            }
        };
        let mut names = Vec::new();
        for entry in source.list().map_err(|source| CollectError::Read { path: path.to_owned(), source })? {
            let entry = entry.map_err(|source| CollectError::Read { path: path.to_owned(), source })?;
            self.names = self.names.saturating_add(1);
            if self.names > self.limits.names {
                break;
            }
            names.push(entry.name);
        }
        names.sort();
        for name in names {
            if self.started.elapsed() > self.limits.time {
                let seconds = self.limits.time.as_secs();
                return self.stop(&path.join(&name), format!("collecting took more than {seconds} s"));
            }
            if let Go::Stop = self.entry(&source, &target, &path.join(&name))? {
                return Ok(Go::Stop);
            }
        }
        if self.names > self.limits.names {
            return self.stop(path, format!("more than {} names to look at", self.limits.names));
        }
        Ok(Go::On)
    }

    fn entry(&mut self, source: &DirHandle, target: &DirHandle, path: &Path) -> Result<Go, CollectError> {
        let Some((_, name)) = split(path) else { return Ok(Go::On) };
        if name.as_bytes().starts_with(RESERVED) {
            self.refuse(path, "a name that is kept for files under way")?;
            return Ok(Go::On);
        }
        let stat = match source.look(name) {
            Ok(Some(stat)) => stat,
            Ok(None) => return Ok(Go::On),
            Err(error) => {
                self.refuse(path, format!("could not be looked at: {error}"))?;
                return Ok(Go::On);
            }
        };
        if self.entries >= self.limits.entries && matches!(stat.kind, Kind::File | Kind::Dir) {
            return self.stop(path, format!("more than {} files and directories", self.limits.entries));
        }
        match stat.kind {
            Kind::File => self.file(source, target, path),
            Kind::Dir => self.make_directory(target, path, &stat).map(|()| Go::On),
            Kind::Link => {
                self.refuse(path, "a symbolic link; only regular files are collected")?;
                Ok(Go::On)
            }
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => {
                self.refuse(path, format!("a {}; only regular files are collected", stat.kind.word()))?;
                Ok(Go::On)
            }
        }
    }

    fn make_directory(&mut self, target: &DirHandle, path: &Path, stat: &Stat) -> Result<(), CollectError> {
        let Some((_, name)) = split(path) else { return Ok(()) };
        if depth(path) >= self.limits.depth {
            return self.refuse(path, format!("deeper than {} directories", self.limits.depth));
        }
        let failed = |source| CollectError::Write { path: path.to_owned(), source };
        match target.look(name).map_err(failed)? {
            None => target.make_dir(name, (stat.mode & 0o777) | 0o700).map_err(failed)?,
            Some(there) if there.kind == Kind::Dir => {}
            Some(there) => {
                return self
                    .refuse(path, format!("a {} of this name is in the output folder", there.kind.word()));
            }
        }
        // What stands there now is opened beneath the target and without links when its turn comes.
        if let Err(error) = target.sub(Path::new(name)) {
            return self
                .refuse(path, format!("the directory in the output folder could not be opened: {error}"));
        }
        self.entries += 1;
        self.waiting.push(path.to_owned());
        Ok(())
    }

    fn file(&mut self, source: &DirHandle, target: &DirHandle, path: &Path) -> Result<Go, CollectError> {
        let Some((_, name)) = split(path) else { return Ok(Go::On) };
        let (content, stat) = match source.read(Path::new(name)) {
            Ok(opened) => opened,
            Err(error) => {
                self.refuse(path, format!("could not be opened as a regular file: {error}"))?;
                return Ok(Go::On);
            }
        };
        if stat.links > 1 {
            self.refuse(path, format!("a hard link ({} names for one file)", stat.links))?;
            return Ok(Go::On);
        }
        let left = self.limits.bytes.saturating_sub(self.outcome.collected.bytes);
        let limit = left.min(self.limits.file_bytes);
        if stat.size > limit {
            self.refuse(path, too_large(stat.size, limit))?;
            return Ok(Go::On);
        }
        let failed = |source| CollectError::Write { path: path.to_owned(), source };
        if let Some(there) = target.look(name).map_err(failed)?
            && there.kind != Kind::File
        {
            self.refuse(path, format!("a {} of this name is in the output folder", there.kind.word()))?;
            return Ok(Go::On);
        }
        let mut fresh = Fresh::make(target, self.entries, (stat.mode & 0o777) | 0o400).map_err(failed)?;
        self.stream(&content, &mut fresh, path, limit)?;
        Ok(Go::On)
    }

    /// Streams, records, and gives the file its final name.
    fn stream(
        &mut self,
        content: &FileHandle,
        fresh: &mut Fresh<'_>,
        path: &Path,
        limit: u64,
    ) -> Result<(), CollectError> {
        let Some((_, name)) = split(path) else { return Ok(()) };
        let mut hash = Sha256::new();
        let (started, time) = (self.started, self.limits.time);
        let mut watch = |bytes: &[u8]| {
            hash.update(bytes);
            started.elapsed() <= time
        };
        let bytes = match copy(content, &fresh.file, limit, &mut watch) {
            Ok(bytes) => bytes,
            Err(CopyError::TooLarge { limit_bytes }) => {
                return self.refuse(path, format!("grew past {limit_bytes} bytes while it was read"));
            }
            Err(CopyError::Stopped) => {
                return self.refuse(path, format!("collecting took more than {} s", time.as_secs()));
            }
            Err(CopyError::Read(error)) => return self.refuse(path, format!("could not be read: {error}")),
            Err(CopyError::Write(source)) => {
                return Err(CollectError::Write { path: path.to_owned(), source });
            }
        };
        let event = Event::FileOut { path: escape_path(path), bytes, sha256: hex(hash) };
        (self.record)(&event).map_err(|source| CollectError::Record { path: path.to_owned(), source })?;
        fresh.put(name).map_err(|source| CollectError::Write { path: path.to_owned(), source })?;
        self.entries += 1;
        self.outcome.collected.files += 1;
        self.outcome.collected.bytes = self.outcome.collected.bytes.saturating_add(bytes);
        Ok(())
    }
}

// === impl Fresh ===

impl<'a> Fresh<'a> {
    fn make(dir: &'a DirHandle, number: u64, mode: u32) -> io::Result<Self> {
        let temp = OsString::from(format!(".fumehood-out-{}-{number}", std::process::id()));
        match dir.create_unnamed(mode) {
            Ok(file) => Ok(Self { dir, file, temp, named: false }),
            // A file system without such files. Any other obstacle is met again, and told.
            Err(_cannot) => {
                remove_leftover(dir, &temp)?;
                let file = dir.create_new(&temp, mode)?;
                Ok(Self { dir, file, temp, named: true })
            }
        }
    }

    /// Gives the file its final name, in place of what has it.
    fn put(&mut self, name: &OsStr) -> io::Result<()> {
        if !self.named {
            match self.file.name(self.dir, name) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                done @ (Ok(()) | Err(_)) => return done,
            }
            remove_leftover(self.dir, &self.temp)?;
            self.file.name(self.dir, &self.temp)?;
            self.named = true;
        }
        self.dir.rename(&self.temp, self.dir, name, RenameMode::Replace)?;
        self.named = false;
        Ok(())
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        if self.named {
            // The failure that led here is the one to tell.
            let _ = self.dir.remove_file(&self.temp);
        }
    }
}

/// Removes what a collection that was killed left. Nobody else makes such names.
fn remove_leftover(dir: &DirHandle, temp: &OsStr) -> io::Result<()> {
    match dir.remove_file(temp) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn too_large(size: u64, limit: u64) -> String {
    format!("{size} bytes long; {limit} bytes are left of the limit")
}
