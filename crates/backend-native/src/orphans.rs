//! What a sandbox without a PID namespace leaves when its first process is killed: its other processes, which the
//! kernel has given to us. Nothing in a process's parentage tells them from our own children, but that each has the
//! sandbox's system call filter.

use crate::usage;
use fumehood_sys::process;
use std::fs;
use std::os::fd::AsFd as _;
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

/// How many system call filters a process has.
fn filters(pid: i32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?.trim().parse().ok()
}
