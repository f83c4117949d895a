//! HTTP/2 on both sides, over the `h2` crate: flow control is what keeps bodies from gathering.

use super::answer::{Answer, Fault, Form};
use super::exchange::{Ask, Client, Left};
use super::flow::{Broken, Frame, Sink, Source};
use super::framing::Length;
use super::target;
use super::upstream::{Reply, Two};
use super::{Forward, hop, limits};
use crate::wall::{Asked, Via, Wall};
use bytes::Bytes;
use fumehood_model::egress::{Denial, Identity};
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use std::future::{pending, poll_fn};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// As long as the head of HTTP/1.
pub(crate) const HEADER_LIST_BYTES: u32 = 64 * 1024;

/// What an HTTP/2 connection begins with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A body that comes in a stream.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: RecvStream,
    /// Taken and not yet passed on: the sender may not send as much again.
    held_bytes: usize,
    data_ended: bool,
}

/// A body that leaves in a stream.
#[derive(Debug)]
pub(crate) struct Outgoing {
    stream: SendStream<Bytes>,
    /// Whether the head was already the end.
    ended: bool,
}

/// The answer to a request of ours.
#[derive(Debug)]
pub(crate) struct ReplyTwo {
    response: ResponseFuture,
    body: Option<Incoming>,
}

/// A client of ours, for one of its streams.
#[derive(Debug)]
struct ClientTwo {
    respond: SendResponse<Bytes>,
    head: bool,
    body: Option<Outgoing>,
}

// === the server's side ===

/// Serves one connection to one place until the client leaves.
pub(crate) async fn serve<W: Wall, T: AsyncRead + AsyncWrite + Unpin>(
    forward: &Forward<W>,
    io: T,
    identity: &Identity,
    via: Via,
) {
    let mut builder = h2::server::Builder::new();
    builder
        .max_concurrent_streams(limits::STREAMS)
        .max_header_list_size(HEADER_LIST_BYTES)
        .max_pending_accept_reset_streams(limits::PENDING_RESETS)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_send_buffer_size(limits::SEND_BUFFER_BYTES);
    let Ok(Ok(mut connection)) = timeout(limits::HANDSHAKE, builder.handshake(io)).await else { return };
    let mut streams = JoinSet::new();
    loop {
        // Nothing is asked and nothing is under way: such a connection ends after a while.
        let accepted = if streams.is_empty() {
            match timeout(limits::KEEP_ALIVE, connection.accept()).await {
                Ok(accepted) => accepted,
                Err(_) => {
                    connection.graceful_shutdown();
                    let _ = timeout(limits::LINGER, poll_fn(|cx| connection.poll_closed(cx))).await;
                    return;
                }
            }
        } else {
            tokio::select! {
                accepted = connection.accept() => accepted,
                _ = streams.join_next() => continue,
            }
        };
        match accepted {
            Some(Ok((request, respond))) => {
                let (forward, identity) = (forward.clone(), identity.clone());
                streams.spawn_local(async move { stream(&forward, request, respond, &identity, via).await });
            }
            Some(Err(_)) | None => break,
        }
    }
    // Each notices by itself that its client is gone, and writes down its end.
    drop(connection);
    while streams.join_next().await.is_some() {}
}

async fn stream<W: Wall>(
    forward: &Forward<W>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    identity: &Identity,
    via: Via,
) {
    let (parts, body) = request.into_parts();
    let mut client = ClientTwo { respond, head: parts.method == Method::HEAD, body: None };
    let form = Form::of(&parts.headers);
    let unusual = parts.method == Method::CONNECT || parts.extensions.get::<h2::ext::Protocol>().is_some();
    let path = if unusual {
        Err(Denial::Upgrade("a tunnel inside of HTTP/2".to_owned()))
    } else if fumehood_model::egress::Method::parse(parts.method.as_str()).is_none() {
        Err(Denial::Malformed("the method is no method"))
    } else {
        target::of_http2(identity, &parts.uri, &parts.headers)
    };
    let path = match path {
        Ok(path) => path,
        Err(denial) => {
            let asked = Asked { identity, request: None, via };
            let denial = forward.wall().refuse(asked, denial).await;
            // A client that is gone needs no answer.
            let _ = client.answer(Answer::denied(&denial, identity, None, form)).await;
            return;
        }
    };
    let length = length(&body, &parts.headers);
    let mut fields = parts.headers;
    hop::strip_request(&mut fields);
    hop::join_cookies(&mut fields);
    fields.remove(http::header::EXPECT);
    let ask = Ask {
        identity: identity.clone(),
        via,
        method: parts.method,
        path,
        fields,
        length,
        http2: true,
        form,
        target: None,
    };
    let mut source = Incoming::new(body);
    if forward.exchange(ask, &mut source, &mut client).await == Left::Cut {
        client.reset();
    }
}

/// The length of a body: `h2` has checked that what it says is what comes.
fn length(body: &RecvStream, fields: &HeaderMap) -> Length {
    if body.is_end_stream() {
        // A length of nothing is said, because some servers want to hear it.
        return if fields.contains_key(CONTENT_LENGTH) { Length::Known(0) } else { Length::None };
    }
    let known = fields.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    known.map_or(Length::Chunked, Length::Known)
}

// === the client's side ===

