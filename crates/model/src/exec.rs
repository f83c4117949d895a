//! One command in a sandbox.

use std::ffi::OsString;
use std::path::PathBuf;

/// What to run. Bytes, not text: names and arguments need not be UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecRequest {
    /// The command and its arguments; never empty.
    pub argv: Vec<OsString>,
    /// The whole environment of the command, in order.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory inside.
    pub cwd: PathBuf,
    /// A terminal of this size, or pipes.
    pub terminal: Option<WindowSize>,
}

/// The size of a terminal in character cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    pub rows: u16,
    pub columns: u16,
}
