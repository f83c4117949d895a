//! Connections that were dialled as if nothing were in between.

use super::lab::{Lab, parsed, rest, upstream};
use crate::hello::tests::client_hello;
use crate::stop::StopCause;
use fumehood_model::egress::{Opened, Reach, Resolution, Rule};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const SERVER: &str = "203.0.113.7";

async fn say(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).await.unwrap();
}

async fn hear(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

#[test]
fn tls_to_the_name_that_was_dialled_passes_unread() {
    Lab::run(&["api.example.com"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:443", "").await;
        let mut client = lab.dial_name("api.example.com", 443).await;
        let hello = client_hello(Some("api.example.com"));
        say(&mut client, &hello[..20]).await;
        assert!(lab.record.lines().is_empty(), "half a handshake is no decision");
        say(&mut client, &hello[20..]).await;
        assert_eq!(hear(&mut client, hello.len()).await, hello);
        assert_eq!(lab.story(), ["1 allowed https://api.example.com by api.example.com"]);
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut client).await, (Vec::new(), false));
        let told = format!("1 ended {0}/{0}", hello.len());
        assert_eq!(lab.lines(2).await[1], told);
    });
}

#[test]
fn tls_to_somebody_else_is_refused_with_an_alert() {
    Lab::run(&["api.example.com", "db.example.com:5432"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        lab.world.name("db.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:443", "").await;
        lab.world.echo("203.0.113.7:5432", "").await;
        for (name, port, sent) in [
            ("api.example.com", 443, Some("evil.example")),
            ("api.example.com", 443, Some("api.example.com.evil.example")),
            ("api.example.com", 443, None),
            ("db.example.com", 5432, Some("evil.example")),
            ("db.example.com", 5432, None),
        ] {
            let mut client = lab.dial_name(name, port).await;
            say(&mut client, &client_hello(sent)).await;
            let (bytes, _) = rest(&mut client).await;
            assert_eq!(bytes, [21, 3, 3, 0, 2, 2, 112], "{name} {sent:?}");
        }
        assert!(lab.world.dialled().is_empty() && lab.world.looked_up().is_empty());
        let reasons: Vec<String> = lab.denied().into_iter().map(|(_, reason)| reason).collect();
        // The second of a kind is counted, not written again.
        assert_eq!(reasons, ["other_name", "no_server_name", "other_name", "no_server_name"]);
    });
}

#[test]
fn what_no_rule_names_is_reset_unread_and_nothing_is_asked_outside() {
    Lab::run(&["api.example.com"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        let synthetic = lab.synthetic("api.example.com");
        for (to, reason) in [
            (format!("{}:22", synthetic.v4), "port"),
            (format!("[{}]:8443", synthetic.v6), "port"),
            ("203.0.113.7:443".to_owned(), "raw_address"),
            ("169.254.169.254:80".to_owned(), "internal_address"),
            ("[::ffff:10.0.0.1]:443".to_owned(), "internal_address"),
            ("198.18.0.1:443".to_owned(), "raw_address"),
            ("198.19.0.9:443".to_owned(), "raw_address"),
        ] {
            let mut client = lab.dial(&to).await;
            assert_eq!(rest(&mut client).await, (Vec::new(), true), "{to}");
            assert_eq!(lab.denied().last().unwrap().1, reason, "{to}");
        }
        assert!(lab.world.dialled().is_empty() && lab.world.looked_up().is_empty());
    });
}

#[test]
fn a_literal_of_the_pools_is_nobody_even_under_a_rule() {
    Lab::run(&["198.18.0.9:443"], async |lab| {
        let mut client = lab.dial("198.18.0.9:443").await;
        assert!(rest(&mut client).await.1);
        assert_eq!(lab.denied()[0].1, "raw_address");
    });
}

#[test]
fn a_server_may_speak_first_under_a_rule_for_any_protocol() {
    Lab::run(&["git.example.com:22"], async |lab| {
        lab.world.name("git.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:22", "SSH-2.0-test\r\n").await;
        let mut client = lab.dial_name("git.example.com", 22).await;
        assert_eq!(hear(&mut client, 14).await, b"SSH-2.0-test\r\n");
        say(&mut client, b"SSH-2.0-client\r\n").await;
        assert_eq!(hear(&mut client, 16).await, b"SSH-2.0-client\r\n");
    });
}

