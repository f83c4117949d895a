//! The disk limit of a copy-on-write workspace: held by the kernel with root, watched without.
//!
//! Root's part can be tested by root alone. Anybody else gets the same tests with what is true for them
//! then: the watch, named as such.

use crate::lab::{self, Caller, Lab, Ran, collect, finish};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

const LIMIT_BYTES: u64 = 64 << 20;
const SOON: Duration = Duration::from_secs(10);

/// The strongest caller that these tests can be.
fn caller() -> Caller {
    if Caller::Root.available() { Caller::Root } else { Caller::User }
}

fn project(lab: &Lab) -> String {
    let project = lab.folder("project");
    for (name, text) in [("edit", "before"), ("gone", "x"), ("folder/inner", "y")] {
        fs::create_dir_all(project.join(name).parent().unwrap()).unwrap();
        fs::write(project.join(name), text).unwrap();
    }
    lab.give_all(&project);
    project.to_str().unwrap().to_owned()
}

fn shell(script: &str) -> [&str; 3] {
    ["sh", "-c", script]
}

/// How the disk limit is held, as (mechanism, strength).
fn held(report: &Value) -> Vec<(String, String)> {
    let clauses = report["enforcement"].as_array().unwrap();
    let resources = clauses.iter().find(|clause| clause[0] == "resources").unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let named = resources[1].as_array().unwrap().iter().map(|m| (text(&m["name"]), text(&m["strength"])));
    named.filter(|(name, _)| ["loop-image", "byte-watch"].contains(&name.as_str())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, strength)| ((*name).to_owned(), (*strength).to_owned())).collect()
}

/// Bytes that the host's disk gave for everything beneath a folder.
fn taken(folder: &Path) -> u64 {
    let mut total = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        total += meta.blocks() * 512;
        if meta.is_dir() {
            total += taken(&path);
        }
    }
    total
}

/// Loop devices whose image is, or was, beneath the place's folder.
fn devices(lab: &Lab) -> Vec<String> {
    let backing = |name: &str| fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
    let names = fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().file_name());
    names
        .filter_map(|name| backing(name.to_str()?).ok())
        .filter(|file| file.starts_with(lab.path().to_str().unwrap()))
        .collect()
}

fn nothing_stays(lab: &Lab) {
    assert!(lab::poll(SOON, || devices(lab).is_empty()), "still bound: {:?}", devices(lab));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(lab.path().to_str().unwrap()), "{mounts}");
}

fn ok(ran: &Ran) -> String {
    assert_eq!(ran.code(), 0, "{}", ran.told());
    ran.out()
}

fn fumehood(lab: &Lab, words: &[&str]) -> Ran {
    let mut command = lab.fumehood();
    command.args(words);
    finish(command, b"")
}

