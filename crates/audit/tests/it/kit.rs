//! Small records to play with.

#![expect(clippy::unwrap_used, reason = "a test that can not set its stage has failed")]

use fumehood_audit::{Report, TaskLog, TaskState, verify};
use fumehood_model::ending::Ending;
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use fumehood_model::report::Usage;
use std::path::Path;

/// The time of the first line; each later one is a few milliseconds on.
pub(crate) const T0: u64 = 1_764_446_400_000;

pub(crate) fn id(number: u64) -> TaskId {
    TaskId::new(T0 + number, number)
}

pub(crate) fn launched() -> Event {
    let (envelope, enforcement) =
        (serde_json::json!({"network": "none"}), serde_json::json!({"network": "namespace"}));
    Event::Launched { level: "container".into(), reason: "default".into(), envelope, enforcement }
}

pub(crate) fn started(argv: &[&str]) -> Event {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    Event::ExecStarted {
        argv,
        cwd: "/workspace".into(),
        env_names: vec!["TERM".into()],
        terminal: false,
        exec: None,
        actor: None,
    }
}

pub(crate) fn ended() -> Event {
    let (ending, usage) = (Ending::Exited { code: 0 }, Usage::default());
    Event::ExecEnded { ending, hits: vec![], usage, changes: None, collected: None, exec: None }
}

/// A whole task: launch, exec, ending.
pub(crate) fn record(records: &Path, task: &TaskId) {
    let mut log = TaskLog::open(records, task, T0).unwrap();
    log.append_all(T0 + 1, &[launched(), started(&["true"])]).unwrap();
    log.append(T0 + 2, &ended()).unwrap();
    log.close(T0 + 3).unwrap();
}

pub(crate) fn judge(records: &Path) -> Report {
    verify(records, None).unwrap()
}

pub(crate) fn state(report: &Report, task: &TaskId) -> TaskState {
    report.tasks.iter().find(|found| found.task == *task).unwrap().state.clone()
}
