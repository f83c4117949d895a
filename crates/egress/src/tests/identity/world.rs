//! The world behind the gate: servers that note who was asked for.

use super::super::lab::World;
use crate::hello::Hello;
use crate::tls::Ca;
use fumehood_model::egress::Host;
use rustls::ServerConfig;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

pub(super) const RULES: &[&str] = &[
    "https://api.example.com/v1/** with bearer:API",
    "https://api.example.com:8443/** with bearer:PORT",
    "https://two.example.com/** with header:X-Key:TWO",
    "https://*.wild.example.com/** with bearer:WILD",
    "https://free.example.com/**",
    "pass.example.com",
    "http://plain.example.com",
    "http://plain.example.com:8080",
    "http://api.example.com",
    "tcp.example.com:7000",
    "http://203.0.113.8",
];

pub(super) const SECRETS: &[(&str, &str)] = &[
    ("API", "value-of-api-0123456789"),
    ("PORT", "value-of-port-0123456789"),
    ("TWO", "value-of-two-0123456789"),
    ("WILD", "value-of-wild-0123456789"),
];

/// Every host there is, each at an address of its own. The last is in no rule.
pub(super) const HOSTS: &[(&str, &str)] = &[
    ("api.example.com", "203.0.113.1"),
    ("two.example.com", "203.0.113.2"),
    ("x.wild.example.com", "203.0.113.3"),
    ("y.wild.example.com", "203.0.113.4"),
    ("free.example.com", "203.0.113.5"),
    ("pass.example.com", "203.0.113.6"),
    ("plain.example.com", "203.0.113.7"),
    ("203.0.113.8", "203.0.113.8"),
    ("tcp.example.com", "203.0.113.9"),
    ("wild.example.com", "203.0.113.10"),
    ("evil.example.org", "203.0.113.66"),
];
pub(super) const PORTS: &[u16] = &[443, 80, 8443, 8080, 7000];

/// What a server saw of one connection or request.
#[derive(Clone, Debug)]
pub(super) struct Fact {
    pub(super) address: String,
    pub(super) port: u16,
    pub(super) sni: Option<String>,
    pub(super) host: Option<String>,
    /// Which of the secrets' values came with it, and in its own field.
    pub(super) value: Option<String>,
}

/// The servers' authority.
#[derive(Debug)]
pub(super) struct Outside {
    ca: Ca,
    file: tempfile::NamedTempFile,
    configs: RefCell<HashMap<String, Arc<ServerConfig>>>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Servers(Rc<RefCell<Vec<Fact>>>);

/// The address of a host.
pub(super) fn address(host: &str) -> &'static str {
    HOSTS.iter().find(|(own, _)| *own == host).unwrap().1
}

/// Name and value of the secret that is bound to a place.
pub(super) fn secret(host: &str, port: u16) -> Option<(&'static str, &'static str)> {
    let name = match (host, port) {
        ("api.example.com", 443) => "API",
        ("api.example.com", 8443) => "PORT",
        ("two.example.com", 443) => "TWO",
        ("x.wild.example.com" | "y.wild.example.com", 443) => "WILD",
        _ => return None,
    };
    SECRETS.iter().find(|(own, _)| *own == name).copied()
}

// === impl Outside ===

impl Outside {
    pub(super) fn new() -> Self {
        let ca = Ca::make("outside", SystemTime::now()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), ca.pem()).unwrap();
        Self { ca, file, configs: RefCell::default() }
    }

    pub(super) fn der(&self) -> &[u8] {
        self.ca.der()
    }

    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// A certificate for one host alone, whatever is asked for.
    fn config(&self, host: &str) -> Arc<ServerConfig> {
        let mut configs = self.configs.borrow_mut();
        let made = configs.entry(host.to_owned()).or_insert_with(|| {
            let key = self.ca.leaf(&Host::parse(host).unwrap()).unwrap();
            let config = ServerConfig::builder_with_provider(crate::tls::provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from((*key).clone())));
            Arc::new(config)
        });
        Arc::clone(made)
    }
}

