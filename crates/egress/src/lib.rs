//! The egress wall, outside the sandbox: it accepts what a sandbox sends, asks the one decision,
//! writes it down, and only then dials, puts a secret in and forwards.
//!
//! ```text
//!  gateway sockets ─► accept ─► classify ─┬─ TLS, unread ──► tunnel ─────┐
//!                                         ├─ TLS, opened ──► http ──────►├─ wall: clear ─► dial
//!                                         ├─ HTTP in clear ► http ──────►│
//!                                         └─ other ────────► tunnel ─────┘
//! ```
//!
//! **Invariant:** no byte leaves for a place without a [`wall::Cleared`], and nothing makes one but a
//! decision that was recorded.
//!
//! **Invariant:** everything runs on one thread, and no value of a secret is ever formatted.

pub mod http;
pub mod tls;
pub mod wall;
