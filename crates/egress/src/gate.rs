//! The gate itself: decide, count, write down, dial.
//!
//! **Invariant:** a [`Cleared`] is made in one place, after its line stands in the record.

use crate::ceilings::{Ceilings, Slot};
use crate::dial::Dialler;
use crate::line;
use crate::names::{Meaning, Names};
use crate::record::{Durability, Journal, Recorder, Refusal};
use crate::stop::{Stop, StopCause};
use crate::wall::{Asked, Cleared, DialError, Dialled, End, Lease, Via, Wall};
use fumehood_model::egress::{Ask, Denial, Egress, Host, Identity, Permit, Request, Table, UrlPath};
use fumehood_model::event::{EgressAllowed, Event};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::time::Instant;

/// Decides, counts, records and dials. Cheap to clone: all clones are one gate.
pub struct Gate<R>(Rc<Inner<R>>);

struct Inner<R> {
    /// The rules that hold now.
    table: RefCell<Rc<Table>>,
    names: RefCell<Names>,
    ceilings: RefCell<Ceilings>,
    journal: Journal<R>,
    dialler: Dialler,
    live: RefCell<HashMap<u64, Rc<Live>>>,
    stop: Stop,
    start: Instant,
}

/// Something that was cleared and has not ended.
#[derive(Debug)]
struct Live {
    identity: Identity,
    /// The method and the path, where a request was read.
    request: Option<(String, UrlPath)>,
    permit: RefCell<Rc<Granted>>,
    /// Rules that came later do not allow it.
    cut: RefCell<Option<Denial>>,
    via: Via,
    address: Cell<Option<IpAddr>>,
    bytes_out: Cell<u64>,
    bytes_in: Cell<u64>,
}

/// A permit, and the rules that it is of.
#[derive(Debug)]
struct Granted {
    permit: Permit<'static>,
    table: Rc<Table>,
}

/// A connection of the sandbox, counted as long as this lives.
pub(crate) struct Connection<R> {
    gate: Weak<Inner<R>>,
    slot: Option<Slot>,
}

// === impl Gate ===

impl<R: Recorder> Gate<R> {
    pub(crate) fn new(table: Table, recorder: R, dialler: Dialler, stop: Stop) -> Self {
        let ceilings = RefCell::new(Ceilings::new(&table.egress().ceilings));
        Self(Rc::new(Inner {
            table: RefCell::new(Rc::new(table)),
            names: RefCell::default(),
            ceilings,
            journal: Journal::new(recorder, stop.clone()),
            dialler,
            live: RefCell::default(),
            stop,
            start: Instant::now(),
        }))
    }

    pub(crate) fn table(&self) -> Rc<Table> {
        Rc::clone(&self.0.table.borrow())
    }

    /// Other rules hold from now on. What is under way goes on where they allow it in the same way; of all else no
    /// further byte passes.
    fn change(&self, egress: Egress) {
        let table = Rc::new(self.table().with(egress));
        *self.0.table.borrow_mut() = Rc::clone(&table);
        for live in self.0.live.borrow().values() {
            live.judge(&table);
        }
    }

    /// What changes its rules, as long as there is a gate.
    pub(crate) fn changer(&self) -> impl Fn(Egress) -> bool + use<R> {
        let gate = Rc::downgrade(&self.0);
        move |egress| {
            gate.upgrade().is_some_and(|inner| {
                Self(inner).change(egress);
                true
            })
        }
    }

    pub(crate) fn names(&self) -> &RefCell<Names> {
        &self.0.names
    }

    pub(crate) fn journal(&self) -> &Journal<R> {
        &self.0.journal
    }

    pub(crate) fn stop(&self) -> &Stop {
        &self.0.stop
    }

    /// Who is meant by an address that was dialled inside. `None`: an address of ours that no name has.
    pub(crate) fn who(&self, address: IpAddr) -> Option<Host> {
        match self.0.names.borrow().meaning(address) {
            Meaning::Name(name) => Some(Host::Name(name.clone())),
            Meaning::Literal => Some(Host::address(address)),
            Meaning::Nobody => None,
        }
    }

    /// Counts a connection of the sandbox.
    pub(crate) fn connect(&self, host: &Host) -> Result<Connection<R>, Denial> {
        let slot = self.0.ceilings.borrow_mut().connect(host)?;
        Ok(Connection { gate: Rc::downgrade(&self.0), slot: Some(slot) })
    }

