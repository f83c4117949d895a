//! Taking the steps of a journal, each one safe to take again.

use super::journal::{self, Act, Print, Step};
use super::{Applied, ApplyError, Hook, Point};
use crate::files::layer::Layer;
use crate::files::text::{escape, unescape_path};
use crate::files::{Record, Refusal, digest, hex, split};
use fumehood_model::event::Event;
use fumehood_sys::dirfd::{
    CopyError, DirHandle, FileHandle, Kind, RenameMode, Stat, Time, copy, is_link_in_the_way, is_root,
};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What a step finds in its place.
enum Found {
    /// What the plan saw.
    Ready,
    /// What the step was to make.
    Done,
    /// Something else.
    Other,
}

/// Why a step did not end well.
enum Failure {
    /// As a kill would: nothing is tidied.
    Stopped(io::Error),
    Record(io::Error),
    Step(io::Error),
}

/// What one step works with.
struct Taking<'a, 'r, 'h> {
    upper: DirHandle,
    workspace: DirHandle,
    record: &'a mut Record<'r>,
    hook: &'a mut Hook<'h>,
}

/// One step where it is taken.
struct Place<'a> {
    step: &'a Step,
    path: &'a Path,
    name: &'a OsStr,
    dir: &'a DirHandle,
    temp: &'a OsStr,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Step(error)
    }
}

/// Takes all steps in order, then syncs and forgets the journal.
pub(super) fn run(
    layer: &Layer,
    steps: &[Step],
    (record, hook): (&mut Record<'_>, &mut Hook<'_>),
    applied: &mut Applied,
) -> Result<(), ApplyError> {
    let mut taking = Taking { upper: layer.upper()?, workspace: layer.workspace()?, record, hook };
    for (number, step) in steps.iter().enumerate() {
        let temp = OsString::from(format!(".fumehood-apply-{}-{number}", layer.meta.task));
        let path = step.path().map_err(ApplyError::Journal)?;
        match taking.step(step, &path, &temp) {
            Ok(Found::Ready | Found::Done) => count(applied, step),
            Ok(Found::Other) => {
                applied.conflicts.push(Refusal::new(path, "changed on the host while the layer was applied"));
            }
            Err(Failure::Stopped(source)) => return Err(ApplyError::Stopped(source)),
            Err(failure) => {
                // Each step taken is whole and the layer is untouched: the next application plans anew.
                taking.remove_temp(&path, &temp);
                let _ = journal::remove(layer.dir());
                return Err(match failure {
                    Failure::Record(source) => ApplyError::Record { path, source },
                    Failure::Step(source) | Failure::Stopped(source) => ApplyError::Step { path, source },
                });
            }
        }
    }
    taking.workspace.sync_file_system().map_err(ApplyError::Journal)?;
    (taking.hook)(Point::AllDone).map_err(ApplyError::Stopped)?;
    journal::remove(layer.dir()).map_err(ApplyError::Journal)
}

// === impl Taking ===