#[test]
fn tls_that_comes_late_is_still_judged() {
    Lab::run(&["git.example.com:22"], async |lab| {
        lab.world.name("git.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:22", "banner").await;
        for (sent, good) in [("git.example.com", true), ("evil.example", false)] {
            let mut client = lab.dial_name("git.example.com", 22).await;
            assert_eq!(hear(&mut client, 6).await, b"banner");
            let hello = client_hello(Some(sent));
            say(&mut client, &hello).await;
            if good {
                assert_eq!(hear(&mut client, hello.len()).await, hello);
            } else {
                assert_eq!(rest(&mut client).await, (Vec::new(), true), "nothing came back");
                assert_eq!(lab.denied(), [("git.example.com:22".into(), "other_name".into())]);
            }
        }
    });
}

#[test]
fn half_a_handshake_that_comes_late_passes_nothing() {
    Lab::run(&["git.example.com:22"], async |lab| {
        lab.world.name("git.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:22", "banner").await;
        let mut client = lab.dial_name("git.example.com", 22).await;
        assert_eq!(hear(&mut client, 6).await, b"banner");
        say(&mut client, &client_hello(Some("evil.example"))[..40]).await;
        assert_eq!(rest(&mut client).await, (Vec::new(), true));
        assert_eq!(lab.denied()[0].1, "malformed");
    });
}

#[test]
fn what_has_to_be_read_goes_to_those_who_read() {
    Lab::run(
        &["GET https://api.example.com/v1/**", "http://web.example.com", "db.example.com:80"],
        async |lab| {
            let mut client = lab.dial_name("api.example.com", 443).await;
            say(&mut client, &client_hello(Some("api.example.com"))).await;
            assert_eq!(rest(&mut client).await.0, b"tls api.example.com");
            for (name, bytes, told) in [
                ("web.example.com", "GET / HTTP/1.1\r\n\r\n", "http web.example.com:80 transparent GET "),
                ("web.example.com", "rubbish\r\n\r\n", "http web.example.com:80 transparent rubb"),
                ("db.example.com", "PUT /a HTTP/1.1\r\n\r\n", "http db.example.com:80 transparent PUT "),
            ] {
                let mut client = lab.dial_name(name, 80).await;
                say(&mut client, bytes.as_bytes()).await;
                client.shutdown().await.unwrap();
                assert_eq!(String::from_utf8(rest(&mut client).await.0).unwrap(), told);
            }
            assert!(lab.record.lines().is_empty(), "deciding is theirs");
        },
    );
}

#[test]
fn bytes_that_are_no_tls_do_not_pass_a_rule_for_tls() {
    Lab::run(&["api.example.com"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:443", "").await;
        let mut client = lab.dial_name("api.example.com", 443).await;
        say(&mut client, b"SSH-2.0-x\r\n").await;
        assert!(rest(&mut client).await.1);
        assert_eq!(lab.denied(), [("api.example.com:443".into(), "scheme".into())]);
        assert!(lab.world.dialled().is_empty());
    });
}

#[test]
fn internal_addresses_are_dropped_and_refused() {
    Lab::run(&["mixed.example.com:22", "inside.example.com:22", "own.example.com:22"], async |lab| {
        lab.world.name("mixed.example.com", &["10.0.0.1", "::1", SERVER]);
        lab.world.name("inside.example.com", &["169.254.169.254", "::ffff:10.0.0.1"]);
        // The second leads to the first, where there is a translator on the way.
        lab.world.name("own.example.com", &["203.0.113.99", "64:ff9b::cb00:7163"]);
        lab.world.own("203.0.113.99");
        lab.world.echo("203.0.113.7:22", "banner").await;
        let mut client = lab.dial_name("mixed.example.com", 22).await;
        assert_eq!(hear(&mut client, 6).await, b"banner");
        for (name, reason) in [("inside.example.com", "internal_address"), ("own.example.com", "own_address")]
        {
            let mut client = lab.dial_name(name, 22).await;
            assert!(rest(&mut client).await.1);
            assert_eq!(lab.denied().last().unwrap().1, reason);
        }
        assert_eq!(lab.world.dialled(), ["203.0.113.7:22"]);
    });
}

#[test]
fn an_opened_range_is_reached_by_address_and_by_the_name_it_was_opened_to() {
    let change = |egress: &mut fumehood_model::egress::Egress| {
        egress.rules = parsed(&["db.example.com:5432"], Rule::parse);
        egress.ranges = parsed(&["10.1.0.0/16:5432"], Opened::parse);
        egress.resolutions = parsed(&["db.example.com=10.2.0.0/16"], Resolution::parse);
    };
    Lab::with(change, async |lab| {
        lab.world.name("db.example.com", &["10.2.0.5", "10.3.0.5"]);
        lab.world.echo("10.1.0.5:5432", "one").await;
        lab.world.echo("10.2.0.5:5432", "two").await;
        assert_eq!(hear(&mut lab.dial("10.1.0.5:5432").await, 3).await, b"one");
        assert_eq!(hear(&mut lab.dial_name("db.example.com", 5432).await, 3).await, b"two");
        assert!(rest(&mut lab.dial("10.2.0.5:5432").await).await.1);
        assert_eq!(lab.world.dialled(), ["10.1.0.5:5432", "10.2.0.5:5432"]);
    });
}

