//! What happens to a connection of the sandbox, from its first byte to its last.
//!
//! ```text
//!  place ─► opening ─┬─ nothing open ─► recorded, reset
//!                    └─ first bytes ─┬─ TLS ─► name? ─┬─ opened ─► protocols
//!                                    │                └─ unread ─► tunnel
//!                                    ├─ HTTP ────────────────────► protocols
//!                                    └─ other, or silence ───────► tunnel, under a rule for any protocol
//! ```

use crate::classify::{First, judge_name};
use crate::gate::{Connection, Gate};
use crate::hello::ClientHello;
use crate::inbound::{Inbound, Place, Protocols, read_first, read_more};
use crate::record::Recorder;
use crate::tunnel::{Direction, Fault, Pipes, pump};
use crate::wall::{Asked, Cleared, End, Via, Wall};
use fumehood_model::egress::{Denial, Host, Identity, Opening, Scheme};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Where the client has to speak first, it is waited for so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where the server may speak first, it is dialled after so long at the latest.
const GRACE: Duration = Duration::from_millis(50);
/// Once a late client has begun, it is soon known what it speaks.
const LATE_PATIENCE: Duration = Duration::from_secs(2);
/// How long a refused client has to read why.
const FAREWELL: Duration = Duration::from_secs(1);

/// Alerts of TLS.
const ACCESS_DENIED: u8 = 49;
const UNRECOGNIZED_NAME: u8 = 112;
const DECODE_ERROR: u8 = 50;

/// Takes connections in. Cheap to clone.
pub(crate) struct Entrance<R, P> {
    pub(crate) gate: Gate<R>,
    pub(crate) protocols: Rc<P>,
    pipes: Rc<Pipes>,
    /// How long a client may take that might wait for its server to speak first.
    pub(crate) grace: Duration,
}

// === impl Entrance ===

impl<R: Recorder, P: Protocols<Gate<R>>> Entrance<R, P> {
    pub(crate) fn new(gate: Gate<R>, protocols: Rc<P>) -> Self {
        Self { gate, protocols, pipes: Rc::default(), grace: GRACE }
    }

    /// A connection that was dialled as if nothing were in between.
    pub(crate) async fn dialled(self, stream: TcpStream, to: SocketAddr) {
        let Some(place) = self.place(to) else { return reset(&stream) };
        match Box::pin(self.admit(&place, Via::Transparent)).await {
            Ok((opening, _connection)) => {
                let place = Some(place);
                let inbound = Inbound { stream, first: Vec::new(), via: Via::Transparent, place };
                self.speak(inbound, opening).await;
            }
            Err(_) => reset(&stream),
        }
    }

    /// The place that an address inside stands for; one that stands for nobody stays what it is.
    pub(crate) fn place(&self, to: SocketAddr) -> Option<Place> {
        let host = self.gate.who(to.ip()).unwrap_or_else(|| Host::address(to.ip()));
        Place::new(host, to.port())
    }

    /// What may be spoken with a place, and the connection's count. A refusal is recorded.
    pub(crate) async fn admit(&self, place: &Place, via: Via) -> Result<(Opening, Connection<R>), Denial> {
        let likely = place.speaking(place.likely()).ok_or(Denial::Port)?;
        let asked = Asked { identity: &likely, request: None, via };
        // An address of the pools that stands for nobody is no place, whatever a rule says of it.
        if matches!(place.host, Host::Address(address) if self.gate.who(address).is_none()) {
            return Err(self.gate.refuse(asked, Denial::RawAddress).await);
        }
        let opening = self.gate.table().opening(&place.host, place.port());
        if !opening.is_open() {
            return Err(self.gate.refuse(asked, self.gate.why_closed(asked.identity)).await);
        }
        match self.gate.connect(&place.host) {
            Ok(connection) => Ok((opening, connection)),
            Err(denial) => Err(self.gate.refuse(asked, denial).await),
        }
    }

