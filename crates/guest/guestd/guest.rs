//! Everything this program holds, and its loop.

use crate::call::{self, Errno, Fd, Pollfd};
use crate::carry::Foul;
use crate::channels::{Channel, Command, Gathering, Head, Tunnel, What};
use crate::descriptors::Descriptors;
use crate::frame::{Credit, Ended, How, MOST_CHANNELS, Report, Request, Stage};
use crate::launch::{Ground, Launched};
use crate::line::{Line, Next};
use crate::store::Store;
use crate::walk::Walk;
use crate::{Place, dial, file, filter, freeze, meters, wire};
use alloc::boxed::Box;
use alloc::vec::Vec;

const POLLIN: i16 = 1;
const POLLOUT: i16 = 4;
/// How long a loopback in user space may take to answer: everything else waits meanwhile.
const PATIENCE_MS: i32 = 25;

/// The program.
pub(crate) struct Guest {
    line: Line,
    machine: bool,
    signals: Fd,
    channels: Vec<Channel>,
    ground: Ground,
    filter: Option<Vec<u8>>,
    /// It was told that it will be frozen, and says nothing until it is spoken to.
    quiet: bool,
    entries: Vec<Pollfd>,
}

/// What a frame makes of the channels.
enum Step {
    Go,
    /// The host did what it may not.
    Foul,
}

// === impl Guest ===

impl Guest {
    pub(crate) fn begin(line: Line, place: Place, filter: Option<Vec<u8>>) -> Result<Self, Errno> {
        // Anywhere but in a PID namespace of its own, "kill all" would mean others' processes.
        if call::own_pid() != 1 {
            return Err(call::EPERM);
        }
        call::forbid_tracing()?;
        call::set_name(c"guestd");
        // A first program that a kernel of its own has started ignores nothing yet.
        if place == Place::Made {
            call::default_dispositions();
        }
        call::block_signals(u64::MAX)?;
        call::set_umask(0o022);
        let signals = call::child_signals()?;
        let (channels, entries) = (Vec::new(), Vec::new());
        // A kernel in user space takes a millisecond to look through a filter, so it does that once and not for
        // each command: they inherit it. A machine is furnished by calls that no command may make.
        let filter = match filter {
            Some(filter) if place == Place::Filtered => {
                filter::enforce(&filter)?;
                None
            }
            filter => filter,
        };
        let machine = place == Place::Machine;
        Ok(Self { line, machine, signals, channels, ground: Ground::new(true), filter, quiet: false, entries })
    }

    /// Waits for something to happen, and deals with it.
    pub(crate) fn turn(&mut self) {
        let room = !self.quiet && self.line.has_room();
        let mut entries = core::mem::take(&mut self.entries);
        entries.clear();
        let wish = |fd: &Fd, events| Pollfd { fd: fd.number(), events, found: 0 };
        entries.push(wish(&self.signals, POLLIN));
        let (hears, speaks) = (self.quiet || room, !self.quiet && self.line.has_news());
        entries.push(wish(self.line.from(), if hears { POLLIN } else { 0 }));
        entries.push(wish(self.line.to(), if speaks { POLLOUT } else { 0 }));
        self.channels.iter_mut().for_each(|channel| channel.waits(room, &mut entries));
        let busy = self.channels.iter().any(|channel| channel.is_busy(room));
        match call::poll_for(&mut entries, if busy { 0 } else { -1 }) {
            Ok(()) | Err(call::EINTR) => {}
            Err(_) => self.finish(),
        }
        let found = |place: usize| entries.get(place).is_some_and(|entry| entry.found != 0);
        let (ended, spoken) = (found(0), found(1));
        self.channels.iter_mut().for_each(|channel| channel.note(&entries));
        self.entries = entries;
        if ended {
            call::drain(&self.signals);
            self.reap();
        }
        if spoken {
            self.listen();
        }
        if self.quiet {
            return;
        }
        let line = &mut self.line;
        self.channels.retain_mut(|channel| channel.advance(line));
        if !self.line.write() {
            self.finish();
        }
    }

