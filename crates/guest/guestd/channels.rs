//! What is open: commands, connections, trees on their way.

use crate::call::{self, Errno, Fd, Pollfd};
use crate::carry::{Foul, Inward, Kind, Outward};
use crate::file;
use crate::frame::{ERROR, Ended, Exec, OUTPUT, Report, Size};
use crate::line::Line;
use crate::store::Store;
use crate::walk::Walk;
use alloc::boxed::Box;
use alloc::vec::Vec;

const POLLOUT: i16 = 4;

/// One channel.
pub(crate) struct Channel {
    pub(crate) number: u32,
    pub(crate) what: What,
}

/// What it is.
pub(crate) enum What {
    Gathering(Box<Gathering>),
    Command(Box<Command>),
    Tunnel(Box<Tunnel>),
    Store(Box<Store>),
    Walk(Box<Walk>),
}

/// A command whose strings are still coming.
pub(crate) struct Gathering {
    pub(crate) head: Head,
    pub(crate) block: Vec<u8>,
}

/// What was asked for, without the strings.
pub(crate) struct Head {
    pub(crate) terminal: Option<Size>,
    pub(crate) once: bool,
    pub(crate) argc: u32,
    pub(crate) envc: u32,
    pub(crate) length: usize,
    pub(crate) person: crate::person::Wish,
}

/// A command that runs, or has ended and is still heard.
pub(crate) struct Command {
    pub(crate) pid: u32,
    pub(crate) once: bool,
    ended: bool,
    /// How it ended, until what it wrote has been passed on.
    unsaid: Option<Ended>,
    input: Inward,
    outputs: Vec<Outward>,
    /// The keeper's side of its terminal.
    terminal: Option<Fd>,
}

/// A connection to a server of the guest's.
pub(crate) struct Tunnel {
    input: Inward,
    output: Outward,
}

// === impl Channel ===

impl Channel {
    /// What it waits for. `room`: whether what comes out could be passed on.
    pub(crate) fn waits(&mut self, room: bool, entries: &mut Vec<Pollfd>) {
        let (input, outputs) = match &mut self.what {
            What::Command(command) => (&command.input, command.outputs.as_mut_slice()),
            What::Tunnel(tunnel) => (&tunnel.input, core::slice::from_mut(&mut tunnel.output)),
            What::Gathering(_) | What::Store(_) | What::Walk(_) => return,
        };
        if let Some(fd) = input.waits() {
            entries.push(Pollfd { fd: fd.number(), events: POLLOUT, found: 0 });
        }
        outputs.iter_mut().for_each(|output| output.waits(room, entries));
    }

    /// Takes what the wait has found.
    pub(crate) fn note(&mut self, entries: &[Pollfd]) {
        match &mut self.what {
            What::Command(command) => command.outputs.iter_mut().for_each(|output| output.note(entries)),
            What::Tunnel(tunnel) => tunnel.output.note(entries),
            What::Gathering(_) | What::Store(_) | What::Walk(_) => {}
        }
    }

    /// Whether it could do something without waiting.
    pub(crate) fn is_busy(&self, room: bool) -> bool {
        match &self.what {
            What::Walk(walk) => room && walk.may_go_on(),
            What::Gathering(_) | What::Command(_) | What::Tunnel(_) | What::Store(_) => false,
        }
    }

    /// Does what can be done now. `false`: the channel is closed.
    pub(crate) fn advance(&mut self, line: &mut Line) -> bool {
        match &mut self.what {
            What::Gathering(_) => true,
            What::Command(command) => command.advance(self.number, line),
            What::Tunnel(tunnel) => tunnel.advance(self.number, line),
            What::Store(store) => store.advance(self.number, line),
            What::Walk(walk) => walk.advance(self.number, line),
        }
    }

    pub(crate) fn accept(&mut self, bytes: &[u8]) -> Result<(), Foul> {
        match &mut self.what {
            What::Command(command) => command.input.accept(bytes),
            What::Tunnel(tunnel) => tunnel.input.accept(bytes),
            What::Store(store) => store.accept(bytes),
            What::Gathering(_) | What::Walk(_) => Err(Foul),
        }
    }

    pub(crate) fn end(&mut self) -> Result<(), Foul> {
        match &mut self.what {
            What::Command(command) => command.input.end(),
            What::Tunnel(tunnel) => tunnel.input.end(),
            What::Store(store) => store.end(),
            What::Gathering(_) | What::Walk(_) => Err(Foul),
        }
    }

