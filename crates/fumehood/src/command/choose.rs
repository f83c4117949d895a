//! `fumehood choose`: which level a run needs, without running anything.

use crate::{backends, screen, spec, usage};
use clap::Parser;
use fumehood_model::level::{Blast, Level, Trust, required};
use serde::Serialize;
use std::ffi::OsString;
use std::process::ExitCode;

/// Say which level of isolation a run needs.
///
/// The level follows from how far the input can be trusted, and from the worst that the run could do
/// if everything it was given were turned against you.
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
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "Example:
  fumehood choose --trust low --blast high";

#[derive(Serialize)]
struct Chosen {
    trust: Trust,
    blast: Blast,
    level: Level,
    available: bool,
    stronger: Vec<Level>,
}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("choose", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let level = required(args.trust, args.blast);
    let stronger: Vec<Level> = Level::ALL.into_iter().filter(|other| *other > level).collect();
    let available = backends::for_choice().any(|built| built >= level);
    if args.json {
        screen::say_json(&Chosen { trust: args.trust, blast: args.blast, level, available, stronger });
        return ExitCode::SUCCESS;
    }
    let (trust, blast) = (spec::trust_name(args.trust), spec::blast_name(args.blast));
    screen::say(&format!("{level}: the weakest level for trust `{trust}` and blast radius `{blast}`"));
    let names: Vec<String> = stronger.iter().map(|other| format!("`{other}`")).collect();
    if !names.is_empty() {
        screen::say(&format!("stronger: {}", names.join(", ")));
    }
    let stands = backends::for_choice().find(|built| *built >= level);
    if let Some(built) = stands.filter(|built| *built != level) {
        screen::say(&format!(
            "this version does not have `{level}`: `{built}`, which is stronger, stands for it"
        ));
    }
    if !available {
        let built: Vec<String> = backends::for_choice().map(|level| format!("`{level}`")).collect();
        screen::say(&format!(
            "this version does not have `{level}`: `fumehood run` refuses, and names {} as the weaker way",
            built.join(", ")
        ));
    }
    ExitCode::SUCCESS
}
