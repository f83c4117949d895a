//! Connections to servers: made for something cleared, certified, and kept for a while.

use super::answer::Fault;
use super::exchange::Ask;
use super::flow::{Broken, Frame, Source};
use super::framing::Length;
use super::head::{ResponseHead, Version};
use super::wire::{NoHead, Reader, Writer};
use super::{http2, limits};
use crate::tls::client::Offer;
use crate::tls::{Servers, TlsFault};
use crate::wall::Dialled;
use bytes::Bytes;
use fumehood_model::egress::{Identity, Scheme};
use http::{HeaderMap, Method, StatusCode};
use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// The bytes of a connection to a server.
#[derive(Debug)]
pub(crate) enum Io {
    Clear(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What is known of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    /// The one that was judged when it was dialled.
    pub(crate) address: Option<IpAddr>,
    /// Whether the server asked for a certificate that we do not have.
    pub(crate) asked_for_certificate: bool,
    /// Whether the server has shown a certificate for the identity's host.
    pub(crate) certified: bool,
    /// Whether HTTP/2 was offered, so that HTTP/1 is the server's own choice.
    pub(crate) offered_http2: bool,
}

/// A connection that speaks HTTP/1.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) reader: Reader<ReadHalf<Io>>,
    pub(crate) writer: Writer<WriteHalf<Io>>,
    pub(crate) about: About,
}

/// A connection that speaks HTTP/2, and that others may use at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Two {
    pub(crate) send: h2::client::SendRequest<Bytes>,
    pub(crate) about: About,
}

#[derive(Debug)]
pub(crate) enum Link {
    One(Box<One>),
    Two(Two),
}

/// What comes back for a request.
pub(crate) trait Reply: Source {
    /// The head of the answer, and the length of its body. Interim ones are passed over.
    async fn head(&mut self, method: &Method) -> Result<(StatusCode, HeaderMap, Length), Fault>;
}

/// The answer on an HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct ReplyOne<'a> {
    reader: &'a mut Reader<ReadHalf<Io>>,
    /// Whether the server means to close, or its answer is not to be trusted to end where it said.
    pub(crate) closes: bool,
}

/// Makes a dialled connection ready for requests.
pub(crate) async fn establish(
    servers: &Servers,
    identity: &Identity,
    dialled: Dialled,
    client_speaks_http2: bool,
) -> Result<Link, Fault> {
    let Dialled { stream, address } = dialled;
    // Requests are small, and wait for their answers.
    let broken = |error| Fault::Broken(Broken::Io(error));
    stream.set_nodelay(true).map_err(broken)?;
    // One that was kept for the next request may lead nowhere by then.
    fumehood_sys::socket::limit_untaken(stream.as_fd(), limits::UNTAKEN).map_err(broken)?;
    let mut about =
        About { address, asked_for_certificate: false, certified: false, offered_http2: client_speaks_http2 };
    match identity.scheme {
        Scheme::Https => {
            let offer = if client_speaks_http2 { Offer::Http1And2 } else { Offer::Http1 };
            let certified = servers.connect(stream, identity, offer).await.map_err(tls_fault)?;
            about.asked_for_certificate = certified.asked_for_certificate;
            about.certified = true;
            let io = Io::Tls(Box::new(certified.stream));
            if certified.http2 { two(io, about).await } else { Ok(one(io, about)) }
        }
        // In the clear nothing is agreed on: the server gets what the client speaks.
        Scheme::Http | Scheme::Tcp if client_speaks_http2 => two(Io::Clear(stream), about).await,
        Scheme::Http | Scheme::Tcp => Ok(one(Io::Clear(stream), about)),
    }
}

fn tls_fault(fault: TlsFault) -> Fault {
    if matches!(fault, TlsFault::ClientCertificate) { Fault::ClientCertificate } else { Fault::Tls(fault) }
}

fn one(io: Io, about: About) -> Link {
    let (read, write) = tokio::io::split(io);
    Link::One(Box::new(One { reader: Reader::new(read, Bytes::new()), writer: Writer::new(write), about }))
}