impl Taking<'_, '_, '_> {
    fn point(&mut self, point: Point) -> Result<(), Failure> {
        (self.hook)(point).map_err(Failure::Stopped)
    }

    fn remove_temp(&self, path: &Path, temp: &OsStr) {
        if let Some((folder, _)) = split(path)
            && let Ok(dir) = self.workspace.sub(folder)
            && dir.remove_file(temp).is_err()
        {
            let _ = dir.remove_dir(temp);
        }
    }

    fn step(&mut self, step: &Step, path: &Path, temp: &OsStr) -> Result<Found, Failure> {
        let Some((folder, name)) = split(path) else { return Ok(Found::Other) };
        let dir = match self.workspace.sub(folder) {
            Ok(dir) => dir,
            Err(error) => return missing_folder(step, error),
        };
        self.remove_temp(path, temp);
        let found = self.found(step, &dir, name)?;
        if let Found::Ready = found {
            self.point(Point::StepBegun)?;
            self.tell(step)?;
            match self.take(&Place { step, path, name, dir: &dir, temp }) {
                Err(Failure::Step(error)) if is_the_hosts(&error) => {
                    self.remove_temp(path, temp);
                    return Ok(Found::Other);
                }
                done @ (Ok(()) | Err(_)) => done?,
            }
            self.point(Point::StepDone)?;
        }
        Ok(found)
    }

    fn tell(&mut self, step: &Step) -> Result<(), Failure> {
        let bytes = if let Act::Write { bytes, .. } = &step.act { *bytes } else { 0 };
        let event = Event::FileApplied { path: step.path.clone(), change: word(step).to_owned(), bytes };
        (self.record)(&event).map_err(Failure::Record)
    }

    fn found(&self, step: &Step, dir: &DirHandle, name: &OsStr) -> io::Result<Found> {
        let there = dir.look(name)?;
        let as_planned = there.as_ref().map(Print::of) == step.before;
        Ok(match (&step.act, &there) {
            (Act::Remove {} | Act::RemoveDir {}, None) => Found::Done,
            (Act::Remove {} | Act::RemoveDir {}, Some(stat)) => {
                // Another kind of object is what a later step of ours put there.
                match &step.before {
                    Some(before) if before.same_kind(stat) && as_planned => Found::Ready,
                    Some(before) if before.same_kind(stat) => Found::Other,
                    Some(_) | None => Found::Done,
                }
            }
            (Act::MakeDir {}, Some(stat)) if stat.kind == Kind::Dir => Found::Done,
            (Act::SetMode { mode }, Some(stat)) if stat.kind == Kind::File && stat.mode == *mode => {
                Found::Done
            }
            (Act::MakeDir {} | Act::SetMode { .. } | Act::Write { .. } | Act::Link { .. }, _)
                if as_planned =>
            {
                Found::Ready
            }
            (Act::Write { sha256, bytes, .. }, Some(stat))
                if stat.kind == Kind::File && stat.size == *bytes =>
            {
                if digest(dir, Path::new(name))?.0 == *sha256 { Found::Done } else { Found::Other }
            }
            (Act::Link { target }, Some(stat)) if stat.kind == Kind::Link => {
                if escape(dir.read_link(name)?.as_bytes()) == *target { Found::Done } else { Found::Other }
            }
            (Act::MakeDir {} | Act::SetMode { .. } | Act::Write { .. } | Act::Link { .. }, _) => Found::Other,
        })
    }

    fn take(&mut self, at: &Place<'_>) -> Result<(), Failure> {
        match &at.step.act {
            Act::Remove {} => at.dir.remove_file(at.name)?,
            // Names that the plan did not see are the host's: they keep the directory.
            Act::RemoveDir {} => at.dir.remove_dir(at.name)?,
            Act::SetMode { mode } => {
                let (file, stat) = at.dir.read(Path::new(at.name))?;
                if Some(Print::of(&stat)) != at.step.before {
                    return Err(swapped().into());
                }
                file.set_mode(*mode)?;
            }
            Act::MakeDir {} => {
                at.dir.make_dir(at.temp, 0o777)?;
                let parent = at.dir.stat()?;
                if is_root() {
                    at.dir.set_owner_at(at.temp, parent.uid, parent.gid)?;
                }
                self.point(Point::TempWritten)?;
                at.put()?;
            }
            Act::Link { target } => {
                let target = unescape_path(target).ok_or_else(swapped)?;
                at.dir.make_link(target.as_os_str(), at.temp)?;
                if is_root() {
                    let (uid, gid) = at.owner()?;
                    at.dir.set_owner_at(at.temp, uid, gid)?;
                }
                self.point(Point::TempWritten)?;
                at.put()?;
            }
            Act::Write { sha256, bytes, mode, executable, mtime } => {
                let create = match (mode, executable) {
                    (Some(_), _) => 0o600,
                    (None, true) => 0o777,
                    (None, false) => 0o666,
                };
                let file = at.dir.create_new(at.temp, create)?;
                self.fill(at.path, &file, (sha256, *bytes))?;
                at.own(&file)?;
                if let Some(mode) = mode {
                    file.set_mode(*mode)?;
                }
                file.set_mtime(Time { secs: mtime.0, nanos: mtime.1 })?;
                if at.step.before.is_some() {
                    // The old content goes with the rename. New files are synced all at once, before
                    // the journal is forgotten.
                    file.sync()?;
                }
                self.point(Point::TempWritten)?;
                at.put()?;
            }
        }
        Ok(())
    }

    /// Streams the layer's file, and makes sure that it is the one that was planned.
    fn fill(&self, path: &Path, file: &FileHandle, (sha256, bytes): (&str, u64)) -> io::Result<()> {
        let (source, _) = self.upper.read(path)?;
        let mut hash = Sha256::new();
        let mut watch = |chunk: &[u8]| {
            hash.update(chunk);
            true
        };
        match copy(&source, file, bytes, &mut watch) {
            Ok(_) if hex(hash) == sha256 => Ok(()),
            Ok(_) | Err(CopyError::TooLarge { .. } | CopyError::Stopped) => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "the layer changed while it was applied"))
            }
            Err(CopyError::Read(error) | CopyError::Write(error)) => Err(error),
        }
    }
}

