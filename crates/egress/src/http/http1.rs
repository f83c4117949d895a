//! HTTP/1 towards the sandbox: one request after the other, each judged anew.

use super::answer::{Answer, Form};
use super::exchange::{Ask, Client, Left};
use super::flow::{Broken, Sink};
use super::framing::Length;
use super::head::{HeadFlaw, RequestHead, Version};
use super::hop::{self, Upgrade};
use super::target::{Addressing, Refused, Target};
use super::wire::{NoHead, Reader, Writer};
use super::{Cut, Forward, limits, websocket};
use crate::wall::{Asked, Via, Wall};
use bytes::Bytes;
use fumehood_model::egress::{Denial, Identity};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::time::timeout;

/// A client, while one of its requests is answered.
#[derive(Debug)]
pub(crate) struct ClientOne<'a, W> {
    writer: &'a mut Writer<W>,
    method: Method,
    version: Version,
    /// Whether the client waits with its body until it is told to send it.
    waits: bool,
    /// Whether the connection ends after this answer.
    closes: bool,
    /// Whether the answer ends where the connection ends, so that a broken one must not end well.
    until_close: bool,
}

/// What comes after a request.
enum Then {
    Next,
    /// Ended in good order: the client is to read the answer.
    Close,
    /// Ended in the middle.
    Cut {
        hard: bool,
    },
}

/// A connection to a client.
struct Connection<'a, W, S> {
    forward: &'a Forward<W>,
    reader: Reader<ReadHalf<S>>,
    writer: Writer<WriteHalf<S>>,
    addressing: &'a Addressing,
    via: Via,
}

/// Serves one connection until its end.
pub(crate) async fn serve<W: Wall, S: AsyncRead + AsyncWrite + Unpin + Cut>(
    forward: &Forward<W>,
    stream: S,
    first: Bytes,
    addressing: &Addressing,
    via: Via,
) {
    let (read, write) = tokio::io::split(stream);
    let mut connection =
        Connection { forward, reader: Reader::new(read, first), writer: Writer::new(write), addressing, via };
    let then = loop {
        let head = match connection.reader.request(limits::KEEP_ALIVE).await {
            Ok(Some(head)) => head,
            Ok(None) | Err(NoHead::Broken(_)) => break Then::Close,
            Err(NoHead::Flaw(flaw)) => {
                Box::pin(connection.flawed(flaw)).await;
                break Then::Close;
            }
        };
        // Boxed: between requests nothing of it is held.
        match Box::pin(connection.request(head)).await {
            Then::Next => {}
            then @ (Then::Close | Then::Cut { .. }) => break then,
        }
    };
    let Connection { mut reader, mut writer, .. } = connection;
    match then {
        Then::Next | Then::Close => {
            writer.shutdown().await;
            // Closing with unread bytes would destroy the answer on its way.
            let _ = timeout(limits::LINGER, reader.drain()).await;
        }
        Then::Cut { hard } => {
            let (read, _) = reader.into_parts();
            let stream = read.unsplit(writer.into_inner());
            if hard {
                stream.cut();
            }
        }
    }
}

// === impl Connection ===

