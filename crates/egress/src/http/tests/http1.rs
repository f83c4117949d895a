//! Whole exchanges over HTTP/1 in the clear.

use super::*;

const RULE: &str = "GET,HEAD,POST http://api.example.com/v1/**";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

#[test]
fn a_request_is_judged_carried_and_recorded() {
    run(async {
        let (address, seen) = server(vec![("\r\n\r\n", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut client = client(&wall, place("http://api.example.com")).await;
        let answer = talk(&mut client, b"GET /v1/x?q=1 HTTP/1.1\r\nHost: API.example.com:80\r\nConnection: X-Hop\r\nX-Hop: 1\r\nX-Kept: 2\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nhi"), "{answer}");
        let seen = String::from_utf8(seen.borrow().clone()).unwrap();
        assert_eq!(seen, "GET /v1/x?q=1 HTTP/1.1\r\nhost: api.example.com\r\nx-kept: 2\r\n\r\n");
        assert_eq!(wall.lines(2).await, ["allow GET http://api.example.com/v1/x?q=1", "end 200 -"]);
    });
}

#[test]
fn each_request_of_a_connection_is_judged_anew() {
    run(async {
        let (address, seen) = server(vec![("\r\n\r\n", OK), ("\r\n\r\n", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut client = client(&wall, place("http://api.example.com")).await;
        // All three at once, as a client that does not wait.
        let answer = talk_all(
            &mut client,
            b"GET /v1/a HTTP/1.1\r\nHost: api.example.com\r\n\r\n\
              GET /admin HTTP/1.1\r\nHost: api.example.com\r\n\r\n\
              GET /v1/b HTTP/1.1\r\nHost: api.example.com\r\n\r\n",
        )
        .await;
        let statuses: Vec<&str> =
            answer.split("HTTP/1.1 ").skip(1).map(|rest| rest.get(..3).unwrap()).collect();
        assert_eq!(statuses, ["200", "403", "200"]);
        assert!(
            answer.contains(r#""code":"path""#)
                && answer.contains("--allow 'GET http://api.example.com/admin'"),
            "{answer}"
        );
        assert!(!String::from_utf8_lossy(&seen.borrow()).contains("admin"));
        // The second allowed one went over the same connection.
        assert_eq!(wall.dialled(), 1);
    });
}

#[test]
fn a_body_goes_up_and_chunks_come_down_with_trailers() {
    run(async {
        let say = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: 5\r\nContent-Length: 9\r\n\r\n";
        let (address, seen) = server(vec![("0\r\n\r\n", say)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut client = client(&wall, place("http://api.example.com")).await;
        let answer = talk_all(
            &mut client,
            b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        )
        .await;
        assert!(answer.ends_with("3\r\nabc\r\n2\r\nde\r\n0\r\nx-sum: 5\r\n\r\n"), "{answer}");
        assert!(String::from_utf8_lossy(&seen.borrow()).ends_with("\r\n\r\n5\r\nhello\r\n0\r\n\r\n"));
    });
}

#[test]
fn an_answer_that_breaks_off_does_not_look_whole() {
    for (say, fault) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", "middle"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi", "middle"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi!\r\n0\r\n\r\n", "longer"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\nxyz\r\n0\r\n\r\n", "no number"),
    ] {
        run(async {
            let (address, _) = server(vec![("\r\n\r\n", say)]).await;
            let wall = Fake::new(&[RULE], address);
            let mut client = client(&wall, place("http://api.example.com")).await;
            let answer = talk(&mut client, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
            // Where nothing had left yet, the answer is ours.
            let cut = answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.ends_with("0\r\n\r\n");
            assert!(cut || answer.starts_with("HTTP/1.1 502 "), "{answer}");
            assert!(wall.lines(2).await[1].contains(fault), "{:?}", wall.record());
        });
    }
}

#[test]
fn a_server_that_answers_with_no_http_is_a_bad_gateway() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20)).leak();
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(200)).leak();
    for say in [
        &*long,
        &*many,
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX : y\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 2\n\nhi",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: evil\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH\r\n\r\n",
        "",
    ] {
        run(async {
            let (address, _) = server(vec![("\r\n\r\n", say)]).await;
            let wall = Fake::new(&[RULE], address);
            let mut client = client(&wall, place("http://api.example.com")).await;
            let answer = talk(&mut client, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
            assert!(answer.starts_with("HTTP/1.1 502 "), "{say:.60}: {answer}");
            assert!(wall.lines(2).await[1].starts_with("end 502 "), "{:?}", wall.record());
        });
    }
}

#[test]
fn heads_without_bodies_interim_answers_and_old_clients() {
    run(async {
        let say = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n";
        let (address, _) = server(vec![("\r\n\r\n", say)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let answer = talk_all(&mut one, b"HEAD /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
        assert_eq!(answer, "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n");
        let say = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
        let (address, _) = server(vec![("\r\n\r\n", say)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let answer = talk(&mut one, b"GET /v1/x HTTP/1.0\r\nHost: api.example.com\r\n\r\n").await;
        assert_eq!(answer, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhi");
    });
}

#[test]
fn a_client_that_waits_is_told_to_send_and_a_refused_one_is_not() {
    run(async {
        let (address, _) = server(vec![("hello", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let head = b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        assert_eq!(talk(&mut one, head).await, "HTTP/1.1 100 Continue\r\n\r\n");
        assert!(talk_all(&mut one, b"hello").await.ends_with("\r\n\r\nhi"));
        let mut one = client(&wall, place("http://api.example.com")).await;
        let head = b"PUT /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n";
        let answer = talk(&mut one, head).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("connection: close"), "{answer}");
    });
}

#[test]
fn a_stale_connection_is_replaced_once() {
    run(async {
        // Each connection of this server ends with its first answer.
        let (address, _) = server(vec![("\r\n\r\n", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut one = client(&wall, place("http://api.example.com")).await;
        for _ in 0..3 {
            let answer = talk(&mut one, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n").await;
            assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
        }
        assert_eq!(wall.dialled(), 3);
    });
}

#[test]
fn a_ceiling_stops_a_body_under_way() {
    run(async {
        let (address, _) = server(vec![("never", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        wall.limit_out(4096);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let mut request =
            b"POST /v1/x HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 100000\r\n\r\n".to_vec();
        request.extend_from_slice(&[b'x'; 8192]);
        let answer = talk(&mut one, &request).await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("ceiling"), "{answer}");
    });
}

#[test]
fn a_proxy_takes_whole_urls() {
    run(async {
        let (address, seen) = server(vec![("\r\n\r\n", OK), ("\r\n\r\n", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        let proxy = || Addressing::Proxy { own: identity("http://198.18.0.1:3128") };
        let mut one = client(&wall, proxy()).await;
        let answer = talk(&mut one, b"GET http://api.example.com/v1/x HTTP/1.1\r\nHost: api.example.com\r\nProxy-Authorization: Basic eA==\r\n\r\n").await;
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
        assert!(seen.borrow().starts_with(b"GET /v1/x HTTP/1.1\r\nhost: api.example.com\r\n\r\n"));
        for (request, status) in [
            (&b"GET http://api.example.com/v1/x HTTP/1.1\r\nHost: other.example.com\r\n\r\n"[..], "421"),
            (b"GET http://other.example.com/v1/x HTTP/1.1\r\nHost: other.example.com\r\n\r\n", "403"),
            (b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
            (b"GET https://api.example.com/v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
            (b"GET http://a@api.example.com/v1/x HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "400"),
            (b"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n", "400"),
            (b"GET http://api.example.com/v1/x#y HTTP/1.1\r\nHost: api.example.com\r\n\r\n", "403"),
        ] {
            let mut one = client(&wall, proxy()).await;
            let answer = talk(&mut one, request).await;
            assert_eq!(answer.get(9..12), Some(status), "{answer}");
        }
    });
}

#[test]
fn a_websocket_becomes_bytes_both_ways_and_other_upgrades_do_not() {
    run(async {
        let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\nearly";
        let (address, seen) = server(vec![("\r\n\r\n", switch), ("ping", "pong")]).await;
        let wall = Fake::new(&[RULE], address);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let ask = b"GET /v1/ws HTTP/1.1\r\nHost: api.example.com\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n";
        let answer = talk_all(&mut one, ask).await;
        assert!(answer.starts_with("HTTP/1.1 101 ") && answer.ends_with("\r\n\r\nearly"), "{answer}");
        assert_eq!(talk_all(&mut one, b"ping").await, "pong");
        assert!(String::from_utf8_lossy(&seen.borrow()).contains("upgrade: websocket\r\n"));
        drop(one);
        assert_eq!(wall.lines(2).await, ["allow GET http://api.example.com/v1/ws", "end 101 -"]);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let answer = talk(
            &mut one,
            b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade\r\nUpgrade: evil\r\n\r\n",
        )
        .await;
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains(r#""code":"upgrade""#), "{answer}");
        // An offer of HTTP/2 is left aside, and does not reach the server.
        let (address, seen) = server(vec![("\r\n\r\n", OK)]).await;
        let wall = Fake::new(&[RULE], address);
        let mut one = client(&wall, place("http://api.example.com")).await;
        let answer = talk(&mut one, b"GET /v1/x HTTP/1.1\r\nHost: api.example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n").await;
        assert!(answer.ends_with("\r\n\r\nhi"), "{answer}");
        assert_eq!(
            String::from_utf8_lossy(&seen.borrow()),
            "GET /v1/x HTTP/1.1\r\nhost: api.example.com\r\n\r\n"
        );
    });
}
