//! What stays of a secret: nothing, inside and outside. Each search is shown to find it where it is.

use super::{API, GIT, Held, assert_silent, forms, found};
use crate::both_callers::both_callers;
use crate::lab::{self, Lab};
use crate::processes;
use crate::stand::Seen;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

both_callers! {
    nothing_of_it_can_be_read_inside
    nothing_of_it_is_left_outside
    a_crash_of_the_gate_leaves_no_core
}

/// Uses of the secret before anything is looked through, so that whatever they leave is there.
const USES: &str = "curl -sSf -H \"Authorization: Bearer $GH\" 'https://api.example.com/v1/echo' -o kept && \
    curl -sSf 'https://api.example.com/echo?as=gzip' --compressed -o kept-too; \
    git clone -q https://git.example.com/git/one.git one && cd one && echo more >> README && \
    git -c user.name=A -c user.email=a@example.com commit -qam more && git push -q origin HEAD:made-$(date +%N) && cd .. || exit 9; ";

/// Environments, command lines, maps, memory, descriptors and every file that is newer than the secret.
fn nothing_of_it_can_be_read_inside(lab: &Lab) {
    let since = now();
    let held = Held::new(lab);
    held.repositories();
    let client = held.client("rummage.py");
    let search = json!({"needles": disguised(&held.value), "since": since - 2.0});
    // A server's echo is in the memory of a program that lives on while everything is looked through.
    let alive = "/usr/bin/python3 -c \"import requests, time; kept = [requests.get('https://api.example.com/v1/echo').content, requests.get('https://api.example.com/echo?as=base64').content]; open('ready', 'w').close(); time.sleep(60)\" & \
                 n=0; while [ ! -e ready ] && [ $n -lt 150 ]; do sleep 0.1; n=$((n+1)); done; [ -e ready ] || exit 7; ";
    let script = format!("{USES} {alive} /usr/bin/python3 rummage.py '{search}'; kill %1");
    let echo = "https://api.example.com/echo with bearer:GH";
    let flags = ["--in", &client, "--allow", API, "--allow", echo, "--allow", GIT];
    let seen = held.sh(&flags, &script);
    let told = told(&seen);
    assert_eq!(told["hits"], json!([]), "{}", seen.ran.told());
    for kind in ["files", "environments", "processes", "regions", "descriptors"] {
        assert!(told[kind].as_u64().unwrap() >= 3, "{kind}: {told}");
    }
    assert!(seen.log.all("request").count() > 6, "{}", seen.log.told());
    assert_silent(&seen, &held.value);
    // The control: the same with the value itself inside, which a caller can only do by saying so, and with
    // pieces of it in files.
    let forms = "printf %s \"$REAL\" | base64 > a; printf %s \"$REAL\" | od -An -tx1 -v | tr -d ' \\n' > b; printf %s \"$REAL\" | rev > c; ";
    let real = format!("REAL={}", held.value);
    let all = [&["--env", &real], flags.as_slice()].concat();
    let seen = held.sh(&all, &format!("{forms} {script}"));
    let hits = self::told(&seen)["hits"].to_string();
    for place in ["/environ (form 0)", "memory of", "/a (form", "/b (form", "/c (form"] {
        assert!(hits.contains(place), "the search misses {place}: {hits}");
    }
}

/// The record, the state folder, the caller's home and temporary files; what was printed, watched and reported.
fn nothing_of_it_is_left_outside(lab: &Lab) {
    let before = now();
    let held = Held::new(lab);
    held.repositories();
    let refused = "curl -sS -H \"Authorization: Bearer $GH\" https://denied.example.org/; curl -sS -H \"X: $GH\" https://api.example.com/v1/items; \
                   curl -sS -H \"Authorization: Bearer $GH\" http://api.example.com/; true";
    let script = format!("{USES} {refused}");
    let echo = "https://api.example.com/echo with bearer:GH";
    let rules = ["--allow", API, "--allow", GIT, "--allow", echo, "--allow", "http://api.example.com"];
    let mut placeholder = String::new();
    for flags in
        [&["--watch-net"][..], &["--json"], &["--learn", "learnt.toml"], &["--net-limit", "requests=3"]]
    {
        let all = [flags, &rules].concat();
        let seen = held.sh(&all, &format!("echo \"$GH\"; {script}"));
        assert_silent(&seen, &held.value);
        let out = seen.ran.out();
        placeholder = out.lines().next().unwrap_or_default().to_owned();
        assert!(seen.log.all("request").count() >= 3, "{flags:?}: {}", seen.ran.told());
    }
    assert!(!placeholder.is_empty());
    let mut verbs = Vec::new();
    for words in [&["audit", "show"][..], &["audit", "show", "--json"], &["audit", "verify"], &["doctor"]] {
        let mut command = held.stand.lab.fumehood();
        command.args(words);
        let ran = lab::finish(held.stand.range.enter(&command), b"");
        verbs.push((words.join(" "), [ran.stdout, ran.stderr].concat()));
    }
    let shown = &verbs[1].1;
    assert!(String::from_utf8_lossy(shown).contains("\"GH\""), "the record names the secret");
    let mut files = 0;
    let mut hits: Vec<String> = verbs
        .iter()
        .filter_map(|(name, out)| found(out, &held.value).map(|form| format!("{name}: {form}")))
        .collect();
    for place in [
        held.stand.lab.path(),
        Path::new("/tmp"),
        Path::new("/var/tmp"),
        Path::new("/dev/shm"),
        Path::new("/run"),
    ] {
        search(place, before, &held.value, &mut files, &mut hits);
    }
    assert_eq!(hits, Vec::<String>::new());
    assert!(files > 5, "{files} files were looked through");
    // The control: one file that holds it is found.
    held.stand.lab.file("leaked", super::base64(&format!("x{}", held.value)));
    search(held.stand.lab.path(), before, &held.value, &mut files, &mut hits);
    assert_eq!(hits.len(), 1, "{hits:?}");
}

