//! Places that the record goes to besides: a mirror that has a line before its act, and sinks that have it later.

use crate::lab::{Caller, DEADLINE, Lab, Ran, am_root, finish, poll};
use crate::process::with_operator;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::UnixDatagram;
use std::sync::mpsc::{Receiver, channel};

fn words(lab: &Lab, words: &[&str]) -> Ran {
    let mut command = lab.fumehood();
    command.args(words);
    finish(command, b"")
}

fn ship(lab: &Lab, to: &str) -> Ran {
    words(lab, &["audit", "ship", "--to", to])
}

fn caller() -> Caller {
    if am_root() { Caller::Root } else { Caller::User }
}

/// Every line of the record.
fn lines(lab: &Lab) -> BTreeSet<String> {
    let files = fs::read_dir(lab.state().join("records")).unwrap().map(|entry| entry.unwrap().path());
    files
        .flat_map(|path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Runs, and waits until its reaper has written the last line that there will be.
fn ran(lab: &Lab) {
    let before = fs::read_to_string(lab.state().join("records/index.jsonl")).unwrap_or_default().len();
    assert_eq!(lab.run(&[], &["true"]).code(), 0);
    assert!(poll(DEADLINE, || {
        let index = fs::read_to_string(lab.state().join("records/index.jsonl")).unwrap();
        index.get(before..).is_some_and(|more| more.contains("index.signed"))
    }));
}

/// A server that answers so many posts with each of these statuses, and hands their bodies over.
fn server(statuses: &'static [u16]) -> (String, Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = listener.local_addr().unwrap();
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            let mut all = Vec::new();
            let mut chunk = [0; 65536];
            let (head, body) = loop {
                let count = stream.read(&mut chunk).unwrap();
                all.extend_from_slice(&chunk[..count]);
                let text = String::from_utf8_lossy(&all).into_owned();
                let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
                let length = head.to_lowercase();
                let length = length.split_once("content-length: ").unwrap().1;
                let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
                if all.len() >= head.len() + 4 + length {
                    break (head.to_owned(), all[head.len() + 4..].to_vec());
                }
            };
            let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).unwrap();
            drop(send.send((head, body)));
        }
    });
    (place.to_string(), receive)
}

#[test]
fn a_file_and_a_syslog_get_every_line_once() {
    let lab = Lab::new(caller());
    ran(&lab);
    let elsewhere = lab.folder("elsewhere").join("record.jsonl");
    let to = format!("file:{}", elsewhere.display());
    let shipped = ship(&lab, &to);
    assert_eq!(shipped.code(), 0, "{}", shipped.told());
    let again = ship(&lab, &to);
    assert_eq!(again.out(), "0 lines shipped, 0 bytes\n");
    ran(&lab);
    assert_eq!(ship(&lab, &to).code(), 0);
    let text = fs::read_to_string(&elsewhere).unwrap();
    let found: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    assert_eq!((found.len(), &found), (text.lines().count(), &lines(&lab)));

    let socket = lab.path().join("log");
    let daemon = UnixDatagram::bind(&socket).unwrap();
    lab.give(&socket);
    let heard = std::thread::spawn(move || {
        daemon.set_read_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
        let (mut found, mut message) = (BTreeSet::new(), vec![0; 1 << 20]);
        while let Ok(length) = daemon.recv(&mut message) {
            let text = String::from_utf8(message[..length].to_vec()).unwrap();
            found.insert(text.strip_prefix("<134>fumehood: ").unwrap().to_owned());
        }
        found
    });
    let shipped = ship(&lab, &format!("syslog:{}", socket.display()));
    assert_eq!(shipped.code(), 0, "{}", shipped.told());
    assert_eq!(heard.join().unwrap(), lines(&lab));
}

