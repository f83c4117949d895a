//! Published ports: a connection to the host's loopback becomes one to a server inside.
//!
//! The first process inside makes the connection and hands it over, so that servers on the loopback of the
//! sandbox are reached; a *porter*, another process that has nothing but such pairs, carries the bytes.

use super::confined::{self, Role};
use fumehood_backend::{Instance, MOST_CALLS};
use fumehood_model::egress::Publish;
use fumehood_model::ending::Ending;
use fumehood_sys::process;
use fumehood_sys::socket::{self, discard};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// Where no descriptor is free, one will be.
const PAUSE: Duration = Duration::from_millis(50);

/// The published ports of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    /// Listeners on the host's loopback, and the port inside that each leads to.
    doors: Vec<(TcpListener, u16)>,
    /// Connections that wait for their other half, by the number of the call.
    waiting: BTreeMap<u32, OwnedFd>,
    porter: Option<Porter>,
    /// No porter is made any more: this process has more than one thread, or may have.
    staffed: bool,
    /// Until when nothing is taken: no descriptor was free for it, and who waits at a door stays there.
    pause: Option<Instant>,
}

/// Which ports of the host lead inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ports {
    /// Those of the envelope.
    Named,
    /// As many that are free: another sandbox has those of the envelope.
    Free,
}

/// The process that carries.
#[derive(Debug)]
struct Porter {
    pairs: OwnedFd,
    pidfd: OwnedFd,
}

// === impl Publisher ===

impl Publisher {
    /// Listens. Before anything is launched: a port that is taken is a run that does not start.
    pub(crate) fn open(ports: &[Publish], choice: Ports) -> Result<Self, Ending> {
        let mut doors = Vec::new();
        for publish in ports {
            let wanted = match choice {
                Ports::Named => publish.host_port,
                Ports::Free => 0,
            };
            let listen =
                TcpListener::bind((Ipv4Addr::LOCALHOST, wanted)).map_err(|error| taken(publish, &error))?;
            let found = listen.local_addr().map_err(|error| failed(&error))?.port();
            doors.push((listen, publish.port));
            // Without version 6 the other one is enough.
            if let Ok(listen) = TcpListener::bind((Ipv6Addr::LOCALHOST, found)) {
                doors.push((listen, publish.port));
            }
        }
        for (door, _) in &doors {
            door.set_nonblocking(true).map_err(|error| failed(&error))?;
        }
        Ok(Self { doors, ..Self::default() })
    }

    /// Which port of the host leads where.
    pub(crate) fn published(&self) -> impl Iterator<Item = Publish> + '_ {
        let led = |(door, port): &(TcpListener, u16)| {
            let address = door.local_addr().ok().filter(|address| address.is_ipv4())?;
            Some(Publish { host_port: address.port(), port: *port })
        };
        self.doors.iter().filter_map(led)
    }

    /// Whether a porter may still be made.
    pub(crate) fn will_fork(&self) -> bool {
        !self.doors.is_empty() && !self.staffed
    }

    /// Makes the porter now, if there is something for it to do, and never another one: for a keeper that will have
    /// more threads.
    ///
    /// Preconditions: this process has one thread.
    pub(crate) fn staff(&mut self, forget: impl FnOnce()) {
        if self.will_fork() {
            // Without it the keeper carries.
            self.porter = Porter::start(forget).ok();
        }
        self.staffed = true;
    }

    /// Carries nothing, or goes on.
    pub(crate) fn hold(&mut self, held: bool) {
        if let Some(porter) = &self.porter {
            let _ = process::send_signal(porter.pidfd.as_fd(), if held { SIGSTOP } else { SIGCONT });
        }
    }

    /// When the doors are to be looked at again, whatever waits there.
    pub(crate) fn alarm(&self) -> Option<Instant> {
        self.pause
    }

    /// What has to be waited for: nothing while as many wait inside as may, or no descriptor is free.
    pub(crate) fn waits(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let room = self.waiting.len() < MOST_CALLS && self.pause.is_none();
        self.doors.iter().map(|(door, _)| door.as_fd()).filter(move |_| room)
    }

    /// Takes connections in, and asks for their other half.
    pub(crate) fn advance(&mut self, instance: &mut dyn Instance) {
        self.pause = None;
        for (door, port) in &self.doors {
            while self.waiting.len() < MOST_CALLS {
                match door.accept() {
                    Ok((stream, _)) => {
                        // One that can not be led on is closed: its client sees that nobody is there.
                        if let Ok(call) = instance.dial(*port) {
                            self.waiting.insert(call, stream.into());
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // The client is gone already; the next one may not be.
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(_) => {
                        // It waits there still, and would wake us for ever.
                        self.pause = Some(Instant::now() + PAUSE);
                        break;
                    }
                }
            }
        }
    }

    /// The other half has come, or will not. `forget` is done in a porter that is made for it. Gives both halves back, the
    /// host's first, where no porter takes them and none is made: then the caller carries.
    pub(crate) fn dialled(
        &mut self,
        call: u32,
        result: io::Result<OwnedFd>,
        forget: impl FnOnce(),
    ) -> Option<(OwnedFd, OwnedFd)> {
        let host = self.waiting.remove(&call)?;
        let guest = result.ok()?;
        let porter = match self.porter.take() {
            None if !self.staffed => Porter::start(forget).ok(),
            kept => kept,
        };
        if let Some(porter) = porter {
            let sent = socket::send(porter.pairs.as_fd(), &[0], &[host.as_fd(), guest.as_fd()]);
            // A porter that is gone is replaced with the next connection, where there may be another.
            if sent.is_ok() {
                self.porter = Some(porter);
                discard(guest);
                return None;
            }
        }
        if self.staffed {
            return Some((host, guest));
        }
        discard(guest);
        None
    }
}

impl Drop for Porter {
    fn drop(&mut self) {
        let _ = process::send_signal(self.pidfd.as_fd(), SIGKILL);
        let _ = process::reap(&self.pidfd);
    }
}

// === impl Porter ===

impl Porter {
    fn start(forget: impl FnOnce()) -> io::Result<Self> {
        let (pairs, theirs) = socket::pair()?;
        process::set_nonblocking(&pairs, true)?;
        let role = Role { name: c"fumehood-porter", readable: &[], kept: vec![theirs.as_raw_fd()] };
        let pidfd = confined::fork(role, forget, || fumehood_egress::porter::carry(theirs))?;
        Ok(Self { pairs, pidfd })
    }
}

fn taken(publish: &Publish, error: &io::Error) -> Ending {
    let Publish { host_port, port } = publish;
    let other = host_port.checked_add(1).unwrap_or(8080);
    Ending::NotStarted {
        step: format!("listen on port {host_port} of the host's loopback"),
        why: error.to_string(),
        remedy: format!("lead another port there: `--publish {other}:{port}`"),
    }
}

fn failed(error: &io::Error) -> Ending {
    Ending::NotStarted {
        step: "publish a port".to_owned(),
        why: error.to_string(),
        remedy: "`fumehood doctor` looks at what this host can hold".to_owned(),
    }
}
