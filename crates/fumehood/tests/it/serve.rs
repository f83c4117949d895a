//! The daemon, from outside: what it serves, whom it lets in, and what a kill of it leaves.

use crate::lab::{self, Caller, DEADLINE, Lab, am_root, finish, poll};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A daemon on a lab's state folder.
pub(crate) struct Daemon<'a> {
    lab: &'a Lab,
    pub(crate) child: Child,
    pub(crate) port: u16,
    /// With every scope, of the team `local`.
    pub(crate) key: String,
}

// === impl Daemon ===

impl<'a> Daemon<'a> {
    pub(crate) fn start(lab: &'a Lab, flags: &[&str]) -> Self {
        let key = key(lab, &["--scope", "admin"]);
        Self::again(lab, key, flags)
    }

    pub(crate) fn again(lab: &'a Lab, key: String, flags: &[&str]) -> Self {
        Self::of(lab, key, Self::command(lab, flags))
    }

    /// The command that starts a daemon.
    pub(crate) fn command(lab: &Lab, flags: &[&str]) -> Command {
        let mut command = lab.fumehood();
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(flags);
        command
    }

    /// Starts one, and waits until it listens.
    pub(crate) fn of(lab: &'a Lab, key: String, mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let mut lines = String::new();
        let port = loop {
            let from = lines.len();
            assert!(told.read_line(&mut lines).unwrap() > 0, "the daemon ended: {lines}");
            let line = lines.get(from..).unwrap_or_default().trim();
            if let Some((_, port)) =
                line.split_once("http://127.0.0.1:").or_else(|| line.split_once("https://127.0.0.1:"))
            {
                break port.parse().unwrap();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut told, &mut std::io::sink()));
        Self { lab, child, port, key }
    }

    /// Ends the daemon at once, as a crash does.
    pub(crate) fn crash(mut self) -> (&'a Lab, String) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let key = std::mem::take(&mut self.key);
        (self.lab, key)
    }

    /// Ends the daemon as an operator does.
    pub(crate) fn end(mut self) -> String {
        let mut kill = self.lab.command("kill");
        kill.args(["-TERM", &self.child.id().to_string()]);
        assert_eq!(finish(kill, b"").code(), 0);
        assert!(poll(DEADLINE, || self.child.try_wait().unwrap().is_some()));
        std::mem::take(&mut self.key)
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.ask_as(&self.key, method, path, body)
    }

    pub(crate) fn ask_as(&self, key: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let head = if key.is_empty() { String::new() } else { format!("X-API-KEY: {key}\r\n") };
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, body) = raw(self.port, method, path, &head, body.as_bytes());
        (status, serde_json::from_slice(&body).unwrap_or(Value::Null))
    }

    pub(crate) fn create(&self, body: &Value) -> String {
        let (status, sandbox) = self.ask("POST", "/v1/sandboxes", body);
        assert_eq!(status, 201, "{sandbox}");
        sandbox["id"].as_str().unwrap().to_owned()
    }

    pub(crate) fn shell(&self, id: &str, line: &str) -> Value {
        let path = format!("/v1/sandboxes/{id}/execs?output=whole");
        let (status, answer) = self.ask("POST", &path, &json!({ "shell": line }));
        assert_eq!(status, 200, "{answer}");
        answer
    }

    pub(crate) fn state(&self, id: &str) -> String {
        let (status, sandbox) = self.ask("GET", &format!("/v1/sandboxes/{id}"), &Value::Null);
        if status == 404 { "gone".to_owned() } else { sandbox["state"].as_str().unwrap().to_owned() }
    }

    pub(crate) fn list(&self) -> Vec<String> {
        let (_, listed) = self.ask("GET", "/v1/sandboxes?limit=1000", &Value::Null);
        let id = |sandbox: &Value| sandbox["id"].as_str().unwrap().to_owned();
        listed["sandboxes"].as_array().unwrap().iter().map(id).collect()
    }
}

impl Drop for Daemon<'_> {
    /// Whatever a test left, its lab leaves nothing.
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            let mut halt = self.lab.fumehood();
            halt.args(["halt", "--all", "--destroy"]);
            finish(halt, b"");
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
    }
}

