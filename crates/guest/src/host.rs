//! Carries between the stream to a guest and what its commands read and write here.
//!
//! One descriptor ([`Host::events`]) is readable while anything can be done; [`Host::next_event`] does it.
//! Nothing here waits.

mod ends;
mod strings;

use crate::frame::{ERROR, How, OUTPUT, Person, Size};
use crate::refused;
use crate::session::{Said, Session, Start, Violation};
use ends::{End, Ends, What, drop_end};
use fumehood_backend::{Event, ExecError, GuestStdio, MOST_CALLS, WaitStatus};
use fumehood_model::exec::ExecRequest;
use fumehood_sys::poll::{self, Interest, Watch};
use fumehood_sys::process;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use strings::strings;

/// Read from the guest before anything else is done.
const READ_BYTES: usize = 64 * 1024;
/// Reads before everything else is looked at again.
const READS_AT_ONCE: u32 = 8;
/// What the stream itself is known by in the watch; channels follow.
const FROM: u64 = 0;
const TO: u64 = 1;
const MACHINE: u64 = 2;
const FIRST_KEY: u64 = 8;

/// Who commands run as, and within which limits.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Otherwise as `guestd` itself.
    pub person: Option<Person>,
    /// Resource limits, soft and hard, by their number.
    pub limits: Vec<(u32, u64)>,
}

/// The host's end of the stream, with what is carried.
#[derive(Debug)]
pub struct Host {
    session: Session,
    from: File,
    to: File,
    watch: Watch,
    /// Readable once the machine is gone.
    machine: Option<OwnedFd>,
    machine_is_gone: bool,
    /// Whether there is room to be waited for on the way out.
    writing: bool,
    ends: BTreeMap<u32, Ends>,
    events: VecDeque<(u32, Event)>,
    terms: Terms,
    next_key: u64,
    /// Whether it has answered the greeting.
    ready: bool,
    state: State,
    /// The numbers that running commands have inside.
    pids: BTreeMap<u32, u32>,
    /// Tree and question channels, and how they went.
    answers: BTreeMap<u32, Result<Answer, io::Error>>,
}

/// What came of something that is no command.
#[derive(Debug)]
pub enum Answer {
    Done,
    Meters(crate::frame::Metered),
}

#[derive(Debug)]
enum State {
    Live,
    /// It is gone, and that is still to be said.
    Leaving(Option<Violation>),
    Gone,
}

// === impl Host ===