    pub(crate) fn allow(&mut self, stream: u8, bytes: u32) -> Result<(), Foul> {
        match &mut self.what {
            What::Command(command) => {
                let place = usize::from(stream).wrapping_sub(1);
                command.outputs.get_mut(place).map_or(Err(Foul), |output| output.allow(bytes))
            }
            What::Tunnel(tunnel) if stream == OUTPUT => tunnel.output.allow(bytes),
            What::Walk(walk) if stream == OUTPUT => walk.allow(bytes),
            What::Gathering(_) | What::Store(_) | What::Tunnel(_) | What::Walk(_) => Err(Foul),
        }
    }

    /// The host reads that stream no more.
    pub(crate) fn close(&mut self, stream: u8, line: &mut Line) {
        if let What::Command(command) = &mut self.what
            && let Some(output) = command.outputs.get_mut(usize::from(stream).wrapping_sub(1))
        {
            output.close(line);
        }
    }

    pub(crate) fn resize(&self, size: Size) {
        if let What::Command(command) = &self.what
            && let Some(terminal) = &command.terminal
        {
            let _ = call::resize_terminal(terminal, size.rows, size.columns);
        }
    }

    /// The process group of its command, while it runs.
    pub(crate) fn group(&self) -> Option<u32> {
        match &self.what {
            What::Command(command) if !command.ended => Some(command.pid),
            _ => None,
        }
    }
}

// === impl Head ===

impl Head {
    pub(crate) fn of(exec: &Exec<'_>) -> Self {
        Self {
            terminal: exec.terminal,
            once: exec.once,
            argc: exec.argc,
            envc: exec.envc,
            length: exec.length as usize,
            person: crate::person::Wish::of(exec),
        }
    }
}

// === impl Command ===

impl Command {
    /// A command on three pipes: our ends of its input, output and errors.
    pub(crate) fn on_pipes(number: u32, (pid, once): (u32, bool), ends: [Fd; 3]) -> Self {
        let [input, output, error] = ends;
        Self {
            pid,
            once,
            ended: false,
            unsaid: None,
            input: Inward::new(number, Kind::Pipe, Some(input)),
            outputs: [Outward::new(number, OUTPUT, Some(output)), Outward::new(number, ERROR, Some(error))].into(),
            terminal: None,
        }
    }

    /// A command on a terminal, of which this is our side.
    pub(crate) fn on_terminal(number: u32, (pid, once): (u32, bool), terminal: Fd) -> Result<Self, Errno> {
        file::set_nonblocking(&terminal)?;
        let (write, read) = (file::above(terminal.number())?, file::above(terminal.number())?);
        Ok(Self {
            pid,
            once,
            ended: false,
            unsaid: None,
            input: Inward::new(number, Kind::Terminal, Some(write)),
            outputs: [Outward::new(number, OUTPUT, Some(read))].into(),
            terminal: Some(terminal),
        })
    }

    /// It has ended; what it wrote may still be in its pipes.
    pub(crate) fn end(&mut self, number: u32, ended: Ended, line: &mut Line) {
        self.ended = true;
        self.input.drop_quietly();
        if self.once {
            // Nobody writes any more, and it is known at once that it is over.
            line.say(&Report::Ended { channel: number, ended });
        } else {
            // What runs on in the background may keep its streams, which then do not end.
            self.unsaid = Some(ended);
            self.outputs.iter_mut().for_each(Outward::settle);
        }
    }

    fn advance(&mut self, number: u32, line: &mut Line) -> bool {
        self.input.push(line);
        // Whoever else has a terminal open was ended with the command, or does not count; its pipes end with
        // their last writer.
        let last = self.ended && self.terminal.is_some();
        for output in &mut self.outputs {
            if output.pull(line, last).is_err() {
                output.close(line);
            }
        }
        if self.outputs.iter().all(Outward::is_settled)
            && let Some(ended) = self.unsaid.take()
        {
            line.say(&Report::Ended { channel: number, ended });
        }
        !(self.ended && self.unsaid.is_none() && self.outputs.iter().all(Outward::is_over))
    }
}

// === impl Tunnel ===

impl Tunnel {
    pub(crate) fn new(number: u32, socket: Fd) -> Result<Self, Errno> {
        let write = file::above(socket.number())?;
        Ok(Self {
            input: Inward::new(number, Kind::Socket, Some(write)),
            output: Outward::new(number, OUTPUT, Some(socket)),
        })
    }

    fn advance(&mut self, number: u32, line: &mut Line) -> bool {
        self.input.push(line);
        if let Err(errno) = self.output.pull(line, false) {
            line.say(&Report::Failed { channel: number, errno: errno.0 });
            return false;
        }
        let over = self.input.is_over() && self.output.is_over();
        if over {
            line.say(&Report::Done { channel: number });
        }
        !over
    }
}
