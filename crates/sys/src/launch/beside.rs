//! Parts of a launch that are made beside us.
//!
//! The kernel takes long to make a network namespace, and to put some twenty mounts together. A
//! companion that shares our memory and descriptors applies a [`Program`] for each on another
//! processor, while we read arguments, write the record and prepare the rest. What it makes are
//! descriptors; nothing of it is seen by the host, and it vanishes with the last of them.

use super::clone::{self, Companion};
use super::net::{Gateway, GatewayShape};
use super::op::{Fate, Outcome};
use super::{Op, Program, SpawnError};
use crate::raw::{self, Errno};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

/// A part in the making.
#[derive(Debug)]
pub struct Beside {
    companion: Companion<Work>,
}

#[derive(Debug)]
struct Work {
    program: Program,
    rest: Rest,
    outcome: Arc<Outcome>,
}

/// What follows the program, where that was not known when it began.
#[derive(Debug)]
struct Rest {
    program: OnceLock<Program>,
    /// Whether it is settled what follows; waited on by address.
    settled: AtomicU32,
}

// === impl Beside ===

impl Beside {
    /// Starts `program`, one step of which keeps what was made ([`super::Op::KeepQuiet`], [`super::Op::KeepMounts`]).
    pub fn start(program: Program) -> io::Result<Self> {
        Self::run(program, Rest::none())
    }

    /// Starts `program`, and then waits for [`Beside::go_on`] to say what follows it.
    pub fn begin(program: Program) -> io::Result<Self> {
        Self::run(program, Rest::open())
    }

    fn run(program: Program, rest: Rest) -> io::Result<Self> {
        let work = Work { program, rest, outcome: Arc::default() };
        let companion = clone::companion(work, |Work { program, rest, outcome }| {
            program.apply(outcome);
            if let (Fate::Running, Some(rest)) = (outcome.fate(), rest.wait()) {
                rest.apply_after(program.len(), outcome);
            }
            outcome.finish();
        })?;
        Ok(Self { companion })
    }

    /// Says what follows a program that was begun. Only the first time counts.
    pub fn go_on(&self, program: Program) {
        self.companion.shared().rest.settle(Some(program));
    }

    /// Starts making what is the same for each gateway, for [`Beside::gateway`] to go on with.
    pub fn gateway_network() -> io::Result<Self> {
        let mut program = Program::default();
        program.push("make the gateway's network", Op::GatewayNetwork);
        Self::begin(program)
    }

    /// Starts making a gateway, from `network` on where that was begun, and joins it to the network namespace that
    /// `namespaces` makes, which must be the first of its products and not be taken before this one has finished.
    pub fn gateway(shape: GatewayShape, namespaces: &Self, network: Option<Self>) -> io::Result<Self> {
        let sandbox = Arc::clone(&namespaces.companion.shared().outcome);
        let gateway = Gateway::beside(shape, sandbox, network.is_some());
        let mut program = Program::default();
        program.push("make the gateway", Op::Gateway(Box::new(gateway)));
        match network {
            None => Self::start(program),
            Some(maker) => {
                maker.go_on(program);
                Ok(maker)
            }
        }
    }

    /// What was made. Returns when it is there, though its maker may still be on its way out.
    pub fn finish(&self) -> Result<Vec<OwnedFd>, SpawnError> {
        let Work { program, rest, outcome } = self.companion.shared();
        rest.settle(None);
        outcome.wait();
        match outcome.fate() {
            Fate::Failed { step, errno: Errno(errno) } => {
                let step = match (step.checked_sub(program.len()), rest.program.get()) {
                    (Some(later), Some(rest)) => rest.phrase(later),
                    _ => program.phrase(step),
                };
                Err(SpawnError::Step { step, source: io::Error::from_raw_os_error(errno) })
            }
            Fate::Running | Fate::Executing => Ok(outcome.take_products()),
        }
    }
}

impl Drop for Beside {
    /// What was made and not taken goes: its maker may never be seen to be gone, and then its memory stays.
    fn drop(&mut self) {
        let Work { rest, outcome, .. } = self.companion.shared();
        rest.settle(None);
        outcome.wait();
        drop(outcome.take_products());
    }
}

// === impl Rest ===

impl Rest {
    fn none() -> Self {
        Self { program: OnceLock::new(), settled: AtomicU32::new(1) }
    }

    fn open() -> Self {
        Self { program: OnceLock::new(), settled: AtomicU32::new(0) }
    }

    /// Says what follows: this, or nothing.
    fn settle(&self, program: Option<Program>) {
        if self.settled.load(Ordering::Acquire) != 0 {
            return;
        }
        if let Some(program) = program {
            let _ = self.program.set(program);
        }
        self.settled.store(1, Ordering::Release);
        raw::wake(&self.settled);
    }

    /// Sleeps until it is settled. Kernel calls only.
    fn wait(&self) -> Option<&Program> {
        while self.settled.load(Ordering::Acquire) == 0 {
            raw::wait(&self.settled, 0);
        }
        self.program.get()
    }
}
