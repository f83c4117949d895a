//! TLS that is opened: HTTP/1 and HTTP/2 inside of it, with servers that speak either.

use super::*;
use crate::tls::{Ca, Opener};
use fumehood_model::egress::Authority;
use http::{HeaderMap, Method, Request, Response};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore};
use std::process::Command;
use std::time::SystemTime;
use tokio_rustls::TlsConnector;

const HOST: &str = "api.example.com";
const RULE: &str = "GET,POST https://api.example.com/v1/**";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// A sandbox's wall with TLS on both sides: the sandbox's authority, and the servers' own.
pub(super) struct Stand {
    forward: Forward<Fake>,
    pub(super) wall: Fake,
    inside: Rc<Ca>,
    opener: Opener,
}

/// The servers' authority, and the file that the wall knows it by.
pub(super) struct Outside {
    ca: Ca,
    file: tempfile::NamedTempFile,
}

impl Outside {
    pub(super) fn new() -> Self {
        let ca = Ca::make("outside", SystemTime::now()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), ca.pem()).unwrap();
        Self { ca, file }
    }

    pub(super) fn config(&self, host: &str, speaks: &[&str]) -> Arc<ServerConfig> {
        let key = self.ca.leaf(&Host::parse(host).unwrap()).unwrap();
        let mut config = ServerConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from((*key).clone())));
        config.alpn_protocols = speaks.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    pub(super) fn authority(&self) -> Authority {
        Authority::parse(&format!("{HOST}={}", self.file.path().display())).unwrap()
    }
}

impl Stand {
    pub(super) fn new(server: SocketAddr, authorities: Vec<Authority>) -> Self {
        Self::with(&[RULE], server, authorities, Rc::default())
    }

    pub(super) fn with(
        rules: &[&str],
        server: SocketAddr,
        authorities: Vec<Authority>,
        secrets: Rc<Secrets>,
    ) -> Self {
        let wall = Fake::new(rules, server);
        let inside = Rc::new(Ca::make("test", SystemTime::now()).unwrap());
        let forward = Forward::new(wall.clone(), Rc::new(Servers::read(&authorities).unwrap()), secrets);
        Self { forward, wall, opener: Opener::new(Rc::clone(&inside)), inside }
    }

    /// A port on which every connection is one to the host, as if it had been dialled.
    async fn port(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (forward, opener) = (self.forward.clone(), self.opener.clone());
        tokio::task::spawn_local(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (forward, opener) = (forward.clone(), opener.clone());
                tokio::task::spawn_local(async move {
                    let identity = identity("https://api.example.com");
                    forward.serve_tls(&opener, (stream, Bytes::new()), identity, Via::Transparent).await;
                });
            }
        });
        address
    }

    pub(super) async fn client(&self, speaks: &[&str]) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(self.inside.der().to_vec())).unwrap();
        self.client_with(roots, HOST, speaks).await.unwrap()
    }

    async fn client_with(
        &self,
        roots: RootCertStore,
        name: &'static str,
        speaks: &[&str],
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let mut config = ClientConfig::builder_with_provider(crate::tls::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = speaks.iter().map(|name| name.as_bytes().to_vec()).collect();
        let stream = TcpStream::connect(self.port().await).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(name).unwrap(), stream).await
    }

    pub(super) async fn http2(&self) -> h2::client::SendRequest<Bytes> {
        let tls = self.client(&["h2"]).await;
        assert_eq!(tls.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let (send, connection) = h2::client::handshake(tls).await.unwrap();
        tokio::task::spawn_local(connection);
        send
    }
}

/// A server of HTTP/2 that sends back what it gets, then trailers.
async fn echo(tls: Arc<ServerConfig>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::task::spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::task::spawn_local(async move {
                let stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    tokio::task::spawn_local(async move {
                        let mut response = Response::new(());
                        response.headers_mut().insert("x-path", request.uri().path().parse().unwrap());
                        let mut body = request.into_body();
                        let mut send = respond.send_response(response, false).unwrap();
                        while let Some(Ok(data)) = body.data().await {
                            let _ = body.flow_control().release_capacity(data.len());
                            if data.starts_with(b"reset") {
                                return send.send_reset(h2::Reason::INTERNAL_ERROR);
                            }
                            send.send_data(data, false).unwrap();
                        }
                        let mut trailers = HeaderMap::new();
                        trailers.insert("grpc-status", "0".parse().unwrap());
                        send.send_trailers(trailers).unwrap();
                    });
                }
            });
        }
    });
    address
}

