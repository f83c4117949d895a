//! One task's file, held against what the index promises about it.

use crate::digest::Head;
use crate::ledger::{CrashSeal, History, Ledger, MarkKind};
use crate::line::Flaw;
use crate::log::TASK_LIMIT_BYTES;
use crate::tail::Torn;
use crate::walk::{Step, Walk};
use fumehood_model::event::{Branch, Event, Living};
use fumehood_model::id::TaskId;
use serde::Serialize;
use std::fs::File;
use std::io::{BufReader, Read, Result};
use std::path::Path;

/// The event that a branch stands in.
const LIVING: &str = "sandbox.living";

/// What can be said of one task's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum TaskState {
    /// Complete and unchanged.
    Ok,
    /// The task is running. Unchanged so far.
    Open,
    /// The task was never closed and does not run: it, or the machine, died. What is there is
    /// unchanged, but how much is missing at the end can not be known.
    Lost,
    /// Its file was removed by its owner for its age.
    Pruned,
    /// Not as it was written.
    Broken {
        /// The first line that is not as it was written.
        seq: u64,
        what: String,
    },
}

/// A judged file.
#[derive(Debug)]
pub(crate) struct Proof {
    pub(crate) state: TaskState,
    pub(crate) head: Head,
    pub(crate) torn: Option<Torn>,
    pub(crate) torn_bytes: u64,
    pub(crate) seals: Vec<CrashSeal>,
    /// The point of another task's record at which this one branches, and the line that says so.
    pub(crate) from: Option<(u64, Branch)>,
}

/// Judges the file of `task`, which is not live, by the index as it is now. `None` where the index
/// does not name it.
pub(crate) fn of_task(records: &Path, task: &TaskId, file: &File) -> Result<Option<Proof>> {
    let ledger = Ledger::read(records, None)?;
    ledger.tasks.get(task).map(|history| of_file(task, history, file)).transpose()
}

/// Judges one file. A file that nobody closed counts as lost: whether its lock is held is not asked, since
/// asking gives back a lock that is our own.
pub(crate) fn of_file(task: &TaskId, history: &History, file: &File) -> Result<Proof> {
    let start = Head::of_task(task, &history.opening);
    let mut proof =
        Proof { state: TaskState::Ok, head: start, torn: None, torn_bytes: 0, seals: Vec::new(), from: None };
    let broken = follow(task, history, file, &mut proof)?;
    proof.state = match broken.or_else(|| ending(history, &proof)) {
        Some(state) => state,
        None if history.is_closed() => TaskState::Ok,
        None => TaskState::Lost,
    };
    Ok(proof)
}

/// Walks to the end, or to the first line that is not as it was written.
fn follow(task: &TaskId, history: &History, file: &File, proof: &mut Proof) -> Result<Option<TaskState>> {
    let broken = |seq, what: &dyn ToString| Ok(Some(TaskState::Broken { seq, what: what.to_string() }));
    let mut marks = history.marks.iter().peekable();
    let mut walk = Walk::new(
        BufReader::with_capacity(64 << 10, file.take(TASK_LIMIT_BYTES + 1)),
        proof.head,
        Some(task),
    );
    loop {
        let here = proof.head;
        let mut reopened = false;
        while let Some(mark) = marks.next_if(|mark| mark.head.lines == here.lines) {
            if mark.head.hash != here.hash {
                return broken(
                    here.lines.saturating_sub(1),
                    &"the file is not the one that the index closed",
                );
            }
            reopened |= mark.kind == MarkKind::Reopened;
        }
        let over = history.is_closed() && marks.peek().is_none();
        match walk.step()? {
            None => return Ok(None),
            Some(_) if over => return broken(here.lines, &"the file goes on after it was closed"),
            Some(Step::Line(line)) => {
                if line.task.as_ref() != Some(task) {
                    return broken(here.lines, &Flaw::OtherTask);
                }
                if line.event == LIVING
                    && let Some(Event::Living(Living { from: Some(from), .. })) = line.known()
                {
                    proof.from = Some((line.seq, from));
                }
            }
            Some(Step::Sealed { line, torn_bytes }) if reopened => {
                proof.seals.push(CrashSeal { seq: line.seq, torn_bytes });
            }
            Some(Step::Sealed { .. }) => {
                return broken(here.lines, &"a seal stands where nobody reopened the file");
            }
            Some(Step::Torn { bytes }) => {
                proof.torn = Torn::of(&bytes, &here);
                proof.torn_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(None);
            }
            Some(Step::Broken { seq, flaw }) => return broken(seq, &flaw),
        }
        proof.head = walk.head();
    }
}

/// What is wrong with where an unbroken file ends.
fn ending(history: &History, proof: &Proof) -> Option<TaskState> {
    let lines = proof.head.lines;
    let promised = history.marks.iter().map(|mark| mark.head.lines).max().unwrap_or(0);
    if promised > lines {
        let what = format!("the file ends after {lines} of {promised} lines");
        return Some(TaskState::Broken { seq: lines, what });
    }
    let backwards = history.marks.is_sorted_by_key(|mark| mark.head.lines);
    (!backwards)
        .then(|| TaskState::Broken { seq: 0, what: "the index contradicts itself about it".to_owned() })
}
