//! Writing one task's record.

use crate::cap::capped;
use crate::digest::Head;
use crate::error::RecordError;
use crate::index::{Entry, Index};
use crate::line::{self, Place};
use crate::mirror::{self, Mirror, MirrorTo};
use crate::open;
use crate::proof::{self, TaskState};
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A record grows no further, so that a reader's memory is bounded.
pub(crate) const TASK_LIMIT_BYTES: u64 = 256 << 20;
/// What is left of it for everything but the network: how much of that there is the sandbox says, and how its
/// run ended is recorded all the same.
const KEPT_FREE_BYTES: u64 = 16 << 20;
/// `verify` holds a file's lock for a moment to see whether the task lives. So often, a millisecond
/// apart, is the lock tried before a task counts as live.
const LOCK_TRIES: u32 = 50;

/// The record of one task, open to be added to. Its file is locked as long as this value lives, in
/// whichever process: a forked process that should not count as the task's life drops its copy.
///
/// Dropped without [`TaskLog::close`], the task reads as lost, which is what it then is.
#[derive(Debug)]
pub struct TaskLog {
    task: TaskId,
    path: PathBuf,
    file: File,
    index: Index,
    head: Head,
    length: u64,
    buffer: Vec<u8>,
    cause: Option<&'static str>,
    poisoned: bool,
    mirror: Option<Mirror>,
}

// === impl TaskLog ===

impl TaskLog {
    /// Opens the record of a new task: its file, locked, then the index's opening line. `at_ms` is
    /// milliseconds since 1970, here and below.
    pub fn open(records: &Path, task: &TaskId, at_ms: u64) -> Result<Self, RecordError> {
        let mirror = mirror::chosen().map_err(|source| RecordError::Mirror { source })?;
        let path = open::task_path(records, task);
        let file = open::create_locked(&path).map_err(|source| {
            if source.kind() == ErrorKind::AlreadyExists {
                RecordError::Exists { task: task.clone() }
            } else {
                RecordError::Open { path: path.clone(), source }
            }
        })?;
        let opened = Index::open(records)
            .and_then(|mut index| Ok((index.append(at_ms, task, &Entry::Opened {})?, index)));
        match opened {
            Ok((opening, index)) => {
                let head = Head::of_task(task, &opening.hash);
                Ok(Self { mirror, ..Self::new(task.clone(), path, file, index).at(head, 0) })
            }
            Err(error) => {
                // The index does not name the file, and it is empty: nothing is lost with it.
                let _ = std::fs::remove_file(&path);
                Err(error)
            }
        }
    }

    /// Goes on with the record of a task that has ended, or was lost: checks it, opens it again in
    /// the index, and seals what a crash left at its end.
    pub fn reopen(records: &Path, task: &TaskId, at_ms: u64) -> Result<Self, RecordError> {
        let mirror = mirror::chosen().map_err(|source| RecordError::Mirror { source })?;
        let path = open::task_path(records, task);
        let file = open::append(&path).map_err(|source| {
            if source.kind() == ErrorKind::NotFound {
                RecordError::Unknown { task: task.clone() }
            } else {
                RecordError::Open { path: path.clone(), source }
            }
        })?;
        lock(&file, task, &path)?;
        let read = |source| RecordError::Open { path: path.clone(), source };
        let proof = proof::of_task(records, task, &file).map_err(read)?;
        let Some(proof) = proof else { return Err(RecordError::Unknown { task: task.clone() }) };
        if let TaskState::Broken { seq, what } = proof.state {
            return Err(RecordError::Broken { task: task.clone(), seq, what });
        }
        let mut index = Index::open(records)?;
        let entry = Entry::Reopened { lines: proof.head.lines, head: proof.head.hash };
        index.append(at_ms, task, &entry)?;
        let length = file.metadata().map_err(read)?.len();
        let mut log = Self { mirror, ..Self::new(task.clone(), path, file, index).at(proof.head, length) };
        if let Some(torn) = proof.torn {
            let place = Place { at_ms, task: Some(&log.task), head: log.head };
            let mended = torn.mend(&mut log.buffer, &place);
            log.land(mended)?;
        }
        Ok(log)
    }

    /// The same, with a second place for every line from now on.
    pub fn mirrored(mut self, to: &MirrorTo) -> Result<Self, RecordError> {
        self.mirror = Some(Mirror::open(to).map_err(|source| RecordError::Mirror { source })?);
        Ok(self)
    }

    /// The task whose record this is.
    pub fn task(&self) -> &TaskId {
        &self.task
    }

    /// How far the record has come.
    pub fn head(&self) -> Head {
        self.head
    }

    /// Writes one event. On an error nothing of it stands in the record, and the act must not happen. Whether more can
    /// be added later is told by [`TaskLog::can_go_on`].
    pub fn append(&mut self, at_ms: u64, event: &Event) -> Result<(), RecordError> {
        self.append_all(at_ms, std::slice::from_ref(event))
    }

