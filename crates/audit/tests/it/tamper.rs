//! Whatever is done to the files of a small record, `verify` tells it.

#![expect(clippy::unwrap_used, reason = "a test that can not set its stage has failed")]

use crate::kit::*;
use fumehood_audit::{Digest, Report, TaskLog, TaskState, head, index_path, task_path, verify};
use fumehood_model::event::Event;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Two closed tasks and one that was lost, with all their bytes.
struct Stage {
    folder: TempDir,
    clean: Report,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Stage {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for number in 1..=3 {
            let mut log = TaskLog::open(folder.path(), &id(number), T0).unwrap();
            log.append_all(T0, &[Event::LayerDiscarded {}, started(&["true"])]).unwrap();
            if number < 3 {
                log.close(T0).unwrap();
            }
        }
        // Task 1 was gone on with.
        let mut log = TaskLog::reopen(folder.path(), &id(1), T0).unwrap();
        log.append(T0, &Event::LayerDiscarded {}).unwrap();
        log.close(T0).unwrap();
        let clean = judge(folder.path());
        assert!(clean.is_whole());
        let paths =
            [index_path(folder.path()), task_path(folder.path(), &id(1)), task_path(folder.path(), &id(2))];
        let lost = task_path(folder.path(), &id(3));
        let files =
            paths.into_iter().chain([lost]).map(|path| (path.clone(), fs::read(path).unwrap())).collect();
        Self { folder, clean, files }
    }

    fn records(&self) -> &Path {
        self.folder.path()
    }

    /// The report after `path` got other content; then all is as before.
    fn with(&self, path: &Path, content: &[u8]) -> Report {
        fs::write(path, content).unwrap();
        let report = judge(self.records());
        let (_, before) = self.files.iter().find(|(of, _)| of == path).unwrap();
        fs::write(path, before).unwrap();
        report
    }

    fn restore(&self) {
        for (path, content) in &self.files {
            fs::write(path, content).unwrap();
        }
    }
}

fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

#[test]
fn every_changed_byte_shows() {
    let stage = Stage::new();
    for (path, content) in &stage.files {
        for at in 0..content.len() {
            for change in [1 << (at % 8), if at % 4 == 0 { content[at] ^ b'\n' } else { 0 }] {
                if change == 0 {
                    continue;
                }
                let mut changed = content.clone();
                changed[at] ^= change;
                let report = stage.with(path, &changed);
                // A lost newline at the very end is a torn line: told, but no crash differs from it.
                let last = at + 1 == content.len();
                assert!(!report.is_whole() || (last && report != stage.clean), "{path:?} byte {at}");
            }
        }
    }
}

#[test]
fn every_cut_shows() {
    let stage = Stage::new();
    for (path, content) in &stage.files {
        let lost = path.ends_with(format!("{}.jsonl", id(3)));
        for length in 0..content.len() {
            let report = stage.with(path, &content[..length]);
            assert_ne!(report, stage.clean, "{path:?} cut to {length}");
            let whole_lines = content[..length].iter().filter(|byte| **byte == b'\n').count();
            if path.ends_with("index.jsonl") {
                // Seven lines: open 1, close 1, open 2, close 2, open 3, reopen 1, close 1. While a file
                // has more lines than the index knows of, that is no crash.
                assert!(!report.is_whole() || whole_lines == 6, "index cut to {length}");
                assert!(whole_lines < 6 || state(&report, &id(1)) == TaskState::Lost);
            } else {
                assert_eq!(report.is_whole(), lost, "{path:?} cut to {length}");
            }
        }
    }
}