    /// The reason why nothing may be spoken with a place, as [`Table::decide`] gives it.
    pub(crate) fn why_closed(&self, identity: &Identity) -> Denial {
        match self.table().decide(Ask { identity, request: None }) {
            Err(denial) => denial,
            // It is open to something else than what came.
            Ok(_) => Denial::Scheme,
        }
    }

    /// Writes out what is still to be said: the ends of what is cut off now, and what was only counted.
    pub(crate) async fn last_words(&self) {
        let live: Vec<(u64, Rc<Live>)> = self.0.live.borrow_mut().drain().collect();
        for (id, live) in live {
            self.0.journal.leave(line::ended(id, &live.end("the run is over")));
        }
        // There is nothing left to stop if this fails. Ends that others are telling just now count, too.
        let _ = self.0.journal.turn().await;
        let _ = self.0.journal.settle().await;
    }

    /// What every refusal comes down to.
    async fn deny(&self, asked: Asked<'_>, denial: Denial) -> Denial {
        match self.0.journal.refused(Refusal::Denied(line::denied(asked, &denial))).await {
            Ok(()) => denial,
            Err(_) => Denial::Unrecorded,
        }
    }

    fn standing(&self) -> Result<(), Denial> {
        match self.0.stop.cause() {
            None => Ok(()),
            Some(StopCause::Asked | StopCause::Unrecorded) => Err(Denial::Unrecorded),
        }
    }

    fn lease(&self, id: u64) -> Lease {
        let gate = Rc::downgrade(&self.0);
        Lease::new(move || {
            if let Some(gate) = gate.upgrade()
                && let Some(live) = gate.live.borrow_mut().remove(&id)
            {
                gate.journal.leave(line::ended(id, &live.end("it was cut off")));
            }
        })
    }
}

impl<R: Recorder> Wall for Gate<R> {
    async fn clear(&self, asked: Asked<'_>) -> Result<Cleared, Denial> {
        self.standing()?;
        let Asked { identity, request, via } = asked;
        let table = self.table();
        let permit = match table.decide(Ask { identity, request }) {
            Ok(permit) => permit.into_owned(),
            Err(denial) => return Err(self.deny(asked, denial).await),
        };
        let counted = self.0.ceilings.borrow_mut().request(&identity.host, self.0.start.elapsed());
        if let Err(denial) = counted {
            return Err(self.deny(asked, denial).await);
        }
        let id = self.0.journal.number();
        let binding = permit.binding().cloned();
        let event = Event::EgressAllowed(EgressAllowed {
            id,
            to: line::place(identity),
            via: via.name().to_owned(),
            method: request.map(|request| line::short(request.method)),
            path: request.map(|request| line::short(request.path.sent_path())),
            rule: line::short(&table.show(permit.rule())),
            credential: binding.as_ref().map(|binding| line::short(&binding.secret)),
        });
        let durability = if binding.is_some() { Durability::Synced } else { Durability::Written };
        if self.0.journal.write(event, durability).await.is_err() {
            return Err(Denial::Unrecorded);
        }
        let live = Live {
            identity: identity.clone(),
            request: request.map(|request| (request.method.to_owned(), request.path.clone())),
            permit: RefCell::new(Rc::new(Granted { permit, table: Rc::clone(&table) })),
            cut: RefCell::default(),
            via,
            address: Cell::default(),
            bytes_out: Cell::default(),
            bytes_in: Cell::default(),
        };
        // The rules may have changed while the line was on its way.
        live.judge(&self.table());
        self.0.live.borrow_mut().insert(id, Rc::new(live));
        let cleared = Cleared { id, identity: identity.clone(), binding, lease: self.lease(id) };
        // It may have ended while the line was on its way; the lease tells.
        self.standing()?;
        Ok(cleared)
    }

    async fn refuse(&self, asked: Asked<'_>, denial: Denial) -> Denial {
        self.deny(asked, denial).await
    }

