//! The record against the truth: every act of a mixed day, counted by who asked for it, stands in the record once.

use crate::lab::{Caller, DEADLINE, Lab, Ran, am_root, finish, installed, poll};
use crate::serve::Daemon;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What was asked and came to be, by the record's own words.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts(BTreeMap<String, u64>);

// === impl Counts ===

impl Counts {
    fn add(&mut self, event: &str, count: u64) {
        *self.0.entry(event.to_owned()).or_default() += count;
    }

    /// What stands in every record of a lab; an act that failed does not count.
    fn of_records(lab: &Lab) -> Self {
        let mut counts = Self::default();
        let mut list = lab.fumehood();
        list.args(["audit", "list", "--json"]);
        let list = told(finish(list, b""));
        for task in list.out().lines() {
            let task: Value = serde_json::from_str(task).unwrap();
            let mut show = lab.fumehood();
            show.args(["audit", "show", "--json", task["task"].as_str().unwrap()]);
            let shown = told(finish(show, b""));
            let lines: Vec<Value> =
                shown.out().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let is = |name: &str| lines.iter().any(|line| line["event"] == name);
            if lines.iter().any(|line| line["pooled"] == true) && !is("sandbox.claimed") {
                // One of the daemon's pool that nobody came for: nothing was done in it.
                assert!(!is("exec.started") && is("sandbox.stopped"), "{lines:?}");
                continue;
            }
            lines.iter().for_each(|line| counts.take(line));
        }
        counts.0.retain(|_, count| *count != 0);
        counts
    }

    fn take(&mut self, line: &Value) {
        let event = line["event"].as_str().unwrap();
        match event {
            "act.failed" => {
                let of = line["of"].as_str().unwrap();
                let count = self.0.get_mut(of).unwrap_or_else(|| panic!("{line} follows nothing"));
                *count -= 1;
            }
            // One of a pool becomes the client's by this; all else of it stands there as for any other.
            "sandbox.claimed" => {}
            "file.asked" => self.add(&format!("file.asked {}", line["verb"].as_str().unwrap()), 1),
            "port.asked" => self.add(event, line["count"].as_u64().unwrap()),
            "exec.ended" => {
                self.add(event, 1);
                self.add(&format!("exec.ended {}", line["ending"]["cause"].as_str().unwrap()), 1);
            }
            _ => self.add(event, 1),
        }
    }
}

fn told(ran: Ran) -> Ran {
    assert_eq!(ran.code(), 0, "{}", ran.told());
    ran
}

/// A client that counts what it asks for.
struct Client<'a> {
    lab: &'a Lab,
    daemon: Daemon<'a>,
    truth: Counts,
}

// === impl Client ===

