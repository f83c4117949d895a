//! The keeper's side of the egress wall.
//!
//! ```text
//!  Idle ── first packet of the sandbox ──► Open ── run over, gate dead, record lost ──► Shut
//! ```
//!
//! A sandbox that sends nothing costs nothing: its gateway's sockets wait with the keeper, and the first of them
//! that is ready makes the *gate*, a process that gives up everything but those sockets and the secrets. What
//! it wants to do it asks the keeper to record first. From then on the sockets are the gate's alone: without
//! it, the sandbox has no network, and it never gets another one.
//!
//! **Invariant:** an answer goes to the gate only after what it told stands in the record.

mod confined;
mod gate;
pub(crate) mod page;
pub(crate) mod ports;
mod prepare;
mod publish;
mod renew;
pub(crate) mod secrets;

pub(crate) use confined::no_more_forks;
pub(crate) use gate::Gate;
pub(crate) use prepare::{Beside, Prepared, prepare};
pub(crate) use publish::Publisher;
pub(crate) use renew::Renewals;

use crate::causes::chain;
use crate::run::unix_millis;
use fumehood_audit::TaskLog;
use fumehood_egress::record::{Intake, Renewed, Taken};
use fumehood_keep::literals::Literals;
use fumehood_model::egress::Rules;
use fumehood_model::event::{EgressDenied, Event};
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::process;
use fumehood_vault::secret::Secret;
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Packets taken from the gate before the loop looks at everything else again.
const PACKETS_AT_ONCE: u32 = 64;
/// How long the gate may take to say its last when a run is over.
const FAREWELL: Duration = Duration::from_secs(1);

/// Different refusals that a report lists; the record has all.
const MOST_DENIALS: usize = 16;

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Who is told of what happens at the wall.
pub(crate) type Tell<'a> = &'a mut dyn FnMut(&Event);

/// The wall of one sandbox.
pub(crate) struct Wall<'a> {
    stage: Stage,
    tell: Tell<'a>,
    denied: BTreeMap<String, u64>,
    renewals: Renewals,
    /// Why there is no network any more, if that is nobody's wish.
    fault: Option<String>,
    /// Changes of rules so far, and how many of them hold.
    changes: u64,
    applied: u64,
}

/// What there was to see at a wall, for the report.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// What was not let out and why, and how often; no more than fits a report.
    pub(crate) denied: BTreeMap<String, u64>,
    /// Why there was no network towards the end, if that was a fault.
    pub(crate) fault: Option<String>,
}

#[derive(Debug)]
enum Stage {
    /// There never was a network.
    Absent,
    Idle(Box<Gate>),
    Open(Open),
    Shut,
}

/// A gate that is at work.
#[derive(Debug)]
struct Open {
    intake: Intake,
    pidfd: OwnedFd,
}

// === impl Wall ===

impl std::fmt::Debug for Wall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wall").field("stage", &self.stage).field("fault", &self.fault).finish_non_exhaustive()
    }
}

impl<'a> Wall<'a> {
    pub(crate) fn new(gate: Option<Gate>, renewals: Renewals, tell: Tell<'a>) -> Self {
        let stage = gate.map_or(Stage::Absent, |gate| Stage::Idle(Box::new(gate)));
        Self { stage, tell, denied: BTreeMap::new(), renewals, fault: None, changes: 0, applied: 0 }
    }

    /// Whether the gate is still to be made.
    pub(crate) fn will_fork(&self) -> bool {
        matches!(self.stage, Stage::Idle(_))
    }

    /// Lets go of what a gate would be made of, secrets among it. For a fork that is no gate.
    pub(crate) fn forget(&mut self) {
        if self.will_fork() {
            self.stage = Stage::Shut;
        }
    }

    /// Lets nothing through, or lets it go on. The gate is a process of ours, and stands still when it is told to.
    pub(crate) fn hold(&mut self, held: bool) {
        if let Stage::Open(open) = &self.stage {
            let _ = process::send_signal(open.pidfd.as_fd(), if held { SIGSTOP } else { SIGCONT });
        }
    }

