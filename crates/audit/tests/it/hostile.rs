//! Any bytes in the folder: an answer, and no panic.

use crate::kit::*;
use fumehood_audit::{
    FindError, TaskLog, find, index_path, list, read, show, show_report, task_path, verify,
};
use proptest::prelude::*;
use std::fs;

fn use_everything(records: &std::path::Path) {
    for _ in 0..2 {
        if let Ok(report) = verify(records, None) {
            show_report(&report);
        }
        let _ = (list(records), find(records, "last"), read(records, &id(1)).map(|lines| show(&lines)));
        if let Ok(log) = TaskLog::reopen(records, &id(1), T0) {
            let _ = log.close(T0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn bytes(index in proptest::collection::vec(any::<u8>(), 0..200), lines in "[{}\",:a-z0-9\\n]{0,200}") {
        let folder = tempfile::tempdir()?;
        fs::write(index_path(folder.path()), index)?;
        fs::write(task_path(folder.path(), &id(1)), lines)?;
        use_everything(folder.path());
    }

    #[test]
    fn changed_bytes(changes in proptest::collection::vec((any::<bool>(), 0_usize..3000, 0_u8..4), 1..5)) {
        let folder = tempfile::tempdir()?;
        record(folder.path(), &id(1));
        for (which, at, how) in changes {
            let path = if which { index_path(folder.path()) } else { task_path(folder.path(), &id(1)) };
            let mut content = fs::read(&path)?;
            let at = at % content.len().max(1);
            match how {
                0 => content.truncate(at),
                1 => content.extend_from_within(at..),
                2 => drop(content.drain(..at)),
                _ => content.insert(at, b'\n'),
            }
            fs::write(&path, content)?;
        }
        use_everything(folder.path());
    }
}

/// Endless lines, holes and bare newlines take neither the memory nor the afternoon.
#[test]
fn large_damage_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    for damage in [vec![b'\n'; 1 << 20], vec![b'{'; 6 << 20], vec![0; 6 << 20]] {
        record(folder.path(), &id(1));
        let index = index_path(folder.path());
        let mut content = fs::read(&index).unwrap();
        content.extend(damage);
        fs::write(&index, &content).unwrap();
        assert!(!judge(folder.path()).is_whole());
        fs::remove_file(task_path(folder.path(), &id(1))).unwrap();
        fs::remove_file(index).unwrap();
    }
}

#[test]
fn a_pipe_or_a_link_in_a_files_place_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    std::os::unix::fs::symlink(&target, index_path(folder.path())).unwrap();
    assert!(TaskLog::open(folder.path(), &id(1), T0).is_err());
    assert!(verify(folder.path(), None).is_err());
    assert!(!target.exists() && !task_path(folder.path(), &id(1)).exists());
    fs::remove_file(index_path(folder.path())).unwrap();
    let made = std::process::Command::new("mkfifo").arg(index_path(folder.path())).status().unwrap();
    assert!(made.success());
    assert!(TaskLog::open(folder.path(), &id(1), T0).is_err());
    assert!(verify(folder.path(), None).is_err());
}

#[test]
fn a_task_is_found_by_the_start_of_its_id() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(find(folder.path(), "last"), Err(FindError::Empty)));
    record(folder.path(), &id(1));
    record(folder.path(), &id(2));
    assert_eq!(find(folder.path(), "last").unwrap(), id(2));
    assert_eq!(find(folder.path(), id(1).as_str()).unwrap(), id(1));
    assert_eq!(find(folder.path(), id(1).as_str().get(..10).unwrap()).unwrap(), id(1));
    let ambiguous = find(folder.path(), "1kb8").unwrap_err();
    assert!(
        matches!(&ambiguous, FindError::Ambiguous { count: 2, candidates, .. } if candidates[..] == [id(1), id(2)])
    );
    assert!(ambiguous.to_string().contains(id(2).as_str()));
    for nothing in ["", "zz", "../index", "\u{1b}[2J"] {
        let error = find(folder.path(), nothing).unwrap_err();
        assert!(matches!(error, FindError::NotFound { .. }));
        assert!(!error.to_string().contains('\u{1b}'));
    }
}
