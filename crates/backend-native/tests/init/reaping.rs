//! Signals, ends, and what is left over.

use crate::guest::{Guest, PATIENCE, request};
use fumehood_backend::{Event, ExecError, WaitStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::time::Instant;

#[test]
fn a_signal_reaches_the_whole_group() {
    let mut guest = Guest::new();
    for signal in [1, 2, 9, 15] {
        let script = "sleep 1000 & echo up; wait";
        let (exec, streams) = guest.exec(&request(&["sh", "-c", script]), false);
        assert!(matches!(guest.event().1, Event::Started));
        let mut lines = BufReader::new(streams.stdout);
        lines.read_line(&mut String::new()).unwrap();
        guest.control.signal(exec, signal).unwrap();
        let Event::Ended { status, leftovers: 0, .. } = guest.event().1 else { panic!() };
        assert_eq!(i32::from(signal_of(status)), signal);
        if signal != 2 {
            // Shells start background commands with the interrupt ignored.
            assert_eq!(lines.read_line(&mut String::new()).unwrap(), 0, "{signal}: the child lives on");
        }
    }
    assert_eq!(guest.control.signal(1, 0), Err(ExecError::Silent));
    assert_eq!(guest.control.signal(1, 65), Err(ExecError::Silent));
    guest.control.signal(12345, 9).unwrap();
    assert_eq!(guest.shell("echo on"), "on\n");
}

#[test]
fn a_thousand_orphans_leave_no_zombie() {
    let mut guest = Guest::new();
    guest.shell("i=0; while [ $i -lt 1000 ]; do (true &); i=$((i+1)); done");
    let deadline = Instant::now() + PATIENCE;
    // The shell itself, `ls`, `wc` and `init`.
    while guest.shell("ls -d /proc/[0-9]* | wc -l").trim() != "4" {
        assert!(Instant::now() < deadline, "zombies stay");
    }
}

#[test]
fn the_end_of_the_only_command_ends_what_outlived_it() {
    let mut guest = Guest::new();
    let script = "(setsid sleep 1000 &); (trap '' TERM INT HUP; setsid sleep 1000 &); exit 4";
    let outcome = guest.run(&request(&["sh", "-c", &format!("exec >/dev/null; {script}")]), true).unwrap();
    assert_eq!((outcome.status, outcome.leftovers), (WaitStatus::Exited(4), 2));
    assert!(matches!(guest.event(), (0, Event::Gone)));
    assert!(guest.control.next_event().is_none(), "gone is said once");
    assert_eq!(guest.process.wait(), Some(0));
}

#[test]
fn a_plain_end_of_the_only_command_has_no_leftovers() {
    for _ in 0..20 {
        let mut guest = Guest::new();
        let outcome = guest.run(&request(&["sh", "-c", "seq 1000 | head -n 1; (exit 3)"]), true).unwrap();
        assert_eq!((outcome.status, outcome.leftovers), (WaitStatus::Exited(3), 0));
        assert!(matches!(guest.event(), (0, Event::Gone)));
    }
}

#[test]
fn a_fork_storm_is_ended() {
    let mut guest = Guest::new();
    let storm = "spin() { while :; do (true) & done; }; spin & spin & sleep 0.05; exit 0";
    let script = format!("exec >/dev/null 2>&1; ulimit -u 200000; {storm}");
    let outcome = guest.run(&request(&["sh", "-c", &script]), true).unwrap();
    assert_eq!(outcome.status, WaitStatus::Exited(0));
    assert!(outcome.leftovers >= 2, "{outcome:?}");
    assert_eq!(guest.process.wait(), Some(0));
}

#[test]
fn other_commands_end_with_the_only_one_and_are_no_leftovers() {
    let mut guest = Guest::new();
    let (other, _other_streams) = guest.exec(&request(&["sleep", "1000"]), false);
    assert!(matches!(guest.event().1, Event::Started));
    let (only, _streams) = guest.exec(&request(&["true"]), true);
    assert!(matches!(guest.event().1, Event::Started));
    let ends = [guest.event(), guest.event()].map(|(exec, event)| match event {
        Event::Ended { status, leftovers, .. } => (exec, status, leftovers),
        event => panic!("{event:?}"),
    });
    assert_eq!(ends, [(other, WaitStatus::Signalled(9), 0), (only, WaitStatus::Exited(0), 0)]);
}

#[test]
fn sixty_four_commands_run_at_once_and_no_more() {
    let mut guest = Guest::new();
    let mut running = BTreeMap::new();
    for _ in 0..64 {
        let (exec, streams) = guest.exec(&request(&["cat"]), false);
        running.insert(exec, streams);
    }
    for _ in 0..64 {
        let (exec, event) = guest.event();
        assert!(running.contains_key(&exec) && matches!(event, Event::Started), "{event:?}");
    }
    assert_eq!(guest.run(&request(&["true"]), false).unwrap_err(), ExecError::Exhausted);
    let mut left: BTreeSet<u32> = running.keys().copied().collect();
    drop(running);
    while !left.is_empty() {
        let (exec, event) = guest.event();
        assert!(
            matches!(event, Event::Ended { status: WaitStatus::Exited(0), leftovers: 0, .. }),
            "{event:?}"
        );
        assert!(left.remove(&exec));
    }
    assert_eq!(guest.shell("echo again"), "again\n");
}

#[test]
fn a_keeper_that_does_not_listen_is_not_locked_out() {
    let mut guest = Guest::new();
    let large = "x".repeat(60 * 1024);
    for _ in 0..200 {
        let (_, _streams) = guest.exec(&request(&["true", &large]), false);
    }
    let (mut started, mut ended, mut refused) = (0, 0, 0);
    while ended + refused < 200 {
        match guest.event().1 {
            Event::Started => started += 1,
            Event::Ended { .. } => ended += 1,
            Event::NotStarted(ExecError::Exhausted) => refused += 1,
            event => panic!("{event:?}"),
        }
    }
    assert_eq!(started, ended);
}

#[test]
fn kill_all_ends_the_command_and_init_stays() {
    let mut guest = Guest::new();
    let (_, mut streams) = guest.exec(&request(&["sh", "-c", "setsid sleep 1000 & sleep 1000"]), false);
    assert!(matches!(guest.event().1, Event::Started));
    guest.control.kill_all().unwrap();
    let Event::Ended { status, .. } = guest.event().1 else { panic!() };
    assert_eq!(status, WaitStatus::Signalled(9));
    assert_eq!(streams.stdout.read(&mut [0]).unwrap(), 0);
    assert_eq!(guest.shell("echo on"), "on\n");
}

#[test]
fn the_end_of_the_keeper_is_the_end_of_all() {
    let mut guest = Guest::new();
    let script = "trap '' TERM HUP; setsid sleep 1000 & echo up; wait";
    let (_, streams) = guest.exec(&request(&["sh", "-c", script]), false);
    let mut lines = BufReader::new(streams.stdout);
    lines.read_line(&mut String::new()).unwrap();
    let Guest { control, mut process } = guest;
    drop(control);
    assert_eq!(lines.read_line(&mut String::new()).unwrap(), 0, "someone still holds the output");
    assert_eq!(process.wait(), Some(0));
}

fn signal_of(status: WaitStatus) -> u8 {
    match status {
        WaitStatus::Signalled(signal) => signal,
        WaitStatus::Exited(code) => panic!("exited with {code}"),
    }
}
