//! The process that fetches one page: a fork that is confined as a gate is, and its answer, which is read with
//! suspicion.

use super::confined::{self, Role};
use super::gate::READABLE;
use super::{Tell, Wall};
use fumehood_audit::TaskLog;
use fumehood_egress::fetch::{self, Failed, HEAD_BYTES, Outcome, Ready};
use fumehood_egress::record::Intake;
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::{process, socket};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// How long the process may take beyond the time that it gives itself.
const GRACE: Duration = Duration::from_secs(3);

/// Fetches, each line into `log` before what it tells is done. An error is a sentence.
///
/// Preconditions: this process has one thread.
pub(crate) fn fetch(ready: Ready, log: &mut TaskLog, tell: Tell<'_>) -> Result<(Outcome, Vec<u8>), String> {
    let job = ready.job().clone();
    let end = Instant::now() + job.time + GRACE;
    let most = usize::try_from(job.most_bytes).unwrap_or(usize::MAX).saturating_add(HEAD_BYTES + 4);
    let (intake, pidfd, answer) =
        start(ready).map_err(|error| format!("start the process that fetches: {error}"))?;
    let mut wall = Wall::at_work(intake, pidfd, tell);
    let mut answer = Answer { pipe: answer.into(), bytes: Vec::new(), most };
    let found = loop {
        let mut waits: Vec<_> = wall.waits().into_iter().map(|socket| (socket, Interest::Read)).collect();
        let record = !waits.is_empty();
        waits.push((answer.pipe.as_fd(), Interest::Read));
        let left = end.saturating_duration_since(Instant::now());
        let waited = match poll::wait(&waits, Some(left)) {
            Ok(waited) => waited,
            Err(error) => break Err(format!("wait for the process that fetches: {error}")),
        };
        let (told, came) = (record && waited.first().is_some_and(|first| first.ready), waited.last());
        // What was done is written down before what came of it is taken.
        if told {
            wall.advance(log);
        } else if came.is_some_and(|last| last.ready) {
            match answer.take() {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(error) => break Err(format!("read what was fetched: {error}")),
            }
        } else if left.is_zero() {
            let failed = Failed::timed_out(&job.url, job.time);
            wall.finish(log);
            return Ok((Outcome::Failed(failed), Vec::new()));
        }
    };
    let seen = wall.finish(log);
    found?;
    match Outcome::read(&answer.bytes, job.most_bytes) {
        Some((outcome, body)) => Ok((outcome, body.to_vec())),
        None => Err(seen.fault.unwrap_or_else(|| "the process that fetches has ended".to_owned())),
    }
}

/// What comes from the process, as far as it may go.
struct Answer {
    pipe: File,
    bytes: Vec<u8>,
    most: usize,
}

// === impl Answer ===

impl Answer {
    /// Takes what is there. Whether that was the end.
    fn take(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 64 << 10];
        match self.pipe.read(&mut chunk) {
            Ok(0) => Ok(true),
            Ok(count) if self.bytes.len() + count > self.most => {
                Err(io::Error::other("it is longer than what was asked for"))
            }
            Ok(count) => {
                self.bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
                Ok(false)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

/// The process, and our ends of what leads to it.
fn start(ready: Ready) -> io::Result<(Intake, OwnedFd, OwnedFd)> {
    let (ours, theirs) = socket::pair()?;
    process::set_nonblocking(&ours, true)?;
    let (answer, out) = process::pipe(true)?;
    let kept = vec![theirs.as_raw_fd(), out.as_raw_fd()];
    let role = Role { name: c"fumehood-fetch", readable: &READABLE, kept };
    // Nobody is told of what goes wrong in there but by an answer that does not come.
    let work = || fetch::run(ready, theirs, out).map_err(io::Error::other);
    Ok((Intake::new(ours), confined::fork(role, || {}, work)?, answer))
}
