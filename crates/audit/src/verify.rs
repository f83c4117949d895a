//! Is the record whole?

use crate::branch::Branches;
use crate::digest::{Digest, Head};
use crate::ledger::{Break, CrashSeal, History, Ledger};
use crate::open;
use crate::proof::{self, Proof, TaskState};
use crate::sign::PublicKey;
use crate::text::os_text;
use fumehood_model::id::TaskId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Tasks that begin and end while we look make a first look contradict itself; it is then repeated.
const LOOKS: u32 = 5;
/// So many names of files that do not belong are kept.
const STRAY_LIMIT: usize = 100;

/// Why a record can not be read.
#[derive(Debug, thiserror::Error)]
#[error("read `{}`", path.display())]
pub struct ReadError {
    pub path: PathBuf,
    #[source]
    pub source: std::io::Error,
}

/// Everything that can be said of a records folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    pub index: IndexReport,
    /// In the order in which they were opened; files that the index does not name come last.
    pub tasks: Vec<TaskReport>,
    /// Files that are no record, as text.
    pub strays: Vec<String>,
}

/// What can be said of the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct IndexReport {
    /// Keep its digest elsewhere: with it, a cut of the index can be found.
    pub head: Head,
    pub seals: Vec<CrashSeal>,
    /// Bytes of half a line that a crash left at the end.
    pub torn_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub broken: Option<Break>,
    /// Whether the digest that was asked for is in the chain. Absent when none was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_expected: Option<bool>,
    /// So many lines from the start are vouched for by a signature; of one of the keys that were given, if any were.
    pub signed_lines: u64,
    /// The keys that signed, each once.
    pub keys: Vec<PublicKey>,
    /// Why the signatures are not those that were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signature_flaw: Option<String>,
}

/// What was kept elsewhere, and must be found again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// The digest of an earlier head.
    pub head: Option<Digest>,
    /// Nobody but the holders of these signed.
    pub keys: Vec<PublicKey>,
    /// There must be a signature by one of them.
    pub signed: bool,
}

/// What can be said of one task's record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TaskReport {
    pub task: TaskId,
    #[serde(flatten)]
    pub state: TaskState,
    /// Lines that are as they were written.
    pub lines: u64,
    pub seals: Vec<CrashSeal>,
    /// Bytes of half a line that a crash left at the end.
    pub torn_bytes: u64,
}

// === impl Report ===

impl Report {
    /// Whether nothing was changed, removed, moved or added. Lost tasks and the marks of crashes are
    /// told, and are no tampering.
    pub fn is_whole(&self) -> bool {
        let broken = |task: &TaskReport| matches!(task.state, TaskState::Broken { .. });
        self.index.broken.is_none()
            && self.index.has_expected != Some(false)
            && self.index.signature_flaw.is_none()
            && !self.tasks.iter().any(broken)
    }
}

/// Judges every file in the folder. With `expected`, the digest of an earlier head, the index must
/// still hold that line.
pub fn verify(records: &Path, expected: Option<&Digest>) -> Result<Report, ReadError> {
    verify_with(records, &Expected { head: expected.copied(), ..Expected::default() })
}

/// The same, by all that was kept elsewhere.
pub fn verify_with(records: &Path, expected: &Expected) -> Result<Report, ReadError> {
    let failed = |source| ReadError { path: records.to_owned(), source };
    let mut looks = 1;
    loop {
        let (report, length) = look(records, expected).map_err(failed)?;
        let sound = report.is_whole() && !report.tasks.iter().any(|task| task.state == TaskState::Lost);
        if sound || looks == LOOKS || length == index_length(records) {
            return Ok(report);
        }
        looks += 1;
    }
}

/// The index's head, to be kept where whoever could change the record can not.
pub fn head(records: &Path) -> Result<Head, ReadError> {
    let read = Ledger::read(records, None);
    read.map(|ledger| ledger.head).map_err(|source| ReadError { path: open::index_path(records), source })
}

