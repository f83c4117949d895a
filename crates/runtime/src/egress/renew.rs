//! Secrets that end before the run does: their command is run again, beside the keeper's loop.
//!
//! ```text
//!  Waiting ── a while before the end ──► Asking ── its output ends ──► given to the gate ──► Waiting
//!                                          └── no value ──► asked again in a while; past its end the gate refuses
//! ```

use super::secrets::{self, Given};
use crate::run::unix_millis;
use fumehood_model::envelope::{Secret as Declared, SecretSource};
use fumehood_vault::secret::Secret;
use fumehood_vault::source::OUTPUT_LIMIT_BYTES;
use fumehood_vault::vault::Vault;
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::process::{Child, ChildStdout};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// A new value is asked for so long before the old one ends, or at three quarters of a shorter life.
const AHEAD: Duration = Duration::from_secs(60);
/// After a command that gave none, it is asked again.
const AGAIN: Duration = Duration::from_secs(5);
/// A command has so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The secrets of one sandbox that end.
#[derive(Debug, Default)]
pub(crate) struct Renewals(Vec<Renewal>);

#[derive(Debug)]
struct Renewal {
    declared: Declared,
    state: State,
}

#[derive(Debug)]
enum State {
    Waiting { until: Instant },
    Asking(Asking),
}

/// A command that runs.
struct Asking {
    child: Child,
    output: ChildStdout,
    bytes: Zeroizing<Vec<u8>>,
    deadline: Instant,
}

// === impl Renewals ===

impl Renewals {
    /// Those of `declared` that a command gives, and that have an end.
    pub(crate) fn of(declared: &[Declared], vault: &Vault) -> Self {
        let ends = |declared: &Declared| {
            let named = vault.placeholders().find(|(name, _)| name.as_str() == declared.name)?;
            vault.get(named.0)?.0.expires_unix_millis()
        };
        let renewals = declared.iter().filter_map(|declared| {
            let command = matches!(declared.source, SecretSource::Command(_));
            let until = before(ends(declared).filter(|_| command)?);
            Some(Renewal { declared: declared.clone(), state: State::Waiting { until } })
        });
        Self(renewals.collect())
    }

    /// When there is something to do, without anything having happened.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        let alarms = self.0.iter().map(|renewal| match &renewal.state {
            State::Waiting { until } => *until,
            State::Asking(asking) => asking.deadline,
        });
        alarms.min()
    }

    /// Outputs of commands.
    pub(crate) fn waits(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().filter_map(|renewal| match &renewal.state {
            State::Asking(asking) => Some(asking.output.as_fd()),
            State::Waiting { .. } => None,
        })
    }

    /// Goes on. Gives the values that have come.
    pub(crate) fn advance(&mut self, now: Instant) -> Vec<Secret> {
        self.0.iter_mut().filter_map(|renewal| renewal.advance(now)).collect()
    }
}

// === impl Renewal ===

impl Renewal {
    fn advance(&mut self, now: Instant) -> Option<Secret> {
        let later = State::Waiting { until: now + AGAIN };
        match &mut self.state {
            State::Waiting { until } if now < *until => None,
            State::Waiting { .. } => {
                self.state = Asking::start(&self.declared, now).map_or(later, State::Asking);
                None
            }
            State::Asking(asking) if now >= asking.deadline => {
                self.state = later;
                None
            }
            State::Asking(asking) => match asking.read() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                Err(_) => {
                    self.state = later;
                    None
                }
                Ok(bytes) => {
                    let secret = secrets::made(&self.declared, bytes).ok();
                    let end = secret.as_ref().and_then(Secret::expires_unix_millis);
                    let until = match (&secret, end) {
                        (Some(_), Some(end)) => before(end).max(now + Duration::from_secs(1)),
                        // A value without an end is never asked for again.
                        (Some(_), None) => now + Duration::from_secs(u64::from(u32::MAX)),
                        (None, _) => now + AGAIN,
                    };
                    self.state = State::Waiting { until };
                    secret
                }
            },
        }
    }
}

// === impl Asking ===

impl Asking {
    fn start(declared: &Declared, now: Instant) -> Option<Self> {
        let SecretSource::Command(line) = &declared.source else { return None };
        let Given { child, output } = secrets::start(line).ok()?;
        let bytes = Zeroizing::new(Vec::with_capacity(OUTPUT_LIMIT_BYTES));
        Some(Self { child, output, bytes, deadline: now + PATIENCE })
    }

    /// All of the output, once it has ended well. Never waits: it is called when there is something.
    fn read(&mut self) -> io::Result<Zeroizing<Vec<u8>>> {
        let mut chunk = Zeroizing::new([0; 4096]);
        let count = self.output.read(&mut *chunk)?;
        if count > 0 {
            if self.bytes.len() + count > OUTPUT_LIMIT_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.bytes.extend_from_slice(chunk.get(..count).unwrap_or_default());
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // Its output is over, and so is the command, or will be in a moment.
        match self.child.wait()?.success() {
            true => Ok(std::mem::take(&mut self.bytes)),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl std::fmt::Debug for Asking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asking").field("child", &self.child.id()).finish_non_exhaustive()
    }
}

/// A while before the end of a value.
fn before(end_unix_millis: u64) -> Instant {
    let left = Duration::from_millis(end_unix_millis.saturating_sub(unix_millis()));
    let ahead = AHEAD.min(left / 4);
    Instant::now() + left.saturating_sub(ahead).min(Duration::from_secs(u64::from(u32::MAX)))
}
