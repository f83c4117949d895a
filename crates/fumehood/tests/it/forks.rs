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
    what_lives_brings_its_changes_back_while_it_stands_still
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

fn what_lives_brings_its_changes_back_while_it_stands_still(lab: &Lab) {
    let base = lab.folder("base");
    for (name, text) in [("a", "a"), ("b", "b")] {
        lab.file(&format!("base/{name}"), text);
    }
    lab.give_all(&base);
    let one = Living::new(lab, &["--workspace", base.to_str().unwrap()]);
    one.exec(&["sh", "-c", "echo changed > a; rm b; mkdir n; echo new > n/f; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"]);
    let counting = "i=0; while :; do i=$((i+1)); echo $i > one.new; mv one.new one; echo $i > two.new; mv two.new two; done";
    let _running = one.start(crate::living::shell(counting));
    assert!(crate::lab::poll(crate::lab::DEADLINE, || one.exec(&["cat", "two"]).out().len() > 1));
    let run = |words: &[&str]| one.fumehood(&[words, &[&one.id]].concat(), b"");
    let shown = run(&["diff", "--paths"]);
    assert!(
        shown.code() == 0 && shown.out().contains("M a\n") && shown.out().contains("A n/f\n"),
        "{}",
        shown.told()
    );
    let held = run(&["apply"]);
    assert!(
        held.code() == 1 && held.err().contains("pre-commit") || held.out().contains("pre-commit"),
        "{}",
        held.told()
    );
    assert_eq!(std::fs::read_to_string(base.join("a")).unwrap(), "a", "nothing, or all");
    let applied = run(&["apply", "--partial"]);
    assert_eq!(applied.code(), 1, "{}", applied.told());
    let read = |name: &str| std::fs::read_to_string(base.join(name)).unwrap_or_default();
    assert_eq!((read("a").as_str(), read("n/f").as_str()), ("changed\n", "new\n"));
    assert!(!base.join("b").exists() && !base.join(".git/hooks/pre-commit").exists());
    // Of one moment: between the two there was nothing but the one or the other.
    let number = |name: &str| read(name).trim().parse::<u64>().unwrap();
    assert!(number("one") - number("two") <= 1, "{} {}", number("one"), number("two"));
    // It goes on with its copy; what it lives with is not thrown away under it.
    assert_eq!(one.exec(&["cat", "a"]).out(), "changed\n");
    let kept = run(&["discard"]);
    assert!(kept.code() == 1 && kept.err().contains("lives"), "{}", kept.told());
    one.exec(&["sh", "-c", "echo again > a"]);
    assert_eq!(run(&["pause"]).code(), 0);
    let conflict = run(&["apply", "--partial"]);
    assert!(conflict.told().contains("--force a"), "{}", conflict.told());
    assert_eq!(run(&["apply", "--partial", "--force", "a", "--force", "one", "--force", "two"]).code(), 1);
    assert_eq!(read("a"), "again\n");
    assert_eq!(run(&["resume"]).code(), 0);
    let verified = one.fumehood(&["audit", "verify"], b"");
    assert_eq!(verified.code(), 0, "{}", verified.told());
    // And of one that has ended, as of a run.
    assert_eq!(run(&["stop", "--keep-files"]).code(), 0);
    assert!(run(&["diff", "--paths"]).out().contains("pre-commit"));
    let all: Vec<&str> =
        ["one", "two", "one.new", "two.new"].into_iter().flat_map(|name| ["--force", name]).collect();
    let last = run(&[&["apply", "--allow", ".git/hooks"], &all[..]].concat());
    assert_eq!(last.code(), 0, "{}", last.told());
    assert!(base.join(".git/hooks/pre-commit").exists());
    assert_eq!(run(&["rm"]).code(), 0);
    let none = Living::new(lab, &[]);
    assert!(none.fumehood(&["apply", &none.id], b"").err().contains("no copy of a workspace"));
}
