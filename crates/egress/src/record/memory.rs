//! A recorder for tests, which can be made to fail.

use super::{Durability, Recorder, Unrecorded};
use fumehood_model::event::Event;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

#[derive(Clone, Debug, Default)]
pub(crate) struct MemoryRecorder(Rc<Memory>);

#[derive(Debug, Default)]
struct Memory {
    lines: RefCell<Vec<(Event, Durability)>>,
    broken: Cell<bool>,
}

// === impl MemoryRecorder ===

impl MemoryRecorder {
    pub(crate) fn lines(&self) -> Vec<(Event, Durability)> {
        self.0.lines.borrow().clone()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.lines().into_iter().map(|(event, _)| event).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lines.borrow().len()
    }

    /// The events after the first `count`.
    pub(crate) fn since(&self, count: usize) -> Vec<Event> {
        let lines = self.0.lines.borrow();
        lines.iter().skip(count).map(|(event, _)| event.clone()).collect()
    }

    /// From now on nothing can be written.
    pub(crate) fn fail(&self) {
        self.0.broken.set(true);
    }
}

impl Recorder for MemoryRecorder {
    async fn write(&self, events: Vec<Event>, durability: Durability) -> Result<(), Unrecorded> {
        tokio::task::yield_now().await;
        if self.0.broken.get() {
            return Err(Unrecorded);
        }
        self.0.lines.borrow_mut().extend(events.into_iter().map(|event| (event, durability)));
        Ok(())
    }
}
