//! Fetches through a gate with real rules, in a world of servers that are here.

use super::*;
use crate::record::memory::MemoryRecorder;
use crate::tests::lab::Lab;
use fumehood_model::egress::{Ceiling, Reach};
use fumehood_model::event::Event;
use std::io::Write as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const RIGHT: &str = "203.0.113.7";
const WRONG: &str = "198.51.100.66";

/// Serves, at port 80 of an address, what `answer` gives for a path.
async fn serve(lab: &Lab, address: &str, answer: impl Fn(&str) -> Vec<u8> + Clone + 'static) {
    let serve = move |mut stream: tokio::net::TcpStream| {
        let answer = answer.clone();
        async move {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { return };
                head.push(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let path = head.split(' ').nth(1).unwrap_or_default();
            let _ = stream.write_all(&answer(path)).await;
            let _ = stream.shutdown().await;
        }
    };
    lab.world.server(&format!("{address}:80"), serve).await;
}

fn ok(fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n{fields}\r\n");
    [head.as_bytes(), body].concat()
}

fn to(location: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 -\r\nlocation: {location}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        .into_bytes()
}

fn job(url: &str) -> Job {
    Job {
        url: Url::parse(url).unwrap(),
        method: Method::Get,
        most_bytes: 1000,
        most_redirects: 3,
        time: Duration::from_secs(60),
    }
}

async fn fetched(lab: &Lab, job: &Job) -> (Outcome, Vec<u8>) {
    let servers = Rc::new(crate::tls::Servers::default());
    let forward = Forward::new(lab.gate.clone(), servers, Rc::new(Secrets::default()));
    in_time(&lab.gate, &forward, job).await
}

async fn page(lab: &Lab, job: &Job) -> (Page, Vec<u8>) {
    match fetched(lab, job).await {
        (Outcome::Page(page), body) => (page, body),
        (Outcome::Failed(failed), _) => panic!("{failed:?}"),
    }
}

async fn failed(lab: &Lab, job: &Job) -> Failed {
    match fetched(lab, job).await {
        (Outcome::Failed(failed), _) => failed,
        (Outcome::Page(page), _) => panic!("{page:?}"),
    }
}

fn lines(record: &MemoryRecorder) -> Vec<&'static str> {
    record.events().iter().map(Event::name).collect()
}

fn public(test: impl AsyncFnOnce(Lab)) {
    Lab::with(|egress| egress.reach = Reach::Public, test);
}

#[test]
fn a_page_is_fetched_and_recorded() {
    public(async |lab| {
        lab.world.name("example.com", &[RIGHT]);
        serve(&lab, RIGHT, |_| ok("content-type: text/plain\r\n", b"hello")).await;
        let (page, body) = page(&lab, &job("http://example.com/a?secret=1")).await;
        assert_eq!((page.status, body.as_slice()), (200, &b"hello"[..]));
        assert_eq!(page.content_type.as_deref(), Some("text/plain"));
        assert!(page.may_be_kept && !page.truncated);
        assert_eq!(lines(&lab.record), ["egress.allowed", "egress.ended"]);
        let text = format!("{:?}", lab.record.events());
        assert!(text.contains("\"fetch\"") && !text.contains("secret"), "{text}");
    });
}

#[test]
fn each_redirect_is_judged_by_itself() {
    Lab::run(&["http://example.com"], async |lab| {
        lab.world.name("example.com", &[RIGHT]);
        lab.world.name("other.example", &[WRONG]);
        serve(&lab, RIGHT, |path| match path {
            "/here" => to("there"),
            "/out" => to("http://other.example/"),
            "/in" => to("http://169.254.169.254/"),
            "/file" => to("file:///etc/passwd"),
            "/circle" => to("/circle?"),
            "/circle?" => to("/circle"),
            path if path.starts_with("/more") => to(&format!("{path}x")),
            _ => ok("", b"end"),
        })
        .await;
        let (found, _) = page(&lab, &job("http://example.com/here")).await;
        assert_eq!((found.url.as_str(), found.redirects), ("http://example.com/there", 1));
        for (path, code) in [
            ("out", "no_rule"),
            ("in", "internal_address"),
            ("file", "bad_redirect"),
            ("circle", "redirect_loop"),
            ("more", "too_many_redirects"),
        ] {
            let failed = failed(&lab, &job(&format!("http://example.com/{path}"))).await;
            assert_eq!(failed.code, code, "{failed:?}");
        }
        assert!(
            lab.world.dialled().iter().all(|place| place == "203.0.113.7:80"),
            "{:?}",
            lab.world.dialled()
        );
        let refused = lab.record.events().into_iter().filter(|event| event.name() == "egress.denied").count();
        assert_eq!(refused, 3, "{:?}", lab.record.events());
    });
}

