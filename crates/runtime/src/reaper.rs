//! The reaper: what cleans up when the keeper is done, or is dead.
//!
//! It is a fork of the keeper, made while the guest starts, that holds nothing of the caller's and waits
//! on one pipe. A byte through it means that the keeper is done; its end without one, that the keeper was
//! killed. Either way the sandbox's processes and cgroups are removed; after a death also what a run that
//! ended well would have removed itself, and the record gets its ending. Then it looks for what sandboxes
//! left whose keeper and reaper both died.

use crate::durable;
use crate::files::discard;
use crate::files::disk::{self, Disk};
use crate::files::layer::Layer;
use crate::run::unix_millis;
use fumehood_audit::{Line, RecordError, TaskLog};
use fumehood_backend::Backend;
use fumehood_keep::fault::{self, Point};
use fumehood_model::ending::Ending;
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use fumehood_model::report::Usage;
use fumehood_sys::dirfd::DirHandle;
use fumehood_sys::process::{self, Forked};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is to be removed, or synced, for one task.
#[derive(Clone, Debug)]
pub(crate) struct Estate<'a> {
    pub(crate) backend: &'a dyn Backend,
    pub(crate) id: &'a TaskId,
    /// The layer of this run alone; a session's is never removed.
    pub(crate) layer: Option<PathBuf>,
    /// The root of the layer's own file system, which the reaper is the last to hold.
    pub(crate) disk: Option<Arc<OwnedFd>>,
    /// The socket of the gateway that takes the kernel long to close; the reaper is the last to hold it.
    pub(crate) observer: Option<BorrowedFd<'a>>,
    /// The folder of a living sandbox, which goes with its keeper.
    pub(crate) living: Option<PathBuf>,
    pub(crate) records: PathBuf,
    pub(crate) layers: PathBuf,
    /// Where folders of sandboxes without a root are; the one of this run bears its id.
    pub(crate) scratch: PathBuf,
    pub(crate) shared: PathBuf,
    pub(crate) sandboxes: PathBuf,
    pub(crate) snapshots: PathBuf,
}

/// The keeper's hold on its reaper. Dropped without [`Reaper::done`], the reaper takes it for a death.
#[derive(Debug)]
pub(crate) struct Reaper {
    pipe: File,
}

// === impl Reaper ===

impl Reaper {
    /// Forks the reaper. `forget` is done in it, for what is not its to know.
    ///
    /// Preconditions: this process has one thread.
    pub(crate) fn fork(estate: &Estate<'_>, forget: impl FnOnce()) -> io::Result<Self> {
        let (read, write) = process::pipe(false)?;
        match process::fork()? {
            Forked::Parent { .. } => Ok(Self { pipe: write.into() }),
            Forked::Child => {
                drop(write);
                forget();
                process::set_dumpable(false);
                // Descriptors of the keeper are numbers here; none is used but the pipe and the layer.
                let disk = estate.disk.as_ref().map(|disk| disk.as_raw_fd());
                let observer = estate.observer.map(|observer| observer.as_raw_fd());
                let mut kept: Vec<_> = disk.into_iter().chain(observer).chain([read.as_raw_fd()]).collect();
                kept.sort_unstable();
                process::close_all_but(&kept);
                live(estate, read.into());
                process::exit_now(0)
            }
        }
    }

    /// Says that the run is over and its record closed. The reaper does the rest, off the reply path.
    /// `false`: there is no reaper any more, and the rest is the caller's.
    pub(crate) fn done(mut self) -> bool {
        self.pipe.write_all(b"d").is_ok()
    }
}

