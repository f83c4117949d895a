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
use crate::raw::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A part in the making.
#[derive(Debug)]
pub struct Beside {
    companion: Companion<Work>,
}

#[derive(Debug)]
struct Work {
    program: Program,
    outcome: Arc<Outcome>,
}

// === impl Beside ===

impl Beside {
    /// Starts `program`, one step of which keeps what was made ([`super::Op::KeepQuiet`], [`super::Op::KeepMounts`]).
    pub fn start(program: Program) -> io::Result<Self> {
        let work = Work { program, outcome: Arc::default() };
        let companion = clone::companion(work, |work| {
            work.program.apply(&work.outcome);
            work.outcome.finish();
        })?;
        Ok(Self { companion })
    }

    /// Starts making a gateway, and joins it to the network namespace that `namespaces` makes, which must be
    /// the first of its products and not be taken before this one has finished.
    pub fn gateway(shape: GatewayShape, namespaces: &Self) -> io::Result<Self> {
        let sandbox = Arc::clone(&namespaces.companion.shared().outcome);
        let mut program = Program::default();
        program.push("make the gateway", Op::Gateway(Box::new(Gateway::beside(shape, sandbox))));
        Self::start(program)
    }

    /// What was made. Returns when it is there, though its maker may still be on its way out.
    pub fn finish(&self) -> Result<Vec<OwnedFd>, SpawnError> {
        let Work { program, outcome } = self.companion.shared();
        outcome.wait();
        match outcome.fate() {
            Fate::Failed { step, errno: Errno(errno) } => Err(SpawnError::Step {
                step: program.phrase(step),
                source: io::Error::from_raw_os_error(errno),
            }),
            Fate::Running | Fate::Executing => Ok(outcome.take_products()),
        }
    }
}

impl Drop for Beside {
    /// What was made and not taken goes: its maker may never be seen to be gone, and then its memory stays.
    fn drop(&mut self) {
        let outcome = &self.companion.shared().outcome;
        outcome.wait();
        drop(outcome.take_products());
    }
}
