//! What commands read and write: whole, in order, and never one for another.

use crate::guest::{Guest, Streams, request};
use fumehood_backend::{Event, WaitStatus};
use std::io::{Read as _, Write as _};

#[test]
fn more_than_a_window_goes_both_ways_whole() {
    let mut guest = Guest::new();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|n| b'a' + (n % 26).to_le_bytes()[0]).collect();
    let outcome = guest.run_with(&request(&["cat"]), false, &sent).unwrap();
    assert_eq!(outcome.stdout.len(), sent.len());
    assert!(outcome.stdout.as_bytes() == sent);
}

#[test]
fn input_ends_where_the_keepers_does() {
    let mut guest = Guest::new();
    assert_eq!(guest.run_with(&request(&["wc", "-c"]), false, b"four").unwrap().stdout, "4\n");
}

#[test]
fn a_stream_that_nobody_reads_holds_no_other_back() {
    let mut guest = Guest::new();
    let flood = "head -c 50000000 /dev/zero";
    let (flooding, unread) = guest.exec(&request(&["sh", "-c", flood]), false);
    assert!(matches!(guest.event(), (number, Event::Started) if number == flooding));
    // The first fills its pipe and its window, and stands still; everything else goes on.
    for _ in 0..5 {
        assert_eq!(guest.shell("echo beside it"), "beside it\n");
    }
    let Streams { mut stdout, .. } = unread;
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stdout.read_to_end(&mut bytes).unwrap();
        bytes.len()
    });
    assert!(matches!(guest.event(), (_, Event::Ended { status: WaitStatus::Exited(0), .. })));
    while guest.host.carry().is_some() {
        guest.turn();
    }
    assert_eq!(reader.join().unwrap(), 50_000_000);
}

#[test]
fn a_command_is_told_that_nobody_reads() {
    let mut guest = Guest::new();
    let (_, streams) =
        guest.exec(&request(&["sh", "-c", "trap '' PIPE; while echo x; do :; done; exit 5"]), true);
    drop(streams.stdout);
    assert!(matches!(guest.event(), (_, Event::Started)));
    let ended = guest.event();
    assert!(matches!(ended.1, Event::Ended { status: WaitStatus::Exited(5), .. }), "{ended:?}");
}

#[test]
fn the_keeper_is_told_that_the_command_reads_no_more() {
    let mut guest = Guest::new();
    let (_, mut streams) = guest.exec(&request(&["sh", "-c", "exec 0<&-; sleep 1000"]), true);
    assert!(matches!(guest.event(), (_, Event::Started)));
    fumehood_sys::process::set_nonblocking(&streams.stdin.try_clone().unwrap().into(), true).unwrap();
    // What is written is taken until it is known that nobody reads it.
    loop {
        match streams.stdin.write(&[b'x'; 1000]) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => guest.turn(),
            Err(error) => break assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe),
        }
        guest.host.pump();
    }
    guest.host.kill_all();
    assert!(matches!(guest.event(), (_, Event::Ended { status: WaitStatus::Signalled(9), .. })));
}