/// The reaper's whole life.
fn live(estate: &Estate<'_>, mut pipe: File) {
    process::new_session();
    process::set_name(c"fumehood-reaper");
    // The command line is the keeper's; who looks for the command must not find us.
    let _ = process::clear_command_line();
    let _ = process::block_all_signals();
    if process::release_standard_streams().is_err() {
        return;
    }
    let mut word = [0_u8; 1];
    let done = matches!(pipe.read(&mut word), Ok(1));
    drop(pipe);
    fault::point(Point::ReapWoken);
    // Nobody is there to be told of a failure; the next reaper tries again.
    let _ = estate.backend.reap(estate.id);
    let _ = crate::places::remove_layer(&estate.scratch.join(estate.id.as_str()));
    fault::point(Point::ReapReaped);
    if !done {
        let _ = write_lost(&estate.records, estate.id, estate.living.is_some());
        fault::point(Point::ReapRecorded);
        if let Some(folder) = &estate.living {
            leave(&estate.records, estate.id, folder);
        }
        fault::point(Point::ReapRemoved);
        if let Some(layer) = &estate.layer {
            forget_if_unchanged(layer, estate.disk.as_deref());
        }
    }
    sweep(estate);
    if done {
        // Nothing of the sandbox is held while we wait: not its layer's file system either.
        process::close_all_but(&[]);
        durable::sync(&estate.records, &estate.shared, estate.id);
    }
}

/// Removes the folder of a living sandbox whose keeper is dead, unless that was just about to keep it.
fn leave(records: &Path, id: &TaskId, folder: &Path) {
    let read = fumehood_audit::read(records, id);
    let keeps = |line: &Line| matches!(line.known(), Some(Event::Stopped { keeps_files: true, .. }));
    let is_kept = read.is_ok_and(|read| read.lines.iter().any(keeps)) && crate::keep::keep(folder).is_ok();
    if !is_kept {
        let _ = crate::places::remove_layer(folder);
    }
}

/// Ends the record of a run whose keeper did not.
fn write_lost(records: &Path, id: &TaskId, is_living: bool) -> Result<(), RecordError> {
    let read = fumehood_audit::read(records, id);
    let events: Vec<_> =
        read.map(|read| read.lines.iter().filter_map(Line::known).collect()).unwrap_or_default();
    if events.last() == Some(&Event::Closed {}) {
        return Ok(());
    }
    let at = unix_millis();
    let mut log = TaskLog::reopen(records, id, at)?;
    let mut open: BTreeSet<Option<u32>> = BTreeSet::new();
    for event in &events {
        if let Event::ExecStarted { exec, .. } = event {
            open.insert(*exec);
        } else if let Event::ExecEnded { exec, .. } = event {
            open.remove(exec);
        }
    }
    if !is_living {
        // Also one that had not come to its command.
        open.insert(None);
    }
    for exec in open {
        let lost = Event::ExecEnded {
            ending: Ending::Lost,
            hits: Vec::new(),
            usage: Usage::default(),
            changes: None,
            collected: None,
            exec,
        };
        log.append(at, &lost)?;
    }
    if is_living && !events.iter().any(|event| matches!(event, Event::Stopped { .. })) {
        log.append(at, &Event::Stopped { why: "its keeper died".to_owned(), keeps_files: false })?;
    }
    log.close(at)
}

/// Removes what other sandboxes left, if the record that their keeper held is ours and held no more.
fn sweep(estate: &Estate<'_>) {
    for id in estate.backend.leftovers() {
        let record = File::open(estate.records.join(format!("{id}.jsonl")));
        if record.is_ok_and(|record| record.try_lock().is_ok()) {
            let _ = estate.backend.reap(&id);
        }
    }
    for layer in std::fs::read_dir(&estate.layers).into_iter().flatten().flatten() {
        let name = layer.file_name();
        let Some(id) = name.to_str().and_then(|name| TaskId::parse(name).ok()) else { continue };
        if !is_old(&layer) {
            continue;
        }
        match File::open(estate.records.join(format!("{id}.jsonl"))) {
            Ok(record) if record.try_lock().is_ok() => forget_if_unchanged(&layer.path(), None),
            // A run that was killed before its record was begun; or a record that its owner has moved away,
            // and then what the layer changes is still theirs.
            Err(error) if error.kind() == io::ErrorKind::NotFound => forget_unused(&layer.path()),
            Ok(_) | Err(_) => {}
        }
    }
    for folder in std::fs::read_dir(&estate.scratch).into_iter().flatten().flatten() {
        let name = folder.file_name();
        let Some(id) = name.to_str().and_then(|name| TaskId::parse(name).ok()) else { continue };
        let record = File::open(estate.records.join(format!("{id}.jsonl")));
        let free = match record {
            Ok(record) => record.try_lock().is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound && is_old(&folder),
        };
        if free {
            let _ = estate.backend.reap(&id);
            let _ = crate::places::remove_layer(&folder.path());
        }
    }
    sweep_living(estate.backend, &estate.records, (&estate.sandboxes, &estate.snapshots));
    let _ = DirHandle::open(&estate.layers).and_then(|layers| discard::sweep(&layers));
}