pub(crate) fn key(lab: &Lab, flags: &[&str]) -> String {
    let name = format!("k{}", std::fs::read_dir(lab.path()).unwrap().count());
    lab.file(&name, "");
    let mut command = lab.fumehood();
    command.args(["keys", "new", &name]).args(flags);
    let made = finish(command, b"");
    assert_eq!(made.code(), 0, "{}", made.told());
    made.out().trim().to_owned()
}

/// One request of HTTP/1.0: the answer ends with the connection.
pub(crate) fn raw(port: u16, method: &str, path: &str, head: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let host = if head.contains("Host:") { "" } else { "Host: localhost\r\n" };
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.0\r\n{host}{head}Content-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A server that refuses does not read to the end.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer to {method} {path}: {:?}", String::from_utf8_lossy(&answer)));
    let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
    (status, answer[end + 4..].to_vec())
}

pub(crate) fn caller() -> Caller {
    if am_root() { Caller::Root } else { Caller::User }
}

#[test]
fn a_sandbox_is_made_used_paused_woken_and_ended() {
    for caller in [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()) {
        let lab = Lab::new(caller);
        let daemon = Daemon::start(&lab, &[]);
        let id = daemon.create(&json!({ "labels": { "a": "b" }, "env": { "WORD": "here" } }));
        let ran = daemon.shell(&id, "printf \"$WORD\"; printf err >&2; exit 7");
        assert_eq!(ran["stdout"]["text"], "here", "{ran}");
        assert_eq!(ran["stderr"]["text"], "err");
        assert_eq!(ran["ending"], json!({ "cause": "exited", "code": 7 }));
        let (status, paused) = daemon.ask("POST", &format!("/v1/sandboxes/{id}/pause"), &Value::Null);
        if paused["code"] == "unsupported" {
            println!("NOT-APPLICABLE: {} has nothing here that freezes", caller.word());
        } else {
            assert_eq!((status, &paused["state"]), (200, &json!("paused")), "{paused}");
            let (status, again) = daemon.ask("POST", &format!("/v1/sandboxes/{id}/pause"), &Value::Null);
            assert_eq!((status, &again["code"]), (409, &json!("paused")));
        }
        // Traffic wakes it.
        assert_eq!(daemon.shell(&id, "printf up")["stdout"]["text"], "up");
        assert_eq!(daemon.state(&id), "running");
        let (_, found) = daemon.ask("GET", "/v1/sandboxes?labels=a=b&state=running", &Value::Null);
        assert_eq!(found["sandboxes"].as_array().unwrap().len(), 1);
        let (_, none) = daemon.ask("GET", "/v1/sandboxes?labels=a=c", &Value::Null);
        assert_eq!(none["sandboxes"], json!([]));
        let (status, _) = daemon.ask("DELETE", &format!("/v1/sandboxes/{id}"), &Value::Null);
        assert_eq!(status, 204);
        assert_eq!(daemon.state(&id), "gone");
        let (_, ended) = daemon.ask("GET", "/v1/sandboxes?state=ended", &Value::Null);
        assert_eq!(ended["sandboxes"][0]["ended"]["cause"], "stopped", "{ended}");
    }
}

