//! The client inside: says a tuple, and waits until all is over.

use super::super::lab::Lab;
use super::tuple::{Claim, Request, Speech, Tuple, Way};
use super::{Door, world};
use crate::hello::tests::client_hello;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// What a program inside believes: the sandbox's authority, and that of the servers whose TLS passes unread.
pub(super) fn believing(authorities: [&[u8]; 2]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for der in authorities {
        roots.add(CertificateDer::from(der.to_vec())).unwrap();
    }
    let mut config = ClientConfig::builder_with_provider(crate::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Arc::new(config)
}

/// Longer than anything takes, on a machine that has other things to do as well.
pub(super) const LIMIT: Duration = Duration::from_secs(60);

/// Says it all; the host of the certificate that the gate showed, if it showed one.
pub(super) async fn perform(
    lab: &Lab,
    door: &Door,
    inside: &Arc<ClientConfig>,
    tuple: &Tuple,
) -> Option<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.set_nodelay(true).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let served = match &tuple.way {
        Way::Dialled { host, six } => {
            let address = host.parse::<IpAddr>().unwrap_or_else(|_| {
                let given = lab.synthetic(host);
                if *six { given.v6.into() } else { given.v4.into() }
            });
            spawn_local(door.clone().dialled(stream, SocketAddr::new(address, tuple.port)))
        }
        Way::Connect { .. } | Way::Socks { .. } | Way::Absolute => {
            spawn_local(crate::proxy::serve(door.clone(), stream))
        }
    };
    let said = timeout(LIMIT, async {
        if introduced(&mut client, tuple).await? { speak(client, inside, tuple).await } else { Some(None) }
    });
    let leaf = said.await.unwrap_or_else(|_| panic!("no end: {tuple:?}"));
    timeout(LIMIT, served).await.unwrap_or_else(|_| panic!("it is still served: {tuple:?}")).unwrap();
    leaf.flatten()
}

/// Says to a proxy where to; whether it lets the client go on.
async fn introduced(client: &mut TcpStream, tuple: &Tuple) -> Option<bool> {
    match &tuple.way {
        Way::Dialled { .. } | Way::Absolute => Some(true),
        Way::Connect { target, host } => {
            let host = host.as_ref().map(|host| format!("Host: {}\r\n", host.text)).unwrap_or_default();
            let head = format!("CONNECT {} HTTP/1.1\r\n{host}\r\n", target.text);
            client.write_all(head.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") {
                answer.push(client.read_u8().await.ok()?);
            }
            Some(answer.starts_with(b"HTTP/1.1 200"))
        }
        Way::Socks { host } => {
            let text = host.text.as_bytes();
            let mut asked = vec![5, 1, 0, 5, 1, 0, 3, u8::try_from(text.len()).ok()?];
            asked.extend(text);
            asked.extend(tuple.port.to_be_bytes());
            client.write_all(&asked).await.ok()?;
            let mut answer = [0; 12];
            client.read_exact(&mut answer).await.ok()?;
            Some(answer.get(3) == Some(&0))
        }
    }
}

async fn speak(mut client: TcpStream, inside: &Arc<ClientConfig>, tuple: &Tuple) -> Option<Option<String>> {
    match &tuple.speech {
        Speech::Hello { sni } => {
            client.write_all(&client_hello(sni.as_ref().map(|sni| sni.text.as_str()))).await.ok()?;
            client.shutdown().await.ok()?;
            ended(client).await;
        }
        Speech::Bytes => {
            client.write_all(b"\0bytes").await.ok()?;
            client.shutdown().await.ok()?;
            ended(client).await;
        }
        Speech::Clear { request } => {
            client.write_all(&request.head()).await.ok()?;
            ended(client).await;
        }
        Speech::Tls { sni, request } => return Some(tls(client, inside, sni, request).await),
    }
    Some(None)
}

async fn tls(
    client: TcpStream,
    inside: &Arc<ClientConfig>,
    sni: &'static str,
    request: &Request,
) -> Option<String> {
    let name = ServerName::try_from(sni).unwrap();
    let tls = TlsConnector::from(Arc::clone(inside)).connect(name, client).await.ok()?;
    let (_, session) = tls.get_ref();
    let leaf = hosts_of(session.peer_certificates().unwrap().first().unwrap());
    if request.http2 && session.alpn_protocol() == Some(b"h2") {
        two(tls, request).await;
    } else {
        let mut tls = tls;
        tls.write_all(&request.head()).await.ok()?;
        ended(tls).await;
    }
    Some(leaf)
}

async fn two<S: AsyncRead + AsyncWrite + Unpin + 'static>(stream: S, request: &Request) {
    let Ok((mut send, connection)) = h2::client::handshake(stream).await else { return };
    let connection = spawn_local(connection);
    let claim: &Claim = request.hosts.first().unwrap();
    let uri = http::Uri::builder()
        .scheme("https")
        .authority(claim.text.as_str())
        .path_and_query(request.path)
        .build();
    // What no client of HTTP/2 can write is sent as another authority.
    let uri = uri.unwrap_or_else(|_| http::Uri::from_static("https://evil.example.org/v1/x"));
    let mut asked = http::Request::new(());
    *asked.uri_mut() = uri;
    if let Ok((answer, _)) = send.send_request(asked, true)
        && let Ok(answer) = answer.await
    {
        let mut body = answer.into_body();
        while let Some(Ok(_)) = body.data().await {}
    }
    drop(send);
    let _ = connection.await;
}

async fn ended<S: AsyncRead + Unpin>(mut stream: S) {
    let mut rest = Vec::new();
    // A reset is an end as well.
    let _ = stream.read_to_end(&mut rest).await;
}

/// Every host that a certificate is for.
fn hosts_of(der: &CertificateDer<'_>) -> String {
    let dns = |host: &str| [&[0x82, u8::try_from(host.len()).unwrap()], host.as_bytes()].concat();
    let stands = |host: &str| {
        let needle = dns(host);
        der.as_ref().windows(needle.len()).any(|window| window == needle)
    };
    let found: Vec<_> = world::HOSTS.iter().map(|(host, _)| *host).filter(|host| stands(host)).collect();
    found.join(" and ")
}

// === impl Request ===

impl Request {
    fn head(&self) -> Vec<u8> {
        let target = match &self.absolute {
            Some((scheme, claim)) => format!("{scheme}://{}{}", claim.text, self.path),
            None => self.path.to_owned(),
        };
        let hosts: String = self.hosts.iter().map(|claim| format!("Host: {}\r\n", claim.text)).collect();
        format!("GET {target} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n").into_bytes()
    }
}
