//! The gate with those who read HTTP behind it, from the dialled address to the server.

use super::lab::{Lab, rest};
use crate::entrance::Entrance;
use crate::readers::Readers;
use crate::tape::Mode;
use crate::tls::Servers;
use fumehood_vault::vault::Vault;
use std::rc::Rc;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

const SERVER: &str = "203.0.113.7";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

/// A connection to a name inside, or to the proxy, read by the real protocols.
async fn connection(lab: &Lab, to: Option<(&str, u16)>) -> TcpStream {
    let readers = Readers::new(Servers::default(), None, Vault::default(), Mode::Off);
    let entrance = Entrance::new(lab.gate.clone(), Rc::new(readers));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    match to {
        Some((name, port)) => {
            let address = lab.synthetic(name).v4.into();
            spawn_local(entrance.dialled(stream, std::net::SocketAddr::new(address, port)));
        }
        None => {
            spawn_local(crate::proxy::serve(entrance, stream));
        }
    }
    client
}

async fn server(lab: &Lab) {
    lab.world.name("api.example.com", &[SERVER]);
    let answer = |mut stream: TcpStream| async move {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") && stream.read_buf(&mut seen).await.is_ok_and(|count| count > 0) {}
        let _ = stream.write_all(ANSWER).await;
    };
    lab.world.server("203.0.113.7:80", answer).await;
}

async fn ask(client: &mut TcpStream, request: &str) -> String {
    client.write_all(request.as_bytes()).await.unwrap();
    String::from_utf8_lossy(&rest(client).await.0).into_owned()
}

#[test]
fn a_request_is_recorded_with_its_path_and_its_end() {
    Lab::run(&["GET http://api.example.com/v1/**"], async |lab| {
        server(&lab).await;
        let mut client = connection(&lab, Some(("api.example.com", 80))).await;
        let answer =
            ask(&mut client, "GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n")
                .await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nhi"), "{answer}");
        assert_eq!(lab.lines(2).await.len(), 2);
        let mut client = connection(&lab, Some(("api.example.com", 80))).await;
        let answer =
            ask(&mut client, "GET /v2 HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(r#""code":"path""#), "{answer}");
        assert_eq!(lab.denied().len(), 1);
        assert_eq!(lab.world.dialled().len(), 1);
    });
}

#[test]
fn the_proxy_takes_whole_urls() {
    Lab::run(&["GET http://api.example.com/v1/**"], async |lab| {
        server(&lab).await;
        let mut client = connection(&lab, None).await;
        let request =
            "GET http://api.example.com/v1/x HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n";
        assert!(ask(&mut client, request).await.ends_with("\r\n\r\nhi"));
        let mut client = connection(&lab, None).await;
        let request = "GET http://169.254.169.254/latest HTTP/1.1\r\nHost: 169.254.169.254\r\nConnection: close\r\n\r\n";
        assert!(ask(&mut client, request).await.starts_with("HTTP/1.1 403 "));
        assert_eq!(lab.world.dialled(), ["203.0.113.7:80"]);
    });
}
