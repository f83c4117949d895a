//! Sandboxes that live on at the levels `gvisor` and `microvm`: what they do at every level, and what is their own.

use crate::lab::{self, Caller, Lab};
use crate::living::{self, ENDED_WELL, Living, create_with, follow, shell};
use crate::living_files::{self as files, entry, read, refused, write};
use crate::residue::{Host, SETTLED};
use crate::{gvisor, machine};
use fumehood_keep::wire::{Ask, FailureCode, Said};
use fumehood_model::ending::Ending;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What is true of every living sandbox.
macro_rules! at_gvisor {
    ($($from:ident :: $name:ident)*) => {$(
        #[test]
        fn $name() {
            if let Some(lab) = in_gvisor() {
                crate::living_levels::$from::$name(&lab);
            }
        }
    )*};
}

macro_rules! at_microvm {
    ($($from:ident :: $name:ident)*) => {$(
        #[test]
        fn $name() {
            for (lab, _) in in_machines() {
                crate::living_levels::$from::$name(&lab);
            }
        }
    )*};
}

mod every_gvisor {
    use super::in_gvisor;
    at_gvisor! {
        living::a_command_is_as_if_it_ran_here
        living::who_comes_back_sees_all_that_was_said
        living::what_runs_in_the_background_outlives_its_shell
        living::a_terminal_knows_its_size_and_takes_what_is_typed
        living::a_command_that_takes_too_long_ends
        living::files_live_as_long_as_the_sandbox
        living::a_port_inside_is_reached
        living::its_time_ends_it
        living::the_record_tells_of_every_command
        living::a_flood_is_held_back_while_somebody_reads_it
        files::a_guest_that_swaps_paths_leads_nobody_out
        files::changes_inside_are_told_outside
        files::a_snapshot_is_of_one_moment
    }
}

mod every_machine {
    use super::in_machines;
    at_microvm! {
        living::a_command_is_as_if_it_ran_here
        living::who_comes_back_sees_all_that_was_said
        living::what_runs_in_the_background_outlives_its_shell
        living::a_command_that_takes_too_long_ends
        living::its_time_ends_it
        living::the_record_tells_of_every_command
        files::changes_inside_are_told_outside
    }
}

/// A place where everything is created at `gvisor`, if that can be tried here.
fn in_gvisor() -> Option<Lab> {
    gvisor::available().then(|| {
        create_with(&["--level", "gvisor"]);
        Lab::new(Caller::Root)
    })
}

/// Places where everything is created at `microvm` while it is their turn, with the image of the machines.
fn in_machines() -> impl Iterator<Item = (Lab, PathBuf)> {
    let there = machine::available();
    let callers = [Caller::Root, Caller::User].into_iter().filter(move |caller| there && caller.available());
    callers.map(|caller| {
        let (lab, root) = machine::lab(caller);
        let words = machine::flags(&root);
        create_with(&words.iter().map(String::as_str).collect::<Vec<_>>());
        (lab, root)
    })
}