/// The one process that holds values gives its memory to no file, whatever ends it.
fn a_crash_of_the_gate_leaves_no_core(lab: &Lab) {
    let before = now();
    let held = Held::new(lab);
    let get = "curl -sS -m 3 https://api.example.com/v1/items";
    let script = format!("{get} && echo served && sleep 6; {get}");
    let flags = ["--secret", "GH=env:HELD", "--allow", API];
    let mut command = held.stand.started(&[("HELD", &held.value)], &flags, &["sh", "-c", &script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let begin = held.stand.range.mark();
    let child = command.spawn().unwrap();
    let keeper = child.id();
    assert!(lab::poll(lab::DEADLINE, || processes::gate(keeper).is_some()), "no gate came to be");
    let gate = processes::gate(keeper).unwrap();
    let limits = || std::fs::read_to_string(processes::place(gate, "limits")).unwrap_or_default();
    // A process that may be dumped belongs to its own user there; one that may not, to root.
    let closed = || {
        let owner = std::fs::metadata(processes::place(gate, "environ")).map(|found| found.uid());
        let core =
            limits().lines().any(|line| line.starts_with("Max core file size") && line.contains(" 0 "));
        owner.is_ok_and(|owner| owner == 0) && core
    };
    assert!(lab::poll(std::time::Duration::from_secs(2), closed), "{}", limits());
    assert_eq!(found(&std::fs::read(processes::place(gate, "cmdline")).unwrap(), &held.value), None);
    let arrived = || held.stand.range.since(begin).all("request").next().is_some();
    assert!(lab::poll(lab::DEADLINE, arrived), "nothing arrived");
    // The client has its answer.
    std::thread::park_timeout(std::time::Duration::from_millis(1500));
    for signal in ["SEGV", "ABRT", "QUIT"] {
        processes::kill(gate, signal);
    }
    processes::kill(gate, "KILL");
    let ran = lab::collect(child, b"");
    assert!(ran.out().contains("served"), "{}", ran.told());
    for bytes in [&ran.stdout, &ran.stderr] {
        assert_eq!(found(bytes, &held.value), None, "{}", ran.told());
    }
    let (mut files, mut hits) = (0, Vec::new());
    for place in [
        held.stand.lab.path(),
        Path::new("/tmp"),
        Path::new("/var/crash"),
        Path::new("/var/lib"),
        Path::new("/"),
    ] {
        search(place, before, &held.value, &mut files, &mut hits);
    }
    assert_eq!(hits, Vec::<String>::new());
    let names = std::fs::read_dir(held.stand.lab.path()).unwrap().flatten().map(|entry| entry.file_name());
    let cores: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("core")).collect();
    assert!(cores.is_empty(), "{cores:?}");
}

/// Looks through what was changed since `before` below `place`; a place named `/` is its own files alone.
fn search(place: &Path, before: f64, value: &str, files: &mut usize, hits: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(found_there) = std::fs::symlink_metadata(&path) else { continue };
        // Another test's place holds another value, and may be gone while it is read.
        let other = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("fumehood-"))
            && place != Path::new("/run");
        if found_there.is_dir() && place != Path::new("/") && !other {
            search(&path, before, value, files, hits);
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        if found_there.is_file() && found_there.ctime() as f64 >= before - 2.0 && found_there.len() < 64 << 20
        {
            *files += 1;
            let bytes = std::fs::read(&path).unwrap_or_default();
            let name = path.to_string_lossy().into_owned();
            hits.extend(found(&bytes, value).map(|form| format!("{name}: {form}")));
            hits.extend(found(name.as_bytes(), value).map(|form| format!("the name {name}: {form}")));
        }
    }
}

fn told(seen: &Seen) -> Value {
    let out = seen.ran.out();
    let line = out.lines().rev().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{}", seen.ran.told()))).unwrap()
}

/// The forms as `rummage.py` takes them.
fn disguised(value: &str) -> Vec<String> {
    let hide = |form: Vec<u8>| form.into_iter().map(|byte| format!("{:02x}", byte ^ 0x5a)).collect();
    forms(value).into_iter().map(hide).collect()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}