    /// Writes out what is buffered, answers, and is quiet from then on: no frame is cut by the freeze.
    fn prepare(&mut self, channel: u32) -> Step {
        let step = self.settle(channel, freeze::prepare());
        while self.line.has_news() {
            let mut entries = [Pollfd { fd: self.line.to().number(), events: POLLOUT, found: 0 }];
            let waited = call::poll_for(&mut entries, -1);
            if waited.is_err_and(|errno| errno != call::EINTR) || !self.line.write() {
                self.finish();
            }
        }
        self.quiet = true;
        step
    }

    /// Takes what the host says.
    fn listen(&mut self) {
        if !self.line.read() {
            self.finish();
        }
        loop {
            // The frame is of the line's buffer, which nothing below touches: it only adds to what is said.
            let step = match self.line.next() {
                Next::None => return,
                Next::Garbage => Step::Foul,
                Next::Frame(request) => {
                    let request = detach(request);
                    self.obey(&request)
                }
            };
            if matches!(step, Step::Foul) {
                self.finish();
            }
        }
    }

    fn obey(&mut self, request: &Request<'_>) -> Step {
        self.quiet = false;
        match *request {
            Request::Hello { nonce } => {
                self.channels.clear();
                self.line.forget();
                self.line.say(&Report::Hello { nonce });
                Step::Go
            }
            Request::KillAll => {
                let _ = call::kill_all();
                Step::Go
            }
            Request::Exec { channel, exec } => {
                let gathering = Gathering { head: Head::of(&exec), block: Vec::new() };
                self.open(channel, What::Gathering(Box::new(gathering)))
            }
            Request::Block { channel, bytes } => self.gather(channel, bytes),
            Request::Dial { channel, port } => match dial::loopback(port, PATIENCE_MS).and_then(|to| Tunnel::new(channel, to)) {
                Ok(tunnel) => {
                    self.line.say(&Report::Dialled { channel });
                    self.open(channel, What::Tunnel(Box::new(tunnel)))
                }
                Err(errno) => self.fail(channel, errno),
            },
            Request::Put { channel, owner, path } => match Store::begin(path, owner) {
                Ok(store) => self.open(channel, What::Store(Box::new(store))),
                Err(errno) => self.fail(channel, errno),
            },
            Request::Get { channel, tree, path } => match Walk::begin(path, tree) {
                Ok(walk) => self.open(channel, What::Walk(Box::new(walk))),
                Err(errno) => self.fail(channel, errno),
            },
            Request::Prepare { channel } => self.prepare(channel),
            Request::Thaw { channel, unix_ns, seed } => self.settle(channel, freeze::thaw(unix_ns, seed)),
            Request::Meters { channel } => {
                self.line.say(&Report::Metered { channel, meters: meters::read() });
                Step::Go
            }
            Request::Release { channel } => {
                let before = self.channels.len();
                self.channels.retain(|open| open.number != channel);
                if self.channels.len() < before {
                    self.line.say(&Report::Done { channel });
                }
                Step::Go
            }
            Request::Data { channel, bytes } => self.with(channel, |open, _| open.accept(bytes)),
            Request::End { channel } => self.with(channel, |open, _| open.end()),
            Request::Credit(Credit { channel, stream, bytes }) => {
                self.with(channel, |open, _| open.allow(stream, bytes))
            }
            Request::Close { channel, stream } => self.with(channel, |open, line| {
                open.close(stream, line);
                Ok(())
            }),
            Request::Signal { channel, signal } => self.with(channel, |open, _| {
                if let Some(group) = open.group() {
                    let _ = call::kill_group(group, signal);
                }
                Ok(())
            }),
            Request::Resize { channel, size } => self.with(channel, |open, _| {
                open.resize(size);
                Ok(())
            }),
        }
    }

