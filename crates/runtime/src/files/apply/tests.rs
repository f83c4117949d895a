use super::*;
use crate::files::discard::remove_tree;
use crate::files::tests::layers::Bench;
use crate::files::tests::{Place, mode_of, no_record, set_mode};
use fumehood_model::event::Event;
use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

fn paths(list: &[&str]) -> Vec<PathBuf> {
    list.iter().map(PathBuf::from).collect()
}

fn named(refusals: &[Refusal]) -> Vec<String> {
    let mut names: Vec<_> = refusals.iter().map(|refusal| escape_path(&refusal.path)).collect();
    names.sort();
    names
}

fn go(bench: &Bench) -> Applied {
    apply(&bench.layer(), Terms::default(), &mut no_record).unwrap()
}

fn held(bench: &Bench) -> Preview {
    let before = bench.workspace.tree();
    let error = apply(&bench.layer(), Terms::default(), &mut no_record).unwrap_err();
    assert_eq!(bench.workspace.tree(), before, "nothing may be applied");
    let ApplyError::Held(preview) = error else { panic!("{error:?}") };
    *preview
}

fn filled(place: &Place) {
    place.write("edit.txt", "before");
    place.write("tool.sh", "#!/bin/sh\n");
    place.write("gone.txt", "x");
    place.write("old/deep/x", "x");
    place.write("old/y", "y");
    place.write("swap", "file");
    place.write("turn/a/b", "x");
    place.write("keep/z", "z");
    symlink("edit.txt", place.at("link")).unwrap();
}

/// Every kind of step.
const WORK: &str = "echo after > edit.txt; chmod +x tool.sh; rm gone.txt; rm -r old; rm swap; mkdir swap; \
     echo in > swap/in; rm -r turn; echo file > turn; ln -sfn tool.sh link; mkdir -p new/dir; echo n > new/dir/n; \
     echo run > new/run; chmod 4777 new/run; ln -s ../edit.txt new/up; printf '\\377' > \"$(printf 'b\\377')\"";

fn assert_applied(place: &Place) {
    assert_eq!(place.text("edit.txt"), "after\n");
    assert_eq!(place.text("swap/in"), "in\n");
    assert_eq!(place.text("turn"), "file\n");
    assert_eq!(place.text("new/dir/n"), "n\n");
    assert_eq!(std::fs::read_link(place.at("link")).unwrap(), Path::new("tool.sh"));
    assert_eq!(std::fs::read_link(place.at("new/up")).unwrap(), Path::new("../edit.txt"));
    assert_eq!(mode_of(place.at("tool.sh")) & 0o111, 0o111);
    assert_eq!(mode_of(place.at("new/run")) & 0o7100, 0o100);
    assert!(!place.exists("gone.txt") && !place.exists("old") && place.exists("keep/z"));
    let names: Vec<_> = place.tree();
    assert!(!names.iter().any(|name| escape_path(name).contains(".fumehood-")), "{names:?}");
    assert_eq!(names.len(), 14, "{names:?}");
}

#[test]
fn a_whole_layer_comes_back() {
    let bench = Bench::new(filled);
    bench.guest(WORK);
    let applied = go(&bench);
    assert!(applied.is_complete());
    assert_eq!(applied.notes.len(), 1, "set-id: {:?}", applied.notes);
    assert_applied(&bench.workspace);
    assert!(bench.brief().iter().all(|line| line == "X new/run"), "{:?}", bench.brief());
}

#[test]
fn a_kill_at_any_point_is_made_good_by_the_next_application() {
    let mut stop_at = 0;
    loop {
        let bench = Bench::new(filled);
        bench.guest(WORK);
        let mut points = 0;
        let mut hook = |_point| {
            points += 1;
            if points > stop_at { Err(io::Error::other("killed")) } else { Ok(()) }
        };
        let first = apply_with(&bench.layer(), Terms::default(), &mut no_record, &mut hook);
        if first.is_ok() {
            break;
        }
        assert!(matches!(first, Err(ApplyError::Stopped(_))));
        let again = go(&bench);
        assert!(again.is_complete(), "stopped at {stop_at}: {again:?}");
        assert_applied(&bench.workspace);
        assert!(!bench.layers.at(bench.task.as_str()).join("journal.jsonl").exists());
        stop_at += 1;
    }
    assert!(stop_at > 40, "{stop_at} points");
}

#[test]
fn an_error_leaves_whole_files_no_leftovers_and_a_layer_that_can_be_applied() {
    let bench = Bench::new(filled);
    bench.guest(WORK);
    let mut left = 5;
    let mut full = |_event: &Event| {
        left -= 1;
        if left < 0 { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) }
    };
    let error = apply(&bench.layer(), Terms::default(), &mut full).unwrap_err();
    assert!(matches!(error, ApplyError::Record { .. }));
    assert!(go(&bench).is_complete());
    assert_applied(&bench.workspace);
}

