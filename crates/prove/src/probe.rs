//! What a probe is.

use crate::bench::Bench;
use crate::finding::Finding;
use crate::scene::Scene;
use crate::told::Step;
use fumehood_model::level::Level;
use serde::Serialize;

/// What an attack goes against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wall {
    Kernel,
    Files,
    Network,
    Credentials,
    Resources,
    Cleanup,
    Record,
}

/// Which side of the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Behind it.
    Walled,
    /// Beside it: the control.
    Open,
}

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Probe {
    /// Stable, and never given to another attack.
    pub(crate) id: &'static str,
    pub(crate) wall: Wall,
    /// What is tried, as a phrase.
    pub(crate) tries: &'static str,
    pub(crate) levels: &'static [Level],
    /// Why it can not be asked here, if it can not.
    pub(crate) obstacle: fn(&Bench) -> Option<String>,
    /// Left out where time counts.
    pub(crate) slow: bool,
    pub(crate) way: Way,
}

/// How it is carried out.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    /// One step among others in one sandbox that was asked for nothing.
    Together {
        /// The namespaces of the control.
        how: How,
        /// The verb and its arguments.
        step: fn(&Scene) -> Vec<String>,
        judge: fn(&Step, &Scene) -> Finding,
    },
    /// With runs of its own.
    Alone(fn(&Bench, Side) -> Result<Finding, std::io::Error>),
}

/// The namespaces that a control runs in; the attacker makes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum How {
    /// The host's, but mounts.
    #[default]
    Bare,
    /// As each step says.
    Given,
    /// Its own, with every capability over them.
    Capable,
}

// === impl How ===

impl How {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Given | Self::Bare => "bare",
            Self::Capable => "capable",
        }
    }
}

// === impl Wall ===

impl Wall {
    /// Every wall, in the order of a report.
    pub const ALL: [Self; 7] = [
        Self::Kernel,
        Self::Files,
        Self::Network,
        Self::Credentials,
        Self::Resources,
        Self::Cleanup,
        Self::Record,
    ];

    /// The word used for it everywhere.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Files => "files",
            Self::Network => "network",
            Self::Credentials => "credentials",
            Self::Resources => "resources",
            Self::Cleanup => "cleanup",
            Self::Record => "record",
        }
    }
}

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Probe").field("id", &self.id).field("wall", &self.wall).finish_non_exhaustive()
    }
}

// === impl Probe ===

impl Probe {
    /// Whether it is fast enough for every day.
    pub(crate) fn quick(&self) -> bool {
        !self.slow
    }
}

/// No obstacle.
pub(crate) const fn nothing(_: &Bench) -> Option<String> {
    None
}