    /// One whose gate is at work already.
    pub(crate) fn at_work(intake: Intake, pidfd: OwnedFd, tell: Tell<'a>) -> Self {
        let stage = Stage::Open(Open { intake, pidfd });
        let renewals = Renewals::default();
        Self { stage, tell, denied: BTreeMap::new(), renewals, fault: None, changes: 0, applied: 0 }
    }

    /// What has to be waited for.
    pub(crate) fn waits(&self) -> Vec<BorrowedFd<'_>> {
        let mut waits: Vec<_> = match &self.stage {
            Stage::Absent | Stage::Shut => return Vec::new(),
            Stage::Idle(gate) => gate.sockets().collect(),
            Stage::Open(open) => vec![open.intake.as_fd()],
        };
        waits.extend(self.renewals.waits());
        waits
    }

    /// When it wants to go on, without anything having happened.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Absent | Stage::Shut => None,
            Stage::Idle(_) | Stage::Open(_) => self.renewals.alarm(),
        }
    }

    /// Asks for newer values of secrets that end, and passes them on.
    pub(crate) fn renew(&mut self) {
        for secret in self.renewals.advance(Instant::now()) {
            match &mut self.stage {
                Stage::Absent | Stage::Shut => {}
                Stage::Idle(gate) => gate.renew(secret),
                Stage::Open(open) => open.renew(&secret),
            }
        }
    }

    /// Gives the gate more secrets, and other rules. They hold once [`Wall::holds`] the change that this returns.
    ///
    /// # Errors
    /// There is no gate, or it is gone.
    pub(crate) fn change(&mut self, rules: &Rules, literals: &Literals) -> Result<u64, String> {
        let Stage::Open(open) = &self.stage else {
            return Err(self.fault.clone().unwrap_or_else(|| "there is no network any more".to_owned()));
        };
        let change = self.changes.saturating_add(1);
        let given = literals.iter().try_for_each(|(name, value)| {
            let value = Zeroizing::new(value.to_owned());
            open.intake.give(Renewed { name: name.to_owned(), value, expires_unix_millis: None })
        });
        given.and_then(|()| open.intake.change(change, rules)).map_err(|error| error.to_string())?;
        self.changes = change;
        Ok(change)
    }

    /// Whether a change holds; `None` where it never will.
    pub(crate) fn holds(&self, change: u64) -> Option<bool> {
        match self.stage {
            Stage::Open(_) => Some(self.applied >= change),
            Stage::Absent | Stage::Idle(_) | Stage::Shut => None,
        }
    }

    /// Goes on, once one of [`Wall::waits`] is ready.
    pub(crate) fn advance(&mut self, log: &mut TaskLog) {
        self.renew();
        if !self.is_heard() {
            return;
        }
        self.open();
        self.stage = match std::mem::replace(&mut self.stage, Stage::Shut) {
            Stage::Open(open) => self.take(open, log, PACKETS_AT_ONCE),
            stage @ (Stage::Absent | Stage::Idle(_) | Stage::Shut) => stage,
        };
    }

    /// Makes the gate, if there is none yet: at the first packet, or sooner by a keeper that will have more threads.
    ///
    /// Preconditions: this process has one thread.
    pub(crate) fn open(&mut self) {
        if !self.will_fork() {
            return;
        }
        if let Stage::Idle(gate) = std::mem::replace(&mut self.stage, Stage::Shut) {
            match gate.open() {
                Ok((intake, pidfd)) => self.stage = Stage::Open(Open { intake, pidfd }),
                Err(error) => self.fault = Some(format!("the gate could not be started: {error}")),
            }
        }
    }

    /// The run is over: lets the gate say how everything ended, and ends it.
    pub(crate) fn finish(&mut self, log: &mut TaskLog) -> Seen {
        let end = Instant::now() + FAREWELL;
        let asked = matches!(&self.stage, Stage::Open(open) if open.intake.stop().is_ok());
        while asked && let Stage::Open(open) = &self.stage {
            let left = end.saturating_duration_since(Instant::now());
            let ready = poll::wait(&[(open.intake.as_fd(), Interest::Read)], Some(left));
            if !ready.is_ok_and(|found| found.iter().any(|waited| waited.ready)) {
                break;
            }
            if let Stage::Open(open) = std::mem::replace(&mut self.stage, Stage::Shut) {
                self.stage = self.take(open, log, u32::MAX);
            }
            if matches!(self.stage, Stage::Shut) {
                // It went because it was asked to.
                self.fault = None;
            }
        }
        if let Stage::Open(open) = &self.stage {
            open.end();
        }
        self.stage = Stage::Shut;
        Seen { denied: std::mem::take(&mut self.denied), fault: self.fault.take() }
    }

    /// Whether it was the sandbox or its gate, and not the command of a secret, that was waited for.
    fn is_heard(&self) -> bool {
        let sockets: Vec<_> = match &self.stage {
            Stage::Absent | Stage::Shut => return false,
            Stage::Open(_) => return true,
            Stage::Idle(gate) => gate.sockets().map(|socket| (socket, Interest::Read)).collect(),
        };
        // Commands are rare: without one on its way it can only have been a socket.
        self.renewals.waits().next().is_none()
            || poll::wait(&sockets, Some(Duration::ZERO))
                .is_ok_and(|found| found.iter().any(|waited| waited.ready))
    }

    fn see(&mut self, event: &Event) {
        (self.tell)(event);
        if let Event::EgressDenied(EgressDenied { to, reason, count, .. }) = event {
            let what = format!("{to} ({reason})");
            if self.denied.len() < MOST_DENIALS || self.denied.contains_key(&what) {
                let known = self.denied.entry(what).or_default();
                *known = known.saturating_add(*count);
            }
        }
    }

    /// Takes packets, records what they tell, and answers.
    fn take(&mut self, mut open: Open, log: &mut TaskLog, most: u32) -> Stage {
        for _ in 0..most {
            let why = match open.intake.take() {
                Ok(Taken::Nothing) => return Stage::Open(open),
                Ok(Taken::Applied(change)) => {
                    self.applied = self.applied.max(change);
                    continue;
                }
                Ok(Taken::Events { id, synced, events }) => match record(log, &events, synced) {
                    Ok(()) => {
                        events.iter().for_each(|event| self.see(event));
                        if open.intake.reply(id, true).is_ok() {
                            continue;
                        }
                        "the gate is gone".to_owned()
                    }
                    Err(why) => {
                        let _ = open.intake.reply(id, false);
                        format!("the network was cut, for the record can not be written: {why}")
                    }
                },
                Ok(Taken::End) => "the gate is gone".to_owned(),
                Err(error) => chain(&error),
            };
            open.end();
            self.fault = Some(why);
            return Stage::Shut;
        }
        Stage::Open(open)
    }
}

// === impl Open ===

impl Open {
    /// Gives the gate a newer value. One that does not arrive leaves the old one, until its end.
    fn renew(&self, secret: &Secret) {
        let Ok(value) = std::str::from_utf8(secret.expose()) else { return };
        let renewed = Renewed {
            name: secret.name().as_str().to_owned(),
            value: Zeroizing::new(value.to_owned()),
            expires_unix_millis: secret.expires_unix_millis(),
        };
        let _ = self.intake.renew(renewed);
    }

    fn end(&self) {
        let _ = process::send_signal(self.pidfd.as_fd(), SIGKILL);
        let _ = process::reap(&self.pidfd);
    }
}

fn record(log: &mut TaskLog, events: &[Event], synced: bool) -> Result<(), String> {
    log.append_all(unix_millis(), events).map_err(|error| chain(&error))?;
    if synced { log.sync().map_err(|error| chain(&error)) } else { Ok(()) }
}
