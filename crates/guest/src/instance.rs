//! A guest behind a stream, as a backend's instance.

use crate::frame::Size;
use crate::host::{Host, Terms};
use crate::session::Session;
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Event, ExecError, GuestStdio, Instance, Meters};
use fumehood_model::exec::ExecRequest;
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// What holds a guest: the processes that are its machine, and what belongs to it on the host.
pub trait Machine: Debug {
    /// Readable once the machine is gone. Its stream ends then too, but may be held open by who is still dying.
    fn gone(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Why the guest went without a word, where that is known: a phrase about the machine.
    fn last_words(&mut self) -> Option<String> {
        None
    }

    /// Ends every process of the guest, now.
    fn kill(&mut self);

    /// Waits until every process of a guest that was killed is gone. Says whether they are.
    fn wait_gone(&mut self, limit: Duration) -> bool;

    /// What the guest has used so far, and which limits it met.
    fn meters(&mut self) -> Meters;

    /// The sockets of the guest's gateway, once.
    fn take_gateway(&mut self) -> Option<Gateway> {
        None
    }

    /// The guest's `/out`, where the host can see it.
    fn output(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A live guest. When it is dropped its machine is killed.
#[derive(Debug)]
pub struct GuestInstance<M: Machine> {
    host: Host,
    machine: M,
    exec: Option<u32>,
}

// === impl GuestInstance ===

impl<M: Machine> GuestInstance<M> {
    /// Greets the guest behind a stream, and waits until it answers.
    ///
    /// # Errors
    /// Those of [`Host::new`] and [`Host::await_ready`], with the machine, which is not killed.
    pub fn greet(
        (from, to): (OwnedFd, OwnedFd),
        terms: Terms,
        machine: M,
        patience: Duration,
    ) -> Result<Self, (io::Error, M)> {
        let host = Host::new(from, to, terms).and_then(|mut host| {
            machine.gone().map_or(Ok(()), |gone| host.watch_machine(gone))?;
            host.await_ready(patience).map(|()| host)
        });
        let host = match host {
            Ok(host) => host,
            Err(error) => return Err((error, machine)),
        };
        Ok(Self { host, machine, exec: None })
    }

    /// Goes on with a guest that was greeted already (see [`Host::resume`]).
    ///
    /// # Errors
    /// Those of [`Host::resume`], with the machine, which is not killed.
    pub fn resume(
        session: Session,
        (from, to): (OwnedFd, OwnedFd),
        terms: Terms,
        machine: M,
    ) -> Result<Self, (io::Error, M)> {
        let host = Host::resume(session, from, to, terms).and_then(|mut host| {
            machine.gone().map_or(Ok(()), |gone| host.watch_machine(gone)).map(|()| host)
        });
        match host {
            Ok(host) => Ok(Self { host, machine, exec: None }),
            Err(error) => Err((error, machine)),
        }
    }

    /// Whether the guest lives and waits for its first command.
    pub fn is_idle(&mut self) -> bool {
        self.host.pump();
        self.exec.is_none() && self.host.is_live()
    }

    /// The stream, for what an instance is not asked for: files, questions, more commands.
    pub fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    /// What holds the guest.
    pub fn machine(&mut self) -> &mut M {
        &mut self.machine
    }
}

impl<M: Machine> Instance for GuestInstance<M> {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<(), ExecError> {
        self.exec = Some(self.host.exec(request, stdio, true)?);
        Ok(())
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.host.events()
    }

    fn next_event(&mut self) -> Option<Event> {
        let event = self.host.next_event()?;
        if matches!(event, Event::Gone)
            && let Some(why) = self.machine.last_words()
        {
            return Some(Event::Lost { why });
        }
        Some(event)
    }

    fn carry(&mut self) -> Option<BorrowedFd<'_>> {
        self.host.carry()
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        if let Some(exec) = self.exec {
            self.host.resize(exec, Size { rows, columns });
        }
    }

    fn signal(&mut self, signal: i32) -> Result<(), ExecError> {
        match self.exec {
            Some(exec) => self.host.signal(exec, signal),
            None => Err(ExecError::Silent),
        }
    }

    fn kill(&mut self) {
        self.machine.kill();
    }

    fn wait_gone(&mut self, limit: Duration) -> bool {
        self.machine.wait_gone(limit)
    }

    fn meters(&mut self) -> Meters {
        self.machine.meters()
    }

    fn take_gateway(&mut self) -> Option<Gateway> {
        self.machine.take_gateway()
    }

    fn dial(&mut self, port: u16) -> Result<u32, ExecError> {
        self.host.dial(port)
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.machine.output()
    }
}

impl<M: Machine> Drop for GuestInstance<M> {
    fn drop(&mut self) {
        self.machine.kill();
    }
}