/// Removes living sandboxes whose keeper and reaper both died, and that nobody wanted to keep.
pub(crate) fn sweep_living(backend: &dyn Backend, records: &Path, (sandboxes, snapshots): (&Path, &Path)) {
    let record = |id: &TaskId| File::open(records.join(format!("{id}.jsonl")));
    for file in std::fs::read_dir(records).into_iter().flatten().flatten() {
        if file.path().extension().is_some_and(|extension| extension == "new") && is_old(&file) {
            let _ = std::fs::remove_file(file.path());
        }
    }
    crate::keep::snapshot::sweep(snapshots, &|id| {
        record(id).map_or(true, |record| record.try_lock().is_ok())
    });
    for folder in std::fs::read_dir(sandboxes).into_iter().flatten().flatten() {
        let name = folder.file_name();
        let Some(id) = name.to_str().and_then(|name| TaskId::parse(name).ok()) else { continue };
        if folder.path().join(crate::keep::KEPT).exists() {
            continue;
        }
        let free = match record(&id) {
            Ok(record) => record.try_lock().is_ok(),
            Err(error) => error.kind() == io::ErrorKind::NotFound && is_old(&folder),
        };
        if free {
            let _ = backend.reap(&id);
            // A reaper that is at it holds the record.
            let _ = write_lost(records, &id, true);
            leave(records, &id, &folder.path());
        }
    }
}

/// A layer is made a moment before the record that it belongs to.
fn is_old(layer: &std::fs::DirEntry) -> bool {
    let made = layer.metadata().and_then(|meta| meta.modified());
    made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age.as_secs() > 60))
}

/// Removes a layer without changes that no run holds.
fn forget_unused(layer: &Path) {
    let free = DirHandle::open_no_link(layer).is_ok_and(|dir| matches!(dir.try_lock(), Ok(Some(_))));
    if free {
        forget_if_unchanged(layer, None);
    }
}

/// A killed run keeps what it changed, for its owner to look at; a layer without changes is nothing.
fn forget_if_unchanged(layer: &Path, mounted: Option<&OwnedFd>) {
    let Ok(dir) = DirHandle::open(layer) else { return };
    if Layer::is_unfinished(&dir) {
        return drop(crate::places::remove_layer(layer));
    }
    let Ok(own) = Disk::find(&dir) else { return };
    let parts = match (mounted, &own) {
        (Some(mounted), _) => mounted.try_clone().map(DirHandle::from),
        // To look into a file system is work, so it is done once.
        (None, Some(_)) if disk::is_kept(&dir) => return,
        (None, Some(own)) => own.root(&dir),
        (None, None) => dir.sub(Path::new("")),
    };
    let Ok(parts) = parts else { return };
    let upper = parts.sub(Path::new("upper"));
    match upper.and_then(|upper| upper.list()).map(|mut entries| entries.next().is_none()) {
        Ok(true) => drop(crate::places::remove_layer(layer)),
        Ok(false)
            if own.is_some()
                && parts.sub(Path::new("")).is_ok_and(|root| disk::settle(&root, &dir).is_ok()) =>
        {
            disk::keep(&dir)
        }
        Ok(false) | Err(_) => {}
    }
}