#[test]
fn the_hosts_loopback_has_one_name() {
    Lab::run(&["host.fumehood.internal:8080", "localhost.example.com:8080"], async |lab| {
        lab.world.name("localhost.example.com", &["127.0.0.1"]);
        lab.world.echo("127.0.0.1:8080", "host").await;
        let mut client = lab.dial_name("host.fumehood.internal", 8080).await;
        assert_eq!(hear(&mut client, 4).await, b"host");
        assert!(rest(&mut lab.dial_name("localhost.example.com", 8080).await).await.1);
        assert!(lab.world.looked_up().iter().all(|name| name == "localhost.example.com"));
    });
}

#[test]
fn public_places_are_open_under_proxy_and_nothing_under_dns() {
    Lab::with(
        |egress| egress.reach = Reach::Public,
        async |lab| {
            lab.world.echo("203.0.113.7:9999", "banner").await;
            assert_eq!(hear(&mut lab.dial("203.0.113.7:9999").await, 6).await, b"banner");
            assert!(rest(&mut lab.dial("10.0.0.1:9999").await).await.1);
        },
    );
    Lab::with(
        |egress| egress.reach = Reach::Names,
        async |lab| {
            assert!(rest(&mut lab.dial_name("api.example.com", 443).await).await.1);
            assert_eq!(lab.denied()[0].1, "names_only");
        },
    );
}

#[test]
fn a_server_that_is_not_there_is_told_and_ends_in_a_reset() {
    Lab::run(&["api.example.com:22", "gone.example.com:22"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        assert!(rest(&mut lab.dial_name("api.example.com", 22).await).await.1);
        assert!(rest(&mut lab.dial_name("gone.example.com", 22).await).await.1);
        let story = lab.lines(4).await;
        assert!(story[1].contains("could not be reached"), "{story:?}");
        assert!(story[3].contains("the name does not exist"), "{story:?}");
    });
}

#[test]
fn each_side_may_stop_sending_and_still_listen() {
    Lab::run(&["api.example.com:7000"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        let serve = |mut stream: TcpStream| async move {
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
            stream.write_all(format!("got {}", all.len()).as_bytes()).await.unwrap();
        };
        lab.world.server("203.0.113.7:7000", serve).await;
        let mut client = lab.dial_name("api.example.com", 7000).await;
        say(&mut client, &[0; 300_000]).await;
        client.shutdown().await.unwrap();
        assert_eq!(rest(&mut client).await, (b"got 300000".to_vec(), false));
        assert_eq!(lab.lines(2).await[1], "1 ended 300000/10");
    });
}

#[test]
fn a_reset_of_the_server_is_a_reset_for_the_client() {
    Lab::run(&["api.example.com:7000"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        let serve = |mut stream: TcpStream| async move {
            stream.read_exact(&mut [0; 3]).await.unwrap();
            stream.set_zero_linger().unwrap();
        };
        lab.world.server("203.0.113.7:7000", serve).await;
        let mut client = lab.dial_name("api.example.com", 7000).await;
        say(&mut client, b"\0bc").await;
        assert!(rest(&mut client).await.1);
        assert!(lab.lines(2).await[1].contains("the server's connection failed"));
    });
}

