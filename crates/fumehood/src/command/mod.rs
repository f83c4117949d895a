//! One file per command, and the table that leads to them.
//!
//! Only the parser of the command at hand is built: the others would cost every start.

mod apply;
mod audit;
mod choose;
mod create;
mod daemon;
mod diff;
mod discard;
mod doctor;
#[cfg(feature = "wasm")]
mod eval;
mod exec;
mod fetch;
mod files;
mod fleet;
mod halt;
mod image;
mod keeper;
mod keys;
mod logs;
mod ls;
mod net;
mod network_arguments;
mod prove;
mod replay;
mod run;
mod run_arguments;
mod schema;
mod serve;
mod snapshot;
mod stop;
mod template;
mod trust;

pub(crate) use image::Failure;
pub(crate) use network_arguments::NetworkArguments;
pub(crate) use run_arguments::RunArguments;

use crate::refusal::Refusal;
use crate::{screen, usage};
use std::ffi::OsString;
use std::process::ExitCode;

/// A command: its name, its line in the help, and what it does with the words after its name.
type Command = (&'static str, &'static str, fn(Vec<OsString>) -> ExitCode);

const COMMANDS: &[Command] = &[
    ("run", "Run a command in a sandbox", run::main),
    #[cfg(feature = "wasm")]
    ("eval", "Run a small script on an interpreter without any system", eval::main),
    ("create", "Make a sandbox that lives on between commands", create::main),
    ("exec", "Run a command in a living sandbox", exec::main),
    ("ls", "List living sandboxes, or the commands of one", ls::main),
    ("logs", "Show the output of a command of a living sandbox", logs::main),
    ("files", "Read, write and list the files of a living sandbox", files::main),
    ("pause", "Stop every process of a living sandbox where it is", stop::pause),
    ("resume", "Let a paused sandbox go on", stop::resume),
    ("snapshot", "Keep the files of a living sandbox as they are now", snapshot::snapshot_main),
    ("snapshots", "List and remove snapshots", snapshot::snapshots_main),
    ("fork", "Make sandboxes that begin with the files of another", snapshot::fork_main),
    ("stop", "End a living sandbox", stop::main),
    ("rm", "End a sandbox, and remove files of it that were kept", stop::remove),
    ("diff", "Show what a run changed in its copy of the workspace", diff::main),
    ("apply", "Bring the changes of a run back to the workspace", apply::main),
    ("discard", "Throw the changes of a run away", discard::main),
    ("audit", "List, show and verify the record of what ran", audit::main),
    ("replay", "Show a task again, run it again, or judge it by other rules", replay::main),
    ("trust", "Trust a `fumehood.toml` as it is now", trust::main),
    ("choose", "Say which level of isolation a run needs", choose::main),
    ("fetch", "Fetch one page through the same wall, without a sandbox", fetch::main),
    ("net", "Say what rules would do with a request, and why", net::main),
    ("image", "Pull, list and remove images for `run --image`", image::main),
    ("template", "Build small roots for one purpose, for `--template`", template::main),
    ("serve", "Serve sandboxes over HTTP, to many at once", serve::main),
    ("keys", "Make, list and remove keys of the daemon", keys::main),
    ("fleet", "Compute memory, hosts and pools for so many tasks", fleet::main),
    ("halt", "Cut off and freeze sandboxes at once", halt::main),
    ("doctor", "Say what this host can hold, and how it could hold more", doctor::main),
    ("prove", "Attack the walls of this installation, and say which hold", prove::main),
    ("schema", "Print the JSON Schema of `fumehood.toml`", schema::main),
];

/// The role of a process that keeps a living sandbox; no command for people.
pub(crate) const KEEPER: &str = "keeper";

/// Leads to the command that the first word names.
pub(crate) fn dispatch(mut words: Vec<OsString>) -> ExitCode {
    if words.is_empty() {
        screen::tell(help().trim_end());
        return ExitCode::from(usage::USAGE);
    }
    let first = words.remove(0);
    let rest = words;
    #[cfg(feature = "wasm")]
    if first == fumehood_backend_wasm::ROLE {
        return fumehood_backend_wasm::engine_main(&rest);
    }
    if first == KEEPER {
        return keeper::main(rest);
    }
    match first.to_str().unwrap_or_default() {
        "-V" | "--version" => screen::say(concat!("fumehood ", env!("CARGO_PKG_VERSION"))),
        "-h" | "--help" => screen::say_raw(&help()),
        "help" => match rest.into_iter().next() {
            Some(name) => return dispatch(vec![name, "--help".into()]),
            None => screen::say_raw(&help()),
        },
        name => match COMMANDS.iter().find(|(known, ..)| *known == name) {
            Some((_, _, main)) => return main(rest),
            None => {
                unknown(&first).tell();
                return ExitCode::from(usage::USAGE);
            }
        },
    }
    ExitCode::SUCCESS
}

fn unknown(word: &OsString) -> Refusal {
    let word = word.to_string_lossy();
    if word.starts_with('-') {
        let why = format!("`fumehood` knows no `{word}`");
        return Refusal::new(
            "read the arguments",
            why,
            "flags come after the command: `fumehood run --help` lists those of `run`",
        );
    }
    Refusal::new(
        "read the arguments",
        format!("there is no command `fumehood {word}`"),
        format!(
            "to run `{word}` in a sandbox: `fumehood run -- {word}`; `fumehood --help` lists the commands"
        ),
    )
}

fn help() -> String {
    let list: String = COMMANDS.iter().map(|(name, what, _)| format!("  {name:<11}{what}\n")).collect();
    format!(
        "Runs code that you do not trust behind walls that you can see.\n\n\
         Usage: fumehood COMMAND [ARGUMENTS]\n\nCommands:\n{list}\n\
         Options:\n  -h, --help     Print this; `fumehood COMMAND --help` says more\n  -V, --version  Print the version\n\n\
         Start here:\n  \
         fumehood run -- python3 -c 'print(40 + 2)'       a command, an empty folder, no network\n  \
         fumehood run --workspace . -- make test          your project; what it writes waits for you\n  \
         fumehood run --in data.csv --out results -- python3 -c 'import shutil; shutil.copy(\"data.csv\", \"/out\")'\n"
    )
}
