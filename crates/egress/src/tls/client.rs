//! TLS towards a server: its certificate has to be for the identity's host, by an authority that the
//! host of the sandbox believes, or by one that the envelope names for it.

use crate::http::limits;
use fumehood_model::egress::{Authority, Host, Identity};
use rustls::client::{ClientConfig, ResolvesClientCert, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore, SignatureScheme};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Which certificates are believed of servers. The host's authorities are read once, when first needed.
#[derive(Debug)]
pub struct Servers {
    authorities: Vec<Authority>,
    system: OnceCell<Result<RootCertStore, String>>,
    configs: RefCell<HashMap<Case, Arc<ClientConfig>>>,
    asked: Arc<Asked>,
}

/// Which of the authorities count for a host, and whether HTTP/2 is offered.
type Case = (Vec<usize>, Offer);

/// What a client of ours can speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Offer {
    Http1,
    Http1And2,
}

/// A connection to a server that has shown who it is.
#[derive(Debug)]
pub(crate) struct Certified {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) http2: bool,
    /// The server asked for a certificate and got none. It may end the connection for it later.
    pub(crate) asked_for_certificate: bool,
}

/// Why a server is not believed.
#[derive(Debug)]
pub enum TlsFault {
    /// The host's own authorities, or the file of one, can not be read.
    Authorities(String),
    /// The certificate.
    Certificate(rustls::Error),
    /// The server refused without a certificate of ours.
    ClientCertificate,
    Slow,
    Failed(std::io::Error),
}

/// Counts how often servers asked for a certificate. It has none to give.
#[derive(Debug, Default)]
struct Asked(AtomicU64);

// === impl Servers ===

impl Servers {
    pub fn new(authorities: Vec<Authority>) -> Self {
        Self { authorities, system: OnceCell::new(), configs: RefCell::default(), asked: Arc::default() }
    }

    /// Reads the host's authorities now, for a process that is about to lose sight of its files.
    pub fn read_ahead(&self, offer: Offer) -> Result<(), TlsFault> {
        self.system()?;
        for place in 0..self.authorities.len() {
            self.config(vec![place], offer)?;
        }
        Ok(())
    }

    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        identity: &Identity,
        offer: Offer,
    ) -> Result<Certified, TlsFault> {
        let own = self.authorities.iter().enumerate();
        let own = own.filter(|(_, authority)| authority.hosts.matches(&identity.host));
        let config = self.config(own.map(|(place, _)| place).collect(), offer)?;
        let name = server_name(&identity.host)?;
        let mut asked_for_certificate = false;
        let mut handshake = pin!(TlsConnector::from(config).connect(name, stream));
        // Everything is on one thread: what is counted while this handshake is polled is its own.
        let handshake = poll_fn(|cx| {
            let before = self.asked.0.load(Ordering::Relaxed);
            let polled = handshake.as_mut().poll(cx);
            asked_for_certificate |= self.asked.0.load(Ordering::Relaxed) != before;
            polled
        });
        let stream = match timeout(limits::HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(fault(error, asked_for_certificate)),
            Err(_) => return Err(TlsFault::Slow),
        };
        let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Certified { stream, http2, asked_for_certificate })
    }

    fn system(&self) -> Result<&RootCertStore, TlsFault> {
        let read = self.system.get_or_init(|| {
            let found = rustls_native_certs::load_native_certs();
            let mut store = RootCertStore::empty();
            store.add_parsable_certificates(found.certs);
            if store.is_empty() {
                let why = found.errors.first().map_or("none is installed".to_owned(), ToString::to_string);
                return Err(why);
            }
            Ok(store)
        });
        read.as_ref().map_err(|why| TlsFault::Authorities(why.clone()))
    }

    fn config(&self, own: Vec<usize>, offer: Offer) -> Result<Arc<ClientConfig>, TlsFault> {
        let key = (own, offer);
        if let Some(config) = self.configs.borrow().get(&key) {
            return Ok(Arc::clone(config));
        }
        let mut roots = RootCertStore::empty();
        for authority in key.0.iter().filter_map(|place| self.authorities.get(*place)) {
            add_file(&mut roots, authority)?;
        }
        match self.system() {
            Ok(system) => roots.extend(system.roots.iter().cloned()),
            // A host without authorities of its own can still name one for a server.
            Err(fault) if roots.is_empty() => return Err(fault),
            Err(_) => {}
        }
        let failed = |why: String| TlsFault::Authorities(why);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), super::provider())
            .build()
            .map_err(|error| failed(error.to_string()))?;
        let mut config = ClientConfig::builder_with_provider(super::provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.to_string()))?
            .with_webpki_verifier(verifier)
            .with_client_cert_resolver(Arc::clone(&self.asked) as Arc<dyn ResolvesClientCert>);
        config.alpn_protocols = match offer {
            Offer::Http1 => vec![b"http/1.1".to_vec()],
            Offer::Http1And2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        let config = Arc::new(config);
        self.configs.borrow_mut().insert(key, Arc::clone(&config));
        Ok(config)
    }
}