fn request(method: Method, uri: &str) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri.parse().unwrap();
    request
}

#[test]
fn an_opened_connection_is_judged_by_request() {
    run(async {
        let outside = Outside::new();
        let (address, seen) =
            server_of(vec![("\r\n\r\n", OK), ("\r\n\r\n", OK)], Some(outside.config(HOST, &[]))).await;
        let stand = Stand::new(address, vec![outside.authority()]);
        let mut client = stand.client(&["http/1.1"]).await;
        for (path, status) in [("/v1/a", "200"), ("/v2", "403"), ("/v1/b", "200")] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
            let answer = talk(&mut client, request.as_bytes()).await;
            assert_eq!(answer.get(9..12), Some(status), "{answer}");
        }
        assert!(!String::from_utf8_lossy(&seen.borrow()).contains("/v2"));
        assert_eq!(stand.wall.dialled(), 1);
        assert_eq!(stand.wall.lines(3).await[2], "deny GET https://api.example.com/v2 path");
    });
}

#[test]
fn a_stream_of_http2_goes_both_ways_at_once_and_keeps_its_trailers() {
    run(async {
        let outside = Outside::new();
        let stand = Stand::new(echo(outside.config(HOST, &["h2"])).await, vec![outside.authority()]);
        let mut send = stand.http2().await;
        let (response, mut up) =
            send.send_request(request(Method::POST, "https://api.example.com/v1/echo"), false).unwrap();
        let response = response.await.unwrap();
        assert_eq!(response.headers()["x-path"], "/v1/echo");
        let mut down = response.into_body();
        // Each message is answered before the next is sent: nothing is gathered on the way.
        for message in ["one", "two", "three"] {
            up.send_data(Bytes::from(message), false).unwrap();
            let got = down.data().await.unwrap().unwrap();
            let _ = down.flow_control().release_capacity(got.len());
            assert_eq!(got, message);
        }
        up.send_data(Bytes::new(), true).unwrap();
        assert!(down.data().await.is_none());
        assert_eq!(down.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        // A reset in the middle is one for the client, too.
        let (response, mut up) =
            send.send_request(request(Method::POST, "https://api.example.com/v1/echo"), false).unwrap();
        let mut down = response.await.unwrap().into_body();
        up.send_data(Bytes::from("reset"), false).unwrap();
        assert!(down.data().await.unwrap().is_err());
        assert_eq!(stand.wall.dialled(), 1);
    });
}

#[test]
fn streams_that_come_together_share_a_connection() {
    run(async {
        let outside = Outside::new();
        let stand = Stand::new(echo(outside.config(HOST, &["h2"])).await, vec![outside.authority()]);
        let mut send = stand.http2().await;
        let mut responses = Vec::new();
        for _ in 0..50 {
            let request = request(Method::GET, "https://api.example.com/v1/x");
            responses.push(send.send_request(request, true).unwrap().0);
            send = send.ready().await.unwrap();
        }
        for response in responses {
            assert_eq!(response.await.unwrap().status(), 200);
        }
        assert_eq!(stand.wall.dialled(), 1);
        assert_eq!(stand.wall.lines(100).await.len(), 100);
    });
}

#[test]
fn streams_are_judged_one_by_one_and_other_names_are_misdirected() {
    run(async {
        let outside = Outside::new();
        let stand = Stand::new(echo(outside.config(HOST, &["h2"])).await, vec![outside.authority()]);
        let mut send = stand.http2().await;
        let mut with_host = request(Method::GET, "https://api.example.com/v1/x");
        with_host.headers_mut().insert("host", "other.example.com".parse().unwrap());
        let mut grpc = request(Method::POST, "https://api.example.com/v2");
        grpc.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
        for (request, status) in [
            (request(Method::GET, "https://api.example.com/v1/x"), 200),
            (request(Method::GET, "https://other.example.com/v1/x"), 421),
            (request(Method::GET, "https://api.example.com:444/v1/x"), 421),
            (request(Method::GET, "http://api.example.com/v1/x"), 400),
            (with_host, 421),
            (request(Method::GET, "https://api.example.com/v2"), 403),
            (request(Method::DELETE, "https://api.example.com/v1/x"), 403),
            (request(Method::GET, "https://api.example.com/v1/../v2"), 403),
            (request(Method::CONNECT, "api.example.com:443"), 403),
            (grpc, 200),
        ] {
            let shown = format!("{request:?}");
            let (response, _) = send.send_request(request, true).unwrap();
            let response = response.await.unwrap();
            assert_eq!(response.status(), status, "{shown}");
            if shown.contains("grpc") {
                assert_eq!(response.headers()["grpc-status"], "7");
                assert!(response.into_body().is_end_stream());
            }
        }
        assert_eq!(stand.wall.dialled(), 1);
    });
}

#[test]
fn a_client_of_http2_reaches_a_server_of_http1() {
    run(async {
        let outside = Outside::new();
        let say = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\n2\r\nhi\r\n0\r\nX-Sum: 2\r\n\r\n";
        let (address, seen) =
            server_of(vec![("0\r\n\r\n", say)], Some(outside.config(HOST, &["http/1.1"]))).await;
        let stand = Stand::new(address, vec![outside.authority()]);
        let mut send = stand.http2().await;
        let mut post = request(Method::POST, "https://api.example.com/v1/x");
        post.headers_mut().append("cookie", "a=1".parse().unwrap());
        post.headers_mut().append("cookie", "b=2".parse().unwrap());
        let (response, mut up) = send.send_request(post, false).unwrap();
        up.send_data(Bytes::from("hello"), true).unwrap();
        let response = response.await.unwrap();
        assert!(!response.headers().contains_key("x-hop"));
        let mut body = response.into_body();
        assert_eq!(body.data().await.unwrap().unwrap(), "hi");
        assert_eq!(body.trailers().await.unwrap().unwrap()["x-sum"], "2");
        let seen = String::from_utf8(seen.borrow().clone()).unwrap();
        assert!(seen.starts_with("POST /v1/x HTTP/1.1\r\nhost: api.example.com\r\n"), "{seen}");
        assert!(seen.contains("cookie: a=1; b=2\r\n"), "{seen}");
    });
}

#[test]
fn a_server_that_is_not_believed_is_a_bad_gateway_that_says_why() {
    run(async {
        let outside = Outside::new();
        let wrong = outside.config("other.example.com", &[]);
        let good = outside.config(HOST, &[]);
        let mut client_auth = (*outside.config(HOST, &[])).clone();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(outside.ca.der().to_vec())).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), crate::tls::provider());
        let verifier = verifier.build().unwrap();
        let key = outside.ca.leaf(&Host::parse(HOST).unwrap()).unwrap();
        client_auth = {
            let mut config = ServerConfig::builder_with_provider(crate::tls::provider())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from((*key).clone())));
            config.alpn_protocols = std::mem::take(&mut client_auth.alpn_protocols);
            config
        };
        for (tls, authorities, says) in [
            (Some(wrong), vec![outside.authority()], "certificate is not believed"),
            (Some(good), Vec::new(), "issuer is not known"),
            (Some(Arc::new(client_auth)), vec![outside.authority()], "asks for a certificate of the client"),
            (None, vec![outside.authority()], "handshake failed"),
        ] {
            let (address, seen) = server_of(vec![("\r\n\r\n", OK)], tls.clone()).await;
            // A server that does not speak TLS answers the first bytes with something else.
            let address = if tls.is_some() { address } else { server(vec![("", "220 hello\r\n")]).await.0 };
            let stand = Stand::new(address, authorities);
            let mut client = stand.client(&[]).await;
            let answer = talk(&mut client, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(says), "{says}: {answer}");
            assert!(seen.borrow().is_empty());
            assert!(stand.wall.lines(2).await[1].contains(says), "{:?}", stand.wall.record());
        }
    });
}

