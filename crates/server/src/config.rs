//! What the daemon is told at its start.

use crate::tls::Files;
use std::path::PathBuf;
use std::time::Duration;

/// What the daemon is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The state folder; see the runtime's `state`.
    pub state: PathBuf,
    /// Where keepers have their sandboxes' folders.
    pub sandboxes: PathBuf,
    /// Where keepers have their snapshots.
    pub snapshots: PathBuf,
    /// The program that has the role `keeper`.
    pub program: PathBuf,
    /// Where keepers write their records.
    pub records: PathBuf,
    /// Names under which `PORT-ID.NAME` leads to a port of a sandbox, and that `Host` may have.
    pub domains: Vec<String>,
    /// A certificate and its key for the addresses that are named; without them there is no TLS.
    pub tls: Option<Files>,
    /// Where spans are sent: the base of an OTLP collector, as in `http://127.0.0.1:4318`.
    pub traces: Option<String>,
    /// How long a sandbox lives if nobody says.
    pub ttl: Duration,
    /// The longest that anybody may ask for; unlimited if absent.
    pub most_ttl: Option<Duration>,
    /// Keepers that are started at once.
    pub spawns: usize,
    /// Sandboxes that wait in each pool, at most; none are kept if zero.
    pub pool_most: usize,
    /// Sandboxes of the template `base` that wait in any case.
    pub pool_base: usize,
}

// === impl Config ===

impl Config {
    /// The defaults, for this state folder and program.
    #[must_use]
    pub fn new(state: PathBuf, program: PathBuf) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        Self {
            sandboxes: state.join("sandboxes"),
            snapshots: state.join("snapshots"),
            records: state.join("records"),
            state,
            program,
            domains: Vec::new(),
            tls: None,
            traces: None,
            ttl: Duration::from_secs(3600),
            most_ttl: None,
            spawns: cores.saturating_mul(2),
            pool_most: 32,
            pool_base: 0,
        }
    }
}
