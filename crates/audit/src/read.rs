//! Reading the record back: which tasks there were, and what stands in one.
//!
//! Nothing here judges; a damaged file is read as far as it can be, and says so.

use crate::ledger::Ledger;
use crate::line::{LINE_LIMIT_BYTES, Line};
use crate::log::TASK_LIMIT_BYTES;
use crate::open;
use crate::verify::ReadError;
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

/// The command stands near the start of a file; no more than this is read to find it.
const HEAD_BYTES: u64 = 1 << 20;
/// So many candidates are named where a prefix fits several.
const CANDIDATES: usize = 5;

/// One task, in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskSummary {
    pub task: TaskId,
    /// Milliseconds since 1970.
    pub opened_at_ms: u64,
    /// Absent while the task runs, and for ever when it was lost.
    pub closed_at_ms: Option<u64>,
    pub life: Life,
    /// How the last exec ended, as `ending.cause`.
    pub cause: Option<String>,
    /// The command, as text; of a fetch, the method and the URL; of a self-test, `prove`, the level
    /// and the walls. Empty when nothing was started.
    pub argv: Vec<String>,
}

/// Whether a task still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    Open,
    Closed,
    Lost,
    /// Its file was removed by its owner, for its age.
    Pruned,
}

/// What stands in one task's file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Transcript {
    pub task: TaskId,
    pub lines: Vec<Line>,
    /// Bytes that are no line. More than zero after a crash, or when somebody changed the file.
    pub unreadable_bytes: u64,
}

/// Why no task, or no single one, is meant.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    #[error("find a task: there is none yet")]
    Empty,
    #[error("find a task whose id starts with `{prefix}`; `fumehood audit list` shows all")]
    NotFound { prefix: String },
    #[error("tell which task `{prefix}` means: {count} start so, among them {}", named(.candidates))]
    Ambiguous { prefix: String, count: usize, candidates: Vec<TaskId> },
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Every task that the index names, in the order in which they were opened.
pub fn list(records: &Path) -> Result<Vec<TaskSummary>, ReadError> {
    let ledger = ledger(records)?;
    let summaries = ledger.order.iter().filter_map(|task| {
        let history = ledger.tasks.get(task)?;
        let file = open::read(&open::task_path(records, task)).ok();
        let life = match (&file, history.is_closed()) {
            (None, _) if history.pruned.is_some() => Life::Pruned,
            (_, true) => Life::Closed,
            (Some(file), false) if open::is_live(file) => Life::Open,
            (Some(_) | None, false) => Life::Lost,
        };
        Some(TaskSummary {
            task: task.clone(),
            opened_at_ms: history.opened_at_ms,
            closed_at_ms: history.closed_at_ms,
            life,
            cause: history.cause.clone(),
            argv: file.map(command).unwrap_or_default(),
        })
    });
    Ok(summaries.collect())
}

/// The lines of one task that are whole.
pub fn read(records: &Path, task: &TaskId) -> Result<Transcript, ReadError> {
    let path = open::task_path(records, task);
    let failed = |source| ReadError { path: path.clone(), source };
    let file = open::read(&path).map_err(failed)?;
    let mut transcript = Transcript { task: task.clone(), lines: Vec::new(), unreadable_bytes: 0 };
    for piece in pieces(file, TASK_LIMIT_BYTES) {
        match piece.map_err(failed)? {
            Ok(line) => transcript.lines.push(line),
            Err(bytes) => transcript.unreadable_bytes = transcript.unreadable_bytes.saturating_add(bytes),
        }
    }
    Ok(transcript)
}

/// The task meant by `wanted`: an id, the start of one that fits no other, or `last`.
pub fn find(records: &Path, wanted: &str) -> Result<TaskId, FindError> {
    let Ledger { mut order, .. } = ledger(records)?;
    if wanted == "last" {
        return order.pop().ok_or(FindError::Empty);
    }
    order.retain(|task| !wanted.is_empty() && task.as_str().starts_with(wanted));
    if order.len() > 1 {
        let count = order.len();
        order.truncate(CANDIDATES);
        return Err(FindError::Ambiguous { prefix: wanted.to_owned(), count, candidates: order });
    }
    order.pop().ok_or_else(|| FindError::NotFound { prefix: crate::show::plain(wanted) })
}

fn ledger(records: &Path) -> Result<Ledger, ReadError> {
    Ledger::read(records, None).map_err(|source| ReadError { path: open::index_path(records), source })
}

/// The first command that was started, or what was fetched: its method and its place.
fn command(file: File) -> Vec<String> {
    pieces(file, HEAD_BYTES)
        .map_while(Result::ok)
        .filter_map(Result::ok)
        .find_map(|line| match line.known() {
            Some(Event::ExecStarted { argv, .. }) => Some(argv),
            Some(Event::FetchStarted(fetch)) => {
                Some(vec![fetch.method, format!("{}{}", fetch.to, fetch.path)])
            }
            Some(Event::ProveStarted { level, walls, quick: _ }) => {
                Some(vec!["prove".to_owned(), level, walls])
            }
            Some(_) | None => None,
        })
        .unwrap_or_default()
}

/// The lines of a file, and the sizes of what is none.
fn pieces(file: File, limit_bytes: u64) -> impl Iterator<Item = std::io::Result<Result<Line, u64>>> {
    let mut input = BufReader::with_capacity(64 << 10, file.take(limit_bytes));
    let longest = u64::try_from(LINE_LIMIT_BYTES).unwrap_or(u64::MAX);
    std::iter::from_fn(move || {
        let mut piece = Vec::with_capacity(512);
        match input.by_ref().take(longest).read_until(b'\n', &mut piece) {
            Ok(0) => None,
            Ok(read) => {
                let line = piece.strip_suffix(b"\n").and_then(|line| Line::parse(line).ok());
                Some(Ok(line.ok_or_else(|| u64::try_from(read).unwrap_or(u64::MAX))))
            }
            Err(error) => Some(Err(error)),
        }
    })
}

fn named(candidates: &[TaskId]) -> String {
    candidates.iter().map(|task| format!("`{task}`")).collect::<Vec<_>>().join(", ")
}
