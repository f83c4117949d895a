//! The keeper's end of the socket to `init`.
//!
//! It turns exec requests into packets and packets into events. What comes from `init` is judged like
//! anything from a guest: whatever is not a report that fits is [`Event::Gone`], once and for ever.
//!
//! **Invariant:** nothing here waits for the guest longer than [`PATIENCE`]; reading never waits.

#[path = "../init/wire.rs"]
pub mod wire;

use fumehood_backend::{Event, ExecError, GuestStdio, MOST_CALLS, WaitStatus};
use fumehood_model::exec::ExecRequest;
use fumehood_sys::memfd::{self, Purpose};
use fumehood_sys::socket::{self, Wait};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{Duration, Instant};
use wire::{Block, End, Exec, HEADER_BYTES, INLINE_BYTES, REPORT_BYTES, Report, Request, Size, Stage};

/// How long `init` may leave its socket unread. It only ever does so while it starts another command.
const PATIENCE: Duration = Duration::from_secs(10);

/// The keeper's end.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
    /// Taken off the socket to make room for a request, and not yet asked for.
    waiting: VecDeque<(u32, Event)>,
    next_exec: u32,
    /// The number inside of each command that runs.
    pids: BTreeMap<u32, u32>,
    /// Those that are not answered.
    calls: BTreeSet<u32>,
    next_call: u32,
    state: State,
}

/// Whether `init` is still to be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Live,
    /// It is gone, and that is still to be said.
    Leaving,
    Gone,
}

/// The strings of an exec, in one piece.
struct Strings {
    argc: u32,
    envc: u32,
    block: Vec<u8>,
}

// === impl Control ===

