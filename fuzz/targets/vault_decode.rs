//! Any bytes as the encoded body of a response: they are decoded or refused, a step never gives more
//! than its room, and it always moves or ends.

#![no_main]

use fumehood_vault::decode::{Coding, Decoder};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let [kind, chunk, room, body @ ..] = bytes else { return };
    let coding = match kind % 4 {
        0 => Coding::Gzip,
        1 => Coding::Deflate,
        2 => Coding::Brotli,
        _ => Coding::Zstd,
    };
    let room = usize::from(*room).max(1) * 64;
    let mut decoder = Decoder::new(coding);
    let (mut out, mut total) = (Vec::new(), 0_usize);
    for chunk in body.chunks(usize::from(*chunk).max(1)) {
        let mut rest = chunk;
        loop {
            out.clear();
            let Ok(step) = decoder.step(rest, room, &mut out) else { return };
            assert!(out.len() <= room);
            assert!(step.used > 0 || !out.is_empty() || !step.more, "it goes round and does nothing");
            total += out.len();
            rest = &rest[step.used..];
            // A small input may stand for much; that it can be stopped here is the point.
            if total > 1 << 22 {
                return;
            }
            if !step.more {
                assert!(rest.is_empty());
                break;
            }
        }
    }
    let _ = decoder.finish();
});
