//! A host that has no more of something: each is told of with its own cause and remedy, nothing is lost by it, and when
//! there is more again, work goes on.

use crate::lab::{Caller, Lab, Ran, am_root, finish};
use crate::serve::Daemon;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

/// A script in a mount namespace of its own, where the state folder is a small disk. `$F` is the binary, `$S` the disk.
fn on_a_small_disk(lab: &Lab, script: &str) -> Ran {
    let setup = "set -u; mkdir -p $S; mount -t tmpfs -o size=12m,mode=0700 none $S; ";
    let inner = lab.command("sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c"]).arg(format!("{setup}{script}")).env_clear();
    command.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("F", lab.binary()).env("S", lab.state()).current_dir(lab.path());
    finish(command, b"")
}

#[test]
fn a_full_disk_refuses_and_loses_nothing() {
    if !am_root() {
        println!("NOT-APPLICABLE: a small disk needs root");
        return;
    }
    let lab = Lab::new(Caller::Root);
    let ran = on_a_small_disk(
        &lab,
        "id=$($F create) || exit 9
         $F exec $id -- sh -c 'echo mine > $HOME/x' || exit 8
         cat /dev/zero > $S/fill 2> /dev/null; cat /dev/zero > $S/fill2 2> /dev/null
         long=$(head -c 9000 /dev/zero | tr '\\0' a)
         $F create && echo made; $F exec $id -- true $long && echo ran
         rm $S/fill $S/fill2
         $F exec $id -- sh -c 'cat $HOME/x' && $F stop $id && other=$($F create) && $F stop $other && echo on
         $F audit verify > /dev/null && echo whole; ls $S/sandboxes",
    );
    assert_eq!(ran.out(), "mine\non\nwhole\n", "{}", ran.told());
    assert!(ran.err().matches("free space on the disk").count() >= 2, "{}", ran.told());
    assert!(ran.err().contains("No space left"), "{}", ran.told());
}

#[test]
fn a_disk_that_is_read_only_is_not_called_full() {
    if !am_root() {
        println!("NOT-APPLICABLE: a small disk needs root");
        return;
    }
    let lab = Lab::new(Caller::Root);
    let ran = on_a_small_disk(
        &lab,
        "$F ls > /dev/null 2>&1; $F keys new k > /dev/null; mount -o remount,ro $S
         $F create && echo made; $F serve && echo served
         mount -o remount,rw $S; id=$($F create) && $F stop $id && echo on",
    );
    assert_eq!(ran.out(), "on\n", "{}", ran.told());
    assert_eq!(ran.err().matches("read-only: mount it writable").count(), 2, "{}", ran.told());
    assert!(!ran.err().contains("free space"), "{}", ran.told());
}

#[test]
fn too_few_descriptors_are_told_of_as_such() {
    let lab = Lab::new(if am_root() { Caller::Root } else { Caller::User });
    for limit in [8, 12, 16, 20, 24] {
        let mut command = lab.command("sh");
        command.arg("-c").arg(format!("ulimit -n {limit}; exec \"$0\" create")).arg(lab.binary());
        let ran = finish(command, b"");
        if ran.code() == 0 {
            let mut stop = lab.fumehood();
            stop.args(["stop", ran.out().trim()]);
            assert_eq!(finish(stop, b"").code(), 0);
        } else {
            let told = ran.err();
            assert!(
                !told.contains("free space") && !told.contains("held by another"),
                "{limit}: {}",
                ran.told()
            );
            assert!(told.contains("ulimit -n"), "{limit}: {}", ran.told());
        }
    }
    assert_eq!(std::fs::read_dir(lab.state().join("sandboxes")).unwrap().count(), 0);
}

#[test]
fn a_registry_that_is_locked_refuses_and_goes_on_when_it_is_free() {
    let lab = Lab::new(if am_root() { Caller::Root } else { Caller::User });
    let daemon = Daemon::start(&lab, &["--most-pool", "0"]);
    let id = daemon.create(&json!({}));
    let mut holder = lab.command("python3");
    let line = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None); c.execute('BEGIN EXCLUSIVE'); print('held', flush=True); input()";
    holder.arg("-c").arg(line).arg(lab.state().join("serve/registry.sqlite"));
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    let (status, refused) = daemon.ask("POST", "/v1/sandboxes", &json!({}));
    assert_eq!((status, &refused["code"]), (503, &json!("registry")), "{refused}");
    assert!(refused["remediation"].as_str().unwrap().contains("end it"), "{refused}");
    // What is there goes on meanwhile.
    assert_eq!(daemon.shell(&id, "printf on")["stdout"]["text"], "on");
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    holder.wait().unwrap();
    let other = daemon.create(&json!({}));
    let (_, listed) = daemon.ask("GET", "/v1/sandboxes", &Value::Null);
    assert_eq!(listed["sandboxes"].as_array().unwrap().len(), 2, "{listed}");
    assert!(daemon.list().contains(&other));
}