#[test]
fn the_cap_is_on_what_was_decoded() {
    public(async |lab| {
        lab.world.name("example.com", &[RIGHT]);
        serve(&lab, RIGHT, |path| {
            let many = if path == "/exact" { 1000 } else { 10 << 20 };
            let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            packer.write_all(&vec![0; many]).unwrap();
            let packed = packer.finish().unwrap();
            let part = if path == "/torn" { &packed[..packed.len() / 2] } else { &packed };
            match path {
                "/odd" => ok("content-encoding: compress\r\n", part),
                "/false" => ok("content-encoding: gzip\r\n", b"this is no gzip"),
                _ => ok("content-encoding: gzip\r\n", part),
            }
        })
        .await;
        let (found, body) = page(&lab, &job("http://example.com/exact")).await;
        assert_eq!((found.bytes, found.truncated, body.len()), (1000, false, 1000));
        let (found, body) = page(&lab, &job("http://example.com/bomb")).await;
        assert_eq!((found.bytes, found.truncated, body.len()), (1000, true, 1000));
        assert!(!found.may_be_kept);
        let wide = Job { most_bytes: 64 << 20, ..job("http://example.com/torn") };
        for job in [wide, job("http://example.com/odd"), job("http://example.com/false")] {
            assert_eq!(failed(&lab, &job).await.code, "bad_answer", "{}", job.url);
        }
    });
}

#[test]
fn ceilings_and_the_clock_hold() {
    Lab::with(
        |egress| {
            egress.reach = Reach::Public;
            egress.ceilings = vec![Ceiling::parse("requests=2").unwrap()];
        },
        async |lab| {
            lab.world.name("example.com", &[RIGHT]);
            let hang = |mut stream: tokio::net::TcpStream| async move {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n.").await;
                std::future::pending::<()>().await;
            };
            lab.world.server(&format!("{RIGHT}:80"), hang).await;
            let short = Job { time: Duration::from_millis(100), ..job("http://example.com/") };
            for _ in 0..2 {
                assert_eq!(failed(&lab, &short).await.code, "timed_out");
            }
            assert_eq!(failed(&lab, &short).await.code, "ceiling");
            lab.gate.last_words().await;
            assert_eq!(lines(&lab.record).iter().filter(|name| **name == "egress.ended").count(), 2);
        },
    );
}

#[test]
fn without_a_record_nothing_is_fetched() {
    public(async |lab| {
        lab.world.name("example.com", &[RIGHT]);
        serve(&lab, RIGHT, |_| ok("", b"hello")).await;
        lab.record.fail();
        assert_eq!(failed(&lab, &job("http://example.com/")).await.code, "unrecorded");
        assert!(lab.world.dialled().is_empty());
    });
}

#[test]
fn an_outcome_is_read_back_only_whole() {
    let told = Outcome::Failed(Failed {
        url: "http://example.com/".to_owned(),
        code: "x".to_owned(),
        message: "y".to_owned(),
        remedy: "z".to_owned(),
    });
    let frame = told.frame();
    assert_eq!(Outcome::read(&frame, 10), Some((told, &[][..])));
    for end in 0..frame.len() {
        assert_eq!(Outcome::read(&frame[..end], 10), None);
    }
    assert_eq!(Outcome::read(&[&frame[..], b"more"].concat(), 10), None);
    assert_eq!(Outcome::read(&[0xff; 100], 10), None);
}
