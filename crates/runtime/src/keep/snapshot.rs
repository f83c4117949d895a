//! Snapshots: the files of a living sandbox as they were at one moment, for sandboxes that begin with them.
//!
//! ```text
//! snapshots/NAME/snapshot.json   of what it is, and when     snapshots/NAME/home        its HOME
//! snapshots/NAME/upper           what it changed in its copy of a workspace
//! snapshots/NAME/machine         a whole machine, where the level has machines: nothing else then
//! snapshots/NAME/workspace       its `/workspace`, where it has one of its own
//! ```
//!
//! The workspace that a copy-on-write layer lies over is never copied: what a sandbox changed lies over the same
//! folder again. Files are taken while every process of the sandbox stands still; that they are on the disk is seen
//! to afterwards. What is in memory is not in it: `/tmp`, processes, secrets and what stands for them.
//!
//! **Invariant:** under its name a snapshot is whole, or it is not there.

use super::failures;
use super::tree::{self, Copied, Owner};
use crate::causes::chain;
use crate::files::discard::remove_tree;
use crate::files::layer::LayerMeta;
use crate::files::text::escape_path;
use fumehood_keep::wire::{Failure, FailureCode};
use fumehood_model::event::Branch;
use fumehood_model::id::TaskId;
use fumehood_sys::dirfd::{DirHandle, RenameMode, Stat};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

const VERSION: u32 = 1;
const META: &str = "snapshot.json";
/// Far above what paths and a few numbers take.
const META_LIMIT_BYTES: u64 = 64 * 1024;
const MOST_NAME_CHARS: usize = 100;
/// How the name of one that is being made begins; the task that makes it and a number follow.
const UNFINISHED: &str = ".new-";
/// How the name of one begins that is being removed.
const LEAVING: &str = ".gone-";
/// How the name of one begins that a fork makes for its children.
pub const HIDDEN: &str = ".fork-";
/// What is hidden for longer than this has lost whoever made it.
const FORSAKEN: Duration = Duration::from_hours(1);

/// A part of a sandbox's files: its name in a snapshot, and the folder.
pub(crate) type Part = (&'static str, DirHandle);

/// The folder of a sandbox's layer, of its own workspace, of its HOME.
pub(crate) const UPPER: &str = "upper";
pub(crate) const WORKSPACE: &str = "workspace";
pub(crate) const HOME: &str = "home";
/// A machine that was written down.
const MACHINE: &str = "machine";

/// What a snapshot is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    version: u32,
    pub name: String,
    /// The sandbox, and the head of its record at that moment: lines, and the hash of the last.
    pub sandbox: String,
    pub record_lines: u64,
    pub record_hash: String,
    pub level: String,
    /// Milliseconds since 1970.
    pub taken_ms: u64,
    /// The folder that its layer lies over, as text that reads back; none where it has no layer.
    pub workspace: Option<String>,
    workspace_dev: (u32, u32),
    workspace_ino: u64,
    pub entries: u64,
    /// Content that is not shared with the sandbox's own.
    pub bytes: u64,
    /// It is a whole machine, with its memory and processes.
    #[serde(default)]
    pub memory: bool,
}

/// Of what a snapshot is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origin {
    pub(crate) sandbox: String,
    pub(crate) record_lines: u64,
    pub(crate) record_hash: String,
    pub(crate) level: String,
    pub(crate) taken_ms: u64,
}

/// One that is being taken. Dropped early, nothing is left of it.
#[derive(Debug)]
pub(crate) struct Taking {
    snapshots: DirHandle,
    temp: OsString,
    name: String,
    /// There is nothing to remove.
    settled: bool,
    copied: Copied,
    memory: bool,
    meta: Option<Snapshot>,
}

// === impl Taking ===

