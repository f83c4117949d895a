use super::*;
use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;
use std::io::Write;

/// The inverse, by writers that share no code with the reader where there are any.
pub(crate) fn encoded(coding: Coding, text: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Gzip => {
            let mut out = GzEncoder::new(Vec::new(), Compression::default());
            out.write_all(text).and_then(|()| out.finish()).expect("it is written")
        }
        Coding::Deflate => {
            let mut out = ZlibEncoder::new(Vec::new(), Compression::default());
            out.write_all(text).and_then(|()| out.finish()).expect("it is written")
        }
        Coding::Zstd => ruzstd::encoding::compress_to_vec(text, ruzstd::encoding::CompressionLevel::Fastest),
        Coding::Brotli => {
            let mut out = Vec::new();
            let parameters = brotli::enc::BrotliEncoderParams { quality: 5, ..Default::default() };
            brotli::BrotliCompress(&mut &*text, &mut out, &parameters).expect("it is written");
            out
        }
    }
}

fn decoded(coding: Coding, body: &[u8], chunk: usize, room: usize) -> Result<Vec<u8>, DecodeError> {
    let mut decoder = Decoder::new(coding);
    let mut out = Vec::new();
    for chunk in body.chunks(chunk) {
        let mut rest = chunk;
        loop {
            let before = out.len();
            let step = decoder.step(rest, room, &mut out)?;
            assert!(out.len() - before <= room);
            rest = &rest[step.used..];
            if !step.more {
                assert!(rest.is_empty());
                break;
            }
        }
    }
    decoder.finish().map(|()| out)
}

const ALL: [Coding; 4] = [Coding::Gzip, Coding::Deflate, Coding::Brotli, Coding::Zstd];

#[test]
fn several_members_and_padding_after_the_end_are_read() {
    let body = [encoded(Coding::Gzip, b"one "), encoded(Coding::Gzip, b"two"), vec![0; 9]].concat();
    assert_eq!(decoded(Coding::Gzip, &body, 7, 64).as_deref(), Ok(&b"one two"[..]));
    let skippable = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 9, 9, 9];
    let body = [encoded(Coding::Zstd, b"one "), skippable.to_vec(), encoded(Coding::Zstd, b"two")].concat();
    assert_eq!(decoded(Coding::Zstd, &body, 3, 64).as_deref(), Ok(&b"one two"[..]));
}

#[test]
fn deflate_is_read_with_and_without_its_frame() {
    let mut out = DeflateEncoder::new(Vec::new(), Compression::best());
    out.write_all(b"a raw stream, a raw stream").expect("it is written");
    let raw = out.finish().expect("it is written");
    assert_eq!(decoded(Coding::Deflate, &raw, 1, 5).as_deref(), Ok(&b"a raw stream, a raw stream"[..]));
}

#[test]
fn frames_of_the_reference_writer_are_read() {
    let text: String = (0..60).map(|n| format!("line {} of a body that repeats itself\n", n % 7)).collect();
    // `zstd -19`, without and with a checksum and the size.
    let plain = "28b52ffd00681d0200b4026c696e652030206f66206120626f64792074686174207265706561747320697473656c660a3132333435360800a61bac1f407301c9025202f2029205441409ea09";
    let checked = "28b52ffd64ac071d0200b4026c696e652030206f66206120626f64792074686174207265706561747320697473656c660a3132333435360800a61bac1f407301c9025202f2029205441409ea095122d0ce";
    for frame in [plain, checked] {
        let digit =
            |byte: &u8| char::from(*byte).to_digit(16).and_then(|n| u8::try_from(n).ok()).expect("a digit");
        let body: Vec<u8> =
            frame.as_bytes().chunks(2).map(|two| digit(&two[0]) << 4 | digit(&two[1])).collect();
        for chunk in [1, 5, 1000] {
            assert_eq!(decoded(Coding::Zstd, &body, chunk, 100).as_deref(), Ok(text.as_bytes()));
        }
        assert_eq!(decoded(Coding::Zstd, &body[..body.len() - 1], 5, 100), Err(DecodeError::Truncated));
    }
}

#[test]
fn a_body_that_grows_without_end_is_stopped_and_takes_no_memory() {
    let zeros = vec![0; 16 * 1024 * 1024];
    for coding in [Coding::Gzip, Coding::Brotli, Coding::Zstd] {
        let one = encoded(coding, &zeros);
        let mut decoder = Decoder::new(coding);
        let (mut out, mut total, mut result) = (Vec::new(), 0_usize, Ok(()));
        'all: for _ in 0..6 {
            let mut rest = one.as_slice();
            loop {
                out.clear();
                match decoder.step(rest, 64 * 1024, &mut out) {
                    Ok(step) => {
                        assert!(out.capacity() <= 128 * 1024);
                        total += out.len();
                        rest = &rest[step.used..];
                        if !step.more {
                            break;
                        }
                    }
                    Err(error) => {
                        result = Err(error);
                        break 'all;
                    }
                }
            }
        }
        if coding == Coding::Brotli {
            // One stream is all there is; what follows its end is dropped.
            assert_eq!((result, total), (Ok(()), zeros.len()));
        } else {
            assert_eq!(result, Err(DecodeError::Bomb), "{coding:?} after {total}");
        }
    }
}

#[test]
fn an_empty_body_may_end_and_half_of_one_may_not() {
    for coding in ALL {
        assert_eq!(Decoder::new(coding).finish(), Ok(()));
        let whole = encoded(coding, b"some text that is long enough to be cut");
        assert_eq!(
            decoded(coding, &whole[..whole.len() - 6], 100, 100),
            Err(DecodeError::Truncated),
            "{coding:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_encoded_is_decoded(
        words in proptest::collection::vec("[a-z]{1,9}", 0..400),
        noise in proptest::collection::vec(any::<u8>(), 0..300),
        which in 0_usize..4,
        chunk in 1_usize..200,
        room in 1_usize..500,
    ) {
        let text = [words.join(" ").as_bytes(), &noise].concat();
        let body = encoded(ALL[which], &text);
        prop_assert_eq!(decoded(ALL[which], &body, chunk, room), Ok(text));
    }

    /// Any bytes are decoded or refused; a step always moves or ends.
    #[test]
    fn damaged_bytes_do_no_harm(
        text in proptest::collection::vec(any::<u8>(), 0..200),
        which in 0_usize..4,
        flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        raw in any::<bool>(),
        chunk in 1_usize..60,
    ) {
        let mut body = if raw { text } else { encoded(ALL[which], &text) };
        for (place, value) in flips {
            if !body.is_empty() {
                let at = place.index(body.len());
                body[at] ^= value;
            }
        }
        let _ = decoded(ALL[which], &body, chunk, 100);
    }
}
