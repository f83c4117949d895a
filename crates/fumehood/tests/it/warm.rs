//! Interpreters that are prepared once and gone on with: in the same sandbox, in forks, from snapshots.

use crate::both_callers::both_callers;
use crate::lab::{self, Caller, Lab, Ran, finish};
use crate::living::Living;
use crate::residue::{Host, SETTLED};
use crate::serve::Daemon;
use serde_json::json;
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Stdio;

both_callers! {
    a_prepared_interpreter_is_as_if_it_had_just_come_there
    forks_have_everything_of_their_own
    a_snapshot_brings_it_along
    what_can_not_be_prepared_is_told_and_leaves_nothing
}

/// What makes the preparation worth it, and is found again in a child.
const PREPARE: &str = "import json, random, decimal, tempfile\nprepared = {n: str(n) for n in range(50_000)}\n\
    def after_fork():\n    global woken\n    woken = random.random()";

fn warm(one: &Living<'_>, id: &str, words: &[&str]) -> Ran {
    one.fumehood(&[&["exec", "--warm", id, "--"], words].concat(), b"")
}

fn a_prepared_interpreter_is_as_if_it_had_just_come_there(lab: &Lab) {
    let one = Living::new(lab, &["--warm", PREPARE, "--env", "WORD=here"]);
    let run = |words: &[&str]| warm(&one, &one.id, words);
    let ran =
        run(&["-c", "import os, sys; print(len(prepared), os.environ['WORD'], sys.argv, woken > 0)", "a b"]);
    assert_eq!(ran.out(), "50000 here ['-c', 'a b'] True\n", "{}", ran.told());
    assert_eq!(run(&["-c", "raise SystemExit(9)"]).code(), 9);
    let flawed = run(&["-c", "1/0"]);
    assert!(flawed.code() == 1 && flawed.err().contains("ZeroDivisionError"), "{}", flawed.told());
    // What one does, the next one does not see; files they share.
    assert_eq!(run(&["-c", "prepared.clear(); open('f', 'w').write('x')"]).code(), 0);
    assert_eq!(run(&["-c", "print(len(prepared), open('f').read())"]).out(), "50000 x\n");
    // Nobody inside changes what the next one begins with.
    let spoil = "for f in python3 new; do echo x > /run/fumehood/warm/$f; chmod 777 /run/fumehood/warm/$f; done; \
        rm -f /run/fumehood/warm/python3; true";
    one.exec(&["sh", "-c", spoil]);
    assert_eq!(run(&["-c", "print('still')"]).out(), "still\n");
    let limited = run(&["-c", "prepared = bytearray(1 << 40)"]);
    assert!(limited.err().contains("MemoryError"), "{}", limited.told());
    let piped = one.fumehood(&["exec", "--warm", &one.id], b"print(6 * 7)");
    assert_eq!(piped.out(), "42\n", "{}", piped.told());
    let plain = Living::new(lab, &[]);
    let none = warm(&plain, &plain.id, &["-c", "1"]);
    assert!(none.code() == 127 && none.err().contains("--warm CODE"), "{}", none.told());
}

/// All that tells one process from another, as it sees it itself.
const IDENTITY: &str = "import os, uuid
kinds = 'cgroup ipc mnt net pid user uts'.split()
fds = [fd for fd in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + fd)]
print(json.dumps({
  'ns': [os.readlink('/proc/self/ns/' + kind) for kind in kinds],
  'seeds': [random.random(), woken, os.urandom(8).hex(), tempfile.mktemp(), str(uuid.uuid4())],
  'fds': sorted(fds), 'sockets': open('/proc/net/tcp').read().count('\\n') - 1,
  'others': sorted(pid for pid in os.listdir('/proc') if pid.isdigit() and pid != str(os.getpid())),
  'caps': [line.split()[1] for line in open('/proc/self/status') if line[:3] == 'Cap'],
  'walls': [line.split()[1] for line in open('/proc/self/status') if line.startswith(('NoNewPrivs', 'Seccomp:'))],
}))";