    /// Does something with a channel. One that is not there was closed while the host spoke.
    fn with(&mut self, number: u32, act: impl FnOnce(&mut Channel, &mut Line) -> Result<(), Foul>) -> Step {
        let Self { channels, line, .. } = self;
        match channels.iter_mut().find(|open| open.number == number).map(|open| act(open, line)) {
            None | Some(Ok(())) => Step::Go,
            Some(Err(Foul)) => Step::Foul,
        }
    }

    fn open(&mut self, number: u32, what: What) -> Step {
        if self.channels.len() >= MOST_CHANNELS || self.channels.iter().any(|open| open.number == number) {
            return Step::Foul;
        }
        self.channels.push(Channel { number, what });
        Step::Go
    }

    fn fail(&mut self, channel: u32, errno: Errno) -> Step {
        self.line.say(&Report::Failed { channel, errno: errno.0 });
        Step::Go
    }

    fn settle(&mut self, channel: u32, result: Result<(), Errno>) -> Step {
        match result {
            Ok(()) => {
                self.line.say(&Report::Done { channel });
                Step::Go
            }
            Err(errno) => self.fail(channel, errno),
        }
    }

    /// Adds to a command's strings, and starts it once they are whole.
    fn gather(&mut self, number: u32, bytes: &[u8]) -> Step {
        let Some(place) = self.channels.iter().position(|open| open.number == number) else {
            return Step::Foul;
        };
        let Some(Channel { what: What::Gathering(gathering), .. }) = self.channels.get_mut(place) else {
            return Step::Foul;
        };
        gathering.block.extend_from_slice(bytes);
        if gathering.block.len() < gathering.head.length {
            return Step::Go;
        }
        let Channel { what: What::Gathering(gathering), .. } = self.channels.swap_remove(place) else {
            return Step::Foul;
        };
        if gathering.block.len() > gathering.head.length {
            return Step::Foul;
        }
        match self.start(number, &gathering) {
            Ok(command) => {
                self.line.say(&Report::Started { channel: number, pid: command.pid });
                self.channels.push(Channel { number, what: What::Command(Box::new(command)) });
            }
            Err((stage, errno)) => {
                self.line.say(&Report::NotStarted { channel: number, stage, errno: errno.0 });
            }
        }
        Step::Go
    }

    fn start(&mut self, number: u32, gathering: &Gathering) -> Result<Command, (Stage, Errno)> {
        let Gathering { head, block } = gathering;
        let spawn = |errno| (Stage::Spawn, errno);
        let (theirs, ours) = pipes(head.terminal.is_none()).map_err(spawn)?;
        let exec = wire::Exec {
            exec: number,
            terminal: head.terminal.map(|size| wire::Size { rows: size.rows, columns: size.columns }),
            once: head.once,
            argc: head.argc,
            envc: head.envc,
            block: wire::Block::Inline(block),
        };
        // What runs as nobody else in a machine is the host's own, which furnishes it.
        let filter = self.filter.as_deref().filter(|_| !self.machine || head.person.is_somebody());
        let person = head.person.under(filter);
        let launched = self.ground.launch(&exec, theirs, &person);
        let Launched { pid, terminal } = launched.map_err(|(stage, errno)| (translated(stage), errno))?;
        match (terminal, ours) {
            (Some(terminal), _) => {
                Command::on_terminal(number, (pid, head.once), terminal).map_err(|errno| (Stage::Terminal, errno))
            }
            (None, Some(ends)) => Ok(Command::on_pipes(number, (pid, head.once), ends)),
            (None, None) => Err((Stage::Terminal, file::EIO)),
        }
    }

    /// Reaps whatever has ended, and reports what the host knows of. Says whether anybody is left.
    fn reap(&mut self) -> bool {
        loop {
            let reaped = match call::reap(None, call::Wait::Look) {
                Ok(Some(reaped)) => reaped,
                Ok(None) => return true,
                Err(error) => return error != call::ECHILD,
            };
            if self.is_once(reaped.pid) {
                self.close(&reaped);
                return false;
            }
            self.bury(&reaped, 0);
        }
    }