#[test]
fn what_lives_is_found_again_after_a_kill() {
    let lab = Lab::new(caller());
    let mut daemon = Daemon::start(&lab, &[]);
    let busy = daemon.create(&json!({}));
    let line = "printf begin; read word; printf \"$word\"; exit 5";
    let body = json!({ "shell": line, "stdin": true, "detach": true });
    let (status, started) = daemon.ask("POST", &format!("/v1/sandboxes/{busy}/execs"), &body);
    assert_eq!(status, 202, "{started}");
    let asleep = daemon.create(&json!({ "on_timeout": "pause" }));
    daemon.ask("POST", &format!("/v1/sandboxes/{asleep}/pause"), &Value::Null);
    // Kills at whatever moment of a create and of a pause they come.
    for step in 0_u64..6 {
        let (port, key, state) = (daemon.port, daemon.key.clone(), lab.state());
        let other = daemon.create(&json!({}));
        let request = std::thread::spawn(move || {
            let head = format!("X-API-KEY: {key}\r\nIdempotency-Key: step-{step}\r\n");
            let attempt = || {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return };
                let path = if step % 2 == 0 {
                    "/v1/sandboxes".to_owned()
                } else {
                    format!("/v1/sandboxes/{other}/pause")
                };
                let _ = write!(
                    stream,
                    "POST {path} HTTP/1.0\r\nHost: localhost\r\n{head}Content-Length: 2\r\n\r\n{{}}"
                );
                let _ = stream.read_to_end(&mut Vec::new());
            };
            attempt();
        });
        std::thread::sleep(Duration::from_millis(step * 7));
        let (_, key) = daemon.crash();
        request.join().unwrap();
        assert!(state.join("serve/registry.sqlite").exists());
        daemon = Daemon::again(&lab, key, &[]);
        // The same request again gives one sandbox, whether or not the first had made it.
        if step % 2 == 0 {
            let settled = || {
                let head = format!("X-API-KEY: {}\r\nIdempotency-Key: step-{step}\r\n", daemon.key);
                raw(daemon.port, "POST", "/v1/sandboxes", &head, b"{}")
            };
            let (status, first) = settled();
            assert_eq!(status, 201, "{}", String::from_utf8_lossy(&first));
            let (_, second) = settled();
            let id = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["id"].clone();
            assert_eq!(id(&first), id(&second));
        }
    }
    // Every one that is told of is of use.
    for id in daemon.list().iter().filter(|id| **id != busy) {
        assert_eq!(daemon.shell(id, "printf ok")["stdout"]["text"], "ok", "{id}");
    }
    // The command lived through six kills, and its input still reaches it.
    let path = format!("/v1/sandboxes/{busy}/execs/{}", started["exec"]);
    let head = format!("X-API-KEY: {}\r\n", daemon.key);
    let (status, told) = raw(daemon.port, "POST", &format!("{path}/stdin?eof=true"), &head, b"word\n");
    assert_eq!(status, 204, "{}", String::from_utf8_lossy(&told));
    let (_, whole) = daemon.ask("GET", &format!("{path}?output=whole"), &Value::Null);
    assert_eq!(whole["stdout"]["text"], "beginword", "{whole}");
    assert_eq!(whole["ending"]["code"], 5);
    // What the timeout does is kept with the sandbox.
    let (_, sandbox) = daemon.ask("GET", &format!("/v1/sandboxes/{asleep}"), &Value::Null);
    assert_eq!(sandbox["on_timeout"], "pause");
}

#[test]
fn a_keeper_that_dies_is_told_of() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let id = daemon.create(&json!({}));
    let told = std::fs::read(lab.state().join("sandboxes").join(&id).join("sandbox.json"));
    let Ok(told) = told else {
        println!("NOT-APPLICABLE: sandboxes are in memory here, at a place that only the binary knows");
        return;
    };
    let pid = serde_json::from_slice::<Value>(&told).unwrap()["keeper_pid"].to_string();
    let mut kill = lab.command("kill");
    kill.args(["-9", &pid]);
    assert_eq!(finish(kill, b"").code(), 0);
    assert!(poll(DEADLINE, || daemon.state(&id) == "gone"), "{}", daemon.state(&id));
    let (_, ended) = daemon.ask("GET", "/v1/sandboxes?state=ended", &Value::Null);
    assert_eq!(ended["sandboxes"][0]["ended"]["cause"], "lost", "{ended}");
}

