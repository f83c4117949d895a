//! Writing, reading back, going on.

use crate::kit::*;
use fumehood_audit::{Life, TaskLog, TaskState, find, list, read};
use fumehood_model::event::Event;

#[test]
fn a_task_reads_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path().join("records");
    record(&records, &id(1));
    let report = judge(&records);
    assert!(report.is_whole());
    assert_eq!(state(&report, &id(1)), TaskState::Ok);
    let lines = read(&records, &id(1)).unwrap().lines;
    let events: Vec<_> = lines.iter().map(|line| line.known().unwrap()).collect();
    assert_eq!(events, [launched(), started(&["true"]), ended(), Event::Closed {}]);
    assert_eq!(lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let listed = list(&records).unwrap();
    assert_eq!((listed[0].life, listed[0].cause.as_deref()), (Life::Closed, Some("exited")));
    assert_eq!(listed[0].argv, ["true"]);
    assert_eq!(find(&records, "last").unwrap(), id(1));
}

#[test]
fn a_later_act_is_added_to_an_old_task() {
    let folder = tempfile::tempdir().unwrap();
    let records = folder.path();
    record(records, &id(1));
    record(records, &id(2));
    for round in 0..3 {
        let mut log = TaskLog::reopen(records, &id(1), T0 + 10 + round).unwrap();
        assert_eq!(state(&judge(records), &id(1)), TaskState::Open);
        log.append(T0 + 11, &Event::LayerDiscarded {}).unwrap();
        log.close(T0 + 12).unwrap();
        let report = judge(records);
        assert!(report.is_whole());
        assert_eq!(state(&report, &id(1)), TaskState::Ok);
    }
    assert_eq!(list(records).unwrap()[0].cause.as_deref(), Some("exited"));
    assert_eq!(read(records, &id(1)).unwrap().lines.len(), 10);
}