    /// Ends what outlived the command that was the guest's purpose.
    fn close(&mut self, purpose: &call::Reaped) {
        let mut leftovers = 0_u32;
        // What has already ended by itself outlived nothing.
        let mut anybody = loop {
            match call::reap(None, call::Wait::Look) {
                Ok(Some(reaped)) => drop(self.bury(&reaped, 0)),
                Ok(None) => break true,
                Err(error) => break error != call::ECHILD,
            }
        };
        while anybody {
            let _ = call::kill_all();
            match call::reap(None, call::Wait::Block) {
                Ok(Some(reaped)) => {
                    // One that ended otherwise was on its way out when the signal came.
                    if !self.bury(&reaped, 0) && how(reaped.status) == How::Signalled(call::SIGKILL) {
                        leftovers = leftovers.saturating_add(1);
                    }
                }
                Ok(None) | Err(call::EINTR) => {}
                Err(_) => anybody = false,
            }
        }
        self.bury(purpose, leftovers);
    }

    /// Reports the end of a process, if the host knows of it.
    fn bury(&mut self, reaped: &call::Reaped, leftovers: u32) -> bool {
        let ended = Ended { how: how(reaped.status), leftovers, cpu_ms: call::children_cpu_ms() };
        let Self { channels, line, .. } = self;
        let open = channels.iter_mut().find(|open| open.group() == Some(reaped.pid));
        let Some(Channel { number, what: What::Command(command) }) = open else { return false };
        command.end(*number, ended, line);
        true
    }

    fn is_once(&self, pid: u32) -> bool {
        let once = |open: &Channel| matches!(&open.what, What::Command(command) if command.once);
        self.channels.iter().any(|open| open.group() == Some(pid) && once(open))
    }

    /// Ends the guest because nobody is there to hear of it.
    fn finish(&self) -> ! {
        let _ = call::kill_all();
        crate::leave(self.machine, 0)
    }
}

/// The same request, with a life of its own: what it borrows is in the buffer that frames are read into, and
/// that buffer is left alone until the next read.
fn detach<'a>(request: Request<'_>) -> Request<'a> {
    // SAFETY: both types differ in a lifetime alone. `Line::next` lends from its inbox, which only
    // `Line::read` changes, and `listen` calls that before it takes the first frame and not again.
    unsafe { core::mem::transmute::<Request<'_>, Request<'a>>(request) }
}

/// The pipes of a command: its ends, and ours. None where it gets a terminal.
fn pipes(wanted: bool) -> Result<(Descriptors, Option<[Fd; 3]>), Errno> {
    if !wanted {
        return Ok((Descriptors::new([const { None }; wire::DESCRIPTORS]), None));
    }
    let ((stdin, feed), (out, stdout), (err, stderr)) = (file::pipe()?, file::pipe()?, file::pipe()?);
    for ours in [&feed, &out, &err] {
        file::set_fresh_nonblocking(ours)?;
    }
    Ok((Descriptors::new([Some(stdin), Some(stdout), Some(stderr), None]), Some([feed, out, err])))
}

/// Unpacks the kernel's wait status of a process that has ended.
const fn how(status: u32) -> How {
    let [low, code, ..] = status.to_le_bytes();
    match low & 0x7f {
        0 => How::Exited(code),
        signal => How::Signalled(signal),
    }
}

const fn translated(stage: wire::Stage) -> Stage {
    match stage {
        wire::Stage::FindCommand => Stage::FindCommand,
        wire::Stage::Execute => Stage::Execute,
        wire::Stage::WorkingDirectory => Stage::WorkingDirectory,
        wire::Stage::Spawn => Stage::Spawn,
        wire::Stage::Terminal => Stage::Terminal,
    }
}
