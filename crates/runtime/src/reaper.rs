//! The reaper: what cleans up when the keeper is done, or is dead.
//!
//! It is a fork of the keeper, made before the launch, that holds nothing of the caller's and waits on
//! one pipe. A byte through it means that the keeper is done; its end without one, that the keeper was
//! killed. Either way the sandbox's processes and cgroups are removed; after a death also what a run
//! that ended well would have removed itself.

use fumehood_backend::Backend;
use fumehood_model::id::TaskId;
use fumehood_sys::process::{self, Forked};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// What is to be removed, or synced, for one task.
#[derive(Clone, Debug)]
pub(crate) struct Estate<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) id: &'a TaskId,
    /// The layer of this run alone; a session's is never removed.
    pub(crate) layer: Option<PathBuf>,
    pub(crate) records: PathBuf,
}

/// The keeper's hold on its reaper. Dropped without [`Reaper::done`], the reaper takes it for a death.
#[derive(Debug)]
pub(crate) struct Reaper {
    pipe: File,
}

// === impl Reaper ===

impl Reaper {
    /// Forks the reaper.
    ///
    /// Preconditions: this process has one thread.
    pub(crate) fn fork(estate: &Estate<'_>) -> io::Result<Self> {
        let (read, write) = process::pipe(false)?;
        match process::fork()? {
            Forked::Parent { .. } => Ok(Self { pipe: write.into() }),
            Forked::Child => {
                drop(write);
                // Descriptors of the keeper are numbers here; none is used but the pipe.
                process::close_all_but(&[read.as_raw_fd()]);
                live(estate, read.into());
                process::exit_now(0)
            }
        }
    }

    /// Says that the run is over and its record closed. The reaper does the rest, off the reply path.
    pub(crate) fn done(mut self) {
        // A reaper that was killed leaves the cleaning to the next command of ours.
        let _ = self.pipe.write_all(b"d");
    }
}

/// The reaper's whole life.
fn live(estate: &Estate<'_>, mut pipe: File) {
    process::new_session();
    process::set_name(c"fumehood-reaper");
    let _ = process::block_all_signals();
    if process::release_standard_streams().is_err() {
        return;
    }
    let mut word = [0_u8; 1];
    let done = matches!(pipe.read(&mut word), Ok(1));
    // Nobody is there to be told of a failure; the next command of ours tries again.
    let _ = estate.backend.reap(estate.id);
    if done {
        sync(&estate.records, estate.id);
    } else if let Some(layer) = &estate.layer {
        forget_if_unchanged(layer);
    }
}

fn sync(records: &Path, id: &TaskId) {
    for name in [format!("{id}.jsonl"), "index.jsonl".to_owned()] {
        let _ = File::open(records.join(name)).and_then(|file| file.sync_data());
    }
}

/// A killed run keeps what it changed, for its owner to look at; a layer without changes is nothing.
fn forget_if_unchanged(layer: &Path) {
    let empty = std::fs::read_dir(layer.join("upper")).is_ok_and(|mut entries| entries.next().is_none());
    if empty {
        let _ = crate::places::remove_layer(layer);
    }
}