    /// Finds out what is spoken, and lets those do it who can. Each way is boxed: a connection is to hold the
    /// state of the one that it took, not room for the largest.
    pub(crate) async fn speak(&self, mut inbound: Inbound, opening: Opening) {
        let Some(place) = inbound.place.clone() else { return };
        // Where TLS has to be opened nothing may pass unread for having come late.
        let patience = if opening.tcp && !opening.open_tls { self.grace } else { PATIENCE };
        let first = Box::pin(timeout(patience, read_first(&inbound.stream, &mut inbound.first)));
        let first = match first.await {
            Ok(Ok(first)) => first,
            Err(_) => First::More,
            // It went without a word.
            Ok(Err(_)) => return,
        };
        match first {
            First::Tls(hello) => Box::pin(self.tls(inbound, &place, opening, hello)).await,
            First::BadTls(why) => {
                Box::pin(self.refuse_tls(inbound, &place, Denial::Malformed(why), DECODE_ERROR)).await;
            }
            First::Http => Box::pin(self.protocols.http(self.gate.clone(), inbound)).await,
            First::More | First::Other if opening.tcp => {
                let settled = first == First::Other;
                Box::pin(self.tunnel(inbound, &place, Scheme::Tcp, (!settled).then_some(opening))).await;
            }
            First::More if inbound.first.is_empty() => {}
            First::More | First::Other if opening.http => {
                Box::pin(self.protocols.http(self.gate.clone(), inbound)).await;
            }
            First::More | First::Other => {
                if let Some(identity) = place.speaking(Scheme::Tcp) {
                    let asked = Asked { identity: &identity, request: None, via: inbound.via };
                    Box::pin(self.gate.refuse(asked, self.gate.why_closed(&identity))).await;
                }
                reset(&inbound.stream);
            }
        }
    }

    async fn tls(&self, inbound: Inbound, place: &Place, opening: Opening, hello: ClientHello) {
        if let Err(denial) = judge_name(&hello, &place.host) {
            return Box::pin(self.refuse_tls(inbound, place, denial, UNRECOGNIZED_NAME)).await;
        }
        if opening.open_tls {
            Box::pin(self.protocols.tls(self.gate.clone(), inbound, hello)).await;
        } else if opening.tls && hello.encrypted && !opening.tcp {
            // What is read is the outer name; whom the server takes it for could be somebody else.
            Box::pin(self.refuse_tls(inbound, place, Denial::HiddenName, UNRECOGNIZED_NAME)).await;
        } else if opening.tls {
            Box::pin(self.tunnel(inbound, place, Scheme::Https, None)).await;
        } else if let Some(identity) = place.speaking(Scheme::Https) {
            let denial = self.gate.why_closed(&identity);
            Box::pin(self.refuse_tls(inbound, place, denial, ACCESS_DENIED)).await;
        }
    }

    async fn refuse_tls(&self, mut inbound: Inbound, place: &Place, denial: Denial, alert: u8) {
        let Some(identity) = place.speaking(Scheme::Https) else { return };
        let asked = Asked { identity: &identity, request: None, via: inbound.via };
        self.gate.refuse(asked, denial).await;
        say_farewell(&mut inbound.stream, &[21, 3, 3, 0, 2, 2, alert]).await;
    }

    /// Passes bytes on unread. With `late`, the client has not said yet what it speaks.
    async fn tunnel(&self, mut inbound: Inbound, place: &Place, scheme: Scheme, late: Option<Opening>) {
        let Some(identity) = place.speaking(scheme) else { return };
        let asked = Asked { identity: &identity, request: None, via: inbound.via };
        let Ok(cleared) = Box::pin(self.gate.clear(asked)).await else {
            return self.cut(inbound, scheme).await;
        };
        match Box::pin(self.gate.dial(&cleared)).await {
            Err(error) => {
                let end = End { fault: Some(error.to_string()), ..End::default() };
                Box::pin(self.gate.end(cleared, end)).await;
                reset(&inbound.stream);
            }
            Ok(dialled) => {
                let address = dialled.address;
                let fault = self.relay(&mut inbound, dialled.stream, &cleared, late).await.err();
                if fault.is_some() {
                    reset(&inbound.stream);
                }
                let fault = fault.map(|fault| fault.to_string());
                Box::pin(self.gate.end(cleared, End { address, fault, ..End::default() })).await;
            }
        }
    }

