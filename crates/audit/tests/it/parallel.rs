//! Many writers of one index.

#![expect(clippy::unwrap_used, reason = "a test that can not set its stage has failed")]

use crate::kit::*;
use fumehood_audit::{TaskState, list};
use std::process::Command;

const CHILD: &str = "FUMEHOOD_AUDIT_TEST_RECORDS";

#[test]
fn threads_do_not_tear_the_index() {
    let folder = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let records = folder.path();
            scope.spawn(move || (0..25).for_each(|number| record(records, &id(writer * 100 + number))));
        }
        // Looking on never finds fault.
        for _ in 0..20 {
            let report = judge(folder.path());
            assert!(report.is_whole(), "{report:?}");
            assert!(!report.tasks.iter().any(|task| task.state == TaskState::Lost), "{report:?}");
        }
    });
    whole(folder.path(), 100);
}

/// Runs as a child of the test below; does nothing otherwise.
#[test]
fn a_writer_in_a_process_of_its_own() {
    let Some(records) = std::env::var_os(CHILD) else { return };
    let base = u64::from(std::process::id()) * 1000;
    (0..25).for_each(|number| record(records.as_ref(), &id(base + number)));
}

#[test]
fn processes_do_not_tear_the_index() {
    let folder = tempfile::tempdir().unwrap();
    let exe = std::env::current_exe().unwrap();
    let child = || {
        let mut command = Command::new(&exe);
        command.args(["--exact", "parallel::a_writer_in_a_process_of_its_own"]).env(CHILD, folder.path());
        command.stdout(std::process::Stdio::null()).spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(|_| child()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    whole(folder.path(), 100);
}

fn whole(records: &std::path::Path, tasks: usize) {
    let report = judge(records);
    assert!(report.is_whole(), "{report:?}");
    assert_eq!(report.tasks.len(), tasks);
    assert_eq!(report.index.head.lines, 2 * tasks as u64);
    assert!(report.tasks.iter().all(|task| task.state == TaskState::Ok));
    assert_eq!(list(records).unwrap().len(), tasks);
}
