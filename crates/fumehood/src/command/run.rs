//! `fumehood run`: from words to a run, and from its report to words.

use super::RunArguments;
use crate::after::{self, Circumstances};
use crate::backends::Early;
use crate::prepare::{Prepared, prepare};
use crate::refusal::Refusal;
use crate::watch::{Told, Watch, When};
use crate::{explain, learn, scope, screen, tasks, usage};
use fumehood_model::code::{NOT_STARTED, exit_code};
use fumehood_model::ending::Ending;
use fumehood_model::report::RunReport;
use fumehood_runtime::run::run;
use fumehood_sys::process;
use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    process::keep_freed_memory();
    scope::enter("run", &words);
    let early = Early::start(&words);
    let json = json_is_asked(&words);
    let outcome = match usage::parse::<RunArguments>("run", words) {
        Ok(args) => args.on_its_template().and_then(|args| attempt(&args, early)),
        Err(usage::Unparsed::Helped) => return ExitCode::SUCCESS,
        Err(usage::Unparsed::Refused(refusal)) => Err(refusal),
    };
    outcome.unwrap_or_else(|refusal| refused(&refusal, json))
}

/// As [`main`], for a run that another command asks for.
#[cfg(feature = "wasm")]
pub(super) fn with(json: bool, arguments: impl FnOnce() -> Result<RunArguments, Refusal>) -> ExitCode {
    let early = Early::start(&[]);
    let outcome = arguments().and_then(|args| attempt(&args, early));
    outcome.unwrap_or_else(|refusal| refused(&refusal, json))
}

fn refused(refusal: &Refusal, json: bool) -> ExitCode {
    if json {
        refusal.say_json();
    } else {
        refusal.tell();
    }
    ExitCode::from(NOT_STARTED)
}

fn attempt(args: &RunArguments, early: Early) -> Result<ExitCode, Refusal> {
    let prepared = prepare(args, early)?;
    if args.explain {
        explain::say(&prepared, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.quiet {
        prepared.notes.iter().for_each(|note| screen::note(note));
    }
    let state = tasks::state()?;
    if let Some(file) = &args.learn {
        learn::look(file)?;
    }
    let mut watch = watch(args, &prepared);
    let mut report =
        run(prepared.backend.as_ref(), &state, prepared.request.clone(), &mut |event| watch.see(event));
    watch.finish();
    prepared.mend(&mut report.ending);
    if args.json {
        // A caller that reads no report must not take the command's code for all of the truth.
        if let Err(error) = screen::write_json(&report) {
            screen::note(&format!("the report of `{}` could not be written: {error}", report.task));
            return Ok(ExitCode::from(NOT_STARTED));
        }
    } else {
        tell(&report, &prepared, args);
    }
    if let Some(file) = &args.learn {
        let rules = learn::write(file, &watch.learned())?;
        screen::note(&format!("{rules} rules are in `{}`; `--config {0}` uses them", file.display()));
    }
    // All is said and nothing is held: to take apart what this process was made of is the kernel's to do, at once.
    screen::flush();
    process::exit_now(i32::from(exit_code(&report.ending)))
}

/// What is said of the network on the way. A program that reads JSON finds the refusals in it.
fn watch(args: &RunArguments, prepared: &Prepared) -> Watch {
    let told = match (args.watch_net, args.quiet || args.json) {
        (true, _) => Told::Everything,
        (false, true) => Told::Nothing,
        (false, false) => Told::Refusals,
    };
    let when = if prepared.request.exec.terminal.is_some() { When::Afterwards } else { When::AtOnce };
    Watch::new(told, when, args.learn.is_some())
}

fn tell(report: &RunReport, prepared: &Prepared, args: &RunArguments) {
    let about = Circumstances {
        out: prepared.request.envelope.filesystem().output.as_deref(),
        cleanup: prepared.request.envelope.cleanup(),
        session: prepared.request.envelope.filesystem().session.as_deref(),
        timeout_written: prepared.timeout_written,
    };
    if let Some(line) = after::ending(&report.ending, about.timeout_written) {
        screen::note(&line);
    }
    let ran = !matches!(report.ending, Ending::NotStarted { .. });
    if ran && !args.quiet {
        after::lines(report, about).iter().for_each(|line| screen::note(line));
    }
}

/// Whether one JSON object is expected, also where the words can not be read.
fn json_is_asked(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}
