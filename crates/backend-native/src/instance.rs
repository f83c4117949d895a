//! A live sandbox of this level.

use crate::bare::Held;
use crate::broker::Brokered;
use crate::cgroup::Cgroup;
use crate::control::Control;
use crate::identity::Identity;
use crate::{freeze, orphans, syscalls, usage};
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Event, ExecError, FreezeError, GuestStdio, Instance, Live, Meters};
use fumehood_model::exec::ExecRequest;
use fumehood_sys::launch::{Beside, Spawned};
use fumehood_sys::notify::Listener;
use fumehood_sys::poll::{self, Interest, Joined};
use fumehood_sys::{process, terminal};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

/// A live sandbox: its first process, the socket to it, and what limits it.
#[derive(Debug)]
pub(crate) struct NativeInstance {
    parts: Parts,
    /// The control socket and the filter's listener.
    events: Joined,
    exec: Option<u32>,
    /// Our sides of terminals that were made here, to be told, and whose they are.
    terminals: VecDeque<(u32, OwnedFd)>,
    frozen: bool,
    cpu_ms: u64,
    peak_bytes: u64,
}

/// What a launch leaves in the keeper's hands.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Held: the kernel uid is this sandbox's until the keeper lets go of it.
    pub(crate) identity: Identity,
    /// Held: the folder that is shown as `/etc` stays while the keeper lives.
    pub(crate) _etc: Option<std::fs::File>,
    pub(crate) cgroup: Option<Cgroup>,
    pub(crate) spawned: Spawned,
    pub(crate) control: Control,
    pub(crate) output: Option<OwnedFd>,
    pub(crate) root: Option<OwnedFd>,
    pub(crate) listener: Option<Listener>,
    pub(crate) gateway: Option<Gateway>,
    /// Where it has no PID namespace: what has to be held for it, and the mark of that.
    pub(crate) held: Option<Held>,
    /// Those who made its network and its root beside us: waited for at the end, when they are long gone.
    pub(crate) _makers: [Option<Beside>; 3],
}

/// Calls that are answered before the keeper looks at everything else again.
const CALLS_AT_ONCE: u32 = 64;

// === impl NativeInstance ===

impl NativeInstance {
    pub(crate) fn new(parts: Parts) -> io::Result<Self> {
        let listener = parts.listener.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let events = Joined::new(&[parts.control.events(), listener.as_fd()])?;
        Ok(Self {
            parts,
            events,
            exec: None,
            terminals: VecDeque::new(),
            frozen: false,
            cpu_ms: 0,
            peak_bytes: 0,
        })
    }

    /// It was launched with this command.
    pub(crate) fn runs(&mut self, exec: u32) {
        self.exec = Some(exec);
    }

    /// Whether its first process lives and waits for a command: it has not ended, not said anything, and met
    /// no wall.
    pub(crate) fn is_idle(&self) -> bool {
        let quiet =
            [(self.parts.spawned.pidfd.as_fd(), Interest::Read), (self.events.as_fd(), Interest::Read)];
        let waited = poll::wait(&quiet, Some(Duration::ZERO));
        self.exec.is_none() && waited.is_ok_and(|waited| waited.iter().all(|one| !one.ready && !one.hangup))
    }

    /// Ends a sandbox that nobody will use, and removes all of it.
    pub(crate) fn abandon(mut self) {
        self.kill();
        process::reap(&self.parts.spawned.pidfd);
        if let Some(cgroup) = &self.parts.cgroup {
            let folders: Vec<_> = cgroup.folders().into_iter().cloned().collect();
            // A folder that stays is found again by its name.
            let _ = crate::cgroup::remove(&folders);
        }
    }

    /// A terminal that is made outside, as the guest's three streams. Our side is told as an event.
    fn make_terminal(request: &ExecRequest) -> Result<(OwnedFd, GuestStdio), ExecError> {
        let size = request.terminal.map_or((0, 0), |size| (size.rows, size.columns));
        let made = terminal::pair(size).and_then(|(ours, theirs)| {
            let [stdin, stdout] = [theirs.try_clone()?, theirs.try_clone()?];
            Ok((ours, GuestStdio::Pipes { stdin, stdout, stderr: theirs }))
        });
        made.map_err(|_| ExecError::Exhausted)
    }

    /// Starts a command; with `once`, its end is the end of the guest.
    fn start(&mut self, request: &ExecRequest, stdio: GuestStdio, once: bool) -> Result<u32, ExecError> {
        let (ours, stdio) = match stdio {
            // None can be opened there.
            GuestStdio::Terminal if self.parts.held.is_some() => {
                let (ours, stdio) = Self::make_terminal(request)?;
                (Some(ours), stdio)
            }
            GuestStdio::Terminal | GuestStdio::Pipes { .. } => (None, stdio),
        };
        let request = ExecRequest {
            terminal: request.terminal.filter(|_| self.parts.held.is_none()),
            ..request.clone()
        };
        let exec = self.parts.control.exec(&request, stdio, once)?;
        self.terminals.extend(ours.map(|ours| (exec, ours)));
        Ok(exec)
    }

