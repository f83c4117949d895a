//! Why a record can not be written.

use fumehood_model::id::TaskId;
use std::path::PathBuf;

/// Why an act was not recorded. The act must not happen then.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("open `{}`", path.display())]
    Open {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("write `{}`", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("write the record to its mirror")]
    Mirror {
        #[source]
        source: std::io::Error,
    },
    #[error("make a record for task `{task}`, which has one")]
    Exists { task: TaskId },
    #[error("add to the record of task `{task}`, which is still running")]
    Live { task: TaskId },
    #[error("add to the record of task `{task}`, which the index does not name")]
    Unknown { task: TaskId },
    #[error(
        "add to the record of task `{task}`, which is broken at line {seq}: {what}; see `fumehood audit verify`"
    )]
    Broken { task: TaskId, seq: u64, what: String },
    #[error("add to the record of task `{task}` after a write to it failed")]
    Poisoned { task: TaskId },
    #[error("add to the record of task `{task}`, which has reached {limit_bytes} bytes")]
    Full { task: TaskId, limit_bytes: u64 },
    #[error("add to `{}`, which was removed or replaced", path.display())]
    Replaced { path: PathBuf },
    #[error(
        "add to `{}`, which is damaged; keep it, move the records folder away, and a new record starts",
        path.display()
    )]
    Damaged { path: PathBuf },
}

// === impl RecordError ===

impl RecordError {
    /// What helps.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Open { .. } | Self::Write { .. } => fumehood_model::remedy::of(self)
                .unwrap_or("look at the folder `records` of the state folder: its rights, and its disk"),
            Self::Mirror { .. } => fumehood_model::remedy::of(self).unwrap_or(
                "see that what the operator's file names as the mirror can be written, or take it out there",
            ),
            Self::Exists { .. } | Self::Live { .. } => "wait until that task is over",
            Self::Unknown { .. } | Self::Broken { .. } | Self::Replaced { .. } | Self::Damaged { .. } => {
                "`fumehood audit verify` says what is wrong with the record"
            }
            Self::Poisoned { .. } => fumehood_model::remedy::NO_SPACE,
            Self::Full { .. } => "begin another sandbox: this one has a record of the largest size",
        }
    }
}
