//! How what happens gets into the record: the gate asks, the keeper writes, and only then it happens.
//!
//! ```text
//!  gate                                   keeper
//!  write(events) ─► queue ─► Frame ──────► Intake::take ─► append (and sync) ─┐
//!  resumes ◄──────────────── Reply ◄────── Intake::reply ◄────────────────────┘
//! ```
//!
//! One frame is on its way at a time; what comes meanwhile goes into the next, together.
//!
//! **Invariant:** without a reply nothing that waits goes on. There is no time after which it would.

mod client;
mod intake;
mod journal;
mod repeats;

#[cfg(test)]
pub(crate) mod memory;
#[cfg(test)]
mod tests;

pub use client::SocketRecorder;
pub use intake::{Intake, IntakeError, Taken};
pub(crate) use journal::Journal;
pub(crate) use repeats::Refusal;

use fumehood_model::egress::Rules;
use fumehood_model::event::Event;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::Future;
use zeroize::Zeroizing;

/// The longest packet between the two, well within what a socket takes at once.
pub const MOST_FRAME_BYTES: usize = 64 << 10;

/// How sure a line must be before what it tells is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// It survives the end of every process of ours.
    Written,
    /// It survives the end of the machine.
    Synced,
}

/// The record could not be written. Nothing may happen any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record could not be written")]
pub struct Unrecorded;

/// Where events are written down.
pub trait Recorder: 'static {
    /// Returns once the events stand in the record, in their order.
    ///
    /// # Errors
    /// The record is lost; every later write fails, too.
    fn write(
        &self,
        events: Vec<Event>,
        durability: Durability,
    ) -> impl Future<Output = Result<(), Unrecorded>>;
}

/// A secret's value, on its way to the gate.
#[derive(Clone, Serialize, Deserialize)]
pub struct Renewed {
    pub name: String,
    pub value: Zeroizing<String>,
    /// Milliseconds since 1970.
    pub expires_unix_millis: Option<u64>,
}

impl fmt::Debug for Renewed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewed").field("name", &self.name).finish_non_exhaustive()
    }
}

/// From the gate to the keeper.
#[derive(Debug, Serialize, Deserialize)]
struct Frame {
    id: u64,
    synced: bool,
    events: Vec<Event>,
    /// The change of rules that holds now. Nothing else is in such a frame, and it is not answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    applied: Option<u64>,
}

/// From the keeper to the gate.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Written {
        id: u64,
    },
    /// It could not be written, and never will be again.
    Failed {
        id: u64,
    },
    /// The run is over: say the last, and go.
    Stop,
    /// A secret has a newer value.
    Renewed(Renewed),
    /// There is one more secret.
    Given(Renewed),
    /// A part of a text that is [`Rules`]: once it is whole they hold in place of those before.
    Rules {
        change: u64,
        text: String,
        more: bool,
    },
}

/// What the keeper wants of the gate beside answers.
pub(crate) trait Orders {
    /// A secret has a newer value.
    fn renewed(&self, secret: Renewed);
    /// There is one more secret.
    fn given(&self, secret: Renewed);
    /// Other rules hold from now on. `false` if they make no sense: then nothing may hold any more.
    fn rules(&self, rules: &Rules) -> bool;
}
