//! `fumehood choose`: which level a run needs, without running anything.

use crate::refusal::Refusal;
use crate::{backends, screen, spec, usage};
use clap::Parser;
use fumehood_model::code::NOT_STARTED;
use fumehood_model::level::{
    BelowFloor, Blast, Choice, Level, Question, Reason, Sending, Stake, Trust, choose,
};
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;

/// Say which level of isolation a run needs.
///
/// The level follows from how far the input can be trusted, and from the worst that the run could do
/// if everything it was given were turned against you. Private data, untrusted input and egress together need
/// more, and the operator of this host may have laid down a floor.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, after_help = EXAMPLES)]
struct Args {
    /// How far the input can be trusted: `low` (untrusted input, other tenants), `medium` (your own
    /// agent on your own code), `high` (vetted)
    #[arg(long, value_name = "TRUST", default_value = "medium", value_parser = spec::trust_parser(), hide_possible_values = true)]
    trust: Trust,
    /// The worst it could do: `low` (reads what it was given), `medium` (changes project files),
    /// `high` (internal services, the data of others, production)
    #[arg(long, value_name = "BLAST", default_value = "medium", value_parser = spec::blast_parser(), hide_possible_values = true)]
    blast: Blast,
    /// It sees files of yours, or may use a secret
    #[arg(long)]
    private: bool,
    /// Where it may send: `nothing`, `bound` (rules that name methods and a path), `open` (anything else)
    #[arg(long, value_name = "HOW", default_value = "nothing", value_parser = spec::sending_parser(), hide_possible_values = true)]
    egress: Sending,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Examples:
  fumehood choose --trust low --blast high
  fumehood choose --trust low --private --egress open";

#[derive(Serialize)]
struct Chosen {
    trust: Trust,
    blast: Blast,
    private: bool,
    egress: Sending,
    floor: Option<Level>,
    level: Level,
    reason: Reason,
    available: bool,
    /// What stands for it here.
    stands: Option<Level>,
    stronger: Vec<Level>,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("choose", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let chosen = backends::floor().and_then(|floor| {
        let stake = Stake { private: args.private, egress: args.egress };
        let question = Question { asked: None, floor, trust: args.trust, blast: args.blast, stake };
        choose(&question).map(|choice| (question, choice)).map_err(|below| below_floor(&below))
    });
    match chosen {
        Ok((question, choice)) => {
            explain(&args, &question, &choice);
            ExitCode::SUCCESS
        }
        Err(refusal) => {
            refusal.tell();
            ExitCode::from(NOT_STARTED)
        }
    }
}

/// Nothing is asked for by name here.
fn below_floor(below: &BelowFloor) -> Refusal {
    Refusal::new("choose a level", below.to_string(), "name no level")
}

fn explain(args: &Args, question: &Question, choice: &Choice) {
    let level = choice.level;
    let stronger: Vec<Level> = Level::ALL.into_iter().filter(|other| *other > level).collect();
    let stands = backends::stands_for(choice);
    if args.json {
        return screen::say_json(&Chosen {
            trust: args.trust,
            blast: args.blast,
            private: args.private,
            egress: args.egress,
            floor: question.floor,
            level,
            reason: choice.reason,
            available: stands.is_some(),
            stands,
            stronger,
        });
    }
    screen::say(&format!("{level}: {}", why(question, choice)));
    if let Some(floor) = question.floor {
        screen::say(&format!("the operator of this host allows no level below `{floor}`"));
    }
    let names: Vec<String> = stronger.iter().map(|other| format!("`{other}`")).collect();
    if !names.is_empty() {
        screen::say(&format!("stronger: {}", names.join(", ")));
    }
    match stands {
        Some(built) if built == level => {}
        Some(built) => screen::say(&format!(
            "this version does not have `{level}` here: `{built}`, which is stronger, stands for it"
        )),
        None => {
            let floor = question.floor.unwrap_or(Level::Wasm);
            let weaker = backends::strongest_from(floor);
            let weaker =
                weaker.map_or_else(String::new, |built| format!(", and names `{built}` as the weaker way"));
            screen::say(&format!(
                "this version does not have `{level}` here: `fumehood run` refuses{weaker}"
            ));
        }
    }
}

fn why(question: &Question, choice: &Choice) -> String {
    let (trust, blast) = (question.trust.name(), question.blast.name());
    match choice.reason {
        Reason::Asked | Reason::Table { .. } => {
            format!("the weakest level for trust `{trust}` and blast radius `{blast}`")
        }
        Reason::Trifecta { .. } => format!(
            "private data, untrusted input and egress together need it, whatever the blast radius; rules that are bound to methods and a path (`--egress bound`) would not (trust `{trust}`, blast radius `{blast}`)"
        ),
        Reason::Floor { .. } => {
            format!("the operator's floor; trust `{trust}` and blast radius `{blast}` alone ask for less")
        }
    }
}
