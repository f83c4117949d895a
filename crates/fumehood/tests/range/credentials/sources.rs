//! Where values come from, and which are refused.

use super::{API, Held, assert_silent, field};
use crate::both_callers::both_callers;
use crate::lab::Lab;

both_callers! {
    a_file_and_a_command_give_the_same
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