    async fn dial(&self, cleared: &Cleared) -> Result<Dialled, DialError> {
        self.standing()?;
        let live = self.0.live.borrow().get(&cleared.id).cloned();
        // Only the end of everything takes it away before its time.
        let live = live.ok_or(Denial::Unrecorded)?;
        if let Some(denial) = live.cut() {
            let asked = Asked { identity: &cleared.identity, request: None, via: live.via };
            return Err(DialError::Denied(self.deny(asked, denial).await));
        }
        let granted = Rc::clone(&live.permit.borrow());
        let dialled = self.0.dialler.dial(&granted.table, &granted.permit, &cleared.identity).await;
        self.standing()?;
        match dialled {
            Ok(dialled) => {
                live.address.set(dialled.address);
                Ok(dialled)
            }
            Err(DialError::Denied(denial)) => {
                let asked = Asked { identity: &cleared.identity, request: None, via: live.via };
                Err(DialError::Denied(self.deny(asked, denial).await))
            }
            Err(error) => Err(error),
        }
    }

    fn count(&self, cleared: &Cleared, bytes_out: u64, bytes_in: u64) -> Result<(), Denial> {
        self.standing()?;
        let live = self.0.live.borrow();
        let live = live.get(&cleared.id).ok_or(Denial::Unrecorded)?;
        let host = &cleared.identity.host;
        if let Some(denial) = live.cut() {
            let asked = Asked { identity: &cleared.identity, request: None, via: live.via };
            self.0.journal.leave_refused(Refusal::Denied(line::denied(asked, &denial)));
            return Err(denial);
        }
        if let Err(denial) = self.0.ceilings.borrow_mut().bytes(host, bytes_out, bytes_in) {
            let asked = Asked { identity: &cleared.identity, request: None, via: live.via };
            self.0.journal.leave_refused(Refusal::Denied(line::denied(asked, &denial)));
            return Err(denial);
        }
        live.bytes_out.set(live.bytes_out.get().saturating_add(bytes_out));
        live.bytes_in.set(live.bytes_in.get().saturating_add(bytes_in));
        Ok(())
    }

    fn gives_secrets(&self, host: &Host) -> bool {
        self.table().gives_secrets(host)
    }

    async fn end(&self, mut cleared: Cleared, end: End) {
        cleared.lease.forget();
        let Some(live) = self.0.live.borrow_mut().remove(&cleared.id) else { return };
        let counted = live.end("");
        let end = End {
            address: end.address.or(counted.address),
            bytes_out: end.bytes_out.max(counted.bytes_out),
            bytes_in: end.bytes_in.max(counted.bytes_in),
            ..end
        };
        // A failure stops everything; there is nobody here to tell.
        let _ = self.0.journal.write(line::ended(cleared.id, &end), Durability::Written).await;
    }
}

impl<R> Clone for Gate<R> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<R> fmt::Debug for Gate<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("live", &self.0.live.borrow().len()).finish_non_exhaustive()
    }
}

// === impl Live ===

impl Live {
    /// Looks whether it may go on under these rules. What was once cut off stays so.
    fn judge(&self, table: &Rc<Table>) {
        let request = self.request.as_ref().map(|(method, path)| Request { method, path });
        let had = Rc::clone(&self.permit.borrow());
        if Rc::ptr_eq(&had.table, table) || self.cut.borrow().is_some() {
            return;
        }
        match table.decide(Ask { identity: &self.identity, request }) {
            Ok(permit) if permit.binding() == had.permit.binding() => {
                let granted = Granted { permit: permit.into_owned(), table: Rc::clone(table) };
                *self.permit.borrow_mut() = Rc::new(granted);
            }
            // It would be with another secret, or without one.
            Ok(_) => *self.cut.borrow_mut() = Some(Denial::NoRule),
            Err(denial) => *self.cut.borrow_mut() = Some(denial),
        }
    }

    fn cut(&self) -> Option<Denial> {
        self.cut.borrow().clone()
    }

    fn end(&self, fault: &str) -> End {
        End {
            address: self.address.get(),
            status: None,
            bytes_out: self.bytes_out.get(),
            bytes_in: self.bytes_in.get(),
            fault: Some(fault.to_owned()),
            masked: Vec::new(),
        }
    }
}

// === impl Connection ===

impl<R> Drop for Connection<R> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take()
            && let Some(gate) = self.gate.upgrade()
        {
            gate.ceilings.borrow_mut().disconnect(slot);
        }
    }
}
