//! `fumehood schema`: the JSON Schema of a `fumehood.toml`.

use crate::{screen, usage};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Print the JSON Schema of `fumehood.toml`.
#[derive(Debug, Parser)]
struct Args {}

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    if let Err(code) = usage::parse_or_tell::<Args>("schema", words) {
        return code;
    }
    let schema = fumehood_model::envelope::json_schema();
    screen::say(&serde_json::to_string_pretty(&schema).unwrap_or_default());
    ExitCode::SUCCESS
}
