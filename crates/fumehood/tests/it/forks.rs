//! Forks that are less than their parent, and what a fork must not take from it.

use crate::both_callers::both_callers;
use crate::lab::Lab;
use crate::living::Living;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

both_callers! {
    a_fork_is_its_parent_or_less
    a_fork_has_ports_of_its_own
    what_has_ended_is_not_forked
    a_published_port_is_served_whatever_threads_there_are
}

/// Forks, and gives the child.
fn fork<'l>(lab: &'l Lab, parent: &Living<'_>, flags: &[&str]) -> Result<(Living<'l>, Value), String> {
    let ran = parent.fumehood(&[&["fork", "--json", &parent.id], flags].concat(), b"");
    if ran.code() != 0 {
        assert!(ran.err().contains("remedy:"), "{}", ran.told());
        return Err(ran.err());
    }
    let born: Value = serde_json::from_slice(&ran.stdout).unwrap();
    Ok((Living::of(lab, born["id"].as_str().unwrap()), born))
}

/// What a child was launched with, as its record tells it.
fn envelope(lab: &Lab, child: &Living<'_>) -> Value {
    let record = std::fs::read_to_string(lab.state().join(format!("records/{}.jsonl", child.id))).unwrap();
    let lines = record.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let launched = lines.into_iter().find(|line| line.to_string().contains("sandbox.launched"));
    let text = launched.unwrap().to_string();
    serde_json::from_str(&text).unwrap()
}

fn a_fork_is_its_parent_or_less(lab: &Lab) {
    let flags =
        ["--allow", "api.example.com", "--allow", "db.example.com:5432", "--mem", "512MiB", "--pids", "200"];
    let parent = Living::new(lab, &flags);
    parent.exec(&["sh", "-c", "echo parent > file"]);
    for (flags, has, lacks) in [
        (&[][..], "db.example.com", "nothing"),
        (&["--net", "none"], "512", "example.com"),
        (&["--allow", "api.example.com"], "api.example.com", "db.example.com"),
        (
            &["--mem", "256MiB", "--pids", "100", "--cpus", "1", "--disk", "1GiB", "--timeout", "9m"],
            "268435456",
            "536870912",
        ),
    ] {
        let (child, _) = fork(lab, &parent, flags).unwrap();
        let text = envelope(lab, &child).to_string();
        assert!(text.contains(has) && !text.contains(lacks), "{flags:?}: {text}");
        assert_eq!(child.exec(&["cat", "file"]).out(), "parent\n", "{flags:?}");
        child.stop();
    }
    // Held, not only written down.
    let (small, _) = fork(lab, &parent, &["--net", "none", "--mem", "256MiB"]).unwrap();
    let routes =
        small.exec(&["sh", "-c", "cat /proc/net/route | wc -l; ls /sys/class/net 2>/dev/null"]).out();
    assert_eq!(routes.trim(), "1", "a route: {routes}");
    // Its own children are measured by it, not by its parent.
    let wider = fork(lab, &small, &["--mem", "400MiB"]).map(drop).unwrap_err();
    assert!(wider.contains("resources.memory"), "{wider}");
    assert!(fork(lab, &small, &["--net", "allow", "--allow", "api.example.com"]).is_err());
    for flags in [
        &["--mem", "1GiB"][..],
        &["--pids", "300"],
        &["--allow", "evil.example.com"],
        &["--allow", "*.example.com"],
        &["--net", "proxy"],
        &["--net", "everything"],
        &["--mem", "much"],
        &["--ttl", "soon"],
        &["-n", "0"],
    ] {
        assert!(fork(lab, &parent, flags).is_err(), "{flags:?}");
    }
    // What was refused left nothing.
    assert_eq!(std::fs::read_dir(lab.state().join("sandboxes")).unwrap().count(), 2);
}

const SERVER: &str = "import http.server as h, os
class Answer(h.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(open('/workspace/who').read().encode())
    def log_message(self, *_): pass
h.HTTPServer(('127.0.0.1', 8080), Answer).serve_forever()";

fn a_fork_has_ports_of_its_own(lab: &Lab) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let parent = Living::new(lab, &["--publish", &format!("{port}:8080")]);
    let (one, born) = fork(lab, &parent, &[]).unwrap();
    let (other, second) = fork(lab, &parent, &[]).unwrap();
    let led = |born: &Value| born["status"]["published"][0]["host_port"].as_u64().unwrap();
    let ports = [u64::from(port), led(&born), led(&second)];
    assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2], "{ports:?}");
    let mut running = Vec::new();
    for (who, port) in [&parent, &one, &other].into_iter().zip(ports) {
        let name = who.id.clone();
        who.exec(&["sh", "-c", &format!("echo {name} > who")]);
        running.push(who.start(fumehood_keep::wire::Exec {
            argv: ["python3", "-c", SERVER].map(str::to_owned).to_vec(),
            ..Default::default()
        }));
        let port = u16::try_from(port).unwrap();
        assert!(crate::lab::poll(crate::lab::DEADLINE, || get(port)
            .is_some_and(|text| text.ends_with(&format!("{name}\n")))));
    }
    let (silent, born) = fork(lab, &parent, &["--no-publish"]).unwrap();
    assert!(born["status"].get("published").is_none(), "{born}");
    drop(silent);
}

fn get(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

fn what_has_ended_is_not_forked(lab: &Lab) {
    let one = Living::new(lab, &[]);
    assert_eq!(one.fumehood(&["stop", "--keep-files", &one.id], b"").code(), 0);
    let kept = fork(lab, &one, &[]).map(drop).unwrap_err();
    assert!(kept.contains("has ended"), "{kept}");
    assert_eq!(one.fumehood(&["rm", &one.id], b"").code(), 0);
    let gone = fork(lab, &one, &[]).map(drop).unwrap_err();
    assert!(gone.contains("no sandbox"), "{gone}");
}

/// The keeper's children of that name.
fn porters(one: &Living<'_>) -> Vec<String> {
    let keeper = one.keeper_pid();
    let list = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap();
    let named = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.trim() == "fumehood-porter")
    };
    list.split_whitespace().filter(named).map(str::to_owned).collect()
}

fn a_published_port_is_served_whatever_threads_there_are(lab: &Lab) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let one = Living::new(lab, &["--publish", &format!("{port}:8080")]);
    // Made before anybody could have made a thread.
    assert_eq!(porters(&one).len(), 1);
    one.exec(&["sh", "-c", "echo me > who"]);
    let argv = ["python3", "-c", SERVER].map(str::to_owned).to_vec();
    let _server = one.start(fumehood_keep::wire::Exec { argv, ..Default::default() });
    let mut watch = one.ask(&fumehood_keep::wire::Ask::Watch { path: "/workspace".into(), recursive: true });
    assert!(watch.next().unwrap().is_some());
    let serves =
        || crate::lab::poll(crate::lab::DEADLINE, || get(port).is_some_and(|text| text.ends_with("me\n")));
    assert!(serves());
    let mut kill = lab.command("kill");
    // Seen by its user's rights where that is another one.
    kill.args(["-KILL", &porters(&one)[0]]);
    assert_eq!(crate::lab::finish(kill, b"").code(), 0);
    assert!(crate::lab::poll(crate::lab::DEADLINE, || porters(&one).is_empty() || get(port).is_some()));
    // Without one the keeper carries by itself, and forks nothing.
    assert!(serves() && serves());
    let left = porters(&one);
    assert!(
        left.iter().all(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| stat.contains(") Z "))),
        "{left:?}"
    );
}
