//! Stopping every process of a sandbox, and letting them go on.

use crate::cgroup::Cgroup;
use fumehood_backend::FreezeError;
use std::io;

/// Stops everybody in a sandbox's cgroup, or lets them go on.
///
/// # Errors
/// There is none that can be frozen, or they did not stop in time, and then all go on.
pub fn set(cgroup: Option<&Cgroup>, frozen: bool) -> Result<(), FreezeError> {
    let cgroup = cgroup.ok_or_else(no_freezer)?;
    cgroup.freeze(frozen).map_err(|error| not_frozen(&error))
}

/// What stops processes against their will is the kernel's freezer alone. Signals do not: a timer of the sandbox's
/// own can send the one that lets a stopped process go on.
fn no_freezer() -> FreezeError {
    FreezeError {
        why: "no cgroup that can be frozen is ours on this host".to_owned(),
        remedy: "run as root, or where systemd delegates a cgroup to you: `fumehood doctor` says how"
            .to_owned(),
        unsupported: true,
    }
}

fn not_frozen(error: &io::Error) -> FreezeError {
    if error.kind() == io::ErrorKind::Unsupported {
        return no_freezer();
    }
    let (why, remedy) = if error.kind() == io::ErrorKind::TimedOut {
        (
            "a process did not stop within five seconds, so all go on".to_owned(),
            "try again: it was in a call that the kernel does not interrupt",
        )
    } else {
        (error.to_string(), "`fumehood doctor` looks at what this host can hold")
    };
    FreezeError { why, remedy: remedy.to_owned(), unsupported: false }
}
