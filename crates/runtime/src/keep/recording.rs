//! What a keeper writes down, and how far the index knows of it.

use super::keeper::{Keeper, Over, Verdict, lost};
use crate::run::unix_millis;
use fumehood_model::event;
use std::time::{Duration, Instant};

/// How often the index is told how far a record has come that goes on, and is signed.
pub(super) const REACH_EVERY: Duration = Duration::from_secs(60);
/// A port that is asked for again within this time is counted, not written down.
const PORTS_WITHIN: Duration = Duration::from_secs(1);

impl Keeper<'_> {
    /// Writes an event down; a sandbox whose record can not be written ends.
    pub(crate) fn record(&mut self, event: &event::Event) -> bool {
        match self.log.append(unix_millis(), event) {
            Ok(()) => true,
            Err(error) => {
                let why = format!("its record can not be written: {}", crate::causes::chain(&error));
                self.over.get_or_insert(Over { why, keeps_files: false, ending: lost() });
                false
            }
        }
    }

    /// Writes down that what was about to be done was not done.
    pub(crate) fn undone<T>(&mut self, of: &event::Event, done: Verdict<T>) -> Verdict<T> {
        if let Err(failure) = &done {
            self.record(&event::Event::ActFailed { of: of.name().to_owned(), why: failure.to_string() });
        }
        done
    }

    /// Tells the index how far the record has come, so that a cut of it shows even if it is never closed.
    pub(crate) fn reach(&mut self) {
        let lines = self.log.head().lines;
        self.reached = (Instant::now(), lines);
        // It promises more than there would be without: nothing depends on it.
        let _ = self.log.reach(unix_millis());
    }

    /// The same once in a while, signed.
    pub(super) fn reach_if_due(&mut self, now: Instant) {
        if self.log.head().lines > self.reached.1 && now >= self.reached.0 + REACH_EVERY {
            self.reach();
            let records = &self.life.records;
            let _ = fumehood_audit::sign(records, &fumehood_audit::key_path(records), unix_millis());
        }
    }

    /// Writes down that a port is asked for; what repeats it within a moment is counted.
    pub(crate) fn record_port(&mut self, port: u16) -> bool {
        let now = Instant::now();
        if let Some((written, more)) = self.asked_ports.get_mut(&port)
            && now.saturating_duration_since(*written) < PORTS_WITHIN
        {
            *more = more.saturating_add(1);
            return true;
        }
        let (_, more) = self.asked_ports.insert(port, (now, 0)).unwrap_or((now, 0));
        self.record(&event::Event::PortAsked { port, count: more.saturating_add(1) })
    }

    /// Writes down what was counted and not written.
    pub(crate) fn settle_ports(&mut self) {
        for (port, (_, count)) in std::mem::take(&mut self.asked_ports) {
            if count > 0 && !self.record(&event::Event::PortAsked { port, count }) {
                return;
            }
        }
    }
}
