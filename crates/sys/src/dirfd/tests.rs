use super::*;
use std::ffi::OsString;
use std::os::unix::fs::symlink;

fn dir() -> (tempfile::TempDir, DirHandle) {
    let temp = tempfile::tempdir().unwrap();
    let handle = DirHandle::open(temp.path()).unwrap();
    (temp, handle)
}

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

#[test]
fn links_are_followed_as_if_the_directory_were_the_root() {
    let (temp, handle) = dir();
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("key"), "secret").unwrap();
    std::fs::create_dir_all(temp.path().join("etc/ssl")).unwrap();
    std::fs::write(temp.path().join("etc/ssl/real"), "inside").unwrap();
    let link = |to: &str, at: &str| symlink(to, temp.path().join(at)).unwrap();
    link("/etc/ssl/real", "absolute");
    link("../../../../etc/ssl/real", "climbs");
    link("/etc/ssl", "folder");
    link(outside.path().join("key").to_str().unwrap(), "out");
    link(outside.path().to_str().unwrap(), "out-folder");
    link("/proc/self/root/etc/passwd", "magic");
    link("loop", "loop");
    for path in ["etc/ssl/real", "absolute", "climbs", "folder/real"] {
        let (file, at) = handle.read_as_root(Path::new(path)).unwrap();
        assert_eq!(at, Path::new("etc/ssl/real"), "{path}");
        assert_eq!(file.stat().unwrap().size, 6, "{path}");
    }
    for path in ["out", "out-folder/key", "magic", "loop", "etc", "none", "../x", "/etc/passwd"] {
        assert!(handle.read_as_root(Path::new(path)).is_err(), "{path}");
    }
    let root = DirHandle::open(Path::new("/")).unwrap();
    let (_, at) = root.read_as_root(Path::new("etc/passwd")).unwrap();
    assert_eq!(at, Path::new("etc/passwd"));
}

#[test]
fn a_lookup_never_leaves_the_directory() {
    let (temp, handle) = dir();
    std::fs::create_dir_all(temp.path().join("a/b")).unwrap();
    symlink("/etc", temp.path().join("abs")).unwrap();
    symlink("a", temp.path().join("rel")).unwrap();
    symlink("..", temp.path().join("up")).unwrap();
    symlink("loop", temp.path().join("loop")).unwrap();
    assert!(handle.sub(Path::new("a/b")).is_ok());
    for path in ["abs", "rel", "rel/b", "up", "loop", "a/..", "..", "/etc", "a/../../x"] {
        assert!(handle.sub(Path::new(path)).is_err(), "{path}");
    }
    for path in ["abs/passwd", "../x", "/etc/passwd"] {
        assert!(handle.read(Path::new(path)).is_err(), "{path}");
    }
}

#[test]
fn a_name_is_one_name() {
    let (_temp, handle) = dir();
    for bad in ["", ".", "..", "a/b", "/", "../x"] {
        assert!(handle.stat_at(name(bad)).is_err(), "{bad}");
        assert!(handle.make_dir(name(bad), 0o755).is_err(), "{bad}");
        assert!(handle.create_new(name(bad), 0o644).is_err(), "{bad}");
    }
}

#[test]
fn names_are_bytes_and_all_of_them_are_listed() {
    let (_temp, handle) = dir();
    let odd =
        [&b"new\nline"[..], b"\x1b[31m", b"\xff\xfe", b"-rf", b"$(id)", "\u{202e}x".as_bytes(), &[b'n'; 255]];
    let mut made: Vec<OsString> = odd.iter().map(|bytes| OsStr::from_bytes(bytes).to_owned()).collect();
    made.extend((0..3_000).map(|n| OsString::from(format!("file-{n}"))));
    for name in &made {
        handle.create_new(name, 0o644).unwrap();
    }
    let mut seen: Vec<_> = handle.list().unwrap().map(|entry| entry.unwrap().name).collect();
    seen.sort();
    made.sort();
    assert_eq!(seen, made);
}

#[test]
fn a_pipe_in_a_files_place_answers_at_once() {
    let (temp, handle) = dir();
    let made = std::process::Command::new("mkfifo").arg(temp.path().join("pipe")).status().unwrap();
    assert!(made.success());
    assert_eq!(handle.read(Path::new("pipe")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn a_copy_stops_at_the_bytes_streamed_and_keeps_holes() {
    use std::os::unix::fs::MetadataExt;
    let (temp, handle) = dir();
    let sparse = File::create(temp.path().join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    let (from, _) = handle.read(Path::new("sparse")).unwrap();
    let to = handle.create_new(name("whole"), 0o644).unwrap();
    assert_eq!(copy(&from, &to, u64::MAX, &mut |_| true).unwrap(), 8 << 20);
    let copied = std::fs::metadata(temp.path().join("whole")).unwrap();
    assert_eq!((copied.len(), copied.blocks()), (8 << 20, 0));

    let (from, _) = handle.read(Path::new("sparse")).unwrap();
    let to = handle.create_new(name("cut"), 0o644).unwrap();
    assert!(matches!(copy(&from, &to, 1 << 20, &mut |_| true), Err(CopyError::TooLarge { .. })));
}

#[test]
fn renames_do_what_they_say() {
    let (temp, handle) = dir();
    std::fs::write(temp.path().join("a"), "a").unwrap();
    std::fs::write(temp.path().join("b"), "b").unwrap();
    let refused = handle.rename(name("a"), &handle, name("b"), RenameMode::NoReplace).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    handle.rename(name("a"), &handle, name("b"), RenameMode::Exchange).unwrap();
    assert_eq!(std::fs::read(temp.path().join("a")).unwrap(), b"b");
    handle.rename(name("a"), &handle, name("b"), RenameMode::Replace).unwrap();
    assert_eq!(std::fs::read(temp.path().join("b")).unwrap(), b"b");
}

#[test]
fn a_file_without_a_name_goes_or_gets_one() {
    let (temp, handle) = dir();
    drop(handle.create_unnamed(0o644).unwrap());
    assert_eq!(handle.list().unwrap().count(), 0);
    let file = handle.create_unnamed(0o600).unwrap();
    file.name(&handle, name("a")).unwrap();
    assert_eq!(file.name(&handle, name("a")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(temp.path().join("a").is_file());
}

#[test]
fn unlock_never_touches_where_a_link_leads() {
    use std::os::unix::fs::PermissionsExt;
    let (temp, handle) = dir();
    let mode = |path: &str| std::fs::metadata(temp.path().join(path)).unwrap().permissions().mode() & 0o777;
    std::fs::create_dir(temp.path().join("real")).unwrap();
    std::fs::set_permissions(temp.path().join("real"), std::fs::Permissions::from_mode(0o000)).unwrap();
    symlink("real", temp.path().join("link")).unwrap();
    assert!(handle.unlock(name("link")).is_err());
    assert_eq!(mode("real"), 0o000);
    handle.unlock(name("real")).unwrap();
    assert_eq!(mode("real"), 0o700);
}