#[test]
fn times_lead_to_a_pause_or_an_end_and_never_disturb_who_is_at_work() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let ends = daemon.create(&json!({ "ttl_seconds": 1 }));
    let pauses = daemon.create(&json!({ "ttl_seconds": 1, "on_timeout": "pause", "auto_resume": false }));
    let idles = daemon.create(&json!({ "idle_pause_seconds": 1 }));
    // At the very moments when the idle timer is right.
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(1000));
        assert_eq!(daemon.shell(&idles, "printf x")["stdout"]["text"], "x");
    }
    // A command that runs is work, for as long as somebody watches it.
    assert_eq!(daemon.shell(&idles, "sleep 2; printf y")["stdout"]["text"], "y");
    assert!(poll(DEADLINE, || daemon.state(&ends) == "gone"));
    assert!(poll(DEADLINE, || daemon.state(&pauses) == "paused"));
    assert!(poll(DEADLINE, || daemon.state(&idles) == "paused"));
    let path = format!("/v1/sandboxes/{pauses}/execs");
    let (status, refused) = daemon.ask("POST", &path, &json!({ "argv": ["true"] }));
    assert_eq!((status, &refused["code"]), (409, &json!("paused")));
    let connect = format!("/v1/sandboxes/{pauses}/connect");
    let (status, woken) = daemon.ask("POST", &connect, &json!({ "ttl_seconds": 100 }));
    assert_eq!((status, &woken["on_timeout"]), (200, &json!("pause")), "{woken}");
    assert_eq!(daemon.shell(&pauses, "printf z")["stdout"]["text"], "z");
}

#[test]
fn one_idempotency_key_makes_one_sandbox() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let head = format!("X-API-KEY: {}\r\nIdempotency-Key: one\r\n", daemon.key);
    let port = daemon.port;
    let asked: Vec<_> = (0..8)
        .map(|_| {
            let head = head.clone();
            std::thread::spawn(move || raw(port, "POST", "/v1/sandboxes", &head, b"{}"))
        })
        .collect();
    let answers: Vec<(u16, Vec<u8>)> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
    assert!(answers.iter().all(|(status, _)| *status == 201));
    assert_eq!(daemon.list().len(), 1);
    let (status, told) = raw(port, "POST", "/v1/sandboxes", &head, br#"{"ttl_seconds":5}"#);
    assert_eq!(status, 422, "{}", String::from_utf8_lossy(&told));
}

#[test]
fn nobody_is_let_in_who_should_not_be() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let id = daemon.create(&json!({}));
    let (_, document) = daemon.ask("GET", "/v1/openapi.json", &Value::Null);
    let other = key(&lab, &["--team", "other"]);
    let reader = key(&lab, &["--scope", "read"]);
    let over = key(&lab, &["--ttl", "0"]);
    let mut routes = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, told) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let path = path.replace("{id}", &id).replace("{exec}", "1").replace("{port}", "80");
            let path = path.replace("{path}", "x").replace("{name}", "x").replace("{team}", "x");
            routes += 1;
            for wrong in ["", "e2b_00", &over] {
                let (status, error) = daemon.ask_as(wrong, &method, &path, &Value::Null);
                assert_eq!(status, 401, "{method} {path}: {error}");
            }
            if told["x-scope"] != "read" {
                let (status, error) = daemon.ask_as(&reader, &method, &path, &Value::Null);
                assert_eq!(status, 403, "{method} {path}: {error}");
            }
            if path.contains(&id) {
                let query = if path.contains("/files") { "?path=/tmp/x" } else { "" };
                let body = json!({ "argv": ["true"], "signal": 9, "rows": 1, "columns": 1 });
                let (status, error) = daemon.ask_as(&other, &method, &format!("{path}{query}"), &body);
                // Some refuse the body before they look: never anything but a refusal.
                assert!([400, 404].contains(&status), "{method} {path}: {status} {error}");
            }
        }
    }
    assert!(routes > 35, "{routes}");
    assert_eq!(daemon.list(), [id.as_str()]);
    for odd in
        ["..", "%2e%2e%2f%2e%2e", "../../serve", "x%00y", "%C3%A9", "0123456789abcdeff", &"a".repeat(4096)]
    {
        for method in ["GET", "DELETE"] {
            let (status, _) = daemon.ask(method, &format!("/v1/sandboxes/{odd}"), &Value::Null);
            assert!([400, 404, 405].contains(&status), "{method} {odd}: {status}");
        }
    }
    let mine = format!("X-API-KEY: {}\r\n", daemon.key);
    for foreign in ["Host: evil.example.com\r\n", "Origin: https://evil.example.com\r\n", "Origin: null\r\n"]
    {
        let (status, _) = raw(daemon.port, "GET", "/v1/sandboxes", &format!("{mine}{foreign}"), b"");
        assert_eq!(status, 403, "{foreign}");
    }
    let (status, error) =
        daemon.ask_as(&other, "POST", "/v1/sandboxes", &json!({ "envelope": { "filesystem": {} } }));
    assert_eq!((status, &error["code"]), (403, &json!("forbidden")), "{error}");
}

