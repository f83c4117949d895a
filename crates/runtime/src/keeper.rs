//! The keeper's loop: one wait on everything that can happen, until the command is over.
//!
//! ```text
//!              ┌ guest event ─ started, terminal, ended, gone
//!   wait for ──┼ signal ────── passed on; a second one, or a deaf command, ends the sandbox
//!              ├ stream ────── moved, never waited for
//!              └ time ──────── wall clock, grace, meters
//! ```
//!
//! **Invariant:** whatever happens the loop ends, and with a cause: the command's own end, or the end
//! that we made and why.

use crate::egress::{Publisher, Seen, Wall, no_more_forks};
use crate::meter::{Excess, Meter};
use crate::streams::{Allowance, Flow, Sink};
use fumehood_audit::TaskLog;
use fumehood_backend::{Event, ExecError, Instance, Meters, WaitStatus};
use fumehood_model::ending::{Ending, Hit, HitKind, signal_name};
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::{process, terminal};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// From asking a command to end to ending it.
const TIMEOUT_GRACE: Duration = Duration::from_millis(500);
const SIGNAL_GRACE: Duration = Duration::from_secs(5);
/// How long a sandbox that was killed may take to be gone before we go on without its last word.
const DEATH_LIMIT: Duration = Duration::from_secs(10);

/// What stands before the wall's sockets in a wait: the guest's events and our signals.
const FIRST_OF_WALL: usize = 2;
/// Events read before the loop looks at everything else again.
const EVENTS_AT_ONCE: u32 = 64;

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGQUIT: i32 = 3;
const SIGKILL: u8 = 9;
const SIGTERM: i32 = 15;
const SIGXFSZ: u8 = 25;
const SIGWINCH: i32 = 28;

/// The signals that a keeper takes for the command.
pub(crate) const SIGNALS: [i32; 5] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH];

/// The streams of one command.
#[derive(Debug)]
pub(crate) struct Streams {
    /// From the caller to the guest.
    pub(crate) input: Option<Flow>,
    pub(crate) output: Option<Flow>,
    pub(crate) error: Option<Flow>,
    pub(crate) allowance: Allowance,
}

/// How it went.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) ending: Ending,
    pub(crate) hits: Vec<Hit>,
    pub(crate) cpu_ms: u64,
    /// What the sandbox had used when it was over.
    pub(crate) meters: Meters,
    /// When the exec was asked for.
    pub(crate) born: Instant,
    pub(crate) streams: Streams,
}

/// Why we are ending the command.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cause {
    Timeout(Duration),
    Signal(i32),
    Excess(Excess),
}

/// The loop's state.
#[derive(Debug)]
pub(crate) struct Keeper<'a> {
    instance: &'a mut dyn Instance,
    signals: &'a OwnedFd,
    wall: Wall<'a>,
    publisher: Publisher,
    /// Whether this process may still fork others that become another user.
    forks: bool,
    log: &'a mut TaskLog,
    streams: Streams,
    meter: Meter,
    timeout: Option<Duration>,
    born: Instant,
    cause: Option<Cause>,
    /// When the grace of `cause` is over; then the sandbox is killed.
    grace: Option<Instant>,
    killed: Option<Instant>,
    outcome: Option<Outcome>,
    hits: Vec<Hit>,
    cpu_ms: u64,
    terminal: Option<OwnedFd>,
    raw: Option<terminal::RawMode<'static>>,
}

/// What was ready, beside the guest, the signals and the streams.
#[derive(Clone, Copy, Debug)]
struct Ready {
    wall: bool,
    doors: bool,
}

/// What the guest said last.
#[derive(Debug)]
enum Outcome {
    Ended(WaitStatus),
    NotStarted(ExecError),
    Gone,
}

// === impl Keeper ===

