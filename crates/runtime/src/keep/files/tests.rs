use super::*;
use fumehood_keep::client::{Connection, Frame};
use fumehood_keep::frame::Kind as FrameKind;
use fumehood_keep::wire::{Ask, Change, Said};
use fumehood_sys::host;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use tempfile::TempDir;

/// A user of the host's that nothing belongs to.
const SOMEBODY: u32 = 4_100_000;

struct Lab {
    /// Holds the root and, beside it, what must never be reached.
    base: TempDir,
    files: Arc<GuestFiles>,
}

impl Lab {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let root = base.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(base.path().join("canary"), "outside").unwrap();
        let owner = if host::euid() == 0 {
            std::os::unix::fs::chown(&root, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
            (SOMEBODY, SOMEBODY)
        } else {
            let meta = fs::metadata(&root).unwrap();
            (meta.uid(), meta.gid())
        };
        let handle = fs::File::open(&root).unwrap();
        let files = GuestFiles::new(handle.into(), owner, (1000, 1000));
        Self { base, files }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.base.path().join("root").join(path.trim_start_matches('/'))
    }

    fn put(&self, path: &str, text: &str) -> Entry {
        let mut upload = self.files.write(path, None).unwrap();
        upload.append(text.as_bytes()).unwrap();
        upload.finish().unwrap()
    }

    fn get(&self, path: &str) -> Result<String, Failure> {
        let mut content = self.files.read(path, 0, None)?;
        let mut text = String::new();
        io::Read::read_to_string(&mut content.file, &mut text).unwrap();
        Ok(text)
    }

