//! One file verb of one caller, from the request to the last byte.
//!
//! Whoever calls this waits for disks and for the caller, so it has a thread of its own: a slow one holds up nobody.

use super::failure::bad_request;
use super::{GuestFiles, Upload, Watcher};
use fumehood_keep::frame::{HEADER_BYTES, Header, Kind, MOST_BYTES};
use fumehood_keep::wire::{Ask, Failure, FailureCode, Said};
use fumehood_sys::poll::{self, Interest};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// Content that is sent as one frame.
const CHUNK_BYTES: usize = 256 << 10;
/// How long a caller may say or take nothing in the middle of a transfer. It may be paused itself.
const PATIENCE: Duration = Duration::from_mins(10);

/// A caller, and what was read of it already.
#[derive(Debug)]
pub struct Caller {
    stream: UnixStream,
    early: Vec<u8>,
    at: usize,
}

/// Why a verb ended early.
pub(super) enum Over {
    /// It is told.
    Failed(Failure),
    /// Nobody is there to be told.
    Gone,
}

type Outcome = Result<Said, Over>;

impl GuestFiles {
    /// Whether this is what [`GuestFiles::answer`] answers.
    #[must_use]
    pub const fn answers(ask: &Ask) -> bool {
        matches!(
            ask,
            Ask::Read { .. }
                | Ask::Write { .. }
                | Ask::Stat { .. }
                | Ask::ListDir { .. }
                | Ask::MakeDir { .. }
                | Ask::Move { .. }
                | Ask::Remove { .. }
                | Ask::Watch { .. }
        )
    }

    /// Does what is asked, and says so. Returns when the caller has its answer, or is gone.
    pub fn answer(self: &Arc<Self>, ask: Ask, mut caller: Caller) {
        if let Some(said) = match self.verb(ask, &mut caller) {
            Ok(said) => Some(said),
            Err(Over::Failed(failure)) => Some(Said::Failed(failure)),
            Err(Over::Gone) => None,
        } {
            let _ = caller.say(&said);
        }
        caller.end();
    }

    fn verb(self: &Arc<Self>, ask: Ask, caller: &mut Caller) -> Outcome {
        Ok(match ask {
            Ask::Stat { path } => Said::Entry { entry: self.stat(&path)? },
            Ask::ListDir { path, depth } => {
                let (entries, cut) = self.list(&path, depth)?;
                Said::Entries { entries, cut }
            }
            Ask::MakeDir { path } => self.make_dir(&path).map(|()| Said::Done)?,
            Ask::Move { from, to } => self.rename(&from, &to).map(|()| Said::Done)?,
            Ask::Remove { path } => self.remove(&path).map(|()| Said::Done)?,
            Ask::Read { path, offset, length } => return self.send(caller, (&path, offset, length)),
            Ask::Write { path, mode } => Said::Entry { entry: receive(self.write(&path, mode)?, caller)? },
            Ask::Watch { path, recursive } => return tell(self.watch(&path, recursive)?, caller),
            Ask::Status
            | Ask::Exec(_)
            | Ask::Attach { .. }
            | Ask::Input { .. }
            | Ask::List
            | Ask::Signal { .. }
            | Ask::Resize { .. }
            | Ask::Dial { .. }
            | Ask::Pause
            | Ask::Resume
            | Ask::Snapshot { .. }
            | Ask::Apply { .. }
            | Ask::Halt
            | Ask::Release
            | Ask::Claim(_)
            | Ask::Network(_)
            | Ask::Expire { .. }
            | Ask::Stop { .. } => {
                return Err(bad_request("work on files", "that is no work on files".to_owned()).into());
            }
        })
    }

    fn send(&self, caller: &mut Caller, (path, offset, length): (&str, u64, Option<u64>)) -> Outcome {
        let mut content = self.read(path, offset, length)?;
        caller.say(&Said::Entry { entry: content.entry.clone() })?;
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            let read = content.next(&mut buffer)?;
            let Some(chunk) = buffer.get(..read).filter(|chunk| !chunk.is_empty()) else { break };
            caller.send(Kind::Data, chunk)?;
        }
        caller.send(Kind::DataEnd, &[])?;
        Err(Over::Gone)
    }
}