impl<W: Wall, S: AsyncRead + AsyncWrite + Unpin + Cut> Connection<'_, W, S> {
    /// Judges one request, carries it, and says what comes next.
    async fn request(&mut self, head: RequestHead) -> Then {
        let length = match Length::of_request(&head) {
            Ok(length) => length,
            Err(why) => return self.malformed(&head, why).await,
        };
        let target = match self.addressing.target(&head) {
            Ok(target) => target,
            Err(Refused { identity, denial }) => {
                return self.refuse(&head, identity, denial, length).await;
            }
        };
        let Ok(method) = Method::from_bytes(head.method.as_bytes()) else {
            return self.malformed(&head, "the method is no method").await;
        };
        let upgrade = match hop::upgrade(&method, &head) {
            Ok(Upgrade::WebSocket) if length != Length::None => {
                return self.malformed(&head, "a request for an upgrade has no body").await;
            }
            Ok(upgrade) => upgrade,
            Err(denial) => return self.refuse(&head, target.identity, denial, length).await,
        };
        let waits = match expectation(&head) {
            Ok(waits) => waits && !length.is_empty() && !self.reader.is_ahead(),
            Err(()) => {
                // What a client expects of us is no matter for the record: nothing left.
                self.answer(&head, Answer::expectation()).await;
                return Then::Close;
            }
        };
        let closes = hop::wants_close(&head);
        let version = head.version;
        let ask = self.ask(head, target, method, length);
        self.reader.expect(length);
        let method = ask.method.clone();
        let writer = &mut self.writer;
        let mut client = ClientOne { writer, method, version, waits, closes, until_close: false };
        let left = match upgrade {
            Upgrade::None => self.forward.exchange(ask, &mut self.reader, &mut client).await,
            Upgrade::WebSocket => {
                match websocket::exchange(self.forward, ask, &mut self.reader, &mut client).await {
                    websocket::Outcome::Http(left) => left,
                    websocket::Outcome::Relayed => return Then::Cut { hard: false },
                }
            }
        };
        match left {
            Left::Cut => Then::Cut { hard: client.until_close },
            Left::Answered if client.closes || !self.reader.is_at_end() => Then::Close,
            Left::Answered => Then::Next,
        }
    }

    fn ask(&self, head: RequestHead, target: Target, method: Method, length: Length) -> Ask {
        let form = Form::of(&head.fields);
        let mut fields = head.fields;
        hop::strip_request(&mut fields);
        fields.remove(EXPECT);
        let Target { identity, path } = target;
        Ask { identity, via: self.via, method, path, fields, length, http2: false, form, target: None }
    }

    /// Refuses a request that was read, and says so.
    async fn refuse(
        &mut self,
        head: &RequestHead,
        identity: Identity,
        denial: Denial,
        length: Length,
    ) -> Then {
        let asked = Asked { identity: &identity, request: None, via: self.via };
        let denial = self.forward.wall().refuse(asked, denial).await;
        let answer = Answer::denied(&denial, &identity, None, Form::of(&head.fields));
        let ends = matches!(denial, Denial::Malformed(_)) || !length.is_empty() || hop::wants_close(head);
        match self.answer_with(head, answer, ends).await {
            Left::Answered if ends => Then::Close,
            Left::Answered => Then::Next,
            Left::Cut => Then::Cut { hard: false },
        }
    }

    async fn malformed(&mut self, head: &RequestHead, why: &'static str) -> Then {
        let identity = self.addressing.nearest().clone();
        // Of what has no certain end, no length is known.
        self.refuse(head, identity, Denial::Malformed(why), Length::Chunked).await
    }

    /// Refuses bytes that are no request.
    async fn flawed(&mut self, flaw: HeadFlaw) {
        let why = match flaw {
            HeadFlaw::Long => "the head is longer than 64 KiB",
            HeadFlaw::Fields => "the head has more than 128 fields",
            HeadFlaw::Form(why) => why,
        };
        let asked = Asked { identity: self.addressing.nearest(), request: None, via: self.via };
        self.forward.wall().refuse(asked, Denial::Malformed(why)).await;
        let writer = &mut self.writer;
        let (method, version) = (Method::GET, Version::Http11);
        let mut client =
            ClientOne { writer, method, version, waits: false, closes: true, until_close: false };
        // The connection is over, whether this is read or not.
        let _ = client.answer(Answer::flawed(flaw)).await;
    }

    async fn answer(&mut self, head: &RequestHead, answer: Answer) {
        self.answer_with(head, answer, true).await;
    }

    async fn answer_with(&mut self, head: &RequestHead, answer: Answer, closes: bool) -> Left {
        let method = if head.method == "HEAD" { Method::HEAD } else { Method::GET };
        let (writer, version) = (&mut self.writer, head.version);
        let mut client = ClientOne { writer, method, version, waits: false, closes, until_close: false };
        if client.answer(answer).await.is_ok() { Left::Answered } else { Left::Cut }
    }
}

/// Whether the client waits to be told to send its body.
fn expectation(head: &RequestHead) -> Result<bool, ()> {
    let mut values = head.fields.get_all(EXPECT).iter();
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.as_bytes().eq_ignore_ascii_case(b"100-continue") => {
            Ok(head.version == Version::Http11)
        }
        (Some(_), _) => Err(()),
    }
}

// === impl ClientOne ===

impl<W: AsyncWrite + Unpin> ClientOne<'_, W> {
    /// Sends the head of an answer as it is, with its connection fields.
    pub(crate) fn head(&mut self, status: StatusCode, fields: &HeaderMap, length: Length) {
        let reason = status.canonical_reason().unwrap_or_default();
        let line = [b"HTTP/1.1 ", status.as_str().as_bytes(), b" ", reason.as_bytes()];
        self.writer.head(&line, fields, length);
    }

    pub(crate) fn writer(&mut self) -> &mut Writer<W> {
        self.writer
    }
}

impl<W: AsyncWrite + Unpin> Sink for ClientOne<'_, W> {
    async fn data(&mut self, data: Bytes) -> Result<(), Broken> {
        self.writer.data(data).await
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Broken> {
        self.writer.end(trailers).await
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        self.writer.flush().await
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.writer.poll_gone(cx)
    }
}

impl<W: AsyncWrite + Unpin> Client for ClientOne<'_, W> {
    async fn proceed(&mut self) -> Result<(), Broken> {
        if std::mem::take(&mut self.waits) {
            self.head(StatusCode::CONTINUE, &HeaderMap::new(), Length::None);
            self.writer.flush().await?;
        }
        Ok(())
    }

    async fn respond(
        &mut self,
        status: StatusCode,
        mut fields: HeaderMap,
        length: Length,
    ) -> Result<(), Broken> {
        let length = match length {
            Length::Chunked | Length::UntilClose if self.version == Version::Http10 => Length::UntilClose,
            Length::Chunked | Length::UntilClose => Length::Chunked,
            Length::None | Length::Known(_) => length,
        };
        self.until_close = length == Length::UntilClose;
        if self.closes {
            fields.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.head(status, &fields, length);
        Ok(())
    }

    fn take_back(&mut self) -> bool {
        self.writer.take_back()
    }

    async fn answer(&mut self, answer: Answer) -> Result<(), Broken> {
        let mut fields = answer.fields;
        // A client that still waits with its body will not send it now.
        self.closes |= self.waits;
        if self.closes {
            fields.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if self.method == Method::HEAD {
            fields.insert(CONTENT_LENGTH, answer.body.len().into());
            self.head(answer.status, &fields, Length::None);
            return self.writer.flush().await;
        }
        let length = u64::try_from(answer.body.len()).unwrap_or(u64::MAX);
        self.head(answer.status, &fields, Length::Known(length));
        self.writer.data(answer.body).await?;
        self.writer.end(None).await
    }
}
