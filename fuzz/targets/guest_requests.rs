//! Frames that `guestd` is sent.

#![no_main]

use fumehood_guest::frame::{HEADER_BYTES, Header, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((head, payload)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return };
    let Some(header) = Header::parse(head) else { return };
    let Some(payload) = payload.get(..header.length as usize) else { return };
    if let Some(request) = Request::parse(&header, payload) {
        let mut printed = Vec::new();
        request.print(&mut printed);
        assert_eq!(printed, bytes[..HEADER_BYTES + payload.len()]);
    }
});
