//! One run, from a checked envelope to a report.

use crate::state::State;
use fumehood_backend::Backend;
use fumehood_model::envelope::Envelope;
use fumehood_model::exec::ExecRequest;
use fumehood_model::level::Choice;
use fumehood_model::report::RunReport;
use std::path::PathBuf;

/// Everything that one run needs to know.
#[derive(Clone, Debug)]
pub struct RunRequest {
    pub envelope: Envelope,
    pub choice: Choice,
    /// The command, with its whole environment.
    pub exec: ExecRequest,
    pub output: OutputMode,
    /// Read-only toolchain roots, seen at their host paths.
    pub toolchains: Vec<PathBuf>,
    /// HOME, as a guest path.
    pub home_at: PathBuf,
}

/// Where the command's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputMode {
    /// To our own standard output and error, as it comes.
    Stream,
    /// Into the report.
    Capture,
}

/// Runs one command and answers with the whole truth about it. A failure before the command started
/// is an ending too (`not_started`), so there is no error beside the report.
pub fn run(_backend: &dyn Backend, _state: &State, _request: RunRequest) -> RunReport {
    unimplemented!("being written")
}
