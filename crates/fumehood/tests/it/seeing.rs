//! What is seen of the daemon from outside, and by which door: TLS, traces, its log, the fleet's arithmetic.

use crate::lab::{DEADLINE, Lab, finish, poll};
use crate::serve::{Daemon, caller};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A collector on the loopback: every span that it was sent.
fn collector() -> (u16, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let spans = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&spans);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut head, mut length) = (String::new(), 0);
            while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head).unwrap() > 0 {}
            assert!(head.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{head}");
            for line in head.lines() {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                    length = value.parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let told: Value = serde_json::from_slice(&body).unwrap();
            let all = told["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
            kept.lock().unwrap().extend(all);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").unwrap();
        }
    });
    (port, spans)
}

#[test]
fn what_is_done_with_a_sandbox_is_one_trace() {
    let (port, spans) = collector();
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &["--most-pool", "0", "--otlp", &format!("http://127.0.0.1:{port}")]);
    let id = daemon.create(&json!({}));
    daemon.shell(&id, "echo s3cret-argument; exit 7");
    let (status, told) = daemon.ask("POST", &format!("/v1/sandboxes/{id}/snapshots"), &json!({}));
    assert!(status < 300, "{told}");
    daemon.ask("POST", &format!("/v1/sandboxes/{id}/fork"), &json!({ "count": 1 }));
    daemon.ask("POST", &format!("/v1/sandboxes/{id}/pause"), &Value::Null);
    daemon.shell(&id, "true");
    let named = |name: &str| {
        let spans = spans.lock().unwrap();
        spans.iter().find(|span| span["name"] == name && span.to_string().contains(&id)).cloned()
    };
    let mut traces = BTreeMap::new();
    for name in ["create", "exec", "snapshot", "fork"] {
        assert!(poll(DEADLINE, || named(name).is_some()), "no span `{name}`: {:?}", spans.lock().unwrap());
        let span = named(name).unwrap();
        traces.entry(span["traceId"].as_str().unwrap().to_owned()).or_insert(name);
        let at = |field: &str| span[field].as_str().unwrap().parse::<u128>().unwrap();
        assert!(at("endTimeUnixNano") >= at("startTimeUnixNano"), "{span}");
    }
    assert_eq!(traces.len(), 1, "{traces:?}");
    let exec = named("exec").unwrap();
    assert!(exec.to_string().contains("exec.code") && exec["status"]["code"] == 2, "{exec}");
    assert!(!spans.lock().unwrap().iter().any(|span| span.to_string().contains("s3cret-argument")));
    let (_, text) =
        crate::serve::raw(daemon.port, "GET", "/metrics", &format!("X-API-KEY: {}\r\n", daemon.key), b"");
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("fumehood_trace_spans_dropped_total 0"), "{text}");
}

#[test]
fn a_collector_that_is_no_address_refuses_the_start() {
    let lab = Lab::new(caller());
    for (flags, word) in [
        (&["--otlp", "https://collector.example.com"][..], "http://HOST:PORT"),
        (&["--log", "loud"][..], "loud"),
        (&["--tls-cert", "x"][..], "--tls-key"),
        (&["--tls-cert", "/none", "--tls-key", "/none"][..], "/none"),
    ] {
        let mut command = lab.fumehood();
        command.arg("serve").args(flags);
        let ran = finish(command, b"");
        assert!(ran.code() != 0 && ran.err().contains(word), "{flags:?}: {}", ran.told());
    }
}