/// Starts a command that says `up` and goes on; returns once it said so.
fn start(lab: &Lab, flags: &[&str], script: &str) -> Child {
    let mut command = lab.fumehood();
    command.arg("run").args(flags).args(["--", "sh", "-c", &format!("{script}; echo up; exec sleep 60")]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    lab::await_word(&mut child, "up\n").unwrap();
    child
}

#[test]
fn a_full_workspace_is_told_at_the_limit_by_root() {
    if caller() == Caller::User {
        // What holds it then is the next test's.
        return watched(&Lab::new(Caller::User));
    }
    let lab = Lab::new(Caller::Root);
    let project = project(&lab);
    let flags = ["--workspace", &project, "--disk", "64MiB", "--mem", "512MiB"];
    let script = "head -c 200000000 /dev/zero > big; echo $?; stat -c %s big; exit 3";
    let (report, ran) = lab.json(&flags, &shell(script));
    assert_eq!(held(&report), pairs(&[("loop-image", "kernel")]));
    assert_eq!(
        (ran.code(), &report["ending"]["cause"], &report["ending"]["code"]),
        (3, &"exited".into(), &3.into())
    );
    let stderr = report["stderr"]["text"].as_str().unwrap();
    assert!(stderr.contains("No space left on device"), "{stderr}");
    let size: u64 = report["stdout"]["text"].as_str().unwrap().lines().nth(1).unwrap().parse().unwrap();
    assert!(size > LIMIT_BYTES * 9 / 10 && size <= LIMIT_BYTES, "{size}");
    let kinds: Vec<_> = report["hits"].as_array().unwrap().iter().map(|hit| hit["kind"].clone()).collect();
    assert_eq!(kinds, ["disk_full"], "{report}");
    nothing_stays(&lab);
    let layers = taken(&lab.state().join("layers"));
    assert!(layers <= LIMIT_BYTES + (1 << 20), "{layers} bytes of the host's disk");
    // The template is as good as empty.
    assert!(taken(&lab.state().join("shared")) < 8 << 20);
}

#[test]
fn a_full_workspace_is_noticed_for_a_user() {
    watched(&Lab::new(Caller::User));
}

fn watched(lab: &Lab) {
    let project = project(lab);
    let flags = ["--workspace", &project, "--disk", "16MiB", "--mem", "512MiB"];
    let (report, _) =
        lab.json(&flags, &shell("for i in 1 2 3; do head -c 12000000 /dev/zero > $i; done; sleep 30"));
    assert_eq!(held(&report), pairs(&[("byte-watch", "watch")]));
    assert_eq!(report["ending"]["cause"], "limit_passed", "{report}");
    let why = report["enforcement"].to_string();
    assert!(why.contains("only root can give it a file system of its own"), "{why}");
}

#[test]
fn changes_in_a_layer_of_either_kind_are_shown_applied_and_dropped() {
    for caller in [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()) {
        let lab = Lab::new(caller);
        let project = project(&lab);
        let script = "echo after > edit; rm gone; mkdir new; printf '#!/bin/sh\necho ran' > new/tool; chmod +x new/tool; \
             ln -s tool new/link; rm -r folder; mkdir folder; echo z > folder/other; exec new/link";
        assert_eq!(ok(&lab.run(&["--workspace", &project], &shell(script))), "ran\n");
        let shown = ok(&fumehood(&lab, &["diff", "--paths"]));
        for line in ["M edit", "D gone", "A new/tool", "A new/link", "D folder/inner", "A folder/other"] {
            assert!(shown.contains(line), "{line} in\n{shown}");
        }
        ok(&fumehood(&lab, &["apply"]));
        let at = |name: &str| Path::new(&project).join(name);
        assert_eq!(fs::read_to_string(at("edit")).unwrap(), "after\n");
        assert!(!at("gone").exists() && !at("folder/inner").exists());
        let (tool, folder) = (fs::metadata(at("new/tool")).unwrap(), fs::metadata(&project).unwrap());
        assert_eq!((tool.uid(), tool.mode() & 0o111), (folder.uid(), 0o111));
        assert_eq!(fs::read_link(at("new/link")).unwrap(), Path::new("tool"));
        ok(&lab.run(&["--workspace", &project], &shell("echo again > edit")));
        ok(&fumehood(&lab, &["discard"]));
        assert_eq!(fs::read_dir(lab.state().join("layers")).unwrap().count(), 0);
        // A run without a change leaves no layer either.
        ok(&lab.run(&["--workspace", &project], &shell("true")));
        assert_eq!(fs::read_dir(lab.state().join("layers")).unwrap().count(), 0);
        nothing_stays(&lab);
    }
}

#[test]
fn a_session_goes_on_in_its_image_whatever_the_next_limit_is() {
    let lab = Lab::new(caller());
    let project = project(&lab);
    let flags = |limit| ["--workspace", &project, "--session", "s", "--disk", limit];
    ok(&lab.run(&flags("64MiB"), &shell("head -c 9000000 /dev/urandom > kept; sha256sum kept > sum")));
    let checked = "sha256sum -c sum && echo more > more";
    for limit in ["64MiB", "256MiB", "64MiB"] {
        ok(&lab.run(&flags(limit), &shell(checked)));
    }
    // The file system is larger than what is allowed now: the difference is watched, and that is told.
    let (report, _) = lab.json(&flags("4MiB"), &shell("sleep 30"));
    assert_eq!(report["ending"]["cause"], "limit_passed", "{report}");
    let (image, watch) = (("loop-image", "kernel"), ("byte-watch", "watch"));
    let expected = if lab.caller == Caller::Root { pairs(&[image, watch]) } else { pairs(&[watch]) };
    assert_eq!(held(&report), expected);
    ok(&fumehood(&lab, &["apply", "--session", "s"]));
    assert_eq!(fs::read_to_string(Path::new(&project).join("more")).unwrap(), "more\n");
    let (report, _) = lab.json(&flags("4MiB"), &shell("cat more"));
    let expected = if lab.caller == Caller::Root { pairs(&[image]) } else { pairs(&[watch]) };
    assert_eq!(held(&report), expected, "a layer that begins anew is made for the limit of that day");
    nothing_stays(&lab);
}

#[test]
fn a_layer_in_use_can_be_looked_at() {
    let lab = Lab::new(caller());
    let project = project(&lab);
    let mut child = start(&lab, &["--workspace", &project], "echo after > edit");
    let image =
        fs::read_dir(lab.state().join("layers")).unwrap().next().unwrap().unwrap().path().join("disk.img");
    let is_free = || fs::File::open(&image).map(|image| image.try_lock().is_ok());
    for _look in 0..3 {
        if lab.caller == Caller::Root {
            // The device holds the lock, so nobody binds the image a second time, before or after a look.
            assert!(!is_free().unwrap());
        }
        assert!(ok(&fumehood(&lab, &["diff", "--paths"])).contains("M edit"));
    }
    assert!(devices(&lab).len() <= 1, "{:?}", devices(&lab));
    child.kill().unwrap();
    child.wait().unwrap();
    nothing_stays(&lab);
    assert!(
        lab.caller == Caller::User || lab::poll(SOON, || is_free().unwrap()),
        "the lock goes with the device"
    );
}

#[test]
fn two_runs_beside_each_other_have_a_limit_each() {
    let lab = Lab::new(caller());
    let project = project(&lab);
    let flags = ["--workspace", &project, "--disk", "32MiB", "--mem", "512MiB"];
    let runs: Vec<_> = (0..2)
        .map(|number| {
            let mut command = lab.fumehood();
            let script = format!("head -c 20000000 /dev/zero > big && echo {number} > edit && cat edit");
            command.arg("run").args(flags).args(["--", "sh", "-c", &script]);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().unwrap()
        })
        .collect();
    for (number, run) in runs.into_iter().enumerate() {
        assert_eq!(ok(&collect(run, b"")), format!("{number}\n"));
    }
    assert_eq!(fs::read_to_string(Path::new(&project).join("edit")).unwrap(), "before");
    nothing_stays(&lab);
}

#[test]
fn nothing_stays_bound_or_mounted_when_everything_is_killed() {
    let lab = Lab::new(caller());
    let project = project(&lab);
    let mut child = start(&lab, &["--workspace", &project], "echo after > edit; sync edit");
    assert_eq!(devices(&lab).len(), usize::from(lab.caller == Caller::Root), "the control: it is bound now");
    let keeper = child.id();
    let children = format!("/proc/{keeper}/task/{keeper}/children");
    let family = fs::read_to_string(children).unwrap();
    assert!(family.split_whitespace().count() >= 2, "a reaper and an init: {family}");
    let mut kill = lab.command("sh");
    // Stopped first, so that none of them has a last word.
    kill.args(["-c", &format!("kill -STOP {keeper} {family}; kill -KILL {keeper} {family}")]);
    ok(&finish(kill, b""));
    child.wait().unwrap();
    nothing_stays(&lab);
    // What it changed is still there to be looked at.
    assert!(ok(&fumehood(&lab, &["diff", "--paths"])).contains("M edit"));
    ok(&fumehood(&lab, &["discard"]));
    // The next run takes away the cgroup that nobody was left to remove.
    ok(&lab.run(&["--workspace", &project], &shell("true")));
    nothing_stays(&lab);
}

/// In a container the state folder is on an overlay, which takes no other overlay's layer.
#[test]
fn a_state_folder_on_an_overlay_holds_layers_elsewhere() {
    if !Caller::Root.available() {
        // Nobody else can make an overlay here. What can be had is that nothing moves without one.
        let lab = Lab::new(Caller::User);
        ok(&lab.run(&["--workspace", &project(&lab)], &shell("echo after > edit")));
        assert_eq!(fs::read_dir(lab.state().join("layers")).unwrap().count(), 1);
        return;
    }
    for caller in [Caller::Root, Caller::User] {
        let lab = Lab::new(caller);
        let project = project(&lab);
        for name in ["lower", "upper", "work", "state"] {
            fs::set_permissions(lab.folder(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        let uid = fs::metadata(lab.state()).unwrap().uid();
        let inside = lab.fumehood();
        let words: Vec<_> = std::iter::once(inside.get_program()).chain(inside.get_args()).collect();
        let script = format!(
            "set -e; mount -t overlay none -o lowerdir=lower,upperdir=upper,workdir=work state; \
             mount -t tmpfs -o mode=1777 none /dev/shm; \
             \"$@\" run --workspace {project} -- sh -c 'echo after > edit; rm -r folder; mkdir folder; cat edit'; \
             ls -d /dev/shm/fumehood-{uid}/*/layers/*/upper state/layers/*/disk.img 2> /dev/null || true; \
             \"$@\" apply; cat {project}/edit"
        );
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, "sh"]).args(words).env_clear();
        command.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.current_dir(lab.path());
        let out = ok(&finish(command, b""));
        let place = if caller == Caller::Root { "disk.img\n" } else { "/upper\n" };
        assert!(
            out.starts_with("after\n") && out.ends_with("after\n") && out.contains(place),
            "{caller:?}: {out}"
        );
        nothing_stays(&lab);
    }
}

/// What a sandbox was promised is not what the host has: others may fill its disk meanwhile.
#[test]
fn a_layer_that_the_hosts_disk_did_not_take_is_never_applied() {
    let lab = Lab::new(caller());
    if lab.caller == Caller::User {
        return watched(&lab);
    }
    let project = project(&lab);
    fs::create_dir(lab.path().join("small")).unwrap();
    let binary = lab.binary();
    // The command says that it is there, and waits for the disk to be full.
    let script = "mount -t tmpfs -o size=48m none small; mkdir -m 700 small/state; mkfifo up go; export FUMEHOOD_STATE=$PWD/small/state; \
         { read up; head -c 60000000 /dev/zero > small/fill; echo go; cat > /dev/null; } 2> /dev/null < up > go & \
         \"$0\" run --workspace \"$1\" --disk 32MiB --mem 512MiB -- \
             sh -c 'echo up; read go; head -c 20000000 /dev/zero > big; echo after > edit' > up < go; wait; rm small/fill; \
         \"$0\" apply && echo applied; cat \"$1\"/edit; echo; \"$0\" discard && ls small/state/layers";
    let mut command = lab.command("unshare");
    command.args(["-m", "sh", "-c", script]).arg(binary).arg(&project);
    let ran = finish(command, b"");
    assert!(ran.err().contains("the layer is damaged"), "{}", ran.told());
    assert!(ran.err().contains("it can be discarded"), "{}", ran.told());
    let lines: Vec<_> = ran.out().lines().map(str::to_owned).collect();
    assert_eq!(lines.first().unwrap(), "before", "{}", ran.told());
    assert!(lines.len() == 2 && lines.last().unwrap().ends_with("are gone"), "{}", ran.told());
    nothing_stays(&lab);
}