fn files_are_worked_on_inside(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let bytes = lab::random(700_000);
    let made = entry(write(&one, "/workspace/deep/er/file", &bytes));
    assert_eq!((made.size, made.owner, made.mode), (700_000, 1000, 0o644));
    assert_eq!(read(&one, "/workspace/deep/er/file").unwrap(), bytes);
    let seen = one.exec(&["sh", "-c", "stat -c '%u %a %s' deep/er/file && echo more >> deep/er/file"]);
    assert_eq!(seen.out(), "1000 644 700000\n");
    // One that is replaced keeps its mode, and what it was is seen until then.
    assert_eq!(one.exec(&["chmod", "750", "deep/er/file"]).ending(), &ENDED_WELL);
    assert_eq!(entry(write(&one, "/workspace/deep/er/file", b"new")).mode, 0o750);
    for path in ["/usr/new", "/etc/new", "/new"] {
        assert_eq!(refused(write(&one, path, b"x")), FailureCode::Denied, "{path}");
    }
    for path in ["/dev/zero", "/workspace"] {
        assert_eq!(read(&one, path), Err(FailureCode::NotAFile), "{path}");
    }
    assert_eq!(read(&one, "/workspace/none"), Err(FailureCode::NotFound));
    let moved = one.call(&Ask::Move { from: "/workspace/deep".into(), to: "/tmp/a/moved".into() });
    assert_eq!(moved, Said::Done);
    assert_eq!(one.exec(&["cat", "/tmp/a/moved/er/file"]).out(), "new");
    assert_eq!(one.exec(&["ln", "-s", "/tmp/a/moved/er/file", "link"]).ending(), &ENDED_WELL);
    assert_eq!(read(&one, "/workspace/link").unwrap(), b"new");
    assert_eq!(
        entry(one.call(&Ask::Stat { path: "/workspace/link".into() })).link.unwrap(),
        "/tmp/a/moved/er/file"
    );
    assert_eq!(one.call(&Ask::MakeDir { path: "/workspace/x/y".into() }), Said::Done);
    assert_eq!(refused(one.call(&Ask::MakeDir { path: "/workspace/x".into() })), FailureCode::Exists);
    let listed = one.call(&Ask::ListDir { path: "/workspace".into(), depth: 2 });
    let Said::Entries { entries, cut: false } = listed else { panic!("{listed:?}") };
    let paths: Vec<_> = entries.iter().map(|entry| entry.path.as_str()).collect();
    assert_eq!(paths, ["/workspace/link", "/workspace/x", "/workspace/x/y"]);
    assert_eq!(one.call(&Ask::Remove { path: "/workspace/x".into() }), Said::Done);
    // What is mounted there is neither taken away nor emptied.
    for path in ["/workspace", "/usr", "/dev/null", "/proc"] {
        assert_eq!(refused(one.call(&Ask::Remove { path: path.into() })), FailureCode::Denied, "{path}");
        let moved = one.call(&Ask::Move { from: path.into(), to: "/tmp/away".into() });
        assert_eq!(refused(moved), FailureCode::Denied, "{path}");
    }
    assert_eq!(one.exec(&["sh", "-c", "ls /workspace /tmp"]).out(), "/tmp:\na\n\n/workspace:\nlink\n");
    one.stop();
}

#[test]
fn files_are_worked_on_inside_gvisor() {
    if let Some(lab) = in_gvisor() {
        files_are_worked_on_inside(&lab);
    }
}

#[test]
fn files_are_worked_on_inside_machines() {
    for (lab, _) in in_machines() {
        files_are_worked_on_inside(&lab);
    }
}

fn what_is_paused_stands_still(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let script = "i=0; while :; do i=$((i+1)); echo $i > /tmp/next && mv /tmp/next /tmp/count; done";
    let (_, _counting) = one.start(shell(script));
    let count = || one.exec(&["cat", "/tmp/count"]).out().trim().parse::<u64>().ok();
    assert!(lab::poll(lab::DEADLINE, || count().is_some()));
    let used = || match one.call(&Ask::Status) {
        Said::Status(status) => status.cpu_ms,
        other => panic!("{other:?}"),
    };
    assert!(matches!(one.call(&Ask::Pause), Said::Paused { .. }));
    // What it is made of uses nothing, either.
    let before = used();
    std::thread::sleep(Duration::from_secs(1));
    assert!(used() - before < 300, "{} ms in one second", used() - before);
    for ask in [Ask::Exec(shell("true")), Ask::Stat { path: "/".into() }] {
        assert_eq!(refused(one.call(&ask)), FailureCode::Paused);
    }
    assert_eq!(one.call(&Ask::Resume), Said::Done);
    let resumed = count().unwrap();
    assert!(lab::poll(lab::DEADLINE, || count().unwrap() > resumed), "it does not go on");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let inside: u64 = one.exec(&["date", "+%s"]).out().trim().parse().unwrap();
    assert!(inside.abs_diff(now) < 20, "it is {now}, and inside {inside}");
    // One that stands still ends too.
    assert!(matches!(one.call(&Ask::Pause), Said::Paused { .. }));
    one.stop();
}

