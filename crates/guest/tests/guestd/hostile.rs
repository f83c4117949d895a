//! Either side sends what it may not.

use crate::guest::{Guest, PATIENCE, event, over, start};
use fumehood_backend::{Event, ExecError};
use fumehood_guest::frame::{HEADER_BYTES, Header, PAYLOAD_BYTES, Report, Request};
use fumehood_guest::host::Terms;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;

/// Plays a guest that has greeted, and then sends `bytes`. What the host says of it.
fn lost(bytes: &[u8]) -> String {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut host = over(ours, Terms::default());
    greet(&mut theirs);
    host.await_ready(PATIENCE).unwrap();
    theirs.write_all(bytes).unwrap();
    match event(&mut host) {
        (0, Event::Lost { why }) => {
            assert!(host.next_event().is_none(), "it is said once");
            let (stdio, _streams) = crate::guest::pipes();
            let refused = host.exec(&crate::guest::request(&["true"]), stdio, false);
            assert_eq!(refused.unwrap_err(), ExecError::Silent);
            why
        }
        other => panic!("{other:?}"),
    }
}

fn greet(theirs: &mut UnixStream) {
    let mut head = [0; HEADER_BYTES];
    theirs.read_exact(&mut head).unwrap();
    let header = Header::parse(&head).unwrap();
    let mut payload = vec![0; usize::try_from(header.length).unwrap()];
    theirs.read_exact(&mut payload).unwrap();
    let Some(Request::Hello { nonce }) = Request::parse(&header, &payload) else { panic!("no greeting") };
    let mut answer = Vec::new();
    Report::Hello { nonce }.print(&mut answer);
    theirs.write_all(&answer).unwrap();
}

fn frame(report: Report<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    report.print(&mut bytes);
    bytes
}

#[test]
fn a_guest_that_breaks_the_rules_is_given_up_with_a_cause() {
    assert!(lost(&[0xff; 64]).contains("not of the protocol"));
    let mut oversized = frame(Report::Done { channel: 1 });
    oversized[..4].copy_from_slice(&(PAYLOAD_BYTES as u32 + 1).to_le_bytes());
    assert!(lost(&oversized).contains("not of the protocol"));
    assert!(lost(&frame(Report::Started { channel: 1, pid: 2 })).contains("not open"));
    assert!(lost(&frame(Report::Data { channel: 9, stream: 1, bytes: b"x" })).contains("not open"));
    assert!(lost(&frame(Report::Hello { nonce: 5 })).contains("greeted"));
}

#[test]
fn a_guest_that_sends_more_than_it_may_is_given_up() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let mut host = over(ours, Terms::default());
    greet(&mut theirs);
    host.await_ready(PATIENCE).unwrap();
    let (stdio, _unread) = crate::guest::pipes();
    let channel = host.exec(&crate::guest::request(&["true"]), stdio, false).unwrap();
    let mut bytes = frame(Report::Started { channel, pid: 2 });
    let data = frame(Report::Data { channel, stream: 1, bytes: &[0; PAYLOAD_BYTES] });
    bytes.extend(data.repeat(20));
    let writer = std::thread::spawn(move || {
        let _ = theirs.write_all(&bytes);
        theirs
    });
    assert!(matches!(event(&mut host), (number, Event::Started) if number == channel));
    match event(&mut host) {
        (0, Event::Lost { why }) => assert!(why.contains("more than it may"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(host);
    drop(writer.join().unwrap());
}

#[test]
fn a_guest_that_never_answers_is_not_waited_for() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let mut host = over(ours, Terms::default());
    let error = host.await_ready(std::time::Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[test]
fn a_guest_that_goes_is_gone_once() {
    let mut guest = Guest::new();
    let (_, _streams) = guest.exec(&crate::guest::request(&["sleep", "1000"]), true);
    assert!(matches!(guest.event(), (_, Event::Started)));
    guest.process.0.kill().unwrap();
    assert!(matches!(guest.event(), (0, Event::Gone)));
    assert!(guest.host.next_event().is_none());
    assert!(guest.host.carry().is_none());
}

#[test]
fn guestd_ends_with_its_host_and_with_what_is_not_of_the_protocol() {
    for garbage in [b"".as_slice(), &[0xee; 100], &[0; 12]] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let mut process = start(&theirs.into());
        ours.write_all(garbage).unwrap();
        ours.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(process.wait(), Some(0));
    }
}

#[test]
fn guestd_takes_frames_however_they_are_cut() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let _process = start(&theirs.into());
    let mut bytes = Vec::new();
    Request::Hello { nonce: 77 }.print(&mut bytes);
    for byte in bytes {
        ours.write_all(&[byte]).unwrap();
    }
    let wanted = frame(Report::Hello { nonce: 77 });
    let mut answer = vec![0; wanted.len()];
    ours.read_exact(&mut answer).unwrap();
    assert_eq!(answer, wanted);
}