async fn two(io: Io, about: About) -> Result<Link, Fault> {
    let mut builder = h2::client::Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(limits::STREAM_WINDOW_BYTES)
        .initial_connection_window_size(limits::CONNECTION_WINDOW_BYTES)
        .max_header_list_size(http2::HEADER_LIST_BYTES)
        .max_send_buffer_size(limits::SEND_BUFFER_BYTES);
    let (send, connection) =
        builder.handshake(io).await.map_err(|error| Fault::Broken(Broken::Http2(error)))?;
    // The connection ends by itself when nobody holds `send` and no stream is left.
    tokio::task::spawn_local(async move {
        // Its faults reach every stream of it.
        let _ = connection.await;
    });
    Ok(Link::Two(Two { send, about }))
}

// === impl One ===

impl One {
    /// Holds a request's head. It is sent with the first of its body, or the flush.
    pub(crate) fn ask(&mut self, ask: &Ask) {
        let authority = ask.identity.authority();
        let line = [
            ask.method.as_str().as_bytes(),
            b" ",
            ask.target().as_bytes(),
            b" HTTP/1.1\r\nhost: ",
            authority.as_bytes(),
        ];
        self.writer.head(&line, &ask.fields, ask.length);
    }

    pub(crate) fn halves(&mut self) -> (ReplyOne<'_>, &mut Writer<WriteHalf<Io>>) {
        (ReplyOne { reader: &mut self.reader, closes: true }, &mut self.writer)
    }

    /// Whether it lies still, as a connection does that nobody uses.
    pub(crate) async fn is_fresh(&mut self) -> bool {
        self.reader.is_quiet().await
    }
}

// === impl ReplyOne ===

impl ReplyOne<'_> {
    /// The next head, whatever its status.
    pub(crate) async fn any_head(&mut self) -> Result<ResponseHead, Fault> {
        match self.reader.response().await {
            Ok(Some(head)) => Ok(head),
            Ok(None) => Err(Fault::NoAnswer),
            Err(NoHead::Flaw(flaw)) => Err(Fault::Head(flaw)),
            Err(NoHead::Broken(broken)) => Err(Fault::Broken(broken)),
        }
    }

    /// Sets up the body of a head.
    pub(crate) fn begin(&mut self, method: &Method, head: &ResponseHead) -> Result<Length, Fault> {
        let length = Length::of_response(method, head).map_err(Fault::Framing)?;
        self.reader.expect(length);
        let fields = &head.fields;
        let twice = fields.contains_key(http::header::TRANSFER_ENCODING)
            && fields.contains_key(http::header::CONTENT_LENGTH);
        let close = super::hop::has_token(fields, &http::header::CONNECTION, "close");
        self.closes = close || twice || head.version == Version::Http10 || length == Length::UntilClose;
        Ok(length)
    }

    /// Whether the connection is ready for another request.
    pub(crate) fn is_reusable(&self) -> bool {
        !self.closes && self.reader.is_at_end() && !self.reader.is_ahead()
    }
}

impl Source for ReplyOne<'_> {
    async fn frame(&mut self) -> Result<Option<Frame>, Broken> {
        self.reader.frame().await
    }

    async fn gone(&mut self) {
        self.reader.gone().await;
    }
}

impl Reply for ReplyOne<'_> {
    async fn head(&mut self, method: &Method) -> Result<(StatusCode, HeaderMap, Length), Fault> {
        for _ in 0..limits::INTERIM_ANSWERS {
            let head = self.any_head().await?;
            if head.status == StatusCode::SWITCHING_PROTOCOLS {
                return Err(Fault::Framing("the server switches to another protocol unasked"));
            }
            if !head.status.is_informational() {
                let length = self.begin(method, &head)?;
                return Ok((head.status, head.fields, length));
            }
        }
        Err(Fault::Framing("there are too many interim answers"))
    }
}

// === impl Io ===

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