fn forks_have_everything_of_their_own(lab: &Lab) {
    let parent = Living::new(lab, &["--warm", PREPARE]);
    let forked = parent.fumehood(&["fork", &parent.id, "-n", "3"], b"");
    if forked.code() != 0 {
        assert!(lab.caller == Caller::User && forked.err().contains("frozen"), "{}", forked.told());
        println!("NOT-APPLICABLE: this caller has no freezer on this host");
        return;
    }
    let mut ids: Vec<String> = forked.out().lines().map(str::to_owned).collect();
    ids.push(parent.id.clone());
    let seen: Vec<serde_json::Value> = ids
        .iter()
        .map(|id| {
            let ran = warm(&parent, id, &["-c", IDENTITY]);
            serde_json::from_slice(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.told()))
        })
        .collect();
    for part in ["ns", "seeds"] {
        for place in 0..seen[0][part].as_array().unwrap().len() {
            let all: BTreeSet<_> = seen.iter().map(|one| one[part][place].to_string()).collect();
            // No two are the same.
            assert_eq!(all.len(), ids.len(), "{part} {place}: {all:?}");
        }
    }
    for one in &seen {
        assert_eq!(one["fds"], serde_json::json!(["0", "1", "2"]), "{one}");
        assert_eq!(one["sockets"], 0, "{one}");
        assert_eq!(one["others"], serde_json::json!(["1"]), "{one}");
        assert_eq!(one["caps"].as_array().unwrap().len(), 5);
        assert!(one["caps"].as_array().unwrap().iter().all(|set| set == "0000000000000000"), "{one}");
        assert_eq!(one["walls"], serde_json::json!(["1", "2"]), "{one}");
    }
    // Each writes to a layer of its own.
    for id in &ids {
        assert_eq!(warm(&parent, id, &["-c", "import os; open(os.uname().nodename, 'x')"]).code(), 0);
    }
    for id in ids.iter().filter(|id| **id != parent.id) {
        assert_eq!(parent.fumehood(&["stop", id], b"").code(), 0);
    }
}

fn a_snapshot_brings_it_along(lab: &Lab) {
    let one = Living::new(lab, &["--warm", PREPARE]);
    let kept = one.fumehood(&["snapshot", &one.id, "ready"], b"");
    if kept.code() != 0 {
        assert!(lab.caller == Caller::User && kept.err().contains("frozen"), "{}", kept.told());
        println!("NOT-APPLICABLE: this caller has no freezer on this host");
        return;
    }
    one.stop();
    let other = Living::new(lab, &["--snapshot", "ready"]);
    assert_eq!(warm(&other, &other.id, &["-c", "print(len(prepared))"]).out(), "50000\n");
    // Another preparation is another interpreter.
    let third = Living::new(lab, &["--snapshot", "ready", "--warm", "prepared = 3"]);
    assert_eq!(warm(&third, &third.id, &["-c", "print(prepared)"]).out(), "3\n");
}