impl Taking {
    /// Makes the place for it. Nothing of the sandbox is read yet.
    pub(crate) fn begin(snapshots: &Path, name: &str, task: &str) -> Result<Self, Failure> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        checked(name)?;
        let fault = |error: io::Error| unkept(name, &error);
        let snapshots = DirHandle::open(snapshots).map_err(fault)?;
        if snapshots.look(OsStr::new(name)).map_err(fault)?.is_some() {
            return Err(exists(name));
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let temp = OsString::from(format!("{UNFINISHED}{task}-{number}"));
        remove_tree(&snapshots, &temp).map_err(fault)?;
        snapshots.make_dir(&temp, 0o700).map_err(fault)?;
        let (copied, name) = (Copied::default(), name.to_owned());
        Ok(Self { snapshots, temp, name, settled: false, copied, memory: false, meta: None })
    }

    /// Takes the files; nothing may change them meanwhile. What belongs to `kernel`, the sandbox as the kernel knows
    /// it, belongs to the owner of the part in the snapshot.
    pub(crate) fn take(&mut self, parts: &[Part], kernel: Owner) -> Result<u64, Failure> {
        let copied = parts.iter().try_for_each(|(name, from)| {
            let top = self.snapshots.sub(Path::new(&self.temp))?;
            top.make_dir(OsStr::new(name), 0o700)?;
            let stat = from.stat()?;
            let done = tree::copy(from, &top.sub(Path::new(name))?, &[(kernel, (stat.uid, stat.gid))])?;
            self.copied.bytes += done.bytes;
            self.copied.entries += done.entries;
            Ok(())
        });
        copied.map(|()| self.copied.bytes).map_err(|error| unkept(&self.name, &error))
    }

    /// Makes the empty folder of a machine that is to be written down.
    pub(crate) fn machine(&mut self, snapshots: &Path) -> Result<PathBuf, Failure> {
        let folder = snapshots.join(&self.temp).join(MACHINE);
        std::fs::DirBuilder::new().mode(0o700).create(&folder).map_err(|error| unkept(&self.name, &error))?;
        Ok(folder)
    }

    /// So many bytes of a machine were written.
    pub(crate) fn wrote(&mut self, bytes: u64) {
        self.memory = true;
        self.copied.bytes += bytes;
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Says of what it is.
    pub(crate) fn describe(&mut self, origin: Origin, layer: Option<&LayerMeta>) {
        let (workspace_dev, workspace_ino) = layer.map(LayerMeta::workspace_id).unwrap_or_default();
        self.meta = Some(Snapshot {
            version: VERSION,
            name: self.name.clone(),
            sandbox: origin.sandbox,
            record_lines: origin.record_lines,
            record_hash: origin.record_hash,
            level: origin.level,
            taken_ms: origin.taken_ms,
            workspace: layer.map(|layer| escape_path(&layer.workspace())),
            workspace_dev,
            workspace_ino,
            entries: self.copied.entries,
            bytes: self.copied.bytes,
            memory: self.memory,
        });
    }

    /// Sees to it that all is on the disk, and gives it its name. One for a moment need not survive the host.
    pub(crate) fn finish(mut self) -> Result<u64, Failure> {
        let fault = |error: io::Error| unkept(&self.name, &error);
        let top = self.snapshots.sub(Path::new(&self.temp)).map_err(fault)?;
        let text = serde_json::to_vec_pretty(&self.meta).map_err(|error| fault(error.into()))?;
        let mut file = top.create_new(OsStr::new(META), 0o600).map_err(fault)?;
        file.write_all(&text).map_err(fault)?;
        if !self.name.starts_with(HIDDEN) {
            top.sync_file_system().map_err(fault)?;
        }
        let published = tree::publish(&self.snapshots, &self.temp, OsStr::new(&self.name)).map_err(fault)?;
        if !published {
            return Err(exists(&self.name));
        }
        self.settled = true;
        self.snapshots.sync().map_err(fault)?;
        Ok(self.copied.bytes)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        if !self.settled {
            // What is left is removed by the next.
            let _ = remove_tree(&self.snapshots, &self.temp);
        }
    }
}

/// The folder of the machine that a new sandbox of this level begins from, and of what it is.
pub(crate) fn machine(snapshots: &Path, name: &str, level: &str) -> Result<(PathBuf, Branch), Failure> {
    checked(name)?;
    let top = DirHandle::open(snapshots).and_then(|all| all.sub(Path::new(name))).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound { missing(name) } else { unkept(name, &error) }
    })?;
    let meta = read(&top).map_err(|error| unkept(name, &error))?;
    if !meta.memory || meta.level != level {
        return Err(of_another_level(name, &meta));
    }
    let branch = Branch { task: meta.sandbox, lines: meta.record_lines, hash: meta.record_hash };
    Ok((snapshots.join(name).join(MACHINE), branch))
}

