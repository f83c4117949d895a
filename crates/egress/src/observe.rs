//! What the kernel refused without asking, so that it stands in the record all the same.

use crate::gate::Gate;
use crate::inbound::Place;
use crate::line;
use crate::record::{Recorder, Refusal};
use crate::sockets::{Attempt, Observer, Transport, packets};
use crate::wall::{Asked, Via};
use fumehood_model::egress::{Denial, Host, Scheme};
use std::io;

/// More than the observer gives of one packet.
const PACKET_BYTES: usize = 256;
/// HTTP/3 comes this way, and its clients fall back.
const QUIC_PORT: u16 = 443;

/// Records attempts until the record fails.
pub(crate) async fn observe<R: Recorder>(gate: Gate<R>, observer: Observer) -> io::Result<()> {
    let socket = packets(observer.socket)?;
    let mut buffer = [0; PACKET_BYTES];
    loop {
        let count = socket.recv(&mut buffer).await?;
        let attempt = buffer.get(..count).and_then(observer.read);
        if let Some(attempt) = attempt
            && tell(&gate, attempt).await.is_none()
        {
            return Ok(());
        }
    }
}

/// `None`: it could not be recorded.
async fn tell<R: Recorder>(gate: &Gate<R>, Attempt { protocol, to }: Attempt) -> Option<()> {
    let host = gate.who(to.ip()).unwrap_or_else(|| Host::address(to.ip()));
    // Port 0 is nobody's; it is told as the first that can be anybody's.
    let place = Place::new(host, to.port().max(1))?;
    let (scheme, denial) = match protocol {
        Transport::Tcp => (place.likely(), None),
        Transport::Udp if to.port() == QUIC_PORT => (Scheme::Https, Some(Denial::Protocol("QUIC"))),
        Transport::Udp => (Scheme::Tcp, Some(Denial::Protocol("UDP"))),
    };
    let identity = place.speaking(scheme)?;
    let denial = denial.unwrap_or_else(|| gate.why_closed(&identity));
    let asked = Asked { identity: &identity, request: None, via: Via::Transparent };
    gate.journal().refused(Refusal::Denied(line::denied(asked, &denial))).await.ok()
}
