//! What is asked about files, and who does it: a thread for each caller, as disks and callers are waited for.

use super::failures;
use super::files::inside::{self, Inside};
use super::files::{Caller, GuestFiles, busy};
use super::keeper::{Keeper, Verdict};
use super::snapshot::{Origin, Taking};
use crate::run::unix_millis;
use fumehood_backend::{GuestStdio, Live};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Ask, FailureCode, Phase, Said};
use fumehood_model::event::Event;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Callers that work on files at once. Each has a thread, and a descriptor for each folder on its way.
const MOST_AT_ONCE: usize = 32;
/// A snapshot during which something ran is taken again.
const MOST_ATTEMPTS: u32 = 3;
/// Enough for the deepest folder that is gone down to.
const STACK_BYTES: usize = 1 << 20;

impl Keeper<'_> {
    /// Gives the caller to a thread of its own. A sandbox that is paused has files all the same.
    pub(crate) fn work_on_files(&mut self, number: u64, ask: Ask) -> Verdict<()> {
        match self.phase() {
            Phase::Running | Phase::Paused => {}
            Phase::Halted => return Err(failures::halted()),
            Phase::Ending => return Err(failures::ending()),
        }
        let Some(files) = self.life.files.clone() else { return self.work_inside(number, ask) };
        // One is ours; each thread has another.
        if Arc::strong_count(&files) > MOST_AT_ONCE + 2 {
            return Err(busy());
        }
        if let Some(event) = told(&ask)
            && !self.record(&event)
        {
            return Err(self.unrecorded());
        }
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        let Ok(caller) = Caller::new(connection.stream, connection.inward) else { return Ok(()) };
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES);
        // Where there can be no thread, the caller finds the connection closed.
        let _ = thread.spawn(move || work(&files, ask, caller));
        Ok(())
    }

    /// Has the guest written down whole. It is frozen when this returns.
    fn write_down(&mut self, taking: &mut Taking) -> Verdict<u64> {
        let folder = taking.machine(&self.life.snapshots)?;
        let live = self.instance.live().ok_or_else(failures::ending)?;
        let written = live.write_down(&folder).ok_or_else(|| failures::other_snapshot(false))?;
        self.life.frozen.get_or_insert_with(Instant::now);
        let bytes = written.map_err(|error| failures::not_frozen("write the machine down", error))?;
        taking.wrote(bytes);
        Ok(bytes)
    }

    /// The same, where the guest has to do it itself: one that stands still does nothing.
    fn work_inside(&mut self, number: u64, ask: Ask) -> Verdict<()> {
        if self.phase() == Phase::Paused {
            return Err(failures::paused());
        }
        if Arc::strong_count(&self.life.hands) > MOST_AT_ONCE {
            return Err(busy());
        }
        let words = inside::words(&ask)?;
        let pipe = |nonblocking| fumehood_sys::process::pipe(nonblocking);
        let pipes = pipe(false).and_then(|input| Ok((input, pipe(false)?, pipe(false)?)));
        let ((stdin, feed), (answer, stdout), (_, stderr)) = pipes.map_err(|_exhausted| busy())?;
        let stdio = GuestStdio::Pipes { stdin, stdout, stderr };
        if let Some(event) = told(&ask)
            && !self.record(&event)
        {
            return Err(self.unrecorded());
        }
        let live = self.instance.live().ok_or_else(failures::ending)?;
        live.hand(&words, stdio).ok_or_else(rootless)?.map_err(|error| failures::of_exec(&error))?;
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        let Ok(caller) = Caller::new(connection.stream, connection.inward) else { return Ok(()) };
        let held = Arc::clone(&self.life.hands);
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES);
        let _ = thread.spawn(move || {
            Inside::new(ask, caller, feed, answer).work();
            drop(held);
        });
        Ok(())
    }

    /// Takes the files while everything stands still. The disk is waited for afterwards, and by another thread. One
    /// that is paused or halted stays so.
    pub(crate) fn snapshot(&mut self, number: u64, name: &str, memory: Option<bool>) -> Verdict<()> {
        if self.phase() == Phase::Ending {
            return Err(failures::ending());
        }
        let whole = self.life.machine;
        if memory.is_some_and(|memory| memory != whole) {
            return Err(failures::other_snapshot(whole));
        }
        let kernel = self.instance.live().ok_or_else(failures::ending)?.owner();
        let taking = Taking::begin(&self.life.snapshots, name, self.id)?;
        let event = Event::Snapshot { name: name.to_owned() };
        if !self.record(&event) {
            return Err(self.unrecorded());
        }
        let taken = self.take_still(taking, kernel);
        let (mut taking, frozen) = self.undone(&event, taken)?;
        self.reach();
        let head = self.log.head();
        let origin = Origin {
            sandbox: self.id.to_owned(),
            record_lines: head.lines,
            record_hash: head.hash.to_string(),
            level: self.life.level.clone(),
            taken_ms: unix_millis(),
        };
        if let Some(warm) = &self.life.spec.warm {
            let brought = taking.bring(warm, &self.life.folder);
            self.undone(&event, brought)?;
        }
        taking.describe(origin, self.life.layer.as_ref());
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        let Ok(caller) = Caller::new(connection.stream, connection.inward) else { return Ok(()) };
        let thread = std::thread::Builder::new().name("snapshot".to_owned()).stack_size(STACK_BYTES);
        let _ = thread.spawn(move || settle(taking, frozen, caller));
        Ok(())
    }

    /// Takes it, and again where something ran meanwhile. Gives for how long everything stood still.
    fn take_still(&mut self, mut taking: Taking, kernel: (u32, u32)) -> Verdict<(Taking, Duration)> {
        if self.life.frozen.is_none() && !self.life.machine {
            self.settle("write out what its kernel holds of files")?;
        }
        let mut attempts = 1;
        loop {
            let (frozen, stood) = self.take_once(&mut taking, kernel)?;
            if stood {
                return Ok((taking, frozen));
            }
            if attempts == MOST_ATTEMPTS {
                return Err(restless());
            }
            attempts += 1;
            let name = taking.name().to_owned();
            drop(taking);
            taking = Taking::begin(&self.life.snapshots, &name, self.id)?;
        }
    }

    /// Gives for how long everything stood still, and whether it did.
    fn take_once(&mut self, taking: &mut Taking, kernel: (u32, u32)) -> Verdict<(Duration, bool)> {
        let (paused, whole) = (self.life.frozen.is_some(), self.life.machine);
        if !paused && !whole {
            taking.hurry(&self.life.parts);
        }
        let begun = Instant::now();
        let taken = if whole {
            self.write_down(taking)
        } else {
            if paused {
                // What it did before is past.
                self.instance.live().map(Live::stood);
            } else {
                self.freeze("stand still for a snapshot")?;
            }
            fault::point(Point::SnapshotFrozen);
            taking.take(&self.life.parts, kernel)
        };
        let stood = self.instance.live().is_none_or(Live::stood);
        fault::point(Point::SnapshotCopied);
        if !paused {
            self.thaw("go on after the snapshot")?;
        }
        let frozen = begun.elapsed();
        taken.map(|_| (frozen, stood))
    }
}