#[test]
fn a_client_that_does_not_believe_us_is_written_down() {
    run(async {
        let stand = Stand::new("127.0.0.1:1".parse().unwrap(), Vec::new());
        let strangers = Ca::make("stranger", SystemTime::now()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(strangers.der().to_vec())).unwrap();
        assert!(stand.client_with(roots, HOST, &[]).await.is_err());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(stand.inside.der().to_vec())).unwrap();
        assert!(stand.client_with(roots.clone(), "other.example.com", &[]).await.is_err());
        assert!(stand.client_with(roots, HOST, &["mqtt"]).await.is_err());
        // It looks later, and leaves.
        drop(stand.client(&[]).await);
        let mut garbage = TcpStream::connect(stand.port().await).await.unwrap();
        talk(&mut garbage, b"\x16\x03\x01\x00\x05hello").await;
        let codes: Vec<_> = stand
            .wall
            .lines(5)
            .await
            .iter()
            .map(|line| line.rsplit(' ').next().unwrap().to_owned())
            .collect();
        assert_eq!(codes, ["not_opened", "other_name", "upgrade", "not_opened", "malformed"]);
    });
}

/// Real clients, with nothing but the sandbox's authority to believe.
#[test]
fn curl_and_openssl_take_the_certificate() {
    run(async {
        let outside = Outside::new();
        let (address, _) = server_of(vec![("\r\n\r\n", OK)], Some(outside.config(HOST, &[]))).await;
        let stand = Stand::new(address, vec![outside.authority()]);
        let port = stand.port().await.port();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), stand.inside.pem()).unwrap();
        let ca = file.path().to_str().unwrap().to_owned();
        let to = format!("{HOST}:443:127.0.0.1:{port}");
        for version in ["--http1.1", "--http2"] {
            let (ca, to) = (ca.clone(), to.clone());
            let command = tokio::task::spawn_blocking(move || {
                let url = "https://api.example.com/v1/x";
                Command::new("curl")
                    .args(["-sS", version, "--cacert", &ca, "--connect-to", &to, url])
                    .output()
            });
            match command.await.unwrap() {
                Ok(output) => {
                    assert_eq!(String::from_utf8_lossy(&output.stdout), "hi", "{version}: {output:?}");
                }
                Err(error) => eprintln!("not tried: there is no curl ({error})"),
            }
        }
        let connect = format!("127.0.0.1:{port}");
        let command = tokio::task::spawn_blocking(move || {
            Command::new("openssl")
                .args(["s_client", "-connect", &connect, "-servername", HOST, "-CAfile", &ca])
                .args(["-verify_hostname", HOST, "-verify_return_error", "-x509_strict", "-brief"])
                .stdin(std::process::Stdio::null())
                .output()
        });
        match command.await.unwrap() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(said.contains("Verification: OK"), "{said}");
            }
            Err(error) => eprintln!("not tried: there is no openssl ({error})"),
        }
    });
}

