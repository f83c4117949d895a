//! Torn tails, at every byte.

use crate::kit::*;
use fumehood_audit::{RecordError, TaskLog, TaskState, index_path, read, task_path};
use std::fs;

fn last_line(content: &[u8]) -> usize {
    content.iter().rev().skip(1).position(|byte| *byte == b'\n').map_or(0, |back| content.len() - 1 - back)
}

#[test]
fn the_index_goes_on_after_a_crash_at_any_byte() {
    for cut_first in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let index = index_path(folder.path());
        record(folder.path(), &id(1));
        let content = fs::read(&index).unwrap();
        // The first line's cut leaves a file without any good line; its task goes with it.
        let (from, to) = if cut_first {
            (0, content.iter().position(|byte| *byte == b'\n').unwrap() + 1)
        } else {
            (last_line(&content), content.len())
        };
        if cut_first {
            fs::remove_file(task_path(folder.path(), &id(1))).unwrap();
        }
        for length in from + 1..to - usize::from(cut_first) {
            fs::write(&index, &content[..length]).unwrap();
            let before = judge(folder.path());
            assert!(before.is_whole());
            assert_eq!(before.index.torn_bytes, (length - from) as u64);
            record(folder.path(), &id(2));
            record(folder.path(), &id(3));
            let report = judge(folder.path());
            assert!(report.is_whole(), "{report:?}");
            assert_eq!(report.index.torn_bytes, 0);
            // A line that lacked nothing but its newline gets it, and counts.
            let sealed: Vec<u64> = report.index.seals.iter().map(|seal| seal.torn_bytes).collect();
            assert_eq!(sealed, if length + 1 < to { vec![(length - from) as u64] } else { vec![] });
            assert_eq!(state(&report, &id(3)), TaskState::Ok);
            assert!(fs::read(&index).unwrap().starts_with(&content[..length]), "evidence stays");
            for number in [2, 3] {
                fs::remove_file(task_path(folder.path(), &id(number))).unwrap();
            }
        }
    }
}

/// The process that seals can die as well, at any byte of what it writes.
#[test]
fn a_crash_in_the_middle_of_a_seal_is_sealed_too() {
    let folder = tempfile::tempdir().unwrap();
    let index = index_path(folder.path());
    record(folder.path(), &id(1));
    let content = fs::read(&index).unwrap();
    let torn = last_line(&content) + 30;
    fs::write(&index, &content[..torn]).unwrap();
    record(folder.path(), &id(2));
    let sealed = fs::read(&index).unwrap();
    fs::remove_file(task_path(folder.path(), &id(2))).unwrap();
    let end = sealed.iter().enumerate().filter(|(_, byte)| **byte == b'\n').nth(2).unwrap().0;
    // A newline alone, one byte after the torn ones, is what a changed line looks like; that is told.
    for length in torn + 2..end {
        fs::write(&index, &sealed[..length]).unwrap();
        assert!(judge(folder.path()).is_whole(), "{length}");
        record(folder.path(), &id(3));
        let report = judge(folder.path());
        assert!(report.is_whole(), "{length} {report:?}");
        assert_eq!(report.index.seals.len(), 1);
        assert_eq!(state(&report, &id(3)), TaskState::Ok);
        fs::remove_file(task_path(folder.path(), &id(3))).unwrap();
    }
}

#[test]
fn a_lost_task_can_be_ended_after_a_crash_at_any_byte() {
    let folder = tempfile::tempdir().unwrap();
    let index = index_path(folder.path());
    let path = task_path(folder.path(), &id(1));
    let mut log = TaskLog::open(folder.path(), &id(1), T0).unwrap();
    log.append_all(T0, &[launched(), started(&["true"])]).unwrap();
    drop(log);
    let (opened, content) = (fs::read(&index).unwrap(), fs::read(&path).unwrap());
    for length in 0..=content.len() {
        fs::write(&index, &opened).unwrap();
        fs::write(&path, &content[..length]).unwrap();
        let good = content[..length].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let report = judge(folder.path());
        assert!(report.is_whole());
        assert_eq!(state(&report, &id(1)), TaskState::Lost);
        assert_eq!(report.tasks[0].torn_bytes, (length - good) as u64);
        let mut log = TaskLog::reopen(folder.path(), &id(1), T0 + 9).unwrap();
        log.append(T0 + 9, &ended()).unwrap();
        log.close(T0 + 9).unwrap();
        let report = judge(folder.path());
        assert_eq!(state(&report, &id(1)), TaskState::Ok, "{length}");
        let half = length > good && content[length] != b'\n';
        assert_eq!(report.tasks[0].seals.len(), usize::from(half));
        assert!(fs::read(&path).unwrap().starts_with(&content[..length]), "evidence stays");
        let transcript = read(folder.path(), &id(1)).unwrap();
        assert_eq!(transcript.unreadable_bytes, if half { (length - good + 1) as u64 } else { 0 });
    }
}

/// A seal in a task's file counts only where the index says that the file was gone on with.
#[test]
fn a_seal_is_bound_to_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let path = task_path(folder.path(), &id(1));
    let mut log = TaskLog::open(folder.path(), &id(1), T0).unwrap();
    log.append(T0, &launched()).unwrap();
    drop(log);
    let mut content = fs::read(&path).unwrap();
    content.extend_from_slice(b"{\"seq\":1");
    fs::write(&path, &content).unwrap();
    TaskLog::reopen(folder.path(), &id(1), T0).unwrap().close(T0).unwrap();
    let sealed = fs::read(&path).unwrap();
    assert!(judge(folder.path()).is_whole());
    for at in content.len() - 8..content.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert!(!judge(folder.path()).is_whole(), "torn bytes changed");
        changed.remove(at);
        fs::write(&path, &changed).unwrap();
        assert!(!judge(folder.path()).is_whole(), "torn bytes removed");
    }
}

#[test]
fn a_task_lives_as_long_as_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = TaskLog::open(folder.path(), &id(1), T0).unwrap();
    assert_eq!(state(&judge(folder.path()), &id(1)), TaskState::Open);
    assert!(matches!(TaskLog::reopen(folder.path(), &id(1), T0), Err(RecordError::Live { .. })));
    assert!(matches!(TaskLog::open(folder.path(), &id(1), T0), Err(RecordError::Exists { .. })));
    assert!(matches!(TaskLog::reopen(folder.path(), &id(2), T0), Err(RecordError::Unknown { .. })));
    drop(log);
    assert_eq!(state(&judge(folder.path()), &id(1)), TaskState::Lost);
    // Whoever ends a lost task is its life.
    let log = TaskLog::reopen(folder.path(), &id(1), T0).unwrap();
    assert_eq!(state(&judge(folder.path()), &id(1)), TaskState::Open);
    assert!(matches!(TaskLog::reopen(folder.path(), &id(1), T0), Err(RecordError::Live { .. })));
    log.sync().unwrap();
    log.close(T0).unwrap();
    assert_eq!(state(&judge(folder.path()), &id(1)), TaskState::Ok);
}

/// A keeper that died between making the file and naming it in the index did nothing yet.
#[test]
fn an_empty_file_that_nobody_named_is_no_task() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), &id(1));
    fs::write(task_path(folder.path(), &id(2)), b"").unwrap();
    assert!(judge(folder.path()).is_whole());
    fs::write(task_path(folder.path(), &id(2)), b"x").unwrap();
    assert!(!judge(folder.path()).is_whole());
}
