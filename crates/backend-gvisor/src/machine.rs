//! The processes that are a guest's machine, and what belongs to it on the host.

use crate::bundle::GUESTD_PATH as PROGRAM;
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{FreezeError, Meters};
use fumehood_backend_native::cgroup::Cgroup;
use fumehood_backend_native::identity::Identity;
use fumehood_backend_native::{freeze, usage};
use fumehood_guest::instance::Machine;
use fumehood_sys::launch::{Beside, Spawned};
use fumehood_sys::process::{self, Ended};
use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

const SIGKILL: i32 = 9;
/// How much of what `runsc` says is kept.
const WORDS_BYTES: usize = 4096;

/// A `runsc` that runs, in its namespaces.
#[derive(Debug)]
pub(crate) struct Sandbox {
    /// The guest's, and that of `runsc`. Held: the kernel uids are this sandbox's until the keeper lets go of them.
    pub(crate) identities: [Identity; 2],
    /// Held: the folder that is shown as `/etc` stays while the keeper lives.
    pub(crate) _etc: Option<File>,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) spawned: Spawned,
    pub(crate) output: Option<OwnedFd>,
    pub(crate) root: Option<OwnedFd>,
    pub(crate) gateway: Option<Gateway>,
    /// What `runsc` writes to its standard error.
    pub(crate) words: File,
    pub(crate) frozen: bool,
    /// The most processor time that was seen.
    pub(crate) cpu_ms: u64,
    pub(crate) _makers: [Option<Beside>; 3],
}

// === impl Sandbox ===

impl Sandbox {
    /// The last line that `runsc` wrote, made safe to show.
    pub(crate) fn words(&mut self) -> Option<String> {
        let mut room = [0; WORDS_BYTES];
        let count = self.words.read(&mut room).unwrap_or(0);
        let text = String::from_utf8_lossy(room.get(..count).unwrap_or_default()).into_owned();
        let line = text.lines().rfind(|line| !line.trim().is_empty())?;
        let line: String = line.chars().filter(|letter| !letter.is_control()).take(300).collect();
        Some(line)
    }
}

impl Machine for Sandbox {
    fn gone(&self) -> Option<BorrowedFd<'_>> {
        Some(self.spawned.pidfd.as_fd())
    }

    fn last_words(&mut self) -> Option<String> {
        let words = self.words();
        // It closes its streams a moment before it is gone.
        let _ = process::wait_gone(self.spawned.pidfd.as_fd(), Duration::from_millis(200));
        let how = match process::try_reap(&self.spawned.pidfd) {
            Some(Ended::Exited(code)) => format!("runsc ended with code {code}"),
            Some(Ended::Signalled(signal)) => format!("runsc was ended by signal {signal}"),
            None => "gVisor let go of its stream".to_owned(),
        };
        Some(words.map_or(how.clone(), |words| format!("{how}: {words}")))
    }

    fn kill(&mut self) {
        // The whole pid namespace goes with its first process, which is `runsc` itself.
        let _ = process::send_signal(self.spawned.pidfd.as_fd(), SIGKILL);
        if self.frozen {
            // A version 1 cgroup holds even those that are to end.
            let _ = freeze::set(self.cgroup.as_ref(), false);
            self.frozen = false;
        }
    }

    fn wait_gone(&mut self, limit: Duration) -> bool {
        process::wait_gone(self.spawned.pidfd.as_fd(), limit).unwrap_or(false)
    }

    fn meters(&mut self) -> Meters {
        let disk_full = self.root.as_ref().is_some_and(usage::is_full);
        let counters = self.cgroup.as_ref().map(Cgroup::counters).unwrap_or_default();
        Meters {
            cpu_ms: 0,
            memory_bytes: counters.memory_bytes,
            peak_memory_bytes: counters.peak_bytes,
            oom_kills: counters.oom_kills,
            fork_failures: counters.fork_failures,
            disk_bytes: None,
            disk_full,
        }
    }

    fn freeze(&mut self) -> Result<(), FreezeError> {
        freeze::set(self.cgroup.as_ref(), true)?;
        self.frozen = true;
        Ok(())
    }

    fn thaw(&mut self) -> Result<(), FreezeError> {
        freeze::set(self.cgroup.as_ref(), false)?;
        self.frozen = false;
        Ok(())
    }

    fn push_out(&mut self) -> u64 {
        self.cgroup.as_ref().map_or(0, Cgroup::push_out)
    }

    fn cpu_ms(&mut self) -> u64 {
        let counted = self.cgroup.as_ref().and_then(Cgroup::cpu_ms);
        self.cpu_ms = self.cpu_ms.max(counted.unwrap_or_else(|| usage::of_tree(self.spawned.pid).cpu_ms));
        self.cpu_ms
    }

    fn owner(&self) -> (u32, u32) {
        let [guest, _] = &self.identities;
        guest.kernel
    }

    fn program(&self) -> &'static str {
        PROGRAM
    }

    fn take_gateway(&mut self) -> Option<Gateway> {
        self.gateway.take()
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(|folder| folder.as_fd())
    }
}
