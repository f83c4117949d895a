//! Times and what is made of them.

use std::io;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Times of one side, in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<u128>);

// === impl Times ===

impl Times {
    /// Adds one time.
    pub(crate) fn add(&mut self, nanoseconds: u128) {
        self.0.push(nanoseconds);
    }

    /// The value below which this share of the times lies, in milliseconds.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let last = sorted.len().saturating_sub(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an index into at most some thousand times"
        )]
        let at = (last as f64 * share).round() as usize;
        #[expect(clippy::cast_precision_loss, reason = "a time in nanoseconds shown with two digits")]
        sorted.get(at).map_or(f64::NAN, |nanoseconds| *nanoseconds as f64 / 1e6)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }
}

/// Runs a command to its end and gives the wall time; a bad end is an error.
pub(crate) fn time(command: &mut Command) -> io::Result<u128> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let status = command.spawn()?.wait()?;
    let elapsed = start.elapsed().as_nanos();
    if status.success() { Ok(elapsed) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
