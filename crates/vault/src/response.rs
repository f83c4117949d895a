//! A response on its way in: what of it must change so that it can be looked into, and the looking.
//!
//! On the request's head, [`ask_for_plain`] takes away the codings that could not be undone. On the
//! response's head, [`BodyMask::begin`] says how its body is read, or [`CannotLookInside`]: then a response
//! to a request that carried a credential is refused. A decoded body is passed on as it is: the fields
//! that told of the coding are removed, and the caller frames it anew (chunked, or a stream's end).
//!
//! ```
//! # use fumehood_vault::{mask::{Masker, Piece}, response::BodyMask};
//! # let masker = Masker::new([]);
//! # let mut fields = http::HeaderMap::new();
//! # let chunks: [&[u8]; 1] = [b"hello"];
//! let mut body = BodyMask::begin(&masker, http::StatusCode::OK, &mut fields)?;
//! let mut out = Vec::new();
//! for chunk in chunks {
//!     let mut rest = chunk;
//!     loop {
//!         let step = body.feed(rest, &mut |piece| match piece {
//!             Piece::Chunk(range) => out.extend_from_slice(&rest[range]), // or a slice that shares memory
//!             Piece::Bytes(bytes) => out.extend_from_slice(bytes),
//!         })?;
//!         rest = &rest[step.used..];
//!         if !step.more {
//!             break; // otherwise: let `out` drain first, then call again
//!         }
//!     }
//! }
//! body.finish(&mut |piece| if let Piece::Bytes(bytes) = piece { out.extend_from_slice(bytes) })?;
//! # assert_eq!(out, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::decode::{Coding, DecodeError, Decoder, Step};
use crate::mask::{MaskStream, Masker, Piece};
use crate::secret::SecretName;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, SEC_WEBSOCKET_EXTENSIONS,
    TRANSFER_ENCODING,
};
use http::{HeaderMap, HeaderValue, StatusCode};

/// How much is decoded before the caller is asked to let it drain.
const ROOM_BYTES: usize = 64 * 1024;
/// Digests of the body as it was encoded.
const DIGESTS: [&str; 4] = ["content-md5", "content-digest", "digest", "repr-digest"];
const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// The body of one response, decoded where it must be, and masked.
#[derive(Debug)]
pub struct BodyMask {
    decoder: Option<Decoder>,
    stream: MaskStream,
    decoded: Vec<u8>,
}

/// The body is encoded in a way that can not be undone here, so an echo in it would not be seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response's body can not be looked into: {why}")]
pub struct CannotLookInside {
    why: &'static str,
}

// === impl CannotLookInside ===

impl CannotLookInside {
    /// What can be done.
    pub const fn remedy(&self) -> &'static str {
        "let the client ask without `Range` and with `Accept-Encoding: gzip, br`, or bind no secret to this rule"
    }
}

/// Changes a request's head so that the answer can be looked into: only codings that can be undone are
/// asked for, none within gRPC messages and none within WebSocket frames.
pub fn ask_for_plain(fields: &mut HeaderMap) {
    let kept: Vec<String> = fields
        .get_all(ACCEPT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|offer| {
            // Of zstd the last megabytes come out late, which an event stream can not wait for.
            let coding = offer.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            matches!(coding.as_str(), "gzip" | "x-gzip" | "deflate" | "br" | "identity")
        })
        .map(str::to_owned)
        .collect();
    let value = HeaderValue::try_from(kept.join(", ")).ok().filter(|_| !kept.is_empty());
    // Without the field a server may choose any coding, so it is always there.
    let value = value.unwrap_or_else(|| HeaderValue::from_static("identity"));
    // It fails on a head of tens of thousands of fields alone; the answer is judged all the same.
    let _ = fields.try_insert(ACCEPT_ENCODING, value);
    fields.remove(GRPC_ACCEPT_ENCODING);
    fields.remove(SEC_WEBSOCKET_EXTENSIONS);
}

// === impl BodyMask ===

