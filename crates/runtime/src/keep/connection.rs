//! One caller: frames in, frames out, never waited for.

use super::command::Command;
use super::ring::{CHUNK_BYTES, Ring};
use fumehood_keep::frame::{Flaw, HEADER_BYTES, Header, Kind, MOST_BYTES};
use fumehood_keep::wire::{Failure, Said};
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Instant;

/// Read at once; a caller that sends more is read again.
const READ_BYTES: usize = 64 << 10;
/// Frames of output that are sent to one caller before the others have their turn.
const FRAMES_AT_ONCE: u32 = 8;

/// One caller.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
    pub(crate) role: Role,
    pub(crate) born: Instant,
    /// Read, and not yet a whole frame.
    pub(crate) inward: Vec<u8>,
    /// To be sent before anything else.
    outward: Vec<u8>,
    sent: usize,
    /// The caller says no more.
    pub(crate) deaf: bool,
    /// It is closed once everything is sent.
    pub(crate) closing: bool,
}

/// What it came for.
#[derive(Debug)]
pub(crate) enum Role {
    /// It has not said yet.
    New,
    /// It follows a command.
    Follow(Follower),
    /// It gives input to a command.
    Input(u32),
    /// It waits for a port inside.
    Dial(u32),
    /// It waits until everything is gone.
    Stop,
    /// It waits until this change of rules holds.
    Rules(u64),
    /// It has its answer.
    Answered,
}

/// How far somebody has followed a command.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) exec: u32,
    pub(crate) output_at: u64,
    pub(crate) error_at: u64,
    /// Of the frame that is being sent: which stream, and how much of it is left.
    part: Option<(Kind, usize)>,
    /// Whose turn it is.
    error_next: bool,
}

/// One frame of a caller.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Incoming {
    pub(crate) kind: Kind,
    pub(crate) bytes: Vec<u8>,
}

// === impl Role ===

impl Role {
    /// The command that it follows.
    pub(crate) const fn follows(&self) -> Option<u32> {
        if let Self::Follow(follower) = self { Some(follower.exec) } else { None }
    }
}

