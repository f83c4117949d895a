//! The host's own way of resolving, against a server of the test.

use super::resolve::{ask, resolver};
use super::*;
use hickory_resolver::config::{NameServerConfig, ResolverConfig, ResolverOpts};
use std::fs;
use tokio::net::UdpSocket;

/// What a server says to each question.
#[derive(Clone, Copy)]
enum Manner {
    /// One address to questions for A; `gone.…` does not exist.
    Good,
    /// The same, after the same with another number and another address.
    Forged,
    /// A name that points at itself, for ever.
    Loop,
    Silent,
}

async fn serve(socket: UdpSocket, manner: Manner) {
    let mut bytes = [0; 512];
    while let Ok((count, from)) = socket.recv_from(&mut bytes).await {
        let question = &bytes[..count];
        let name_end = 12 + question[12..].iter().position(|byte| *byte == 0).unwrap() + 1;
        let kind = question[name_end + 1];
        let gone = question[13..].to_ascii_lowercase().starts_with(b"gone");
        let mut answer = question[..name_end + 4].to_vec();
        (answer[2], answer[3]) = (0x81, if gone { 0x83 } else { 0x80 });
        let has_answer = !gone && (kind == 1 || matches!(manner, Manner::Loop));
        answer[6..12].copy_from_slice(&[0, u8::from(has_answer), 0, 0, 0, 0]);
        if matches!(manner, Manner::Loop) {
            answer.extend([0xc0, 0x0c, 0, 5, 0, 1, 0, 0, 0, 60, 0, 2, 0xc0, 0x0c]);
        } else if has_answer {
            answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 203, 0, 113, 7]);
        }
        match manner {
            Manner::Silent => continue,
            Manner::Forged if has_answer => {
                let mut forged = answer.clone();
                forged[0] ^= 0xff;
                *forged.last_mut().unwrap() = 66;
                socket.send_to(&forged, from).await.unwrap();
            }
            Manner::Forged | Manner::Good | Manner::Loop => {}
        }
        socket.send_to(&answer, from).await.unwrap();
    }
}

/// What comes of asking such a server for a name.
fn asked(manner: Manner, of: &str) -> Result<Vec<IpAddr>, DialError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let place = socket.local_addr().unwrap();
        tokio::task::spawn_local(serve(socket, manner));
        let mut server = NameServerConfig::udp(place.ip());
        for connection in &mut server.connections {
            connection.port = place.port();
        }
        let mut options = ResolverOpts::default();
        (options.timeout, options.attempts) = (Duration::from_millis(200), 1);
        let resolver = resolver(ResolverConfig::from_parts(None, Vec::new(), vec![server]), options).unwrap();
        timeout(Duration::from_secs(20), ask(&resolver, &name(of))).await.expect("it ends by itself")
    })
}

#[test]
fn servers_are_asked_and_believed_only_in_their_own_answers() {
    let public: IpAddr = "203.0.113.7".parse().unwrap();
    assert_eq!(asked(Manner::Good, "api.example.com").unwrap(), [public]);
    assert_eq!(asked(Manner::Forged, "api.example.com").unwrap(), [public]);
    // Names of services and buckets are no host names by the letter, and are resolved all the same.
    assert_eq!(asked(Manner::Good, "my_bucket.a_b.example.com").unwrap(), [public]);
    assert!(matches!(asked(Manner::Good, "gone.example.com"), Err(DialError::NoSuchName)));
    for manner in [Manner::Loop, Manner::Silent] {
        let error = asked(manner, "api.example.com").unwrap_err();
        assert!(matches!(error, DialError::Resolver(_) | DialError::NoSuchName), "{error}");
    }
}

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

#[test]
fn the_hosts_list_comes_first() {
    let folder = tempfile::tempdir().unwrap();
    let (settings, list) = (folder.path().join("resolv.conf"), folder.path().join("hosts"));
    fs::write(&list, "203.0.113.9 db.example.com\n").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let lookup = SystemLookup::new(settings.clone(), list.clone());
        let found = lookup.addresses(&name("db.example.com")).await.unwrap();
        assert_eq!(found, ["203.0.113.9".parse::<IpAddr>().unwrap()]);
        let error = lookup.addresses(&name("api.example.com")).await.unwrap_err();
        assert!(matches!(&error, DialError::Resolver(why) if why.contains("names no server")), "{error}");
    });
}
