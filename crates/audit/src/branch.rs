//! Records that branch: a fork's names the point of its parent's record at which it begins, and the parent's must hold
//! that very line.

use crate::digest::{Digest, Head};
use crate::index::BranchPoint;
use crate::ledger::{Break, Ledger};
use crate::log::TASK_LIMIT_BYTES;
use crate::open;
use crate::walk::{Step, Walk};
use fumehood_model::event::Branch;
use fumehood_model::id::TaskId;
use std::collections::BTreeMap;
use std::io::{BufReader, ErrorKind, Read as _, Result};
use std::path::Path;

/// Every point from which some record goes on, by the record that holds it.
#[derive(Debug, Default)]
pub(crate) struct Branches(BTreeMap<TaskId, Vec<Child>>);

/// A record that begins at a point of another.
#[derive(Debug)]
struct Child {
    task: TaskId,
    /// Its line that says so.
    seq: u64,
    lines: u64,
    hash: Option<Digest>,
}

// === impl Branches ===

impl Branches {
    pub(crate) fn add(&mut self, child: &TaskId, from: Option<&(u64, Branch)>) {
        let Some((seq, from)) = from else { return };
        // What is no id names nobody's record; it is found to be unknown under the child's own.
        let parent = TaskId::parse(&from.task).unwrap_or_else(|_| child.clone());
        let hash = Digest::parse(&from.hash).ok();
        let child = Child { task: child.clone(), seq: *seq, lines: from.lines, hash };
        self.0.entry(parent).or_default().push(child);
    }

    /// The children whose parent does not hold the line that they name. Of one that is `known` to be broken nothing
    /// can be said, and that is told already.
    pub(crate) fn check(
        &self,
        records: &Path,
        ledger: &Ledger,
        known: impl Fn(&TaskId) -> bool,
    ) -> Result<Vec<(TaskId, Break)>> {
        let mut broken = Vec::new();
        for (parent, children) in self.0.iter().filter(|(parent, _)| !known(parent)) {
            let points = points(records, ledger, parent, children)?;
            for child in children {
                let what = match (&points, child.hash) {
                    (None, _) => format!("it branches from task `{parent}`, which the index does not name"),
                    (Some(points), Some(hash))
                        if points.contains(&BranchPoint { lines: child.lines, hash }) =>
                    {
                        continue;
                    }
                    (Some(_), _) => format!(
                        "it branches from line {} of task `{parent}`, whose record does not hold it",
                        child.lines.saturating_sub(1)
                    ),
                };
                broken.push((child.task.clone(), Break { seq: child.seq, what }));
            }
        }
        Ok(broken)
    }
}

/// The points of a parent's record that its children may name: as its file has them, or as they stood in the index
/// when the file was removed.
fn points(
    records: &Path,
    ledger: &Ledger,
    parent: &TaskId,
    children: &[Child],
) -> Result<Option<Vec<BranchPoint>>> {
    let Some(history) = ledger.tasks.get(parent) else { return Ok(None) };
    let file = match open::read(&open::task_path(records, parent)) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Some(history.pruned.as_ref().map(|(_, points)| points.clone()).unwrap_or_default()));
        }
        opened => opened?,
    };
    let input = BufReader::with_capacity(64 << 10, file.take(TASK_LIMIT_BYTES));
    let mut walk = Walk::new(input, Head::of_task(parent, &history.opening), Some(parent));
    let mut found = Vec::new();
    while let Some(step) = walk.step()? {
        if matches!(step, Step::Broken { .. } | Step::Torn { .. }) {
            break;
        }
        let Head { lines, hash } = walk.head();
        if children.iter().any(|child| child.lines == lines) {
            found.push(BranchPoint { lines, hash });
        }
    }
    Ok(Some(found))
}

/// Every point at which a record of the folder branches from another's, by that other, for the index to remember.
pub(crate) fn all(records: &Path, ledger: &Ledger) -> Result<BTreeMap<TaskId, Vec<BranchPoint>>> {
    let mut named: BTreeMap<TaskId, Vec<BranchPoint>> = BTreeMap::new();
    for (task, history) in &ledger.tasks {
        let Ok(file) = open::read(&open::task_path(records, task)) else { continue };
        let Some((_, from)) = crate::proof::of_file(task, history, &file)?.from else { continue };
        if let (Ok(parent), Ok(hash)) = (TaskId::parse(&from.task), Digest::parse(&from.hash)) {
            let points = named.entry(parent).or_default();
            let point = BranchPoint { lines: from.lines, hash };
            if !points.contains(&point) {
                points.push(point);
            }
        }
    }
    Ok(named)
}
