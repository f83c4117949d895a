//! Secrets from end to end: put in outside, never seen inside.

use super::opened::{Outside, Stand};
use super::*;
use fumehood_vault::placeholder::Shape;
use fumehood_vault::secret::{Secret, SecretName};
use fumehood_vault::vault::Vault;
use std::io::Write;
use zeroize::Zeroizing;

const HOST: &str = "api.example.com";
const VALUE: &str = "sk-live-51Hq9wXcVbNmAsDfGhJkLpOiUyTrEwQz";

/// A vault with one secret, and its placeholder.
fn secrets() -> (Rc<Secrets>, String) {
    let mut vault = Vault::default();
    let name = SecretName::parse("TOKEN").unwrap();
    let secret = Secret::new(name, Zeroizing::new(VALUE.as_bytes().to_vec()), None).unwrap();
    let mut next = 7_u8;
    let mut random = |bytes: &mut [u8]| {
        for byte in bytes {
            next = next.wrapping_mul(31).wrapping_add(11);
            *byte = next;
        }
    };
    let placeholder = vault.add(secret, Shape::Opaque, &mut random).unwrap();
    (Rc::new(Secrets::new(vault)), placeholder.as_str().to_owned())
}

/// What the client reads and what the server saw.
async fn exchange(
    rule: &str,
    request: &str,
    until: &'static str,
    say: &[u8],
) -> (String, String, Vec<String>) {
    let outside = Outside::new();
    let (address, seen) = binary(until, say.to_vec(), outside.config(HOST, &[])).await;
    let (secrets, placeholder) = secrets();
    let stand = Stand::with(&[rule], address, vec![outside.authority()], secrets);
    let mut client = stand.client(&[]).await;
    let request = request.replace("PLACEHOLDER", &placeholder);
    let answer = talk(&mut client, request.as_bytes()).await;
    let answer = answer.replace(&placeholder, "PLACEHOLDER");
    let seen = String::from_utf8_lossy(&seen.borrow()).into_owned();
    (answer, seen, stand.wall.record())
}