fn what_can_not_be_prepared_is_told_and_leaves_nothing(lab: &Lab) {
    for (code, why) in [
        ("import no_such_module", "no_such_module"),
        ("x = (", "never closed"),
        ("raise SystemExit(3)", "ended by itself"),
        ("kept = open('/etc/passwd')", "/etc/passwd"),
        ("import socket; kept = socket.socketpair()", "socket:"),
        ("import threading, time; threading.Thread(target=time.sleep, args=(60,), name='t1').start()", "t1"),
        ("import mmap; kept = mmap.mmap(-1, 4096)", "shares memory"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ] {
        let mut command = lab.fumehood();
        command.args(["create", "--warm", code]);
        let ran = finish(command, b"");
        assert!(
            ran.code() != 0 && ran.err().contains(why) && ran.err().contains("remedy:"),
            "{code}: {}",
            ran.told()
        );
    }
    let left: Vec<_> =
        std::fs::read_dir(lab.state().join("sandboxes")).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The keeper dies while an interpreter is being prepared.
#[test]
fn a_preparation_that_is_cut_off_leaves_nothing() {
    for caller in [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()) {
        let lab = Lab::alone(caller);
        let before = Host::now(&lab);
        let mut create = lab.fumehood();
        create.args(["create", "--warm", "import time; time.sleep(600)"]);
        let mut create = create.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let sandboxes = lab.state().join("sandboxes");
        let exec = || {
            let records = std::fs::read_dir(lab.state().join("records")).into_iter().flatten().flatten();
            records
                .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
                .any(|text| text.contains("exec.started"))
        };
        assert!(lab::poll(lab::DEADLINE, exec), "it does not begin");
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", create.id())).unwrap();
        let mut kill = lab.command("kill");
        kill.args(["-KILL", children.split_whitespace().next().unwrap()]);
        assert_eq!(finish(kill, b"").code(), 0);
        assert!(!create.wait().unwrap().success());
        assert!(lab::poll(SETTLED, || std::fs::read_dir(&sandboxes).unwrap().next().is_none()));
        assert!(
            lab::poll(SETTLED, || Host::now(&lab).beyond(&before).is_empty()),
            "{:?}",
            Host::now(&lab).beyond(&before)
        );
    }
}

/// The daemon's tests are elsewhere; this one is of the interpreters that it hands out.
#[test]
fn a_template_has_its_interpreter_from_the_first_sandbox_on() {
    for caller in [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()) {
        let lab = Lab::new(caller);
        let templates = lab.state().join("serve/templates");
        std::fs::create_dir_all(&templates).unwrap();
        let text = "warm = { prepare = \"prepared = 41; import random\" }\n";
        std::fs::write(templates.join("ready.toml"), text).unwrap();
        std::fs::set_permissions(lab.state(), std::fs::Permissions::from_mode(0o700)).unwrap();
        lab.give_all(&lab.state());
        let daemon = Daemon::start(&lab, &[]);
        let made = daemon.ask("POST", "/v1/sandboxes", &json!({ "template": "ready" }));
        if made.0 != 201 && caller == Caller::User {
            assert_eq!(made.1["code"], "unsupported", "{made:?}");
            println!("NOT-APPLICABLE: this caller has no freezer on this host");
            continue;
        }
        assert_eq!(made.0, 201, "{}", made.1);
        let code = json!({ "warm": true, "argv": ["-c", "prepared += 1; print(prepared, random.random())"] });
        let run = |id: &str| {
            let path = format!("/v1/sandboxes/{id}/execs?output=whole");
            let (status, answer) = daemon.ask("POST", &path, &code);
            assert_eq!(status, 200, "{answer}");
            answer["stdout"]["text"].as_str().unwrap_or_default().to_owned()
        };
        let first = made.1["id"].as_str().unwrap().to_owned();
        let ids = [first.clone(), daemon.create(&json!({ "template": "ready" }))];
        // It was prepared once, for both.
        let inode = |id: &str| {
            std::fs::metadata(lab.state().join(format!("sandboxes/{id}/warm/python3"))).unwrap().ino()
        };
        assert_eq!(inode(&ids[0]), inode(&ids[1]));
        let (status, forked) =
            daemon.ask("POST", &format!("/v1/sandboxes/{first}/fork"), &json!({ "count": 2 }));
        assert_eq!(status, 201, "{forked}");
        let child = |place: usize| {
            forked[place]["sandbox"]["id"].as_str().unwrap_or_else(|| panic!("{forked}")).to_owned()
        };
        let said: Vec<String> = ids.into_iter().chain([child(0), child(1)]).map(|id| run(&id)).collect();
        assert!(said.iter().all(|line| line.starts_with("42 ")), "{said:?}");
        assert_eq!(said.iter().collect::<BTreeSet<_>>().len(), 4, "{said:?}");
        let own = daemon.create(&json!({ "warm": { "prepare": "prepared = 6" } }));
        let plain = json!({ "warm": true, "argv": ["-c", "print(prepared)"] });
        let (_, answer) = daemon.ask("POST", &format!("/v1/sandboxes/{own}/execs?output=whole"), &plain);
        assert_eq!(answer["stdout"]["text"], "6\n", "{answer}");
        let (status, refused) = daemon.ask("POST", "/v1/sandboxes", &json!({ "warm": { "prepare": "1/0" } }));
        assert!(
            status >= 400 && refused["cause"].as_str().unwrap().contains("ZeroDivisionError"),
            "{refused}"
        );
        let wrong = json!({ "warm": true, "shell": "true" });
        let (status, _) = daemon.ask("POST", &format!("/v1/sandboxes/{first}/execs"), &wrong);
        assert_eq!(status, 400);
    }
}