// === impl Place ===

impl Place<'_> {
    /// Gives the temporary object its name, unless something else came to stand there.
    fn put(&self) -> io::Result<()> {
        let there = self.dir.look(self.name)?;
        if there.as_ref().map(Print::of) != self.step.before {
            return Err(swapped());
        }
        if there.is_some() {
            return self.dir.rename(self.temp, self.dir, self.name, RenameMode::Replace);
        }
        match self.dir.rename(self.temp, self.dir, self.name, RenameMode::NoReplace) {
            // A file system without that mode; the look above has to do.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                self.dir.rename(self.temp, self.dir, self.name, RenameMode::Replace)
            }
            done @ (Ok(()) | Err(_)) => done,
        }
    }

    /// Whose the object is to be: its predecessor's owner, or its folder's.
    fn owner(&self) -> io::Result<(u32, u32)> {
        let stat: Stat = self.dir.stat()?;
        Ok(self.step.before.map_or((stat.uid, stat.gid), |before| (before.uid, before.gid)))
    }

    fn own(&self, file: &FileHandle) -> io::Result<()> {
        if is_root() {
            let (uid, gid) = self.owner()?;
            return file.set_owner(uid, gid);
        }
        if let Some(before) = self.step.before {
            // An ordinary user can keep the group where it is a member; otherwise its own stands.
            let _ = file.set_group(before.gid);
        }
        Ok(())
    }
}

/// A step whose folder is not there, or is no folder: nothing to remove, nowhere to write.
fn missing_folder(step: &Step, error: io::Error) -> Result<Found, Failure> {
    if error.kind() == io::ErrorKind::CrossesDevices {
        // Another file system is mounted there, which the layer never saw.
        return Ok(Found::Other);
    }
    let gone = matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        || is_link_in_the_way(&error);
    match &step.act {
        Act::Remove {} | Act::RemoveDir {} if gone => Ok(Found::Done),
        Act::MakeDir {} | Act::Write { .. } | Act::Link { .. } | Act::SetMode { .. } if gone => {
            Ok(Found::Other)
        }
        Act::MakeDir {}
        | Act::Write { .. }
        | Act::Link { .. }
        | Act::SetMode { .. }
        | Act::Remove {}
        | Act::RemoveDir {} => Err(Failure::Step(error)),
    }
}

/// Whether a step failed because the host put something there at the last moment.
fn is_the_hosts(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ResourceBusy | io::ErrorKind::AlreadyExists | io::ErrorKind::DirectoryNotEmpty
    )
}

fn swapped() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "it changed on the host while it was applied")
}

const fn word(step: &Step) -> &'static str {
    match (&step.act, &step.before) {
        (Act::Remove {} | Act::RemoveDir {}, _) => "deleted",
        (Act::SetMode { .. }, _) => "mode",
        (Act::MakeDir {} | Act::Write { .. } | Act::Link { .. }, None) => "added",
        (Act::MakeDir {} | Act::Write { .. } | Act::Link { .. }, Some(_)) => "modified",
    }
}

fn count(applied: &mut Applied, step: &Step) {
    match word(step) {
        "added" => applied.done.added += 1,
        "deleted" => applied.done.deleted += 1,
        _ => applied.done.modified += 1,
    }
    if let Act::Write { bytes, .. } = &step.act {
        applied.done.bytes = applied.done.bytes.saturating_add(*bytes);
    }
}
