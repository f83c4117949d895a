//! The backends of this build, and which one stands for a level.

use crate::refusal::Refusal;
use crate::spec;
use fumehood_backend::Backend;
use fumehood_backend_native::Native;
use fumehood_model::level::{Blast, Choice, Level, Reason, Trust, choose};

/// The levels that this build holds, weakest first.
pub(crate) const LEVELS: &[Level] = &[
    Level::Container,
    #[cfg(feature = "microvm")]
    Level::Microvm,
];

/// What the caller has accepted that is weaker than a level's name says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// A machine that software emulates.
    pub(crate) tcg: bool,
}

/// Whether the table may choose a level of this build. A machine that software emulates stands for none.
const fn stands(level: Level) -> bool {
    match level {
        Level::Microvm => false,
        Level::Wasm | Level::Process | Level::Container | Level::Gvisor => true,
    }
}

/// The levels of this build that the table may choose, weakest first.
pub(crate) fn for_choice() -> impl Iterator<Item = Level> {
    LEVELS.iter().copied().filter(|level| stands(*level))
}

/// Settles the level of a run. The one asked for is taken as it is; where the table chose, the
/// weakest level of this build that is not below the choice stands for it.
pub(crate) fn settle(asked: Option<Level>, trust: Trust, blast: Blast) -> Result<Choice, Refusal> {
    let choice = choose(asked, trust, blast);
    let held = match choice.reason {
        Reason::Asked => LEVELS.iter().find(|built| **built == choice.level),
        Reason::Table { .. } => LEVELS.iter().find(|built| **built >= choice.level && stands(**built)),
    };
    match held {
        Some(level) => Ok(Choice { level: *level, reason: choice.reason }),
        None => Err(missing(&choice)),
    }
}

/// What can be begun before it is known what will run: `run` is asked for more often than refused.
#[derive(Debug)]
pub(crate) struct Early(Native);

// === impl Early ===

impl Early {
    /// Begins.
    pub(crate) fn start() -> Self {
        Self(Native::warm())
    }

    /// The backend of a level.
    pub(crate) fn backend(self, level: Level, accepted: Accepted) -> Result<Box<dyn Backend>, Refusal> {
        match level {
            Level::Container => Ok(Box::new(self.0)),
            #[cfg(feature = "microvm")]
            Level::Microvm => microvm(accepted),
            #[cfg(not(feature = "microvm"))]
            Level::Microvm => Err(missing(&Choice { level, reason: Reason::Asked })),
            Level::Wasm | Level::Process | Level::Gvisor => {
                Err(missing(&Choice { level, reason: Reason::Asked }))
            }
        }
    }
}

/// The backend of a level, with nothing begun.
pub(crate) fn of(level: Level) -> Result<Box<dyn Backend>, Refusal> {
    // To look at what this host can hold is no run that anybody relies on.
    Early(Native::find()).backend(level, Accepted { tcg: true })
}

#[cfg(feature = "microvm")]
fn microvm(accepted: Accepted) -> Result<Box<dyn Backend>, Refusal> {
    use fumehood_backend_microvm::{Emulation, Microvm};
    let emulation = if accepted.tcg { Emulation::Accepted } else { Emulation::Refused };
    Ok(Box::new(Microvm::find(crate::tasks::state()?.root(), emulation)))
}

/// What the line to the user says of a level that is weaker than its name.
pub(crate) fn caution(level: Level) -> Option<&'static str> {
    (level == Level::Microvm).then_some(
        "microvm: the processor is emulated by software (TCG), which QEMU does not call a security boundary",
    )
}

/// Why a level was chosen, in the words of the flags.
pub(crate) fn reason(choice: &Choice) -> String {
    match choice.reason {
        Reason::Asked => "asked for by name".to_owned(),
        Reason::Table { trust, blast } => format!(
            "the weakest here for trust `{}` and blast radius `{}`",
            spec::trust_name(trust),
            spec::blast_name(blast)
        ),
    }
}

fn missing(choice: &Choice) -> Refusal {
    let strongest = LEVELS.iter().filter(|level| stands(**level)).max().copied().unwrap_or(Level::Container);
    let why = match choice.reason {
        Reason::Asked => format!("this version does not have the level `{}`", choice.level),
        Reason::Table { trust, blast } => format!(
            "trust `{}` and blast radius `{}` need the level `{}`, which this version does not have",
            spec::trust_name(trust),
            spec::blast_name(blast),
            choice.level
        ),
    };
    let weaker = if choice.level > strongest { ", which is weaker," } else { "" };
    let remedy =
        format!("`--level {strongest}`{weaker} if you accept it; `fumehood choose` explains the levels");
    Refusal::new("choose a level", why, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stronger_level_stands_for_a_weaker_choice_and_never_the_other_way() {
        let level = |trust, blast| settle(None, trust, blast).map(|choice| choice.level);
        assert_eq!(level(Trust::High, Blast::Low), Ok(Level::Container));
        assert_eq!(level(Trust::Medium, Blast::Medium), Ok(Level::Container));
        assert!(level(Trust::Low, Blast::Medium).is_err());
    }

    #[test]
    fn a_level_asked_for_is_never_replaced() {
        assert!(settle(Some(Level::Process), Trust::High, Blast::Low).is_err());
        let refusal = settle(Some(Level::Microvm), Trust::High, Blast::Low).unwrap_err();
        assert!(refusal.remedy.contains("weaker"), "{refusal}");
    }
}
