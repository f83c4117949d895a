//! The isolation ladder, and the choice of a rung.

use crate::egress::{Egress, Matter, Reach, Rule};
use crate::envelope::Envelope;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A rung of the ladder, weakest first. The order is the order of strength.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    Wasm,
    Process,
    Container,
    Gvisor,
    Microvm,
}

/// How far the input of a run can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Trust {
    /// Untrusted input, other tenants.
    Low,
    /// One's own agent on one's own code: what `run` assumes.
    Medium,
    /// Vetted code.
    High,
}

/// The worst that a run could do if everything it was given were turned against its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Blast {
    /// Reads what it was given.
    Low,
    /// Changes project files.
    Medium,
    /// Internal services, others' data, production.
    High,
}

/// A level, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    pub level: Level,
    pub reason: Reason,
}

/// Why a level was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reason {
    /// The caller named it.
    Asked,
    /// It follows from trust and blast radius.
    Table { trust: Trust, blast: Blast },
    /// The table asks for less, but private data, untrusted input and egress come together.
    Trifecta { trust: Trust, blast: Blast },
    /// The table asks for less than the operator of this host allows.
    Floor { floor: Level, trust: Trust, blast: Blast },
}

/// What a level is chosen from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// The level that the caller named.
    pub asked: Option<Level>,
    /// The weakest that the operator of this host allows.
    pub floor: Option<Level>,
    pub trust: Trust,
    pub blast: Blast,
    pub stake: Stake,
}

/// What a run is given that could be carried off, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stake {
    /// Whether it sees files of its owner's, or may use a secret.
    pub private: bool,
    pub egress: Sending,
}

/// How far a run may send. Ordered: a later one contains the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Sending {
    /// Nowhere.
    Nothing,
    /// Requests of named methods to named paths.
    Bound,
    /// Whatever fits through a connection.
    Open,
}

/// A level that a build has on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    pub level: Level,
    /// Its wall is emulated in software: it is there for who asks for it, and stands for no choice.
    pub emulated: bool,
}

/// A level was named that is below the operator's floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operator of this host allows no level below `{floor}`")]
pub struct BelowFloor {
    pub asked: Level,
    pub floor: Level,
}

/// The weakest level that private data, untrusted input and egress may meet in.
pub const TRIFECTA: Level = Level::Gvisor;

/// The weakest level that makes the worst case acceptable.
pub const fn required(trust: Trust, blast: Blast) -> Level {
    match (trust, blast) {
        (Trust::High, Blast::Low) => Level::Process,
        (Trust::High, Blast::Medium)
        | (Trust::Medium, Blast::Low | Blast::Medium)
        | (Trust::Low, Blast::Low) => Level::Container,
        (Trust::High | Trust::Medium, Blast::High) | (Trust::Low, Blast::Medium) => Level::Gvisor,
        (Trust::Low, Blast::High) => Level::Microvm,
    }
}

/// The level of a run: the one asked for, or else the weakest that the table, the trifecta and the floor allow.
///
/// # Errors
/// One was asked for that is below the floor. It is not raised: who names a level means that one.
pub fn choose(question: &Question) -> Result<Choice, BelowFloor> {
    let Question { asked, floor, trust, blast, .. } = *question;
    if let Some(level) = asked {
        return match floor.filter(|floor| level < *floor) {
            Some(floor) => Err(BelowFloor { asked: level, floor }),
            None => Ok(Choice { level, reason: Reason::Asked }),
        };
    }
    let mut choice = Choice { level: required(trust, blast), reason: Reason::Table { trust, blast } };
    if question.is_trifecta() && choice.level < TRIFECTA {
        choice = Choice { level: TRIFECTA, reason: Reason::Trifecta { trust, blast } };
    }
    if let Some(floor) = floor.filter(|floor| choice.level < *floor) {
        choice = Choice { level: floor, reason: Reason::Floor { floor, trust, blast } };
    }
    Ok(choice)
}

/// The rung that stands for a choice: the very one that was asked for, else the weakest that is no weaker and
/// whose wall is no emulation.
pub fn standing(rungs: &[Rung], choice: &Choice) -> Option<Level> {
    let fits = |rung: &&Rung| match choice.reason {
        Reason::Asked => rung.level == choice.level,
        Reason::Table { .. } | Reason::Trifecta { .. } | Reason::Floor { .. } => {
            rung.level >= choice.level && !rung.emulated
        }
    };
    rungs.iter().filter(fits).map(|rung| rung.level).min()
}

// === impl Question ===

impl Question {
    /// Whether everything comes together that it takes to carry private data off: the data, somebody who wants
    /// it, and a way out. Rules that are bound to method and path are no way out for what does not fit them.
    pub fn is_trifecta(&self) -> bool {
        self.trust == Trust::Low && self.stake.private && self.stake.egress == Sending::Open
    }
}

// === impl Stake ===

impl Stake {
    /// What an envelope gives.
    pub fn of(envelope: &Envelope) -> Self {
        let files = envelope.filesystem();
        let private = files.workspace.is_some()
            || !files.mounts.is_empty()
            || !files.inputs.is_empty()
            || files.session.is_some()
            || !envelope.secrets().is_empty();
        let egress = envelope.network().egress.as_ref().map_or(Sending::Nothing, Sending::of);
        Self { private, egress }
    }
}

// === impl Sending ===

impl Sending {
    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Bound => "bound",
            Self::Open => "open",
        }
    }

    fn of(egress: &Egress) -> Self {
        match egress.reach {
            Reach::Names => Self::Nothing,
            Reach::Public => Self::Open,
            Reach::Rules if egress.ranges.is_empty() && egress.rules.iter().all(is_bound) => {
                if egress.rules.is_empty() { Self::Nothing } else { Self::Bound }
            }
            Reach::Rules => Self::Open,
        }
    }
}

/// Whether a rule names methods and a path.
fn is_bound(rule: &Rule) -> bool {
    match &rule.matter {
        Matter::Tcp | Matter::Tls => false,
        Matter::Requests { methods, path, .. } => methods.is_some() && !path.is_any(),
        Matter::Git { repository, .. } => !repository.is_any(),
    }
}

// === impl Trust ===

impl Trust {
    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

// === impl Blast ===

impl Blast {
    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

// === impl Level ===

impl Level {
    /// Every level, weakest first.
    pub const ALL: [Self; 5] = [Self::Wasm, Self::Process, Self::Container, Self::Gvisor, Self::Microvm];

    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wasm => "wasm",
            Self::Process => "process",
            Self::Container => "container",
            Self::Gvisor => "gvisor",
            Self::Microvm => "microvm",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("asked for by name"),
            Self::Table { trust, blast } => {
                write!(f, "the weakest here for trust {} and blast radius {}", trust.name(), blast.name())
            }
            Self::Trifecta { trust, blast } => write!(
                f,
                "private data, untrusted input and egress come together (trust {}, blast radius {})",
                trust.name(),
                blast.name()
            ),
            Self::Floor { floor, trust, blast } => write!(
                f,
                "the operator's floor is {floor}; trust {} and blast radius {} alone ask for less",
                trust.name(),
                blast.name()
            ),
        }
    }
}

#[cfg(test)]
mod tests;
