//! The clients: each connection a thread.

use super::{BLOCK_BYTES, BYTES_PORT, HOST};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// How the server is reached, and by whom it is certified.
#[derive(Clone)]
pub(super) struct To {
    config: Arc<ClientConfig>,
    proxy: Option<String>,
}

// === impl To ===

impl To {
    pub(super) fn new(ca: &Path, proxy: Option<String>) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca).expect("the authority") {
            roots.add(certificate.expect("a certificate")).expect("a certificate");
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Self { config: Arc::new(config), proxy }
    }

    fn connect(&self) -> Tls {
        let stream = match &self.proxy {
            None => TcpStream::connect((HOST, 443)).expect("a connection"),
            Some(proxy) => {
                let mut stream = TcpStream::connect(proxy).expect("a connection to the proxy");
                write!(stream, "CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n")
                    .expect("a question");
                let mut answer = Vec::new();
                while !answer.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).expect("an answer of the proxy");
                    answer.push(byte[0]);
                }
                assert!(answer.starts_with(b"HTTP/1.1 200") || answer.starts_with(b"HTTP/1.0 200"));
                stream
            }
        };
        stream.set_nodelay(true).expect("no delay");
        let name = ServerName::try_from(HOST).expect("a name");
        StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), name).expect("a client"), stream)
    }
}

/// Requests for some time, on so many connections.
pub(super) fn get(to: &To, connections: u64, lasting: Duration) {
    let mut times = Vec::new();
    let started = Instant::now();
    let workers = (0..connections).map(|_| {
        let to = to.clone();
        thread::spawn(move || {
            let mut tls = to.connect();
            // What connecting takes is another matter.
            ask(&mut tls);
            let (started, mut times) = (Instant::now(), Vec::new());
            while started.elapsed() < lasting {
                let before = Instant::now();
                ask(&mut tls);
                times.push(before.elapsed());
            }
            (times, started.elapsed())
        })
    });
    let workers = workers.collect::<Vec<_>>();
    let mut each_second = 0.0;
    for worker in workers {
        let (own, took) = worker.join().expect("a worker");
        #[expect(clippy::cast_precision_loss, reason = "some thousands")]
        let own_each_second = own.len() as f64 / took.as_secs_f64();
        each_second += own_each_second;
        times.extend(own);
    }
    times.sort_unstable();
    let at =
        |part: usize| times.get(times.len() * part / 100).copied().unwrap_or_default().as_secs_f64() * 1e3;
    println!(
        "{{\"requests\":{},\"per_second\":{each_second:.0},\"p50_ms\":{:.3},\"p90_ms\":{:.3},\"seconds\":{:.2}}}",
        times.len(),
        at(50),
        at(90),
        started.elapsed().as_secs_f64()
    );
}

/// One long answer over TLS.
pub(super) fn stream(to: &To, bytes: u64, pause: Duration) {
    let mut tls = to.connect();
    ask(&mut tls);
    let started = Instant::now();
    write!(tls, "GET /stream/{bytes} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").expect("a question");
    let body = head(&mut tls);
    drain(&mut tls, bytes - u64::try_from(body).unwrap_or_default(), pause);
    tell(bytes, started);
}

/// Bytes without TLS.
pub(super) fn bytes(bytes: u64) {
    let mut stream = TcpStream::connect((HOST, BYTES_PORT)).expect("a connection");
    let started = Instant::now();
    stream.write_all(&bytes.to_be_bytes()).expect("a question");
    drain(&mut stream, bytes, Duration::ZERO);
    tell(bytes, started);
}

/// Connections that do nothing.
pub(super) fn hold(to: &To, connections: u64) {
    let held: Vec<Tls> = (0..connections)
        .map(|_| {
            let mut tls = to.connect();
            ask(&mut tls);
            tls
        })
        .collect();
    println!("{{\"held\":{}}}", held.len());
    io::copy(&mut io::stdin(), &mut io::sink()).expect("standard input");
}

fn ask(tls: &mut Tls) {
    tls.write_all(b"GET /v1/items HTTP/1.1\r\nHost: api.example.com\r\nAccept: */*\r\n\r\n")
        .expect("a question");
    let mut body = head(tls);
    let mut rest = [0; 64];
    while body < 27 {
        let read = tls.read(&mut rest).expect("an answer");
        assert!(read > 0, "the answer ends in the middle");
        body += read;
    }
}

/// Reads a head that ends well, and says how much of the body came with it.
fn head(tls: &mut Tls) -> usize {
    let (mut head, mut length) = (vec![0; 4096], 0);
    loop {
        let read = tls.read(&mut head[length..]).expect("an answer");
        assert!(read > 0, "the answer ends in the middle");
        length += read;
        if let Some(end) = head[..length].windows(4).position(|four| four == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&head[..length]);
            assert!(text.starts_with("HTTP/1.1 200"), "{text}");
            return length - end - 4;
        }
    }
}

fn drain(stream: &mut impl Read, bytes: u64, pause: Duration) {
    let mut block = vec![0; BLOCK_BYTES];
    let mut left = bytes;
    while left > 0 {
        let read = stream.read(&mut block).expect("bytes");
        assert!(read > 0, "the bytes end in the middle");
        left -= u64::try_from(read).unwrap_or(left);
        if !pause.is_zero() {
            thread::sleep(pause);
        }
    }
}

fn tell(bytes: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let rate = bytes as f64 / seconds / 1e9;
    println!("{{\"bytes\":{bytes},\"seconds\":{seconds:.3},\"gb_per_s\":{rate:.3}}}");
}
