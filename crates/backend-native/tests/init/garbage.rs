//! Packets that no keeper of ours sends, and reports that no `init` of ours sends.

use crate::guest::{Guest, PATIENCE, Process, pipes, request, start};
use fumehood_backend::{Event, GuestStdio};
use fumehood_backend_native::control::wire::{
    Block, Exec, HEADER_BYTES, REPORT_BYTES, REQUEST_BYTES, Report, Request, Size, Stage,
};
use fumehood_sys::memfd::{self, Purpose};
use fumehood_sys::socket::{self, Wait};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

const EINVAL: u32 = 22;

/// `init` with the bare socket.
struct Raw {
    socket: OwnedFd,
    process: Process,
}

// === impl Raw ===

impl Raw {
    fn new() -> Self {
        let (socket, theirs) = socket::pair().unwrap();
        Self { socket, process: start(theirs, "") }
    }

    fn send(&self, packet: &[u8], descriptors: &[BorrowedFd<'_>]) {
        socket::send(self.socket.as_fd(), packet, descriptors).unwrap();
    }

    /// The next report; `None` at the end.
    fn report(&self) -> Option<Report> {
        assert!(socket::wait(self.socket.as_fd(), Wait::Packet, PATIENCE).unwrap(), "init is silent");
        let mut buffer = [0; REPORT_BYTES];
        match socket::receive(self.socket.as_fd(), &mut buffer) {
            Ok(packet) if packet.length == 0 => None,
            Ok(packet) => Some(Report::parse(&buffer[..packet.length]).unwrap()),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
                None
            }
        }
    }