/// Opens a stream for a request.
pub(crate) async fn send(two: Two, ask: &Ask) -> Result<(Outgoing, ReplyTwo), Broken> {
    let uri = http::Uri::builder()
        .scheme(ask.identity.scheme.name())
        .authority(ask.identity.authority())
        .path_and_query(ask.target())
        .build()
        .map_err(|_| Broken::Malformed("the path has a character that HTTP/2 does not carry"))?;
    let mut request = Request::new(());
    *request.method_mut() = ask.method.clone();
    *request.uri_mut() = uri;
    *request.version_mut() = http::Version::HTTP_2;
    *request.headers_mut() = ask.fields.clone();
    if let Length::Known(length) = ask.length {
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    let mut send = timeout(limits::HEAD_TIME, two.send.ready()).await.map_err(|_| Broken::Silent)??;
    let ended = ask.length == Length::None;
    let (response, stream) = send.send_request(request, ended)?;
    Ok((Outgoing { stream, ended }, ReplyTwo { response, body: None }))
}

impl Source for ReplyTwo {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        match &mut self.body {
            Some(body) => match timeout(limits::SILENCE, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => Err(Broken::Silent),
            },
            None => Ok(None),
        }
    }

    async fn gone(&mut self) {
        pending().await
    }
}

impl Reply for ReplyTwo {
    async fn head(&mut self, method: &Method) -> Result<(StatusCode, HeaderMap, Length), Fault> {
        let response = timeout(limits::SILENCE, &mut self.response);
        let response = response.await.map_err(|_| Fault::Broken(Broken::Silent))?;
        let (parts, body) = response.map_err(|error| Fault::Broken(error.into()))?.into_parts();
        let bodiless = *method == Method::HEAD || parts.status == StatusCode::NOT_MODIFIED;
        let length = if bodiless { Length::None } else { length(&body, &parts.headers) };
        self.body = Some(Incoming::new(body));
        Ok((parts.status, parts.headers, length))
    }
}

// === impl Incoming ===

impl Incoming {
    const fn new(stream: RecvStream) -> Self {
        Self { stream, held_bytes: 0, data_ended: false }
    }
}

impl Source for Incoming {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        if self.held_bytes > 0 {
            // A stream that is over does not count any more.
            let _ = self.stream.flow_control().release_capacity(std::mem::take(&mut self.held_bytes));
        }
        if !self.data_ended {
            if let Some(data) = self.stream.data().await {
                let data = data?;
                self.held_bytes = data.len();
                return Ok(Some(Frame::Data(data)));
            }
            self.data_ended = true;
        }
        Ok(self.stream.trailers().await?.map(Frame::Trailers))
    }

    async fn gone(&mut self) {
        // A client of HTTP/2 is seen to leave by the side that sends.
        pending().await
    }
}

// === impl Outgoing ===

impl Sink for Outgoing {
    async fn data(&mut self, mut data: Bytes) -> Result<(), Broken> {
        while !data.is_empty() {
            self.stream.reserve_capacity(data.len());
            let room = match poll_fn(|cx| self.stream.poll_capacity(cx)).await {
                Some(room) => room?,
                None => return Err(Broken::Closed),
            };
            let part = data.split_to(room.min(data.len()));
            if !part.is_empty() {
                self.stream.send_data(part, false)?;
            }
        }
        Ok(())
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Broken> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        match trailers {
            Some(trailers) => self.stream.send_trailers(trailers)?,
            None => self.stream.send_data(Bytes::new(), true)?,
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        // The connection sends by itself.
        Ok(())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.stream.poll_reset(cx).map(|_| ())
    }
}

// === impl ClientTwo ===

impl ClientTwo {
    fn reset(&mut self) {
        match &mut self.body {
            Some(body) => body.stream.send_reset(Reason::INTERNAL_ERROR),
            None => self.respond.send_reset(Reason::INTERNAL_ERROR),
        }
    }

    fn send_head(&mut self, status: StatusCode, fields: HeaderMap, is_whole: bool) -> Result<(), Broken> {
        let mut response = Response::new(());
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        let stream = self.respond.send_response(response, is_whole)?;
        self.body = (!is_whole).then_some(Outgoing { stream, ended: false });
        Ok(())
    }
}

impl Sink for ClientTwo {
    async fn data(&mut self, data: Bytes) -> Result<(), Broken> {
        match &mut self.body {
            Some(body) => body.data(data).await,
            None => Err(Broken::Malformed("there is a body where none can be")),
        }
    }

    async fn end(&mut self, trailers: Option<HeaderMap>) -> Result<(), Broken> {
        match &mut self.body {
            Some(body) => body.end(trailers).await,
            None => Ok(()),
        }
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        Ok(())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.body {
            Some(body) => body.poll_gone(cx),
            None => self.respond.poll_reset(cx).map(|_| ()),
        }
    }
}

impl Client for ClientTwo {
    async fn proceed(&mut self) -> Result<(), Broken> {
        // Clients of HTTP/2 send by flow control and do not wait to be told.
        Ok(())
    }

    async fn respond(
        &mut self,
        status: StatusCode,
        mut fields: HeaderMap,
        length: Length,
    ) -> Result<(), Broken> {
        if let Length::Known(length) = length {
            fields.insert(CONTENT_LENGTH, length.into());
        }
        self.send_head(status, fields, length.is_empty())
    }

    fn take_back(&mut self) -> bool {
        // What was given to the connection is on its way.
        false
    }

    async fn answer(&mut self, answer: Answer) -> Result<(), Broken> {
        let mut fields = answer.fields;
        if !answer.body.is_empty() {
            fields.insert(CONTENT_LENGTH, answer.body.len().into());
        }
        let is_whole = self.head || answer.body.is_empty();
        self.send_head(answer.status, fields, is_whole)?;
        match &mut self.body {
            Some(body) => {
                body.data(answer.body).await?;
                body.end(None).await
            }
            None => Ok(()),
        }
    }
}
