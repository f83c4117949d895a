//! Everything the gate has to say, on its way to the recorder.

use super::repeats::{Refusal, Repeats};
use super::{Durability, Recorder, Unrecorded};
use crate::stop::{Stop, StopCause};
use fumehood_model::event::Event;
use std::cell::{Cell, RefCell};
use std::time::Duration;

/// How long a refusal that repeats itself is only counted.
const TURN: Duration = Duration::from_secs(1);
/// Lines that nobody waits for; more are not made in one turn by anything bounded.
const MOST_LATER: usize = 16 << 10;
/// Events of one frame at the end of a turn, each of which may be some kilobytes.
const LINES_AT_ONCE: usize = 4;

/// The recorder, with the refusals that are only counted for a moment.
#[derive(Debug)]
pub(crate) struct Journal<R> {
    recorder: R,
    repeats: RefCell<Repeats>,
    later: RefCell<Vec<Event>>,
    next: Cell<u64>,
    stop: Stop,
}

// === impl Journal ===

impl<R: Recorder> Journal<R> {
    pub(crate) fn new(recorder: R, stop: Stop) -> Self {
        let (repeats, later) = (RefCell::default(), RefCell::default());
        Self { recorder, repeats, later, next: Cell::new(1), stop }
    }

    /// A number for the next thing that leaves.
    pub(crate) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// Writes one line, and returns once it stands there.
    ///
    /// # Errors
    /// It does not. Everything has been told to stop.
    pub(crate) async fn write(&self, event: Event, durability: Durability) -> Result<(), Unrecorded> {
        self.all(vec![event], durability).await
    }

    /// Writes a refusal, or counts it with those like it.
    pub(crate) async fn refused(&self, refusal: Refusal) -> Result<(), Unrecorded> {
        let first = self.repeats.borrow_mut().add(refusal);
        match first {
            Some(event) => self.write(event, Durability::Written).await,
            None => Ok(()),
        }
    }

    /// Leaves a line for the end of the turn, where nobody can wait.
    pub(crate) fn leave(&self, event: Event) {
        let mut later = self.later.borrow_mut();
        if later.len() >= MOST_LATER {
            // A line would be lost, and the record is whole or there is none.
            self.stop.stop(StopCause::Unrecorded);
            return;
        }
        later.push(event);
    }

    /// A refusal, likewise.
    pub(crate) fn leave_refused(&self, refusal: Refusal) {
        let first = self.repeats.borrow_mut().add(refusal);
        if let Some(event) = first {
            self.leave(event);
        }
    }

    /// Writes what was left and counted.
    pub(crate) async fn turn(&self) -> Result<(), Unrecorded> {
        let mut lines = std::mem::take(&mut *self.later.borrow_mut());
        lines.extend(self.repeats.borrow_mut().turn());
        while !lines.is_empty() {
            let rest = lines.split_off(lines.len().min(LINES_AT_ONCE));
            self.all(lines, Durability::Written).await?;
            lines = rest;
        }
        Ok(())
    }

    /// Returns once everything that was on its way is written: lines keep their order, and so does none.
    pub(crate) async fn settle(&self) -> Result<(), Unrecorded> {
        self.all(Vec::new(), Durability::Written).await
    }

    /// Turns until the record fails.
    pub(crate) async fn turns(&self) {
        while self.turn().await.is_ok() {
            tokio::time::sleep(TURN).await;
        }
    }

    async fn all(&self, events: Vec<Event>, durability: Durability) -> Result<(), Unrecorded> {
        let written = self.recorder.write(events, durability).await;
        if written.is_err() {
            self.stop.stop(StopCause::Unrecorded);
        }
        written
    }
}