    /// Sends something that must be refused, with `count` pipe ends, none of which may stay open.
    fn is_refused(&self, packet: &[u8], first: &[BorrowedFd<'_>], count: usize) {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut descriptors = first.to_vec();
        descriptors.extend(std::iter::repeat_n(writer.as_fd(), count));
        self.send(packet, &descriptors);
        drop(writer);
        let refused = Report::NotStarted { exec: 9, stage: Stage::Spawn, errno: EINVAL };
        assert_eq!(self.report(), Some(refused));
        assert!(socket::wait(reader.as_fd(), Wait::Packet, PATIENCE).unwrap(), "a descriptor leaked");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    fn works(&self) {
        let (null, packet) = (File::open("/dev/null").unwrap(), exec_packet(None));
        self.send(&packet, &[null.as_fd(); 3]);
        assert!(matches!(self.report(), Some(Report::Started { exec: 9, .. })));
        assert!(matches!(self.report(), Some(Report::Ended { exec: 9, .. })));
    }
}

#[test]
fn bytes_of_another_protocol_end_the_guest() {
    let good = exec_packet(None);
    let bad_magic: Vec<u8> = good.iter().map(|byte| byte ^ 1).collect();
    let unknown_kind: Vec<u8> =
        good.iter().enumerate().map(|(at, b)| if at == 6 { 77 } else { *b }).collect();
    let signal_zero = Request::Signal { exec: 1, signal: 0 }.header();
    let packets: [&[u8]; 6] =
        [b"x", b"GET / HTTP/1.1\r\n\r\n", &good[..HEADER_BYTES - 1], &bad_magic, &unknown_kind, &signal_zero];
    for packet in packets {
        let mut raw = Raw::new();
        raw.works();
        raw.send(packet, &[]);
        assert_eq!(raw.report(), None);
        assert_eq!(raw.process.wait(), Some(0));
    }
}

#[test]
fn a_wrong_number_of_descriptors_is_refused() {
    let raw = Raw::new();
    for count in [0, 1, 2, 4, 5, 8] {
        raw.is_refused(&exec_packet(None), &[], count);
    }
    for count in [1, 3] {
        raw.is_refused(&exec_packet(Some(Size { rows: 1, columns: 1 })), &[], count);
    }
    raw.works();
}

#[test]
fn an_exec_that_is_not_whole_is_refused() {
    let raw = Raw::new();
    let good = exec_packet(None);
    let mut version = good.clone();
    version[4] = 2;
    let mut counts = good.clone();
    counts[16] = 3;
    let mut none = good.clone();
    none[16] = 0;
    let mut unused = good.clone();
    unused[12] = 1;
    let mut flags = good.clone();
    flags[7] = 0x80;
    let mut longer = good.clone();
    longer.push(0);
    for packet in [&version, &counts, &none, &unused, &flags, &longer, &good[..good.len() - 1].to_vec()] {
        raw.is_refused(packet, &[], 3);
    }
    let mut endless = good;
    endless.resize(REQUEST_BYTES + 1, b'x');
    raw.is_refused(&endless, &[], 3);
    raw.works();
}

#[test]
fn a_block_is_mapped_only_when_it_can_not_change() {
    let raw = Raw::new();
    let block = b"/\0true\0";
    let length = u32::try_from(block.len()).unwrap();
    let packet = |length| exec(None, 1, Block::Attached { length }).header();
    let mut unsealed = tempfile::tempfile().unwrap();
    unsealed.write_all(block).unwrap();
    raw.is_refused(&packet(length), &[unsealed.as_fd()], 3);
    let sealed = memfd::sealed(c"test", block, Purpose::Read).unwrap();
    raw.is_refused(&packet(length + 1), &[sealed.as_fd()], 3);
    raw.is_refused(&packet(length - 1), &[sealed.as_fd()], 3);
    let (reader, _writer) = io::pipe().unwrap();
    raw.is_refused(&packet(length), &[reader.as_fd()], 3);
    let null = File::open("/dev/null").unwrap();
    raw.send(&packet(length), &[sealed.as_fd(), null.as_fd(), null.as_fd(), null.as_fd()]);
    assert!(matches!(raw.report(), Some(Report::Started { .. })));
}

#[test]
fn a_number_in_use_is_refused() {
    let raw = Raw::new();
    let (reader, _writer) = io::pipe().unwrap();
    let block: &[u8] = b"/\0cat\0";
    let mut packet = exec(None, 1, Block::Inline(block)).header().to_vec();
    packet.extend_from_slice(block);
    raw.send(&packet, &[reader.as_fd(); 3]);
    assert!(matches!(raw.report(), Some(Report::Started { exec: 9, .. })));
    raw.send(&packet, &[reader.as_fd(); 3]);
    assert!(matches!(raw.report(), Some(Report::NotStarted { exec: 9, .. })));
}

#[test]
fn reports_of_a_liar_are_the_end() {
    let (null, ptmx) = (File::open("/dev/null").unwrap(), File::open("/dev/ptmx").unwrap());
    let started = Report::Started { exec: 1, pid: 2 }.print();
    let terminal = Report::Terminal { exec: 1 }.print();
    let lies: [(&[u8], Vec<BorrowedFd<'_>>); 7] = [
        (b"x", vec![]),
        (&started[1..], vec![]),
        (&[started.as_slice(), b"x"].concat(), vec![]),
        (&started, vec![null.as_fd()]),
        (&terminal, vec![]),
        (&terminal, vec![null.as_fd()]),
        (&terminal, vec![ptmx.as_fd(), ptmx.as_fd()]),
    ];
    for (lie, descriptors) in lies {
        let (mut control, theirs) = fumehood_backend_native::control::Control::new().unwrap();
        socket::send(theirs.as_fd(), &started, &[]).unwrap();
        socket::send(theirs.as_fd(), lie, &descriptors).unwrap();
        socket::send(theirs.as_fd(), &started, &[]).unwrap();
        assert!(matches!(control.next_event(), Some(Event::Started)));
        assert!(matches!(control.next_event(), Some(Event::Gone)), "{lie:?}");
        assert!(control.next_event().is_none());
        assert!(control.exec(&request(&["true"]), GuestStdio::Terminal, false).is_err());
    }
    let (mut control, theirs) = fumehood_backend_native::control::Control::new().unwrap();
    socket::send(theirs.as_fd(), &terminal, &[ptmx.as_fd()]).unwrap();
    assert!(matches!(control.next_event(), Some(Event::Terminal(_))));
}

#[test]
fn what_was_said_before_leaving_with_a_request_unread_is_still_heard() {
    let (mut control, theirs) = fumehood_backend_native::control::Control::new().unwrap();
    control.exec(&request(&["true"]), pipes().0, false).unwrap();
    socket::send(theirs.as_fd(), &Report::Started { exec: 1, pid: 2 }.print(), &[]).unwrap();
    drop(theirs);
    assert!(matches!(control.next_event(), Some(Event::Started)));
    assert!(matches!(control.next_event(), Some(Event::Gone)));
    assert!(control.next_event().is_none());
}

#[test]
fn an_init_that_is_killed_is_gone() {
    let mut guest = Guest::new();
    guest.shell("true");
    guest.process.0.kill().unwrap();
    assert!(matches!(guest.event(), (0, Event::Gone)));
}

fn exec(terminal: Option<Size>, argc: u32, block: Block<'_>) -> Request<'_> {
    Request::Exec(Exec { exec: 9, terminal, once: false, argc, envc: 0, block })
}

fn exec_packet(terminal: Option<Size>) -> Vec<u8> {
    let block: &[u8] = b"/\0true\0x\0";
    [exec(terminal, 2, Block::Inline(block)).header().as_slice(), block].concat()
}
