//! Commands: how they start, and how they end.

use crate::guest::{Guest, Outcome, request};
use fumehood_backend::{Event, ExecError, GuestStdio, WaitStatus};
use fumehood_guest::frame::Person;
use fumehood_guest::host::Terms;
use fumehood_model::exec::{ExecRequest, WindowSize};
use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};

#[test]
fn a_command_runs_and_its_code_is_told() {
    let mut guest = Guest::new();
    let outcome = guest.run(&request(&["sh", "-c", "echo hello; exit 7"]), false).unwrap();
    assert_eq!(
        outcome,
        Outcome { status: WaitStatus::Exited(7), leftovers: 0, stdout: "hello\n".to_owned() }
    );
    let outcome = guest.run(&request(&["sh", "-c", "kill -TERM $$"]), false).unwrap();
    assert_eq!(outcome.status, WaitStatus::Signalled(15));
}

#[test]
fn what_can_not_be_started_says_why() {
    let mut guest = Guest::new();
    let mut fails = |request: &ExecRequest| guest.run(request, false).unwrap_err();
    assert_eq!(fails(&request(&["no-such-command"])), ExecError::NotFound);
    assert_eq!(fails(&request(&["/etc"])), ExecError::NotExecutable(ErrorKind::PermissionDenied));
    let lost = ExecRequest { cwd: "/no/such/folder".into(), ..request(&["true"]) };
    assert_eq!(fails(&lost), ExecError::WorkingDirectory(ErrorKind::NotFound));
    assert_eq!(guest.shell("echo still here"), "still here\n");
}

#[test]
fn what_outlives_a_command_that_was_the_purpose_is_ended() {
    let mut guest = Guest::new();
    let script = "sleep 1000 & sleep 1000 & setsid sleep 1000 & echo out";
    let outcome = guest.run(&request(&["sh", "-c", script]), true).unwrap();
    assert_eq!(outcome.leftovers, 3);
    assert_eq!(outcome.stdout, "out\n");
    // Nobody but the first process and the one that asks.
    let left = guest.shell("for p in /proc/[0-9]*; do cat $p/comm 2>/dev/null; done | grep -c sleep || true");
    assert_eq!(left, "0\n");
}

#[test]
fn long_arguments_and_environments_arrive() {
    let mut guest = Guest::new();
    let long = "x".repeat(120_000);
    let mut asked = request(&["sh", "-c", "echo ${#0} ${#A}", &long]);
    asked.env.push(("A".into(), long.clone().into()));
    assert_eq!(guest.run(&asked, false).unwrap().stdout, "120000 120000\n");
    let many = "y".repeat(100_000);
    let argv: Vec<&str> = ["true"].into_iter().chain(std::iter::repeat_n(many.as_str(), 60)).collect();
    let (stdio, _streams) = crate::guest::pipes();
    let refused = guest.host.exec(&request(&argv), stdio, false).unwrap_err();
    assert!(matches!(refused, ExecError::TooLarge { .. }), "{refused:?}");
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let mut guest = Guest::new();
    let script = "trap 'echo got it; exit 3' TERM; echo ready; sleep 1000 & wait";
    let (exec, mut streams) = guest.exec(&request(&["sh", "-c", script]), true);
    assert!(matches!(guest.event(), (number, Event::Started) if number == exec));
    let mut line = [0; 6];
    while !fumehood_sys::poll::wait(
        &[(std::os::fd::AsFd::as_fd(&streams.stdout), fumehood_sys::poll::Interest::Read)],
        Some(std::time::Duration::ZERO),
    )
    .unwrap()[0]
        .ready
    {
        guest.turn();
    }
    streams.stdout.read_exact(&mut line).unwrap();
    guest.host.signal(exec, 15).unwrap();
    let ended = guest.event();
    assert!(matches!(ended.1, Event::Ended { status: WaitStatus::Exited(3), .. }), "{ended:?}");
}

#[test]
fn a_terminal_is_made_inside_and_resized() {
    let mut guest = Guest::new();
    let asked = ExecRequest {
        terminal: Some(WindowSize { rows: 12, columns: 34 }),
        ..request(&["sh", "-c", "tty; stty size; read line; stty size; echo \"<$line>\""])
    };
    let exec = guest.host.exec(&asked, GuestStdio::Terminal, true).unwrap();
    let terminal = match guest.event() {
        (number, Event::Terminal(terminal)) => {
            assert_eq!(number, exec);
            terminal
        }
        other => panic!("{other:?}"),
    };
    let mut terminal = File::from(terminal);
    assert!(matches!(guest.event(), (_, Event::Started)));
    let mut seen = String::new();
    let mut room = [0; 256];
    let mut read = |guest: &mut Guest, terminal: &mut File, until: &str| {
        while !seen.contains(until) {
            match terminal.read(&mut room) {
                Ok(count) => seen.push_str(&String::from_utf8_lossy(&room[..count])),
                Err(error) if error.kind() == ErrorKind::WouldBlock => guest.turn(),
                Err(error) => panic!("{error}"),
            }
        }
        seen.clone()
    };
    fumehood_sys::process::set_nonblocking(&terminal.try_clone().unwrap().into(), true).unwrap();
    let begin = read(&mut guest, &mut terminal, "12 34");
    assert!(begin.starts_with("/dev/pts/"), "{begin}");
    guest.host.resize(exec, fumehood_guest::frame::Size { rows: 50, columns: 60 });
    terminal.write_all(b"word\r").unwrap();
    let end = read(&mut guest, &mut terminal, "<word>");
    assert!(end.contains("50 60"), "{end}");
    assert!(matches!(guest.event(), (_, Event::Ended { status: WaitStatus::Exited(0), .. })));
}

#[test]
fn a_command_runs_as_who_it_is_told_to() {
    if fumehood_sys::host::euid() != 0 {
        return;
    }
    let person = Some(Person { uid: 1234, gid: 1235 });
    let mut guest = Guest::on(Terms { person, limits: vec![(7, 77)] });
    let script = "id -u; id -g; id -G; ulimit -n; grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status";
    let said = guest.shell(script);
    let zero = "0000000000000000";
    let wanted = format!("1234\n1235\n1235\n77\nCapEff:\t{zero}\nCapBnd:\t{zero}\nNoNewPrivs:\t1\n");
    assert_eq!(said, wanted);
}