#[test]
fn a_sink_that_is_down_gets_it_later_and_nothing_goes_before() {
    let lab = Lab::new(caller());
    ran(&lab);
    let (place, posts) = server(&[503, 200, 200]);
    let to = format!("http://{place}/in");
    let down = ship(&lab, &to);
    assert_eq!(down.code(), 1, "{}", down.told());
    assert!(down.err().contains("503") && down.err().contains("sent again"), "{}", down.told());
    drop(posts.recv().unwrap());
    // What a sink has not had is not removed.
    let pruned = words(&lab, &["audit", "prune", "--older-than", "1ms"]);
    assert!(
        pruned.out().starts_with("0 records") && pruned.err().contains("has not had all"),
        "{}",
        pruned.told()
    );
    let shipped = ship(&lab, &to);
    assert_eq!(shipped.code(), 0, "{}", shipped.told());
    let mut sent = BTreeSet::new();
    for _ in 0..2 {
        let (head, body) = posts.recv().unwrap();
        assert!(head.to_lowercase().contains("fumehood-record: "), "{head}");
        sent.extend(String::from_utf8(body).unwrap().lines().map(str::to_owned));
    }
    assert!(sent.iter().any(|line| line.contains("task.closed")), "{sent:?}");
    assert!(sent.is_subset(&lines(&lab)));
    let pruned = words(&lab, &["audit", "prune", "--older-than", "1ms"]);
    assert!(pruned.out().starts_with("1 records"), "{}", pruned.told());
    let nobody = ship(&lab, "http://127.0.0.1:9/in");
    assert!(nobody.code() == 1 && nobody.err().contains("remedy:"), "{}", nobody.told());
    for bad in ["", "nowhere", "file:relative", "ftp://host/x", "https://user@host/"] {
        let refused = ship(&lab, bad);
        assert!(refused.code() == 1 && refused.err().contains("remedy:"), "{bad}: {}", refused.told());
    }
}

#[test]
fn log_records_of_opentelemetry_hold_the_lines() {
    let lab = Lab::new(caller());
    ran(&lab);
    let (place, posts) = server(&[200, 200]);
    let shipped = ship(&lab, &format!("otlp:http://{place}"));
    assert_eq!(shipped.code(), 0, "{}", shipped.told());
    let mut found = BTreeSet::new();
    for _ in 0..2 {
        let (head, body) = posts.recv().unwrap();
        assert!(head.starts_with("POST /v1/logs "), "{head}");
        let body: Value = serde_json::from_slice(&body).unwrap();
        for record in body["resourceLogs"][0]["scopeLogs"][0]["logRecords"].as_array().unwrap() {
            found.insert(record["body"]["stringValue"].as_str().unwrap().to_owned());
            assert!(record["timeUnixNano"].as_str().unwrap().len() >= 19, "{record}");
        }
    }
    assert_eq!(found, lines(&lab));
}

#[test]
fn what_the_operators_mirror_does_not_take_does_not_happen() {
    if !Caller::Root.available() {
        return;
    }
    let lab = Lab::new(Caller::Root);
    let mirror = lab.folder("mirror").join("record.jsonl");
    let text = format!("mirror = \"file:{}\"", mirror.display());
    let ran = with_operator(&lab, &text, "true", &["run", "--", "echo", "ran"]);
    assert_eq!((ran.code(), ran.out().as_str()), (0, "ran\n"), "{}", ran.told());
    let made = with_operator(&lab, &text, "true", &["create"]);
    assert_eq!(made.code(), 0, "{}", made.told());
    let id = made.out().trim().to_owned();
    assert_eq!(words(&lab, &["exec", &id, "--", "true"]).code(), 0);
    assert_eq!(words(&lab, &["stop", &id]).code(), 0);
    let mirrored: BTreeSet<String> =
        fs::read_to_string(&mirror).unwrap().lines().map(str::to_owned).collect();
    let own: BTreeSet<String> =
        lines(&lab).into_iter().filter(|line| !line.contains("\"event\":\"index.")).collect();
    assert_eq!(mirrored, own);
    let down = "mirror = \"syslog:/no/such/socket\"";
    let ran = with_operator(&lab, down, "true", &["run", "--", "touch", "/out"]);
    assert!(ran.code() == 125 && ran.err().contains("mirror"), "{}", ran.told());
    let made = with_operator(&lab, down, "true", &["create"]);
    assert!(made.code() == 1 && made.err().contains("mirror"), "{}", made.told());
    let wrong = with_operator(&lab, "mirror = \"nowhere\"", "true", &["run", "--", "true"]);
    assert!(wrong.code() == 125 && wrong.err().contains("operator.toml"), "{}", wrong.told());
}
