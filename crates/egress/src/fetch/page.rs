//! The answer to a fetch, gathered: decoded, counted as it is decoded, and cut where it is too much.

use crate::http::answer::{Answer, Told};
use crate::http::exchange::Client;
use crate::http::flow::{Broken, Frame, Sink, Source};
use crate::http::framing::Length;
use bytes::Bytes;
use fumehood_vault::decode::DecodeError;
use fumehood_vault::mask::{Masker, Piece};
use fumehood_vault::response::BodyMask;
use http::{HeaderMap, StatusCode};
use std::future::pending;
use std::task::{Context, Poll};

/// What a body may weigh before it is decoded, beyond twice what is wanted of it. One that stays small when it is
/// decoded must not run for ever.
const SPARE_BYTES: u64 = 1 << 20;
/// Of a redirect's own body, which nobody reads.
const REDIRECT_BYTES: u64 = 16 << 10;

/// A request without a body.
#[derive(Debug)]
pub(super) struct Nothing;

/// A client that keeps what it is sent.
#[derive(Debug)]
pub(super) struct Gathering {
    most_bytes: u64,
    head: Option<(StatusCode, HeaderMap)>,
    decoder: Option<BodyMask>,
    encoded_bytes: u64,
    pub(super) body: Vec<u8>,
    pub(super) truncated: bool,
    /// Why there is no answer, or none that can be read.
    told: Option<Told>,
}

// === impl Nothing ===

impl Source for Nothing {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        Ok(None)
    }

    async fn gone(&mut self) {
        pending().await
    }
}

// === impl Gathering ===

impl Gathering {
    pub(super) fn new(most_bytes: u64) -> Self {
        Self {
            most_bytes,
            head: None,
            decoder: None,
            encoded_bytes: 0,
            body: Vec::new(),
            truncated: false,
            told: None,
        }
    }

    /// The head of the answer, or why there is none.
    pub(super) fn head(&mut self) -> Result<(StatusCode, HeaderMap), Told> {
        match (self.told.take(), self.head.take()) {
            (None, Some(head)) => Ok(head),
            (Some(told), _) => Err(told),
            (None, None) => Err(Told::broken("fumehood got no answer")),
        }
    }

    fn unreadable(&mut self, why: &str) -> Broken {
        self.told = Some(Told::unreadable(&format!("fumehood can not read the answer: {why}")));
        Broken::Malformed("its answer can not be read")
    }

    async fn take(&mut self, data: &[u8]) -> Result<(), Broken> {
        let most = usize::try_from(self.most_bytes).unwrap_or(usize::MAX);
        let Some(mut decoder) = self.decoder.take() else { return Ok(()) };
        let mut rest = data;
        loop {
            let (body, truncated) = (&mut self.body, &mut self.truncated);
            let mut keep = |bytes: &[u8]| {
                let (kept, more) =
                    bytes.split_at_checked(most.saturating_sub(body.len())).unwrap_or((bytes, &[]));
                body.extend_from_slice(kept);
                *truncated |= !more.is_empty();
            };
            let step = decoder.feed(rest, &mut |piece| match piece {
                Piece::Chunk(range) => keep(rest.get(range).unwrap_or_default()),
                Piece::Bytes(bytes) => keep(bytes),
            });
            if self.truncated {
                return Err(Broken::Malformed("it has as much as it was to take"));
            }
            let step = step.map_err(|error| self.unreadable(&error.to_string()))?;
            rest = rest.get(step.used..).unwrap_or_default();
            if !step.more {
                break;
            }
            // A small body can grow for long: the clock has its say in between.
            tokio::task::yield_now().await;
        }
        self.decoder = Some(decoder);
        Ok(())
    }
}

impl Sink for Gathering {
    async fn data(&mut self, data: Bytes) -> Result<(), Broken> {
        self.encoded_bytes = self.encoded_bytes.saturating_add(u64::try_from(data.len()).unwrap_or(u64::MAX));
        if self.encoded_bytes > self.most_bytes.saturating_mul(2).saturating_add(SPARE_BYTES) {
            self.truncated = true;
            return Err(Broken::Malformed("it has as much as it was to take"));
        }
        self.take(&data).await
    }

    async fn end(&mut self, _: Option<HeaderMap>) -> Result<(), Broken> {
        let Some(mut decoder) = self.decoder.take() else { return Ok(()) };
        // Nothing is held back, as nothing is looked for.
        let ended: Result<(), DecodeError> = decoder.finish(&mut |_| {});
        ended.map_err(|error| self.unreadable(&error.to_string()))
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        Ok(())
    }

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Client for Gathering {
    async fn proceed(&mut self) -> Result<(), Broken> {
        Ok(())
    }

    async fn respond(
        &mut self,
        status: StatusCode,
        mut fields: HeaderMap,
        length: Length,
    ) -> Result<(), Broken> {
        if length != Length::None {
            if status.is_redirection() {
                self.most_bytes = self.most_bytes.min(REDIRECT_BYTES);
            }
            match BodyMask::begin(&Masker::new([]), status, &mut fields) {
                Ok(decoder) => self.decoder = Some(decoder),
                Err(why) => return Err(self.unreadable(&why.to_string())),
            }
        }
        self.head = Some((status, fields));
        Ok(())
    }

    fn take_back(&mut self) -> bool {
        // Nobody has seen any of it.
        (self.head, self.decoder) = (None, None);
        self.body.clear();
        true
    }

    async fn answer(&mut self, answer: Answer) -> Result<(), Broken> {
        self.told.get_or_insert(answer.told);
        Ok(())
    }
}
