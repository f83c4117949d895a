//! Where values come from, and which are refused.

use super::{API, Held, assert_silent, field, word};
use crate::both_callers::both_callers;
use crate::lab::Lab;

both_callers! {
    a_file_and_a_command_give_the_same
    a_value_that_ends_is_asked_for_again
    what_no_request_can_carry_is_refused_at_the_start
}

const GET: &str = "curl -sSf https://api.example.com/v1/items";

fn a_file_and_a_command_give_the_same(lab: &Lab) {
    let held = Held::new(lab);
    let file = held.stand.lab.file("held", format!("{}\n", held.value));
    for source in [format!("GH=file:{}", file.display()), format!("GH=cmd:cat {}", file.display())] {
        let seen = held.stand.inside(&["--secret", &source, "--allow", API], &["sh", "-c", GET]);
        assert_eq!(seen.ran.code(), 0, "{source}: {}", seen.ran.told());
        assert_silent(&seen, &held.value);
        let request = seen.log.all("request").next().unwrap();
        assert_eq!(field(request, "authorization"), format!("Bearer {}", held.value), "{request}");
    }
}

/// A command that gives a value for a second: the next request after it carries the next value.
fn a_value_that_ends_is_asked_for_again(lab: &Lab) {
    let held = Held::new(lab);
    let stem = format!("tok_{}", word(30));
    let line = format!(
        "GH=cmd:echo x >> count; printf '{{\"value\": \"{stem}%s\", \"expires_in\": 1}}' $(wc -l < count | tr -d ' ')"
    );
    let script = format!("{GET}; sleep 1.5; {GET}");
    let seen = held.stand.inside(&["--secret", &line, "--allow", API], &["sh", "-c", &script]);
    assert_eq!(seen.ran.code(), 0, "{}", seen.ran.told());
    assert_silent(&seen, &stem);
    let sent: Vec<_> = seen.log.all("request").map(|request| field(request, "authorization")).collect();
    assert_eq!(sent, [format!("Bearer {stem}1"), format!("Bearer {stem}2")], "{}", seen.ran.told());
}

/// Line breaks, NUL, 64 KiB and more, nothing; a name that is none. The message holds nothing of the value.
fn what_no_request_can_carry_is_refused_at_the_start(lab: &Lab) {
    let held = Held::new(lab);
    let value = &held.value;
    let long = value.repeat(1700);
    for (name, bad) in [
        ("break", format!("{value}\r\nX-Injected: 1")),
        ("feed", format!("{value}\nx")),
        ("nul", format!("{value}\0x")),
        ("long", long),
        ("empty", String::new()),
        ("short", "abc".to_owned()),
    ] {
        let file = held.stand.lab.file(name, bad);
        let source = format!("GH=file:{}", file.display());
        let seen = held.stand.inside(&["--secret", &source, "--allow", API], &["sh", "-c", "echo started"]);
        assert_ne!(seen.ran.code(), 0, "{name}: {}", seen.ran.told());
        assert!(
            !seen.ran.out().contains("started") && seen.ran.err().contains("GH"),
            "{name}: {}",
            seen.ran.told()
        );
        assert_silent(&seen, value);
    }
    for flag in [
        "GH=env:NOT_SET",
        "GH=file:/nonexistent",
        "GH=cmd:exit 3",
        "G H=env:HELD",
        "GH\r\n=env:HELD",
        "GH=",
        "GH=vault:x",
    ] {
        let seen = held.stand.inside_with(
            &[("HELD", value)],
            &["--secret", flag, "--allow", API],
            &["sh", "-c", "echo started"],
        );
        assert_ne!(seen.ran.code(), 0, "{flag}: {}", seen.ran.told());
        assert!(!seen.ran.out().contains("started"), "{flag}: {}", seen.ran.told());
        assert_silent(&seen, value);
    }
    for rule in [
        "https://api.example.com/** with header:Host:GH",
        "https://api.example.com/** with header:X\r\nY:GH",
        "http://api.example.com with bearer:GH",
        "https://api.example.com/** with bearer:OTHER",
        "api.example.com:22 with bearer:GH",
    ] {
        let seen = held.sh(&["--allow", rule], "echo started");
        assert_ne!(seen.ran.code(), 0, "{rule}: {}", seen.ran.told());
        assert!(!seen.ran.out().contains("started"), "{rule}: {}", seen.ran.told());
    }
}
