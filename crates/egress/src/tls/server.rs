//! TLS towards the sandbox: opened with a certificate for the host that was dialled, and no other.

use super::ca::{Ca, CaError};
use crate::http::{Cut, Prefixed, limits};
use fumehood_model::egress::{Denial, Host, Identity, Name};
use rustls::AlertDescription;
use rustls::server::{ClientHello, ResolvesServerCert, ServerConfig, ServerSessionMemoryCache};
use rustls::sign::CertifiedKey;
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// Hosts whose certificates are kept. The oldest goes first.
const KEPT_LEAVES: usize = 1024;

/// Sessions of one host that a client can resume.
const KEPT_SESSIONS: usize = 32;

/// What a client may speak inside.
const SPOKEN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Opens the TLS of a sandbox.
#[derive(Clone)]
pub struct Opener(Rc<Parts>);

struct Parts {
    ca: Rc<Ca>,
    leaves: RefCell<Leaves>,
}

#[derive(Default)]
struct Leaves {
    by_host: HashMap<Host, Arc<ServerConfig>>,
    order: VecDeque<Host>,
}

/// Why TLS was not opened.
#[derive(Debug)]
pub enum NotOpened {
    Denied(Denial),
    /// The connection broke off before it came to that.
    Broken(io::Error),
    Leaf(CaError),
}

/// One certificate, whatever the client asks for: what it asked for was looked at before.
#[derive(Debug)]
struct Only(Option<Arc<CertifiedKey>>);

// === impl Opener ===

impl Opener {
    pub fn new(ca: Rc<Ca>) -> Self {
        Self(Rc::new(Parts { ca, leaves: RefCell::default() }))
    }

    /// Takes the part of the server in a handshake whose first bytes may have been read already.
    pub(crate) async fn open<S: AsyncRead + AsyncWrite + Unpin + Cut>(
        &self,
        stream: Prefixed<S>,
        identity: &Identity,
    ) -> Result<TlsStream<Prefixed<S>>, NotOpened> {
        let config = self.config(&identity.host).map_err(NotOpened::Leaf)?;
        match timeout(limits::HANDSHAKE, handshake(stream, identity, config)).await {
            Ok(opened) => opened,
            Err(_) => Err(NotOpened::Broken(io::ErrorKind::TimedOut.into())),
        }
    }

    #[cfg(test)]
    pub(super) fn config_of(&self, host: &Host) -> Arc<ServerConfig> {
        self.config(host).unwrap()
    }

    fn config(&self, host: &Host) -> Result<Arc<ServerConfig>, CaError> {
        let mut leaves = self.0.leaves.borrow_mut();
        if let Some(config) = leaves.by_host.get(host) {
            return Ok(Arc::clone(config));
        }
        let config = Arc::new(config(Only(Some(self.0.ca.leaf(host)?)))?);
        if leaves.order.len() >= KEPT_LEAVES
            && let Some(oldest) = leaves.order.pop_front()
        {
            leaves.by_host.remove(&oldest);
        }
        leaves.order.push_back(host.clone());
        leaves.by_host.insert(host.clone(), Arc::clone(&config));
        Ok(config)
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("ca", &self.0.ca).finish_non_exhaustive()
    }
}

fn config(only: Only) -> Result<ServerConfig, CaError> {
    let mut config = ServerConfig::builder_with_provider(super::provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(only));
    config.alpn_protocols = SPOKEN.map(<[u8]>::to_vec).to_vec();
    config.session_storage = ServerSessionMemoryCache::new(KEPT_SESSIONS);
    // One ticket is enough for a client that comes again.
    config.send_tls13_tickets = 1;
    Ok(config)
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
    stream: Prefixed<S>,
    identity: &Identity,
    config: Arc<ServerConfig>,
) -> Result<TlsStream<Prefixed<S>>, NotOpened> {
    let start = match LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await {
        Ok(start) => start,
        Err(error) if is_tls(&error) => {
            return Err(NotOpened::Denied(Denial::Malformed("the TLS handshake is none")));
        }
        Err(error) => return Err(NotOpened::Broken(error)),
    };
    if let Err(denial) = judge(&start.client_hello(), identity) {
        // Without a certificate the handshake ends in an alert, which is more than a closed connection.
        if let Ok(refusing) = self::config(Only(None)) {
            let _ = start.into_stream(Arc::new(refusing)).await;
        }
        return Err(NotOpened::Denied(denial));
    }
    start
        .into_stream(config)
        .await
        .map_err(|error| not_believed(&error).map_or(NotOpened::Broken(error), NotOpened::Denied))
}

/// Whether a handshake is for the place that was dialled, and leads to something that we can read.
fn judge(hello: &ClientHello<'_>, identity: &Identity) -> Result<(), Denial> {
    match (hello.server_name(), &identity.host) {
        (Some(name), Host::Name(own)) if Name::parse(name).is_ok_and(|name| name == *own) => {}
        (Some(name), Host::Name(_) | Host::Address(_)) => return Err(Denial::OtherName(name.to_owned())),
        (None, Host::Name(_)) => return Err(Denial::NoServerName),
        (None, Host::Address(_)) => {}
    }
    let Some(offers) = hello.alpn() else { return Ok(()) };
    let mut other = None;
    for offer in offers {
        if SPOKEN.contains(&offer) {
            return Ok(());
        }
        other.get_or_insert(String::from_utf8_lossy(offer).into_owned());
    }
    Err(Denial::Upgrade(other.unwrap_or_default()))
}

/// What the end of a handshake says about the client's trust; `None` where it says nothing of it.
pub(crate) fn not_believed(error: &io::Error) -> Option<Denial> {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let gone = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    match cause {
        Some(rustls::Error::AlertReceived(alert)) if is_about_trust(*alert) => Some(Denial::NotOpened),
        Some(_) => Some(Denial::Malformed("the TLS handshake failed")),
        // Many clients that do not believe a certificate just leave.
        None if gone.contains(&error.kind()) => Some(Denial::NotOpened),
        None => None,
    }
}

fn is_about_trust(alert: AlertDescription) -> bool {
    [
        AlertDescription::UnknownCA,
        AlertDescription::BadCertificate,
        AlertDescription::CertificateUnknown,
        AlertDescription::UnsupportedCertificate,
        AlertDescription::CertificateExpired,
        AlertDescription::CertificateRevoked,
        AlertDescription::AccessDenied,
        AlertDescription::CloseNotify,
        AlertDescription::UserCanceled,
    ]
    .contains(&alert)
}

fn is_tls(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|cause| cause.is::<rustls::Error>())
}

// === impl Only ===

impl ResolvesServerCert for Only {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }
}
