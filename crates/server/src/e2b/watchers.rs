//! Watchers that are asked from time to time what has happened, kept between the questions.

use super::connect::{Fault, Status};
use crate::engine::Engine;
use crate::keys::random_hex;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::task::AbortHandle;

/// Watchers of one sandbox.
const MOST_WATCHERS: usize = 64;
/// Events that wait for a question.
const MOST_EVENTS: usize = 10_000;
const ID_BYTES: usize = 10;

/// The watchers of all sandboxes, by the sandbox's id and their own.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<HashMap<(String, String), Watcher>>);

#[derive(Debug)]
struct Watcher {
    events: Events,
    task: AbortHandle,
}

/// What one watcher has seen since it was asked.
#[derive(Clone, Debug, Default)]
pub(super) struct Events(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    events: Vec<Value>,
    /// More has happened than is kept, or nothing is seen any more.
    fault: Option<Fault>,
}

// === impl Watchers ===

impl Watchers {
    /// Keeps a watcher, and gives its id. Those of sandboxes that are gone are forgotten.
    pub(super) fn keep(
        &self,
        engine: &Engine,
        sandbox: &str,
        events: Events,
        task: AbortHandle,
    ) -> Result<String, Fault> {
        let id = random_hex(ID_BYTES)?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(sandbox, _), watcher| {
            let lives = engine.any(sandbox).is_some();
            if !lives {
                watcher.task.abort();
            }
            lives
        });
        if all.keys().filter(|(of, _)| of == sandbox).count() >= MOST_WATCHERS {
            task.abort();
            let message = format!("the sandbox has {MOST_WATCHERS} watchers already; remove one");
            return Err(Fault::new(Status::ResourceExhausted, message));
        }
        all.insert((sandbox.to_owned(), id.clone()), Watcher { events, task });
        Ok(id)
    }

    /// What a watcher has seen since it was asked last.
    pub(super) fn take(&self, sandbox: &str, id: &str) -> Result<Vec<Value>, Fault> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = all.get(&(sandbox.to_owned(), id.to_owned())).ok_or_else(|| missing(id))?;
        watcher.events.take()
    }

    /// Ends a watcher.
    pub(super) fn remove(&self, sandbox: &str, id: &str) -> Result<(), Fault> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let watcher = all.remove(&(sandbox.to_owned(), id.to_owned())).ok_or_else(|| missing(id))?;
        watcher.task.abort();
        Ok(())
    }
}

fn missing(id: &str) -> Fault {
    let id: String = id.chars().take(64).collect();
    Fault::new(Status::NotFound, format!("watcher {id} not found"))
}

// === impl Events ===

impl Events {
    pub(super) fn add(&self, event: Value) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.events.len() < MOST_EVENTS {
            seen.events.push(event);
        } else {
            let message = format!("more than {MOST_EVENTS} changes were made since the last question");
            seen.fault = Some(Fault::new(Status::ResourceExhausted, message));
        }
    }

    pub(super) fn end(&self, fault: Fault) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fault = Some(fault);
    }

    /// The events; a fault only once they were given.
    fn take(&self) -> Result<Vec<Value>, Fault> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let events = std::mem::take(&mut seen.events);
        match &seen.fault {
            Some(fault) if events.is_empty() => Err(fault.clone()),
            Some(_) | None => Ok(events),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_given_once_and_a_loss_is_told() {
        let events = Events::default();
        events.add(Value::from(1));
        assert_eq!(events.take().unwrap(), [Value::from(1)]);
        assert!(events.take().unwrap().is_empty());
        for event in 0..=MOST_EVENTS {
            events.add(Value::from(event));
        }
        assert_eq!(events.take().unwrap().len(), MOST_EVENTS);
        assert_eq!(events.take().unwrap_err().status, Status::ResourceExhausted);
    }
}
