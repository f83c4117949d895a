//! The command's streams: moved as they come, never waited for, capped and counted.
//!
//! The guest only ever has pipes or a terminal that were made for it. What it writes past the cap is
//! read and dropped, so that it never blocks on us; what our own reader does not take holds it back,
//! as a pipe would.

use crate::tape::Tee;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};

const CHUNK_BYTES: usize = 64 * 1024;
/// The first chunk of a flow: most commands write little, and memory that is never touched costs nothing.
const FIRST_CHUNK_BYTES: usize = 4 * 1024;
/// A blocking pipe that reports room takes at least this much without waiting.
const PIPE_ATOM_BYTES: usize = 4096;
/// `O_NONBLOCK | O_NOCTTY` on this target.
const REOPEN_FLAGS: i32 = 0o4000 | 0o400;

/// Bytes left before the cap, shared by the streams of one command, and what fell past it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    pub(crate) left: u64,
    pub(crate) dropped: u64,
}

/// From a source to a sink, with one chunk under way.
#[derive(Debug)]
pub(crate) struct Flow {
    source: Option<File>,
    /// Whether a read could wait: the caller's own stream, whose flags other programs share.
    patient: bool,
    sink: Sink,
    chunk: Vec<u8>,
    /// How much is asked for at once: more when there was more.
    room: usize,
    sent: usize,
    /// Bytes read in all.
    pub(crate) bytes: u64,
    /// Why the sink took no more, where it was not that nobody reads it.
    pub(crate) lost: Option<String>,
    /// Where a copy of it goes.
    tee: Option<Tee>,
}

/// Where bytes go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// A descriptor that can be written without waiting.
    Free(File),
    /// A descriptor that may wait, written in pieces that do not.
    Careful(File),
    /// Memory, for the report.
    Memory(Vec<u8>),
    /// The reader is gone.
    Closed,
}

// === impl Allowance ===

impl Allowance {
    pub(crate) const fn new(bytes: u64) -> Self {
        Self { left: bytes, dropped: 0 }
    }

    /// How much of `count` may pass; the rest is counted as dropped.
    pub(crate) fn pass(&mut self, count: usize) -> usize {
        let whole = count as u64;
        let passed = whole.min(self.left);
        self.left -= passed;
        self.dropped += whole - passed;
        usize::try_from(passed).unwrap_or(count)
    }
}

// === impl Flow ===

impl Flow {
    pub(crate) fn new(source: OwnedFd, sink: Sink) -> Self {
        Self {
            source: Some(source.into()),
            patient: false,
            sink,
            chunk: Vec::new(),
            room: FIRST_CHUNK_BYTES,
            sent: 0,
            bytes: 0,
            lost: None,
            tee: None,
        }
    }

    /// From now on all that passes goes there too.
    pub(crate) fn copy_to(&mut self, tee: Tee) {
        self.tee = Some(tee);
    }

    /// The same sink, from a plain file.
    pub(crate) fn reading(self, source: File) -> Self {
        Self { source: Some(source), patient: false, ..self }
    }

    /// From a stream of the caller's, which is read only when it has something.
    pub(crate) fn from_caller(source: OwnedFd, sink: Sink) -> Self {
        Self { patient: true, ..Self::new(source, sink) }
    }

    /// Whether there is nothing more to come and nothing under way.
    pub(crate) fn is_finished(&self) -> bool {
        self.source.is_none() && self.is_idle()
    }

    fn is_idle(&self) -> bool {
        self.sent >= self.chunk.len()
    }

    /// What to wait for: room in the sink while a chunk is under way, else the source.
    pub(crate) fn waits_for(&self) -> Option<(BorrowedFd<'_>, fumehood_sys::poll::Interest)> {
        use fumehood_sys::poll::Interest;
        if self.is_idle() {
            return self.source.as_ref().map(|source| (source.as_fd(), Interest::Read));
        }
        match &self.sink {
            Sink::Free(file) | Sink::Careful(file) => Some((file.as_fd(), Interest::Write)),
            Sink::Memory(_) | Sink::Closed => None,
        }
    }

    /// Moves what can be moved now. `allowance` is for what a guest writes.
    pub(crate) fn advance(&mut self, allowance: Option<&mut Allowance>) {
        if self.is_idle() {
            self.fill(allowance);
        }
        self.drain();
    }