#[test]
fn a_reader_that_is_slow_holds_the_sender_back() {
    Lab::run(&["api.example.com:7000"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        let sent = std::rc::Rc::new(std::cell::Cell::new(0_usize));
        let seen = sent.clone();
        let serve = move |mut stream: TcpStream| {
            let sent = sent.clone();
            async move {
                while let Ok(count) = stream.write(&[1; 65536]).await {
                    sent.set(sent.get() + count);
                    tokio::task::yield_now().await;
                }
            }
        };
        lab.world.server("203.0.113.7:7000", serve).await;
        let mut client = lab.dial_name("api.example.com", 7000).await;
        say(&mut client, b"\0").await;
        hear(&mut client, 1).await;
        let mut before = 0;
        // It comes to a stand: buffers of the kernel, and no more.
        while seen.get() != before || before == 0 {
            before = seen.get();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(before < 64 << 20, "{before} bytes were taken");
        hear(&mut client, 10 << 20).await;
        assert!(seen.get() > before);
    });
}

#[test]
fn without_a_record_nothing_leaves_and_what_runs_is_cut() {
    Lab::run(&["api.example.com:7000"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:7000", "banner").await;
        let mut old = lab.dial_name("api.example.com", 7000).await;
        assert_eq!(hear(&mut old, 6).await, b"banner");
        lab.record.fail();
        let start = Instant::now();
        assert!(rest(&mut lab.dial_name("api.example.com", 7000).await).await.1);
        assert!(rest(&mut old).await.1);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert_eq!(lab.stop.cause(), Some(StopCause::Unrecorded));
        assert_eq!(lab.world.dialled().len(), 1);
        assert!(rest(&mut lab.dial("203.0.113.1:1").await).await.1);
    });
}

#[test]
fn at_the_end_of_a_run_everything_is_told() {
    Lab::run(&["api.example.com:7000"], async |lab| {
        lab.world.name("api.example.com", &[SERVER]);
        lab.world.echo("203.0.113.7:7000", "banner").await;
        let mut client = lab.dial_name("api.example.com", 7000).await;
        assert_eq!(hear(&mut client, 6).await, b"banner");
        for _ in 0..3 {
            assert!(rest(&mut lab.dial("203.0.113.1:1").await).await.1);
        }
        lab.stop.stop(StopCause::Asked);
        lab.gate.last_words().await;
        assert!(rest(&mut client).await.1);
        let story = lab.story();
        assert!(story.contains(&"1 ended 0/6 (the run is over)".to_owned()), "{story:?}");
        let counts: u64 = lab.denials().iter().map(|denied| denied.count).sum();
        assert_eq!(counts, 3);
    });
}

#[test]
fn what_is_dropped_without_its_end_is_told_as_cut_off() {
    use crate::wall::{Asked, Via, Wall as _};
    use fumehood_model::egress::{Identity, Scheme};
    Lab::run(&["api.example.com:7000"], async |lab| {
        let identity = Identity::from_authority(Scheme::Tcp, "api.example.com:7000").unwrap();
        let asked = Asked { identity: &identity, request: None, via: Via::Transparent };
        let cleared = lab.gate.clear(asked).await.unwrap();
        lab.gate.count(&cleared, 3, 4).unwrap();
        drop(cleared);
        lab.gate.journal().turn().await.unwrap();
        assert_eq!(lab.story()[1], "1 ended 3/4 (it was cut off)");
    });
}

#[test]
fn an_upstream_proxy_is_asked_and_told_only_what_is_not_internal() {
    let change = |egress: &mut fumehood_model::egress::Egress| {
        egress.rules = parsed(&["far.example.com:22", "inside.example.com:22", "10.0.0.9:22"], Rule::parse);
        egress.upstream = upstream("http://10.9.9.9:3128");
    };
    Lab::with(change, async |lab| {
        lab.world.name("inside.example.com", &["10.0.0.1"]);
        let serve = |mut stream: TcpStream| async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            let line = String::from_utf8_lossy(&head).lines().next().unwrap().to_owned();
            let answer = format!("HTTP/1.1 200 OK\r\nVia: x\r\n\r\n<{line}>");
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        lab.world.server("10.9.9.9:3128", serve).await;
        let mut client = lab.dial_name("far.example.com", 22).await;
        let told = b"<CONNECT far.example.com:22 HTTP/1.1>";
        assert_eq!(hear(&mut client, told.len()).await, told);
        assert!(rest(&mut lab.dial_name("inside.example.com", 22).await).await.1);
        assert_eq!(lab.denied()[0].1, "internal_address");
        assert_eq!(lab.world.dialled(), ["10.9.9.9:3128"]);
        let mut named = lab.dial("10.0.0.9:22").await;
        let told = b"<CONNECT 10.0.0.9:22 HTTP/1.1>";
        assert_eq!(hear(&mut named, told.len()).await, told);
    });
}

/// The same before it is known what is spoken: what the task of every connection begins with.
#[test]
fn the_state_of_a_connection_is_small() {
    Lab::with(
        |_| {},
        async |lab| {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let stream = TcpStream::connect(address).await.unwrap();
            let dialled = lab.entrance.clone().dialled(stream, address);
            let bytes = size_of_val(&dialled);
            println!("any: {bytes} bytes");
            assert!(bytes <= 2 << 10, "{bytes}");
        },
    );
}
