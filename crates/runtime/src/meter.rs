//! Watching what a sandbox uses, where the kernel does not stop it at the limit.

use fumehood_backend::{Instance, Meters};
use fumehood_model::ending::Ending;
use fumehood_model::envelope::Resources;
use fumehood_sys::host;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MEMORY_EVERY: Duration = Duration::from_millis(50);
const DISK_EVERY: Duration = Duration::from_secs(1);
/// A look at a large layer may take long; at most this part of the time is spent on looking.
const DISK_SHARE: u32 = 20;
/// A file system gives its last blocks in pieces: a large write is refused while this much is left, and a
/// small part of a small one.
const FULL_BYTES: u64 = 1 << 20;
const FULL_PART: u64 = 16;

/// A limit that was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Memory { limit_bytes: u64, peak_bytes: u64 },
    Disk { limit_bytes: u64, peak_bytes: u64 },
}

/// What a sandbox writes to on disk.
#[derive(Debug)]
pub(crate) enum Written {
    Nothing,
    /// A folder on the host's file system, whose bytes are watched.
    Folder(PathBuf),
    /// That of a living sandbox. A prepared interpreter, which its forks share, is not of what it writes.
    Living(PathBuf),
    /// A file system of the layer's own, which holds its limit; and whether it is larger than what is
    /// allowed now, so that its bytes are watched too.
    Image {
        mount: Arc<OwnedFd>,
        larger: bool,
    },
}

/// When to look next, and at what.
#[derive(Debug)]
pub(crate) struct Meter {
    memory_limit: u64,
    disk_limit: u64,
    written: Written,
    /// Whether the layer was seen without room.
    pub(crate) layer_full: bool,
    next_memory: Option<Instant>,
    next_disk: Option<Instant>,
    peak_bytes: u64,
    quiet: bool,
    /// How much rarer than usual it looks.
    pace: u32,
    /// What was found on disk the last time.
    disk_bytes: u64,
}

/// What is quiet is looked at ever more rarely, down to this.
const RAREST: u32 = 16;

// === impl Excess ===

impl Excess {
    pub(crate) fn ending(self) -> Ending {
        match self {
            Self::Memory { limit_bytes, peak_bytes } => {
                Ending::OutOfMemory { limit: "memory".to_owned(), limit_bytes, peak_bytes }
            }
            Self::Disk { limit_bytes, peak_bytes } => {
                Ending::LimitPassed { limit: "disk".to_owned(), limit_bytes, peak_bytes }
            }
        }
    }
}

// === impl Meter ===

impl Meter {
    /// Watches nothing that the kernel holds.
    pub(crate) fn new(limits: &Resources, watch_memory: bool, written: Written) -> Self {
        let now = Instant::now();
        Self {
            memory_limit: limits.memory_bytes,
            disk_limit: limits.disk_bytes,
            next_memory: watch_memory.then(|| now + MEMORY_EVERY),
            next_disk: (!matches!(written, Written::Nothing)).then(|| now + DISK_EVERY),
            written,
            layer_full: false,
            peak_bytes: 0,
            quiet: false,
            pace: 1,
            disk_bytes: 0,
        }
    }

    /// Says whether somebody is at work: where nobody is, and nothing changes, it is looked at more rarely.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        if busy && self.pace > 1 {
            self.pace = 1;
            let now = Instant::now();
            self.next_memory = self.next_memory.map(|at| at.min(now + MEMORY_EVERY));
            self.next_disk = self.next_disk.map(|at| at.min(now + DISK_EVERY));
        }
        self.quiet = !busy;
    }

    /// Bytes on disk, as they were found the last time.
    pub(crate) const fn disk_bytes(&self) -> u64 {
        self.disk_bytes
    }

    fn settle_pace(&mut self, changed: bool) {
        self.pace = if self.quiet && !changed { (self.pace * 2).min(RAREST) } else { 1 };
    }

    /// When [`Meter::look`] has something to do.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next_memory.into_iter().chain(self.next_disk).min()
    }

    /// Looks at what is due.
    pub(crate) fn look(&mut self, instance: &mut dyn Instance, now: Instant) -> Option<Excess> {
        if self.next_memory.is_some_and(|at| now >= at) {
            self.next_memory = Some(now + MEMORY_EVERY * self.pace);
            let used = instance.meters().memory_bytes.unwrap_or(0);
            if self.next_disk.is_none() {
                self.settle_pace(used > self.peak_bytes);
            }
            self.peak_bytes = self.peak_bytes.max(used);
            if used > self.memory_limit {
                return Some(Excess::Memory { limit_bytes: self.memory_limit, peak_bytes: self.peak_bytes });
            }
        }
        if self.next_disk.is_some_and(|at| now >= at) {
            let used = self.written_bytes();
            self.settle_pace(used != self.disk_bytes);
            self.disk_bytes = used;
            self.next_disk = Some(Instant::now() + (DISK_EVERY * self.pace).max(now.elapsed() * DISK_SHARE));
            if used > self.disk_limit {
                return Some(Excess::Disk { limit_bytes: self.disk_limit, peak_bytes: used });
            }
        }
        None
    }

    /// Bytes that count against the limit; notices a layer without room.
    fn written_bytes(&mut self) -> u64 {
        match &self.written {
            Written::Nothing => 0,
            Written::Folder(folder) => bytes_beneath(vec![folder.clone()]),
            Written::Living(folder) => {
                let all = std::fs::read_dir(folder).into_iter().flatten().flatten();
                let own = all.filter(|entry| entry.file_name() != crate::keep::snapshot::WARM);
                bytes_beneath(own.map(|entry| entry.path()).collect())
            }
            Written::Image { mount, larger } => {
                let Some(room) = host::room(mount.as_raw_fd()) else { return 0 };
                let last = FULL_BYTES.min((room.free_bytes + room.used_bytes) / FULL_PART);
                self.layer_full |= room.free_bytes < last || room.free_files == 0;
                if *larger { room.used_bytes } else { 0 }
            }
        }
    }

    /// The last reading. A watched sandbox is gone by now; what was seen of it stays.
    pub(crate) fn last(&mut self, instance: &mut dyn Instance) -> Meters {
        let meters = instance.meters();
        if let Written::Image { .. } = self.written {
            let _ = self.written_bytes();
        }
        self.peak_bytes = self.peak_bytes.max(meters.peak_memory_bytes.unwrap_or(0));
        meters
    }

    /// The ending of a sandbox that the kernel stopped at its memory limit.
    pub(crate) fn out_of_memory(&self) -> Ending {
        Excess::Memory { limit_bytes: self.memory_limit, peak_bytes: self.peak_bytes }.ending()
    }
}

/// Bytes that the files beneath a folder take on disk. An empty one counts too: names are limited on
/// every disk. Links are not followed; what vanishes meanwhile takes nothing.
fn bytes_beneath(tops: Vec<PathBuf>) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    const BLOCK_BYTES: u64 = 512;
    const LEAST_BYTES: u64 = 4096;
    let mut waiting = VecDeque::from(tops);
    let mut total = 0_u64;
    while let Some(folder) = waiting.pop_front() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(meta) = entry.metadata() else { continue };
            total = total.saturating_add((meta.blocks() * BLOCK_BYTES).max(LEAST_BYTES));
            if meta.is_dir() {
                waiting.push_back(entry.path());
            }
        }
    }
    total
}