#[test]
fn what_host_tools_execute_needs_a_name_and_a_policy_never_comes() {
    let bench = Bench::new(|place| {
        place.write(".git/config", "[core]\n");
        place.write("src/a", "a");
    });
    bench.guest(
        "mkdir -p .git/hooks .vscode sub; echo x > .git/hooks/pre-commit; echo x >> .git/config; echo x > .envrc; \
         echo x > .vscode/tasks.json; echo x > sub/fumehood.toml; echo b > src/a; ln -s src .idea; \
         mkdir -p bare/objects bare/refs; echo ref > bare/HEAD; echo x > bare/config; echo x > .fumehood-apply-x",
    );
    let preview = held(&bench);
    let all = [
        ".envrc",
        ".fumehood-apply-x",
        ".git/config",
        ".git/hooks/pre-commit",
        ".idea",
        ".vscode/tasks.json",
        "bare/HEAD",
        "bare/config",
        "sub/fumehood.toml",
    ];
    assert_eq!(named(&preview.refusals), all);
    let allow = paths(&[".vscode", "sub/fumehood.toml", ".git/config"]);
    let terms = Terms { allow: &allow, rest: Rest::Apply, ..Terms::default() };
    let applied = apply(&bench.layer(), terms, &mut no_record).unwrap();
    assert_eq!(named(&applied.refusals), [all[0], all[1], all[3], all[4], all[6], all[7], all[8]]);
    assert_eq!(bench.workspace.text("src/a"), "b\n");
    assert!(bench.workspace.exists(".vscode/tasks.json"));
    for path in ["sub/fumehood.toml", ".envrc", ".git/hooks/pre-commit", "bare/HEAD", ".idea"] {
        assert!(!bench.workspace.exists(path), "{path}");
    }
}

