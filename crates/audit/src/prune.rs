//! Removing old records: each file goes, and a line of the index says how far it had come.
//!
//! A record that was changed is never removed: it is evidence.

use crate::branch;
use crate::error::RecordError;
use crate::index::{Entry, Index};
use crate::ledger::Ledger;
use crate::open;
use crate::proof::{self, TaskState};
use fumehood_model::id::TaskId;
use std::fs::File;
use std::path::Path;

/// What became of old records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub removed: Vec<TaskId>,
    pub bytes: u64,
    /// Old ones that stay, and why.
    pub left: Vec<(TaskId, String)>,
}

/// Removes the files of tasks that ended, or of lost ones that began, before `before_ms`, except those that `wanted`
/// still gives a reason to keep. What can not be written into the index first is not removed.
pub fn prune(
    records: &Path,
    (at_ms, before_ms): (u64, u64),
    wanted: &dyn Fn(&TaskId) -> Option<String>,
) -> Result<Pruned, RecordError> {
    let path = open::index_path(records);
    let unread = |source| RecordError::Open { path: path.clone(), source };
    let ledger = Ledger::read(records, None).map_err(unread)?;
    let mut points = branch::all(records, &ledger).map_err(unread)?;
    let mut index = Index::open(records)?;
    let mut pruned = Pruned::default();
    for task in &ledger.order {
        let Some(history) = ledger.tasks.get(task) else { continue };
        if history.closed_at_ms.unwrap_or(history.opened_at_ms) >= before_ms {
            continue;
        }
        let path = open::task_path(records, task);
        let Ok(file) = open::append(&path) else { continue };
        // A live one's is held; of ours, nobody goes on with it meanwhile.
        if file.try_lock().is_err() {
            continue;
        }
        let proof = proof::of_file(task, history, &file).map_err(unread)?;
        let why = match proof.state {
            TaskState::Broken { seq, what } => Some(format!("it is broken at line {seq}: {what}")),
            TaskState::Ok | TaskState::Open | TaskState::Lost | TaskState::Pruned => wanted(task),
        };
        if let Some(why) = why {
            pruned.left.push((task.clone(), why));
            continue;
        }
        if history.pruned.is_none() {
            let (lines, head) = (proof.head.lines, proof.head.hash);
            let branches = points.remove(task).unwrap_or_default();
            index.append(at_ms, task, &Entry::Pruned { lines, head, branches })?;
            index.sync()?;
        }
        let bytes = file.metadata().map_or(0, |found| found.len());
        std::fs::remove_file(&path).map_err(|source| RecordError::Write { path, source })?;
        pruned.bytes = pruned.bytes.saturating_add(bytes);
        pruned.removed.push(task.clone());
    }
    if !pruned.removed.is_empty() {
        let synced = File::open(records).and_then(|folder| folder.sync_all());
        synced.map_err(|source| RecordError::Write { path: records.to_owned(), source })?;
    }
    Ok(pruned)
}
