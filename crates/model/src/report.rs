//! What `fumehood run --json` prints: one object, one run.

use crate::ending::{Ending, Hit};
use crate::enforcement::Enforcement;
use crate::id::TaskId;
use crate::level::Choice;
use serde::Serialize;

/// The whole result of one run.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    pub task: TaskId,
    pub ending: Ending,
    pub hits: Vec<Hit>,
    pub stdout: Captured,
    pub stderr: Captured,
    /// Bytes of output that were past the cap: drained, counted, not kept.
    pub dropped_bytes: u64,
    pub resources: Usage,
    /// What a copy-on-write run left to apply. Absent without a workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<Changes>,
    /// What was collected from `/out`. Absent without an output folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub collected: Option<Collected>,
    pub level: Choice,
    pub enforcement: Enforcement,
}

/// A stream as text where it is UTF-8, else as base64 with the flag set.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
pub struct Captured {
    pub text: String,
    pub base64: bool,
}

/// What a run used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Usage {
    pub wall_ms: u64,
    /// User and system time of every process of the sandbox.
    pub cpu_ms: u64,
    /// Absent where nothing measures it.
    pub peak_memory_bytes: Option<u64>,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// How many paths a layer changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Changes {
    pub added: u64,
    pub modified: u64,
    pub deleted: u64,
    pub bytes: u64,
}

/// What crossed from `/out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Collected {
    pub files: u64,
    pub bytes: u64,
    /// Links, devices, sockets and other things that never cross.
    pub refused: u64,
}