fn add_file(roots: &mut RootCertStore, authority: &Authority) -> Result<(), TlsFault> {
    let file = authority.file.display();
    let failed = |why: &dyn fmt::Display| TlsFault::Authorities(format!("`{file}`: {why}"));
    let certificates = CertificateDer::pem_file_iter(&authority.file).map_err(|error| failed(&error))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| failed(&error))?;
        roots.add(certificate).map_err(|error| failed(&error))?;
    }
    if roots.is_empty() { Err(failed(&"there is no certificate in it")) } else { Ok(()) }
}

fn server_name(host: &Host) -> Result<ServerName<'static>, TlsFault> {
    match host {
        Host::Name(name) => ServerName::try_from(name.as_str().to_owned())
            .map_err(|error| TlsFault::Failed(std::io::Error::other(error))),
        Host::Address(address) => Ok(ServerName::IpAddress((*address).into())),
    }
}

/// What a failed handshake means.
fn fault(error: std::io::Error, asked: bool) -> TlsFault {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(cause @ rustls::Error::InvalidCertificate(_)) => TlsFault::Certificate(cause.clone()),
        Some(rustls::Error::AlertReceived(_)) if asked => TlsFault::ClientCertificate,
        Some(_) | None => TlsFault::Failed(error),
    }
}

// === impl TlsFault ===

impl TlsFault {
    pub(crate) const fn remedy(&self) -> &'static str {
        match self {
            Self::Authorities(_) => "install the host's certificate authorities (`ca-certificates`)",
            Self::Certificate(_) => {
                "the server needs a certificate that this host believes; `--net-ca HOST=FILE` names a further authority"
            }
            Self::ClientCertificate => {
                "a rule without method, path and secret lets the client show its own certificate"
            }
            Self::Slow | Self::Failed(_) => "look whether the server speaks TLS on this port",
        }
    }
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Authorities(why) => write!(f, "the certificate authorities can not be read: {why}"),
            Self::Certificate(rustls::Error::InvalidCertificate(why)) => {
                write!(f, "the server's certificate is not believed: {}", reason(why))
            }
            Self::Certificate(why) => write!(f, "the server's certificate is not believed: {why}"),
            Self::ClientCertificate => {
                f.write_str("the server asks for a certificate of the client, and this wall has none")
            }
            Self::Slow => f.write_str("the TLS handshake took too long"),
            Self::Failed(error) => write!(f, "the TLS handshake failed: {error}"),
        }
    }
}

impl std::error::Error for TlsFault {}

/// The flaw of a certificate, in words that say what to look at.
fn reason(flaw: &CertificateError) -> String {
    if *flaw == CertificateError::UnknownIssuer {
        return "its issuer is not known on this host".to_owned();
    }
    flaw.to_string()
}

// === impl Asked ===

impl ResolvesClientCert for Asked {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Said so that servers' questions come here at all.
    fn has_certs(&self) -> bool {
        true
    }
}
