//! The resolver inside and the observer, over sockets.

use super::lab::Lab;
use crate::dns::{serve_tcp, serve_udp};
use crate::observe::observe;
use crate::sockets::{Attempt, Observer, Transport};
use std::net::UdpSocket;
use std::os::fd::{AsFd as _, OwnedFd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

#[test]
fn names_are_answered_over_both_and_recorded_first() {
    Lab::run(&["api.example.com"], async |lab| {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        spawn_local(serve_tcp(lab.gate.clone(), stream));
        let mut answers = Vec::new();
        for name in ["api.example.com", "api.example.com", "evil.example.com", "evil.example.com"] {
            let question = question(name, 1);
            let framed =
                [&u16::try_from(question.len()).unwrap().to_be_bytes(), question.as_slice()].concat();
            client.write_all(&framed).await.unwrap();
            let length = client.read_u16().await.unwrap();
            let mut answer = vec![0; usize::from(length)];
            client.read_exact(&mut answer).await.unwrap();
            answers.push((answer[3] & 15, answer[7]));
        }
        assert_eq!(answers, [(0, 1), (0, 1), (3, 0), (3, 0)]);
        assert_eq!(lab.story(), ["name api.example.com A true", "name evil.example.com A false"]);
        lab.gate.journal().turn().await.unwrap();
        assert_eq!(lab.record.lines().len(), 3, "the second refusal was counted");
        assert!(lab.world.looked_up().is_empty());
    });
}

#[test]
fn without_a_record_there_is_no_answer() {
    Lab::run(&["api.example.com"], async |lab| {
        lab.record.fail();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        spawn_local(serve_tcp(lab.gate.clone(), stream));
        let question = question("api.example.com", 1);
        client.write_all(&[0, u8::try_from(question.len()).unwrap()]).await.unwrap();
        client.write_all(&question).await.unwrap();
        assert_eq!(client.read(&mut [0; 9]).await.unwrap(), 0);
    });
}

/// Needs a socket that tells where a datagram went, as the gateway's does.
#[test]
fn an_answer_comes_from_where_the_question_went() {
    Lab::run(&["api.example.com"], async |lab| {
        let server = UdpSocket::bind("[::]:0").unwrap();
        fumehood_sys::datagram::tell(server.as_fd()).unwrap();
        let port = server.local_addr().unwrap().port();
        spawn_local(serve_udp(lab.gate.clone(), OwnedFd::from(server)));
        for (local, host) in [("127.0.0.1:0", "127.0.0.2"), ("[::1]:0", "[::1]")] {
            let client = tokio::net::UdpSocket::bind(local).await.unwrap();
            // Answers from any other address would not be taken.
            client.connect(format!("{host}:{port}")).await.unwrap();
            // An answer is not answered.
            client.send(&[0x12, 0x34, 0x81, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
            client.send(&question("api.example.com", 28)).await.unwrap();
            let mut answer = [0; 512];
            let count = client.recv(&mut answer).await.unwrap();
            assert_eq!(&answer[..4], [0x12, 0x34, 0x81, 0x80]);
            assert_eq!(answer[count - 16..count], lab.synthetic("api.example.com").v6.octets());
        }
    });
}

#[test]
fn what_the_kernel_refused_is_told() {
    Lab::run(&["api.example.com"], async |lab| {
        let (near, far) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        // A packet of the test is its own text.
        let read = |bytes: &[u8]| {
            let text = std::str::from_utf8(bytes).ok()?;
            let (protocol, to) = text.split_once(' ')?;
            let protocol = if protocol == "tcp" { Transport::Tcp } else { Transport::Udp };
            Some(Attempt { protocol, to: to.parse().ok()? })
        };
        let place = near.local_addr().unwrap();
        spawn_local(observe(lab.gate.clone(), Observer { socket: OwnedFd::from(near), read }));
        let api = lab.synthetic("api.example.com").v4;
        for packet in [
            format!("tcp {api}:22"),
            "udp 203.0.113.7:443".to_owned(),
            "udp 203.0.113.7:123".to_owned(),
            "no packet".to_owned(),
            "tcp 10.0.0.1:25".to_owned(),
        ] {
            far.send_to(packet.as_bytes(), place).unwrap();
        }
        assert_eq!(
            lab.lines(4).await,
            [
                "denied api.example.com:22 port",
                "denied https://203.0.113.7 protocol",
                "denied 203.0.113.7:123 protocol",
                "denied 10.0.0.1:25 internal_address",
            ]
        );
    });
}
