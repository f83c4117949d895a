//! `fumehood trust`.

use std::ffi::OsString;
use std::process::ExitCode;

pub(crate) fn main(_words: Vec<OsString>) -> ExitCode {
    ExitCode::FAILURE
}
