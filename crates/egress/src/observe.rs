//! What the kernel refused without asking, so that it stands in the record all the same.

use crate::gate::Gate;
use crate::inbound::Place;
use crate::line;
use crate::record::Recorder;
use crate::sockets::{Attempt, Observer, Transport};
use crate::wall::{Asked, Via};
use fumehood_model::egress::{Denial, Host, Scheme};
use std::fs::File;
use std::io::{self, Read as _};
use tokio::io::unix::AsyncFd;

/// More than the observer gives of one packet.
const PACKET_BYTES: usize = 256;
/// HTTP/3 comes this way, and its clients fall back.
const QUIC_PORT: u16 = 443;

/// Records attempts until the record fails.
pub(crate) async fn observe<R: Recorder>(gate: Gate<R>, observer: Observer) -> io::Result<()> {
    let socket = AsyncFd::register(File::from(observer.socket))?;
    let mut buffer = [0; PACKET_BYTES];
    loop {
        let mut ready = socket.readable().await?;
        let count = match ready.try_io(|socket| socket.get_ref().read(&mut buffer)) {
            Ok(Ok(count)) => count,
            // The link goes down when the sandbox ends.
            Ok(Err(error)) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            Ok(Err(_)) | Err(_) => continue,
        };
        drop(ready);
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
    gate.journal().refused(line::denied(asked, &denial)).await.ok()
}