#[test]
fn an_answer_that_ends_with_its_connection_is_passed_on_and_cut() {
    run(async {
        let outside = Outside::new();
        let tls = outside.config(HOST, &[]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::task::spawn_local(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut got).await.unwrap(), 0);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.unwrap();
            stream.flush().await.unwrap();
            // Without a word that this was all.
            drop(stream);
        });
        let stand = Stand::new(address, vec![outside.authority()]);
        let mut client = stand.client(&[]).await;
        let answer = talk_all(&mut client, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n5\r\nhello\r\n"),
            "{answer}"
        );
        let record = stand.wall.lines(2).await;
        assert_eq!(
            record.last().map(String::as_str),
            Some("end 200 the connection ended in the middle of a message")
        );
    });
}

/// A connection holds its state as long as it lasts, and a thousand may lie idle.
#[test]
fn the_state_of_a_connection_is_small() {
    run(async {
        let outside = Outside::new();
        let (address, _) = server(vec![("\r\n\r\n", OK)]).await;
        let stand = Stand::new(address, vec![outside.authority()]);
        let stream = TcpStream::connect(address).await.unwrap();
        let place = identity("https://api.example.com");
        let tls = stand.forward.serve_tls(&stand.opener, (stream, Bytes::new()), place, Via::Transparent);
        let tls_bytes = size_of_val(&tls);
        let stream = TcpStream::connect(address).await.unwrap();
        let addressing = super::place("http://api.example.com");
        let clear = stand.forward.serve(stream, Bytes::new(), &addressing, Via::Transparent);
        let clear_bytes = size_of_val(&clear);
        println!("opened: {tls_bytes} bytes, in the clear: {clear_bytes} bytes");
        assert!(tls_bytes <= 3 << 10 && clear_bytes <= 2 << 10, "{tls_bytes} {clear_bytes}");
    });
}
