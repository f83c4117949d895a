//! How a process of ours that reads what others wrote gives up what it does not need.

use crate::landlock::Ruleset;
use crate::raw::{Errno, syscall};
use std::io;

/// Asks to be killed with the process that forked us, unless it is gone already.
///
/// Preconditions: called after the last change of user, which would undo it. `parent` is the pid of the process
/// that forked.
///
/// # Errors
/// The parent is gone.
pub fn die_with(parent: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    unsafe {
        syscall(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0])
    }?;
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Becomes another user with no other groups. From root, every capability goes with it.
///
/// Preconditions: this process has one thread.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (user, group) = (uid as usize, gid as usize);
    // SAFETY: numbers only; with one thread, a raw call changes the whole process.
    unsafe { syscall(libc::SYS_setgroups, [0, 0, 0, 0, 0, 0]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresgid, [group, group, group, 0, 0, 0]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresuid, [user, user, user, 0, 0, 0]) }?;
    Ok(())
}

/// Gains no privilege by executing, and touches no file that `ruleset` does not name. For good.
///
/// Preconditions: this process has one thread.
pub fn restrict(ruleset: &Ruleset) -> io::Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) }?;
    ruleset.enforce().map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))
}

/// Lets this process open as many files as it may.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure of the kernel's layout.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above. What is refused stays as it was.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// The pid of this process.
pub fn own_pid() -> i32 {
    // SAFETY: no arguments, and it can not fail.
    unsafe { libc::getpid() }
}
