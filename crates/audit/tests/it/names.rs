//! The names that stand in a record for ever.

use crate::kit::*;
use fumehood_audit::{TaskLog, index_path, task_path};
use fumehood_model::event::{
    EgressAllowed, EgressDenied, EgressEnded, EgressName, Event, FetchStarted, Living, ProveEnded,
};
use std::collections::BTreeMap;
use std::fs;

/// Every event there is.
pub(crate) fn all() -> Vec<Event> {
    vec![
        launched(),
        started(&["sh", "-c", "true"]),
        Event::FileIn { source: "/home/u/a".into(), at: "/workspace/a".into(), bytes: 3 },
        Event::FileOut { path: "b".into(), bytes: 4, sha256: "00".into() },
        Event::FileApplied { path: "c".into(), change: "modified".into(), bytes: 5 },
        Event::FileRefused { path: "d".into(), why: "a link".into() },
        Event::LayerDiscarded {},
        Event::FetchStarted(FetchStarted {
            method: "GET".into(),
            to: "https://example.com".into(),
            path: "/page".into(),
            rules: serde_json::json!({"reach": "public"}),
            from_cache: false,
        }),
        Event::EgressAllowed(EgressAllowed {
            id: 1,
            to: "https://api.example.com".into(),
            via: "transparent".into(),
            method: Some("GET".into()),
            path: Some("/v1".into()),
            rule: "api.example.com".into(),
            credential: None,
        }),
        Event::EgressDenied(EgressDenied {
            to: "https://evil.example".into(),
            via: "connect".into(),
            method: None,
            path: None,
            reason: "no_rule".into(),
            why: "no rule names this host".into(),
            remedy: "none".into(),
            count: 1,
        }),
        Event::EgressEnded(EgressEnded {
            id: 1,
            address: Some("203.0.113.7".into()),
            status: Some(200),
            bytes_out: 1,
            bytes_in: 2,
            fault: None,
            masked: vec!["TOKEN".into()],
        }),
        Event::EgressName(EgressName {
            name: "api.example.com".into(),
            kind: "A".into(),
            count: 1,
            answered: true,
        }),
        Event::ProveStarted { level: "container".into(), walls: "all".into(), quick: true },
        Event::ProveEnded(ProveEnded {
            held: 3,
            breached: 1,
            broken: 0,
            not_applicable: 2,
            failed: vec!["K12".into()],
            policy_sha256: "00".into(),
            report_sha256: "11".into(),
        }),
        Event::Living(Living { actor: "key:ann".into(), ..Living::default() }),
        Event::Claimed { actor: "key:bob".into(), env_names: vec!["A".into()], labels: BTreeMap::new() },
        Event::Paused {},
        Event::Resumed {},
        Event::Halted {},
        Event::Released {},
        Event::FileAsked { verb: "move".into(), path: "/a".into(), to: Some("/b".into()) },
        Event::PortAsked { port: 80, count: 1 },
        Event::ExecSignalled { exec: 1, signal: 15 },
        Event::ActFailed { of: "sandbox.paused".into(), why: "nothing here freezes".into() },
        Event::Snapshot { name: "before".into() },
        Event::ReplayStarted { of: "1".into(), tape_sha256: "00".into() },
        Event::TapeKept { sha256: "00".into() },
        Event::Expires { until_ms: Some(1) },
        Event::NetworkChanged { actor: "key:ann".into(), network: serde_json::json!({ "net": "none" }) },
        Event::Stopped { why: "asked".into(), keeps_files: false },
        ended(),
        Event::Closed {},
    ]
}

#[test]
fn every_name_stands_in_the_record() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = TaskLog::open(folder.path(), &id(1), T0).unwrap();
    for event in all().iter().filter(|event| **event != Event::Closed {}) {
        log.append(T0, event).unwrap();
    }
    drop(log);
    let mut torn = fs::read(task_path(folder.path(), &id(1))).unwrap();
    torn.extend_from_slice(b"{\"seq\":13");
    fs::write(task_path(folder.path(), &id(1)), torn).unwrap();
    TaskLog::reopen(folder.path(), &id(1), T0).unwrap().close(T0).unwrap();
    let names = |path| -> Vec<String> {
        let content = fs::read_to_string(path).unwrap();
        let event = |line: &str| Some(line.split_once("\"event\":\"")?.1.split_once('"')?.0.to_owned());
        content.lines().filter_map(event).collect()
    };
    assert_eq!(
        names(task_path(folder.path(), &id(1))),
        [
            "sandbox.launched",
            "exec.started",
            "file.in",
            "file.out",
            "file.applied",
            "file.refused",
            "layer.discarded",
            "fetch.started",
            "egress.allowed",
            "egress.denied",
            "egress.ended",
            "egress.name",
            "prove.started",
            "prove.ended",
            "sandbox.living",
            "sandbox.claimed",
            "sandbox.paused",
            "sandbox.resumed",
            "sandbox.halted",
            "sandbox.released",
            "file.asked",
            "port.asked",
            "exec.signalled",
            "act.failed",
            "sandbox.snapshot",
            "replay.started",
            "tape.kept",
            "sandbox.expires",
            "network.changed",
            "sandbox.stopped",
            "exec.ended",
            "record.sealed",
            "task.closed",
        ]
    );
    let index = names(index_path(folder.path()));
    assert_eq!(index, ["index.opened", "index.reopened", "index.closed"]);
}

/// The format is stored: a change of it needs a new version, not a new golden text.
#[test]
fn the_exact_bytes_of_a_line() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), &id(1));
    let index = fs::read_to_string(index_path(folder.path())).unwrap();
    let opening = concat!(
        r#"{"seq":0,"at_ms":1764446400000,"task":"1kb8k6vg10000001","#,
        r#""prev":"7155bb1124c63dd75002c3807e89fc1165122117e216a331e71e2d72e4ce5955","#,
        r#""event":"index.opened","#,
        r#""hash":"bab761df22d7c4ddd5f768cb45f80590c4c6db8a962d7b99ad825ba22d33810c"}"#
    );
    assert_eq!(index.lines().next().unwrap(), opening);
}

/// A field of an event must not have the name of a member of the line.
#[test]
fn no_field_hides_a_member() {
    for event in all() {
        let fields = serde_json::to_value(&event).unwrap();
        for member in ["seq", "at_ms", "task", "prev", "hash"] {
            assert!(fields.get(member).is_none(), "{} has {member}", event.name());
        }
    }
}
