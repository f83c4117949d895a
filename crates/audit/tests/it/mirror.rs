//! A mirror has every line, or the act does not happen.

use crate::kit::*;
use fumehood_audit::{MirrorTo, RecordError, TaskLog, task_path};
use std::fs;
use std::os::unix::net::UnixDatagram;

#[test]
fn a_file_elsewhere_has_every_line() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let to = MirrorTo::File(elsewhere.path().join("mirror.jsonl"));
    for number in 1..=2 {
        let mut log = TaskLog::open(folder.path(), &id(number), T0).unwrap().mirrored(&to).unwrap();
        log.append_all(T0, &[launched(), started(&["true"])]).unwrap();
        log.append(T0, &ended()).unwrap();
        log.close(T0).unwrap();
    }
    let own: String =
        (1..=2).map(|number| fs::read_to_string(task_path(folder.path(), &id(number))).unwrap()).collect();
    assert_eq!(fs::read_to_string(to.path()).unwrap(), own);
}

#[test]
fn what_a_mirror_does_not_take_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("log");
    let daemon = UnixDatagram::bind(&socket).unwrap();
    let to = MirrorTo::Syslog(socket.clone());
    let mut log = TaskLog::open(folder.path(), &id(1), T0).unwrap().mirrored(&to).unwrap();
    log.append(T0, &launched()).unwrap();
    let long = "x".repeat(1000);
    log.append(T0, &started(&[long.as_str(); 200])).unwrap();
    let mut message = vec![0; 1 << 20];
    let mut hear = || {
        let length = daemon.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let first = hear();
    assert!(first.starts_with("<134>fumehood: {\"seq\":0,") && first.contains("sandbox.launched"), "{first}");
    assert!(hear().contains("exec.started"));
    drop(daemon);
    let refused = log.append(T0, &ended());
    assert!(matches!(refused, Err(RecordError::Mirror { .. })), "{refused:?}");
    assert!(matches!(log.append(T0, &ended()), Err(RecordError::Poisoned { .. })));
    // Nothing of it stands in the record either.
    let own = fs::read_to_string(task_path(folder.path(), &id(1))).unwrap();
    assert!(own.lines().count() == 2 && own.ends_with('\n'), "{own}");
    fs::remove_file(socket).unwrap();
    assert!(TaskLog::open(folder.path(), &id(2), T0).unwrap().mirrored(&to).is_err());
}

#[test]
fn a_mirror_is_named_by_kind_and_whole_path() {
    assert_eq!(MirrorTo::parse("file:/a/b").unwrap(), MirrorTo::File("/a/b".into()));
    assert_eq!(MirrorTo::parse("syslog:/dev/log").unwrap(), MirrorTo::Syslog("/dev/log".into()));
    for bad in ["", "file", "file:", "file:a", "tcp:/a", "syslog:", ":/a"] {
        assert!(MirrorTo::parse(bad).is_err(), "{bad}");
    }
}