    /// Writes several events at once, all or none.
    pub fn append_all(&mut self, at_ms: u64, events: &[Event]) -> Result<(), RecordError> {
        self.buffer.clear();
        let mut head = Ok(self.head);
        let most = TASK_LIMIT_BYTES - if events.iter().any(Event::is_egress) { KEPT_FREE_BYTES } else { 0 };
        for event in events {
            head = head.and_then(|head| {
                let place = Place { at_ms, task: Some(&self.task), head };
                line::write(&mut self.buffer, &place, capped(event).as_ref())
            });
            if let Event::ExecEnded { ending, .. } = event {
                self.cause = Some(ending.cause());
            }
        }
        if !self.poisoned && self.length_with_buffer() > most && most < TASK_LIMIT_BYTES {
            // Nothing of it was written, and what is not about the network still can be.
            return Err(RecordError::Full { task: self.task.clone(), limit_bytes: most });
        }
        self.land(head)
    }

    /// Writes into the index how far this record has come, so that a cut shows even if it is never closed.
    pub fn reach(&mut self, at_ms: u64) -> Result<(), RecordError> {
        let entry = Entry::Reached { lines: self.head.lines, head: self.head.hash };
        self.index.append(at_ms, &self.task, &entry).map(drop)
    }

    /// Whether it is as it was before the last write failed: with room on the disk it goes on.
    pub fn can_go_on(&self) -> bool {
        !self.poisoned
    }

    /// Makes everything so far last through a power cut, the file's name included.
    pub fn sync(&self) -> Result<(), RecordError> {
        let folder = self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all());
        self.file
            .sync_data()
            .and(folder)
            .map_err(|source| RecordError::Write { path: self.path.clone(), source })?;
        self.index.sync()
    }

    /// Writes the last line, and the line that closes the file in the index.
    pub fn close(mut self, at_ms: u64) -> Result<(), RecordError> {
        self.append(at_ms, &Event::Closed {})?;
        let cause = self.cause.map(str::to_owned);
        let entry = Entry::Closed { lines: self.head.lines, head: self.head.hash, cause };
        self.index.append(at_ms, &self.task, &entry)?;
        Ok(())
    }

    fn new(task: TaskId, path: PathBuf, file: File, index: Index) -> Self {
        let (head, buffer) = (Head::of_index(), Vec::with_capacity(8 << 10));
        Self { task, path, file, index, head, length: 0, buffer, cause: None, poisoned: false, mirror: None }
    }

    fn at(mut self, head: Head, length: u64) -> Self {
        self.head = head;
        self.length = length;
        self
    }

    fn length_with_buffer(&self) -> u64 {
        self.length.saturating_add(u64::try_from(self.buffer.len()).unwrap_or(u64::MAX))
    }

    /// Writes the buffer, which leads to `head`.
    fn land(&mut self, head: std::io::Result<Head>) -> Result<(), RecordError> {
        if self.poisoned {
            return Err(RecordError::Poisoned { task: self.task.clone() });
        }
        // Whatever fails from here on closes the log.
        self.poisoned = true;
        let failed = |source| RecordError::Write { path: self.path.clone(), source };
        let head = head.map_err(failed)?;
        let length = self.length_with_buffer();
        if length > TASK_LIMIT_BYTES {
            return Err(RecordError::Full { task: self.task.clone(), limit_bytes: TASK_LIMIT_BYTES });
        }
        if let Err(source) = self.file.write_all(&self.buffer) {
            // Back to the last whole line. If that fails too, the torn line shows, and is sealed.
            self.poisoned = self.file.set_len(self.length).is_err();
            return Err(failed(source));
        }
        if let Some(Err(source)) = self.mirror.as_mut().map(|mirror| mirror.write(&self.buffer)) {
            // What does not stand in both stands in neither, as far as that is ours to say.
            let _ = self.file.set_len(self.length);
            return Err(RecordError::Mirror { source });
        }
        self.head = head;
        self.length = length;
        self.poisoned = false;
        Ok(())
    }
}

fn lock(file: &File, task: &TaskId, path: &Path) -> Result<(), RecordError> {
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => {
                let replaced = file.metadata().map_or(true, |found| found.nlink() == 0);
                return if replaced { Err(RecordError::Replaced { path: path.to_owned() }) } else { Ok(()) };
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            Err(TryLockError::Error(source)) => {
                return Err(RecordError::Write { path: path.to_owned(), source });
            }
        }
    }
    Err(RecordError::Live { task: task.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_model::ending::Ending;
    use fumehood_model::event::EgressName;
    use fumehood_model::report::Usage;

    #[test]
    fn what_a_sandbox_asks_of_the_network_never_takes_the_end_of_its_record() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = TaskLog::open(folder.path(), &TaskId::new(1, 2), 1).unwrap();
        // As if so much had been asked already; only the length decides.
        log.length = TASK_LIMIT_BYTES - KEPT_FREE_BYTES;
        let (name, kind) = ("a.example".to_owned(), "A".to_owned());
        let asked = Event::EgressName(EgressName { name, kind, count: 1, answered: true });
        for _ in 0..2 {
            let refused = log.append_all(2, std::slice::from_ref(&asked));
            assert!(matches!(refused, Err(RecordError::Full { .. })), "{refused:?}");
        }
        let ended = Event::ExecEnded {
            ending: Ending::Exited { code: 0 },
            hits: Vec::new(),
            usage: Usage::default(),
            changes: None,
            collected: None,
            exec: None,
        };
        log.append(3, &ended).unwrap();
        log.close(4).unwrap();
    }
}
