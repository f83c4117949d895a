//! WebSocket: a GET that was allowed becomes a connection of bytes, in both directions, counted.

use super::answer::Fault;
use super::credentials::Mask;
use super::exchange::{Ask, Failure, Left, Tally, Turn, receive};
use super::flow::{Broken, Frame, Sink, Source};
use super::framing::Length;
use super::http1::ClientOne;
use super::upstream::{Link, One};
use super::wire::{Reader, Writer};
use super::{Forward, hop, limits};
use crate::wall::Wall;
use fumehood_model::egress::Denial;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};

/// What became of the request.
pub(crate) enum Outcome {
    /// It was answered, or cut, as any other.
    Http(Left),
    /// The connection was a WebSocket, and is over.
    Relayed,
}

/// Carries a request for an upgrade, and what follows from it.
pub(crate) async fn exchange<W: Wall, R: AsyncRead + Unpin, K: AsyncWrite + Unpin>(
    forward: &Forward<W>,
    mut ask: Ask,
    reader: &mut Reader<R>,
    client: &mut ClientOne<'_, K>,
) -> Outcome {
    if let Some(denial) = hop::overrides(&ask.fields) {
        let denial = forward.wall().refuse(ask.asked(), denial).await;
        return Outcome::Http(forward.deny(&ask, &denial, client).await);
    }
    let cleared = match forward.wall().clear(ask.asked()).await {
        Ok(cleared) => cleared,
        Err(denial) => return Outcome::Http(forward.deny(&ask, &denial, client).await),
    };
    let tally = Tally::default();
    let turn = Turn { wall: forward.wall(), secrets: forward.secrets(), cleared: &cleared, tally: &tally };
    let carried = carry(forward, &turn, &mut ask, reader, client).await;
    let outcome = match &carried {
        Ok(true) => Outcome::Relayed,
        Ok(false) => Outcome::Http(Left::Answered),
        Err(failure) => Outcome::Http(forward.fail(&ask, failure, &tally, client).await),
    };
    let fault = carried.err().map(|failure| failure.to_string());
    forward.wall().end(cleared, tally.end(fault)).await;
    outcome
}

/// Whether it became a WebSocket.
async fn carry<W: Wall, R: AsyncRead + Unpin, K: AsyncWrite + Unpin>(
    forward: &Forward<W>,
    turn: &Turn<'_, W>,
    ask: &mut Ask,
    reader: &mut Reader<R>,
    client: &mut ClientOne<'_, K>,
) -> Result<bool, Failure> {
    turn.secrets.prepare(turn.cleared, ask, reader).await?;
    let Link::One(mut one) = forward.connect(turn.cleared, false).await? else {
        return Err(Failure::Fault(Fault::Framing("the server speaks HTTP/2 where HTTP/1 was asked for")));
    };
    let about = one.about;
    turn.tally.met(&about);
    forward.ready(turn, ask, &about)?;
    ask.fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    ask.fields.insert(UPGRADE, HeaderValue::from_static("websocket"));
    one.ask(ask);
    let answered = tokio::select! {
        answered = upgrade(turn, ask, &mut one, client) => answered,
        () = reader.gone() => Err(Failure::Client(Broken::Closed)),
    };
    if !answered.map_err(|failure| failure.explained(&about, turn.tally))? {
        return Ok(false);
    }
    relay(turn, reader, client.writer(), &mut one).await?;
    Ok(true)
}