fn of_another_level(name: &str, meta: &Snapshot) -> Failure {
    let message = format!("begin with the snapshot `{name}`");
    let cause = if meta.memory { "it is a whole machine" } else { "it has files alone, and no machine" };
    let cause = format!("{cause}, taken at the level `{}`", meta.level);
    failures::new(
        FailureCode::Unsupported,
        (&message, cause),
        "create the sandbox at the level of the snapshot",
    )
}

/// Fills the empty folders of a new sandbox with what is in the snapshot `name`, and says of what that is.
pub(crate) fn restore(
    snapshots: &Path,
    name: &str,
    parts: &[Part],
    layer: Option<&LayerMeta>,
) -> Result<Branch, Failure> {
    checked(name)?;
    let fault = |error: io::Error| {
        failures::new(
            FailureCode::Internal,
            (&format!("begin with the snapshot `{name}`"), error.to_string()),
            fumehood_model::remedy::of_io(&error).unwrap_or("look at the host's disks and its log"),
        )
    };
    let all = DirHandle::open(snapshots).map_err(fault)?;
    let top = all.sub(Path::new(name)).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound { missing(name) } else { fault(error) }
    })?;
    let meta = read(&top).map_err(fault)?;
    if meta.memory {
        return Err(of_another_level(name, &meta));
    }
    let here = layer.map(LayerMeta::workspace_id);
    let there = meta.workspace.as_ref().map(|_| (meta.workspace_dev, meta.workspace_ino));
    if here != there {
        let why = match (&meta.workspace, here) {
            (Some(path), _) => {
                format!("it was taken over the workspace `{path}`, and changes that folder alone")
            }
            (None, _) => "it was taken of a sandbox without a workspace to copy on write".to_owned(),
        };
        return Err(failures::bad(
            &format!("begin with the snapshot `{name}`"),
            &why,
            "name the same workspace, in the same way",
        ));
    }
    for (part, to) in parts {
        let from = match top.sub(Path::new(part)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found.map_err(fault)?,
        };
        let (old, new) = (from.stat().map_err(fault)?, to.stat().map_err(fault)?);
        tree::copy(&from, to, &[((old.uid, old.gid), (new.uid, new.gid))]).map_err(fault)?;
        // It is the new sandbox's own, with the new one's mode.
        to.set_mode(new.mode).map_err(fault)?;
    }
    // Whoever removes one takes its name first: while it has that, nothing of it was missing.
    let id = |stat: Stat| (stat.dev, stat.ino);
    let now = all.look(OsStr::new(name)).map_err(fault)?.map(id);
    if now != Some(id(top.stat().map_err(fault)?)) {
        return Err(missing(name));
    }
    Ok(Branch { task: meta.sandbox, lines: meta.record_lines, hash: meta.record_hash })
}

