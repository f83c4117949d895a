//! Clients that are told of a proxy.

use super::lab::{Lab, rest};
use crate::hello::tests::client_hello;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

async fn asked(lab: &Lab, bytes: &[u8]) -> TcpStream {
    let mut client = lab.proxy().await;
    client.write_all(bytes).await.unwrap();
    client
}

async fn expect(client: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    client.read_exact(&mut bytes).await.unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
}

#[test]
fn connect_is_judged_and_what_is_inside_is_judged_again() {
    Lab::run(&["api.example.com"], async |lab| {
        lab.world.name("api.example.com", &["203.0.113.7"]);
        lab.world.echo("203.0.113.7:443", "").await;
        let hello = client_hello(Some("api.example.com"));
        let mut client = asked(&lab, b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n").await;
        expect(&mut client, ESTABLISHED).await;
        client.write_all(&hello).await.unwrap();
        let mut echoed = vec![0; hello.len()];
        client.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, hello);

        let mut client = asked(&lab, b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n").await;
        expect(&mut client, ESTABLISHED).await;
        client.write_all(&client_hello(Some("evil.example"))).await.unwrap();
        assert_eq!(rest(&mut client).await.0, [21, 3, 3, 0, 2, 2, 112]);

        // A client that resolved by itself.
        let place = lab.synthetic("api.example.com").v4;
        let mut client = asked(&lab, format!("CONNECT {place}:443 HTTP/1.1\r\n\r\n").as_bytes()).await;
        expect(&mut client, ESTABLISHED).await;
        assert_eq!(lab.world.dialled(), ["203.0.113.7:443"]);
    });
}

#[test]
fn a_refused_connect_says_why() {
    Lab::run(&["api.example.com"], async |lab| {
        for (target, code) in [
            ("evil.example:443", "no_rule"),
            ("api.example.com:22", "port"),
            ("203.0.113.7:443", "raw_address"),
            ("[::1]:443", "internal_address"),
            ("198.18.0.77:443", "raw_address"),
            ("169.254.169.254:80", "internal_address"),
        ] {
            let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
            let mut client = asked(&lab, request.as_bytes()).await;
            let (answer, reset) = rest(&mut client).await;
            let answer = String::from_utf8(answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 403 ") && !reset, "{target}: {answer}");
            let (_, body) = answer.split_once("\r\n\r\n").unwrap();
            let body: serde_json::Value = serde_json::from_str(body).unwrap();
            assert_eq!(body["error"]["code"], code, "{target}");
            assert!(body["error"]["remedy"].as_str().is_some_and(|text| !text.is_empty()));
            assert_eq!(lab.denied().last().unwrap().1, code);
        }
        assert!(lab.world.looked_up().is_empty());
    });
}

#[test]
fn bytes_before_the_answer_and_odd_requests_are_refused() {
    Lab::run(&["api.example.com"], async |lab| {
        lab.world.name("api.example.com", &["203.0.113.7"]);
        for request in [
            "CONNECT api.example.com:443 HTTP/1.1\r\n\r\nearly",
            "CONNECT api.example.com:443 HTTP/1.1\r\nHost: evil.example\r\n\r\n",
            "CONNECT user@api.example.com:443 HTTP/1.1\r\n\r\n",
        ] {
            let mut client = asked(&lab, request.as_bytes()).await;
            let (answer, _) = rest(&mut client).await;
            assert!(answer.starts_with(b"HTTP/1.1 400 "), "{request}");
        }
        assert_eq!(lab.denied()[0].1, "malformed");
        assert!(lab.world.dialled().is_empty());
    });
}

#[test]
fn requests_with_the_whole_url_go_to_those_who_read() {
    Lab::run(&["http://api.example.com"], async |lab| {
        let mut client = asked(&lab, b"GET http://api.example.com/ HTTP/1.1\r\n\r\n").await;
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut client).await.0, b"http absolute GET ");
    });
}

#[test]
fn socks_connects_by_name_and_by_address() {
    Lab::run(&["git.example.com:22"], async |lab| {
        lab.world.name("git.example.com", &["203.0.113.7"]);
        lab.world.echo("203.0.113.7:22", "banner").await;
        let by_name = [&[5, 1, 0, 3, 15][..], b"git.example.com", &[0, 22]].concat();
        let place = lab.synthetic("git.example.com").v4.octets();
        let by_address = [&[5, 1, 0, 1][..], &place, &[0, 22]].concat();
        for request in [by_name, by_address] {
            let mut client = asked(&lab, &[5, 1, 0]).await;
            expect(&mut client, &[5, 0]).await;
            client.write_all(&request).await.unwrap();
            expect(&mut client, &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await;
            expect(&mut client, b"banner").await;
        }
        for (request, code) in [
            (vec![5, 1, 0, 1, 203, 0, 113, 7, 0, 22], 2),
            (vec![5, 3, 0, 1, 203, 0, 113, 7, 0, 22], 7),
            (vec![5, 2, 0, 1, 203, 0, 113, 7, 0, 22], 7),
            ([&[5, 1, 0, 3, 12][..], b"evil.example", &[0, 22]].concat(), 2),
        ] {
            let mut client = asked(&lab, &[&[5, 2, 0, 2][..], &request].concat()).await;
            expect(&mut client, &[5, 0, 5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await;
            assert!(rest(&mut client).await.0.is_empty());
        }
        let mut client = asked(&lab, &[5, 1, 2]).await;
        expect(&mut client, &[5, 255]).await;
        assert!(rest(&mut asked(&lab, &[4, 1, 0, 22, 1, 1, 1, 1, 0]).await).await.1);
        assert_eq!(lab.world.dialled().len(), 2);
    });
}
