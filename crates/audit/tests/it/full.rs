//! A disk that is full. Needs root, for a tiny file system; says so where it can not be had.

#![expect(clippy::unwrap_used, reason = "a test that can not set its stage has failed")]

use crate::kit::*;
use fumehood_audit::{RecordError, TaskLog, TaskState, index_path, task_path};
use fumehood_model::event::Event;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// A file system of 64 KiB that goes away with the value.
struct Tiny(tempfile::TempDir);

impl Tiny {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=0700", "fumehood-test"]).arg(folder.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        if !mounted {
            let _ = writeln!(std::io::stderr(), "skipped: a file system can not be mounted here");
        }
        mounted.then_some(Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn fill(&self) {
        let _ = fs::write(self.path().join("ballast"), vec![0; 64 << 10]);
    }

    fn empty(&self) {
        fs::remove_file(self.path().join("ballast")).unwrap();
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}

#[test]
fn no_line_stands_half_and_none_follows() {
    let Some(tiny) = Tiny::mount() else { return };
    let mut log = TaskLog::open(tiny.path(), &id(1), T0).unwrap();
    log.append(T0, &launched()).unwrap();
    tiny.fill();
    let event = Event::FileRefused { path: "p".repeat(3000), why: String::new() };
    let mut good = log.head();
    let refused = (0..8).find_map(|_| {
        let refused = log.append(T0, &event).err();
        good = if refused.is_none() { log.head() } else { good };
        refused
    });
    assert!(matches!(refused, Some(RecordError::Write { .. })), "{refused:?}");
    assert!(fs::read(task_path(tiny.path(), &id(1))).unwrap().ends_with(b"\n"));
    // It is as it was before, and goes on when there is room again.
    assert!(log.can_go_on());
    assert_eq!(log.head(), good);
    tiny.empty();
    log.append(T0, &launched()).unwrap();
    let report = judge(tiny.path());
    assert_eq!((state(&report, &id(1)), report.tasks[0].lines), (TaskState::Open, good.lines + 1));
    assert!(report.is_whole() && report.tasks[0].torn_bytes == 0);
    log.close(T0).unwrap();
    assert_eq!(state(&judge(tiny.path()), &id(1)), TaskState::Ok);
}

#[test]
fn a_full_index_refuses_and_stays_whole() {
    let Some(tiny) = Tiny::mount() else { return };
    // The index ends close to the end of its last page, so that a line fits in part.
    let mut number = 1;
    loop {
        record(tiny.path(), &id(number));
        fs::remove_file(task_path(tiny.path(), &id(number))).unwrap();
        number += 1;
        let length = fs::metadata(index_path(tiny.path())).unwrap().len();
        if length % 4096 > 4000 {
            break;
        }
        assert!(number < 100);
    }
    tiny.fill();
    let before = fs::read(index_path(tiny.path())).unwrap();
    let refused = TaskLog::open(tiny.path(), &id(500), T0);
    assert!(matches!(refused, Err(RecordError::Write { .. })), "{refused:?}");
    assert_eq!(fs::read(index_path(tiny.path())).unwrap(), before);
    assert!(!task_path(tiny.path(), &id(500)).exists());
}