impl BodyMask {
    /// Says how the body that belongs to this head is read. The head is changed only on success: if the
    /// body will be decoded, the fields that tell of the coding and of the length are removed.
    ///
    /// The fields themselves are masked with [`Masker::fields`].
    pub fn begin(
        masker: &Masker,
        status: StatusCode,
        fields: &mut HeaderMap,
    ) -> Result<Self, CannotLookInside> {
        let refused = |why| Err(CannotLookInside { why });
        let inner = fields.get_all(GRPC_ENCODING).iter().any(|value| value.as_bytes() != b"identity");
        if inner {
            return refused("its gRPC messages are compressed one by one");
        }
        if fields.contains_key(SEC_WEBSOCKET_EXTENSIONS) {
            return refused("its WebSocket frames are compressed");
        }
        let framed = fields.get_all(TRANSFER_ENCODING).iter().flat_map(tokens).any(|one| one != "chunked");
        if framed {
            return refused("its transfer is compressed");
        }
        let mut codings =
            fields.get_all(CONTENT_ENCODING).iter().flat_map(tokens).filter(|one| one != "identity");
        let decoder = match (codings.next(), codings.next()) {
            (None, _) => None,
            (Some(_), Some(_)) => return refused("it is encoded more than once"),
            (Some(name), None) => match coding(&name) {
                Some(coding) => Some(Decoder::new(coding)),
                None => return refused("its `Content-Encoding` is not gzip, deflate, br or zstd"),
            },
        };
        if decoder.is_some() && status == StatusCode::PARTIAL_CONTENT {
            return refused("it is a part of an encoded whole");
        }
        if decoder.is_some() {
            fields.remove(CONTENT_ENCODING);
            fields.remove(CONTENT_LENGTH);
            fields.remove(ACCEPT_RANGES);
            for name in DIGESTS {
                fields.remove(name);
            }
        }
        Ok(Self { decoder, stream: masker.stream(), decoded: Vec::new() })
    }

    /// Whether the body is decoded, so that its length is not known and the caller frames it anew.
    pub fn is_decoded(&self) -> bool {
        self.decoder.is_some()
    }

    /// Takes a chunk, or as much of it as gives 64 KiB of output. A [`Piece::Chunk`] is a range of `chunk`.
    ///
    /// While the step says `more`, call again with what is left of the chunk, empty or not.
    pub fn feed(&mut self, chunk: &[u8], out: &mut dyn FnMut(Piece<'_>)) -> Result<Step, DecodeError> {
        let Some(decoder) = &mut self.decoder else {
            self.stream.feed(chunk, out);
            return Ok(Step { used: chunk.len(), more: false });
        };
        self.decoded.clear();
        let result = decoder.step(chunk, ROOM_BYTES, &mut self.decoded);
        let decoded = &self.decoded;
        self.stream.feed(decoded, &mut |piece| match piece {
            Piece::Chunk(range) => out(Piece::Bytes(decoded.get(range).unwrap_or_default())),
            Piece::Bytes(bytes) => out(Piece::Bytes(bytes)),
        });
        result
    }

    /// Ends the body. On an error the response is cut off, so that its reader does not take it for whole.
    pub fn finish(&mut self, out: &mut dyn FnMut(Piece<'_>)) -> Result<(), DecodeError> {
        self.stream.finish(out);
        self.decoder.as_ref().map_or(Ok(()), Decoder::finish)
    }

    /// For a pause in the stream: see [`MaskStream::release`].
    pub fn release(&mut self, out: &mut dyn FnMut(Piece<'_>)) {
        self.stream.release(out);
    }

    /// How many bytes are kept back now, because a value may begin with them.
    pub fn held_bytes(&self) -> usize {
        self.stream.held_bytes()
    }

    /// The secrets that were found in the body so far.
    pub fn found(&self) -> impl Iterator<Item = (&SecretName, u64)> {
        self.stream.found()
    }
}

fn coding(name: &str) -> Option<Coding> {
    match name {
        "gzip" | "x-gzip" => Some(Coding::Gzip),
        "deflate" => Some(Coding::Deflate),
        "br" => Some(Coding::Brotli),
        "zstd" => Some(Coding::Zstd),
        _ => None,
    }
}

/// The comma-separated words of a field, in lower case.
fn tokens(value: &HeaderValue) -> Vec<String> {
    let text = String::from_utf8_lossy(value.as_bytes());
    text.split(',').map(|one| one.trim().to_ascii_lowercase()).filter(|one| !one.is_empty()).collect()
}

#[cfg(test)]
mod tests;