#[test]
fn what_is_paused_in_gvisor_stands_still() {
    if let Some(lab) = in_gvisor() {
        what_is_paused_stands_still(&lab);
    }
}

#[test]
fn a_machine_that_is_paused_stands_still() {
    for (lab, _) in in_machines() {
        what_is_paused_stands_still(&lab);
    }
}

#[test]
fn memory_is_kept_where_there_are_machines_alone() {
    let Some(lab) = in_gvisor() else { return };
    let one = Living::new(&lab, &[]);
    let whole = one.call(&Ask::Snapshot { name: "whole".into(), memory: Some(true) });
    assert_eq!(refused(whole), FailureCode::Unsupported);
    let told = one.fumehood(&["snapshot", &one.id, "whole", "--memory"], b"");
    assert!(told.err().contains("microvm"), "{}", told.told());
    let kept = one.call(&Ask::Snapshot { name: "kept".into(), memory: Some(false) });
    assert!(matches!(kept, Said::Snapshot { .. }), "{kept:?}");
    one.stop();
}

#[test]
fn a_machine_is_written_down_whole_and_others_begin_from_it() {
    for (lab, _) in in_machines() {
        let one = Living::new(&lab, &[]);
        let script = "echo kept > f; i=0; while :; do i=$((i+1)); echo $i > /tmp/next && mv /tmp/next /tmp/count; sleep 0.1; done";
        let (_, mut counting) = one.start(shell(script));
        assert!(lab::poll(lab::DEADLINE, || one.exec(&["cat", "/tmp/count"]).ending() == &ENDED_WELL));
        let without = one.call(&Ask::Snapshot { name: "without".into(), memory: Some(false) });
        assert_eq!(refused(without), FailureCode::Unsupported);
        let taken = one.fumehood(&["snapshot", &one.id, "whole", "--memory"], b"");
        assert_eq!(taken.code(), 0, "{}", taken.told());
        // It goes on, and so does what it was doing when it was taken.
        let children =
            [Living::new(&lab, &["--snapshot", "whole"]), Living::new(&lab, &["--snapshot", "whole"])];
        let look = "cat f; od -An -N16 -tx1 /dev/urandom; date +%s";
        let mut drawn = Vec::new();
        for child in children.iter().chain([&one]) {
            let seen = child.exec(&["sh", "-c", look]).out();
            let [kept, random, time] = seen.lines().collect::<Vec<_>>()[..] else { panic!("{seen}") };
            assert_eq!(kept, "kept");
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            assert!(now.abs_diff(time.parse().unwrap()) < 30, "{seen}");
            assert!(!drawn.contains(&random.to_owned()), "the same numbers twice: {random}");
            drawn.push(random.to_owned());
            let count = || child.exec(&["cat", "/tmp/count"]).out().trim().parse::<u64>().unwrap_or(0);
            let before = count();
            assert!(lab::poll(lab::DEADLINE, || count() > before), "it does not go on");
        }
        let forked = one.fumehood(&["fork", &one.id, "--memory", "-n", "2"], b"");
        assert_eq!(forked.code(), 0, "{}", forked.told());
        for id in forked.out().lines() {
            let seen = one.fumehood(&["exec", id, "--", "cat", "f"], b"");
            assert_eq!(seen.out(), "kept\n", "{}", seen.told());
            assert_eq!(one.fumehood(&["stop", id], b"").code(), 0);
        }
        // At another level there is nothing to begin with, and another machine does not fit.
        create_with(&[]);
        let other = living::create(&lab, &["--level", "container", "--snapshot", "whole"]);
        assert!(other.code() != 0 && other.err().contains("microvm"), "{}", other.told());
        let kept = one.call(&Ask::Stop { keep_files: true });
        assert_eq!(refused(kept), FailureCode::Unsupported);
        children.iter().for_each(Living::stop);
        one.stop();
        assert!(matches!(follow(&mut counting).ending(), Ending::Killed { signal: 9, .. }));
        assert_eq!(std::fs::read_dir(lab.state().join("machines")).unwrap().count(), 0);
    }
}