    /// Answers the calls that wait, up to one that is refused.
    fn next_refusal(&mut self) -> Option<Event> {
        let listener = self.parts.listener.as_ref()?;
        let broker = self.parts.held.as_ref().and_then(|held| held.broker.as_ref());
        for _ in 0..CALLS_AT_ONCE {
            let call = listener.next()?;
            let (syscall, errno) = match broker.and_then(|broker| broker.serve(&call, listener)) {
                None => syscalls::refusal(call.number),
                Some(Brokered::Denied) => (syscalls::ELSEWHERE, libc::EPERM),
                Some(Brokered::Done) => {
                    let _ = listener.done(call);
                    continue;
                }
                Some(Brokered::Failed(errno)) => {
                    let _ = listener.refuse(call, errno);
                    continue;
                }
            };
            let _ = listener.refuse(call, errno);
            return Some(Event::Denied { syscall });
        }
        None
    }
}

impl Instance for NativeInstance {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<(), ExecError> {
        self.exec = Some(self.start(request, stdio, true)?);
        Ok(())
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn next_event(&mut self) -> Option<Event> {
        self.next_numbered().map(|(_, event)| event)
    }

    fn signal(&mut self, signal: i32) -> Result<(), ExecError> {
        match self.exec {
            Some(exec) => self.parts.control.signal(exec, signal),
            None => Err(ExecError::Silent),
        }
    }

    fn dial(&mut self, port: u16) -> Result<u32, ExecError> {
        self.parts.control.dial(port)
    }

    fn kill(&mut self) {
        if self.parts.held.is_some() {
            // Its first process ends all others, and then itself; where it is gone, that is for us.
            self.parts.control.hang_up();
            orphans::end(self.parts.spawned.pid);
            return;
        }
        // The whole pid namespace goes with its first process.
        let _ = process::send_signal(self.parts.spawned.pidfd.as_fd(), 9);
        if self.frozen {
            // A version 1 cgroup holds even those that are to end.
            let _ = self.parts.cgroup.as_ref().map(|cgroup| cgroup.freeze(false));
            self.frozen = false;
        }
    }

    fn wait_gone(&mut self, limit: Duration) -> bool {
        // The first process is gone only when its whole pid namespace is.
        let gone = process::wait_gone(self.parts.spawned.pidfd.as_fd(), limit).unwrap_or(false);
        gone && (self.parts.held.is_none() || orphans::end(self.parts.spawned.pid))
    }

    fn meters(&mut self) -> Meters {
        let disk_full = self.parts.root.as_ref().is_some_and(usage::is_full);
        match &self.parts.cgroup {
            Some(cgroup) => {
                let counters = cgroup.counters();
                Meters {
                    cpu_ms: self.cpu_ms,
                    memory_bytes: counters.memory_bytes,
                    peak_memory_bytes: counters.peak_bytes,
                    oom_kills: counters.oom_kills,
                    fork_failures: counters.fork_failures,
                    disk_bytes: None,
                    disk_full,
                }
            }
            None => {
                let tree = usage::of_tree(self.parts.spawned.pid);
                self.cpu_ms = self.cpu_ms.max(tree.cpu_ms);
                self.peak_bytes = self.peak_bytes.max(tree.resident_bytes);
                Meters {
                    cpu_ms: self.cpu_ms,
                    memory_bytes: Some(tree.resident_bytes),
                    peak_memory_bytes: Some(self.peak_bytes),
                    disk_full,
                    ..Meters::default()
                }
            }
        }
    }

    fn take_gateway(&mut self) -> Option<Gateway> {
        self.parts.gateway.take()
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.parts.output.as_ref().map(|folder| folder.as_fd())
    }

    fn live(&mut self) -> Option<&mut dyn Live> {
        Some(self)
    }
}

impl Live for NativeInstance {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<u32, ExecError> {
        self.start(request, stdio, false)
    }

    fn next_numbered(&mut self) -> Option<(u32, Event)> {
        let terminal = self.terminals.pop_front().map(|(exec, ours)| (exec, Event::Terminal(ours)));
        terminal
            .or_else(|| self.parts.control.next_numbered())
            .or_else(|| self.next_refusal().map(|event| (0, event)))
    }

    fn pid(&self, exec: u32) -> Option<u32> {
        self.parts.control.pid(exec)
    }

    fn signal(&mut self, exec: u32, signal: i32) -> Result<(), ExecError> {
        self.parts.control.signal(exec, signal)
    }

    fn freeze(&mut self) -> Result<(), FreezeError> {
        freeze::set(self.parts.cgroup.as_ref(), true)?;
        self.frozen = true;
        Ok(())
    }

    fn thaw(&mut self) -> Result<(), FreezeError> {
        freeze::set(self.parts.cgroup.as_ref(), false)?;
        self.frozen = false;
        Ok(())
    }

    fn push_out(&mut self) -> u64 {
        self.parts.cgroup.as_ref().map_or(0, Cgroup::push_out)
    }

    fn cpu_ms(&mut self) -> u64 {
        let counted = self.parts.cgroup.as_ref().and_then(Cgroup::cpu_ms);
        let now = counted.unwrap_or_else(|| usage::of_tree(self.parts.spawned.pid).cpu_ms);
        self.cpu_ms = self.cpu_ms.max(now);
        self.cpu_ms
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        self.parts.root.as_ref().filter(|_| self.parts.held.is_none()).map(|root| root.as_fd())
    }

    fn owner(&self) -> (u32, u32) {
        self.parts.identity.kernel
    }
}

impl Drop for NativeInstance {
    /// Ends the guest whatever happened. What it leaves is removed by [`fumehood_backend::Backend::reap`], which need
    /// not be waited for: taking namespaces apart keeps the kernel busy for milliseconds.
    fn drop(&mut self) {
        self.kill();
    }
}
