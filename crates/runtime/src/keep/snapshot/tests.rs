use super::*;
use fumehood_sys::dirfd::Time;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

/// A user of the host's that nothing belongs to.
const SOMEBODY: u32 = 4_200_000;

struct Lab {
    base: TempDir,
}

impl Lab {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        for folder in ["snapshots", "old", "new"] {
            fs::create_dir(base.path().join(folder)).unwrap();
        }
        Self { base }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.base.path().join(path)
    }

    fn dir(&self, path: &str) -> DirHandle {
        DirHandle::open(&self.at(path)).unwrap()
    }

    fn take(&self, name: &str) -> Result<u64, Failure> {
        let mut taking = Taking::begin(&self.at("snapshots"), name, "1m8n")?;
        taking.take(&[(HOME, self.dir("old"))], (SOMEBODY, SOMEBODY))?;
        taking.describe(Origin { sandbox: "1m8n".to_owned(), ..Origin::default() }, None);
        taking.finish()
    }

    fn names(&self) -> Vec<OsString> {
        fs::read_dir(self.at("snapshots")).unwrap().map(|entry| entry.unwrap().file_name()).collect()
    }
}

#[test]
fn everything_that_an_overlay_and_a_user_make_comes_back_as_it_was() {
    let lab = Lab::new();
    let old = lab.dir("old");
    fs::create_dir_all(lab.at("old/d/e")).unwrap();
    fs::write(lab.at("old/d/file"), "text").unwrap();
    fs::set_permissions(lab.at("old/d/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(lab.at("old/d/file"), lab.at("old/again")).unwrap();
    symlink("/etc/passwd", lab.at("old/link")).unwrap();
    let sparse = fs::File::create(lab.at("old/sparse")).unwrap();
    sparse.write_all_at(b"end", 1 << 30).unwrap();
    old.make_whiteout(OsStr::new("gone")).unwrap();
    old.make_fifo(OsStr::new("pipe")).unwrap();
    lab.dir("old/d").mark_opaque().unwrap();
    lab.dir("old/d/e").set_mtime(Time { secs: 1_000_000_000, nanos: 5 }).unwrap();
    old.set_mtime_at(OsStr::new("link"), Time { secs: 1_000_000_001, nanos: 0 }).unwrap();
    fs::set_permissions(lab.at("old/d/e"), fs::Permissions::from_mode(0o500)).unwrap();
    lab.take("one").unwrap();
    let from = restore(&lab.at("snapshots"), "one", &[(HOME, lab.dir("new"))], None).unwrap();
    assert_eq!(from.task, "1m8n");
    let file = fs::metadata(lab.at("new/d/file")).unwrap();
    assert_eq!((file.mode() & 0o7777, file.nlink()), (0o4751, 2));
    assert_eq!(file.ino(), fs::metadata(lab.at("new/again")).unwrap().ino());
    assert_eq!(fs::read(lab.at("new/again")).unwrap(), b"text");
    assert_eq!(fs::read_link(lab.at("new/link")).unwrap(), Path::new("/etc/passwd"));
    let sparse = fs::metadata(lab.at("new/sparse")).unwrap();
    assert_eq!(sparse.len(), (1 << 30) + 3);
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks", sparse.blocks());
    let new = lab.dir("new");
    assert!(new.stat_at(OsStr::new("gone")).unwrap().is_whiteout());
    assert_eq!(new.stat_at(OsStr::new("pipe")).unwrap().kind, fumehood_sys::dirfd::Kind::Fifo);
    assert_eq!(lab.dir("new/d").attribute("user.overlay.opaque").unwrap().as_deref(), Some(&b"y"[..]));
    let folder = fs::metadata(lab.at("new/d/e")).unwrap();
    assert_eq!((folder.mode() & 0o7777, folder.mtime(), folder.mtime_nsec()), (0o500, 1_000_000_000, 5));
    assert_eq!(new.stat_at(OsStr::new("link")).unwrap().mtime.secs, 1_000_000_001);
}

#[test]
fn as_root_what_was_the_sandboxes_is_the_new_ones() {
    if fumehood_sys::host::euid() != 0 {
        // Nobody else can have anything.
        return;
    }
    let lab = Lab::new();
    fs::write(lab.at("old/kernel"), "").unwrap();
    std::os::unix::fs::chown(lab.at("old/kernel"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    fs::write(lab.at("old/owner"), "").unwrap();
    std::os::unix::fs::chown(lab.at("old"), Some(1234), Some(1234)).unwrap();
    std::os::unix::fs::chown(lab.at("old/owner"), Some(1234), Some(1234)).unwrap();
    std::os::unix::fs::chown(lab.at("new"), Some(77), Some(78)).unwrap();
    lab.take("one").unwrap();
    restore(&lab.at("snapshots"), "one", &[(HOME, lab.dir("new"))], None).unwrap();
    for name in ["new/kernel", "new/owner"] {
        let meta = fs::metadata(lab.at(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (77, 78), "{name}");
    }
}

#[test]
fn a_snapshot_is_whole_or_not_there() {
    let lab = Lab::new();
    fs::write(lab.at("old/file"), "text").unwrap();
    let mut given_up = Taking::begin(&lab.at("snapshots"), "half", "1m8n").unwrap();
    given_up.take(&[(HOME, lab.dir("old"))], (SOMEBODY, SOMEBODY)).unwrap();
    drop(given_up);
    assert!(lab.names().is_empty());
    lab.take("one").unwrap();
    assert_eq!(lab.take("one").unwrap_err().code, FailureCode::Exists);
    let late = Taking::begin(&lab.at("snapshots"), "two", "1m8n").unwrap();
    lab.take("two").unwrap();
    assert_eq!(late.finish().unwrap_err().code, FailureCode::Exists);
    assert_eq!(list(&lab.at("snapshots")).unwrap().len(), 2);
    remove(&lab.at("snapshots"), "one").unwrap();
    assert_eq!(remove(&lab.at("snapshots"), "one").unwrap_err().code, FailureCode::NotFound);
    for name in ["", ".", "..", "a/b", "../x", ".hidden", ".fork-", ".fork-..", "\n", &"x".repeat(101)] {
        assert_eq!(lab.take(name).unwrap_err().code, FailureCode::BadRequest, "{name:?}");
        assert_eq!(remove(&lab.at("snapshots"), name).unwrap_err().code, FailureCode::BadRequest, "{name:?}");
    }
    lab.take(".fork-1m8n-0").unwrap();
    assert_eq!(list(&lab.at("snapshots")).unwrap().len(), 1);
    // It is young: whoever made it may be at work.
    assert_eq!(prune(&lab.at("snapshots")).unwrap(), 0);
    let missing = restore(&lab.at("snapshots"), "none", &[], None);
    assert_eq!(missing.unwrap_err().code, FailureCode::NotFound);
}

#[test]
fn a_tree_that_is_too_deep_leaves_nothing() {
    let lab = Lab::new();
    fs::create_dir_all(lab.at(&format!("old/{}", ["d"; 250].join("/")))).unwrap();
    assert_eq!(lab.take("deep").unwrap_err().code, FailureCode::TooLarge);
    assert!(lab.names().is_empty());
}

/// Not a test of time, which a loaded machine would fail: it prints the cost, for `cargo test -- --nocapture`.
#[test]
fn what_a_changed_megabyte_costs() {
    for (files, bytes) in [(1, 20 << 20), (20, 1 << 20), (200, 10 << 10)] {
        let lab = Lab::new();
        for number in 0..files {
            fs::write(lab.at(&format!("old/{number}")), vec![7; bytes]).unwrap();
        }
        let mut times: Vec<_> = (0..5)
            .map(|round| {
                let mut taking = Taking::begin(&lab.at("snapshots"), &format!("s{round}"), "1m8n").unwrap();
                let begun = std::time::Instant::now();
                let copied = taking.take(&[(HOME, lab.dir("old"))], (SOMEBODY, SOMEBODY)).unwrap();
                assert!(copied == 0 || copied == (files * bytes) as u64);
                begun.elapsed()
            })
            .collect();
        times.sort();
        println!("{files} files of {bytes} bytes: {:?} (median of 5)", times[2]);
    }
}