    fn fill(&mut self, allowance: Option<&mut Allowance>) {
        let Some(source) = &mut self.source else { return };
        if self.patient && !has_something(source) {
            return;
        }
        self.chunk.resize(self.room, 0);
        self.sent = 0;
        match source.read(&mut self.chunk) {
            Ok(0) => self.end(),
            Ok(count) => {
                self.bytes += count as u64;
                if count == self.room {
                    self.room = CHUNK_BYTES;
                }
                self.chunk.truncate(allowance.map_or(count, |allowance| allowance.pass(count)));
                if let Some(tee) = &mut self.tee {
                    tee.pass(&self.chunk);
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                self.chunk.clear();
            }
            // The other side of a terminal that is gone reads as an input/output error.
            Err(_) => self.end(),
        }
    }

    /// Nothing more is read. A pipe that is the sink is closed with the flow.
    fn end(&mut self) {
        self.source = None;
        self.chunk.clear();
    }

    fn drain(&mut self) {
        while !self.is_idle() {
            let rest = self.chunk.get(self.sent..).unwrap_or(&[]);
            match self.sink.put(rest) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nobody reads: whoever writes is told by a broken pipe, as without us.
                Err(error) => {
                    let unread = [ErrorKind::BrokenPipe, ErrorKind::ConnectionReset].contains(&error.kind());
                    self.lost = (!unread).then(|| error.to_string());
                    self.sink = Sink::Closed;
                    self.end();
                }
            }
            if matches!(self.sink, Sink::Careful(_)) {
                return;
            }
        }
    }

    /// Whether the sink is a pipe to the guest that has got everything.
    pub(crate) fn close_finished_sink(&mut self) {
        if self.is_finished() && matches!(self.sink, Sink::Free(_) | Sink::Careful(_)) {
            self.sink = Sink::Closed;
        }
    }

    /// What was kept in memory.
    pub(crate) fn take_memory(self) -> Vec<u8> {
        match self.sink {
            Sink::Memory(bytes) => bytes,
            Sink::Free(_) | Sink::Careful(_) | Sink::Closed => Vec::new(),
        }
    }
}

fn has_something(source: &File) -> bool {
    use fumehood_sys::poll::{Interest, wait};
    let found = wait(&[(source.as_fd(), Interest::Read)], Some(std::time::Duration::ZERO));
    found.is_ok_and(|found| found.first().is_some_and(|waited| waited.ready))
}

// === impl Sink ===

impl Sink {
    /// A sink for one of the caller's own streams, which keeps its flags: other programs share it.
    pub(crate) fn caller(stream: BorrowedFd<'_>) -> Self {
        let Ok(file) = stream.try_clone_to_owned().map(File::from) else { return Self::Closed };
        let waits = file
            .metadata()
            .map(|meta| meta.file_type())
            .is_ok_and(|kind| kind.is_fifo() || kind.is_char_device());
        if !waits {
            // A regular file takes what it is given; a socket is written with care.
            let plain = file.metadata().is_ok_and(|meta| meta.is_file());
            return if plain { Self::Free(file) } else { Self::Careful(file) };
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match File::options().write(true).custom_flags(REOPEN_FLAGS).open(path) {
            Ok(own) => Self::Free(own),
            Err(_) => Self::Careful(file),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Free(file) => file.write(bytes),
            Self::Careful(file) => file.write(bytes.get(..PIPE_ATOM_BYTES).unwrap_or(bytes)),
            Self::Memory(kept) => {
                kept.extend_from_slice(bytes);
                Ok(bytes.len())
            }
            Self::Closed => Ok(bytes.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_sys::process::pipe;

    #[test]
    fn past_the_cap_bytes_are_read_and_counted() {
        let (read, write) = pipe(true).unwrap();
        File::from(write).write_all(&[7; 1000]).unwrap();
        let mut allowance = Allowance::new(300);
        let mut flow = Flow::new(read, Sink::Memory(Vec::new()));
        while !flow.is_finished() {
            flow.advance(Some(&mut allowance));
        }
        assert_eq!((flow.bytes, allowance.dropped), (1000, 700));
        assert_eq!(flow.take_memory().len(), 300);
    }

    #[test]
    fn a_full_sink_is_not_waited_for_and_loses_nothing() {
        let (from, feed) = pipe(true).unwrap();
        let (mut out, to) = pipe(false).unwrap();
        fumehood_sys::process::set_nonblocking(&to, true).unwrap();
        let sent: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let whole = sent.clone();
        let writer = std::thread::spawn(move || File::from(feed).write_all(&whole));
        let mut flow = Flow::new(from, Sink::Free(to.into()));
        let mut got = Vec::new();
        while got.len() < sent.len() {
            flow.advance(None);
            let mut part = vec![0; 10_000];
            if flow.bytes > got.len() as u64 {
                let mut file = File::from(out);
                let count = file.read(&mut part).unwrap();
                got.extend_from_slice(&part[..count]);
                out = file.into();
            }
        }
        writer.join().unwrap().unwrap();
        assert_eq!(got, sent);
    }

    #[test]
    fn a_reader_that_left_ends_the_flow() {
        let (from, feed) = pipe(true).unwrap();
        let (out, to) = pipe(false).unwrap();
        drop(out);
        File::from(feed).write_all(b"unread").unwrap();
        let mut flow = Flow::new(from, Sink::Free(to.into()));
        flow.advance(None);
        assert!(flow.is_finished());
    }
}
