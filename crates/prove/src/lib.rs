//! The self-test: attacks of our own on the walls of a level, each with a control, judged from outside.
//!
//! A probe is one attack, carried out by the same small program twice: behind the wall, through `fumehood run` as
//! anybody would call it, and beside it, with that wall opened. Beside it the attack must succeed, or the probe
//! proves nothing. What is looked at afterwards are canaries on the host's side: files, listeners, processes,
//! packets, lines of the record. No probe grades itself, and none has a target but what the self-test made.
//!
//! ```text
//!                 ┌─ walled: fumehood run --level L -- ./attack … ─► Finding ─┐
//!   Probe ─ scene ┤                                                           ├─► Verdict
//!                 └─ open:   attack …  (canaries of its own)      ─► Finding ─┘
//! ```
//!
//! This crate owns the attacks, the judgement and the report. It names no backend: it knows a level by its name and
//! what the binary says of it.
//!
//! **Invariant:** a probe is HELD only if its walled side came to its end with nothing through, and its control
//! showed the attack at work. Silence, a timeout and a control that stays green are never HELD.
//! **Invariant:** dropped or killed, a run leaves no file, process or mount of its own.

mod attack;
mod bench;
mod canary;
mod catalogue;
mod finding;
mod folder;
mod html;
mod probe;
mod range;
mod report;
mod run;
mod scene;
mod text;
mod told;

pub use attack::BYTES as ATTACK;
pub use bench::ProveError;
pub use finding::{Finding, Verdict, judge};
pub use html::page;
pub use probe::Wall;
pub use report::{Counts, Host, Report, Row};
pub use run::{Options, catalogue_size, prove};
pub use text::table;