#[test]
fn work_in_a_git_repository_comes_back() {
    let bench = Bench::new(|place| {
        let git = |args: &[&str]| {
            let mut command = std::process::Command::new("git");
            let status = command.arg("-C").arg(place.temp.path()).args(args).output().unwrap().status;
            assert!(status.success());
        };
        git(&["init", "-q"]);
        place.write("a", "a");
        git(&["add", "."]);
        git(&["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "one"]);
    });
    bench.guest(
        "echo b > b; git -c safe.directory='*' add b; \
         git -c safe.directory='*' -c user.name=a -c user.email=a@example.com commit -qm two; git -c safe.directory='*' checkout -q -b side",
    );
    let applied = go(&bench);
    assert!(applied.is_complete(), "{applied:?}");
    let mut log = std::process::Command::new("git");
    let log = log.arg("-C").arg(bench.workspace.temp.path());
    let log = log.args(["-c", "safe.directory=*", "log", "--oneline", "side"]).output().unwrap();
    assert_eq!(String::from_utf8(log.stdout).unwrap().lines().count(), 2);
}

#[test]
fn links_that_leave_and_special_files_stay() {
    let bench = Bench::new(|place| place.write("a", "a"));
    bench.guest("ln -s /etc/passwd abs; ln -s ../x up; mkdir d; ln -s b/../../.. d/climb; mkfifo pipe; mknod null c 1 3");
    assert_eq!(named(&held(&bench).refusals), ["abs", "d/climb", "null", "pipe", "up"]);
}

#[test]
fn what_changed_on_the_host_is_a_conflict_until_forced() {
    let bench = Bench::new(filled);
    bench.guest("echo guest > edit.txt; echo guest > tool.sh; rm gone.txt; rm -r old; echo new > fresh; echo k >> keep/z");
    // The stamps of the kernel's clock have a width: wait until it has moved on.
    let started = bench.layer().meta.started();
    loop {
        bench.workspace.write("edit.txt", "host");
        let ctime = bench.workspace.at("edit.txt").metadata().unwrap();
        if (ctime.ctime(), u32::try_from(ctime.ctime_nsec()).unwrap()) > (started.secs, started.nanos) {
            break;
        }
    }
    bench.workspace.write("old/deep/added", "host");
    bench.workspace.write("fresh", "host");
    std::fs::remove_dir_all(bench.workspace.at("keep")).unwrap();
    let preview = held(&bench);
    let conflicts = named(&preview.conflicts);
    assert_eq!(conflicts, ["edit.txt", "fresh", "keep", "old"]);
    let rest = Terms { rest: Rest::Apply, ..Terms::default() };
    apply(&bench.layer(), rest, &mut no_record).unwrap();
    assert_eq!(bench.workspace.text("edit.txt"), "host");
    assert_eq!(bench.workspace.text("tool.sh"), "guest\n");
    assert!(bench.workspace.exists("old/deep/added") && !bench.workspace.exists("gone.txt"));
    let force = paths(&["edit.txt", "fresh", "old", "keep"]);
    let applied = apply(&bench.layer(), Terms { force: &force, ..Terms::default() }, &mut no_record).unwrap();
    assert!(applied.is_complete());
    assert_eq!(bench.workspace.text("edit.txt"), "guest\n");
    assert!(!bench.workspace.exists("old"));
}

#[test]
fn removing_a_folder_spares_a_history_but_not_a_dotfile() {
    let bench = Bench::new(|place| {
        place.write("modules/.npmrc", "x");
        place.write("modules/.vscode/settings.json", "x");
        place.write("vendor/.git/HEAD", "x");
    });
    bench.guest("rm -r modules vendor; truncate -s 1T sparse");
    assert_eq!(named(&held(&bench).refusals), ["sparse", "vendor"]);
    let rest = Terms { rest: Rest::Apply, ..Terms::default() };
    apply(&bench.layer(), rest, &mut no_record).unwrap();
    assert!(!bench.workspace.exists("modules") && bench.workspace.exists("vendor/.git/HEAD"));
}

#[test]
fn what_a_random_guest_did_is_what_the_host_has() {
    // A small generator of our own: the sequence is the same on every run, so a failure comes back.
    let mut state: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut pick = |choices: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % choices
    };
    for _round in 0..25 {
        let bench = Bench::new(filled);
        let names = [
            "edit.txt", "old", "old/deep", "turn/a", "swap", "keep", "n1", "n1/n2", "keep/n3", "link", "turn",
        ];
        let mut script = String::new();
        for step in 0..25 {
            let mut name = || names[usize::try_from(pick(11)).unwrap()];
            let (a, b) = (name(), name());
            let act = match pick(9) {
                0 => format!("echo {step} > {a}"),
                1 => format!("echo {step} >> {a}"),
                2 => format!("rm -rf {a}"),
                3 => format!("rm -rf {a}; mkdir {a}"),
                4 => format!("mkdir -p {a}"),
                5 => format!("mv -T {a} {b}"),
                6 => format!("[ -f {a} ] && chmod a+x {a}"),
                7 => format!("rm -rf {a}; ln -s n1 {a}"),
                _ => format!("cp -rT {a} {b}"),
            };
            script.push_str(&format!("({act}) 2>/dev/null || true\n"));
        }
        let copy = Place::new();
        script.push_str(&format!("cp -a . {}/merged", copy.temp.path().display()));
        bench.guest(&script);
        let answer = apply(&bench.layer(), Terms::default(), &mut no_record);
        assert!(answer.as_ref().is_ok_and(Applied::is_complete), "{answer:?}\n{script}");
        let same = "cd \"$1\"; diff -r --no-dereference . \"$2\"; a=$(find . -type f -printf '%p %M\n' | sort); \
             cd \"$2\"; b=$(find . -type f -printf '%p %M\n' | sort); [ \"$a\" = \"$b\" ]";
        crate::files::tests::shell(
            same,
            &[copy.at("merged").as_os_str(), bench.workspace.temp.path().as_os_str()],
        );
    }
}

#[test]
fn a_link_put_on_the_host_is_never_written_through() {
    let (bench, elsewhere) = (Bench::new(filled), Place::new());
    elsewhere.write("in", "host");
    bench.guest("echo guest > keep/z; mkdir fresh; echo guest > fresh/in");
    std::fs::remove_dir_all(bench.workspace.at("keep")).unwrap();
    symlink(elsewhere.temp.path(), bench.workspace.at("keep")).unwrap();
    symlink(elsewhere.temp.path(), bench.workspace.at("fresh")).unwrap();
    let rest = Terms { rest: Rest::Apply, ..Terms::default() };
    let _ = apply(&bench.layer(), rest, &mut no_record);
    assert_eq!(elsewhere.text("in"), "host");
    assert_eq!(elsewhere.tree(), [PathBuf::from("in")]);
}

#[test]
fn owners_modes_and_times_stay_the_users() {
    let bench = Bench::new(|place| {
        place.write("a", "a");
        std::fs::create_dir(place.at("theirs")).unwrap();
        std::os::unix::fs::chown(place.at("a"), Some(4321), Some(4322)).unwrap();
        std::os::unix::fs::chown(place.at("theirs"), Some(5321), Some(5322)).unwrap();
        set_mode(place.at("a"), 0o640);
    });
    bench.guest("echo b > a; chmod 777 a; mkdir theirs/d; echo n > theirs/d/n; touch -d @1000 theirs/d/n; ln -s d theirs/l");
    assert!(go(&bench).is_complete());
    let facts = |path: &str| bench.workspace.at(path).symlink_metadata().unwrap();
    assert_eq!((facts("a").uid(), facts("a").gid(), mode_of(bench.workspace.at("a"))), (4321, 4322, 0o750));
    for path in ["theirs/d", "theirs/d/n", "theirs/l"] {
        assert_eq!((facts(path).uid(), facts(path).gid()), (5321, 5322), "{path}");
    }
    assert_eq!(facts("theirs/d/n").mtime(), 1000);
}

#[test]
fn each_change_is_recorded_before_it_is_made() {
    let bench = Bench::new(|place| place.write("edit", "before"));
    bench.guest("echo after > edit; echo x > added");
    let mut seen = Vec::new();
    let mut record = |event: &Event| {
        if let Event::FileApplied { path, change, .. } = event {
            assert!(!bench.workspace.exists("added") || path != "added");
            seen.push(format!("{change} {path}"));
        }
        Ok(())
    };
    apply(&bench.layer(), Terms::default(), &mut record).unwrap();
    assert_eq!(seen, ["added added", "modified edit"]);
    remove_tree(&bench.layers.dir, OsStr::new(bench.task.as_str())).unwrap();
    assert!(bench.layers.tree().is_empty());
}