impl Control {
    /// A new socket: the keeper's end, and the one that becomes descriptor 3 of `init`.
    ///
    /// # Errors
    /// Out of descriptors or memory.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socket::pair()?;
        let (waiting, calls) = (VecDeque::new(), BTreeSet::new());
        let control = Self {
            socket: ours,
            waiting,
            next_exec: 1,
            pids: BTreeMap::new(),
            calls,
            next_call: 1,
            state: State::Live,
        };
        Ok((control, theirs))
    }

    /// Asks for one command, and gives the number that its events will bear. With `once`, its end is the
    /// end of the guest. The request's terminal size counts when `stdio` is a terminal.
    ///
    /// # Errors
    /// Only what is known before the guest answers; the rest arrives as [`Event::NotStarted`].
    pub fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio, once: bool) -> Result<u32, ExecError> {
        let Strings { argc, envc, block } = Strings::gather(request)?;
        let exec = self.next_exec;
        let (terminal, streams) = match stdio {
            GuestStdio::Pipes { stdin, stdout, stderr } => (None, vec![stdin, stdout, stderr]),
            GuestStdio::Terminal => {
                let size = request.terminal.map_or((0, 0), |size| (size.rows, size.columns));
                (Some(Size { rows: size.0, columns: size.1 }), Vec::new())
            }
        };
        let mut descriptors: Vec<BorrowedFd<'_>> = streams.iter().map(AsFd::as_fd).collect();
        let whole = |block| Request::Exec(Exec { exec, terminal, once, argc, envc, block });
        if block.len() <= INLINE_BYTES {
            let mut packet = Vec::with_capacity(HEADER_BYTES + block.len());
            packet.extend_from_slice(&whole(Block::Inline(&block)).header());
            packet.extend_from_slice(&block);
            self.send(&packet, &descriptors)?;
        } else {
            let length = u32::try_from(block.len()).map_err(|_| too_large())?;
            let file = memfd::sealed(c"fumehood-exec", &block, Purpose::Read);
            let file = file.map_err(|_| ExecError::Exhausted)?;
            descriptors.insert(0, file.as_fd());
            self.send(&whole(Block::Attached { length }).header(), &descriptors)?;
        }
        self.next_exec = self.next_exec.wrapping_add(1);
        Ok(exec)
    }

    /// Sends a signal to the process group of a command. Nothing happens if it has ended.
    ///
    /// # Errors
    /// [`ExecError::Silent`] when `init` does not listen, or there is no such signal.
    pub fn signal(&mut self, exec: u32, signal: i32) -> Result<(), ExecError> {
        let signal = u8::try_from(signal).ok().filter(|signal| (1..=64).contains(signal));
        let signal = signal.ok_or(ExecError::Silent)?;
        self.send(&Request::Signal { exec, signal }.header(), &[])
    }

    /// Ends every process of the guest but `init`.
    ///
    /// # Errors
    /// [`ExecError::Silent`] when `init` does not listen.
    pub fn kill_all(&mut self) -> Result<(), ExecError> {
        self.send(&Request::KillAll.header(), &[])
    }

    /// Lets `init` end itself, and everything with it. What it has said before can still be read.
    pub fn hang_up(&mut self) {
        // One that is gone can not be told.
        let _ = socket::hang_up(self.socket.as_fd());
    }

    /// Asks for a connection to a port on the guest's loopback, and gives the number of the call.
    ///
    /// # Errors
    /// As [`fumehood_backend::Instance::dial`].
    pub fn dial(&mut self, port: u16) -> Result<u32, ExecError> {
        if port == 0 {
            return Err(ExecError::Silent);
        }
        if self.calls.len() >= MOST_CALLS {
            return Err(ExecError::Exhausted);
        }
        let call = self.next_call;
        self.send(&Request::Dial { call, port }.header(), &[])?;
        self.calls.insert(call);
        self.next_call = self.next_call.wrapping_add(1);
        Ok(call)
    }

    /// Readable when `init` has said something or is gone. Ask [`Control::next_event`] until it has no
    /// more before waiting on this: some may have been taken off the socket already.
    #[must_use]
    pub fn events(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The next event of any command, or `None` when there is none yet.
    pub fn next_event(&mut self) -> Option<Event> {
        self.next_numbered().map(|(_, event)| event)
    }

    /// The number inside of a command that was started and has not been seen to end.
    #[must_use]
    pub fn pid(&self, exec: u32) -> Option<u32> {
        self.pids.get(&exec).copied()
    }

    /// The next event, with the number of the command it is about (zero for none).
    pub fn next_numbered(&mut self) -> Option<(u32, Event)> {
        if self.waiting.is_empty() {
            self.read();
        }
        if let Some(numbered) = self.waiting.pop_front() {
            if let (exec, Event::Ended { .. }) = &numbered {
                self.pids.remove(exec);
            }
            return Some(numbered);
        }
        match self.state {
            State::Live | State::Gone => None,
            State::Leaving => {
                self.state = State::Gone;
                Some((0, Event::Gone))
            }
        }
    }

    /// Takes one report off the socket, if there is one.
    fn read(&mut self) {
        if self.state != State::Live {
            return;
        }
        let mut buffer = [0; REPORT_BYTES + 1];
        let packet = loop {
            match socket::receive(self.socket.as_fd(), &mut buffer) {
                Ok(packet) => break packet,
                // It left while a request of ours was unread. What it had said before is still there.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.state = State::Leaving,
            }
        };
        let report = buffer.get(..packet.length).and_then(Report::parse);
        let report = report.filter(|report| !packet.truncated && self.is_awaited(report));
        if let Some(Report::Started { exec, pid }) = report
            && exec < self.next_exec
        {
            self.pids.insert(exec, pid);
        }
        match report.and_then(|report| event(report, packet.descriptors)) {
            Some(numbered) => self.waiting.push_back(numbered),
            None => self.state = State::Leaving,
        }
    }

    /// Whether a report may come now: a call is answered once.
    fn is_awaited(&mut self, report: &Report) -> bool {
        match report {
            Report::Dialled { call } | Report::NotDialled { call, .. } => self.calls.remove(call),
            Report::Started { .. }
            | Report::NotStarted { .. }
            | Report::Ended { .. }
            | Report::Terminal { .. } => true,
        }
    }

    /// Sends one request, reading reports meanwhile if `init` has to say something first.
    fn send(&mut self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), ExecError> {
        let deadline = Instant::now() + PATIENCE;
        while self.state == State::Live {
            match socket::send(self.socket.as_fd(), packet, descriptors) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(ExecError::Silent),
            }
            self.read();
            let left = deadline.saturating_duration_since(Instant::now());
            if !socket::wait(self.socket.as_fd(), Wait::PacketOrRoom, left).unwrap_or(false) {
                return Err(ExecError::Silent);
            }
        }
        Err(ExecError::Silent)
    }
}

// === impl Strings ===

