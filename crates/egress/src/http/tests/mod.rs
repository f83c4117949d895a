//! The HTTP side from end to end: a client on one end, a server on the other, and a wall in between
//! that judges by real rules and keeps its record in memory.

mod http1;
mod malformed;
mod opened;
mod secrets;

use super::*;
use crate::wall::{Asked, Cleared, DialError, Dialled, End};
use fumehood_model::egress::{Ask as Question, Denial, Egress, Host, Identity, Reach, Rule, Table};
use rustls::ServerConfig;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// A wall with real rules and one server behind it.
#[derive(Clone)]
pub(super) struct Fake(Rc<FakeParts>);

struct FakeParts {
    table: Table,
    server: SocketAddr,
    record: RefCell<Vec<String>>,
    dialled: Cell<usize>,
    most_out: Cell<u64>,
    out: Cell<u64>,
}

impl Fake {
    pub(super) fn new(rules: &[&str], server: SocketAddr) -> Self {
        let rules = rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect();
        let egress = Egress {
            reach: Reach::Rules,
            rules,
            ranges: Vec::new(),
            resolutions: Vec::new(),
            ceilings: Vec::new(),
            upstream: None,
            authorities: Vec::new(),
        };
        Self(Rc::new(FakeParts {
            table: Table::new(egress),
            server,
            record: RefCell::default(),
            dialled: Cell::new(0),
            most_out: Cell::new(u64::MAX),
            out: Cell::new(0),
        }))
    }

    pub(super) fn record(&self) -> Vec<String> {
        self.0.record.borrow().clone()
    }

    /// The record, once it has so many lines.
    pub(super) async fn lines(&self, count: usize) -> Vec<String> {
        while self.0.record.borrow().len() < count {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        self.record()
    }

    pub(super) fn dialled(&self) -> usize {
        self.0.dialled.get()
    }

    pub(super) fn limit_out(&self, bytes: u64) {
        self.0.most_out.set(bytes);
    }

    fn write(&self, line: String) {
        self.0.record.borrow_mut().push(line);
    }
}

fn shown(asked: Asked<'_>) -> String {
    match asked.request {
        Some(request) => format!("{} {}{}", request.method, asked.identity, request.path.sent()),
        None => asked.identity.to_string(),
    }
}

impl Wall for Fake {
    async fn clear(&self, asked: Asked<'_>) -> Result<Cleared, Denial> {
        let question = Question { identity: asked.identity, request: asked.request };
        match self.0.table.decide(question) {
            Ok(permit) => {
                self.write(format!("allow {}", shown(asked)));
                let binding = permit.binding().cloned();
                Ok(Cleared {
                    id: 1,
                    identity: asked.identity.clone(),
                    binding,
                    lease: crate::wall::Lease::default(),
                })
            }
            Err(denial) => {
                self.write(format!("deny {} {}", shown(asked), denial.code()));
                Err(denial)
            }
        }
    }

    async fn refuse(&self, asked: Asked<'_>, denial: Denial) -> Denial {
        self.write(format!("refuse {} {}", shown(asked), denial.code()));
        denial
    }

    async fn dial(&self, _: &Cleared) -> Result<Dialled, DialError> {
        self.0.dialled.set(self.0.dialled.get() + 1);
        let stream = TcpStream::connect(self.0.server).await.map_err(DialError::Unreachable)?;
        Ok(Dialled { stream, address: Some(self.0.server.ip()) })
    }

    fn count(&self, _: &Cleared, bytes_out: u64, _: u64) -> Result<(), Denial> {
        self.0.out.set(self.0.out.get() + bytes_out);
        if self.0.out.get() > self.0.most_out.get() {
            let of = fumehood_model::egress::Counted::BytesOut;
            return Err(Denial::Ceiling { of, most: self.0.most_out.get() });
        }
        Ok(())
    }

    fn gives_secrets(&self, host: &Host) -> bool {
        self.0.table.gives_secrets(host)
    }

    async fn end(&self, _: Cleared, end: End) {
        let fault = end.fault.as_deref().unwrap_or("-");
        let masked: String = end.masked.iter().map(|name| format!(" masked {name}")).collect();
        self.write(format!("end {} {fault}{masked}", end.status.unwrap_or(0)));
    }
}

/// Runs a test on one thread, with a deadline.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, async {
        tokio::time::timeout(std::time::Duration::from_secs(60), test).await.expect("the test hangs")
    })
}