impl Host {
    /// Over a stream: where its frames come from, and where ours go to. Greets at once.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new(from: OwnedFd, to: OwnedFd, terms: Terms) -> io::Result<Self> {
        let session = Session::new(fumehood_sys::host::random()?);
        Self::over(session, from, to, terms)
    }

    /// Goes on with a guest that has answered its greeting, and with nothing that it was asked still open. What was
    /// read of its stream was given to `session`: another greeting would be lost behind a frame that was cut.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn resume(session: Session, from: OwnedFd, to: OwnedFd, terms: Terms) -> io::Result<Self> {
        let mut host = Self::over(session, from, to, terms)?;
        host.ready = true;
        Ok(host)
    }

    fn over(session: Session, from: OwnedFd, to: OwnedFd, terms: Terms) -> io::Result<Self> {
        process::set_nonblocking(&from, true)?;
        process::set_nonblocking(&to, true)?;
        let watch = Watch::new()?;
        watch.add(from.as_fd(), FROM, Interest::Read)?;
        watch.add(to.as_fd(), TO, Interest::Hangup)?;
        let mut host = Self {
            session,
            from: from.into(),
            to: to.into(),
            watch,
            machine: None,
            machine_is_gone: false,
            writing: false,
            ends: BTreeMap::new(),
            events: VecDeque::new(),
            terms,
            next_key: FIRST_KEY,
            ready: false,
            state: State::Live,
            pids: BTreeMap::new(),
            answers: BTreeMap::new(),
        };
        host.write();
        Ok(host)
    }

    /// Watches one more descriptor, which is readable once the guest's machine is gone: the stream may be held open
    /// by who is still dying.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn watch_machine(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        let machine = file.try_clone_to_owned()?;
        self.watch.add(machine.as_fd(), MACHINE, Interest::Read)?;
        self.machine = Some(machine);
        Ok(())
    }

    /// Waits until the guest has answered the greeting, or is gone, or `patience` is over.
    ///
    /// # Errors
    /// `TimedOut`; `InvalidData` with what it did that it may not; `UnexpectedEof` where it went.
    pub fn await_ready(&mut self, patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        loop {
            self.pump();
            match &self.state {
                State::Live if self.ready => return Ok(()),
                State::Live => {}
                State::Leaving(Some(violation)) => {
                    return Err(io::Error::new(ErrorKind::InvalidData, *violation));
                }
                State::Leaving(None) | State::Gone => return Err(ErrorKind::UnexpectedEof.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            poll::wait(&[(self.watch.as_fd(), Interest::Read)], Some(left))?;
        }
    }

    /// Starts a command. With `once`, its end ends every other process of the guest. Its events bear the number
    /// that is given.
    ///
    /// # Errors
    /// Only what is known before the guest answers; the rest arrives as [`Event::NotStarted`].
    pub fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio, once: bool) -> Result<u32, ExecError> {
        if !matches!(self.state, State::Live) {
            return Err(ExecError::Silent);
        }
        let (argc, envc, block) = strings(request)?;
        let terminal = match &stdio {
            GuestStdio::Terminal => {
                let size = request.terminal.map_or((0, 0), |size| (size.rows, size.columns));
                Some(Size { rows: size.0, columns: size.1 })
            }
            GuestStdio::Pipes { .. } => None,
        };
        let ends = self.ends_of(stdio).map_err(|_| ExecError::Exhausted)?;
        let Terms { person, limits } = &self.terms;
        let start =
            Start { terminal, once, argc, envc, block: &block, person: *person, limits: limits.as_slice() };
        let channel = self.session.exec(&start).ok_or(ExecError::Exhausted)?;
        self.ends.insert(channel, ends);
        self.write();
        Ok(channel)
    }

    fn ends_of(&mut self, stdio: GuestStdio) -> io::Result<Ends> {
        match stdio {
            GuestStdio::Pipes { stdin, stdout, stderr } => Ok(Ends {
                input: Some(self.end(stdin, false)?),
                outputs: [Some(self.end(stdout, false)?), Some(self.end(stderr, false)?)],
                ..Ends::default()
            }),
            GuestStdio::Terminal => {
                let (ours, theirs) = UnixStream::pair()?;
                self.ends_of_socket(What::Command, ours.into(), theirs.into())
            }
        }
    }

    fn ends_of_socket(&mut self, what: What, ours: OwnedFd, theirs: OwnedFd) -> io::Result<Ends> {
        let second = ours.try_clone()?;
        Ok(Ends {
            what,
            input: Some(self.end(ours, true)?),
            outputs: [Some(self.end(second, true)?), None],
            theirs: Some(theirs),
            ended: false,
        })
    }

    fn end(&mut self, file: OwnedFd, socket: bool) -> io::Result<End> {
        process::set_nonblocking(&file, true)?;
        let key = self.next_key;
        self.next_key += 1;
        Ok(End { file: file.into(), key, socket, watched: None })
    }

    /// Sends a signal to a command's process group. Nothing happens if it has ended.
    ///
    /// # Errors
    /// [`ExecError::Silent`] where there is no guest, or no such signal.
    pub fn signal(&mut self, channel: u32, signal: i32) -> Result<(), ExecError> {
        let signal = u8::try_from(signal).ok().filter(|signal| (1..=64).contains(signal));
        let signal = signal.filter(|_| matches!(self.state, State::Live)).ok_or(ExecError::Silent)?;
        self.session.signal(channel, signal);
        self.write();
        Ok(())
    }

    /// Sets the size of a command's terminal.
    pub fn resize(&mut self, channel: u32, size: Size) {
        self.session.resize(channel, size);
        self.write();
    }

    /// Ends every process of the guest but its first.
    pub fn kill_all(&mut self) {
        self.session.kill_all();
        self.write();
    }

    /// Asks for a connection to a port on the guest's loopback.
    ///
    /// # Errors
    /// As [`fumehood_backend::Instance::dial`].
    pub fn dial(&mut self, port: u16) -> Result<u32, ExecError> {
        if port == 0 || !matches!(self.state, State::Live) {
            return Err(ExecError::Silent);
        }
        let waiting = self.ends.values().filter(|ends| ends.what == What::Tunnel && ends.theirs.is_some());
        if waiting.count() >= MOST_CALLS {
            return Err(ExecError::Exhausted);
        }
        let (ours, theirs) = UnixStream::pair().map_err(|_| ExecError::Exhausted)?;
        let ends = self.ends_of_socket(What::Tunnel, ours.into(), theirs.into());
        let ends = ends.map_err(|_| ExecError::Exhausted)?;
        let channel = self.session.dial(port).ok_or(ExecError::Exhausted)?;
        self.ends.insert(channel, ends);
        self.write();
        Ok(channel)
    }

    /// The stream's rules, for what is neither a command nor a connection: trees of files and questions. What
    /// comes of them is told by [`Host::answer`].
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// What came of a channel that was opened through [`Host::session`], once.
    pub fn answer(&mut self, channel: u32) -> Option<Result<Answer, io::Error>> {
        self.answers.remove(&channel)
    }

    /// The number that a running command's process has inside.
    #[must_use]
    pub fn pid(&self, channel: u32) -> Option<u32> {
        self.pids.get(&channel).copied()
    }

    /// Whether everything that came of a command's outputs was handed over.
    #[must_use]
    pub fn is_handed_over(&self, channel: u32) -> bool {
        [OUTPUT, ERROR].iter().all(|stream| self.session.output(channel, *stream).is_empty())
    }

    /// Sends what waits and takes what comes, until a question is answered.
    ///
    /// # Errors
    /// `TimedOut`; `UnexpectedEof` where the guest is gone; what it said.
    pub fn await_answer(&mut self, channel: u32, deadline: Instant) -> io::Result<Answer> {
        loop {
            self.pump();
            if let Some(answer) = self.answer(channel) {
                return answer;
            }
            if !self.is_live() {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            poll::wait(&[(self.watch.as_fd(), Interest::Read)], Some(left))?;
        }
    }

    /// Whether there is a guest that speaks.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live)
    }

    /// Readable while something can be done. Ask [`Host::next_event`] until it has no more before waiting.
    #[must_use]
    pub fn events(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// The next event of any command, or `None` when there is none yet.
    pub fn next_event(&mut self) -> Option<Event> {
        self.next_numbered().map(|(_, event)| event)
    }

    /// The next event, with the number of the command it is about (zero for none).
    pub fn next_numbered(&mut self) -> Option<(u32, Event)> {
        if self.events.is_empty() {
            self.pump();
        }
        if let Some(numbered) = self.events.pop_front() {
            return Some(numbered);
        }
        let State::Leaving(violation) = &self.state else { return None };
        let event = match violation {
            Some(violation) => Event::Lost { why: violation.to_string() },
            None => Event::Gone,
        };
        self.state = State::Gone;
        Some((0, event))
    }

    /// Moves what commands that have ended had written. What to wait on for more; `None` when everything is
    /// where it was to go.
    pub fn carry(&mut self) -> Option<BorrowedFd<'_>> {
        self.pump();
        let busy = self.ends.values().any(|ends| {
            let over = ends.ended || !matches!(self.state, State::Live);
            ends.what == What::Command && over && ends.outputs.iter().any(Option::is_some)
        });
        busy.then(|| self.watch.as_fd())
    }

    /// Does everything that can be done now.
    pub fn pump(&mut self) {
        self.note_hangups();
        self.read();
        self.tell();
        self.move_streams();
        self.write();
        self.rewatch();
    }

    /// Readers of outputs that went away, and the machine itself.
    fn note_hangups(&mut self) {
        let Ok(found) = self.watch.found() else { return };
        if found.iter().any(|found| found.key == MACHINE)
            && let Some(machine) = self.machine.take()
        {
            let _ = self.watch.remove(machine.as_fd());
            self.machine_is_gone = true;
        }
        for gone in found.into_iter().filter(|found| found.hangup && found.key >= FIRST_KEY) {
            for (channel, ends) in &mut self.ends {
                for (place, stream) in [OUTPUT, ERROR].into_iter().enumerate() {
                    let Some(slot) = ends.outputs.get_mut(place) else { continue };
                    // A socket hangs up where both sides are closed; its writes tell of it.
                    if slot.as_ref().is_some_and(|end| end.key == gone.key && !end.socket) {
                        drop_end(&self.watch, slot);
                        self.session.close(*channel, stream);
                    }
                }
            }
        }
    }

    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_AT_ONCE {
            if !matches!(self.state, State::Live) {
                return;
            }
            match self.from.read(&mut buffer) {
                Ok(0) => self.leave(None),
                Ok(count) => {
                    if let Err(violation) = self.session.feed(buffer.get(..count).unwrap_or_default()) {
                        self.leave(Some(violation));
                    }
                    if count < READ_BYTES {
                        return;
                    }
                }
                // What a machine had said before it went is read first.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.machine_is_gone {
                        self.leave(None);
                    }
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.leave(None),
            }
        }
    }

    fn leave(&mut self, violation: Option<Violation>) {
        if matches!(self.state, State::Live) {
            // What it said before still counts.
            self.tell();
            self.session.abandon();
            let _ = self.watch.remove(self.from.as_fd());
            let _ = self.watch.remove(self.to.as_fd());
            self.state = State::Leaving(violation);
        }
    }

    /// Makes events of what the guest said.
    fn tell(&mut self) {
        while let Some(said) = self.session.next_said() {
            match said {
                Said::Ready => self.ready = true,
                Said::Started { channel, pid } => {
                    self.pids.insert(channel, pid);
                    let theirs = self.ends.get_mut(&channel).and_then(|ends| ends.theirs.take());
                    self.events.extend(theirs.map(|terminal| (channel, Event::Terminal(terminal))));
                    self.events.push_back((channel, Event::Started));
                }
                Said::NotStarted { channel, stage, errno } => {
                    self.pids.remove(&channel);
                    self.drop_ends(channel);
                    self.events.push_back((channel, Event::NotStarted(refused::not_started(stage, errno))));
                }
                Said::Ended { channel, ended } => {
                    self.pids.remove(&channel);
                    if let Some(ends) = self.ends.get_mut(&channel) {
                        ends.ended = true;
                        drop_end(&self.watch, &mut ends.input);
                    }
                    let status = match ended.how {
                        How::Exited(code) => WaitStatus::Exited(code),
                        How::Signalled(signal) => WaitStatus::Signalled(signal),
                    };
                    let (leftovers, cpu_ms) = (ended.leftovers, ended.cpu_ms);
                    self.events.push_back((channel, Event::Ended { status, leftovers, cpu_ms }));
                }
                Said::InputClosed { channel } => {
                    if let Some(ends) = self.ends.get_mut(&channel) {
                        drop_end(&self.watch, &mut ends.input);
                    }
                }
                Said::Dialled { channel } => {
                    let theirs = self.ends.get_mut(&channel).and_then(|ends| ends.theirs.take());
                    let dialled = theirs.map(|theirs| Event::Dialled { call: channel, result: Ok(theirs) });
                    self.events.extend(dialled.map(|event| (0, event)));
                }
                Said::Done { channel } => self.settle(channel, Ok(Answer::Done)),
                Said::Failed { channel, errno } => self.settle(channel, Err(refused::error(errno))),
                Said::Metered { channel, meters } => self.settle(channel, Ok(Answer::Meters(meters))),
            }
        }
    }

    /// A channel is closed that is no command's.
    fn settle(&mut self, channel: u32, result: Result<Answer, io::Error>) {
        let Some(ends) = self.ends.get_mut(&channel) else {
            self.answers.insert(channel, result);
            return;
        };
        if let (Some(_unanswered), Err(error)) = (ends.theirs.take(), result) {
            self.drop_ends(channel);
            self.events.push_back((0, Event::Dialled { call: channel, result: Err(error) }));
        }
    }

    fn move_streams(&mut self) {
        let Self { session, ends, watch, .. } = self;
        ends.retain(|channel, ends| {
            ends.push_outputs(*channel, session, watch);
            ends.pull_input(*channel, session, watch);
            let idle = ends.outputs.iter().all(Option::is_none);
            if !session.is_open(*channel) && idle {
                drop_end(watch, &mut ends.input);
                return false;
            }
            true
        });
    }

    /// Writes what the guest takes now.
    fn write(&mut self) {
        while matches!(self.state, State::Live) && !self.session.pending().is_empty() {
            match self.to.write(self.session.pending()) {
                Ok(count) => self.session.sent(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // What it said before it went is still to be read; its end comes there.
                Err(_) => {
                    let pending = self.session.pending().len();
                    self.session.sent(pending);
                }
            }
        }
    }

    /// Watches for what is needed now, and for nothing that would wake us for nothing.
    fn rewatch(&mut self) {
        let writing = !self.session.pending().is_empty();
        if matches!(self.state, State::Live) && writing != self.writing {
            let interest = if writing { Interest::Write } else { Interest::Hangup };
            let _ = self.watch.change(self.to.as_fd(), TO, interest);
            self.writing = writing;
        }
        let Self { session, ends, watch, .. } = self;
        for (channel, ends) in ends {
            let may_send = session.may_send(*channel).is_some_and(|room| room > 0);
            if let Some(input) = &mut ends.input {
                input.watch(watch, may_send.then_some(Interest::Read));
            }
            for (output, stream) in ends.outputs.iter_mut().zip([OUTPUT, ERROR]) {
                let Some(output) = output else { continue };
                let waiting = !session.output(*channel, stream).is_empty();
                let idle = (!output.socket).then_some(Interest::Hangup);
                output.watch(watch, if waiting { Some(Interest::Write) } else { idle });
            }
        }
    }

    fn drop_ends(&mut self, channel: u32) {
        if let Some(mut ends) = self.ends.remove(&channel) {
            ends.drop_all(&self.watch);
        }
    }
}
