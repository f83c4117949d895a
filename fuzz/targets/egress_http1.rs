//! A stream of HTTP/1 requests has one meaning, however it is cut on its way, or is refused; nothing
//! that is accepted in a head could be read in another way once it is written again.

#![no_main]

use bytes::BytesMut;
use fumehood_egress::http::chunk::{Chunks, Piece};
use fumehood_egress::http::framing::Length;
use fumehood_egress::http::head::{RequestHead, ResponseHead, Version};
use libfuzzer_sys::fuzz_target;

/// What a reader makes of a stream: method, target and body of each request, and where it stopped.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Request(String, String, Vec<u8>),
    Refused,
}

fuzz_target!(|bytes: &[u8]| {
    let whole = read(bytes, bytes.len().max(1));
    assert_eq!(read(bytes, 1), whole);
    assert_eq!(read(bytes, 7), whole);
    if let Ok(Some((head, length))) = RequestHead::parse(bytes) {
        assert!(length <= bytes.len());
        let again = print(&head);
        assert_eq!(RequestHead::parse(&again), Ok(Some((head, again.len()))));
    }
    if let Ok(Some((head, length))) = ResponseHead::parse(bytes) {
        assert!(length <= bytes.len());
        let _ = Length::of_response(&http::Method::GET, &head);
    }
});

fn print(head: &RequestHead) -> Vec<u8> {
    let minor = if head.version == Version::Http11 { 1 } else { 0 };
    let mut out = format!("{} {} HTTP/1.{minor}\r\n", head.method, head.target).into_bytes();
    for (name, value) in &head.fields {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

/// Reads with `step` bytes at a time.
fn read(bytes: &[u8], step: usize) -> Vec<Seen> {
    let mut input = bytes.chunks(step);
    let mut buffer = BytesMut::new();
    let mut seen = Vec::new();
    let mut more = |buffer: &mut BytesMut| match input.next() {
        Some(part) => {
            buffer.extend_from_slice(part);
            true
        }
        None => false,
    };
    loop {
        let head = loop {
            match RequestHead::parse(&buffer) {
                Ok(Some((head, length))) => {
                    let _ = buffer.split_to(length);
                    break head;
                }
                Ok(None) if more(&mut buffer) => {}
                Ok(None) => return seen,
                Err(_) => {
                    seen.push(Seen::Refused);
                    return seen;
                }
            }
        };
        let Ok(length) = Length::of_request(&head) else {
            seen.push(Seen::Refused);
            return seen;
        };
        let mut body = Vec::new();
        let mut chunks = Chunks::new();
        loop {
            match length {
                Length::None => break,
                Length::UntilClose => unreachable!("a request has a length"),
                Length::Known(known) => {
                    let left = known - body.len() as u64;
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
                    body.extend_from_slice(&buffer.split_to(most));
                    if body.len() as u64 == known {
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
                        seen.push(Seen::Refused);
                        return seen;
                    }
                },
            }
            if !more(&mut buffer) {
                return seen;
            }
        }
        seen.push(Seen::Request(head.method, head.target, body));
    }
}
