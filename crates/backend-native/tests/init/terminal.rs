//! Commands in a terminal of their own.

use crate::guest::{Guest, in_terminal};
use fumehood_backend::{Event, GuestStdio, WaitStatus};
use fumehood_model::exec::ExecRequest;
use std::fs::File;
use std::io::{Read, Write};

#[test]
fn a_command_gets_a_terminal_of_the_size_asked_for() {
    let mut guest = Guest::new();
    let script = "stty size; [ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all >/dev/tty; exit 5";
    let mut master = open(&mut guest, &in_terminal(&["sh", "-c", script], 33, 101));
    assert_eq!(read(&mut master), "33 101\r\nall\r\n");
    assert!(matches!(guest.event().1, Event::Ended { status: WaitStatus::Exited(5), leftovers: 0, .. }));
}

#[test]
fn an_interrupt_typed_into_the_terminal_reaches_the_command() {
    let mut guest = Guest::new();
    let mut master = open(&mut guest, &in_terminal(&["sh", "-c", "echo up; exec sleep 1000"], 24, 80));
    let mut first = [0; 4];
    master.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"up\r\n");
    master.write_all(b"\x03").unwrap();
    assert!(matches!(guest.event().1, Event::Ended { status: WaitStatus::Signalled(2), .. }));
}

#[test]
fn a_hangup_ends_the_command() {
    let mut guest = Guest::new();
    let master = open(&mut guest, &in_terminal(&["sleep", "1000"], 24, 80));
    drop(master);
    assert!(matches!(guest.event().1, Event::Ended { status: WaitStatus::Signalled(1), .. }));
}

#[test]
fn a_command_that_is_not_there_gives_no_terminal() {
    let mut guest = Guest::new();
    let request = in_terminal(&["no-such-command"], 24, 80);
    guest.control.exec(&request, GuestStdio::Terminal, false).unwrap();
    assert!(matches!(guest.event().1, Event::NotStarted(_)));
}

fn open(guest: &mut Guest, request: &ExecRequest) -> File {
    guest.control.exec(request, GuestStdio::Terminal, false).unwrap();
    let Event::Terminal(master) = guest.event().1 else { panic!("no terminal") };
    assert!(matches!(guest.event().1, Event::Started));
    master.into()
}

/// Everything until the other side is closed, which a terminal tells by an error.
fn read(master: &mut File) -> String {
    let (mut text, mut buffer) = (Vec::new(), [0; 256]);
    while let Ok(length @ 1..) = master.read(&mut buffer) {
        text.extend_from_slice(&buffer[..length]);
    }
    String::from_utf8(text).unwrap()
}