    /// Nothing beside the root was made, changed or removed.
    fn outside_is_whole(&self) -> bool {
        let mut names: Vec<_> =
            fs::read_dir(self.base.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names == ["canary", "root"] && fs::read(self.base.path().join("canary")).unwrap() == b"outside"
    }
}

fn code<T: std::fmt::Debug>(answer: Result<T, Failure>) -> FailureCode {
    let failure = answer.unwrap_err();
    assert!(!failure.cause.is_empty() && !failure.remediation.is_empty(), "{failure:?}");
    failure.code
}

#[test]
fn what_is_written_is_the_sandboxes_and_reads_back() {
    let lab = Lab::new();
    let entry = lab.put("/a/b/c.txt", "words");
    assert_eq!((entry.path.as_str(), entry.kind, entry.size), ("/a/b/c.txt", EntryKind::File, 5));
    assert_eq!((entry.owner, entry.group, entry.mode), (1000, 1000, 0o644));
    for made in ["a", "a/b", "a/b/c.txt"] {
        let meta = fs::metadata(lab.at(made)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), lab.files.owner, "{made}");
    }
    assert_eq!(lab.get("/a/b/c.txt").unwrap(), "words");
    let mut part = lab.files.read("/a/b/c.txt", 1, Some(3)).unwrap();
    let mut buffer = [0; 16];
    assert_eq!(part.next(&mut buffer).unwrap(), 3);
    assert_eq!(&buffer[..3], b"ord");
    assert_eq!(part.next(&mut buffer).unwrap(), 0);
    // Replacing keeps the mode unless told otherwise.
    fs::set_permissions(lab.at("a/b/c.txt"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(lab.put("/a/b/c.txt", "new").mode, 0o755);
    let upload = lab.files.write("/a/b/c.txt", Some(0o600)).unwrap();
    assert_eq!(upload.finish().unwrap().mode, 0o600);
}

#[test]
fn nothing_is_seen_of_an_upload_that_is_given_up() {
    let lab = Lab::new();
    lab.put("/kept", "old");
    let mut upload = lab.files.write("/kept", None).unwrap();
    upload.append(b"new, and never whole").unwrap();
    drop(upload);
    assert_eq!(lab.get("/kept").unwrap(), "old");
    assert_eq!(lab.files.list("/", 1).unwrap().0.len(), 1);
}

#[test]
fn as_root_the_rights_are_the_sandboxes_alone() {
    if host::euid() != 0 {
        // An ordinary user has no more rights than its sandbox.
        return;
    }
    let lab = Lab::new();
    for (name, mode) in [("secret", 0o600), ("of-group", 0o060), ("readable", 0o644)] {
        fs::write(lab.at(name), "root's").unwrap();
        fs::set_permissions(lab.at(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(lab.at("closed")).unwrap();
    fs::write(lab.at("closed/in"), "").unwrap();
    fs::set_permissions(lab.at("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(code(lab.files.read("/secret", 0, None)), FailureCode::Denied);
    assert_eq!(code(lab.files.read("/of-group", 0, None)), FailureCode::Denied);
    assert_eq!(lab.get("/readable").unwrap(), "root's");
    for refused in [
        code(lab.files.list("/closed", 1)),
        code(lab.files.write("/closed/new", None)),
        code(lab.files.make_dir("/closed/dir")),
        code(lab.files.remove("/closed")),
        code(lab.files.rename("/closed/in", "/out")),
        code(lab.files.watch("/closed", false)),
    ] {
        assert_eq!(refused, FailureCode::Denied);
    }
    // And root itself has all of its own back.
    assert!(fs::read(lab.at("secret")).is_ok());
    assert_eq!(lab.files.stat("/secret").unwrap().owner, UNMAPPED);
}

#[test]
fn links_lead_inside_whatever_they_say() {
    let lab = Lab::new();
    lab.put("/canary", "inside");
    for (name, target) in [("up", "../../canary"), ("absolute", "/canary"), ("host", "/../../../canary")] {
        symlink(target, lab.at(name)).unwrap();
        assert_eq!(lab.get(&format!("/{name}")).unwrap(), "inside");
    }
    symlink("..", lab.at("above")).unwrap();
    assert_eq!(lab.get("/above/above/../canary").unwrap(), "inside");
    // A link is written through, also one that leads to nothing yet.
    symlink("/deep/new", lab.at("through")).unwrap();
    lab.put("/through", "made");
    assert_eq!(fs::read(lab.at("deep/new")).unwrap(), b"made");
    assert_eq!(lab.files.stat("/through").unwrap().kind, EntryKind::Link);
    let loops = [("loop", "loop"), ("one", "two"), ("two", "one")];
    for (name, target) in loops {
        symlink(target, lab.at(name)).unwrap();
    }
    for (name, _) in loops {
        assert_eq!(code(lab.files.read(&format!("/{name}"), 0, None)), FailureCode::BadRequest);
        assert_eq!(code(lab.files.write(&format!("/{name}"), None)), FailureCode::BadRequest);
        assert_eq!(lab.files.stat(&format!("/{name}")).unwrap().kind, EntryKind::Link);
    }
    symlink("/proc/self/root/etc/passwd", lab.at("magic")).unwrap();
    assert_eq!(code(lab.files.read("/magic", 0, None)), FailureCode::NotFound);
    // Removing takes the link, never what it leads to.
    fs::create_dir(lab.at("kept")).unwrap();
    symlink("/kept", lab.at("to-kept")).unwrap();
    lab.files.remove("/to-kept").unwrap();
    assert!(lab.at("kept").exists());
    assert!(lab.outside_is_whole());
}

#[test]
fn only_regular_files_are_opened() {
    let lab = Lab::new();
    DirHandle::open(&lab.at("/")).unwrap().make_fifo(OsStr::new("pipe")).unwrap();
    let _socket = UnixListener::bind(lab.at("socket")).unwrap();
    lab.files.make_dir("/folder").unwrap();
    for name in ["/pipe", "/socket", "/folder", "/"] {
        assert_eq!(code(lab.files.read(name, 0, None)), FailureCode::NotAFile, "{name}");
    }
    for name in ["/pipe", "/socket", "/folder"] {
        assert_eq!(code(lab.files.write(name, None)), FailureCode::NotAFile, "{name}");
    }
    assert_eq!(code(lab.files.list("/pipe", 1)), FailureCode::NotAFolder);
    assert_eq!(code(lab.files.read("/none", 0, None)), FailureCode::NotFound);
}

#[test]
fn odd_requests_have_an_answer() {
    let lab = Lab::new();
    lab.put("/file", "");
    let long = format!("/{}", "x".repeat(300));
    let longer = "/x".repeat(3000);
    for path in ["", "relative", "/nul\0", &long, &longer] {
        assert_eq!(code(lab.files.stat(path)), FailureCode::BadRequest, "{path:?}");
    }
    for path in ["/", "/.", "/..", "/file/.."] {
        assert!(lab.files.remove(path).is_err(), "{path}");
    }
    assert_eq!(code(lab.files.write("/file/", None)), FailureCode::BadRequest);
    assert_eq!(code(lab.files.write("/file/below", None)), FailureCode::NotAFolder);
    assert_eq!(code(lab.files.make_dir("/file")), FailureCode::Exists);
    assert_eq!(code(lab.files.list("/", 0)), FailureCode::BadRequest);
    lab.files.make_dir("/d/e/f").unwrap();
    assert_eq!(code(lab.files.make_dir("/d/e/f")), FailureCode::Exists);
    assert_eq!(code(lab.files.rename("/d", "/d/e/f/g")), FailureCode::BadRequest);
    assert_eq!(code(lab.files.rename("/none", "/x")), FailureCode::NotFound);
    lab.files.rename("/d/e", "/new/place").unwrap();
    assert!(lab.at("new/place/f").is_dir());
    assert!(lab.outside_is_whole());
}

#[test]
fn a_list_goes_as_deep_as_was_asked_and_no_further_than_it_may() {
    use std::os::unix::ffi::OsStrExt as _;
    let lab = Lab::new();
    lab.put("/a/b/c", "");
    fs::write(lab.at("/").join(OsStr::from_bytes(b"odd-\xff")), "").unwrap();
    symlink("/a", lab.at("link")).unwrap();
    let paths = |depth| {
        let (entries, cut) = lab.files.list("/", depth).unwrap();
        assert!(!cut);
        entries.into_iter().map(|entry| entry.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(1), ["/a", "/link", "/odd-\u{fffd}"]);
    assert_eq!(paths(9), ["/a", "/a/b", "/a/b/c", "/link", "/odd-\u{fffd}"]);
    let (entries, _) = lab.files.list("/", 1).unwrap();
    assert_eq!(entries[1].link.as_deref(), Some("/a"));
    assert!(entries[2].odd);
    lab.files.make_dir("/many").unwrap();
    for number in 0..MOST + 5 {
        fs::write(lab.at(&format!("many/{number}")), "").unwrap();
    }
    let (entries, cut) = lab.files.list("/many", 1).unwrap();
    assert!(cut && entries.len() <= MOST && entries.len() > 4000, "{}", entries.len());
    assert!(serde_json::to_vec(&entries).unwrap().len() < fumehood_keep::frame::MOST_BYTES);
    lab.files.remove("/many").unwrap();
    assert!(!lab.at("many").exists());
}

const MOST: usize = fumehood_keep::wire::MOST_ENTRIES;

#[test]
fn a_tree_that_is_too_deep_is_refused_and_not_walked_into() {
    let lab = Lab::new();
    let mut at = lab.at("/");
    for _ in 0..300 {
        at.push("d");
        fs::create_dir(&at).unwrap();
    }
    if host::euid() == 0 {
        for path in at.ancestors().take(300) {
            std::os::unix::fs::chown(path, Some(SOMEBODY), Some(SOMEBODY)).unwrap();
        }
    }
    assert_eq!(code(lab.files.remove("/d")), FailureCode::TooLarge);
    assert_eq!(lab.files.list("/", 9999).unwrap().0.len(), MOST_LEVELS as usize);
    assert_eq!(code(lab.files.watch("/", true)), FailureCode::Busy);
}

#[test]
fn changes_are_told_also_of_what_came_while_nobody_looked() {
    let lab = Lab::new();
    lab.files.make_dir("/w/old").unwrap();
    let mut all = lab.files.watch("/w", true).unwrap();
    let mut top = lab.files.watch("/w", false).unwrap();
    lab.put("/w/old/file", "text");
    lab.files.make_dir("/w/new/deep/deeper").unwrap();
    let told = all.changes().unwrap();
    for path in ["/w/old/file", "/w/new", "/w/new/deep", "/w/new/deep/deeper"] {
        assert!(told.contains(&(path.to_owned(), Change::Created)), "{path} of {told:?}");
    }
    assert_eq!(top.changes().unwrap(), [("/w/new".to_owned(), Change::Created)]);
    lab.files.rename("/w/new/deep", "/w/moved").unwrap();
    let told = all.changes().unwrap();
    assert!(told.contains(&("/w/new/deep".to_owned(), Change::Moved)), "{told:?}");
    lab.put("/w/moved/deeper/last", "");
    let told = all.changes().unwrap();
    assert!(told.iter().any(|(path, _)| path == "/w/moved/deeper/last"), "{told:?}");
    lab.files.remove("/w").unwrap();
    assert_eq!(
        code(std::iter::repeat_with(|| all.changes()).find(Result::is_err).unwrap()),
        FailureCode::NotFound
    );
}

#[test]
fn a_move_to_another_file_system_carries_the_tree() {
    // Memory is another one than that of the temporary folder, or the test has nothing to cross.
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return };
    let lab = Lab::new();
    lab.put("/tree/file", "text");
    fs::set_permissions(lab.at("tree/file"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("file", lab.at("tree/link")).unwrap();
    let (from, to) = (lab.at("tree"), shm.path().join("tree"));
    let dir = |path: &Path| DirHandle::open(path).unwrap();
    let place = |path: &Path| Place {
        parent: dir(path.parent().unwrap()),
        name: path.file_name().unwrap().to_owned(),
        path: path.to_owned(),
    };
    change::carry(&place(&from), &place(&to)).unwrap();
    assert!(!from.exists());
    assert_eq!(fs::read(to.join("link")).unwrap(), b"text");
    assert_eq!(fs::metadata(to.join("file")).unwrap().mode() & 0o7777, 0o750);
    dir(&lab.at("/")).make_dir(OsStr::new("odd"), 0o755).unwrap();
    dir(&lab.at("odd")).make_fifo(OsStr::new("pipe")).unwrap();
    let refused = change::carry(&place(&lab.at("odd")), &place(&shm.path().join("odd")));
    assert_eq!(code(refused), FailureCode::Unsupported);
    assert!(lab.at("odd/pipe").exists());
    assert_eq!(fs::read_dir(shm.path()).unwrap().count(), 1);
}

fn ask(files: &Arc<GuestFiles>, ask: Ask, early: Vec<u8>) -> (Connection, std::thread::JoinHandle<()>) {
    let (near, far) = UnixStream::pair().unwrap();
    let files = Arc::clone(files);
    let thread = std::thread::spawn(move || files.answer(ask, Caller::new(far, early).unwrap()));
    (Connection::from(near), thread)
}

#[test]
fn content_crosses_a_connection_in_constant_memory() {
    const BYTES: usize = 64 << 20;
    let lab = Lab::new();
    let chunk = vec![b'x'; 1 << 20];
    // The first frame came with the request.
    let mut early = fumehood_keep::frame::Header::print(FrameKind::Data, 5).to_vec();
    early.extend(b"early");
    let (mut up, thread) = ask(&lab.files, Ask::Write { path: "/big".to_owned(), mode: None }, early);
    for _ in 0..BYTES / chunk.len() {
        up.send(FrameKind::Data, &chunk).unwrap();
    }
    up.send(FrameKind::DataEnd, b"").unwrap();
    let Some(Frame::Said(Said::Entry { entry })) = up.next().unwrap() else { panic!("no entry") };
    assert_eq!(entry.size, BYTES as u64 + 5);
    drop(up);
    thread.join().unwrap();
    let (mut down, thread) =
        ask(&lab.files, Ask::Read { path: "/big".to_owned(), offset: 3, length: None }, Vec::new());
    assert!(matches!(down.next().unwrap(), Some(Frame::Said(Said::Entry { .. }))));
    let mut count = 0;
    loop {
        match down.next().unwrap() {
            Some(Frame::Bytes(FrameKind::Data, bytes)) => count += bytes.len(),
            Some(Frame::Bytes(FrameKind::DataEnd, _)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(count, BYTES + 2);
    drop(down);
    thread.join().unwrap();
}

#[test]
fn a_caller_that_vanishes_leaves_nothing() {
    let lab = Lab::new();
    let (mut up, thread) = ask(&lab.files, Ask::Write { path: "/half".to_owned(), mode: None }, Vec::new());
    up.send(FrameKind::Data, b"half").unwrap();
    drop(up);
    thread.join().unwrap();
    assert_eq!(lab.files.list("/", 1).unwrap().0, []);
    let (watch, thread) = ask(&lab.files, Ask::Watch { path: "/".to_owned(), recursive: true }, Vec::new());
    drop(watch);
    thread.join().unwrap();
}

/// Something that a guest or its caller does to paths.
#[derive(Clone, Debug)]
enum Act {
    Link(String, String),
    Write(String),
    MakeDir(String),
    Move(String, String),
    Remove(String),
    Read(String),
    List(String),
}

fn path() -> impl Strategy<Value = String> {
    let part =
        prop_oneof![Just(".."), Just("."), Just("a"), Just("b"), Just("canary"), Just("root"), Just("")];
    proptest::collection::vec(part, 1..6).prop_map(|parts| format!("/{}", parts.join("/")))
}

fn act() -> impl Strategy<Value = Act> {
    let target = prop_oneof![path(), path().prop_map(|path| path.trim_start_matches('/').to_owned())];
    prop_oneof![
        (path(), target).prop_map(|(at, to)| Act::Link(at, to)),
        path().prop_map(Act::Write),
        path().prop_map(Act::MakeDir),
        (path(), path()).prop_map(|(from, to)| Act::Move(from, to)),
        path().prop_map(Act::Remove),
        path().prop_map(Act::Read),
        path().prop_map(Act::List),
    ]
}

proptest! {
    #[test]
    fn no_sequence_of_paths_and_links_leads_out(acts in proptest::collection::vec(act(), 1..24)) {
        let lab = Lab::new();
        for act in acts {
            match act {
                Act::Link(at, to) => {
                    // As the guest would: in a folder of its own, to wherever it likes.
                    if let Ok(place) = lab.files.place(Path::new(&at), false) {
                        let _ = place.parent.make_link(OsStr::new(&to), &place.name);
                    }
                }
                Act::Write(path) => {
                    let written = lab.files.write(&path, None).and_then(|mut upload| {
                        upload.append(b"inside")?;
                        upload.finish()
                    });
                    let _ = written;
                }
                Act::MakeDir(path) => drop(lab.files.make_dir(&path)),
                Act::Move(from, to) => drop(lab.files.rename(&from, &to)),
                Act::Remove(path) => drop(lab.files.remove(&path)),
                Act::Read(path) => {
                    if let Ok(text) = lab.get(&path) {
                        prop_assert_ne!(text, "outside");
                    }
                }
                Act::List(path) => {
                    if let Ok((entries, _)) = lab.files.list(&path, 3) {
                        prop_assert!(entries.iter().all(|entry| entry.kind != EntryKind::File || entry.size != 7), "{:?}", entries);
                    }
                }
            }
            prop_assert!(lab.outside_is_whole());
        }
    }
}
