//! Launching: a prepared list of operations, applied by one loop in a child that shares our memory.
//!
//! [`spawn`] makes the child with `clone3(CLONE_VM | CLONE_VFORK | namespaces)`: no page table is
//! copied, and the caller sleeps until the child has executed its program or has failed. Because
//! memory is shared, a failed step is reported by a plain store. Because the caller sleeps, nothing
//! else touches that memory meanwhile (the keeper is single-threaded when it launches).
//!
//! **Invariant:** between `clone3` and `execve` the child allocates nothing, takes no lock, and never
//! returns into the caller's frames.

mod beside;
pub(crate) mod clone;
mod command;
mod ids;
mod lockdown;
mod mount;
mod net;
pub(crate) mod node;
mod op;

pub use beside::Beside;
pub use command::Command;
pub use lockdown::MOST_ARGUMENTS;
pub(crate) use mount::detached;
pub use net::{Addresses, Gateway, GatewayShape, Listeners, MOST_PORTS};
pub use op::{Attributes, Op, Owner, Program, Root};

use crate::raw::Errno;
use std::io;
use std::os::fd::OwnedFd;

/// Namespaces that a child is born into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Process ids: without, the child is one of the caller's own.
    pub pids: bool,
    pub user: bool,
    /// Mount; otherwise a prepared one is entered.
    pub mounts: bool,
    /// Network, ipc and uts; otherwise prepared ones are entered, or the caller's kept.
    pub quiet: bool,
    /// Uts alone.
    pub names: bool,
}

/// A child that has executed its program.
#[derive(Debug)]
pub struct Spawned {
    pub pid: i32,
    pub pidfd: OwnedFd,
}

/// Why there is no child.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    #[error("make the namespaces")]
    Clone(#[source] io::Error),
    #[error("{step}")]
    Step {
        /// The phrase that the step was given when it was prepared.
        step: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("wait for the program to be executed")]
    Died,
}

/// Starts `program` in a child with the namespaces in `namespaces`.
pub fn spawn(
    program: &Program,
    namespaces: Namespaces,
    cgroup: Option<&OwnedFd>,
) -> Result<Spawned, SpawnError> {
    let outcome = op::Outcome::default();
    let spawned =
        clone::vm_child(namespaces, cgroup, &|| program.apply(&outcome)).map_err(SpawnError::Clone)?;
    match outcome.fate() {
        op::Fate::Executing => Ok(spawned),
        op::Fate::Failed { step, errno: Errno(errno) } => {
            crate::process::reap(&spawned.pidfd);
            let step = program.phrase(step);
            Err(SpawnError::Step { step, source: io::Error::from_raw_os_error(errno) })
        }
        op::Fate::Running => {
            crate::process::reap(&spawned.pidfd);
            Err(SpawnError::Died)
        }
    }
}

/// Applies `program`, which executes nothing, in a child with namespaces of its own, and lets all of it go again.
///
/// # Errors
/// The step that failed.
pub fn try_out(program: &Program, namespaces: Namespaces) -> Result<(), SpawnError> {
    match spawn(program, namespaces, None) {
        // It came to the end of its program, and had nothing to become.
        Err(SpawnError::Died) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(SpawnError::Died),
    }
}