#[test]
fn every_removed_doubled_or_swapped_line_shows() {
    let stage = Stage::new();
    for (path, content) in &stage.files {
        let lines = lines(content);
        let of_lost = path.ends_with(format!("{}.jsonl", id(3)));
        for one in 0..lines.len() {
            let mut removed = lines.clone();
            removed.remove(one);
            let report = stage.with(path, &removed.concat());
            assert!(!report.is_whole() || of_lost || one + 1 == lines.len(), "{path:?} without {one}");
            assert_ne!(report, stage.clean, "{path:?} without {one}");
            for two in 0..=lines.len() {
                let mut doubled = lines.clone();
                doubled.insert(two, lines[one]);
                assert!(!stage.with(path, &doubled.concat()).is_whole(), "{path:?} {one} again at {two}");
            }
            for two in 0..one {
                let mut swapped = lines.clone();
                swapped.swap(one, two);
                assert!(!stage.with(path, &swapped.concat()).is_whole(), "{path:?} {one} and {two}");
            }
        }
    }
}

#[test]
fn the_first_bad_line_is_named() {
    let stage = Stage::new();
    let (path, content) = &stage.files[1];
    for (seq, line) in lines(content).iter().enumerate() {
        let start: usize = lines(content)[..seq].iter().map(|line| line.len()).sum();
        let mut changed = content.clone();
        changed[start + line.len() / 2] ^= 1;
        match state(&stage.with(path, &changed), &id(1)) {
            TaskState::Broken { seq: found, .. } => assert_eq!(found, seq as u64),
            other @ (TaskState::Ok | TaskState::Open | TaskState::Lost | TaskState::Pruned) => {
                panic!("{other:?}")
            }
        }
    }
}

#[test]
fn inserted_lines_and_blank_ones_show() {
    let stage = Stage::new();
    for (path, content) in &stage.files {
        let lines = lines(content);
        let foreign = self::lines(&stage.files[2].1)[1];
        for extra in [b"\n".as_slice(), b"{}\n", b"garbage\n", foreign] {
            for at in 0..=lines.len() {
                let mut more = lines.clone();
                more.insert(at, extra);
                assert!(
                    !stage.with(path, &more.concat()).is_whole() || path == &stage.files[2].0,
                    "{path:?} {at}"
                );
            }
        }
    }
}

#[test]
fn missing_swapped_renamed_and_foreign_files_show() {
    let stage = Stage::new();
    let [index, one, two, lost] = &stage.files[..] else { panic!("four files") };
    for (path, _) in [index, one, two, lost] {
        fs::remove_file(path).unwrap();
        assert!(!judge(stage.records()).is_whole(), "without {path:?}");
        stage.restore();
    }
    fs::write(&one.0, &two.1).unwrap();
    fs::write(&two.0, &one.1).unwrap();
    let report = judge(stage.records());
    for number in [1, 2] {
        assert!(matches!(state(&report, &id(number)), TaskState::Broken { seq: 0, .. }));
    }
    stage.restore();
    let other = task_path(stage.records(), &id(9));
    fs::copy(&two.0, &other).unwrap();
    assert!(matches!(state(&judge(stage.records()), &id(9)), TaskState::Broken { seq: 0, .. }));
    fs::remove_file(&other).unwrap();
    // A link is not followed, even to the true content.
    let kept = stage.records().join("kept");
    fs::rename(&two.0, &kept).unwrap();
    std::os::unix::fs::symlink(&kept, &two.0).unwrap();
    let report = judge(stage.records());
    assert!(matches!(state(&report, &id(2)), TaskState::Broken { .. }));
    assert_eq!(report.strays, ["kept"]);
    fs::remove_file(&two.0).unwrap();
    stage.restore();
}

/// The one removal that the folder alone can not show, and the remedy.
#[test]
fn a_cut_of_the_index_with_its_files_shows_by_a_head_kept_elsewhere() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), &id(1));
    let early = head(folder.path()).unwrap();
    record(folder.path(), &id(2));
    let late = head(folder.path()).unwrap();
    for kept in [early, late] {
        assert!(verify(folder.path(), Some(&kept.hash)).unwrap().is_whole());
    }
    assert!(!verify(folder.path(), Some(&Digest::of(b"another"))).unwrap().is_whole());
    let content = fs::read(index_path(folder.path())).unwrap();
    fs::write(index_path(folder.path()), lines(&content)[..2].concat()).unwrap();
    fs::remove_file(task_path(folder.path(), &id(2))).unwrap();
    assert!(judge(folder.path()).is_whole());
    assert!(verify(folder.path(), Some(&early.hash)).unwrap().is_whole());
    assert!(!verify(folder.path(), Some(&late.hash)).unwrap().is_whole());
}

