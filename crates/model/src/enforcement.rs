//! Which mechanism holds each clause of an envelope, as a value.

use serde::Serialize;
use std::fmt;

/// The six clauses of an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Clause {
    Filesystem,
    Network,
    Privilege,
    Credentials,
    Resources,
    Cleanup,
}

/// One mechanism and what it does here, e.g. `landlock`: "ABI 7, writes beneath /tmp only".
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mechanism {
    /// A short stable word: `mount-namespace`, `seccomp`, `cgroup-v1`, `resident-memory-watch`, …
    pub name: &'static str,
    /// What it does for this run, in plain words.
    pub detail: String,
    /// Whether the mechanism is the kernel's (it can not be passed) or a watch (it is noticed after).
    pub strength: Strength,
}

/// How a mechanism holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strength {
    /// Noticed and ended by the keeper, some tens of milliseconds late.
    Watch,
    /// Refused by the kernel at the moment it is tried.
    Kernel,
}

/// What holds each clause. Printed by `--explain`, carried in `--json`, digested into the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Default)]
pub struct Enforcement(pub Vec<(Clause, Vec<Mechanism>)>);

/// A clause that this level can not hold on this host, why, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("the {clause} clause can not be held here: {why}")]
pub struct Unenforceable {
    pub clause: Clause,
    pub why: String,
    pub remedy: String,
}

// === impl Clause ===

impl Clause {
    /// Every clause, in the order of the envelope.
    pub const ALL: [Self; 6] =
        [Self::Filesystem, Self::Network, Self::Privilege, Self::Credentials, Self::Resources, Self::Cleanup];

    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Filesystem => "filesystem",
            Self::Network => "network",
            Self::Privilege => "privilege",
            Self::Credentials => "credentials",
            Self::Resources => "resources",
            Self::Cleanup => "cleanup",
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

// === impl Enforcement ===

impl Enforcement {
    /// The mechanisms that hold `clause`.
    pub fn of(&self, clause: Clause) -> &[Mechanism] {
        self.0.iter().find(|(held, _)| *held == clause).map_or(&[], |(_, mechanisms)| mechanisms)
    }

    /// The mechanisms that only notice: what a server or an operator's floor refuses.
    pub fn watches(&self) -> impl Iterator<Item = (Clause, &Mechanism)> {
        self.0
            .iter()
            .flat_map(|(clause, mechanisms)| mechanisms.iter().map(|m| (*clause, m)))
            .filter(|(_, mechanism)| mechanism.strength == Strength::Watch)
    }
}
