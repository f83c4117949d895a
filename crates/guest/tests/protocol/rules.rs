//! The rules of the stream against anything that could come.

use fumehood_guest::entry::{Entry, Front};
use fumehood_guest::frame::{
    Credit, Ended, HEADER_BYTES, Header, How, Metered, PAYLOAD_BYTES, Report, Request, Stage, WINDOW_BYTES,
};
use fumehood_guest::session::{Session, Start};
use proptest::prelude::*;

fn parts(bytes: &[u8]) -> Option<(Header, &[u8])> {
    let (head, payload) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    Some((Header::parse(head)?, payload))
}

/// A header of a known shape with anything behind it, so that most cases get past the first check.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..120),
        proptest::collection::vec(0_u8..3, 0..120),
    ];
    (0_u8..40, 0_u8..4, 0_u32..4, payload).prop_map(|(kind, stream, channel, payload)| {
        let mut bytes = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
        bytes.extend([kind, stream, 0, 0]);
        bytes.extend(channel.to_le_bytes());
        bytes.extend(payload);
        bytes
    })
}

fn reports() -> impl Strategy<Value = Vec<u8>> {
    let channel = 1_u32..5;
    let print = |report: Report<'_>| {
        let mut bytes = Vec::new();
        report.print(&mut bytes);
        bytes
    };
    let stream = 1_u8..3;
    prop_oneof![
        channel.clone().prop_map(move |channel| print(Report::Started { channel, pid: 3 })),
        channel.clone().prop_map(move |channel| print(Report::NotStarted {
            channel,
            stage: Stage::Execute,
            errno: 2
        })),
        channel.clone().prop_map(move |channel| print(Report::Ended {
            channel,
            ended: Ended { how: How::Exited(1), leftovers: 0, cpu_ms: 0 }
        })),
        (channel.clone(), stream.clone(), 1..PAYLOAD_BYTES).prop_map(move |(channel, stream, length)| print(
            Report::Data { channel, stream, bytes: &vec![7; length] }
        )),
        (channel.clone(), stream).prop_map(move |(channel, stream)| print(Report::End { channel, stream })),
        (channel.clone(), 1..WINDOW_BYTES).prop_map(move |(channel, bytes)| print(Report::Credit(Credit {
            channel,
            stream: 0,
            bytes
        }))),
        channel.clone().prop_map(move |channel| print(Report::Close { channel })),
        channel.clone().prop_map(move |channel| print(Report::Dialled { channel })),
        channel.clone().prop_map(move |channel| print(Report::Done { channel })),
        channel.clone().prop_map(move |channel| print(Report::Failed { channel, errno: 5 })),
        channel.prop_map(move |channel| print(Report::Metered { channel, meters: Metered::default() })),
        frames(),
    ]
}

/// A session that has been greeted, with one channel of each kind.
fn greeted() -> Session {
    let mut session = Session::new(1);
    let mut hello = Vec::new();
    Report::Hello { nonce: 1 }.print(&mut hello);
    session.feed(&hello).unwrap();
    let start = Start {
        terminal: None,
        once: true,
        argc: 1,
        envc: 0,
        block: b"/\0x\0",
        person: None,
        limits: &[(7, 1)],
    };
    session.exec(&start).unwrap();
    session.dial(80).unwrap();
    session.put(b"/x", None).unwrap();
    session.meters().unwrap();
    session
}

proptest! {
    #[test]
    fn a_request_has_one_spelling(bytes in frames()) {
        if let Some((header, payload)) = parts(&bytes)
            && let Some(request) = Request::parse(&header, payload)
        {
            let mut printed = Vec::new();
            request.print(&mut printed);
            prop_assert_eq!(printed, bytes);
        }
    }

    #[test]
    fn a_report_has_one_spelling(bytes in reports()) {
        if let Some((header, payload)) = parts(&bytes)
            && let Some(report) = Report::parse(&header, payload)
        {
            let mut printed = Vec::new();
            report.print(&mut printed);
            prop_assert_eq!(printed, bytes);
        }
    }

    #[test]
    fn an_entry_has_one_spelling(bytes in proptest::collection::vec(0_u8..8, 0..200)) {
        if let Front::Entry(entry, length) = Entry::parse(&bytes) {
            let mut printed = Vec::new();
            entry.print(&mut printed);
            prop_assert_eq!(&printed, &bytes[..length]);
        }
    }

    #[test]
    fn a_session_keeps_its_bounds_and_does_not_care_how_bytes_are_cut(
        frames in proptest::collection::vec(reports(), 0..60),
        cut in 1_usize..5000,
    ) {
        let bytes = frames.concat();
        let (mut whole, mut pieces) = (greeted(), greeted());
        let said_whole = whole.feed(&bytes);
        let said_pieces = bytes.chunks(cut).try_for_each(|piece| pieces.feed(piece));
        prop_assert_eq!(said_whole, said_pieces);
        loop {
            let (left, right) = (whole.next_said(), pieces.next_said());
            prop_assert_eq!(left, right);
            if left.is_none() {
                break;
            }
        }
        for channel in 1..5 {
            for stream in 1..3 {
                let kept = whole.output(channel, stream).len();
                prop_assert!(kept <= usize::try_from(WINDOW_BYTES).unwrap());
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_are_refused_or_taken(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let mut session = Session::new(1);
        let _ = session.feed(&bytes);
        let _ = greeted().feed(&bytes);
    }
}

/// What was printed by one side is taken by the other: each kind of request, with something in it.
#[test]
fn every_request_is_read_back() {
    let mut session = greeted();
    session.get(b"/out", fumehood_guest::frame::Tree::Changes).unwrap();
    session.prepare().unwrap();
    session.thaw(5, &[1; 64]).unwrap();
    session.signal(1, 15);
    session.resize(1, fumehood_guest::frame::Size { rows: 1, columns: 2 });
    session.input(1, b"bytes");
    session.end_input(1);
    session.close(1, 2);
    session.release(2);
    session.kill_all();
    let mut bytes = session.pending().to_vec();
    let mut count = 0;
    while !bytes.is_empty() {
        let (header, payload) = parts(&bytes).unwrap();
        let length = usize::try_from(header.length).unwrap();
        let request = Request::parse(&header, &payload[..length]);
        assert!(request.is_some(), "{header:?}");
        bytes.drain(..HEADER_BYTES + length);
        count += 1;
    }
    assert_eq!(count, 16, "a request is missing");
}
