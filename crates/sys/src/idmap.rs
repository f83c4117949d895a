//! A user namespace that exists only as a mapping, for id-mapped mounts.

use crate::launch::clone::plain_arguments;
use crate::raw::syscall;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// One range of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// A mapping in which files of `owner` are seen as `sandbox`'s, and those of `sandbox` as `owner`'s;
/// every other id is itself. The way back matters too: whoever mounts an overlay with such layers
/// makes its working folder as themselves, and often they are the owner.
pub fn exchange(owner: u32, sandbox: u32) -> Vec<Range> {
    let (low, high) = (owner.min(sandbox), owner.max(sandbox));
    let same = |from: u32, to: u32| Range { inside: from, outside: from, count: to.saturating_sub(from) };
    let one = |inside, outside| Range { inside, outside, count: 1 };
    [same(0, low), one(low, high), same(low + 1, high), one(high, low), same(high + 1, u32::MAX)]
        .into_iter()
        .filter(|range| range.count > 0)
        .collect()
}

/// Makes the namespace. Needs root in the host's user namespace.
pub fn namespace(uids: &[Range], gids: &[Range]) -> io::Result<OwnedFd> {
    let mut pidfd = -1_i32;
    let mut args = plain_arguments((libc::CLONE_NEWUSER | libc::CLONE_PIDFD | libc::CLONE_FILES) as u64);
    args.pidfd = std::ptr::from_mut(&mut pidfd) as u64;
    let pointer = std::ptr::from_mut(&mut args) as usize;
    let parent = crate::process::own_pid();
    // SAFETY: a fork with its own copy of memory; the child only sleeps until it is killed.
    let pid = unsafe { syscall(libc::SYS_clone3, [pointer, size_of::<libc::clone_args>(), 0, 0, 0, 0]) }?;
    if pid == 0 {
        crate::process::end_with(parent);
        loop {
            // SAFETY: no arguments.
            let _ = unsafe { syscall(libc::SYS_pause, [0; 6]) };
        }
    }
    // SAFETY: the kernel stored a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    let result = map_and_open(pid, uids, gids);
    // SAFETY: the child is ours and not yet waited for, so the number is still its.
    let _ = unsafe { syscall(libc::SYS_kill, [pid, libc::SIGKILL as usize, 0, 0, 0, 0]) };
    crate::process::reap(&pidfd);
    result
}

fn map_and_open(pid: usize, uids: &[Range], gids: &[Range]) -> io::Result<OwnedFd> {
    std::fs::write(format!("/proc/{pid}/uid_map"), lines(uids))?;
    std::fs::write(format!("/proc/{pid}/gid_map"), lines(gids))?;
    std::fs::File::open(format!("/proc/{pid}/ns/user")).map(OwnedFd::from)
}

fn lines(ranges: &[Range]) -> String {
    ranges.iter().fold(String::new(), |mut text, range| {
        use std::fmt::Write as _;
        let _ = writeln!(text, "{} {} {}", range.inside, range.outside, range.count);
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_maps_the_owner_and_overlaps_nowhere() {
        for (owner, sandbox) in [(0, 7), (1000, 7_000_000), (7, 0), (65_534, 1)] {
            let ranges = exchange(owner, sandbox);
            let seen = |id: u32| {
                ranges
                    .iter()
                    .find(|r| id >= r.inside && u64::from(id) < u64::from(r.inside) + u64::from(r.count))
                    .map(|r| r.outside + (id - r.inside))
            };
            assert_eq!(seen(owner), Some(sandbox));
            assert_eq!(seen(sandbox), Some(owner));
            for other in [2, 999, 65_535, 4_000_000] {
                assert_eq!(seen(other), Some(other));
            }
        }
    }
}