/// One look. The folder is listed before the index is read: a file with a line in it that was there
/// then must be named in the index.
fn look(records: &Path, expected: &Expected) -> std::io::Result<(Report, u64)> {
    let (mut unnamed, strays) = listed(records)?;
    let ledger = Ledger::read(records, expected.head.as_ref())?;
    let mut tasks = Vec::with_capacity(ledger.order.len());
    let mut branches = Branches::default();
    for task in &ledger.order {
        unnamed.remove(task);
        let Some(history) = ledger.tasks.get(task) else { continue };
        let judged = open::read(&open::task_path(records, task)).and_then(|file| judge(task, history, &file));
        tasks.push(match judged {
            Ok(proof) => {
                branches.add(task, proof.from.as_ref());
                TaskReport::of(task, proof)
            }
            Err(error) if error.kind() == ErrorKind::NotFound && history.pruned.is_some() => {
                TaskReport::pruned(task, history)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                TaskReport::broken(task, "the file is missing")
            }
            Err(error) => TaskReport::broken(task, &format!("the file can not be read: {error}")),
        });
    }
    let begun = unnamed.into_iter().filter(|(_, kind)| *kind == Listed::HasLines);
    tasks.extend(begun.map(|(task, _)| TaskReport::broken(&task, "the index does not name the file")));
    let is_broken = |report: &TaskReport| matches!(report.state, TaskState::Broken { .. });
    let known = |parent: &TaskId| tasks.iter().any(|report| report.task == *parent && is_broken(report));
    for (task, flaw) in branches.check(records, &ledger, known)? {
        if let Some(report) = tasks.iter_mut().find(|report| report.task == task)
            && !is_broken(report)
        {
            report.state = TaskState::Broken { seq: flaw.seq, what: flaw.what };
        }
    }
    let (signed_lines, keys, signature_flaw) = signatures(&ledger, expected);
    let index = IndexReport {
        head: ledger.head,
        seals: ledger.seals,
        torn_bytes: ledger.torn_bytes,
        broken: ledger.broken,
        has_expected: expected.head.map(|_| ledger.met),
        signed_lines,
        keys,
        signature_flaw,
    };
    Ok((Report { index, tasks, strays }, ledger.length))
}

/// How far signatures vouch, by whom, and what is wrong with that.
fn signatures(ledger: &Ledger, expected: &Expected) -> (u64, Vec<PublicKey>, Option<String>) {
    let known = |key: &PublicKey| expected.keys.is_empty() || expected.keys.contains(key);
    let mut keys = Vec::new();
    for vouched in &ledger.vouched {
        if !keys.contains(&vouched.key) {
            keys.push(vouched.key);
        }
    }
    let signed =
        ledger.vouched.iter().filter(|vouched| known(&vouched.key)).map(|vouched| vouched.lines).max();
    let stranger =
        keys.iter().find(|key| !known(key)).map(|key| format!("it is signed by another key: {key}"));
    let none = (expected.signed && signed.is_none()).then(|| "no line is signed by the key".to_owned());
    (signed.unwrap_or(0), keys, stranger.or(none))
}

fn judge(task: &TaskId, history: &History, file: &File) -> std::io::Result<Proof> {
    let mut proof = proof::of_file(task, history, file)?;
    if proof.state == TaskState::Lost && open::is_live(file) {
        proof.state = TaskState::Open;
    }
    Ok(proof)
}

/// What a file in the folder is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    /// Its task is about to be opened, or its keeper died before that: nothing was done yet.
    Empty,
    HasLines,
}

fn listed(records: &Path) -> std::io::Result<(BTreeMap<TaskId, Listed>, Vec<String>)> {
    let (mut tasks, mut strays) = (BTreeMap::new(), Vec::new());
    let folder = match std::fs::read_dir(records) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok((tasks, strays)),
        opened => opened?,
    };
    for entry in folder {
        let entry = entry?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(open::SUFFIX));
        if let Some(Ok(task)) = id.map(TaskId::parse) {
            let empty = entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0);
            tasks.insert(task, if empty { Listed::Empty } else { Listed::HasLines });
        } else if name != open::INDEX_NAME && strays.len() < STRAY_LIMIT {
            strays.push(os_text(&name));
        }
    }
    strays.sort();
    Ok((tasks, strays))
}

fn index_length(records: &Path) -> u64 {
    std::fs::symlink_metadata(open::index_path(records)).map_or(0, |found| found.len())
}

// === impl TaskReport ===

impl TaskReport {
    fn of(task: &TaskId, proof: Proof) -> Self {
        let Proof { state, head, torn: _, torn_bytes, seals, from: _ } = proof;
        Self { task: task.clone(), state, lines: head.lines, seals, torn_bytes }
    }

    fn pruned(task: &TaskId, history: &History) -> Self {
        let lines = history.pruned.as_ref().map_or(0, |(head, _)| head.lines);
        Self { task: task.clone(), state: TaskState::Pruned, lines, seals: Vec::new(), torn_bytes: 0 }
    }

    fn broken(task: &TaskId, what: &str) -> Self {
        let state = TaskState::Broken { seq: 0, what: what.to_owned() };
        Self { task: task.clone(), state, lines: 0, seals: Vec::new(), torn_bytes: 0 }
    }
}
