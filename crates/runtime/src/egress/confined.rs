//! Processes of ours that read what others wrote: forks of the keeper that keep a few descriptors and nothing
//! else, are another user, gain nothing, start nothing, and end with the keeper.

use crate::run::KEPT_CAPABILITIES;
use fumehood_sys::landlock::{self, Access, Ruleset};
use fumehood_sys::process::{self, Forked};
use fumehood_sys::{confine, host};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{OwnedFd, RawFd};

/// With root such a process is this user to the kernel, who owns nothing: the one before the users of sandboxes.
const USER: u32 = 0x6fff_ffff;

/// What such a process may hold in memory, whatever is sent to it: a sandbox's own bounds do not count it.
const MOST_MEMORY_BYTES: u64 = 1 << 30;

/// Libraries take randomness from here where they do not find the system call.
const RANDOM: [&str; 2] = ["/dev/urandom", "/dev/random"];

/// What such a process is.
#[derive(Debug)]
pub(crate) struct Role<'a> {
    /// As `ps` shows it.
    pub(crate) name: &'static CStr,
    /// The folders that it may read.
    pub(crate) readable: &'a [&'a str],
    /// The numbers of the descriptors that it keeps.
    pub(crate) kept: Vec<RawFd>,
}

/// Starts the process, which first does `forget`, for what is not its to know, then `work`, and ends. Gives the
/// handle of the process.
///
/// Preconditions: this process has one thread. It is looked at: the child of one with more can hang in a lock that nobody
/// lets go of.
pub(crate) fn fork(
    role: Role<'_>,
    forget: impl FnOnce(),
    work: impl FnOnce() -> io::Result<()>,
) -> io::Result<OwnedFd> {
    if process::threads()? != 1 {
        return Err(io::Error::other("nothing is forked while there is more than one thread"));
    }
    let parent = confine::own_pid();
    match process::fork()? {
        Forked::Parent { pid } => process::open_pidfd(pid),
        Forked::Child => {
            forget();
            // Whatever goes wrong in here ends what the process is for, and nothing else.
            let _ = confined(role, parent).and_then(|()| work());
            process::exit_now(0)
        }
    }
}

/// What the keeper needed for its forks to become another user is needed no more.
pub(crate) fn no_more_forks() -> io::Result<()> {
    process::keep_capabilities(&KEPT_CAPABILITIES)
}

fn confined(role: Role<'_>, parent: i32) -> io::Result<()> {
    let mut kept = role.kept;
    kept.sort_unstable();
    process::close_all_but(&kept);
    process::new_session();
    process::set_name(role.name);
    process::clear_command_line()?;
    process::block_all_signals();
    process::release_standard_streams()?;
    confine::raise_open_files();
    if host::euid() == 0 {
        confine::become_user(USER, USER)?;
    }
    process::keep_capabilities(&[])?;
    process::set_dumpable(false);
    confine::die_with(parent)?;
    confine::limit_memory(MOST_MEMORY_BYTES)?;
    confine::restrict(&ruleset(role.readable)?)?;
    confine::forbid()
}

/// It reads a few folders, and writes nothing.
fn ruleset(readable: &[&str]) -> io::Result<Ruleset> {
    let abi = landlock::abi().ok_or(io::ErrorKind::Unsupported)?;
    let mut ruleset = Ruleset::new(abi);
    for path in readable {
        ruleset.allow(CString::new(*path)?, Access::Read);
    }
    for path in RANDOM {
        ruleset.allow(CString::new(path)?, Access::ReadFile);
    }
    Ok(ruleset)
}
