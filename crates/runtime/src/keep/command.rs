//! One command of a living sandbox: its streams, its time, how it ended.

use super::ring::Ring;
use crate::streams::Allowance;
use fumehood_keep::wire::{Exec, ExecStatus};
use fumehood_model::ending::{Ending, Hit, HitKind};
use fumehood_model::report::Usage;
use fumehood_sys::poll::Interest;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Input that waits for a command; whoever sends more is not read.
pub(crate) const MOST_INPUT_BYTES: usize = 256 << 10;
/// How long a terminal may take to hand over what was written to it before its command ended.
const TERMINAL_SETTLES: Duration = Duration::from_millis(50);
/// What a terminal takes for the end of input.
const END_OF_INPUT: u8 = 4;

/// One command.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) asked: Exec,
    pub(crate) cwd: String,
    /// As seen inside; zero before it started.
    pub(crate) pid: u32,
    pub(crate) started_ms: u64,
    pub(crate) born: Instant,
    pub(crate) input: Input,
    pub(crate) output: Stream,
    pub(crate) error: Stream,
    pub(crate) allowance: Allowance,
    /// How long it may run.
    pub(crate) limit: Option<Duration>,
    /// When it is asked to end.
    pub(crate) deadline: Option<Instant>,
    /// When it is ended, having been asked.
    pub(crate) grace: Option<Instant>,
    pub(crate) cause: Option<Cause>,
    /// Kills for memory that the sandbox had seen when it began.
    pub(crate) oom_kills: u64,
    pub(crate) hits: Vec<Hit>,
    pub(crate) ended: Option<Ended>,
}

/// Why we end it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Timeout(Duration),
    Signal(u8),
}

/// How it went.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) ending: Ending,
    pub(crate) usage: Usage,
    pub(crate) at: Instant,
}

/// What goes to a command.
#[derive(Debug, Default)]
pub(crate) struct Input {
    sink: Option<File>,
    waiting: VecDeque<u8>,
    /// No more will come.
    over: bool,
    terminal: bool,
    /// The terminal is on its way.
    coming: bool,
}

/// What comes from a command.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    source: Option<File>,
    pub(crate) ring: Ring,
    /// Where it ended for those who follow the command: what a process in the background adds is not theirs.
    pub(crate) settled: Option<u64>,
    terminal: bool,
}

// === impl Command ===

impl Command {
    pub(crate) fn status(&self, exec: u32) -> ExecStatus {
        ExecStatus {
            exec,
            pid: self.pid,
            argv: self.asked.argv.clone(),
            cwd: self.cwd.clone(),
            tag: self.asked.tag.clone(),
            terminal: self.asked.terminal.is_some(),
            started_ms: self.started_ms,
            stdout_bytes: self.output.ring.end(),
            stderr_bytes: self.error.ring.end(),
            ending: self.ended.as_ref().map(|ended| ended.ending.clone()),
        }
    }

    /// The guest's terminal is there.
    pub(crate) fn take_terminal(&mut self, master: OwnedFd) -> io::Result<()> {
        fumehood_sys::process::set_nonblocking(&master, true)?;
        let writes = master.try_clone()?;
        self.output = Stream { terminal: true, ..Stream::new(master) };
        let waiting = std::mem::take(&mut self.input.waiting);
        self.input = Input { terminal: true, waiting, ..Input::new(writes) };
        self.input.advance();
        Ok(())
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) -> io::Result<()> {
        let terminal = self.output.source.as_ref().filter(|_| self.output.terminal);
        let terminal = terminal.ok_or(ErrorKind::NotFound)?;
        fumehood_sys::terminal::set_size(terminal.as_fd(), rows, columns)
    }

    /// Moves what there is of both streams, up to a chunk each. Each `floor` is the first byte that somebody still
    /// has to read.
    pub(crate) fn advance(&mut self, floors: [u64; 2]) {
        let dropped = self.allowance.dropped;
        let ended = self.ended.as_ref().map(|ended| ended.at);
        for (stream, floor) in [&mut self.output, &mut self.error].into_iter().zip(floors) {
            stream.advance(floor, &mut self.allowance, ended);
        }
        if self.allowance.dropped > dropped {
            self.hit(HitKind::OutputLimit, "output", self.allowance.dropped - dropped);
        }
    }

