//! The protocol as such: total, and with one spelling for each meaning.

use fumehood_backend_native::control::wire::{
    Block, End, Exec, Flaw, INLINE_BYTES, Report, Request, Size, Stage, VERSION, block_is_whole,
};
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..200)) {
        reads_and_prints_the_same(&bytes)?;
    }

    #[test]
    fn any_change_of_a_good_packet_is_answered(
        strings in vec("[a-z]{0,3}", 2..6), at in 0_usize..64, byte: u8, cut in 0_usize..64, grow in vec(any::<u8>(), 0..4),
    ) {
        let block = block(&strings);
        let argc = u32::try_from(strings.len() - 1).unwrap();
        let mut packet = printed(&exec(None, true, argc, 0, Block::Inline(&block)));
        if let Some(place) = packet.get_mut(at) {
            *place = byte;
        }
        reads_and_prints_the_same(&packet)?;
        packet.extend_from_slice(&grow);
        reads_and_prints_the_same(&packet)?;
        packet.truncate(cut);
        reads_and_prints_the_same(&packet)?;
    }

    #[test]
    fn what_is_printed_is_read_back(
        number: u32, once: bool, size in proptest::option::of((any::<u16>(), any::<u16>())),
        argv in vec("[^\0]{0,5}", 1..8), env in vec("[^\0]{0,5}", 0..8),
    ) {
        let strings: Vec<String> = [vec!["/".to_owned()], argv.clone(), env.clone()].concat();
        let block = block(&strings);
        let terminal = size.map(|(rows, columns)| Size { rows, columns });
        let (argc, envc) = (u32::try_from(argv.len()).unwrap(), u32::try_from(env.len()).unwrap());
        for block in [Block::Inline(&block), Block::Attached { length: u32::try_from(block.len()).unwrap() }] {
            let request = Request::Exec(Exec { exec: number, terminal, once, argc, envc, block });
            let packet = printed(&request);
            prop_assert_eq!(Request::parse(&packet), Ok(request));
        }
    }

    #[test]
    fn reports_are_read_back(exec: u32, value: u32, code: u8, leftovers: u32, stage in 1_u8..=5) {
        for report in [
            Report::Started { exec, pid: value },
            Report::NotStarted { exec, stage: Stage::parse(stage).unwrap(), errno: value },
            Report::Ended { exec, how: End::Exited(code), leftovers, cpu_ms: leftovers },
            Report::Ended { exec, how: End::Signalled(code), leftovers, cpu_ms: 0 },
            Report::Terminal { exec },
            Report::Dialled { call: exec },
            Report::NotDialled { call: exec, errno: value },
        ] {
            prop_assert_eq!(Report::parse(&report.print()), Some(report));
        }
    }

    #[test]
    fn a_changed_report_is_another_or_none(exec: u32, at in 0_usize..20, byte: u8) {
        let mut packet = Report::Ended { exec, how: End::Exited(3), leftovers: 1, cpu_ms: 7 }.print();
        packet[at] = byte;
        if let Some(report) = Report::parse(&packet) {
            prop_assert_eq!(report.print(), packet);
        }
    }
}

#[test]
fn signals_and_kill_all_are_read_back() {
    for request in [
        Request::Signal { exec: 7, signal: 1 },
        Request::Signal { exec: 7, signal: 64 },
        Request::KillAll,
        Request::Dial { call: 7, port: 1 },
        Request::Dial { call: u32::MAX, port: u16::MAX },
    ] {
        assert_eq!(Request::parse(&request.header()), Ok(request));
    }
    assert_eq!(Request::parse(&Request::Dial { call: 7, port: 0 }.header()), Err(Flaw::Garbage));
    for signal in [0, 65, 255] {
        assert_eq!(Request::parse(&Request::Signal { exec: 7, signal }.header()), Err(Flaw::Garbage));
    }
}

#[test]
fn limits_hold() {
    let largest = [b"/\0".as_slice(), &vec![b'x'; INLINE_BYTES - 3], b"\0"].concat();
    assert!(Request::parse(&printed(&exec(None, false, 1, 0, Block::Inline(&largest)))).is_ok());
    let larger = [b"/\0".as_slice(), &vec![b'x'; INLINE_BYTES - 2], b"\0"].concat();
    let refused = Err(Flaw::Refused { exec: 7 });
    assert_eq!(Request::parse(&printed(&exec(None, false, 1, 0, Block::Inline(&larger)))), refused);
    for (argc, envc, length) in
        [(0, 2, 9), (1, u32::MAX, 9), (u32::MAX, u32::MAX, u32::MAX), (9, 0, 9), (1, 0, 4 << 21)]
    {
        let packet = printed(&exec(None, false, argc, envc, Block::Attached { length }));
        assert_eq!(Request::parse(&packet), refused, "{argc} {envc} {length}");
    }
    assert!(!block_is_whole(b"", 0, 0) && !block_is_whole(b"/\0a", 1, 0) && block_is_whole(b"\0\0", 1, 0));
    assert_eq!(VERSION, 1);
}

fn exec<'a>(terminal: Option<Size>, once: bool, argc: u32, envc: u32, block: Block<'a>) -> Request<'a> {
    Request::Exec(Exec { exec: 7, terminal, once, argc, envc, block })
}

fn block(strings: &[String]) -> Vec<u8> {
    strings.iter().flat_map(|string| string.bytes().chain([0])).collect()
}

fn printed(request: &Request<'_>) -> Vec<u8> {
    let mut packet = request.header().to_vec();
    if let Request::Exec(Exec { block: Block::Inline(block), .. }) = request {
        packet.extend_from_slice(block);
    }
    packet
}

fn reads_and_prints_the_same(packet: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(request) = Request::parse(packet) {
        prop_assert_eq!(printed(&request), packet);
    }
    if let Some(report) = Report::parse(packet) {
        let printed = report.print();
        prop_assert_eq!(printed.as_slice(), packet);
    }
    Ok(())
}
