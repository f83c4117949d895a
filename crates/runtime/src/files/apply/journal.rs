//! The steps of one application, on disk before the first is taken.
//!
//! One JSON line a step, in order. The file is under its name whole or not at all, and goes when all
//! its steps are done and synced.

use crate::files::layer::write_whole;
use crate::files::text::unescape_path;
use fumehood_sys::dirfd::{DirHandle, Kind, Stat, Time};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

pub(super) const NAME: &str = "journal.jsonl";
/// About a million steps.
const LIMIT_BYTES: u64 = 512 << 20;

/// One change of one name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Step {
    /// Below the workspace, as text that reads back.
    pub(super) path: String,
    pub(super) act: Act,
    /// What stood there when it was planned.
    pub(super) before: Option<Print>,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum Act {
    MakeDir {},
    Write {
        sha256: String,
        bytes: u64,
        /// The exact mode of a file that is replaced; `None` leaves it to the umask.
        mode: Option<u32>,
        executable: bool,
        mtime: (i64, u32),
    },
    Link {
        target: String,
    },
    SetMode {
        mode: u32,
    },
    Remove {},
    RemoveDir {},
}

/// Enough of an object to tell it from another one, or from itself after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Print {
    kind: PrintKind,
    ino: u64,
    size: u64,
    mtime: (i64, u32),
    ctime: (i64, u32),
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum PrintKind {
    File,
    Dir,
    Link,
    Other,
}

// === impl Step ===

impl Step {
    /// The path as the file system has it. Our own text always reads back.
    pub(super) fn path(&self) -> io::Result<PathBuf> {
        unescape_path(&self.path).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "a path of the journal does not read back")
        })
    }
}

// === impl Print ===

impl Print {
    pub(super) fn of(stat: &Stat) -> Self {
        let pair = |time: Time| (time.secs, time.nanos);
        // Replacing one name of a hard link stamps the others.
        let ctime = if stat.links > 1 && stat.kind != Kind::Dir { stat.mtime } else { stat.ctime };
        let is_dir = stat.kind == Kind::Dir;
        Self {
            kind: PrintKind::of(stat.kind),
            ino: stat.ino,
            // What is done below a directory changes these.
            size: if is_dir { 0 } else { stat.size },
            mtime: if is_dir { (0, 0) } else { pair(stat.mtime) },
            ctime: if is_dir { (0, 0) } else { pair(ctime) },
            mode: stat.mode,
            uid: stat.uid,
            gid: stat.gid,
        }
    }

    pub(super) fn same_kind(&self, stat: &Stat) -> bool {
        self.kind == PrintKind::of(stat.kind)
    }
}

impl PrintKind {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::File => Self::File,
            Kind::Dir => Self::Dir,
            Kind::Link => Self::Link,
            Kind::Fifo | Kind::Socket | Kind::CharDevice | Kind::BlockDevice => Self::Other,
        }
    }
}

/// Puts the steps on disk.
pub(super) fn write(layer: &DirHandle, steps: &[Step]) -> io::Result<()> {
    let mut text = Vec::new();
    for step in steps {
        serde_json::to_writer(&mut text, step)?;
        text.push(b'\n');
    }
    write_whole(layer, OsStr::new(NAME), &text)
}

/// The steps of an application that was cut short.
pub(super) fn read(layer: &DirHandle) -> io::Result<Option<Vec<Step>>> {
    let text = match layer.read_small(Path::new(NAME), LIMIT_BYTES) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let steps = lines.map(serde_json::from_slice).collect::<Result<Vec<Step>, _>>()?;
    Ok(Some(steps))
}

/// Forgets the steps.
pub(super) fn remove(layer: &DirHandle) -> io::Result<()> {
    layer.remove_file(OsStr::new(NAME))
}
