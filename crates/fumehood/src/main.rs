//! The binary: arguments, wiring, words for people.
//!
//! It turns what was typed into an envelope and a request, hands both to the runtime with the
//! backends that this build has, and says what came of it. It decides nothing about isolation and
//! touches no guest. It is the only crate that names a concrete backend.
//!
//! **Invariant:** standard output carries the command's output, or one JSON object, or what a
//! command was asked to print; everything we have to say goes to standard error.

mod after;
mod attempt;
mod backends;
mod command;
mod config;
mod explain;
mod host;
mod image_config;
mod images;
#[cfg(feature = "wasm")]
mod interpreters;
mod layers;
mod learn;
mod living;
mod network;
mod operator;
mod paths;
mod prepare;
mod refusal;
mod remedies;
mod sandboxes;
mod scope;
mod screen;
mod ship;
mod spec;
mod tasks;
mod template;
mod usage;
mod watch;

use std::process::ExitCode;

fn main() -> ExitCode {
    command::dispatch(std::env::args_os().skip(1).collect())
}
