//! Requests that readers take in different ways: one answer for each, and nothing reaches the server.

use super::*;
use crate::http::chunk::{Chunks, Piece};
use crate::http::framing::Length;
use crate::http::head::{RequestHead, ResponseHead};
use bytes::BytesMut;
use proptest::prelude::*;

/// It is whole, so what follows it is judged by itself.
#[test]
fn a_field_that_asks_for_something_else_is_refused() {
    for field in ["X-HTTP-Method-Override: DELETE", "X-Original-URL: /admin"] {
        run(async {
            let (address, seen) =
                server(vec![("\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]).await;
            let wall = Fake::new(&["http://api.example.com/v1/**"], address);
            let mut client = client(&wall, place("http://api.example.com")).await;
            let request = format!(
                "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n{field}\r\nConnection: close\r\n\r\n"
            );
            let answer = talk_all(&mut client, request.as_bytes()).await;
            assert_eq!(answer.get(9..12), Some("400"), "{field}: {answer}");
            assert!(seen.borrow().is_empty(), "{field}");
            assert!(wall.record().iter().all(|line| line.starts_with("refuse")), "{:?}", wall.record());
        });
    }
}

#[test]
fn what_has_two_meanings_is_refused() {
    let cases: &[(&[u8], &str)] = &[
        (b"GET /v1/x HTTP/1.1\nHost: api.example.com\n\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nX: a\nY: b\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nX: a\rY: b\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nX: a\0\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nX: a\r\n b\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\n Host: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost : api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nX y: z\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nno colon\r\n\r\n", "400"),
        (b"\r\nGET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET  /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x  HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x\tHTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.2\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/0.9\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x http/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x\r\n\r\n", "400"),
        (b"GE(T /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.0\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost:\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com, evil.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: user@api.example.com\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com:99999\r\n\r\n", "400"),
        (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com:81\r\n\r\n", "421"),
        (b"GET /v1/x HTTP/1.1\r\nHost: evil.example.com\r\n\r\n", "421"),
        (b"GET http://api.example.com/v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET http://evil.example.com/v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"GET api.example.com HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"OPTIONS * HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\nX", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.0\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1, 1\r\n\r\nx", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: +1\r\n\r\nx", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 0x1\r\n\r\nx", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 99999999999999999999\r\n\r\nx", "400"),
        (b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nExpect: evil\r\nContent-Length: 1\r\n\r\nx", "417"),
        (b"GET /v1/../admin HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "403"),
        (b"GET /../v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "403"),
        (b"GET /v1/x%zz HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "403"),
    ];
    for (request, status) in cases {
        run(async {
            let (address, seen) =
                server(vec![("\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")]).await;
            let wall = Fake::new(&["http://api.example.com/v1/**"], address);
            let mut client = client(&wall, place("http://api.example.com")).await;
            // What is hidden behind it must not be answered as a request of its own.
            let mut bytes = request.to_vec();
            bytes.extend_from_slice(b"GET /v1/hidden HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
            let shown = String::from_utf8_lossy(request).into_owned();
            let answer = talk_all(&mut client, &bytes).await;
            assert_eq!(answer.get(9..12), Some(*status), "{shown:?}: {answer}");
            if *status == "400" {
                assert!(seen.borrow().is_empty(), "{shown:?}");
                assert_eq!(answer.matches("server: fumehood").count(), 1, "{shown:?}: {answer}");
                assert!(wall.record().iter().all(|line| line.starts_with("refuse")), "{:?}", wall.record());
            }
        });
    }
}

#[test]
fn heads_that_are_too_large_are_refused_as_such() {
    for request in [
        format!("GET /v1/{} HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "x".repeat(70_000)),
        format!("GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n{}\r\n", "X: y\r\n".repeat(129)),
    ] {
        run(async {
            let wall = Fake::new(&["http://api.example.com/v1/**"], "127.0.0.1:1".parse().unwrap());
            let mut client = client(&wall, place("http://api.example.com")).await;
            let answer = talk(&mut client, request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        });
    }
}

#[test]
fn bodies_with_bad_chunks_never_reach_their_end() {
    for body in [
        "5\r\nhello\r\n0\r\n\n",
        "5\nhello\r\n0\r\n\r\n",
        "5\r\nhello0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
        "-5\r\nhello\r\n0\r\n\r\n",
        " 5\r\nhello\r\n0\r\n\r\n",
        "5 \r\nhello\r\n0\r\n\r\n",
        "5;\nx\r\nhello\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nhello\r\n0\r\n\r\n",
        ";x\r\nhello\r\n0\r\n\r\n",
        "\r\n",
        "5\r\nhello\r\n0\r\nX : y\r\n\r\n",
    ] {
        let mut buffer = BytesMut::from(body);
        let mut chunks = Chunks::new();
        let last = loop {
            match chunks.next(&mut buffer) {
                Ok(Some(Piece::Data(_))) => {}
                other => break other,
            }
        };
        assert!(last.is_err(), "{body:?}: {last:?}");
    }
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(2_000));
    assert!(Chunks::new().next(&mut BytesMut::from(long.as_str())).is_err());
}

/// Everything that the reader makes of a stream of requests: heads and bodies, or where it stops.
fn read_all(bytes: &[u8], step: usize) -> Vec<String> {
    let (mut buffer, mut fed, mut out) = (BytesMut::new(), 0, Vec::new());
    let mut feed = |buffer: &mut BytesMut| {
        let next = bytes.get(fed..(fed + step).min(bytes.len())).unwrap_or_default();
        fed += next.len();
        buffer.extend_from_slice(next);
        !next.is_empty()
    };
    loop {
        let head = loop {
            match RequestHead::parse(&buffer) {
                Ok(Some((head, length))) => {
                    let _ = buffer.split_to(length);
                    break head;
                }
                Ok(None) if feed(&mut buffer) => {}
                Ok(None) => return out,
                Err(_) => {
                    out.push("refused".to_owned());
                    return out;
                }
            }
        };
        let mut body = Vec::new();
        let Ok(length) = Length::of_request(&head) else {
            out.push("refused".to_owned());
            return out;
        };
        let mut chunks = Chunks::new();
        loop {
            match length {
                Length::None => break,
                Length::UntilClose => unreachable!(),
                Length::Known(length) => {
                    let missing = usize::try_from(length).unwrap() - body.len();
                    let most = missing.min(buffer.len());
                    body.extend_from_slice(&buffer.split_to(most));
                    if body.len() == usize::try_from(length).unwrap() {
                        break;
                    }
                }
                Length::Chunked => match chunks.next(&mut buffer) {
                    Ok(Some(Piece::Data(data))) => {
                        body.extend_from_slice(&data);
                        continue;
                    }
                    Ok(Some(Piece::End(_))) => break,
                    Ok(None) => {}
                    Err(_) => {
                        out.push("refused".to_owned());
                        return out;
                    }
                },
            }
            if !feed(&mut buffer) {
                return out;
            }
        }
        out.push(format!("{} {} {body:?}", head.method, head.target));
    }
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"GET /a HTTP/1.1\r\n".to_vec()),
        Just(b"POST /b HTTP/1.1\r\n".to_vec()),
        Just(b"Host: x.example.com\r\n".to_vec()),
        Just(b"Content-Length: 3\r\n".to_vec()),
        Just(b"Transfer-Encoding: chunked\r\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"abc".to_vec()),
        Just(b"3\r\nabc\r\n".to_vec()),
        Just(b"0\r\n".to_vec()),
        Just(b"0\r\n\r\n".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..4),
    ];
    proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    /// However the bytes are cut on their way, they mean the same.
    #[test]
    fn a_stream_has_one_meaning(bytes in pieces()) {
        let whole = read_all(&bytes, usize::MAX / 2);
        for step in [1, 2, 3, 7] {
            prop_assert_eq!(read_all(&bytes, step), whole.clone());
        }
    }

    /// What is accepted can be written again, and is read as the same.
    #[test]
    fn an_accepted_head_reads_back(bytes in pieces()) {
        if let Ok(Some((head, length))) = RequestHead::parse(&bytes) {
            prop_assert!(length <= bytes.len());
            let mut again = format!("{} {} HTTP/1.{}\r\n", head.method, head.target, u8::from(head.version == head::Version::Http11)).into_bytes();
            for (name, value) in &head.fields {
                again.extend_from_slice(name.as_str().as_bytes());
                again.extend_from_slice(b": ");
                again.extend_from_slice(value.as_bytes());
                again.extend_from_slice(b"\r\n");
            }
            again.extend_from_slice(b"\r\n");
            let read = RequestHead::parse(&again).unwrap().unwrap();
            prop_assert_eq!(read.0, head);
        }
        let _ = ResponseHead::parse(&bytes);
    }

    /// Whatever `Host` says, only the identity that was dialled is judged.
    #[test]
    fn the_host_is_the_one_that_was_dialled(host in "[a-zA-Z0-9.:@\\[\\]%-]{0,24}") {
        let identity = identity("http://api.example.com");
        let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        if let Ok(Some((head, _))) = RequestHead::parse(head.as_bytes())
            && let Ok(target) = Addressing::Fixed(identity.clone()).target(&head)
        {
            prop_assert_eq!(target.identity, identity);
            let host = host.to_ascii_lowercase();
            let host = host.strip_suffix(":80").unwrap_or(&host);
            prop_assert_eq!(host.trim_end_matches('.'), "api.example.com");
        }
    }
}
