//! Whatever a client of SOCKS sends is a place, a refusal, or not enough.

#![no_main]

use fumehood_egress::proxy::socks::{Greeting, Request};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Greeting::Hello { length } = Greeting::parse(bytes) {
        assert!(length <= bytes.len());
        assert_eq!(Greeting::parse(&bytes[..length]), Greeting::Hello { length });
    }
    let request = Request::parse(bytes);
    if let Request::To { port, length, .. } = &request {
        assert!(*length <= bytes.len() && *port != 0);
        assert_eq!(Request::parse(&bytes[..*length]), request);
        assert_eq!(Request::parse(&bytes[..*length - 1]), Request::More);
    }
});