/// A server that says bytes, once.
async fn binary(
    until: &'static str,
    say: Vec<u8>,
    tls: Arc<ServerConfig>,
) -> (SocketAddr, Rc<RefCell<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&seen);
    tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let Ok(mut stream) = TlsAcceptor::from(tls).accept(stream).await else { return };
        let mut got = Vec::new();
        while !String::from_utf8_lossy(&got).contains(until) {
            if !matches!(stream.read_buf(&mut got).await, Ok(1..)) {
                return;
            }
            all.borrow_mut().clone_from(&got);
        }
        // In small pieces: a value does not come in one.
        for piece in say.chunks(7) {
            stream.write_all(piece).await.unwrap();
            stream.flush().await.unwrap();
            tokio::task::yield_now().await;
        }
        let _ = stream.shutdown().await;
    });
    (address, seen)
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn a_value_is_put_in_and_every_echo_is_masked() {
    run(async {
        let rule = "https://api.example.com/v1/** with bearer:TOKEN";
        let get = "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer PLACEHOLDER\r\nAccept-Encoding: zstd, gzip\r\n\r\n";
        let body = format!("you sent {VALUE}, did you?");
        let plain = format!(
            "HTTP/1.1 200 OK\r\nX-Echo: Bearer {VALUE}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (answer, seen, _) = exchange(rule, get, "\r\n\r\n", plain.as_bytes()).await;
        assert!(seen.contains(&format!("authorization: Bearer {VALUE}\r\n")), "{seen}");
        assert!(seen.contains("accept-encoding: gzip\r\n"), "{seen}");
        assert!(answer.contains("x-echo: Bearer PLACEHOLDER\r\n"), "{answer}");
        assert!(answer.ends_with("you sent PLACEHOLDER, did you?"), "{answer}");
        let packed = gzip(&body);
        let mut coded =
            format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", packed.len())
                .into_bytes();
        coded.extend_from_slice(&packed);
        let (answer, _, _) = exchange(rule, get, "\r\n\r\n", &coded).await;
        assert!(
            !answer.contains("content-encoding") && answer.contains("transfer-encoding: chunked"),
            "{answer}"
        );
        assert!(answer.contains("you sent PLACEHOLDER, did you?"), "{answer}");
        // A coding that can not be looked into is refused, and one that ends early is cut.
        let (answer, _, record) = exchange(
            rule,
            get,
            "\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: lzma\r\nContent-Length: 2\r\n\r\nhi",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("can not be looked into"), "{answer}");
        assert!(record.iter().all(|line| !line.contains(VALUE)));
        coded.truncate(coded.len() - 9);
        let text = String::from_utf8_lossy(&coded).replace(&packed.len().to_string(), "x");
        assert!(text.contains("Content-Length: x"));
        let (answer, _, _) = exchange(rule, get, "\r\n\r\n", &coded).await;
        assert!(!answer.ends_with("0\r\n\r\n"), "{answer}");
    });
}

#[test]
fn a_value_goes_into_a_query_and_a_body_with_the_right_length() {
    run(async {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let (_, seen, _) = exchange(
            "https://api.example.com/v1/** with query:key:TOKEN",
            "GET /v1/x?a=1&key=PLACEHOLDER HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
            "\r\n\r\n",
            ok,
        )
        .await;
        assert!(seen.starts_with(&format!("GET /v1/x?a=1&key={VALUE} HTTP/1.1\r\n")), "{seen}");
        let (_, placeholder) = secrets();
        let body = format!("{{\"token\":\"{placeholder}\"}}");
        let request = format!(
            "POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (answer, seen, _) =
            exchange("https://api.example.com/v1/** with body:TOKEN", &request, "}", ok).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert!(seen.ends_with(&format!("\r\n\r\n{{\"token\":\"{VALUE}\"}}")), "{seen}");
        assert!(seen.contains(&format!("content-length: {}\r\n", VALUE.len() + 12)), "{seen}");
    });
}

#[test]
fn a_placeholder_where_nothing_replaces_it_goes_nowhere() {
    run(async {
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let rule = "https://api.example.com/v1/** with bearer:TOKEN";
        for request in [
            "GET /v1/x?t=PLACEHOLDER HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
            "GET /v1/PLACEHOLDER HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
            "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nX-Other: PLACEHOLDER\r\n\r\n",
            "POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 100\r\n\r\nab PLACEHOLDER cd",
        ] {
            let (answer, seen, record) = exchange(rule, request, "\r\n\r\n\r\n", ok).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request}: {answer}");
            assert!(answer.contains(r#""code":"placeholder""#), "{answer}");
            assert!(!seen.contains("ab "), "{seen}");
            assert!(record.iter().any(|line| line.ends_with("placeholder")), "{record:?}");
        }
        // The same under a rule without a secret.
        let request =
            "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nAuthorization: Bearer PLACEHOLDER\r\n\r\n";
        let (answer, seen, _) = exchange("https://api.example.com/v1/**", request, "\r\n\r\n", ok).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && seen.is_empty(), "{answer}");
    });
}

#[test]
fn a_server_that_is_not_believed_gets_no_value() {
    run(async {
        let outside = Outside::new();
        let (address, seen) = binary("\r\n\r\n", Vec::new(), outside.config(HOST, &[])).await;
        let (secrets, _) = secrets();
        let rule = "https://api.example.com/v1/** with bearer:TOKEN";
        let stand = Stand::with(&[rule], address, Vec::new(), secrets);
        let mut client = stand.client(&[]).await;
        let answer = talk(&mut client, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 502 ") && !answer.contains(VALUE), "{answer}");
        assert!(seen.borrow().is_empty());
        // A rule whose secret was never declared does not pass its requests without one.
        let stand = Stand::with(&[rule], address, vec![outside.authority()], Rc::default());
        let mut client = stand.client(&[]).await;
        let answer = talk(&mut client, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(r#""code":"secret""#), "{answer}");
        assert_eq!(stand.wall.dialled(), 0);
    });
}

#[test]
fn a_value_is_not_asked_for_in_parts_and_its_echo_is_recorded() {
    run(async {
        let request =
            "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nRange: bytes=0-9\r\nIf-Range: \"a\"\r\n\r\n";
        let body = format!("it is {VALUE}");
        let echo = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let rule = "https://api.example.com/v1/** with bearer:TOKEN";
        let (answer, seen, record) = exchange(rule, request, "\r\n\r\n", echo.as_bytes()).await;
        assert!(seen.contains(VALUE) && !seen.to_lowercase().contains("range"), "{seen}");
        assert!(answer.ends_with("it is PLACEHOLDER"), "{answer}");
        assert!(record.iter().any(|line| line == "end 200 - masked TOKEN"), "{record:?}");
        // One that stands in the head is one, too.
        let head = format!("HTTP/1.1 204 No Content\r\nX-Echo: {VALUE}\r\n\r\n");
        let (_, _, record) = exchange(rule, request, "\r\n\r\n", head.as_bytes()).await;
        assert!(record.iter().any(|line| line == "end 204 - masked TOKEN"), "{record:?}");
        // A host that no rule gives a secret may be asked for parts.
        let plain = "https://api.example.com/v1/**";
        let ok = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 0\r\n\r\n";
        let (_, seen, record) = exchange(plain, request, "\r\n\r\n", ok).await;
        assert!(seen.contains("range: bytes=0-9\r\n"), "{seen}");
        assert!(record.iter().any(|line| line == "end 206 -"), "{record:?}");
    });
}

/// Behind a rule with a secret: the head carries the value, and what follows goes as it is.
#[test]
fn nothing_is_put_into_the_frames_of_a_websocket() {
    run(async {
        let request = "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                       Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
        let outside = Outside::new();
        let (address, seen) = switching(outside.config(HOST, &[])).await;
        let (secrets, placeholder) = secrets();
        let rule = "https://api.example.com/v1/** with bearer:TOKEN";
        let stand = Stand::with(&[rule], address, vec![outside.authority()], secrets);
        let mut client = stand.client(&[]).await;
        client.write_all(request.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"\r\n\r\n") {
            assert_ne!(client.read_buf(&mut got).await.unwrap(), 0);
        }
        assert!(got.starts_with(b"HTTP/1.1 101 "));
        // A frame whose mask is zeroes holds its text as it is; the server sends back what it gets, and the value.
        assert_eq!(placeholder.len(), VALUE.len());
        let length = u8::try_from(placeholder.len()).unwrap();
        let frame = [&[0x81, 0x80 | length, 0, 0, 0, 0], placeholder.as_bytes()].concat();
        client.write_all(&frame).await.unwrap();
        let mut echo = Vec::new();
        while echo.len() < frame.len() + VALUE.len() {
            assert_ne!(client.read_buf(&mut echo).await.unwrap(), 0);
        }
        assert_eq!(echo, [frame.as_slice(), placeholder.as_bytes()].concat());
        client.shutdown().await.unwrap();
        let seen = seen.borrow().clone();
        let seen = String::from_utf8_lossy(&seen);
        assert_eq!(seen.matches(VALUE).count(), 1, "{seen}");
        assert_eq!(seen.matches(&placeholder).count(), 1, "{seen}");
        assert_eq!(stand.wall.lines(2).await.last().map(String::as_str), Some("end 101 - masked TOKEN"));
    });
}

/// A server that switches to another protocol, and then sends back what it gets, and the value after it.
async fn switching(tls: Arc<ServerConfig>) -> (SocketAddr, Rc<RefCell<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Rc::new(RefCell::new(Vec::new()));
    let all = Rc::clone(&seen);
    tokio::task::spawn_local(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = TlsAcceptor::from(tls).accept(stream).await.unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"\r\n\r\n") {
            assert_ne!(stream.read_buf(&mut got).await.unwrap(), 0);
        }
        let switch = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        stream.write_all(switch).await.unwrap();
        stream.flush().await.unwrap();
        let head = got.len();
        while got.len() < head + 6 + VALUE.len() {
            assert_ne!(stream.read_buf(&mut got).await.unwrap(), 0);
        }
        let back = [&got[head..], VALUE.as_bytes()].concat();
        all.borrow_mut().extend_from_slice(&got);
        stream.write_all(&back).await.unwrap();
        stream.flush().await.unwrap();
        while stream.read_buf(&mut got).await.is_ok_and(|count| count > 0) {}
        stream.shutdown().await.unwrap();
    });
    (address, seen)
}
