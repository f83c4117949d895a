//! The backends of this build, and which one stands for a level.

use crate::command::RunArguments;
use crate::operator::Operator;
use crate::refusal::Refusal;
use fumehood_backend::Backend;
use fumehood_backend_native::{Native, Wanted};
#[cfg(feature = "wasm")]
use fumehood_backend_wasm::{Source, Wasm};
use fumehood_model::envelope::Envelope;
use fumehood_model::level::{Choice, Level, Question, Reason, Rung, choose, standing};
use std::ffi::OsString;

/// The levels that this build holds, weakest first.
pub(crate) const LEVELS: &[Level] = &[
    #[cfg(feature = "wasm")]
    Level::Wasm,
    Level::Process,
    Level::Container,
    #[cfg(feature = "gvisor")]
    Level::Gvisor,
    #[cfg(feature = "microvm")]
    Level::Microvm,
];

/// Whether the wall of a level of this build is emulated on this host, so that it stands for no choice.
fn emulated(level: Level) -> bool {
    match level {
        Level::Wasm | Level::Process | Level::Container | Level::Gvisor => false,
        // Until machines run on hardware.
        Level::Microvm => true,
    }
}

/// The levels that this build holds on this host.
fn rungs() -> Vec<Rung> {
    LEVELS.iter().map(|level| Rung { level: *level, emulated: emulated(*level) }).collect()
}

/// The level that stands for a choice here, if there is one.
pub(crate) fn stands_for(choice: &Choice) -> Option<Level> {
    standing(&rungs(), choice)
}

/// The levels here that are stronger than `level`, and whose wall is no emulation.
pub(crate) fn stronger(level: Level) -> Vec<Level> {
    rungs().iter().filter(|rung| rung.level > level && !rung.emulated).map(|rung| rung.level).collect()
}

/// The strongest level here that is not below `floor`, and whose wall is no emulation.
pub(crate) fn strongest_from(floor: Level) -> Option<Level> {
    rungs().iter().filter(|rung| rung.level >= floor && !rung.emulated).map(|rung| rung.level).max()
}

/// Settles the level of a run. The one asked for is taken as it is; where it was chosen, the
/// weakest level of this build that is not below the choice stands for it.
pub(crate) fn settle(question: &Question) -> Result<Choice, Refusal> {
    let choice = choose(question).map_err(|below| {
        let why = format!("`{}` was asked for, and {below}", below.asked);
        let remedy = format!("`--level {}` or a stronger one, or leave `--level` out", below.floor);
        Refusal::new("choose a level", why, remedy)
    })?;
    match stands_for(&choice) {
        Some(level) => Ok(Choice { level, reason: choice.reason }),
        None => Err(missing(&choice, question.floor)),
    }
}

/// The weakest level that the operator of this host allows.
pub(crate) fn floor() -> Result<Option<Level>, Refusal> {
    Operator::read().map(|operator| operator.floor)
}

/// What can be begun before it is known what will run: `run` is asked for more often than refused.
#[derive(Debug)]
pub(crate) struct Early(Option<Native>);

// === impl Early ===

impl Early {
    /// Begins, unless a level is named among `words` that has little of it.
    pub(crate) fn start(words: &[OsString]) -> Self {
        let (system, gateway) = (!names_image(words), names_network(words));
        Self(named_level(words).map(|level| Native::warm(Wanted { level, system, gateway })))
    }

    /// What was begun, if it was for that level.
    fn begun(self, level: Level) -> Option<Native> {
        self.0.filter(|native| native.level() == level)
    }

    /// Goes on with what this envelope will need.
    pub(crate) fn foresee(&self, envelope: &Envelope) {
        if let (Some(native), Some(gateway)) = (&self.0, fumehood_runtime::run::gateway(envelope)) {
            native.foresee(&gateway);
        }
    }

    /// The backend of a level, for what was asked to run. Where that is nothing it is only looked at.
    pub(crate) fn backend(self, level: Level, args: &RunArguments) -> Result<Box<dyn Backend>, Refusal> {
        match level {
            Level::Container => Ok(Box::new(self.begun(level).unwrap_or_else(Native::find))),
            Level::Process => Ok(Box::new(self.begun(level).unwrap_or_else(Native::process))),
            #[cfg(feature = "wasm")]
            Level::Wasm => {
                let native = self.begun(Level::Container).unwrap_or_else(Native::find);
                let named = args.command.first().map(|name| Source::File(name.into()));
                let known = args.module.clone().map(|(path, hash)| Source::Known { path, hash });
                Ok(Box::new(Wasm::new(native, known.or(named).unwrap_or(Source::Least))))
            }
            #[cfg(not(feature = "wasm"))]
            Level::Wasm => Err(missing(&Choice { level, reason: Reason::Asked }, None)),
            #[cfg(feature = "gvisor")]
            Level::Gvisor => Ok(Box::new(fumehood_backend_gvisor::Gvisor::find())),
            #[cfg(not(feature = "gvisor"))]
            Level::Gvisor => Err(missing(&Choice { level, reason: Reason::Asked }, None)),
            #[cfg(feature = "microvm")]
            Level::Microvm => microvm(args.accept_tcg),
            #[cfg(not(feature = "microvm"))]
            Level::Microvm => Err(missing(&Choice { level, reason: Reason::Asked }, None)),
        }
    }
}

/// The backend of a level for a sandbox that lives on between commands.
pub(crate) fn living(level: Level, accept_tcg: bool) -> Result<Box<dyn Backend>, Refusal> {
    match level {
        Level::Container | Level::Process | Level::Gvisor | Level::Microvm => {
            Early(None).backend(level, &RunArguments { accept_tcg, ..RunArguments::default() })
        }
        Level::Wasm => Err(Refusal::new(
            "choose a level",
            format!("a living sandbox can not have the level `{level}` in this version"),
            "name `container`, or use `fumehood run` for one command",
        )),
    }
}