impl Strings {
    fn gather(request: &ExecRequest) -> Result<Self, ExecError> {
        if request.argv.first().is_none_or(|command| command.is_empty()) {
            return Err(ExecError::NotFound);
        }
        let mut block = Vec::new();
        put(&mut block, &[request.cwd.as_os_str()])?;
        for argument in &request.argv {
            put(&mut block, &[argument])?;
        }
        for (name, value) in &request.env {
            put(&mut block, &[name, OsStr::new("="), value])?;
        }
        let count = |length| u32::try_from(length).map_err(|_| too_large());
        Ok(Self { argc: count(request.argv.len())?, envc: count(request.env.len())?, block })
    }
}

/// Appends one string and its end mark.
fn put(block: &mut Vec<u8>, parts: &[&OsStr]) -> Result<(), ExecError> {
    for part in parts {
        let bytes = part.as_bytes();
        if bytes.contains(&0) {
            return Err(ExecError::NotExecutable(io::ErrorKind::InvalidInput));
        }
        if block.len() + bytes.len() >= wire::BLOCK_BYTES {
            return Err(too_large());
        }
        block.extend_from_slice(bytes);
    }
    block.push(0);
    Ok(())
}

const fn too_large() -> ExecError {
    ExecError::TooLarge { limit_bytes: wire::BLOCK_BYTES }
}

/// The event of a report, or `None` if its descriptors are not what it says.
fn event(report: Report, descriptors: Vec<OwnedFd>) -> Option<(u32, Event)> {
    if descriptors.len() != report.descriptors() {
        return None;
    }
    match report {
        Report::Started { exec, pid: _ } => Some((exec, Event::Started)),
        Report::NotStarted { exec, stage, errno } => {
            Some((exec, Event::NotStarted(not_started(stage, errno))))
        }
        Report::Ended { exec, how, leftovers, cpu_ms } => {
            let status = match how {
                End::Exited(code) => WaitStatus::Exited(code),
                End::Signalled(signal) => WaitStatus::Signalled(signal),
            };
            Some((exec, Event::Ended { status, leftovers, cpu_ms }))
        }
        Report::Terminal { exec } => {
            let terminal = descriptors.into_iter().next().and_then(terminal_master)?;
            Some((exec, Event::Terminal(terminal)))
        }
        Report::Dialled { call } => {
            let result = socket::connection(descriptors.into_iter().next()?);
            if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::InvalidData) {
                return None;
            }
            Some((0, Event::Dialled { call, result }))
        }
        Report::NotDialled { call, errno } => Some((0, Event::Dialled { call, result: Err(error(errno)) })),
    }
}

/// An error that `init` was given by the kernel.
fn error(errno: u32) -> io::Error {
    i32::try_from(errno).map_or_else(|_| io::ErrorKind::Other.into(), io::Error::from_raw_os_error)
}

/// The descriptor again, if it is the keeper's side of a terminal and nothing else: the keeper will read
/// it, write to it and set its size, which must not reach any other kind of file.
fn terminal_master(descriptor: OwnedFd) -> Option<OwnedFd> {
    let file = File::from(descriptor);
    let metadata = file.metadata().ok()?;
    let device = metadata.rdev();
    let major = (device >> 8) & 0xfff | (device >> 32) & !0xfff;
    let minor = device & 0xff | (device >> 12) & !0xff;
    let master = matches!((major, minor), (5, 2) | (128..=135, _));
    (metadata.file_type().is_char_device() && master).then(|| file.into())
}

fn not_started(stage: Stage, errno: u32) -> ExecError {
    let error = error(errno);
    let scarce = matches!(
        error.kind(),
        io::ErrorKind::OutOfMemory
            | io::ErrorKind::WouldBlock
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::StorageFull
    );
    match stage {
        Stage::FindCommand => ExecError::NotFound,
        Stage::WorkingDirectory => ExecError::WorkingDirectory(error.kind()),
        Stage::Execute if error.kind() == io::ErrorKind::ArgumentListTooLong => too_large(),
        Stage::Execute | Stage::Spawn | Stage::Terminal if scarce => ExecError::Exhausted,
        Stage::Execute => ExecError::NotExecutable(error.kind()),
        // Neither is the command's fault, nor can the caller mend it.
        Stage::Spawn | Stage::Terminal => ExecError::Silent,
    }
}
