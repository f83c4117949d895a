//! Streams between frames and descriptors.

use crate::call::{self, Errno, Fd, Pollfd};
use crate::file;
use crate::frame::{Credit, ERROR, INPUT, OUTPUT, PAYLOAD_BYTES, Report, WINDOW_BYTES};
use crate::line::Line;
use alloc::vec::Vec;

const POLLIN: i16 = 1;
const HALF_WINDOW: usize = (WINDOW_BYTES / 2) as usize;

/// What a stream is carried to or from, which decides how its end is told.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Pipe,
    Terminal,
    Socket,
}

/// From the host into a descriptor.
pub(crate) struct Inward {
    channel: u32,
    kind: Kind,
    to: Option<Fd>,
    queue: Vec<u8>,
    gone: usize,
    /// The host has no more.
    ended: bool,
    /// Taken, and not yet said.
    unsaid: u32,
    /// Bytes that the host may still send.
    window: u32,
    /// Its command has ended: nothing more is said of it.
    quiet: bool,
}

/// From a descriptor to the host.
pub(crate) struct Outward {
    channel: u32,
    stream: u8,
    from: Option<Fd>,
    credit: u32,
    /// Where the last wait has it.
    place: Option<usize>,
    /// That wait has found something: a look for nothing is not made, for each costs a turn of the kernel's.
    ready: bool,
    /// Its command has ended: all that is there is to be passed on before that is said.
    settling: bool,
}

/// The host did what it may not.
pub(crate) struct Foul;

// === impl Inward ===

impl Inward {
    pub(crate) const fn new(channel: u32, kind: Kind, to: Option<Fd>) -> Self {
        Self {
            channel,
            kind,
            to,
            queue: Vec::new(),
            gone: 0,
            ended: false,
            unsaid: 0,
            window: WINDOW_BYTES,
            quiet: false,
        }
    }

    /// Takes bytes of the host's.
    pub(crate) fn accept(&mut self, bytes: &[u8]) -> Result<(), Foul> {
        let count = bytes.len() as u32;
        if self.ended || count > self.window {
            return Err(Foul);
        }
        self.window -= count;
        if self.to.is_some() {
            self.queue.extend_from_slice(bytes);
        }
        Ok(())
    }

    pub(crate) fn end(&mut self) -> Result<(), Foul> {
        if self.ended {
            return Err(Foul);
        }
        self.ended = true;
        Ok(())
    }

    /// What to wait on for room.
    pub(crate) fn waits(&self) -> Option<&Fd> {
        self.to.as_ref().filter(|_| self.gone < self.queue.len())
    }

    /// Whether nothing more will be passed on.
    pub(crate) const fn is_over(&self) -> bool {
        self.to.is_none()
    }

    /// Writes what is taken now, and tells the host of it.
    pub(crate) fn push(&mut self, line: &mut Line) {
        if self.quiet {
            return;
        }
        while let Some(to) = &self.to
            && self.gone < self.queue.len()
        {
            match file::write(to, self.queue.get(self.gone..).unwrap_or_default()) {
                Ok(count) => {
                    self.gone += count;
                    self.unsaid += count as u32;
                }
                Err(call::EAGAIN) => break,
                Err(call::EINTR) => {}
                Err(_) => return self.give_up(line),
            }
        }
        if self.gone >= self.queue.len() {
            self.queue.clear();
            self.gone = 0;
            if self.ended {
                self.finish();
            }
        } else if self.gone > HALF_WINDOW {
            self.queue.drain(..self.gone);
            self.gone = 0;
        }
        if self.unsaid >= WINDOW_BYTES / 2 || (self.unsaid > 0 && self.queue.is_empty() && !self.ended) {
            self.window += self.unsaid;
            line.say(&Report::Credit(Credit { channel: self.channel, stream: INPUT, bytes: self.unsaid }));
            self.unsaid = 0;
        }
    }

    /// Everything was passed on.
    fn finish(&mut self) {
        match self.kind {
            // A terminal goes on; only its program can end it.
            Kind::Terminal => {}
            Kind::Pipe => self.to = None,
            Kind::Socket => {
                if let Some(to) = self.to.take() {
                    file::shut_down(&to);
                }
            }
        }
    }

    /// Nobody reads.
    pub(crate) fn give_up(&mut self, line: &mut Line) {
        if self.to.take().is_some() && !self.ended {
            line.say(&Report::Close { channel: self.channel });
        }
        self.queue = Vec::new();
        self.gone = 0;
    }

    /// Lets go without a word.
    pub(crate) fn drop_quietly(&mut self) {
        self.quiet = true;
        self.to = None;
        self.queue = Vec::new();
        self.gone = 0;
    }
}

// === impl Outward ===

impl Outward {
    pub(crate) const fn new(channel: u32, stream: u8, from: Option<Fd>) -> Self {
        Self { channel, stream, from, credit: WINDOW_BYTES, place: None, ready: false, settling: false }
    }

    pub(crate) fn allow(&mut self, bytes: u32) -> Result<(), Foul> {
        self.credit = self.credit.checked_add(bytes).filter(|sum| *sum <= WINDOW_BYTES).ok_or(Foul)?;
        Ok(())
    }

    /// Adds what to wait on for bytes, if they could be passed on.
    pub(crate) fn waits(&mut self, room: bool, entries: &mut Vec<Pollfd>) {
        self.place = self.from.as_ref().filter(|_| room && self.credit > 0).map(|from| {
            entries.push(Pollfd { fd: from.number(), events: POLLIN, found: 0 });
            entries.len() - 1
        });
    }

    /// Takes what the wait has found.
    pub(crate) fn note(&mut self, entries: &[Pollfd]) {
        let found = self.place.and_then(|place| entries.get(place)).is_some_and(|entry| entry.found != 0);
        self.ready = found || self.settling;
    }

    /// What is there from now on is nobody's that is waited for.
    pub(crate) fn settle(&mut self) {
        (self.settling, self.ready) = (true, true);
    }

    /// Whether all was passed on that was there when its command ended.
    pub(crate) const fn is_settled(&self) -> bool {
        !self.settling || self.from.is_none()
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.from.is_none()
    }

    /// Passes on what is there, as far as there is credit and room. `last`: nobody writes any more, so that
    /// nothing there is the end.
    pub(crate) fn pull(&mut self, line: &mut Line, last: bool) -> Result<(), Errno> {
        while let Some(from) = &self.from
            && (self.ready || last)
            && self.credit > 0
            && line.has_room()
        {
            let most = PAYLOAD_BYTES.min(self.credit as usize);
            match line.say_data((self.channel, self.stream), most, |room| file::read(from, room)) {
                Ok(0) => self.close(line),
                Ok(count) => {
                    self.credit -= count as u32;
                    // No more is there; the next wait tells of what comes.
                    self.ready &= count == most;
                    self.settling &= count == most;
                }
                Err(call::EAGAIN) if last => self.close(line),
                Err(call::EAGAIN) => {
                    self.settling = false;
                    break;
                }
                Err(call::EINTR) => {}
                // The other side of a terminal that is gone.
                Err(file::EIO) => self.close(line),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Ends it, and says so.
    pub(crate) fn close(&mut self, line: &mut Line) {
        if self.from.take().is_some() {
            line.say(&Report::End { channel: self.channel, stream: self.stream });
        }
    }
}

const _: () = assert!(INPUT == 0 && OUTPUT == 1 && ERROR == 2);
