//! The egress wall, outside the sandbox: it accepts what a sandbox sends, asks the one decision,
//! writes it down, and only then dials, puts a secret in and forwards.
//!
//! ```text
//!  gateway sockets ─► accept ─► classify ─┬─ TLS, unread ──► tunnel ─────┐
//!                                         ├─ TLS, opened ──► http ──────►├─ wall: clear ─► dial
//!                                         ├─ HTTP in clear ► http ──────►│
//!                                         └─ other ────────► tunnel ─────┘
//!  a caller outside ────────────────────────── fetch ─► http, as above
//! ```
//!
//! **Invariant:** no byte leaves for a place without a [`wall::Cleared`], and nothing makes one but a
//! decision that was recorded.
//!
//! **Invariant:** everything runs on one thread, and no value of a secret is ever formatted.

mod accept;
mod ceilings;
pub mod classify;
mod dial;
pub mod dns;
mod entrance;
pub mod fetch;
mod gate;
pub mod hello;
pub mod http;
pub mod inbound;
mod line;
pub mod names;
mod observe;
pub mod porter;
pub mod proxy;
mod readers;
pub mod record;
mod run;
pub mod sockets;
mod stop;
pub mod tape;
pub mod tls;
mod tunnel;
pub mod wall;

#[cfg(test)]
mod tests;

pub use gate::Gate;
pub use run::{Config, RunError, run};
