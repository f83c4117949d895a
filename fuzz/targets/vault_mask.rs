//! Any bytes as the body of a response: cut into chunks they come out as they do whole, as long as they
//! went in, and with no value in them.

#![no_main]

use fumehood_vault::mask::{Masker, Piece};
use fumehood_vault::placeholder::{Placeholder, Shape};
use fumehood_vault::secret::{Secret, SecretName};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const TOKEN: &str = "ghp_16C7e42F292c";
const PAIR: &str = "user:pa/s+w d\"";

static MASKER: LazyLock<Masker> = LazyLock::new(|| {
    let made = |name: &str, value: &str, shape| {
        let name = SecretName::parse(name).expect("a name");
        let secret = Secret::new(name, value.as_bytes().to_vec().into(), None).expect("a value");
        let mut next = 0_u8;
        let mut random = |bytes: &mut [u8]| {
            for byte in bytes {
                next = next.wrapping_mul(77).wrapping_add(13);
                *byte = next;
            }
        };
        let placeholder = Placeholder::new(&secret, shape, &mut random).expect("a placeholder");
        (secret, placeholder)
    };
    let all = [made("TOKEN", TOKEN, Shape::Opaque), made("PAIR", PAIR, Shape::Pair)];
    Masker::new(all.iter().map(|(secret, placeholder)| (secret, placeholder)))
});

fuzz_target!(|bytes: &[u8]| {
    let [size, pause, text @ ..] = bytes else { return };
    let whole = MASKER.whole(text).unwrap_or_else(|| text.to_vec());
    assert_eq!(whole.len(), text.len());
    let mut stream = MASKER.stream();
    let mut out = Vec::new();
    let pauses = pause % 4 == 0;
    for chunk in text.chunks(usize::from(*size).max(1)) {
        stream.feed(chunk, &mut |piece| match piece {
            Piece::Chunk(range) => out.extend_from_slice(&chunk[range]),
            Piece::Bytes(bytes) => out.extend_from_slice(bytes),
        });
        if pauses {
            stream.release(&mut |piece| put(piece, &mut out));
        }
    }
    stream.finish(&mut |piece| put(piece, &mut out));
    assert_eq!(stream.held_bytes(), 0);
    assert_eq!(out.len(), text.len());
    if !pauses {
        assert_eq!(out, whole);
        assert!(!out.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()));
    }
});

fn put(piece: Piece<'_>, out: &mut Vec<u8>) {
    match piece {
        Piece::Chunk(_) => panic!("there is no chunk"),
        Piece::Bytes(bytes) => out.extend_from_slice(bytes),
    }
}