#[test]
fn slow_clients_large_bodies_and_bad_keys_do_no_harm() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let held: Vec<TcpStream> = (0..200)
        .map(|number| {
            let mut stream = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
            let part: &[u8] = [&b""[..], b"G", b"PRI", b"GET /v1 HTTP/1.1\r\nHost: loc"][number % 4];
            stream.write_all(part).unwrap();
            stream
        })
        .collect();
    let huge = vec![b' '; 2 << 20];
    let head = format!("X-API-KEY: {}\r\n", daemon.key);
    let (status, _) = raw(daemon.port, "POST", "/v1/sandboxes", &head, &huge);
    assert_eq!(status, 413);
    let deep = "[".repeat(100_000);
    for bad in
        [deep.as_str(), "{", "\"", "{\"labels\":{\"a\":1}}", "{\"ttl_seconds\":1e308}", "{\"nothing\":1}"]
    {
        let (status, _) = raw(daemon.port, "POST", "/v1/sandboxes", &head, bad.as_bytes());
        assert_eq!(status, 400, "{}", bad.chars().take(40).collect::<String>());
    }
    // One connection, so that this tries keys and not the host's ports.
    let mut stream = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    for number in 0..10_000 {
        let request =
            format!("GET /v1/sandboxes HTTP/1.1\r\nHost: localhost\r\nX-API-KEY: e2b_{number:040x}\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let (mut length, mut status) = (0, String::new());
        answers.read_line(&mut status).unwrap();
        assert!(status.starts_with("HTTP/1.1 401"), "{status}");
        loop {
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            if let Some(count) = line.strip_prefix("content-length: ") {
                length = count.trim().parse().unwrap();
            }
            if line == "\r\n" {
                break;
            }
        }
        answers.read_exact(&mut vec![0; length]).unwrap();
    }
    assert_eq!(daemon.list(), Vec::<String>::new());
    drop(held);
}

#[test]
fn a_second_daemon_and_a_damaged_registry_are_refused() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let id = daemon.create(&json!({}));
    let serve = || {
        let mut second = lab.fumehood();
        second.arg("serve");
        finish(second, b"")
    };
    let refused = serve();
    assert_eq!(refused.code(), 1);
    assert!(refused.err().contains("another daemon"), "{}", refused.told());
    let key = daemon.end();
    let path = lab.state().join("serve/registry.sqlite");
    let whole = std::fs::read(&path).unwrap();
    let damaged = vec![0x5a; 8192];
    std::fs::write(&path, &damaged).unwrap();
    let refused = serve();
    assert_eq!(refused.code(), 1);
    assert!(refused.err().contains("not changed"), "{}", refused.told());
    assert_eq!(std::fs::read(&path).unwrap(), damaged);
    std::fs::write(&path, &whole).unwrap();
    let daemon = Daemon::again(&lab, key, &[]);
    assert_eq!(daemon.shell(&id, "printf here")["stdout"]["text"], "here");
}

#[test]
fn the_kill_switch_holds_over_a_restart_until_it_is_released() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let id = daemon.create(&json!({}));
    let line = "while :; do echo x >> \"$HOME/beat\"; done";
    daemon.ask("POST", &format!("/v1/sandboxes/{id}/execs"), &json!({ "shell": line, "detach": true }));
    let switch = |words: &[&str]| {
        let mut halt = lab.fumehood();
        halt.arg("halt").args(words);
        finish(halt, b"")
    };
    let halted = switch(&["--all"]);
    assert!(halted.code() == 0 && halted.out().lines().any(|line| line == id), "{}", halted.told());
    let (_, key) = daemon.crash();
    let daemon = Daemon::again(&lab, key, &[]);
    assert_eq!(daemon.state(&id), "halted");
    let (status, refused) = daemon.ask("POST", "/v1/sandboxes", &json!({}));
    assert_eq!((status, &refused["code"]), (423, &json!("halted")));
    let path = format!("/v1/sandboxes/{id}/execs");
    let (status, _) = daemon.ask("POST", &path, &json!({ "argv": ["true"] }));
    assert_eq!(status, 423);
    assert_eq!(switch(&["release", "--all"]).code(), 0);
    assert_eq!(daemon.shell(&id, "printf on")["stdout"]["text"], "on");
    let destroyed = switch(&["--all", "--destroy"]);
    assert_eq!(destroyed.code(), 0, "{}", destroyed.told());
    assert_eq!(daemon.state(&id), "gone");
}

