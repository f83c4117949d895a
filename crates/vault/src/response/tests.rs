use super::*;
use crate::decode::tests::encoded;
use crate::placeholder::{Placeholder, Shape};
use crate::testing::{random, secret};
use proptest::prelude::*;

const TOKEN: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";

fn one() -> (Placeholder, Masker) {
    let secret = secret("TOKEN", TOKEN);
    let placeholder = Placeholder::new(&secret, Shape::Opaque, &mut random(3)).expect("a placeholder");
    let masker = Masker::new([(&secret, &placeholder)]);
    (placeholder, masker)
}

fn fields(list: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in list {
        fields.append(*name, HeaderValue::from_static(value));
    }
    fields
}

fn read(mask: &mut BodyMask, body: &[u8], size: usize) -> Result<Vec<u8>, DecodeError> {
    let mut out = Vec::new();
    for chunk in body.chunks(size) {
        let mut rest = chunk;
        loop {
            let step = mask.feed(rest, &mut |piece| match piece {
                Piece::Chunk(range) => out.extend_from_slice(&rest[range]),
                Piece::Bytes(bytes) => out.extend_from_slice(bytes),
            })?;
            rest = &rest[step.used..];
            if !step.more {
                break;
            }
        }
    }
    let ended = mask.finish(&mut |piece| match piece {
        Piece::Chunk(_) => panic!("there is no chunk"),
        Piece::Bytes(bytes) => out.extend_from_slice(bytes),
    });
    ended.map(|()| out)
}

#[test]
fn only_codings_that_can_be_undone_are_asked_for() {
    for (asked, kept) in [
        ("gzip, deflate, br, zstd", "gzip, deflate, br"),
        ("br;q=1.0, zstd;q=0.9, *;q=0.1", "br;q=1.0"),
        ("zstd", "identity"),
        ("GZIP", "GZIP"),
        ("", "identity"),
    ] {
        let mut head = HeaderMap::new();
        head.insert(ACCEPT_ENCODING, HeaderValue::from_static(asked));
        head.insert("grpc-accept-encoding", HeaderValue::from_static("gzip"));
        head.insert("sec-websocket-extensions", HeaderValue::from_static("permessage-deflate"));
        ask_for_plain(&mut head);
        assert_eq!(head.get(ACCEPT_ENCODING).expect("it is set"), kept);
        assert_eq!(head.len(), 1);
    }
    let mut head = HeaderMap::new();
    ask_for_plain(&mut head);
    assert_eq!(head.get(ACCEPT_ENCODING).expect("it is set"), "identity");
}

#[test]
fn a_body_that_can_not_be_looked_into_is_named() {
    let (_, masker) = one();
    for (list, status) in [
        (&[("content-encoding", "compress")][..], StatusCode::OK),
        (&[("content-encoding", "gzip, br")], StatusCode::OK),
        (&[("content-encoding", "gzip"), ("content-encoding", "gzip")], StatusCode::OK),
        (&[("content-encoding", "gzip")], StatusCode::PARTIAL_CONTENT),
        (&[("transfer-encoding", "gzip, chunked")], StatusCode::OK),
        (&[("grpc-encoding", "gzip")], StatusCode::OK),
        (&[("sec-websocket-extensions", "permessage-deflate")], StatusCode::SWITCHING_PROTOCOLS),
    ] {
        let mut head = fields(list);
        let before = head.clone();
        assert!(BodyMask::begin(&masker, status, &mut head).is_err(), "{list:?}");
        assert_eq!(head, before);
    }
    for list in [
        &[("content-encoding", "identity"), ("content-length", "5"), ("grpc-encoding", "identity")][..],
        &[("transfer-encoding", "chunked"), ("content-length", "5")],
    ] {
        let mut head = fields(list);
        let mask = BodyMask::begin(&masker, StatusCode::PARTIAL_CONTENT, &mut head).expect("it is plain");
        assert!(!mask.is_decoded());
        assert!(head.contains_key("content-length"), "the length stays true");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// An echo in an encoded body is found however the body is cut, and all else comes through.
    #[test]
    fn an_echo_in_an_encoded_body_is_masked(
        before in "[a-z\n]{0,2000}",
        after in "[a-z\n]{0,2000}",
        which in 0_usize..5,
        size in 1_usize..300,
    ) {
        let (placeholder, masker) = one();
        let text = format!("{before}{TOKEN}{after}");
        let (name, coding) = [
            ("identity", None),
            ("gzip", Some(Coding::Gzip)),
            ("deflate", Some(Coding::Deflate)),
            ("br", Some(Coding::Brotli)),
            ("zstd", Some(Coding::Zstd)),
        ][which];
        let body = coding.map_or_else(|| text.clone().into_bytes(), |coding| encoded(coding, text.as_bytes()));
        let mut head = fields(&[("content-length", "5"), ("content-md5", "x")]);
        head.insert("content-encoding", HeaderValue::from_static(name));
        let mut mask = BodyMask::begin(&masker, StatusCode::OK, &mut head).expect("it is known");
        prop_assert_eq!(head.contains_key("content-length"), which == 0);
        prop_assert_eq!(head.contains_key("content-encoding"), which == 0);
        let out = read(&mut mask, &body, size).expect("it is whole");
        prop_assert_eq!(out, text.replace(TOKEN, placeholder.as_str()).into_bytes());
        prop_assert_eq!(mask.found().map(|(name, count)| (name.as_str(), count)).collect::<Vec<_>>(), [("TOKEN", 1)]);
    }
}
