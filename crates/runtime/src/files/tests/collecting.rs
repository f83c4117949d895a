use super::*;
use crate::files::collect::{CollectError, CollectLimits, Outcome, Target, collect};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

fn limits() -> CollectLimits {
    CollectLimits::for_disk(64 << 20)
}

fn run(from: &Place, to: &Place) -> Outcome {
    collect(&from.dir, &to.dir, limits(), &mut no_record).unwrap()
}

fn refused(outcome: &Outcome) -> Vec<PathBuf> {
    let mut paths: Vec<_> = outcome.refusals.iter().map(|refusal| refusal.path.clone()).collect();
    paths.sort();
    paths
}

#[test]
fn files_and_folders_cross_with_their_bytes_and_names() {
    let (from, to) = (Place::new(), Place::new());
    from.write("a.txt", "hello");
    from.write("deep/er/b.bin", [0_u8, 255, 10, 27]);
    std::fs::create_dir(from.at("empty")).unwrap();
    let odd: [&[u8]; 6] = [b"new\nline", b"\x1b[31mred", b"\xff\xfe", b"-rf", b"$(id)", &[b'n'; 255]];
    for name in odd {
        from.write(bytes(name), name);
    }
    // The same letter composed and decomposed is two names.
    from.write("\u{e9}", "nfc");
    from.write("e\u{301}", "nfd");
    let outcome = run(&from, &to);
    assert_eq!(to.tree(), from.tree());
    assert_eq!((outcome.collected.files, outcome.collected.refused), (10, 0));
    assert_eq!(std::fs::read(to.at("deep/er/b.bin")).unwrap(), [0, 255, 10, 27]);
    assert_eq!(to.text("e\u{301}"), "nfd");
}

#[test]
fn links_pipes_sockets_devices_and_hard_links_are_listed_and_stay() {
    let (from, to) = (Place::new(), Place::new());
    symlink("/etc/passwd", from.at("abs")).unwrap();
    symlink("../../etc/passwd", from.at("up")).unwrap();
    symlink("loop", from.at("loop")).unwrap();
    symlink("/proc/self/environ", from.at("environ")).unwrap();
    symlink("/etc", from.at("etc")).unwrap();
    shell(
        "mkfifo \"$1\"/pipe; mknod \"$1\"/zero c 1 5; mknod \"$1\"/disk b 7 0",
        &[from.temp.path().as_os_str()],
    );
    let _socket = std::os::unix::net::UnixListener::bind(from.at("socket")).unwrap();
    from.write("one", "x");
    std::fs::hard_link(from.at("one"), from.at("two")).unwrap();
    let outcome = run(&from, &to);
    assert!(to.tree().is_empty(), "{:?}", to.tree());
    assert_eq!(refused(&outcome), from.tree());
    assert_eq!(outcome.collected.refused, 11);
}

#[test]
fn modes_lose_set_id_and_pass_the_umask() {
    use std::os::unix::fs::MetadataExt;
    let (from, to) = (Place::new(), Place::new());
    for (name, mode) in [("setuid", 0o6755), ("world", 0o666), ("private", 0o600), ("none", 0o000)] {
        from.write(name, "x");
        std::os::unix::fs::chown(from.at(name), Some(12345), Some(12345)).unwrap();
        set_mode(from.at(name), mode);
    }
    std::fs::create_dir(from.at("sticky")).unwrap();
    set_mode(from.at("sticky"), 0o7777);
    run(&from, &to);
    // What the kernel gives a new file of ours is the measure: the tests run under any umask.
    to.write("probe", "");
    let masked = |mode: u32| mode & (mode_of(to.at("probe")) | ((mode_of(to.at("probe")) & 0o444) >> 2));
    assert_eq!(mode_of(to.at("setuid")), masked(0o755));
    assert_eq!(mode_of(to.at("world")), masked(0o666));
    assert_eq!(mode_of(to.at("private")), 0o600);
    assert_eq!(mode_of(to.at("none")), 0o400);
    assert_eq!(mode_of(to.at("sticky")) & 0o7000, 0);
    let owner = std::fs::metadata(to.temp.path()).unwrap().uid();
    assert_eq!(std::fs::metadata(to.at("setuid")).unwrap().uid(), owner);
}

