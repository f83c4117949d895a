//! Whatever arrives on the socket between the keeper and `init` is answered, and what is accepted has
//! one spelling only.

#![no_main]

use fumehood_backend_native::control::wire::{Block, Exec, Report, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| {
    if let Ok(request) = Request::parse(packet) {
        let mut printed = request.header().to_vec();
        if let Request::Exec(Exec { block: Block::Inline(block), .. }) = request {
            printed.extend_from_slice(block);
        }
        assert_eq!(printed, packet);
    }
    if let Some(report) = Report::parse(packet) {
        assert_eq!(report.print().as_slice(), packet);
    }
});
