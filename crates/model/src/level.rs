//! The isolation ladder, and the choice of a rung.

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
}

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

/// The level of a run: the one asked for, or else the one that the table requires.
pub fn choose(asked: Option<Level>, trust: Trust, blast: Blast) -> Choice {
    match asked {
        Some(level) => Choice { level, reason: Reason::Asked },
        None => Choice { level: required(trust, blast), reason: Reason::Table { trust, blast } },
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
                let (trust, blast) = (format!("{trust:?}"), format!("{blast:?}"));
                let (trust, blast) = (trust.to_lowercase(), blast.to_lowercase());
                write!(f, "the weakest here for trust {trust} and blast radius {blast}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_trust_or_more_blast_never_weakens_the_level() {
        let trusts = [Trust::High, Trust::Medium, Trust::Low];
        let blasts = [Blast::Low, Blast::Medium, Blast::High];
        for (t, trust) in trusts.iter().enumerate() {
            for (b, blast) in blasts.iter().enumerate() {
                let here = required(*trust, *blast);
                assert!(trusts.iter().skip(t).all(|less| required(*less, *blast) >= here));
                assert!(blasts.iter().skip(b).all(|more| required(*trust, *more) >= here));
            }
        }
    }

    #[test]
    fn the_default_of_run_is_the_container() {
        assert_eq!(choose(None, Trust::Medium, Blast::Medium).level, Level::Container);
    }
}