#[test]
fn a_machine_that_was_spoilt_is_none() {
    for (lab, root) in in_machines() {
        let one = Living::new(&lab, &[]);
        let taken = one.fumehood(&["snapshot", &one.id, "whole"], b"");
        assert_eq!(taken.code(), 0, "{}", taken.told());
        let whole = lab.state().join("snapshots/whole/machine/whole");
        let words = std::fs::read(&whole).unwrap();
        std::fs::write(&whole, &words[..words.len() / 2]).unwrap();
        let born = living::create(&lab, &["--snapshot", "whole"]);
        assert!(born.code() != 0 && born.err().contains("remedy"), "{}", born.told());
        std::fs::write(&whole, &words).unwrap();
        let mut flags = machine::flags(&root);
        flags.truncate(flags.len() - 1);
        flags.push("300M".to_owned());
        create_with(&flags.iter().map(String::as_str).collect::<Vec<_>>());
        let born = living::create(&lab, &["--snapshot", "whole"]);
        assert!(born.code() != 0 && born.err().contains("another image, memory"), "{}", born.told());
        one.stop();
    }
}

#[test]
fn without_a_word_on_emulation_there_is_no_machine() {
    for (lab, root) in in_machines() {
        let words: Vec<String> =
            machine::flags(&root).into_iter().filter(|word| word != "--accept-tcg").collect();
        create_with(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let born = living::create(&lab, &[]);
        assert!(born.code() != 0 && born.err().contains("--accept-tcg"), "{}", born.told());
    }
}

/// Whoever dies, nothing is left: neither processes nor cgroups nor folders.
fn a_killed_keeper_takes_all_along(lab: &Lab, frozen: bool) {
    let before = Host::now(lab);
    let one = Living::new(lab, &[]);
    let (_, _running) = one.start(shell("sleep 1000 & setsid sleep 1000 & sleep 1000"));
    if frozen {
        assert!(matches!(one.call(&Ask::Pause), Said::Paused { .. }));
    }
    let pid = one.keeper_pid();
    let killed = std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap();
    assert!(killed.success());
    let left = || Host::now(lab).beyond(&before);
    assert!(lab::poll(SETTLED, || left().is_empty()), "frozen {frozen}: {:?}", left());
    assert!(lab::poll(SETTLED, || !one.folder().exists()));
    let verified = one.fumehood(&["audit", "verify"], b"");
    assert_eq!(verified.code(), 0, "{}", verified.told());
}

#[test]
fn a_keeper_of_gvisor_that_is_killed_takes_all_along() {
    for frozen in [false, true] {
        if gvisor::available() {
            create_with(&["--level", "gvisor"]);
            a_killed_keeper_takes_all_along(&Lab::alone(Caller::Root), frozen);
        }
    }
}

#[test]
fn a_keeper_of_a_machine_that_is_killed_takes_all_along() {
    for (lab, _) in in_machines() {
        for frozen in [false, true] {
            a_killed_keeper_takes_all_along(&lab, frozen);
        }
    }
}

#[test]
fn a_pool_hands_out_what_was_started_whole() {
    let Some(lab) = in_gvisor() else { return };
    let spec = r#"{"env":[],"labels":{},"actor":"pool","level":"gvisor","pooled":true}"#;
    let born = living::keeper(&lab, spec);
    let one = Living::of(&lab, born["id"].as_str().unwrap_or_else(|| panic!("{born}")));
    let mine = fumehood_keep::wire::Claim {
        actor: "ann".to_owned(),
        env: vec![("WHOSE".to_owned(), "ann's".to_owned())],
        ..Default::default()
    };
    assert_eq!(one.call(&Ask::Claim(mine)), Said::Done);
    assert_eq!(one.exec(&["sh", "-c", "echo $WHOSE"]).out(), "ann's\n");
    one.stop();
}