    /// Whether those who follow it have seen all once they have seen what is there.
    pub(crate) fn is_settled(&self) -> bool {
        self.ended.is_some() && self.output.settled.is_some() && self.error.settled.is_some()
    }

    pub(crate) fn hit(&mut self, kind: HitKind, detail: &str, count: u64) {
        match self.hits.iter_mut().find(|hit| hit.kind == kind && hit.detail == detail) {
            Some(hit) => hit.count = hit.count.saturating_add(count),
            None => self.hits.push(Hit {
                kind,
                detail: detail.to_owned(),
                count,
                first_ms: millis(self.born.elapsed()),
            }),
        }
    }

    /// When it has to be looked at, whatever happens.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        let settles =
            self.ended.as_ref().filter(|_| !self.is_settled()).map(|ended| ended.at + TERMINAL_SETTLES);
        let limits = [self.deadline, self.grace].into_iter().flatten().filter(|_| self.ended.is_none());
        limits.chain(settles).min()
    }

    /// Whether some process inside still has its streams.
    pub(crate) fn is_open(&self) -> bool {
        self.output.source.is_some() || self.error.source.is_some()
    }
}

// === impl Input ===

impl Input {
    pub(crate) fn new(sink: OwnedFd) -> Self {
        Self { sink: Some(sink.into()), ..Self::default() }
    }

    /// For a terminal that is on its way.
    pub(crate) fn coming() -> Self {
        Self { terminal: true, coming: true, ..Self::default() }
    }

    pub(crate) const fn is_open(&self) -> bool {
        (self.sink.is_some() || self.coming) && !self.over
    }

    /// Whether more is taken.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < MOST_INPUT_BYTES
    }

    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.is_open() {
            self.waiting.extend(bytes);
            self.advance();
        }
    }

    /// No more will come.
    pub(crate) fn end(&mut self) {
        if self.is_open() {
            if self.terminal {
                // A terminal has no end but the one that is typed.
                self.waiting.push_back(END_OF_INPUT);
            } else {
                self.over = true;
            }
            self.advance();
        }
    }

    pub(crate) fn close(&mut self) {
        *self = Self { over: true, ..Self::default() };
    }

    pub(crate) fn waits(&self) -> Option<(BorrowedFd<'_>, Interest)> {
        let waiting = !self.waiting.is_empty();
        self.sink.as_ref().filter(|_| waiting).map(|sink| (sink.as_fd(), Interest::Write))
    }

    /// Moves what can be moved now.
    pub(crate) fn advance(&mut self) {
        while let Some(sink) = self.sink.as_mut() {
            let (first, _) = self.waiting.as_slices();
            if first.is_empty() {
                break;
            }
            match sink.write(first) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // Nobody reads it.
                Err(_) => self.close(),
            }
        }
        if self.over {
            self.sink = None;
        }
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
    }
}

// === impl Stream ===

impl Stream {
    /// Preconditions: reading `source` does not wait.
    pub(crate) fn new(source: OwnedFd) -> Self {
        Self { source: Some(source.into()), ..Self::default() }
    }

    pub(crate) fn waits(&self, floor: u64) -> Option<(BorrowedFd<'_>, Interest)> {
        let room = self.ring.has_room(floor);
        self.source.as_ref().filter(|_| room).map(|source| (source.as_fd(), Interest::Read))
    }

    fn advance(&mut self, floor: u64, allowance: &mut Allowance, ended: Option<Instant>) {
        let quiet = match (&mut self.source, self.ring.room(floor)) {
            (None, _) => true,
            // Somebody has to read first.
            (Some(_), None) => false,
            (Some(source), Some(room)) => match source.read(room) {
                Ok(count @ 1..) => {
                    self.ring.commit(allowance.pass(count));
                    false
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    !self.terminal || ended.is_some_and(|at| at.elapsed() >= TERMINAL_SETTLES)
                }
                Ok(0) | Err(_) => {
                    self.source = None;
                    true
                }
            },
        };
        if ended.is_some() && quiet && self.settled.is_none() {
            self.settled = Some(self.ring.end());
        }
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