/// The snapshots there are, by name.
///
/// # Errors
/// The folder can not be read.
pub fn list(snapshots: &Path) -> io::Result<Vec<Snapshot>> {
    let all = DirHandle::open(snapshots)?;
    let mut found = Vec::new();
    for entry in all.list()? {
        let name = entry?.name;
        if name.to_str().is_some_and(|name| !name.starts_with('.')) {
            // One that is removed at this moment is none.
            found.extend(all.sub(Path::new(&name)).and_then(|top| read(&top)).ok());
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Removes a snapshot. Sandboxes that began with it have files of their own.
///
/// # Errors
/// There is none, or it can not be removed.
pub fn remove(snapshots: &Path, name: &str) -> Result<(), Failure> {
    checked(name)?;
    let fault = |error: io::Error| {
        failures::new(
            FailureCode::Internal,
            (&format!("remove the snapshot `{name}`"), error.to_string()),
            "look at the state folder's rights",
        )
    };
    let all = DirHandle::open(snapshots).map_err(fault)?;
    if all.look(OsStr::new(name)).map_err(fault)?.is_none() {
        return Err(missing(name));
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let leaving = OsString::from(format!("{LEAVING}{}-{number}-{name}", std::process::id()));
    all.rename(OsStr::new(name), &all, &leaving, RenameMode::NoReplace).map_err(fault)?;
    remove_tree(&all, &leaving).map_err(fault)
}

/// Removes what keepers left that died while they took a snapshot, and what was on its way out. `is_dead` tells
/// whether a task has no keeper any more.
pub(crate) fn sweep(snapshots: &Path, is_dead: &dyn Fn(&TaskId) -> bool) {
    let Ok(all) = DirHandle::open(snapshots) else { return };
    for entry in all.list().into_iter().flatten().flatten() {
        let Some(name) = entry.name.to_str() else { continue };
        let maker = name.strip_prefix(UNFINISHED).and_then(|rest| rest.rsplit_once('-'));
        let maker = maker.and_then(|(task, _)| TaskId::parse(task).ok());
        if name.starts_with(LEAVING) || maker.is_some_and(|task| is_dead(&task)) {
            // The next sweep tries again.
            let _ = remove_tree(&all, &entry.name);
        }
    }
}

/// Removes what was left by those who were ended while they took a snapshot, or forked. Gives how many that were.
///
/// # Errors
/// The folder can not be read, or something in it not be removed.
pub fn prune(snapshots: &Path) -> io::Result<usize> {
    let all = DirHandle::open(snapshots)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let limit = i64::try_from(now.saturating_sub(FORSAKEN).as_secs()).unwrap_or(0);
    let mut count = 0;
    for entry in all.list()?.collect::<io::Result<Vec<_>>>()? {
        let hidden =
            entry.name.to_str().is_some_and(|name| name.starts_with(HIDDEN) || name.starts_with(UNFINISHED));
        if hidden && all.look(&entry.name)?.is_some_and(|stat| stat.ctime.secs < limit) {
            remove_tree(&all, &entry.name)?;
            count += 1;
        }
    }
    Ok(count)
}

fn read(top: &DirHandle) -> io::Result<Snapshot> {
    let text = top.read_small(Path::new(META), META_LIMIT_BYTES)?;
    let meta: Snapshot = serde_json::from_slice(&text)?;
    if meta.version != VERSION {
        let why = format!("version {} of a snapshot is not one this program knows", meta.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(meta)
}

/// A name is a single one, and no path. Hidden ones are for forks.
fn checked(name: &str) -> Result<(), Failure> {
    let bare = name.strip_prefix(HIDDEN).unwrap_or(name);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if bare.is_empty() || bare.starts_with('.') || name.len() > MOST_NAME_CHARS || !bare.bytes().all(plain) {
        let remedy =
            "name it with letters, digits, `.`, `_` and `-`, 100 at most, and no `.` at the beginning";
        return Err(failures::bad("name the snapshot", "that is no name for one", remedy));
    }
    Ok(())
}

fn exists(name: &str) -> Failure {
    let message = format!("keep the snapshot `{name}`");
    let remedy = "take another name, or remove that one with `fumehood snapshots rm`";
    failures::new(FailureCode::Exists, (&message, "there is one of that name".to_owned()), remedy)
}

fn missing(name: &str) -> Failure {
    let message = format!("find the snapshot `{name}`");
    failures::new(
        FailureCode::NotFound,
        (&message, "there is none of that name".to_owned()),
        "`fumehood snapshots ls` lists them",
    )
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the standard library may add kinds")]
fn unkept(name: &str, error: &io::Error) -> Failure {
    let message = format!("keep the snapshot `{name}`");
    let (code, remedy) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
            FailureCode::NoSpace,
            "free space on the disk of the state folder, or remove snapshots with `fumehood snapshots rm`",
        ),
        io::ErrorKind::FileTooLarge => (FailureCode::TooLarge, "remove the deepest folders inside"),
        _ => (
            FailureCode::Internal,
            fumehood_model::remedy::of_io(error).unwrap_or("look at the host's disks and its log"),
        ),
    };
    failures::new(code, (&message, chain(error)), remedy)
}

#[cfg(test)]
mod tests;