#[test]
fn tls_is_spoken_to_names_of_the_domain_in_both_versions_of_http() {
    let lab = Lab::new(caller());
    let make = [
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=own",
        "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout box.key -out box.csr -subj /CN=box",
        "printf 'subjectAltName=DNS:box.example.com,DNS:*.box.example.com\\nbasicConstraints=CA:FALSE\\n' > box.ext",
        "openssl x509 -req -in box.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile box.ext -out box.pem",
    ];
    let mut shell = lab.command("sh");
    shell.args(["-ec", &make.join("\n")]).current_dir(lab.path());
    let made = finish(shell, b"");
    assert_eq!(made.code(), 0, "{}", made.told());
    let file = |name: &str| lab.path().join(name).display().to_string();
    let (cert, key) = (file("box.pem"), file("box.key"));
    let daemon =
        Daemon::start(&lab, &["--domain", "box.example.com", "--tls-cert", &cert, "--tls-key", &key]);
    let curl = |flags: &[&str], path: &str| {
        let (host, rest) = path.split_once('/').unwrap_or((path, ""));
        let mut curl = lab.command("curl");
        curl.args(["-sS", "-m", "20", "--cacert", &file("ca.pem"), "-w", " %{http_code} %{http_version}"]);
        curl.args(["--resolve", &format!("{host}:{}:127.0.0.1", daemon.port)]).args(flags);
        curl.arg(format!("https://{host}:{}/{rest}", daemon.port));
        let ran = finish(curl, b"");
        format!("{}{}", ran.out(), ran.err())
    };
    let bearer = format!("Authorization: Bearer {}", daemon.key);
    for (version, shown) in [("--http1.1", " 1.1"), ("--http2", " 2")] {
        let made = curl(&[version, "-H", &bearer, "--json", "{}"], "api.box.example.com/v1/sandboxes");
        assert!(made.contains(&format!(" 201{shown}")), "{made}");
        let made: Value = serde_json::Deserializer::from_str(&made).into_iter().next().unwrap().unwrap();
        let id = made["id"].as_str().unwrap();
        // Commands by E2B's agent, and a port: each by its own name.
        let health = curl(&[version], &format!("49983-{id}.box.example.com/health"));
        assert!(health.contains(&format!(" 204{shown}")), "{health}");
        let path = format!("api.box.example.com/v1/sandboxes/{id}/execs");
        let serve = r#"{"shell": "mkdir -p w && echo page > w/p && cd w && exec python3 -m http.server 8100 --bind 127.0.0.1", "detach": true}"#;
        curl(&[version, "-H", &bearer, "--json", serve], &path);
        let name = format!("8100-{id}.box.example.com/p");
        let mut seen = String::new();
        let there = poll(DEADLINE, || {
            seen = curl(&[version, "-H", &bearer], &name);
            seen.starts_with("page")
        });
        assert!(there, "{seen}");
        assert!(curl(&[version], &name).contains(&format!(" 401{shown}")));
    }
    // Names of others, the clear, and who does not know the authority.
    assert!(curl(&["-k"], "api.other.example.com/v1/openapi.json").contains(" 403"));
    let (status, _) = {
        let mut curl = lab.command("curl");
        curl.args(["-sS", "-m", "20", &format!("http://127.0.0.1:{}/healthz", daemon.port)]);
        let ran = finish(curl, b"");
        (ran.code(), ran.told())
    };
    assert_ne!(status, 0);
    let mut stranger = lab.command("curl");
    stranger.args(["-sS", "--resolve", &format!("box.example.com:{}:127.0.0.1", daemon.port)]);
    stranger.arg(format!("https://box.example.com:{}/healthz", daemon.port));
    assert_ne!(finish(stranger, b"").code(), 0);
    // A key of somebody else's is seen at the start.
    let mut wrong = lab.fumehood();
    wrong.args(["serve", "--listen", "127.0.0.1:0", "--tls-cert", &cert, "--tls-key", &file("ca.key")]);
    let ran = finish(wrong, b"");
    assert!(ran.code() != 0 && ran.err().contains("box.pem"), "{}", ran.told());
}

#[test]
fn a_fleet_is_computed_and_a_seed_gives_the_same_again() {
    let lab = Lab::new(caller());
    let fleet = |flags: &[&str]| {
        let mut command = lab.fumehood();
        command.arg("fleet").args(flags);
        finish(command, b"")
    };
    let flags = ["--tasks-per-hour", "36000", "--create", "500ms", "--arrivals", "5000", "--json"];
    let (one, two) = (fleet(&flags), fleet(&flags));
    assert_eq!((one.code(), one.out()), (0, two.out()), "{}", one.told());
    let told: Value = serde_json::from_str(&one.out()).unwrap();
    assert_eq!(told["plan"]["pool"], 10, "{told}");
    assert!(told["simulated"]["wait_p95_ms"].as_f64().unwrap() >= 3.0, "{told}");
    assert!(fleet(&[]).out().contains("misses"));
    for bad in [["--active", "2"], ["--life", "long"], ["--mem", "-1"], ["--tasks-per-hour", "NaN"]] {
        let ran = fleet(&bad);
        assert!(ran.code() != 0 && !ran.err().is_empty(), "{bad:?}: {}", ran.told());
    }
}

#[test]
fn a_sandbox_that_nobody_uses_is_paused_and_the_next_verb_wakes_it() {
    let lab = Lab::new(caller());
    let run = |words: &[&str]| {
        let mut command = lab.fumehood();
        command.args(words);
        finish(command, b"")
    };
    let made = run(&["create", "--idle-pause", "1s"]);
    if made.code() != 0 && made.err().contains("pause") {
        assert!(made.err().contains("remedy"), "{}", made.told());
        println!("NOT-APPLICABLE: nothing here freezes: {}", made.told());
        return;
    }
    assert_eq!(made.code(), 0, "{}", made.told());
    let id = made.out().trim().to_owned();
    let phase = || run(&["ls"]).out();
    run(&["exec", &id, "--", "sh", "-c", "echo kept > /tmp/kept"]);
    assert!(poll(DEADLINE, || phase().contains("paused")), "{}", phase());
    assert_eq!(run(&["exec", &id, "--", "cat", "/tmp/kept"]).out(), "kept\n");
    assert!(phase().contains("running"), "{}", phase());
    assert!(poll(DEADLINE, || phase().contains("paused")), "{}", phase());
    assert_eq!(run(&["files", "cat", &id, "/tmp/kept"]).out(), "kept\n");
    // What computes is not idle; what sleeps is.
    run(&["exec", "--detach", &id, "--", "sh", "-c", "while :; do :; done"]);
    std::thread::sleep(std::time::Duration::from_secs(4));
    assert!(phase().contains("running"), "{}", phase());
    // A pause that was asked for is not ended by a verb.
    assert_eq!(run(&["pause", &id]).code(), 0);
    assert_ne!(run(&["exec", &id, "--", "true"]).code(), 0);
    assert_eq!(run(&["resume", &id]).code(), 0);
    assert_eq!(run(&["rm", &id]).code(), 0);
    for bad in ["0s", "soon", "-5m"] {
        assert_ne!(run(&["create", "--idle-pause", bad]).code(), 0, "{bad}");
    }
}
