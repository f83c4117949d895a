//! What a level is known not to hold.
//!
//! A gap is declared here or it is a failure: no case is passed over in silence. Each is named in
//! `docs/limitations.md` too, which a test holds it to, and the matrix shows it as `GAP`.

use fumehood_model::level::Level;

/// A case that a level does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Whose it is.
    pub level: Level,
    /// The case's name.
    pub case: &'static str,
    /// Why, as a phrase.
    pub why: &'static str,
}

/// Every gap of every level of this build.
pub const GAPS: &[Gap] = &[
    of(
        Level::Process,
        "only-loopback",
        "without a network namespace `/proc/net` tells of the host's interfaces",
    ),
    of(Level::Gvisor, "no-route", "its network stack has another error for it: nothing is reached"),
    of(Level::Gvisor, "no-capabilities", "its `/proc/self/status` has no `CapAmb`"),
    of(Level::Gvisor, "no-new-privileges", "its `/proc/self/status` does not tell"),
    of(Level::Gvisor, "devices-minimal", "its `/dev` has devices of its own, which nobody inside may use"),
    of(Level::Gvisor, "process-limit", "the limit is on the host's threads, and meeting it ends the guest"),
];

const fn of(level: Level, case: &'static str, why: &'static str) -> Gap {
    Gap { level, case, why }
}

/// The gap of a level in a case, if it is declared.
pub fn gap(level: Level, case: &str) -> Option<&'static Gap> {
    GAPS.iter().find(|gap| gap.level == level && gap.case == case)
}