/// What was built by its name is what a caller gets by it.
#[test]
fn a_template_that_was_built_is_offered() {
    let lab = Lab::new(caller());
    let mut command = lab.fumehood();
    command.args(["template", "build", "--quiet", "shell"]);
    let ran = lab::finish_within(command, b"", Duration::from_secs(200));
    assert_eq!(ran.code(), 0, "{}", ran.told());
    let daemon = Daemon::start(&lab, &[]);
    let id = daemon.create(&json!({ "template": "shell" }));
    let told = daemon.shell(&id, "test -e /usr/bin/sort && ! test -e /usr/bin/python3 && echo small");
    assert_eq!(told["stdout"]["text"], "small\n", "{told}");
    let (status, told) = daemon.ask("POST", "/v1/sandboxes", &json!({ "template": "none" }));
    assert_eq!(status, 404, "{told}");
    assert!(told["remediation"].as_str().unwrap().contains("shell"), "{told}");
}

#[test]
fn a_body_that_nobody_wanted_leaves_its_connection_open() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &[]);
    let mut stream = TcpStream::connect(("127.0.0.1", daemon.port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // In chunks, which do not say how long it is; refused before it is read, once by every door.
    for path in ["/v1/none", "/v1/sandboxes", "/v2/sandboxes", "/process.Process/Start"] {
        let id = if path.starts_with("/process") { "E2b-Sandbox-Id: none\r\n" } else { "" };
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: localhost\r\n{id}Transfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        stream.write_all(b"2\r\n{}\r\n").unwrap();
        stream.write_all(b"0\r\n\r\n").unwrap();
        let mut answer = BufReader::new(&stream);
        let (mut line, mut length) = (String::new(), 0);
        while !line.ends_with("\r\n\r\n") {
            assert!(answer.read_line(&mut line).unwrap() > 0, "{path}: the connection ended: {line}");
        }
        for field in line.lines() {
            if let Some((_, value)) = field.split_once("content-length: ") {
                length = value.parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        answer.read_exact(&mut body).unwrap();
        assert!(line.starts_with("HTTP/1.1 4") || line.starts_with("HTTP/1.1 502"), "{path}: {line}");
    }
}

#[test]
fn ceilings_of_a_team_of_a_key_and_of_a_root_hold() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &["--most-pool", "0"]);
    let (first, second) = (key(&lab, &["--team", "t"]), key(&lab, &["--team", "t"]));
    let name = |key: &str| {
        let (_, keys) = daemon.ask("GET", "/v1/keys", &Value::Null);
        // Names are all that a list tells: the first made has the lower number.
        let mut names: Vec<String> =
            keys.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names[if key == first { 1 } else { 2 }].clone()
    };
    let set = |path: &str, quota: &Value| {
        let (status, told) = daemon.ask("PUT", path, quota);
        assert_eq!(status, 200, "{told}");
    };
    let refused = |key: &str, path: &str, body: &Value, quota: &str| {
        let (status, told) = daemon.ask_as(key, "POST", path, body);
        assert_eq!(
            (status, &told["code"], &told["context"]["quota"]),
            (429, &json!("quota_exceeded"), &json!(quota)),
            "{told}"
        );
        assert!(!told["remediation"].as_str().unwrap().is_empty());
    };
    let small = json!({ "envelope": { "resources": { "memory": "64 MiB", "cpus": "0.5" } } });
    let create = |key: &str| {
        let (status, told) = daemon.ask_as(key, "POST", "/v1/sandboxes", &small);
        assert_eq!(status, 201, "{told}");
        told["id"].as_str().unwrap().to_owned()
    };
    set("/v1/teams/t/quota", &json!({ "memory_bytes": 200 << 20, "forks_per_root": 1 }));
    set(&format!("/v1/keys/{}/quota", name(&first)), &json!({ "sandboxes": 1, "execs_per_minute": 2 }));
    set(&format!("/v1/keys/{}/quota", name(&second)), &json!({ "cpu_milli": 900 }));
    let id = create(&first);
    refused(&first, "/v1/sandboxes", &small, "sandboxes");
    let other = create(&second);
    refused(&second, "/v1/sandboxes", &small, "cpu_milli");
    refused(&second, "/v1/sandboxes", &json!({}), "memory_bytes");
    let run = json!({ "shell": "true" });
    for _ in 0..2 {
        assert_eq!(
            daemon.ask_as(&first, "POST", &format!("/v1/sandboxes/{id}/execs?output=whole"), &run).0,
            200
        );
    }
    refused(&first, &format!("/v1/sandboxes/{id}/execs"), &run, "execs_per_minute");
    let (status, told) = daemon.ask_as(&second, "DELETE", &format!("/v1/sandboxes/{other}"), &Value::Null);
    assert_eq!(status, 204, "{told}");
    // A fork of a fork counts against the first, also when one of them has ended.
    let fork = format!("/v1/sandboxes/{id}/fork");
    refused(&second, &fork, &json!({ "count": 2 }), "forks_per_root");
    let (status, forked) = daemon.ask_as(&second, "POST", &fork, &json!({ "count": 1 }));
    assert_eq!(status, 201, "{forked}");
    let child = forked[0]["sandbox"]["id"].as_str().unwrap();
    assert_eq!(forked[0]["sandbox"]["root"], json!(id));
    refused(&second, &format!("/v1/sandboxes/{child}/fork"), &json!({ "count": 1 }), "forks_per_root");
    daemon.ask_as(&second, "DELETE", &format!("/v1/sandboxes/{child}"), &Value::Null);
    refused(&second, &fork, &json!({ "count": 1 }), "forks_per_root");
    // Nothing of what was refused is there.
    assert_eq!(daemon.list(), [id.as_str()]);
}

#[test]
fn a_caller_gets_no_weaker_wall_and_no_longer_life_than_is_theirs() {
    let lab = Lab::new(caller());
    let daemon = Daemon::start(&lab, &["--most-pool", "0"]);
    let key = key(&lab, &["--team", "t"]);
    let ask = |path: &str, body: &Value| daemon.ask_as(&key, "POST", path, body);
    let (status, told) = ask("/v1/sandboxes", &json!({ "level": "process" }));
    assert_eq!((status, &told["code"]), (403, &json!("forbidden")), "{told}");
    assert!(told["remediation"].as_str().unwrap().contains("stronger"), "{told}");
    let (status, told) = ask("/v1/sandboxes", &json!({ "level": "container" }));
    assert_eq!(status, 201, "{told}");
    let id = told["id"].as_str().unwrap().to_owned();
    for envelope in
        [json!({ "level": "process" }), json!({ "level": null }), json!({ "trust": "high", "blast": "low" })]
    {
        let (_, told) = ask(&format!("/v1/sandboxes/{id}/fork"), &json!({ "envelope": envelope }));
        assert!(told.to_string().contains("has the level of its parent"), "{envelope}: {told}");
        assert_eq!(daemon.list(), [id.as_str()], "{envelope}");
    }
    let (status, told) = daemon.ask("PUT", "/v1/teams/t/quota", &json!({ "ttl_seconds": 100 }));
    assert_eq!(status, 200, "{told}");
    for verb in ["ttl", "connect"] {
        let (status, told) = ask(&format!("/v1/sandboxes/{id}/{verb}"), &json!({ "ttl_seconds": 1000 }));
        assert_eq!((status, &told["context"]["quota"]), (429, &json!("ttl_seconds")), "{verb}: {told}");
    }
    assert_eq!(ask(&format!("/v1/sandboxes/{id}/ttl"), &json!({ "ttl_seconds": 90 })).0, 200);
}