/// Sees to it that what was taken is kept, and says so.
fn settle(taking: Taking, frozen: Duration, caller: Caller) {
    let name = taking.name().to_owned();
    let frozen_us = u64::try_from(frozen.as_micros()).unwrap_or(u64::MAX);
    let finished = taking.finish();
    fault::point(Point::SnapshotPublished);
    caller.tell(&match finished {
        Ok(bytes) => Said::Snapshot { name, bytes, frozen_us },
        Err(failure) => Said::Failed(failure),
    });
}

fn work(files: &Arc<GuestFiles>, ask: Ask, caller: Caller) {
    files.answer(ask, caller);
}

/// What stands in the record. Looking is no act.
fn told(ask: &Ask) -> Option<Event> {
    let event = |verb: &str, path: &str, to: Option<&String>| {
        Some(Event::FileAsked { verb: verb.to_owned(), path: path.to_owned(), to: to.cloned() })
    };
    match ask {
        Ask::Read { path, .. } => event("read", path, None),
        Ask::Write { path, .. } => event("write", path, None),
        Ask::MakeDir { path } => event("make_dir", path, None),
        Ask::Remove { path } => event("remove", path, None),
        Ask::Move { from, to } => event("move", from, Some(to)),
        Ask::Status
        | Ask::Exec(_)
        | Ask::Attach { .. }
        | Ask::Input { .. }
        | Ask::List
        | Ask::Signal { .. }
        | Ask::Resize { .. }
        | Ask::Stat { .. }
        | Ask::ListDir { .. }
        | Ask::Watch { .. }
        | Ask::Dial { .. }
        | Ask::Pause
        | Ask::Resume
        | Ask::Snapshot { .. }
        | Ask::Apply { .. }
        | Ask::Halt
        | Ask::Release
        | Ask::Claim(_)
        | Ask::Network(_)
        | Ask::Expire { .. }
        | Ask::Stop { .. } => None,
    }
}

/// Where signals stand in for a freezer, a program can see to it that it goes on.
fn restless() -> fumehood_keep::wire::Failure {
    failures::new(
        FailureCode::Busy,
        (
            "stand still for a snapshot",
            "something inside goes on by itself whenever it is stopped".to_owned(),
        ),
        "end what continues itself by a timer, or run where a cgroup can be frozen: as root, or where systemd delegates one",
    )
}

fn rootless() -> fumehood_keep::wire::Failure {
    failures::new(
        FailureCode::Unsupported,
        ("work on files", "at this level the sandbox has no root of its own".to_owned()),
        "use a command inside, as in `fumehood exec ID -- cat FILE`, or the level `container`",
    )
}
