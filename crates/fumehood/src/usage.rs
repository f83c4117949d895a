//! From words to arguments, and from the parser's errors to ours.

use crate::refusal::Refusal;
use crate::screen;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::process::ExitCode;

const STEP: &str = "read the arguments";
/// What is returned for flawed arguments, everywhere but under `run`.
pub(crate) const USAGE: u8 = 2;

/// Why there are no arguments.
#[derive(Debug)]
pub(crate) enum Unparsed {
    /// Help was asked for, and printed.
    Helped,
    Refused(Refusal),
}

/// Reads the words after `fumehood NAME`.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library may add kinds")]
pub(crate) fn parse<A: CommandFactory + FromArgMatches>(
    name: &str,
    words: Vec<OsString>,
) -> Result<A, Unparsed> {
    let mut command = A::command();
    if !command.is_disable_help_flag_set() {
        // One help, not a short and a long one.
        let help = Arg::new("help")
            .short('h')
            .long("help")
            .action(ArgAction::HelpShort)
            .global(true)
            .help("Print this");
        let about = command.get_long_about().or(command.get_about()).cloned().unwrap_or_default();
        command = command.about(about).disable_help_flag(true).max_term_width(100).arg(help);
    }
    let with_name = std::iter::once(OsString::from(format!("fumehood {name}"))).chain(words);
    let parsed =
        command.try_get_matches_from_mut(with_name).and_then(|matches| A::from_arg_matches(&matches));
    parsed.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            screen::say_raw(&error.render().to_string());
            Unparsed::Helped
        }
        _ => Unparsed::Refused(refusal(name, &error)),
    })
}

/// Reads the words of a command other than `run`; what can not be read is told here.
pub(crate) fn parse_or_tell<A: CommandFactory + FromArgMatches>(
    name: &str,
    words: Vec<OsString>,
) -> Result<A, ExitCode> {
    parse(name, words).map_err(|unparsed| match unparsed {
        Unparsed::Helped => ExitCode::SUCCESS,
        Unparsed::Refused(refusal) => {
            refusal.tell();
            ExitCode::from(USAGE)
        }
    })
}

fn refusal(name: &str, error: &clap::Error) -> Refusal {
    let text = |kind| error.get(kind).map(plain);
    let argument = text(ContextKind::InvalidArg).unwrap_or_default();
    let flag = argument.split(' ').next().unwrap_or_default();
    let help = format!("run `fumehood {name} --help`");
    let (why, remedy) = match (error.kind(), text(ContextKind::InvalidValue)) {
        (ErrorKind::UnknownArgument, _) => {
            let remedy = match text(ContextKind::SuggestedArg) {
                Some(near) => format!("did you mean `{near}`? `fumehood {name} --help` lists them all"),
                None => format!("`fumehood {name} --help` lists them all"),
            };
            (format!("`fumehood {name}` knows no `{argument}`"), remedy)
        }
        (ErrorKind::InvalidValue, Some(value)) if value.is_empty() => {
            (format!("`{flag}` needs a value"), help)
        }
        (ErrorKind::InvalidValue, Some(value)) => {
            let known = text(ContextKind::ValidValue).unwrap_or_default();
            (format!("`{value}` is no value for `{flag}`"), format!("use one of {}", ticked(&known)))
        }
        (ErrorKind::ValueValidation, Some(value)) => {
            // The only values that are read here and are not words of a list are addresses and whole numbers.
            let remedy = if flag == "--listen" {
                format!("write an address and a port, as in `{flag} 127.0.0.1:3000`")
            } else {
                format!("write a whole number, as in `{flag} 1000`")
            };
            (format!("`{value}` is no value for `{flag}`"), remedy)
        }
        (ErrorKind::ArgumentConflict, _) => {
            let other = text(ContextKind::PriorArg).unwrap_or_default();
            if other.is_empty() || other == argument {
                (format!("`{flag}` is given twice"), format!("give `{flag}` once"))
            } else {
                (format!("`{argument}` and `{other}` exclude each other"), "give one of the two".to_owned())
            }
        }
        (ErrorKind::MissingRequiredArgument, _) => (format!("`{argument}` is missing"), help),
        (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand, _) => {
            (format!("`fumehood {name}` needs one more word"), format!("`fumehood {name} --help` lists them"))
        }
        (ErrorKind::InvalidSubcommand, _) => {
            let word = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            (
                format!("`fumehood {name}` knows no `{word}`"),
                format!("`fumehood {name} --help` lists what it knows"),
            )
        }
        (ErrorKind::InvalidUtf8, _) => ("an argument is not UTF-8 text".to_owned(), help),
        _ => (first_line(error), help),
    };
    Refusal::new(STEP, why, remedy)
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library may add kinds")]
fn plain(value: &ContextValue) -> String {
    match value {
        ContextValue::String(text) => text.clone(),
        ContextValue::Strings(texts) => texts.join(", "),
        other => other.to_string(),
    }
}

fn ticked(list: &str) -> String {
    list.split(", ").map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn first_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}
