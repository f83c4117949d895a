//! The protocols of proxies, for clients that are told of one. A convenience, and never the wall: what
//! comes this way is judged like everything else.

mod answer;
pub mod connect;
pub mod socks;

use crate::entrance::{Entrance, reset, say_farewell};
use crate::gate::Gate;
use crate::inbound::{Inbound, Place, Protocols, read_more};
use crate::names::GATEWAY;
use crate::record::Recorder;
use crate::wall::{Asked, Via, Wall as _};
use connect::Connect;
use fumehood_model::egress::{Denial, Host, Identity, Scheme};
use socks::{Greeting, Request};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A client that has connected to a proxy knows what it wants.
const PATIENCE: Duration = Duration::from_secs(10);
const CONNECT: &[u8] = b"CONNECT ";
const VERSION_SOCKS5: u8 = 5;
const VERSION_SOCKS4: u8 = 4;

/// What a client of a proxy speaks.
enum Speech {
    Connect,
    Socks,
    Http,
    Nothing,
}

/// Serves one connection to the proxy.
pub(crate) async fn serve<R: Recorder, P: Protocols<Gate<R>>>(entrance: Entrance<R, P>, stream: TcpStream) {
    let mut first = Vec::new();
    // Otherwise it went, or stays, without a word.
    let Ok(Ok(speech)) = timeout(PATIENCE, speech(&stream, &mut first)).await else { return };
    match speech {
        Speech::Connect => Box::pin(connect(&entrance, stream, first)).await,
        Speech::Socks => Box::pin(socks(&entrance, stream, first)).await,
        Speech::Http => {
            // Each request goes somewhere else: the connection counts as one to the proxy.
            let Ok(_connection) = entrance.gate.connect(&Host::Address(IpAddr::V4(GATEWAY))) else {
                return reset(&stream);
            };
            let inbound = Inbound { stream, first, via: Via::Absolute, place: None };
            Box::pin(entrance.protocols.http(entrance.gate.clone(), inbound)).await;
        }
        Speech::Nothing => reset(&stream),
    }
}

async fn speech(stream: &TcpStream, first: &mut Vec<u8>) -> io::Result<Speech> {
    loop {
        match first.first() {
            Some(&VERSION_SOCKS5) => return Ok(Speech::Socks),
            Some(&VERSION_SOCKS4) => return Ok(Speech::Nothing),
            Some(_) if first.starts_with(CONNECT) => return Ok(Speech::Connect),
            Some(_) if !CONNECT.starts_with(first) => return Ok(Speech::Http),
            Some(_) | None => {}
        }
        if read_more(stream, first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn connect<R: Recorder, P: Protocols<Gate<R>>>(
    entrance: &Entrance<R, P>,
    mut stream: TcpStream,
    mut first: Vec<u8>,
) {
    let read = timeout(PATIENCE, async {
        loop {
            match Connect::parse(&first) {
                Connect::More => {}
                known @ (Connect::Wrong(_) | Connect::To { .. }) => return Some(known),
            }
            if read_more(&stream, &mut first).await.ok()? == 0 {
                return None;
            }
        }
    });
    let (host, port) = match read.await {
        Ok(Some(Connect::To { host, port })) => (host, port),
        Ok(Some(Connect::Wrong(why))) => {
            let denial = refuse_unread(entrance, why).await;
            let answer = answer::refusal(400, &denial, "send `CONNECT host:port` and wait for the answer");
            return say_farewell(&mut stream, &answer).await;
        }
        Ok(Some(Connect::More) | None) | Err(_) => return,
    };
    let Some(place) = meant(entrance, host, port) else { return };
    match entrance.admit(&place, Via::Connect).await {
        Err(denial) => {
            let remedy = place.speaking(place.likely()).map(|likely| denial.remedy(&likely, None));
            let answer = answer::refusal(403, &denial, &remedy.unwrap_or_default());
            say_farewell(&mut stream, &answer).await;
        }
        Ok((opening, _connection)) => {
            if stream.write_all(answer::ESTABLISHED).await.is_ok() {
                let inbound = Inbound { stream, first: Vec::new(), via: Via::Connect, place: Some(place) };
                entrance.speak(inbound, opening).await;
            }
        }
    }
}

async fn socks<R: Recorder, P: Protocols<Gate<R>>>(
    entrance: &Entrance<R, P>,
    mut stream: TcpStream,
    mut first: Vec<u8>,
) {
    let Ok(Some(request)) = timeout(PATIENCE, ask(&mut stream, &mut first)).await else { return };
    let (host, port) = match request {
        Request::To { host, port, .. } => (host, port),
        Request::Wrong(code) => {
            refuse_unread(entrance, "a SOCKS request that is not for a connection").await;
            return say_farewell(&mut stream, &socks::reply(code)).await;
        }
        Request::More => return,
    };
    let Some(place) = meant(entrance, host, port) else { return };
    match entrance.admit(&place, Via::Socks5).await {
        Err(_) => say_farewell(&mut stream, &socks::reply(socks::NOT_ALLOWED)).await,
        Ok((opening, _connection)) => {
            if stream.write_all(&socks::reply(socks::SUCCEEDED)).await.is_ok() {
                let inbound = Inbound { stream, first, via: Via::Socks5, place: Some(place) };
                entrance.speak(inbound, opening).await;
            }
        }
    }
}

/// Greets, and reads what is wanted. What was read beyond stays in `first`.
async fn ask(stream: &mut TcpStream, first: &mut Vec<u8>) -> Option<Request> {
    loop {
        match Greeting::parse(first) {
            Greeting::More => {}
            Greeting::Wrong => {
                say_farewell(stream, &socks::NO_METHOD).await;
                return None;
            }
            Greeting::Hello { length } => {
                first.drain(..length);
                stream.write_all(&socks::WELCOME).await.ok()?;
                break;
            }
        }
        if read_more(stream, first).await.ok()? == 0 {
            return None;
        }
    }
    loop {
        match Request::parse(first) {
            Request::More => {}
            Request::To { host, port, length } => {
                first.drain(..length);
                return Some(Request::To { host, port, length });
            }
            wrong @ Request::Wrong(_) => return Some(wrong),
        }
        if read_more(stream, first).await.ok()? == 0 {
            return None;
        }
    }
}

/// Who is meant: clients that resolve by themselves ask for the addresses that stand for names.
fn meant<R: Recorder, P: Protocols<Gate<R>>>(
    entrance: &Entrance<R, P>,
    host: Host,
    port: u16,
) -> Option<Place> {
    let host = match host {
        Host::Address(address) => entrance.gate.who(address).unwrap_or(Host::Address(address)),
        name @ Host::Name(_) => name,
    };
    Place::new(host, port)
}

/// Records a request to the proxy in which no place could be read.
async fn refuse_unread<R: Recorder, P: Protocols<Gate<R>>>(
    entrance: &Entrance<R, P>,
    why: &'static str,
) -> Denial {
    let denial = Denial::Malformed(why);
    let proxy = Identity::new(Scheme::Tcp, Host::Address(IpAddr::V4(GATEWAY)), connect::PROXY_PORT);
    match proxy {
        Some(identity) => {
            let asked = Asked { identity: &identity, request: None, via: Via::Connect };
            entrance.gate.refuse(asked, denial).await
        }
        None => denial,
    }
}
