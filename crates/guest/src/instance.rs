//! A guest behind a stream, as a backend's instance.

use crate::frame::Size;
use crate::host::{Host, Terms};
use crate::session::Session;
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Event, ExecError, FreezeError, GuestStdio, Instance, Live, Meters};
use fumehood_model::exec::ExecRequest;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt::Debug;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

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

    /// Stops every process of the guest where it is.
    ///
    /// # Errors
    /// As [`Live::freeze`].
    fn freeze(&mut self) -> Result<(), FreezeError>;

    /// Lets them go on.
    ///
    /// # Errors
    /// As [`Live::thaw`].
    fn thaw(&mut self) -> Result<(), FreezeError>;

    /// As [`Live::push_out`].
    fn push_out(&mut self) -> u64 {
        0
    }

    /// As [`Live::cpu_ms`].
    fn cpu_ms(&mut self) -> u64 {
        0
    }

    /// The kernel uid and gid that files of the guest belong to, where the host has them.
    fn owner(&self) -> (u32, u32);

    /// The path of `guestd` inside, as commands see it.
    fn program(&self) -> &'static str;

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
    /// The numbers of commands, by their channels: channels have other uses too.
    numbers: BTreeMap<u32, u32>,
    next: u32,
    next_hand: u32,
    /// Commands that have ended while what they wrote is on its way.
    ended: VecDeque<(u32, Event)>,
}

/// From here on are the numbers of `guestd`'s own commands.
const HANDS: u32 = 1 << 31;
/// How long a guest may take to write out what it holds of files.
const SETTLE_LIMIT: Duration = Duration::from_secs(10);

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
        Ok(Self::of(host, machine))
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
            Ok(host) => Ok(Self::of(host, machine)),
            Err(error) => Err((error, machine)),
        }
    }

    fn of(host: Host, machine: M) -> Self {
        let (numbers, ended) = (BTreeMap::new(), VecDeque::new());
        Self { host, machine, exec: None, numbers, next: 1, next_hand: HANDS, ended }
    }

    /// The channel of a command by its number.
    fn channel(&self, exec: u32) -> Option<u32> {
        self.numbers.iter().find(|(_, number)| **number == exec).map(|(channel, _)| *channel)
    }

    /// Says why the guest is gone, where that is known.
    fn explained(&mut self, event: Event) -> Event {
        if matches!(event, Event::Gone)
            && let Some(why) = self.machine.last_words()
        {
            return Event::Lost { why };
        }
        event
    }

    /// A command that has ended, once what it wrote was handed over.
    fn next_ended(&mut self) -> Option<(u32, Event)> {
        let host = &self.host;
        let place = self.ended.iter().position(|(channel, _)| host.is_handed_over(*channel))?;
        let (channel, event) = self.ended.remove(place)?;
        let number = self.numbers.remove(&channel)?;
        Some((number, event))
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
        Some(self.explained(event))
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

    fn live(&mut self) -> Option<&mut dyn Live> {
        Some(self)
    }
}

impl<M: Machine> Live for GuestInstance<M> {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<u32, ExecError> {
        let channel = self.host.exec(request, stdio, false)?;
        let number = self.next;
        self.next = self.next.saturating_add(1);
        self.numbers.insert(channel, number);
        Ok(number)
    }

    fn next_numbered(&mut self) -> Option<(u32, Event)> {
        loop {
            // First looked for what has come: what is handed over by it ends commands.
            match self.host.next_numbered() {
                Some((channel, event @ Event::Ended { .. })) => self.ended.push_back((channel, event)),
                Some((0, event)) => {
                    let event = self.explained(event);
                    return Some((0, event));
                }
                Some((channel, event)) => {
                    let number = if matches!(event, Event::NotStarted(_)) {
                        self.numbers.remove(&channel)
                    } else {
                        self.numbers.get(&channel).copied()
                    };
                    if let Some(number) = number {
                        return Some((number, event));
                    }
                }
                None => return self.next_ended(),
            }
        }
    }

    fn pid(&self, exec: u32) -> Option<u32> {
        self.host.pid(self.channel(exec)?)
    }

    fn signal(&mut self, exec: u32, signal: i32) -> Result<(), ExecError> {
        self.channel(exec).map_or(Ok(()), |channel| self.host.signal(channel, signal))
    }

    fn resize(&mut self, exec: u32, rows: u16, columns: u16) -> bool {
        let channel = self.channel(exec);
        channel.map(|channel| self.host.resize(channel, Size { rows, columns })).is_some()
    }

    fn freeze(&mut self) -> Result<(), FreezeError> {
        self.machine.freeze()
    }

    fn thaw(&mut self) -> Result<(), FreezeError> {
        self.machine.thaw()
    }

    fn push_out(&mut self) -> u64 {
        self.machine.push_out()
    }

    fn cpu_ms(&mut self) -> u64 {
        self.machine.cpu_ms()
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn owner(&self) -> (u32, u32) {
        self.machine.owner()
    }

    fn settle(&mut self) -> Result<(), FreezeError> {
        let unsettled = |error: io::Error| FreezeError {
            why: format!("the guest did not write out what it holds: {error}"),
            remedy: "try again when less is written inside".to_owned(),
            unsupported: false,
        };
        let asked =
            self.host.session().prepare().ok_or_else(|| unsettled(io::ErrorKind::ResourceBusy.into()))?;
        self.host.await_answer(asked, Instant::now() + SETTLE_LIMIT).map_err(unsettled)?;
        // It is quiet now until it is spoken to, which is for guests that are written down themselves.
        let asked =
            self.host.session().meters().ok_or_else(|| unsettled(io::ErrorKind::ResourceBusy.into()))?;
        let answer = self.host.await_answer(asked, Instant::now() + SETTLE_LIMIT);
        answer.map(drop).map_err(unsettled)
    }

    fn hand(&mut self, words: &[OsString], stdio: GuestStdio) -> Option<Result<u32, ExecError>> {
        let program = [OsString::from(self.machine.program()), OsString::from("hand")];
        let request = ExecRequest {
            argv: program.into_iter().chain(words.iter().cloned()).collect(),
            env: Vec::new(),
            cwd: PathBuf::from("/"),
            terminal: None,
        };
        let started = self.host.exec(&request, stdio, false).map(|channel| {
            let number = self.next_hand;
            self.next_hand = self.next_hand.checked_add(1).unwrap_or(HANDS);
            self.numbers.insert(channel, number);
            number
        });
        Some(started)
    }
}

impl<M: Machine> Drop for GuestInstance<M> {
    fn drop(&mut self) {
        self.machine.kill();
    }
}
