//! Exit codes of `fumehood run`: the command's own code passes through; these are ours.

use crate::ending::Ending;

/// The sandbox or the command could not be started, or the request was flawed.
pub const NOT_STARTED: u8 = 125;
/// The command exists and can not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// There is no such command in the sandbox.
pub const NOT_FOUND: u8 = 127;
/// The wall clock ran out.
pub const TIMED_OUT: u8 = 124;
/// The kill switch was used.
pub const HALTED: u8 = 123;
/// A keeper died without an ending.
pub const LOST: u8 = 122;
/// A watched ceiling was passed.
pub const LIMIT_PASSED: u8 = 121;

/// The exit code that stands for an ending. `--json` always carries both.
pub fn exit_code(ending: &Ending) -> u8 {
    match ending {
        Ending::Exited { code } => *code,
        Ending::Signalled { signal, .. } | Ending::Killed { signal, .. } => 128u8.saturating_add(*signal),
        Ending::TimedOut { .. } => TIMED_OUT,
        Ending::OutOfMemory { .. } => 137,
        Ending::Halted => HALTED,
        Ending::LimitPassed { .. } => LIMIT_PASSED,
        Ending::NotStarted { step, .. } => match step.as_str() {
            "find the command" => NOT_FOUND,
            "execute the command" => NOT_EXECUTABLE,
            _ => NOT_STARTED,
        },
        Ending::Lost => LOST,
    }
}