// === impl Servers ===

impl Servers {
    /// All hosts on all ports.
    pub(super) async fn start(world: &World, outside: &Rc<Outside>) -> Self {
        let servers = Self::default();
        for (host, address) in HOSTS {
            if host != address {
                world.name(host, &[address]);
            }
            for port in PORTS {
                let (own, outside) = (servers.clone(), Rc::clone(outside));
                let place =
                    Fact { address: (*address).to_owned(), port: *port, sni: None, host: None, value: None };
                world
                    .server(&format!("{address}:{port}"), move |stream| {
                        let (own, outside, place) = (own.clone(), Rc::clone(&outside), place.clone());
                        async move { own.serve(stream, &outside, host, place).await }
                    })
                    .await;
            }
        }
        servers
    }

    /// What was seen since this was last asked.
    pub(super) fn take(&self) -> Vec<Fact> {
        self.0.take()
    }

    async fn serve(self, mut stream: TcpStream, outside: &Outside, host: &str, mut place: Fact) {
        let mut first = [0; 8192];
        let Ok(count) = stream.peek(&mut first).await else { return };
        if first.first() != Some(&22) || count == 0 {
            if first.starts_with(b"GET ") {
                return self.requests(stream, place).await;
            }
            self.note(place);
            let _ = stream.read(&mut first).await;
            let _ = stream.write_all(b"bytes").await;
            return;
        }
        let hello = loop {
            let Ok(count) = stream.peek(&mut first).await else { return };
            match Hello::read(first.get(..count).unwrap_or_default()) {
                Hello::Whole(hello) => break hello,
                Hello::Incomplete => tokio::task::yield_now().await,
                Hello::NotTls | Hello::Malformed(_) => return,
            }
        };
        place.sni = hello.server_name.clone();
        if is_made_up(&first) {
            // Passed unread: the client is none that would go on.
            self.note(place);
            let _ = stream.read(&mut first).await;
            let _ = stream.write_all(&[21, 3, 3, 0, 2, 2, 40]).await;
            return;
        }
        if let Ok(stream) = TlsAcceptor::from(outside.config(host)).accept(stream).await {
            self.requests(stream, place).await;
        }
    }

    async fn requests<S: AsyncRead + AsyncWrite + Unpin>(self, mut stream: S, place: Fact) {
        loop {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                if !stream.read_buf(&mut head).await.is_ok_and(|count| count > 0) {
                    return;
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            let field = |name: &str| {
                let fields = head.split("\r\n").filter_map(|line| line.split_once(": "));
                fields.filter(|(own, _)| *own == name).map(|(_, value)| value.to_owned()).collect::<Vec<_>>()
            };
            let (hosts, bearers, keys) = (field("host"), field("authorization"), field("x-key"));
            let bearers = bearers.iter().filter_map(|value| value.strip_prefix("Bearer value-of-"));
            let keys = keys.iter().filter_map(|value| value.strip_prefix("value-of-"));
            let values: Vec<_> = bearers.chain(keys).map(|rest| format!("value-of-{rest}")).collect();
            assert!(values.len() <= 1 && head.matches("value-of-").count() == values.len(), "{head}");
            self.note(Fact {
                host: Some(hosts.join(" and ")),
                value: values.into_iter().next(),
                ..place.clone()
            });
            if stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi").await.is_err() {
                return;
            }
            let _ = stream.flush().await;
            if head.contains("Connection: close\r\n") {
                let _ = stream.shutdown().await;
                return;
            }
        }
    }

    fn note(&self, fact: Fact) {
        self.0.borrow_mut().push(fact);
    }
}

/// Those of `hello::tests` are no beginning of a real handshake: their randomness is none.
fn is_made_up(bytes: &[u8]) -> bool {
    bytes.get(11..43) == Some(&[7; 32])
}
