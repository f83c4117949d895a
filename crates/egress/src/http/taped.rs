//! An exchange that is kept on a tape, or answered from one.

use super::Forward;
use super::answer::Answer;
use super::exchange::{Ask, Client, Ends, Failure, Turn};
use super::flow::{Broken, Frame, Sink, Source};
use super::framing::Length;
use crate::tape::{
    Asked, Digesting, Exchange, Keeping, MOST_BODY_BYTES, Playing, encode, to_fields, to_pairs,
};
use crate::wall::Wall;
use bytes::Bytes;
use fumehood_model::egress::Denial;
use http::{HeaderMap, StatusCode};
use std::task::{Context, Poll};

/// The body of a request, digested on its way.
struct Heard<'a, S> {
    source: &'a mut S,
    digest: Digesting,
}

/// The client, whose answer is kept.
struct Kept<'a, C> {
    client: &'a mut C,
    answer: Option<(StatusCode, HeaderMap, Length)>,
    body: Vec<u8>,
    trailers: HeaderMap,
    /// All of it is there, and it is not too long.
    whole: bool,
}

impl<W: Wall> Forward<W> {
    /// Carries an exchange as any other, and keeps it once it has come to its end.
    pub(super) async fn keep<S: Source, C: Client>(
        &self,
        turn: &Turn<'_, W>,
        ask: &mut Ask,
        ends: Ends<'_, S, C>,
        tape: &Keeping,
    ) -> Result<(), Failure> {
        let Ends { source, client } = ends;
        // As the sandbox sent it: before a secret may be in it.
        let mut asked = asked(ask);
        let mut source = Heard { source, digest: Digesting::new() };
        let (body, trailers) = (Vec::new(), HeaderMap::new());
        let mut client = Kept { client, answer: None, body, trailers, whole: false };
        let carried = self.carry(turn, ask, Ends { source: &mut source, client: &mut client }).await;
        if let (true, Some((status, fields, length))) = (client.whole, client.answer) {
            asked.sha256 = source.digest.hex();
            tape.keep(&Exchange {
                asked,
                status: status.as_u16(),
                fields: to_pairs(&fields),
                length: word(length).to_owned(),
                body: encode(&client.body),
                trailers: to_pairs(&client.trailers),
            });
        }
        carried
    }

    /// Answers from the tape. Nothing is dialled, and no secret is touched.
    pub(super) async fn play<S: Source, C: Client>(
        &self,
        turn: &Turn<'_, W>,
        ask: &Ask,
        ends: Ends<'_, S, C>,
        tape: &Playing,
    ) -> Result<(), Failure> {
        let Ends { source, client } = ends;
        let mut asked = asked(ask);
        let mut digest = Digesting::new();
        client.proceed().await.map_err(Failure::Client)?;
        while let Some(frame) = source.frame().await.map_err(Failure::Client)? {
            if let Frame::Data(data) = frame {
                digest.update(&data);
                turn.count_out(data.len()).map_err(Failure::Denied)?;
            }
        }
        asked.sha256 = digest.hex();
        let kept = tape.take(&asked);
        let whole = kept.as_ref().and_then(|kept| Some((kept, kept.status()?, kept.body()?)));
        let Some((kept, status, body)) = whole else { return Err(Failure::Denied(Denial::NotOnTape)) };
        let length = match kept.length.as_str() {
            "none" => Length::None,
            "chunked" => Length::Chunked,
            "close" => Length::UntilClose,
            _ => Length::Known(body.len() as u64),
        };
        turn.count_in(body.len()).map_err(Failure::Denied)?;
        turn.tally.answered(status);
        client.respond(status, to_fields(&kept.fields), length).await.map_err(Failure::Client)?;
        if !body.is_empty() {
            client.data(body).await.map_err(Failure::Client)?;
        }
        let trailers = Some(to_fields(&kept.trailers)).filter(|trailers| !trailers.is_empty());
        client.end(trailers).await.map_err(Failure::Client)
    }
}

/// What is asked for, without its body.
fn asked(ask: &Ask) -> Asked {
    Asked {
        method: ask.method.as_str().to_owned(),
        to: ask.identity.to_string(),
        path: ask.path.sent().to_owned(),
        sha256: String::new(),
    }
}

const fn word(length: Length) -> &'static str {
    match length {
        Length::None => "none",
        Length::Known(_) => "known",
        Length::Chunked => "chunked",
        Length::UntilClose => "close",
    }
}

// === impl Heard ===

impl<S: Source> Source for Heard<'_, S> {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        let frame = self.source.frame().await?;
        if let Some(Frame::Data(data)) = &frame {
            self.digest.update(data);
        }
        Ok(frame)
    }

    async fn gone(&mut self) {
        self.source.gone().await;
    }
}

// === impl Kept ===

impl<C: Client> Sink for Kept<'_, C> {
    async fn data(&mut self, data: Bytes) -> Result<(), Broken> {
        if self.body.len().saturating_add(data.len()) <= MOST_BODY_BYTES {
            self.body.extend_from_slice(&data);
        } else {
            self.answer = None;
            self.body = Vec::new();
        }
        self.client.data(data).await
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Broken> {
        self.whole = true;
        self.trailers = trailers.clone().unwrap_or_default();
        self.client.end(trailers).await
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        self.client.flush().await
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.client.poll_gone(cx)
    }
}

impl<C: Client> Client for Kept<'_, C> {
    async fn proceed(&mut self) -> Result<(), Broken> {
        self.client.proceed().await
    }

    async fn respond(&mut self, status: StatusCode, fields: HeaderMap, length: Length) -> Result<(), Broken> {
        self.answer = Some((status, fields.clone(), length));
        self.body.clear();
        self.client.respond(status, fields, length).await
    }

    fn take_back(&mut self) -> bool {
        self.answer = None;
        self.client.take_back()
    }

    async fn answer(&mut self, answer: Answer) -> Result<(), Broken> {
        // Of ours, and no server's.
        self.answer = None;
        self.client.answer(answer).await
    }
}