impl Client<'_> {
    fn cli(&self, words: &[&str], input: &[u8]) -> Ran {
        let mut command = self.lab.fumehood();
        command.args(words);
        finish(command, input)
    }

    /// A sandbox by either door.
    fn born(&mut self) {
        self.truth.add("sandbox.launched", 1);
        self.truth.add("sandbox.living", 1);
        // Each ends in the end, whatever becomes of it.
        self.truth.add("sandbox.stopped", 1);
        self.truth.add("task.closed", 1);
    }

    fn create(&mut self, body: &Value) -> String {
        self.born();
        self.daemon.create(body)
    }

    fn ran(&mut self, cause: &str) {
        self.truth.add("exec.started", 1);
        self.truth.add("exec.ended", 1);
        self.truth.add(&format!("exec.ended {cause}"), 1);
    }

    fn shell(&mut self, id: &str, line: &str) {
        self.ran("exited");
        self.daemon.shell(id, line);
    }

    /// Asks; what came to be is counted as `event`, what did not is not.
    fn ask(&mut self, method: &str, path: &str, body: &Value, event: &str) -> bool {
        let (status, answer) = self.daemon.ask(method, path, body);
        let done = status < 300;
        assert!(done || !answer["remediation"].as_str().unwrap_or_default().is_empty(), "{path}: {answer}");
        self.truth.add(event, u64::from(done));
        done
    }

    fn files(&mut self, id: &str, number: u64) {
        let at = format!("/v1/sandboxes/{id}/files");
        let path = format!("/workspace/f{number}");
        for (method, suffix, body, event) in [
            ("PUT", format!("?path={path}"), json!("content"), "file.asked write"),
            ("GET", format!("?path={path}"), Value::Null, "file.asked read"),
            ("POST", "/folder".to_owned(), json!({ "path": format!("{path}.d") }), "file.asked make_dir"),
            (
                "POST",
                "/move".to_owned(),
                json!({ "from": path, "to": format!("{path}.m") }),
                "file.asked move",
            ),
            ("DELETE", format!("?path={path}.m"), Value::Null, "file.asked remove"),
        ] {
            assert!(self.ask(method, &format!("{at}{suffix}"), &body, event), "{method} {suffix}");
        }
        // Looking is no act; what is asked for in vain is one.
        assert_eq!(self.daemon.ask("GET", &format!("{at}/stat?path=/workspace"), &Value::Null).0, 200);
        let (status, _) = self.daemon.ask("GET", &format!("{at}?path={path}"), &Value::Null);
        assert_eq!(status, 404);
        self.truth.add("file.asked read", 1);
    }

    fn through_http(&mut self) {
        for number in 0..3 {
            let id = self.create(&json!({ "labels": { "n": number.to_string() } }));
            for _ in 0..4 {
                self.shell(&id, "printf x; exit 3");
            }
            self.files(&id, number);
            let at = format!("/v1/sandboxes/{id}");
            let (status, started) = self.daemon.ask(
                "POST",
                &format!("{at}/execs"),
                &json!({ "argv": ["sleep", "1000"], "detach": true }),
            );
            assert_eq!(status, 202, "{started}");
            self.ran("killed");
            let signal = format!("{at}/execs/{}/signal", started["exec"]);
            assert!(self.ask("POST", &signal, &json!({ "signal": 15 }), "exec.signalled"));
            if self.ask("POST", &format!("{at}/pause"), &Value::Null, "sandbox.paused") {
                assert!(self.ask("POST", &format!("{at}/resume"), &Value::Null, "sandbox.resumed"));
            }
            self.fork(&id, number);
            for _ in 0..5 {
                // Nobody listens there: asked for all the same.
                self.daemon.ask("GET", &format!("{at}/ports/7"), &Value::Null);
                self.truth.add("port.asked", 1);
            }
            let (status, _) = self.daemon.ask("DELETE", &at, &Value::Null);
            assert_eq!(status, 204);
        }
    }

    fn port(&mut self) {
        let id = self.create(&json!({}));
        // A port that answers, asked for again and again: counted, every time.
        if installed("python3") {
            let serve = json!({ "argv": ["python3", "-m", "http.server", "7001"], "detach": true });
            assert_eq!(self.daemon.ask("POST", &format!("/v1/sandboxes/{id}/execs"), &serve).0, 202);
            self.ran("killed");
            let (mut asked, at) = (0, format!("/v1/sandboxes/{id}/ports/7001"));
            let mut last = (0, Value::Null);
            let served = poll(DEADLINE, || {
                asked += 1;
                last = self.daemon.ask("GET", &at, &Value::Null);
                last.0 == 200
            });
            assert!(served, "{last:?}");
            for _ in 0..20 {
                assert_eq!(self.daemon.ask("GET", &at, &Value::Null).0, 200);
                asked += 1;
            }
            self.truth.add("port.asked", asked);
        }
    }

    fn fork(&mut self, id: &str, number: u64) {
        let at = format!("/v1/sandboxes/{id}");
        let name = format!("s{number}");
        if self.ask("POST", &format!("{at}/snapshots"), &json!({ "name": name }), "sandbox.snapshot") {
            let child = self.create(&json!({ "template": name }));
            self.shell(&child, "true");
        }
        let (status, forked) = self.daemon.ask("POST", &format!("{at}/fork"), &json!({ "count": 2 }));
        if status >= 300 {
            println!("NOT-APPLICABLE: {forked}");
            return;
        }
        self.truth.add("sandbox.snapshot", 1);
        (0..2).for_each(|_| self.born());
    }

    fn through_words(&mut self) {
        let id = told(self.cli(&["create"], b"")).out().trim().to_owned();
        self.born();
        for _ in 0..3 {
            told(self.cli(&["exec", &id, "--", "true"], b""));
            self.ran("exited");
        }
        assert_eq!(self.cli(&["exec", &id, "--", "no-such-command"], b"").code(), 127);
        self.ran("not_started");
        told(self.cli(&["files", "put", &id, "/workspace/a"], b"word"));
        self.truth.add("file.asked write", 1);
        assert_eq!(told(self.cli(&["files", "cat", &id, "/workspace/a"], b"")).out(), "word");
        self.truth.add("file.asked read", 1);
        if self.cli(&["pause", &id], b"").code() == 0 {
            self.truth.add("sandbox.paused", 1);
            told(self.cli(&["resume", &id], b""));
            self.truth.add("sandbox.resumed", 1);
        }
        if self.cli(&["fork", &id, "-n", "2"], b"").code() == 0 {
            self.truth.add("sandbox.snapshot", 1);
            (0..2).for_each(|_| self.born());
        }
        told(self.cli(&["stop", &id], b""));
    }

    fn killed(&mut self) {
        let id = self.create(&json!({}));
        let line = json!({ "argv": ["sleep", "1000"], "detach": true });
        assert_eq!(self.daemon.ask("POST", &format!("/v1/sandboxes/{id}/execs"), &line).0, 202);
        self.ran("lost");
        let told = std::fs::read(self.lab.state().join("sandboxes").join(&id).join("sandbox.json")).unwrap();
        let pid = serde_json::from_slice::<Value>(&told).unwrap()["keeper_pid"].to_string();
        let mut kill = self.lab.command("kill");
        kill.args(["-9", &pid]);
        assert_eq!(finish(kill, b"").code(), 0);
        assert!(poll(DEADLINE, || self.daemon.state(&id) == "gone"));
    }

    /// The kill switch over one, its release, and then over all that is left.
    fn halted(&mut self) {
        let id = self.create(&json!({}));
        if self.cli(&["halt", &id], b"").code() == 0 {
            self.truth.add("sandbox.halted", 1);
            // It is halted already.
            told(self.cli(&["halt", &id], b""));
            told(self.cli(&["halt", "release", &id], b""));
            self.truth.add("sandbox.released", 1);
            self.shell(&id, "true");
        } else {
            // The network is cut, and the processes could not be stopped: which is told, and taken back.
            told(self.cli(&["halt", "release", &id], b""));
            self.truth.add("sandbox.released", 1);
        }
        told(self.cli(&["stop", "--all"], b""));
    }
}

#[test]
fn what_was_done_stands_in_the_record_once() {
    for caller in [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()) {
        let lab = Lab::new(caller);
        let daemon = Daemon::start(&lab, &[]);
        let mut client = Client { lab: &lab, daemon, truth: Counts::default() };
        client.through_http();
        client.port();
        client.through_words();
        client.killed();
        client.halted();
        let Client { daemon, mut truth, .. } = client;
        daemon.end();
        truth.0.retain(|_, count| *count != 0);
        let mut found = Counts::default();
        poll(DEADLINE, || {
            found = Counts::of_records(&lab);
            found.0.get("task.closed") == truth.0.get("task.closed")
        });
        // How long each may live is said by the daemon whenever it is used.
        found.0.remove("sandbox.expires");
        assert_eq!(found, truth, "{}", caller.word());
        let (events, acts): (u64, u64) = (found.0.values().sum(), truth.0.values().sum());
        println!("{}: {events} events of {} kinds for {acts} acts", caller.word(), truth.0.len());
        let mut verify = lab.fumehood();
        verify.args(["audit", "verify"]);
        told(finish(verify, b""));
        if !am_root() {
            break;
        }
    }
}
