//! The execs that run now.

use crate::wire::End;

/// How many commands may run at once. A bound, so that no memory need ever be asked for.
const ROOM: usize = 64;

/// One command that runs.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) exec: u32,
    pub(crate) pid: u32,
    pub(crate) once: bool,
}

/// All commands that run, in no order.
pub(crate) struct Table {
    entries: [Option<Entry>; ROOM],
}

// === impl Table ===

impl Table {
    pub(crate) const fn new() -> Self {
        Self { entries: [None; ROOM] }
    }

    /// A place for one more.
    pub(crate) fn vacancy(&mut self) -> Option<&mut Option<Entry>> {
        self.entries.iter_mut().find(|entry| entry.is_none())
    }

    /// The process of a running exec.
    pub(crate) fn pid(&self, exec: u32) -> Option<u32> {
        self.entries.iter().flatten().find(|entry| entry.exec == exec).map(|entry| entry.pid)
    }

    /// Forgets the exec of a process that was reaped, and with it the number that may be used again.
    pub(crate) fn remove(&mut self, pid: u32) -> Option<Entry> {
        self.entries.iter_mut().find(|entry| entry.is_some_and(|entry| entry.pid == pid))?.take()
    }
}

/// Unpacks the kernel's wait status of a process that has ended.
pub(crate) const fn how(status: u32) -> End {
    let [low, code, ..] = status.to_le_bytes();
    match low & 0x7f {
        0 => End::Exited(code),
        signal => End::Signalled(signal),
    }
}
