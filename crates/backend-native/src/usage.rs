//! What a sandbox uses, where no cgroup counts it: read from the host's `/proc`.

use std::fs;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// The processes of one sandbox, taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeUsage {
    /// Resident memory, shared pages counted once for each process that has them: never too little.
    pub resident_bytes: u64,
    pub cpu_ms: u64,
    pub processes: u32,
}

const PAGE_BYTES: u64 = 4096;
/// `USER_HZ`, the unit of times in `/proc`, is 100 on every Linux of this kind.
const TICK_MS: u64 = 10;
/// More are not followed; the process limit is far below.
const PROCESS_LIMIT: usize = 100_000;

/// Adds up the tree beneath the first process of a sandbox. Orphans are its children, so all are there.
pub fn of_tree(first: i32) -> TreeUsage {
    let mut total = TreeUsage::default();
    let mut waiting = vec![first];
    while let Some(pid) = waiting.pop() {
        total.processes += 1;
        total.resident_bytes += resident(pid).unwrap_or(0);
        total.cpu_ms += times(pid).unwrap_or(0);
        if waiting.len() < PROCESS_LIMIT {
            waiting.extend(children(pid));
        }
    }
    total
}

/// Whether a memory-backed file system has no room left.
pub fn is_full(root: &OwnedFd) -> bool {
    fumehood_sys::host::free_blocks(root.as_raw_fd()).is_some_and(|free| free == 0)
}

fn resident(pid: i32) -> Option<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    statm.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * PAGE_BYTES)
}

/// User and system time of a process and of those of its children that it waited for.
fn times(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the fields after it are numbers.
    let (_, fields) = stat.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(ticks * TICK_MS)
}

/// Threads of a user, in all processes that can be seen.
pub(crate) fn threads_of(uid: u32) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == uid));
    ours.filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        // The number of threads is the twentieth field, the eighteenth after the name.
        stat.rsplit_once(") ")?.1.split(' ').nth(17)?.parse::<u64>().ok()
    })
    .sum()
}

pub(crate) fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}