/// The backend of a level, with nothing begun.
pub(crate) fn of(level: Level) -> Result<Box<dyn Backend>, Refusal> {
    // To look at what this host can hold is no run that anybody relies on.
    Early(None).backend(level, &RunArguments { accept_tcg: true, ..RunArguments::default() })
}

#[cfg(feature = "microvm")]
fn microvm(accept_tcg: bool) -> Result<Box<dyn Backend>, Refusal> {
    use fumehood_backend_microvm::{Emulation, Microvm};
    let emulation = if accept_tcg { Emulation::Accepted } else { Emulation::Refused };
    Ok(Box::new(Microvm::find(crate::tasks::state()?.root(), emulation)))
}

/// What the line to the user says of a level that is weaker than its name.
pub(crate) fn caution(level: Level) -> Option<&'static str> {
    (level == Level::Microvm).then_some(
        "microvm: the processor is emulated by software (TCG), which QEMU does not call a security boundary",
    )
}

/// The level that is wanted, if it is one that much can be begun for. A guess from unread words, as those below: a
/// wrong one costs a moment, and nothing else.
fn named_level(words: &[OsString]) -> Option<Level> {
    let ours = || words.iter().take_while(|word| *word != "--");
    let named = ours().zip(ours().skip(1)).find(|(flag, _)| *flag == "--level").map(|(_, level)| level);
    let joined = || ours().find_map(|word| word.to_str()?.strip_prefix("--level="));
    match named.and_then(|level| level.to_str()).or_else(joined) {
        None => Some(Level::Container),
        Some(name) => [Level::Container, Level::Process].into_iter().find(|level| level.name() == name),
    }
}

/// Whether another system than the host's is named.
fn names_image(words: &[OsString]) -> bool {
    flags(words).any(|flag| matches!(flag, "--image" | "--template"))
}

/// Whether a network is.
fn names_network(words: &[OsString]) -> bool {
    flags(words).any(|flag| matches!(flag, "--allow" | "--allow-cidr" | "--preset" | "--net" | "--learn"))
}

/// What may be flags of ours, without their values.
fn flags(words: &[OsString]) -> impl Iterator<Item = &str> {
    let ours = words.iter().take_while(|word| *word != "--").filter_map(|word| word.to_str());
    ours.map(|word| word.split_once('=').map_or(word, |(flag, _)| flag))
}

fn missing(choice: &Choice, floor: Option<Level>) -> Refusal {
    let why = match choice.reason {
        Reason::Asked => format!("this version does not have the level `{}`", choice.level),
        Reason::Table { .. } | Reason::Trifecta { .. } | Reason::Floor { .. } => format!(
            "the level `{}` is needed ({}), and this version does not have it here",
            choice.level, choice.reason
        ),
    };
    // The next stronger one; where there is none, the strongest that there is.
    let allowed =
        || LEVELS.iter().filter(|level| !emulated(**level) && floor.is_none_or(|floor| **level >= floor));
    let other = allowed().find(|level| **level > choice.level).or_else(|| allowed().max());
    let remedy = match other {
        None => "install a version that has it".to_owned(),
        Some(other) => {
            let weaker = if choice.level > *other { ", which is weaker," } else { "" };
            let narrower = match choice.reason {
                Reason::Trifecta { .. } => "bind each rule to methods and a path; or ",
                Reason::Asked | Reason::Table { .. } | Reason::Floor { .. } => "",
            };
            format!(
                "{narrower}`--level {other}`{weaker} if you accept it; `fumehood choose` explains the levels"
            )
        }
    };
    Refusal::new("choose a level", why, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fumehood_model::level::{Blast, Sending, Stake, Trust};

    fn question(trust: Trust, blast: Blast) -> Question {
        let stake = Stake { private: true, egress: Sending::Nothing };
        Question { asked: None, floor: None, trust, blast, stake }
    }

    #[test]
    fn a_stronger_level_stands_for_a_weaker_choice_and_never_the_other_way() {
        let level = |trust, blast| settle(&question(trust, blast)).map(|choice| choice.level);
        assert_eq!(level(Trust::High, Blast::Low), Ok(Level::Process));
        assert_eq!(level(Trust::Medium, Blast::Medium), Ok(Level::Container));
        for (trust, blast) in
            [(Trust::Low, Blast::Medium), (Trust::Low, Blast::High), (Trust::High, Blast::High)]
        {
            let needed = fumehood_model::level::required(trust, blast);
            assert!(
                level(trust, blast).is_ok_and(|level| level >= needed)
                    || stronger(Level::Container).iter().all(|level| *level < needed)
            );
        }
    }

    #[test]
    fn a_level_asked_for_is_never_replaced() {
        for level in Level::ALL {
            let asked = Question { asked: Some(level), ..question(Trust::High, Blast::Low) };
            match settle(&asked) {
                Ok(choice) => assert_eq!(choice.level, level),
                Err(refusal) => assert!(!LEVELS.contains(&level), "{refusal}"),
            }
        }
    }

    #[test]
    fn nothing_below_the_floor_is_named_as_a_way_out() {
        let floor = Some(Level::Microvm);
        let refusal = settle(&Question { floor, ..question(Trust::High, Blast::Low) });
        if let Err(refusal) = refusal {
            assert!(!refusal.remedy.contains("--level"), "{refusal}");
        }
        let asked = Question { floor, asked: Some(Level::Process), ..question(Trust::High, Blast::Low) };
        assert!(settle(&asked).unwrap_err().why.contains("no level below"));
    }
}
