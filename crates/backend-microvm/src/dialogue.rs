//! The first words with guestd, waited for: before a command runs, the keeper has nothing else to do.
//!
//! **Invariant:** nothing here waits past its deadline.

use fumehood_guest::frame::{How, SEED_BYTES};
use fumehood_guest::session::{Said, Session, Start};
use fumehood_sys::host;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant, SystemTime};

/// Why the guest did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("the stream to it broke: {0}")]
    Stream(io::Error),
    #[error("it did not answer in time")]
    Silent,
    #[error("it ended")]
    Gone,
    #[error("{0}")]
    Violation(#[from] fumehood_guest::session::Violation),
    #[error("{what}: {source}")]
    Failed { what: &'static str, source: io::Error },
    #[error("it has too much to do")]
    Busy,
}

/// A stream to guestd that is not yet the instance's.
#[derive(Debug)]
pub(crate) struct Dialogue {
    session: Session,
    deadline: Instant,
}

// === impl Dialogue ===

impl Dialogue {
    /// Greets, and waits for the answer.
    pub(crate) fn greet(stream: &UnixStream, deadline: Instant) -> Result<Self, Fault> {
        let nonce = host::random().map_err(Fault::Stream)?;
        let mut dialogue = Self { session: Session::new(nonce), deadline };
        dialogue.wait(stream, |said| matches!(said, Said::Ready).then_some(Ok(())))?;
        Ok(dialogue)
    }

    /// Greets one that goes on, and gives it the time and randomness of its own, in one breath: each breath wakes it. A
    /// guest that did not take both must not go on.
    pub(crate) fn wake(stream: &UnixStream, deadline: Instant) -> Result<Self, Fault> {
        let nonce = host::random().map_err(Fault::Stream)?;
        let mut dialogue = Self { session: Session::new(nonce), deadline };
        let (unix_ns, seed) = fresh().map_err(Fault::Stream)?;
        let channel = dialogue.session.thaw(unix_ns, &seed).ok_or(Fault::Busy)?;
        dialogue.wait(stream, |said| matches!(said, Said::Ready).then_some(Ok(())))?;
        dialogue.done(stream, channel, "take new randomness and the time")?;
        Ok(dialogue)
    }

    /// The session, for who goes on with it.
    pub(crate) fn into_session(mut self, stream: &UnixStream) -> io::Result<Session> {
        while self.session.next_said().is_some() {}
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        Ok(self.session)
    }

    /// What follows may take until then.
    pub(crate) fn extend(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Lets it write out what is buffered, and stand still.
    pub(crate) fn prepare(&mut self, stream: &UnixStream) -> Result<(), Fault> {
        let channel = self.session.prepare().ok_or(Fault::Busy)?;
        self.done(stream, channel, "stand still")
    }

    /// Runs a command as guestd itself, and waits for its end. `Err` is its exit code as an error number.
    pub(crate) fn run(
        &mut self,
        stream: &UnixStream,
        argv: &[Vec<u8>],
        what: &'static str,
    ) -> Result<(), Fault> {
        let mut block = b"/\0".to_vec();
        for argument in argv {
            block.extend_from_slice(argument);
            block.push(0);
        }
        let argc = u32::try_from(argv.len()).unwrap_or(u32::MAX);
        let start =
            Start { terminal: None, once: false, argc, envc: 0, block: &block, person: None, limits: &[] };
        let channel = self.session.exec(&start).ok_or(Fault::Busy)?;
        self.session.end_input(channel);
        let failed = |errno: u32| {
            let source = i32::try_from(errno)
                .map_or_else(|_| io::ErrorKind::Other.into(), io::Error::from_raw_os_error);
            Fault::Failed { what, source }
        };
        let ended = self.wait(stream, |said| {
            if let Said::NotStarted { channel: of, errno, .. } = said
                && of == channel
            {
                return Some(Err(failed(errno)));
            }
            let Said::Ended { channel: of, ended } = said else { return None };
            (of == channel).then(|| match ended.how {
                How::Exited(0) => Ok(()),
                How::Exited(code) => Err(failed(u32::from(code))),
                How::Signalled(_) => Err(failed(0)),
            })
        });
        self.session.release(channel);
        ended
    }

    /// Makes entries (see `fumehood_guest::entry`) beneath a folder.
    pub(crate) fn put(
        &mut self,
        stream: &UnixStream,
        path: &[u8],
        owner: Option<fumehood_guest::frame::Person>,
        content: &mut dyn io::Read,
    ) -> Result<(), Fault> {
        let channel = self.session.put(path, owner).ok_or(Fault::Busy)?;
        let mut buffer = vec![0; fumehood_guest::frame::PAYLOAD_BYTES];
        loop {
            let room = match self.session.may_send(channel) {
                // It has failed, and says why.
                None => break,
                Some(0) => {
                    self.turn(stream)?;
                    if let Some(early) = self.verdict(channel, "take files") {
                        return early;
                    }
                    continue;
                }
                Some(room) => room,
            };
            let part = buffer.get_mut(..room).unwrap_or_default();
            let count =
                content.read(part).map_err(|source| Fault::Failed { what: "read what goes in", source })?;
            if count == 0 {
                break;
            }
            self.session.input(channel, part.get(..count).unwrap_or_default());
        }
        self.session.end_input(channel);
        self.done(stream, channel, "take files")
    }

    fn done(&mut self, stream: &UnixStream, channel: u32, what: &'static str) -> Result<(), Fault> {
        loop {
            if let Some(verdict) = self.verdict(channel, what) {
                return verdict;
            }
            self.turn(stream)?;
        }
    }

    fn verdict(&mut self, channel: u32, what: &'static str) -> Option<Result<(), Fault>> {
        while let Some(said) = self.session.next_said() {
            if said == (Said::Done { channel }) {
                return Some(Ok(()));
            }
            if let Said::Failed { channel: of, errno } = said
                && of == channel
            {
                let source = i32::try_from(errno)
                    .map_or_else(|_| io::ErrorKind::Other.into(), io::Error::from_raw_os_error);
                return Some(Err(Fault::Failed { what, source }));
            }
        }
        None
    }

    fn wait(
        &mut self,
        stream: &UnixStream,
        mut wanted: impl FnMut(Said) -> Option<Result<(), Fault>>,
    ) -> Result<(), Fault> {
        loop {
            while let Some(said) = self.session.next_said() {
                if let Some(verdict) = wanted(said) {
                    return verdict;
                }
            }
            self.turn(stream)?;
        }
    }

    /// Sends what waits, then reads something.
    fn turn(&mut self, mut stream: &UnixStream) -> Result<(), Fault> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Fault::Silent);
        }
        stream.set_read_timeout(Some(left)).map_err(Fault::Stream)?;
        stream.set_write_timeout(Some(left)).map_err(Fault::Stream)?;
        while !self.session.pending().is_empty() {
            let count = stream.write(self.session.pending()).map_err(waited)?;
            self.session.sent(count);
        }
        let mut bytes = [0; 16 * 1024];
        match stream.read(&mut bytes).map_err(waited)? {
            0 => Err(Fault::Gone),
            count => Ok(self.session.feed(bytes.get(..count).unwrap_or_default())?),
        }
    }
}

/// Nanoseconds since 1970, and randomness for one guest.
pub(crate) fn fresh() -> io::Result<(u64, [u8; SEED_BYTES])> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let mut seed = [0; SEED_BYTES];
    for part in seed.chunks_mut(8) {
        let random = host::random()?.to_ne_bytes();
        part.iter_mut().zip(random).for_each(|(place, byte)| *place = byte);
    }
    Ok((u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), seed))
}

fn waited(error: io::Error) -> Fault {
    let kind = error.kind();
    if kind == io::ErrorKind::WouldBlock || kind == io::ErrorKind::TimedOut {
        Fault::Silent
    } else if kind == io::ErrorKind::BrokenPipe || kind == io::ErrorKind::ConnectionReset {
        Fault::Gone
    } else {
        Fault::Stream(error)
    }
}
