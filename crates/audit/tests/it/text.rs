//! Text from inside: one line an event, and nothing that acts on a terminal.

#![expect(clippy::unwrap_used, reason = "a test that can not set its stage has failed")]

use crate::kit::*;
use fumehood_audit::{TaskLog, list, read, show, show_list, show_report, text, to_json};
use fumehood_model::ending::{Ending, Hit, HitKind};
use fumehood_model::event::{EgressDenied, Event};
use fumehood_model::report::Usage;
use proptest::prelude::*;
use std::fs;

/// What a log injection looks like.
const NASTY: [&str; 7] = [
    "a\nb",
    "\",\"hash\":\"0000\"}\n{\"seq\":9,\"event\":\"task.closed\"}",
    "nul \0 esc \u{1b}]52;c;AAAA\u{7} c1 \u{9b}2J",
    "right to left \u{202e}gpj.exe \u{2066}\u{2069} zero\u{200b}width \u{feff}",
    "line \u{2028} paragraph \u{2029} tag \u{e0041}",
    "…",
    "\\u000a \\x0a",
];

fn lines_of(event: &Event) -> (usize, Event, String) {
    let folder = tempfile::tempdir().unwrap();
    let mut log = TaskLog::open(folder.path(), &id(1), T0).unwrap();
    log.append(T0, event).unwrap();
    drop(log);
    let newlines = fs::read(fumehood_audit::task_path(folder.path(), &id(1))).unwrap();
    let newlines = newlines.iter().filter(|byte| **byte == b'\n').count();
    assert!(judge(folder.path()).is_whole());
    let transcript = read(folder.path(), &id(1)).unwrap();
    assert_eq!(transcript.lines.len(), 1);
    let page = show(&transcript) + &show_list(&list(folder.path()).unwrap());
    (newlines, transcript.lines.first().unwrap().known().unwrap(), page)
}

#[test]
fn hostile_text_stays_in_its_line() {
    let event = started(&NASTY);
    let (newlines, back, page) = lines_of(&event);
    assert_eq!((newlines, back), (1, event));
    assert_eq!(page.lines().count(), 2, "{page}");
    let hidden = |letter: char| {
        letter.is_control() && letter != '\n' || "\u{202e}\u{200b}\u{feff}\u{2028}\u{e0041}".contains(letter)
    };
    assert!(!page.contains(hidden), "{page}");
    for shown in ["\\u{1b}]52", "\\u{202e}gpj", "\\u{200b}", "\\u{9b}2J"] {
        assert!(page.contains(shown), "{page}");
    }
}

#[test]
fn long_text_is_cut_and_vouched_for() {
    let long = "x".repeat(200_000);
    let argv = vec!["sh".to_owned(), long.clone(), "tail".to_owned()];
    let started = |argv: Vec<String>, names| Event::ExecStarted {
        argv,
        cwd: "/".into(),
        env_names: names,
        terminal: false,
        exec: None,
        actor: None,
    };
    let many: Vec<String> = (0..20_000).map(|_| String::new()).collect();
    let hit = |detail: String| Hit { kind: HitKind::Denied, detail, count: 2, first_ms: 0 };
    let ended = Event::ExecEnded {
        ending: Ending::NotStarted { step: long.clone(), why: long.clone(), remedy: long.clone() },
        hits: [vec![hit(long.clone())], vec![hit(String::new()); 200]].concat(),
        usage: Usage::default(),
        changes: None,
        collected: None,
        exec: None,
    };
    let big = serde_json::json!({ "hosts": [&long] });
    let launched = Event::Launched {
        level: long.clone(),
        reason: long.clone(),
        envelope: big.clone(),
        enforcement: big,
    };
    let file = Event::FileIn { source: long.clone(), at: long.clone(), bytes: 1 };
    let out = Event::FileOut { path: long.clone(), bytes: 1, sha256: long.clone() };
    let applied = Event::FileApplied { path: long.clone(), change: long.clone(), bytes: 1 };
    let denied = Event::EgressDenied(EgressDenied {
        to: long.clone(),
        via: long.clone(),
        method: Some(long.clone()),
        path: Some(long.clone()),
        reason: long.clone(),
        why: long.clone(),
        remedy: long.clone(),
        count: 1,
    });
    let refused = Event::FileRefused { path: "é\0".repeat(60_000), why: long };
    let execs = [started(argv, many.clone()), started(many, vec![]), ended];
    for event in execs.into_iter().chain([launched, file, out, applied, refused, denied]) {
        let (newlines, back, _) = lines_of(&event);
        assert_eq!(newlines, 1);
        assert_eq!(back.name(), event.name());
        let size = serde_json::to_string(&back).unwrap().len();
        assert!(size < 500_000, "{} has {size}", event.name());
        let shown = serde_json::to_string(&back).unwrap();
        assert!(shown.contains("sha256"), "{}", event.name());
    }
}

#[test]
fn views_are_readable_and_machines_get_json() {
    let folder = tempfile::tempdir().unwrap();
    record(folder.path(), &id(1));
    let page = show(&read(folder.path(), &id(1)).unwrap());
    assert!(page.starts_with("2025-11-29T20:00:00.001Z    0  sandbox.launched"), "{page}");
    let listed = list(folder.path()).unwrap();
    assert!(show_list(&listed).contains("exited"));
    let report = judge(folder.path());
    assert!(show_report(&report).contains("whole: 1 complete"));
    let parsed: serde_json::Value = serde_json::from_str(&to_json(&report)).unwrap();
    assert_eq!(parsed["tasks"][0]["state"], "ok");
    let parsed: serde_json::Value = serde_json::from_str(&to_json(&listed)).unwrap();
    assert_eq!(parsed[0]["life"], "closed");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_event_is_one_line_that_reads_back(
        words in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..6),
        names in proptest::collection::vec(any::<String>(), 0..4),
        path in any::<String>(), why in any::<String>(),
    ) {
        let argv: Vec<String> = words.iter().map(text).collect();
        let exec = Event::ExecStarted { argv, cwd: path.clone(), env_names: names, terminal: true, exec: None, actor: None };
        for event in [exec, Event::FileRefused { path, why }] {
            let (newlines, back, page) = lines_of(&event);
            prop_assert_eq!(newlines, 1);
            prop_assert_eq!(back, event);
            prop_assert_eq!(page.lines().count(), 2);
        }
    }
}
