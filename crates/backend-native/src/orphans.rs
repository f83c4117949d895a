//! What a sandbox without a PID namespace leaves when its first process is killed: its other processes, which the
//! kernel has given to us. Nothing in a process's parentage tells them from our own children, but that each has the
//! sandbox's system call filter.

use crate::usage;
use fumehood_sys::process;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// What goes on making processes faster than they can be ended is given up after this.
const LIMIT: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(1);

/// Ends every one, and those that they leave in turn. Says whether none is left. `first` is the sandbox's first
/// process, which ends the others itself as long as it lives.
pub(crate) fn end(first: i32) -> bool {
    let Ok(own) = i32::try_from(std::process::id()) else { return false };
    let Some(ours) = filters(own) else { return false };
    let deadline = Instant::now() + LIMIT;
    loop {
        let left: Vec<i32> = usage::children(own)
            .into_iter()
            .filter(|pid| filters(*pid).is_some_and(|theirs| theirs > ours) && *pid != first)
            .collect();
        if left.is_empty() {
            return true;
        }
        for pid in left {
            // A child of ours keeps its number until we have waited for it.
            let Ok(pidfd) = process::open_pidfd(pid) else { continue };
            let _ = process::send_signal(pidfd.as_fd(), 9);
            let _ = process::try_reap(&pidfd);
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
}

/// Ends what works in `folder`, a dead sandbox's own, or has it among its variables. That is how it is known when
/// whoever it was a child of is dead too; it takes more than one death to come to that.
pub(crate) fn end_in(folder: &Path) {
    let own = std::process::id();
    let Some(ours) = i32::try_from(own).ok().and_then(filters) else { return };
    let deadline = Instant::now() + LIMIT;
    loop {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let left: Vec<i32> = pids.filter(|pid| is_of(*pid, folder, ours)).collect();
        if left.is_empty() || Instant::now() >= deadline {
            return;
        }
        for pid in left {
            // Held open, the number can not go to another process; so it is looked at once more.
            let Ok(pidfd) = process::open_pidfd(pid) else { continue };
            if is_of(pid, folder, ours) {
                let _ = process::send_signal(pidfd.as_fd(), 9);
            }
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether a process works in a folder or has it among its variables, behind more filters than `ours`.
fn is_of(pid: i32, folder: &Path, ours: u32) -> bool {
    let works = fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd.starts_with(folder));
    let name = folder.as_os_str().as_bytes();
    let named = || {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|variables| variables.windows(name.len()).any(|some| some == name))
    };
    (works || named()) && filters(pid).is_some_and(|theirs| theirs > ours)
}

/// How many system call filters a process has.
fn filters(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}