#[test]
fn nothing_is_written_through_what_stands_in_the_output_folder() {
    let (from, to, elsewhere) = (Place::new(), Place::new(), Place::new());
    elsewhere.write("canary", "host");
    symlink(elsewhere.at("canary"), to.at("file")).unwrap();
    symlink(elsewhere.temp.path(), to.at("sub")).unwrap();
    to.write("old", "old");
    std::fs::create_dir(to.at("folder")).unwrap();
    for name in ["file", "sub/canary", "sub/new", "old", "folder"] {
        from.write(name, "guest");
    }
    let outcome = run(&from, &to);
    assert_eq!(elsewhere.text("canary"), "host");
    assert!(!elsewhere.exists("new"));
    assert_eq!(to.text("old"), "guest");
    assert_eq!(refused(&outcome), ["file", "folder", "sub"].map(PathBuf::from));
    assert!(to.at("file").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn the_output_folder_is_made_and_is_never_a_link() {
    let place = Place::new();
    Target::find(&place.at("new/deep")).unwrap().open().unwrap();
    assert!(place.at("new/deep").is_dir());
    symlink("new", place.at("link")).unwrap();
    assert!(matches!(Target::find(&place.at("link")), Err(CollectError::Target { .. })));
    place.write("file", "");
    assert!(matches!(Target::find(&place.at("file")), Err(CollectError::Target { .. })));
}

#[test]
fn the_output_folder_is_where_its_path_led_when_it_was_found() {
    let (place, elsewhere) = (Place::new(), Place::new());
    std::fs::create_dir(place.at("there")).unwrap();
    let held = Target::find(&place.at("there/out")).unwrap();
    let missing = Target::find(&place.at("later/out")).unwrap();
    std::fs::rename(place.at("there"), place.at("moved")).unwrap();
    for way in ["there", "later"] {
        symlink(elsewhere.at(""), place.at(way)).unwrap();
    }
    held.open().unwrap();
    assert!(place.at("moved/out").is_dir());
    assert!(matches!(missing.open(), Err(CollectError::Target { .. })));
    assert!(elsewhere.tree().is_empty());
}

#[test]
fn ceilings_stop_what_has_no_end() {
    let (from, to) = (Place::new(), Place::new());
    std::fs::File::create(from.at("sparse")).unwrap().set_len(1 << 40).unwrap();
    from.write("small", "x");
    let outcome = run(&from, &to);
    assert_eq!(refused(&outcome), [PathBuf::from("sparse")]);
    assert_eq!(to.tree(), [PathBuf::from("small")]);

    let (from, to) = (Place::new(), Place::new());
    for n in 0..50 {
        from.write(format!("f{n:03}"), "x");
    }
    let few = CollectLimits { entries: 10, ..limits() };
    let outcome = collect(&from.dir, &to.dir, few, &mut no_record).unwrap();
    assert_eq!((to.tree().len(), outcome.collected.files), (10, 10));
    assert_eq!(outcome.refusals.len(), 1);
    let looked = CollectLimits { names: 20, ..limits() };
    let outcome = collect(&from.dir, &Place::new().dir, looked, &mut no_record).unwrap();
    assert!(outcome.refusals[0].why.contains("20 names"));
    assert_eq!(outcome.collected.files, 20);
    let bytes = CollectLimits { bytes: 7, ..limits() };
    let to = Place::new();
    assert_eq!(collect(&from.dir, &to.dir, bytes, &mut no_record).unwrap().collected.bytes, 7);
    let no_time = CollectLimits { time: std::time::Duration::ZERO, ..limits() };
    assert_eq!(collect(&from.dir, &Place::new().dir, no_time, &mut no_record).unwrap().collected.files, 0);
}

#[test]
fn a_deep_tree_is_cut_at_the_ceiling() {
    let (from, to) = (Place::new(), Place::new());
    shell(
        "cd \"$1\"; i=0; while [ $i -lt 600 ]; do mkdir d; cd d; i=$((i+1)); done",
        &[from.temp.path().as_os_str()],
    );
    let outcome = run(&from, &to);
    assert_eq!(outcome.collected.refused, 1);
    assert_eq!(to.tree().len(), 127);
}

#[test]
fn no_file_appears_before_it_is_recorded() {
    let (from, to) = (Place::new(), Place::new());
    from.write("a", "x");
    let mut full = |event: &Event| {
        assert!(matches!(event, Event::FileOut { bytes: 1, .. }));
        Err(io::Error::from(io::ErrorKind::StorageFull))
    };
    let error = collect(&from.dir, &to.dir, limits(), &mut full).unwrap_err();
    assert!(matches!(error, CollectError::Record { .. }));
    assert!(to.tree().is_empty(), "the temporary file went too");
}

#[test]
fn swapping_a_folder_and_a_link_while_collecting_leaks_nothing() {
    let (from, elsewhere) = (Place::new(), Place::new());
    elsewhere.write("canary", "host secret");
    from.write("real/canary", "guest");
    symlink(elsewhere.temp.path(), from.at("link")).unwrap();
    from.write("plain", "guest");
    symlink(elsewhere.at("canary"), from.at("evil")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            use fumehood_sys::dirfd::RenameMode::Exchange;
            while !stop.load(Ordering::Relaxed) {
                from.dir.rename(OsStr::new("real"), &from.dir, OsStr::new("link"), Exchange).unwrap();
                from.dir.rename(OsStr::new("plain"), &from.dir, OsStr::new("evil"), Exchange).unwrap();
            }
        });
        for _ in 0..300 {
            let to = Place::new();
            run(&from, &to);
            for path in to.tree() {
                if to.at(&path).is_file() {
                    assert_eq!(to.text(&path), "guest", "{}", path.display());
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(elsewhere.text("canary"), "host secret");
}
