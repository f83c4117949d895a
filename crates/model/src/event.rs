//! The vocabulary of the record. A name is stable for ever; a field may be added, never renamed.

use crate::ending::{Ending, Hit};
use crate::report::{Changes, Collected, Usage};
use serde::{Deserialize, Serialize};

/// One act, as it stands in a task's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub enum Event {
    /// The sandbox is about to be launched under this envelope.
    #[serde(rename = "sandbox.launched")]
    Launched { level: String, reason: String, envelope: serde_json::Value, enforcement: serde_json::Value },
    /// A command is about to run. Arguments are bytes shown as text; longer ones are capped with a digest.
    #[serde(rename = "exec.started")]
    ExecStarted { argv: Vec<String>, cwd: String, env_names: Vec<String>, terminal: bool },
    /// A host file is about to be copied in.
    #[serde(rename = "file.in")]
    FileIn { source: String, at: String, bytes: u64 },
    /// A file of the sandbox is about to appear on the host.
    #[serde(rename = "file.out")]
    FileOut { path: String, bytes: u64, sha256: String },
    /// A change is about to be made to the workspace on the host (`added`, `modified`, `deleted`, `renamed`).
    #[serde(rename = "file.applied")]
    FileApplied { path: String, change: String, bytes: u64 },
    /// Collection or application refused something.
    #[serde(rename = "file.refused")]
    FileRefused { path: String, why: String },
    /// A layer was thrown away by its owner.
    #[serde(rename = "layer.discarded")]
    LayerDiscarded {},
    /// The command ended.
    #[serde(rename = "exec.ended")]
    ExecEnded {
        ending: Ending,
        hits: Vec<Hit>,
        usage: Usage,
        changes: Option<Changes>,
        collected: Option<Collected>,
    },
    /// The last line of a task.
    #[serde(rename = "task.closed")]
    Closed {},
}

// === impl Event ===

impl Event {
    /// The stable name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Launched { .. } => "sandbox.launched",
            Self::ExecStarted { .. } => "exec.started",
            Self::FileIn { .. } => "file.in",
            Self::FileOut { .. } => "file.out",
            Self::FileApplied { .. } => "file.applied",
            Self::FileRefused { .. } => "file.refused",
            Self::LayerDiscarded {} => "layer.discarded",
            Self::ExecEnded { .. } => "exec.ended",
            Self::Closed {} => "task.closed",
        }
    }
}