// === impl Connection ===

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let (inward, outward) = (Vec::new(), Vec::new());
        let born = Instant::now();
        Ok(Self { stream, role: Role::New, born, inward, outward, sent: 0, deaf: false, closing: false })
    }

    /// Reads what is there. An error is the end of the connection.
    pub(crate) fn read(&mut self) -> io::Result<()> {
        let before = self.inward.len();
        if before > MOST_BYTES + HEADER_BYTES {
            return Ok(());
        }
        self.inward.resize(before + READ_BYTES, 0);
        let read = self.stream.read(self.inward.get_mut(before..).unwrap_or_default());
        self.inward.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => self.deaf = true,
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The next whole frame that was read.
    pub(crate) fn next(&mut self) -> Result<Option<Incoming>, Flaw> {
        let Some((header, rest)) = self.inward.split_first_chunk::<HEADER_BYTES>() else {
            if self.inward.is_empty() {
                // Nothing is held for a caller that is quiet.
                self.inward = Vec::new();
            }
            return Ok(None);
        };
        let Header { kind, length } = Header::parse(*header)?;
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let bytes = payload.to_vec();
        self.inward.drain(..HEADER_BYTES + length);
        Ok(Some(Incoming { kind, bytes }))
    }

    pub(crate) fn say(&mut self, said: &Said) {
        // What we say has no maps with keys that are not text: printing it does not fail.
        let words = serde_json::to_vec(said).unwrap_or_default();
        self.send(Kind::Json, &words);
    }

    pub(crate) fn send(&mut self, kind: Kind, bytes: &[u8]) {
        self.outward.extend_from_slice(&Header::print(kind, bytes.len()));
        self.outward.extend_from_slice(bytes);
    }

    /// The last that is said.
    pub(crate) fn answer(&mut self, said: &Said) {
        self.say(said);
        self.closing = true;
        if !matches!(self.role, Role::Stop) {
            self.role = Role::Answered;
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        self.answer(&Said::Failed(failure));
    }

    /// Bytes that wait to be sent.
    pub(crate) fn unsent(&self) -> usize {
        self.outward.len() - self.sent
    }

    /// Whether all was said and sent.
    pub(crate) fn is_done(&self) -> bool {
        self.closing && self.unsent() == 0
    }

    /// Sends what can be sent. An error is the end of the connection.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        while self.unsent() > 0 {
            match self.stream.write(self.outward.get(self.sent..).unwrap_or_default()) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.outward = Vec::new();
        self.sent = 0;
        Ok(true)
    }

    /// Whether there is something to send, of a command that it follows too.
    pub(crate) fn has_to_send(&self, command: Option<&Command>) -> bool {
        if self.unsent() > 0 {
            return true;
        }
        match (&self.role, command) {
            (Role::Follow(follower), Some(command)) if !self.closing => follower.is_behind(command),
            _ => false,
        }
    }

    /// Sends what there is of the command that it follows, and how that ended once that is all.
    pub(crate) fn follow(&mut self, exec: u32, command: &Command) -> io::Result<()> {
        if !self.flush()? || self.closing {
            return Ok(());
        }
        let Role::Follow(follower) = &mut self.role else { return Ok(()) };
        if command.pid == 0 && command.ended.is_none() {
            return Ok(());
        }
        for _ in 0..FRAMES_AT_ONCE {
            match follower.step(command, &mut self.stream) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if let Some(ended) =
            command.ended.as_ref().filter(|_| command.is_settled() && !follower.is_behind(command))
        {
            let (ending, hits, usage) = (ended.ending.clone(), command.hits.clone(), ended.usage);
            self.answer(&Said::Ended { exec, ending, hits, usage });
            self.flush()?;
        }
        Ok(())
    }
}

// === impl Follower ===

impl Follower {
    pub(crate) const fn new(exec: u32, output_at: u64, error_at: u64) -> Self {
        Self { exec, output_at, error_at, part: None, error_next: false }
    }

    fn is_behind(&self, command: &Command) -> bool {
        let end = |stream: &super::command::Stream| stream.settled.unwrap_or(stream.ring.end());
        self.part.is_some() || self.output_at < end(&command.output) || self.error_at < end(&command.error)
    }

    /// Sends one frame, or more of the one that is under way. `false` when there is nothing to send.
    fn step(&mut self, command: &Command, stream: &mut UnixStream) -> io::Result<bool> {
        let output_kind = if command.asked.terminal.is_some() { Kind::Terminal } else { Kind::Stdout };
        let (kind, left, header) = match self.part {
            Some((kind, left)) => (kind, left, None),
            None => {
                let both = [
                    (output_kind, piece(&command.output, &mut self.output_at)),
                    (Kind::Stderr, piece(&command.error, &mut self.error_at)),
                ];
                let [first, second] = if self.error_next { [both[1], both[0]] } else { both };
                let (kind, length) = if first.1 > 0 { first } else { second };
                if length == 0 {
                    return Ok(false);
                }
                self.error_next = kind != Kind::Stderr;
                (kind, length, Some(Header::print(kind, length)))
            }
        };
        let is_error = kind == Kind::Stderr;
        let ring: &Ring = if is_error { &command.error.ring } else { &command.output.ring };
        let at = if is_error { &mut self.error_at } else { &mut self.output_at };
        let bytes = ring.at(*at);
        let bytes = bytes.get(..left.min(bytes.len())).unwrap_or_default();
        let given = match &header {
            None => stream.write(bytes)?,
            Some(header) => {
                let given = stream.write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)])?;
                match given.checked_sub(HEADER_BYTES) {
                    Some(given) => given,
                    // A header is never sent in pieces: a socket that has room at all has room for it.
                    None => return Err(ErrorKind::BrokenPipe.into()),
                }
            }
        };
        *at += given as u64;
        self.part = (given < left).then(|| (kind, left - given));
        Ok(true)
    }
}

/// How much of a stream is sent as one frame now. Who comes too late for what was before begins with what is kept.
fn piece(stream: &super::command::Stream, at: &mut u64) -> usize {
    *at = (*at).max(stream.ring.start());
    let end = stream.settled.unwrap_or(stream.ring.end());
    let wanted = usize::try_from(end.saturating_sub(*at)).unwrap_or(usize::MAX);
    stream.ring.at(*at).len().min(CHUNK_BYTES).min(wanted)
}