fn receive(mut upload: Upload, caller: &mut Caller) -> Result<fumehood_keep::wire::Entry, Over> {
    let mut buffer = Vec::new();
    loop {
        match caller.next(&mut buffer)? {
            Kind::Data => upload.append(&buffer)?,
            Kind::DataEnd => {
                // The last of it may come with its end.
                upload.append(&buffer)?;
                return Ok(upload.finish()?);
            }
            Kind::Json | Kind::Stdout | Kind::Stderr | Kind::Terminal | Kind::Input | Kind::InputEnd => {
                return Err(
                    bad_request("write the file", "a frame came that is no content".to_owned()).into()
                );
            }
        }
    }
}

fn tell(mut watcher: Watcher, caller: &mut Caller) -> Outcome {
    caller.say(&Said::Done)?;
    loop {
        let waits = [(watcher.as_fd(), Interest::Read), (caller.stream.as_fd(), Interest::Read)];
        let ready = poll::wait(&waits, None).map_err(|_interrupted| Over::Gone)?;
        let [changed, spoke] = [0, 1].map(|at| ready.get(at).is_some_and(|found| found.ready));
        if spoke && caller.is_gone() {
            return Err(Over::Gone);
        }
        if changed {
            for (path, change) in watcher.changes()? {
                caller.say(&Said::Changed { path, change })?;
            }
        }
    }
}

// === impl Caller ===

impl Caller {
    /// One whose connection was read up to its request; `early` is what came with that.
    ///
    /// # Errors
    /// The kernel's own.
    pub fn new(stream: UnixStream, early: Vec<u8>) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, early, at: 0 })
    }

    /// Tells it the one answer.
    pub fn tell(mut self, said: &Said) {
        let _ = self.say(said);
    }

    pub(super) fn say(&mut self, said: &Said) -> Result<(), Over> {
        let words = serde_json::to_vec(said).map_err(|_unprintable| Over::Gone)?;
        self.send(Kind::Json, &words)
    }

    pub(super) fn send(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), Over> {
        if bytes.len() > MOST_BYTES {
            return Err(Over::Gone);
        }
        let header = Header::print(kind, bytes.len());
        let sent = self.stream.write_all(&header).and_then(|()| self.stream.write_all(bytes));
        sent.map_err(|_hung_up| Over::Gone)
    }

    /// The next frame, its bytes in `buffer`.
    pub(super) fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Kind, Over> {
        let mut header = [0; HEADER_BYTES];
        self.fill(&mut header)?;
        let Header { kind, length } =
            Header::parse(header).map_err(|flaw| bad_request("read the connection", flaw.to_string()))?;
        buffer.resize(length, 0);
        self.fill(buffer)?;
        Ok(kind)
    }

    fn fill(&mut self, into: &mut [u8]) -> Result<(), Over> {
        let early = self.early.get(self.at..).unwrap_or_default();
        let count = early.len().min(into.len());
        let (now, later) = into.split_at_mut(count);
        now.copy_from_slice(early.get(..count).unwrap_or_default());
        self.at += count;
        if self.at >= self.early.len() {
            (self.early, self.at) = (Vec::new(), 0);
        }
        self.stream.read_exact(later).map_err(|_hung_up| Over::Gone)
    }

    /// Whether a caller that can be read has nothing more to say.
    fn is_gone(&mut self) -> bool {
        let mut some = [0; 512];
        matches!(self.stream.read(&mut some), Ok(0) | Err(_))
    }

    /// Says the last, if there is something to be said, and closes.
    pub(super) fn close(mut self, said: Option<&Said>) {
        if let Some(said) = said {
            let _ = self.say(said);
        }
        self.end();
    }

    pub(super) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn end(&mut self) {
        // Bytes of an upload that nobody reads any more would make the kernel take the answer back.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
        self.drain();
    }

    /// Reads what still comes, for a moment, so that the caller gets to read its answer.
    fn drain(&mut self) {
        let _ = self.stream.set_read_timeout(Some(Duration::from_secs(5)));
        let mut some = vec![0; CHUNK_BYTES];
        while matches!(self.stream.read(&mut some), Ok(count) if count > 0) {}
    }
}

impl From<Failure> for Over {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// No more callers work on files at once than this.
#[must_use]
pub fn busy() -> Failure {
    Failure {
        code: FailureCode::Busy,
        message: "work on files".to_owned(),
        cause: "too many callers read, write and watch its files at once".to_owned(),
        remediation: "try again when some of these are done".to_owned(),
    }
}