/// Sends the request, and the answer back. Whether the server agreed to the upgrade.
async fn upgrade<W: Wall, K: AsyncWrite + Unpin>(
    turn: &Turn<'_, W>,
    ask: &Ask,
    one: &mut One,
    client: &mut ClientOne<'_, K>,
) -> Result<bool, Failure> {
    let (mut reply, writer) = one.halves();
    writer.flush().await.map_err(|broken| Failure::Fault(Fault::Broken(broken)))?;
    for _ in 0..limits::INTERIM_ANSWERS {
        let head = reply.any_head().await.map_err(Failure::Fault)?;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            if !hop::has_token(&head.fields, &UPGRADE, "websocket") {
                let why = "the server switches to another protocol than WebSocket";
                return Err(Failure::Fault(Fault::Framing(why)));
            }
            let mut fields = head.fields;
            hop::strip_response(&ask.method, head.status, &mut fields);
            let (binding, mut length) = (turn.cleared.binding(), Length::UntilClose);
            let masked = turn.secrets.mask(binding, head.status, &mut fields, &mut length);
            turn.tally.mask(masked.map_err(Failure::Denied)?.found());
            switch(&mut fields);
            turn.tally.status.set(Some(head.status.as_u16()));
            client.head(head.status, &fields, Length::None);
            client.flush().await.map_err(Failure::Client)?;
            return Ok(true);
        }
        if !head.status.is_informational() {
            let length = reply.begin(&ask.method, &head).map_err(Failure::Fault)?;
            receive(turn, &ask.method, (head.status, head.fields, length), &mut reply, client).await?;
            return Ok(false);
        }
    }
    Err(Failure::Fault(Fault::Framing("there are too many interim answers")))
}

fn switch(fields: &mut HeaderMap) {
    fields.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    fields.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Moves bytes both ways until both are done, or one breaks off.
async fn relay<W: Wall, R: AsyncRead + Unpin, K: AsyncWrite + Unpin>(
    turn: &Turn<'_, W>,
    reader: &mut Reader<R>,
    writer: &mut Writer<K>,
    one: &mut One,
) -> Result<(), Failure> {
    reader.expect_raw();
    one.reader.expect_raw();
    one.writer.raw();
    writer.raw();
    let up = async {
        let moved =
            stream(reader, &mut one.writer, &mut Mask::default(), |bytes| turn.count_out(bytes)).await;
        moved.map_err(|(side, broken)| fault(side == Side::Source, broken))
    };
    let mut mask = turn.secrets.mask_bytes();
    let down = async {
        let moved = stream(&mut one.reader, writer, &mut mask, |bytes| turn.count_in(bytes)).await;
        moved.map_err(|(side, broken)| fault(side == Side::Sink, broken))
    };
    let ended = tokio::try_join!(up, down).map(|((), ())| ());
    turn.tally.mask(mask.found());
    ended
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Sink,
}

/// What broke off, or was refused.
enum Ended {
    Broken(Broken),
    Denied(Denial),
}

fn fault(is_client: bool, ended: Ended) -> Failure {
    match ended {
        Ended::Denied(denial) => Failure::Denied(denial),
        Ended::Broken(broken) if is_client => Failure::Client(broken),
        Ended::Broken(broken) => Failure::Fault(Fault::Broken(broken)),
    }
}

/// One direction, to its end.
async fn stream<R: AsyncRead + Unpin, K: AsyncWrite + Unpin>(
    from: &mut Reader<R>,
    to: &mut Writer<K>,
    mask: &mut Mask,
    count: impl Fn(usize) -> Result<(), Denial>,
) -> Result<(), (Side, Ended)> {
    let source = |broken| (Side::Source, Ended::Broken(broken));
    let sink = |broken| (Side::Sink, Ended::Broken(broken));
    while let Some(Frame::Data(data)) = from.frame().await.map_err(source)? {
        count(data.len()).map_err(|denial| (Side::Source, Ended::Denied(denial)))?;
        mask.give(data);
        while let Ok(Some(data)) = mask.take() {
            to.data(data).await.map_err(sink)?;
        }
        to.data(mask.pause()).await.map_err(sink)?;
        to.flush().await.map_err(sink)?;
    }
    // Bytes are in no coding that could be damaged.
    if let Ok(rest) = mask.rest() {
        to.data(rest).await.map_err(sink)?;
        to.flush().await.map_err(sink)?;
    }
    to.shutdown().await;
    Ok(())
}