    async fn relay(
        &self,
        inbound: &mut Inbound,
        mut server: TcpStream,
        cleared: &Cleared,
        late: Option<Opening>,
    ) -> Result<(), Fault> {
        let stopped = self.gate.stop().stopped();
        let via = inbound.via;
        let mut first = std::mem::take(&mut inbound.first);
        let (from_client, mut to_client) = inbound.stream.split();
        let (from_server, mut to_server) = server.split();
        let outward = async {
            if let Some(opening) = late {
                self.await_late(from_client.as_ref(), &mut first, opening, (cleared.identity(), via)).await?;
            }
            self.count(cleared, first.len(), 0)?;
            to_server.write_all(&first).await.map_err(|error| Direction::Out.sink(error))?;
            first = Vec::new();
            let count = |bytes| self.gate.count(cleared, bytes, 0);
            pump(&self.pipes, from_client.as_ref(), &mut to_server, Direction::Out, count).await
        };
        let count = |bytes| self.gate.count(cleared, 0, bytes);
        let inward = pump(&self.pipes, from_server.as_ref(), &mut to_client, Direction::In, count);
        tokio::select! {
            ended = async { tokio::try_join!(outward, inward) } => ended.map(drop),
            _ = stopped => Err(Fault::Stopped),
        }
    }

    /// Holds back what a client says once the server was dialled already, until it is known to be no TLS
    /// to somebody else.
    async fn await_late(
        &self,
        client: &TcpStream,
        first: &mut Vec<u8>,
        opening: Opening,
        (identity, via): (&Identity, Via),
    ) -> Result<(), Fault> {
        if first.is_empty() && read_more(client, first).await.map_err(Fault::Client)? == 0 {
            return Ok(());
        }
        let known = timeout(LATE_PATIENCE, read_first(client, first)).await;
        let denial = match known.unwrap_or(Ok(First::Other)).map_err(Fault::Client)? {
            First::Tls(hello) => match judge_name(&hello, &identity.host) {
                Err(denial) => denial,
                Ok(()) if opening.open_tls => Denial::NotInspected,
                Ok(()) => return Ok(()),
            },
            First::BadTls(why) => Denial::Malformed(why),
            // Half a handshake that does not go on is none that could be judged.
            First::Other | First::More if first.first() == Some(&22) => {
                Denial::Malformed("the TLS handshake is not whole")
            }
            First::Other | First::More | First::Http => return Ok(()),
        };
        let asked = Asked { identity, request: None, via };
        Err(Fault::Denied(self.gate.refuse(asked, denial).await))
    }

    fn count(&self, cleared: &Cleared, bytes_out: usize, bytes_in: usize) -> Result<(), Fault> {
        let number = |bytes| u64::try_from(bytes).unwrap_or(u64::MAX);
        self.gate.count(cleared, number(bytes_out), number(bytes_in)).map_err(Fault::Denied)
    }

    /// Ends a connection that was refused after its first bytes.
    async fn cut(&self, mut inbound: Inbound, scheme: Scheme) {
        match scheme {
            Scheme::Https => {
                say_farewell(&mut inbound.stream, &[21, 3, 3, 0, 2, 2, ACCESS_DENIED]).await;
            }
            Scheme::Http | Scheme::Tcp => reset(&inbound.stream),
        }
    }
}

impl<R, P> Clone for Entrance<R, P> {
    fn clone(&self) -> Self {
        Self {
            gate: self.gate.clone(),
            protocols: Rc::clone(&self.protocols),
            pipes: Rc::clone(&self.pipes),
            grace: self.grace,
        }
    }
}

/// Makes the end of this connection a reset: the client learns that it was refused, not served.
pub(crate) fn reset(stream: &TcpStream) {
    // A socket that takes no options is closed the usual way, which is as final.
    let _ = stream.set_zero_linger();
}

/// Says a last thing and waits a moment for it to be read: bytes of the client that nobody took would
/// make the end a reset, and destroy it.
pub(crate) async fn say_farewell(stream: &mut TcpStream, bytes: &[u8]) {
    let told = timeout(FAREWELL, async {
        stream.write_all(bytes).await?;
        stream.shutdown().await?;
        let mut rest = Vec::new();
        while read_more(stream, &mut rest).await? > 0 {
            rest.clear();
        }
        std::io::Result::Ok(())
    });
    // It is refused either way.
    let _ = told.await;
}
