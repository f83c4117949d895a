//! The stream that a guest sends, with channels of every kind open.

#![no_main]

use fumehood_guest::frame::{Report, Tree, WINDOW_BYTES};
use fumehood_guest::session::{Session, Start};
use libfuzzer_sys::fuzz_target;

const CHANNELS: std::ops::Range<u32> = 1..7;

fn greeted() -> Session {
    let mut session = Session::new(1);
    let mut hello = Vec::new();
    Report::Hello { nonce: 1 }.print(&mut hello);
    session.feed(&hello).expect("the answer to a greeting");
    let block = b"/\0x\0";
    let start = Start { terminal: None, once: true, argc: 1, envc: 0, block, person: None, limits: &[] };
    session.exec(&start);
    session.dial(80);
    session.put(b"/x", None);
    session.get(b"/x", Tree::Whole);
    session.meters();
    session.prepare();
    session
}

fuzz_target!(|input: &[u8]| {
    let [cut, bytes @ ..] = input else { return };
    let (mut whole, mut pieces) = (greeted(), greeted());
    let said = whole.feed(bytes);
    let pieced = bytes.chunks(usize::from(*cut) + 1).try_for_each(|piece| pieces.feed(piece));
    assert_eq!(said, pieced);
    loop {
        let (left, right) = (whole.next_said(), pieces.next_said());
        assert_eq!(left, right);
        if left.is_none() {
            break;
        }
    }
    for channel in CHANNELS {
        for stream in 1..3 {
            assert_eq!(whole.output(channel, stream), pieces.output(channel, stream));
            assert!(whole.output(channel, stream).len() <= WINDOW_BYTES as usize);
        }
    }
});