/// What a writer seals after somebody else's damage stays a break.
#[test]
fn sealing_does_not_launder_tampering() {
    let stage = Stage::new();
    let (path, content) = &stage.files[0];
    let all = lines(content);
    let last: usize = content.len() - all[all.len() - 1].len();
    for at in last..content.len() - 1 {
        let mut changed = content.clone();
        changed[at] ^= 1;
        fs::write(path, &changed).unwrap();
        record(stage.records(), &id(4));
        let report = judge(stage.records());
        assert!(!report.is_whole());
        assert_eq!(report.index.broken.as_ref().unwrap().seq, 6, "byte {at}");
        // What came after is still judged, by itself.
        assert_eq!(state(&report, &id(4)), TaskState::Ok);
        fs::remove_file(task_path(stage.records(), &id(4))).unwrap();
        stage.restore();
    }
    // Lines cut away and passed off as a torn one: the tasks that were opened there have files.
    for kept in 0..5 {
        let cut = [&all[..kept].concat(), b"{\"seq\":".as_slice()].concat();
        fs::write(path, &cut).unwrap();
        record(stage.records(), &id(4));
        assert!(!judge(stage.records()).is_whole(), "kept {kept}");
        fs::remove_file(task_path(stage.records(), &id(4))).unwrap();
        stage.restore();
    }
}

#[test]
fn a_broken_record_is_not_gone_on_with() {
    let stage = Stage::new();
    let (path, content) = &stage.files[2];
    fs::write(path, &content[..content.len() - 3]).unwrap();
    let refused = TaskLog::reopen(stage.records(), &id(2), T0);
    assert!(matches!(refused, Err(fumehood_audit::RecordError::Broken { seq: 2, .. })), "{refused:?}");
    assert_eq!(fs::read(&stage.files[0].0).unwrap(), stage.files[0].1, "nothing was written");
}

/// Whoever can compute digests can make a file that is whole by itself. The index does not agree.
#[test]
fn a_file_that_was_chained_anew_shows() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (ours, theirs) = (task_path(here.path(), &id(1)), task_path(there.path(), &id(1)));
    let mut log = TaskLog::open(here.path(), &id(1), T0).unwrap();
    let opening = fs::read(index_path(here.path())).unwrap();
    log.append(T0, &started(&["true"])).unwrap();
    log.close(T0).unwrap();
    let closed = fs::read(&ours).unwrap();
    // Another story from the same opening, of the same length.
    fs::write(index_path(there.path()), opening).unwrap();
    fs::write(&theirs, b"").unwrap();
    let mut log = TaskLog::reopen(there.path(), &id(1), T0).unwrap();
    log.append(T0, &started(&["false"])).unwrap();
    log.close(T0).unwrap();
    assert!(judge(there.path()).is_whole());
    fs::copy(&theirs, &ours).unwrap();
    assert!(matches!(state(&judge(here.path()), &id(1)), TaskState::Broken { seq: 1, .. }));
    // A longer story, with and without a seal, that nobody opened the file for.
    for torn in [b"".as_slice(), b"{\"seq\":2"] {
        fs::copy(index_path(here.path()), index_path(there.path())).unwrap();
        fs::write(&theirs, &closed).unwrap();
        let mut log = TaskLog::reopen(there.path(), &id(1), T0).unwrap();
        log.append(T0, &Event::LayerDiscarded {}).unwrap();
        drop(log);
        fs::write(&theirs, [&fs::read(&theirs).unwrap(), torn].concat()).unwrap();
        drop(TaskLog::reopen(there.path(), &id(1), T0).unwrap());
        fs::copy(&theirs, &ours).unwrap();
        assert!(matches!(state(&judge(here.path()), &id(1)), TaskState::Broken { seq: 2, .. }));
    }
}