impl<'a> Keeper<'a> {
    pub(crate) fn new(
        instance: &'a mut dyn Instance,
        signals: &'a OwnedFd,
        (wall, publisher): (Wall<'a>, Publisher),
        log: &'a mut TaskLog,
        (streams, meter): (Streams, Meter),
    ) -> Self {
        Self {
            instance,
            signals,
            wall,
            publisher,
            forks: true,
            log,
            streams,
            meter,
            timeout: None,
            born: Instant::now(),
            cause: None,
            grace: None,
            killed: None,
            outcome: None,
            hits: Vec::new(),
            cpu_ms: 0,
            terminal: None,
            raw: None,
        }
    }

    /// Keeps the command until it is over, for `timeout` at most.
    pub(crate) fn keep(mut self, timeout: Option<Duration>) -> io::Result<Watched> {
        self.timeout = timeout;
        while self.outcome.is_none() {
            let Ready { wall, doors } = self.wait()?;
            if wall {
                self.wall.advance(self.log);
                self.settle_forks();
            }
            if doors {
                self.publisher.advance(self.instance);
            }
            self.read_events();
            self.read_signals();
            self.move_streams();
            self.watch_time();
        }
        if matches!(self.outcome, Some(Outcome::Gone)) {
            // A first process that dies closes its end before the kernel has ended the others.
            self.instance.kill();
            self.instance.wait_gone(DEATH_LIMIT);
        }
        self.deliver_rest()?;
        self.raw = None;
        let Seen { denied, fault } = self.wall.finish(self.log);
        let hits = &mut self.hits;
        for (what, count) in denied {
            hit(hits, self.born, (HitKind::EgressDenied, &what, count));
        }
        if let Some(why) = fault {
            hit(hits, self.born, (HitKind::NetworkLost, &why, 1));
        }
        let meters = self.meter.last(self.instance);
        let ending = self.conclude(meters);
        Ok(Watched {
            ending,
            hits: self.hits,
            cpu_ms: self.cpu_ms,
            meters,
            born: self.born,
            streams: self.streams,
        })
    }

    /// Once no other process of ours is to be made, what that takes is given up.
    fn settle_forks(&mut self) {
        if self.forks && !self.wall.will_fork() && !self.publisher.will_fork() {
            self.forks = no_more_forks().is_err();
        }
    }

    /// Waits for anything.
    fn wait(&self) -> io::Result<Ready> {
        let mut set: Vec<(BorrowedFd<'_>, Interest)> =
            vec![(self.instance.events(), Interest::Read), (self.signals.as_fd(), Interest::Read)];
        let walls = self.wall.waits();
        set.extend(walls.iter().map(|socket| (*socket, Interest::Read)));
        let first_door = set.len();
        set.extend(self.publisher.waits().map(|door| (door, Interest::Read)));
        let first_stream = set.len();
        set.extend(self.streams.waits());
        let found = poll::wait(&set, self.next_alarm())?;
        let any =
            |range: Range<usize>| found.get(range).is_some_and(|some| some.iter().any(|waited| waited.ready));
        Ok(Ready { wall: any(FIRST_OF_WALL..first_door), doors: any(first_door..first_stream) })
    }

    fn next_alarm(&self) -> Option<Duration> {
        let deadline = self.timeout.filter(|_| self.cause.is_none()).map(|limit| self.born + limit);
        let death = self.killed.map(|at| at + DEATH_LIMIT);
        let (wall, doors) = (self.wall.alarm(), self.publisher.alarm());
        let alarms = [deadline, self.grace, death, self.meter.next(), wall, doors];
        alarms.into_iter().flatten().min().map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn read_events(&mut self) {
        // A guest that is refused something all the time must not keep us from the clock.
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.instance.next_event() else { return };
            match event {
                Event::Started => {}
                Event::Terminal(master) => self.take_terminal(master),
                Event::NotStarted(error) => self.outcome = Some(Outcome::NotStarted(error)),
                Event::Ended { status, leftovers, cpu_ms } => {
                    self.cpu_ms = u64::from(cpu_ms);
                    if leftovers > 0 {
                        self.hit(HitKind::LeftoverProcesses, "ended with the command", u64::from(leftovers));
                    }
                    self.outcome = Some(Outcome::Ended(status));
                }
                // Nothing here dials; a connection that nobody asked for is closed.
                Event::Dialled { call, result } => {
                    let wall = &mut self.wall;
                    // It has one thread to the end, and makes porters as they are needed.
                    drop(self.publisher.dialled(call, result, || wall.forget()));
                }
                Event::Denied { syscall } => self.hit(HitKind::Denied, syscall, 1),
                Event::Gone => self.outcome = Some(self.outcome.take().unwrap_or(Outcome::Gone)),
                Event::Lost { why } => {
                    // Where we ended it ourselves, that it went is no news.
                    if self.killed.is_none() {
                        self.hit(HitKind::SandboxLost, &why, 1);
                    }
                    self.outcome = Some(self.outcome.take().unwrap_or(Outcome::Gone));
                }
            }
        }
    }

    /// The guest's terminal is there: our own becomes a window onto it.
    fn take_terminal(&mut self, master: OwnedFd) {
        let (read, write) = (master.try_clone(), master.try_clone());
        let (Ok(read), Ok(write)) = (read, write) else { return self.end(Cause::Signal(SIGHUP)) };
        let _ = process::set_nonblocking(&master, true);
        self.streams.output = Some(Flow::new(read, Sink::caller(caller_output())));
        self.streams.input =
            caller_input().ok().map(|input| Flow::from_caller(input, Sink::Free(write.into())));
        self.terminal = Some(master);
        self.raw = terminal::RawMode::enter(static_input()).ok();
        self.resize();
    }

    /// A terminal that does not know its own size says zero; the guest keeps the one it was started with.
    fn resize(&mut self) {
        if let (Some(master), Ok((rows @ 1.., columns @ 1..))) =
            (&self.terminal, terminal::size(static_input()))
        {
            let _ = terminal::set_size(master.as_fd(), rows, columns);
            self.instance.resize(rows, columns);
        }
    }

    fn read_signals(&mut self) {
        while let Some(signal) = process::read_signal(self.signals.as_fd()) {
            match signal {
                SIGWINCH => self.resize(),
                _ if matches!(self.cause, Some(Cause::Signal(_))) => self.kill(),
                _ => self.end(Cause::Signal(signal)),
            }
        }
    }

    fn move_streams(&mut self) {
        let Streams { input, output, error, allowance } = &mut self.streams;
        let dropped = allowance.dropped;
        for flow in [output, error].into_iter().flatten() {
            flow.advance(Some(allowance));
        }
        if let Some(flow) = input {
            flow.advance(None);
            flow.close_finished_sink();
        }
        if self.streams.allowance.dropped > dropped {
            self.hit(HitKind::OutputLimit, "output", self.streams.allowance.dropped - dropped);
        }
    }

    fn watch_time(&mut self) {
        let now = Instant::now();
        if self.wall.alarm().is_some_and(|at| now >= at) {
            self.wall.renew();
        }
        if self.publisher.alarm().is_some_and(|at| now >= at) {
            self.publisher.advance(self.instance);
        }
        if let Some(limit) = self.timeout.filter(|limit| self.cause.is_none() && now >= self.born + *limit) {
            self.end(Cause::Timeout(limit));
        }
        if self.cause.is_none()
            && let Some(excess) = self.meter.look(self.instance, now)
        {
            self.cause = Some(Cause::Excess(excess));
            self.kill();
        }
        if self.grace.is_some_and(|at| now >= at) {
            self.kill();
        }
        if self.killed.is_some_and(|at| now >= at + DEATH_LIMIT) {
            self.outcome = Some(Outcome::Gone);
        }
    }

    /// Asks the command to end, and gives it a moment.
    fn end(&mut self, cause: Cause) {
        let (signal, grace) = match &cause {
            // Interactive: whoever presses Ctrl-C once may be talking to the command.
            Cause::Signal(signal @ (SIGINT | SIGQUIT)) => (*signal, None),
            Cause::Signal(signal) => (*signal, Some(SIGNAL_GRACE)),
            Cause::Timeout(_) | Cause::Excess(_) => (SIGTERM, Some(TIMEOUT_GRACE)),
        };
        self.cause = Some(cause);
        self.grace = grace.map(|grace| Instant::now() + grace);
        if self.instance.signal(signal).is_err() {
            self.kill();
        }
    }

    fn kill(&mut self) {
        self.grace = None;
        self.killed.get_or_insert_with(Instant::now);
        self.instance.kill();
    }

    /// Every writer is dead, so the streams end; what they hold is still the command's output.
    fn deliver_rest(&mut self) -> io::Result<()> {
        self.streams.input = None;
        let mut impatient = false;
        while !impatient && !self.streams.is_delivered() {
            let carrying = self.instance.carry();
            let mut set: Vec<(BorrowedFd<'_>, Interest)> = vec![(self.signals.as_fd(), Interest::Read)];
            set.extend(carrying.map(|more| (more, Interest::Read)));
            set.extend(self.streams.waits());
            // A stream that nobody writes any more is at its end; nothing is left to wait for.
            let found = poll::wait(&set, Some(Duration::from_secs(1)))?;
            let quiet = found.iter().all(|waited| !waited.ready);
            impatient = process::read_signal(self.signals.as_fd()).is_some_and(|signal| signal != SIGWINCH)
                || (quiet && self.streams.only_sources_wait());
            self.move_streams();
        }
        Ok(())
    }

    fn hit(&mut self, kind: HitKind, detail: &str, count: u64) {
        hit(&mut self.hits, self.born, (kind, detail, count));
    }

    /// The one place where an ending is decided.
    fn conclude(&mut self, last: Meters) -> Ending {
        let outcome = self.outcome.take().unwrap_or(Outcome::Gone);
        if last.fork_failures > 0 {
            self.hit(HitKind::TooManyProcesses, "processes", last.fork_failures);
        }
        if last.disk_full || matches!(outcome, Outcome::Ended(WaitStatus::Signalled(SIGXFSZ))) {
            let what = if last.disk_full { "no room left" } else { "one file reached the file size limit" };
            self.hit(HitKind::DiskFull, what, 1);
        }
        if self.meter.layer_full {
            self.hit(HitKind::DiskFull, "the workspace's layer", 1);
        }
        let died = matches!(
            outcome,
            Outcome::Gone | Outcome::Ended(WaitStatus::Signalled(SIGKILL) | WaitStatus::Exited(137))
        );
        let ending = match (self.cause.take(), outcome) {
            (Some(Cause::Timeout(limit)), _) => {
                Ending::TimedOut { limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
            }
            (Some(Cause::Excess(excess)), _) => excess.ending(),
            (None, _) if last.oom_kills > 0 && died => self.meter.out_of_memory(),
            (_, Outcome::NotStarted(error)) => not_started(&error),
            (Some(Cause::Signal(signal)), Outcome::Gone) => killed(signal),
            (Some(Cause::Signal(signal)), Outcome::Ended(WaitStatus::Signalled(by)))
                if i32::from(by) == signal =>
            {
                killed(signal)
            }
            (_, Outcome::Ended(WaitStatus::Exited(code))) => Ending::Exited { code },
            (_, Outcome::Ended(WaitStatus::Signalled(signal))) => {
                Ending::Signalled { signal, name: signal_name(signal) }
            }
            (None, Outcome::Gone) => Ending::Signalled { signal: SIGKILL, name: signal_name(SIGKILL) },
        };
        if last.oom_kills > 0 && !matches!(ending, Ending::OutOfMemory { .. }) {
            self.hit(HitKind::OutOfMemory, "memory", last.oom_kills);
        }
        ending
    }
}

// === impl Streams ===

impl Streams {
    fn waits(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Interest)> {
        [&self.input, &self.output, &self.error].into_iter().flatten().filter_map(Flow::waits_for)
    }

    fn is_delivered(&self) -> bool {
        [&self.output, &self.error].into_iter().flatten().all(Flow::is_finished)
    }

    fn only_sources_wait(&self) -> bool {
        self.waits().all(|(_, interest)| interest == Interest::Read)
    }
}

/// Adds to what was met on the way.
fn hit(hits: &mut Vec<Hit>, born: Instant, (kind, detail, count): (HitKind, &str, u64)) {
    match hits.iter_mut().find(|hit| hit.kind == kind && hit.detail == detail) {
        Some(hit) => hit.count = hit.count.saturating_add(count),
        None => {
            let first_ms = u64::try_from(born.elapsed().as_millis()).unwrap_or(u64::MAX);
            hits.push(Hit { kind, detail: detail.to_owned(), count, first_ms });
        }
    }
}

/// A second handle of our own standard input.
pub(crate) fn caller_input() -> io::Result<OwnedFd> {
    static_input().try_clone_to_owned()
}

fn static_input() -> BorrowedFd<'static> {
    terminal::standard(0)
}

fn caller_output() -> BorrowedFd<'static> {
    terminal::standard(1)
}

fn killed(signal: i32) -> Ending {
    let signal = u8::try_from(signal).unwrap_or(SIGKILL);
    Ending::Killed { signal, name: signal_name(signal) }
}

/// The ending of a command that was never executed.
pub(crate) fn not_started(error: &ExecError) -> Ending {
    let plain = |kind: &io::ErrorKind| kind.to_string();
    let (step, why, remedy) = match error {
        ExecError::NotFound => {
            ("find the command", error.to_string(), "show its folder with `--ro`, or use `--image`")
        }
        ExecError::NotExecutable(io::ErrorKind::NotFound) => (
            "execute the command",
            "its interpreter is not in the sandbox".to_owned(),
            "look at its first line (`#!`), and show the interpreter's folder with `--ro`",
        ),
        ExecError::NotExecutable(kind) => (
            "execute the command",
            plain(kind),
            "check its permission bits, and that it is a program for this machine",
        ),
        ExecError::WorkingDirectory(io::ErrorKind::NotFound) => (
            "enter the working directory",
            "there is no such folder inside".to_owned(),
            "name a folder that exists inside with `--cwd`",
        ),
        ExecError::WorkingDirectory(kind) => {
            ("enter the working directory", plain(kind), "name a folder that can be entered with `--cwd`")
        }
        ExecError::TooLarge { .. } => (
            "execute the command",
            error.to_string(),
            "pass large input through a file (`--in`) or standard input",
        ),
        ExecError::Exhausted => ("start a process", error.to_string(), "allow more with `--pids` or `--mem`"),
        ExecError::Silent => {
            ("reach the sandbox", error.to_string(), "`fumehood doctor` looks at what this host can hold")
        }
    };
    Ending::NotStarted { step: step.to_owned(), why, remedy: remedy.to_owned() }
}