pub(super) type Script = Vec<(&'static str, &'static str)>;

/// What a scripted server does with each connection: reads until its input holds `until`, then
/// writes `say`, as often as given; then closes.
pub(super) async fn server(script: Script) -> (SocketAddr, Rc<RefCell<Vec<u8>>>) {
    server_of(script, None).await
}

/// The same, over TLS where a configuration is given.
pub(super) async fn server_of(
    script: Script,
    tls: Option<Arc<ServerConfig>>,
) -> (SocketAddr, Rc<RefCell<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&seen);
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, all, tls) = (script.clone(), Rc::clone(&all), tls.clone());
            tokio::task::spawn_local(async move {
                match tls {
                    None => play(stream, script, all).await,
                    Some(tls) => {
                        if let Ok(stream) = TlsAcceptor::from(tls).accept(stream).await {
                            play(stream, script, all).await;
                        }
                    }
                }
            });
        }
    });
    (address, seen)
}

async fn play<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, script: Script, all: Rc<RefCell<Vec<u8>>>) {
    for (until, say) in script {
        let mut got = Vec::new();
        while !String::from_utf8_lossy(&got).contains(until) {
            let mut byte = [0; 1];
            match stream.read(&mut byte).await {
                Ok(1) => got.push(byte[0]),
                _ => return,
            }
            all.borrow_mut().push(byte[0]);
        }
        if stream.write_all(say.as_bytes()).await.is_err() || stream.flush().await.is_err() {
            return;
        }
    }
    let _ = stream.shutdown().await;
}

/// A client's end of a connection that is served.
pub(super) async fn client(wall: &Fake, place: Addressing) -> TcpStream {
    let forward = Forward::new(wall.clone(), Rc::default(), Rc::default());
    client_of(&forward, place).await
}

pub(super) async fn client_of(forward: &Forward<Fake>, place: Addressing) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (inside, _) = listener.accept().await.unwrap();
    let forward = forward.clone();
    tokio::task::spawn_local(async move {
        forward.serve(inside, Bytes::new(), &place, Via::Transparent).await;
    });
    stream
}

pub(super) fn place(url: &str) -> Addressing {
    Addressing::Fixed(identity(url))
}

pub(super) fn identity(url: &str) -> Identity {
    use fumehood_model::egress::Scheme;
    let (scheme, authority) = url.split_once("://").unwrap();
    let scheme = if scheme == "https" { Scheme::Https } else { Scheme::Http };
    Identity::from_authority(scheme, authority).unwrap()
}

/// Sends, and reads one answer.
pub(super) async fn talk<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, say: &[u8]) -> String {
    stream.write_all(say).await.unwrap();
    stream.flush().await.unwrap();
    listen(stream, 10_000, is_whole).await
}

/// Sends, and reads until the other side closes or falls silent.
pub(super) async fn talk_all<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, say: &[u8]) -> String {
    stream.write_all(say).await.unwrap();
    stream.flush().await.unwrap();
    listen(stream, 1_000, |_| false).await
}

async fn listen<S: AsyncRead + Unpin>(
    stream: &mut S,
    silence_millis: u64,
    is_enough: impl Fn(&str) -> bool,
) -> String {
    let mut got = Vec::new();
    loop {
        // The first may take a while on a busy machine; after it, silence is an end.
        let patience = std::time::Duration::from_millis(if got.is_empty() { 15_000 } else { silence_millis });
        let read = tokio::time::timeout(patience, stream.read_buf(&mut got)).await;
        let text = String::from_utf8_lossy(&got).into_owned();
        if !matches!(read, Ok(Ok(1..))) || is_enough(&text) {
            return text;
        }
    }
}

/// Whether an answer is there that says itself how long it is.
fn is_whole(text: &str) -> bool {
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next());
    match length.and_then(|length| length.parse::<usize>().ok()) {
        Some(length) => body.len() >= length,
        None => head.starts_with("HTTP/1.1 100 ") || body.ends_with("0\r\n\r\n"),
    }
}
