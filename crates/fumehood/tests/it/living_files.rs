//! Files of sandboxes that live on, from outside: read, written, watched, kept, and begun with.

use crate::both_callers::both_callers;
use crate::lab::{self, Lab};
use crate::living::{Living, shell};
use fumehood_keep::client::Frame;
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Change, Entry, EntryKind, Exec, FailureCode, Said};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

both_callers! {
    files_are_worked_on_with_the_rights_of_the_sandbox
    a_guest_that_swaps_paths_leads_nobody_out
    changes_inside_are_told_outside
    a_snapshot_is_of_one_moment
    large_files_that_are_written_meanwhile_are_of_that_moment_too
    a_fork_copies_what_changed_and_never_the_workspace
}

pub(crate) fn entry(said: Said) -> Entry {
    match said {
        Said::Entry { entry } => entry,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn refused(said: Said) -> FailureCode {
    match said {
        Said::Failed(failure) => {
            assert!(!failure.cause.is_empty() && !failure.remediation.is_empty(), "{failure:?}");
            failure.code
        }
        other => panic!("{other:?}"),
    }
}

pub(crate) fn write(one: &Living<'_>, path: &str, bytes: &[u8]) -> Said {
    let mut connection = one.ask(&Ask::Write { path: path.to_owned(), mode: None });
    for chunk in bytes.chunks(1 << 20) {
        // One that is refused is told so below.
        if connection.send(Kind::Data, chunk).is_err() {
            break;
        }
    }
    let _ = connection.send(Kind::DataEnd, b"");
    match connection.next().unwrap() {
        Some(Frame::Said(said)) => said,
        other => panic!("{other:?}"),
    }
}

pub(crate) fn read(one: &Living<'_>, path: &str) -> Result<Vec<u8>, FailureCode> {
    let mut connection = one.ask(&Ask::Read { path: path.to_owned(), offset: 0, length: None });
    let mut bytes = Vec::new();
    loop {
        match connection.next().unwrap() {
            Some(Frame::Said(Said::Entry { .. })) => {}
            Some(Frame::Said(said)) => return Err(refused(said)),
            Some(Frame::Bytes(Kind::Data, more)) => bytes.extend(more),
            Some(Frame::Bytes(Kind::DataEnd, _)) => return Ok(bytes),
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn files_are_worked_on_with_the_rights_of_the_sandbox(lab: &Lab) {
    lab.folder("shown");
    let shown = lab.file("shown/of-host", "read-only");
    let flags = ["--ro", &format!("{}:/shown", shown.parent().unwrap().display())];
    let one = Living::new(lab, &flags);
    let bytes = lab::random(3_000_000);
    let made = entry(write(&one, "/workspace/deep/er/file", &bytes));
    assert_eq!((made.size, made.owner, made.kind), (3_000_000, 1000, EntryKind::File));
    assert_eq!(read(&one, "/workspace/deep/er/file").unwrap(), bytes);
    let seen = one.exec(&["sh", "-c", "stat -c '%u %g %a %s' deep/er/file && echo more >> deep/er/file"]);
    assert_eq!(seen.out(), "1000 1000 644 3000000\n");
    assert_eq!(entry(one.call(&Ask::Stat { path: "/workspace/deep/er/file".into() })).size, 3_000_005);
    for path in ["/shown/new", "/usr/new", "/etc/new", "/shown/of-host"] {
        assert_eq!(refused(write(&one, path, b"x")), FailureCode::Denied, "{path}");
    }
    assert_eq!(fs::read(&shown).unwrap(), b"read-only");
    assert_eq!(refused(one.call(&Ask::Remove { path: "/shown/of-host".into() })), FailureCode::Denied);
    assert_eq!(read(&one, "/shown/of-host").unwrap(), b"read-only");
    for path in ["/dev/zero", "/dev/null", "/workspace"] {
        assert_eq!(read(&one, path), Err(FailureCode::NotAFile), "{path}");
    }
    // From the disk to memory: another file system.
    let moved = one.call(&Ask::Move { from: "/workspace/deep".into(), to: "/tmp/moved".into() });
    assert_eq!(moved, Said::Done);
    assert_eq!(read(&one, "/tmp/moved/er/file").unwrap().len(), 3_000_005);
    assert_eq!(one.call(&Ask::Remove { path: "/tmp/moved".into() }), Said::Done);
    assert_eq!(one.exec(&["sh", "-c", "ls /tmp /workspace | wc -l"]).out().trim(), "3");
    // What is mounted there is not taken away by what would empty its place.
    for path in ["/workspace", "/usr", "/dev/null", "/proc"] {
        assert_eq!(refused(one.call(&Ask::Remove { path: path.into() })), FailureCode::Denied, "{path}");
        let moved = one.call(&Ask::Move { from: path.into(), to: "/tmp/away".into() });
        assert_eq!(refused(moved), FailureCode::Denied, "{path}");
    }
    assert_eq!(one.exec(&["sh", "-c", "ls /workspace && test -c /dev/null && echo all"]).out(), "all\n");
    one.stop();
}

pub(crate) fn a_guest_that_swaps_paths_leads_nobody_out(lab: &Lab) {
    let canary = lab::canary();
    let secret = lab.file("host-only", &canary);
    let one = Living::new(lab, &[]);
    let folder = secret.parent().unwrap().display().to_string();
    // A folder that is a folder, then a link to the host's, then a folder.
    let swap = format!(
        "mkdir -p real; echo inside > real/host-only; ln -s {folder} link; \
         while :; do mv -T real at; mv -T at real; mv -T link at; mv -T at link; done"
    );
    let (_, _running) = one.start(shell(&swap));
    for round in 0..200 {
        for path in ["/workspace/at/host-only", "/workspace/link/host-only"] {
            if let Ok(bytes) = read(&one, path) {
                assert!(!lab::contains(&bytes, &canary), "{path}");
            }
            let _ = write(&one, path, format!("round {round}\n").as_bytes());
        }
        let _ = one.call(&Ask::Remove { path: "/workspace/at".into() });
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), canary);
    one.stop();
}

pub(crate) fn changes_inside_are_told_outside(lab: &Lab) {
    let one = Living::new(lab, &[]);
    let mut watch = one.ask(&Ask::Watch { path: "/workspace".into(), recursive: true });
    assert_eq!(watch.next().unwrap(), Some(Frame::Said(Said::Done)));
    let mut told = Vec::new();
    let mut until = |path: &str, change: Change| {
        while !told.contains(&(path.to_owned(), change)) {
            match watch.next().unwrap() {
                Some(Frame::Said(Said::Changed { path, change })) => told.push((path, change)),
                other => panic!("{other:?}"),
            }
        }
    };
    one.exec(&["mkdir", "-p", "a/b"]);
    // From now on the new folder is watched too.
    until("/workspace/a/b", Change::Created);
    one.exec(&["sh", "-c", "echo x > a/b/c; rm a/b/c"]);
    until("/workspace/a/b/c", Change::Created);
    until("/workspace/a/b/c", Change::Removed);
    one.stop();
}

/// Whether this caller can keep snapshots on this host: the processes must be made to stand still.
fn can_freeze(one: &Living<'_>) -> bool {
    match one.call(&Ask::Snapshot { name: "first".into(), memory: None }) {
        Said::Snapshot { .. } => true,
        said => {
            assert_eq!(refused(said), FailureCode::Unsupported);
            println!("NOT-APPLICABLE: this caller has no freezer on this host");
            false
        }
    }
}

pub(crate) fn a_snapshot_is_of_one_moment(lab: &Lab) {
    let one = Living::new(lab, &[]);
    if !can_freeze(&one) {
        return;
    }
    let script =
        "i=0; while :; do i=$((i+1)); echo $i > A.new; mv A.new A; echo $i > B.new; mv B.new B; done";
    let (_, _running) = one.start(shell(script));
    assert!(lab::poll(lab::DEADLINE, || one.exec(&["cat", "B"]).out().trim().parse::<u64>().is_ok()));
    let mut last = 0;
    for round in 0..8 {
        let name = format!("s{round}");
        let said = one.call(&Ask::Snapshot { name: name.clone(), memory: None });
        assert!(matches!(said, Said::Snapshot { .. }), "{said:?}");
        let number = |file: &str| {
            let path = lab.state().join("snapshots").join(&name).join("workspace").join(file);
            fs::read_to_string(path).unwrap().trim().parse::<u64>().unwrap()
        };
        let (a, b) = (number("A"), number("B"));
        assert!(b <= a && a <= b + 1, "A is {a}, B is {b}");
        assert!(a >= last);
        last = a;
    }
    assert_eq!(refused(one.call(&Ask::Snapshot { name: "s0".into(), memory: None })), FailureCode::Exists);
    // The writer goes on.
    assert!(lab::poll(lab::DEADLINE, || one.exec(&["cat", "A"]).out().trim().parse().unwrap_or(0) > last));
    let child = Living::new(lab, &["--snapshot", "s0"]);
    assert_eq!(child.exec(&["sh", "-c", "ls A B | wc -l"]).out().trim(), "2");
    child.stop();
    one.stop();
    let removed = one.fumehood(&["snapshots", "rm", "s0"], b"");
    assert_eq!(removed.code(), 0, "{}", removed.told());
    let listed = one.fumehood(&["snapshots", "ls"], b"");
    assert!(listed.out().contains("s1") && !listed.out().contains("s0"), "{}", listed.told());
}

const FOLDERS: usize = 50;
const FILES: usize = 1000;

/// Writes a number all over two large files, in turn, by every way there is: anew, in place, and through memory.
const REWRITES: &str = "import mmap, os
SIZE = 1 << 20
for name in 'AB':
    open(name, 'wb').write((0).to_bytes(8, 'big') * (SIZE // 8))
open('quiet', 'wb').write(b'q' * SIZE)
print('ready', flush=True)
for number in range(1, 1 << 40):
    words = number.to_bytes(8, 'big') * (SIZE // 8)
    for name in 'AB':
        way = number % 3
        if way == 0:
            open(name + '.new', 'wb').write(words)
            os.rename(name + '.new', name)
        elif way == 1:
            with open(name, 'r+b') as file: file.write(words)
        else:
            with open(name, 'r+b') as file, mmap.mmap(file.fileno(), SIZE) as memory: memory[:] = words
";

fn large_files_that_are_written_meanwhile_are_of_that_moment_too(lab: &Lab) {
    let one = Living::new(lab, &[]);
    if !can_freeze(&one) {
        return;
    }
    let (_, mut running) =
        one.start(Exec { argv: ["python3", "-c", REWRITES].map(str::to_owned).to_vec(), ..Exec::default() });
    assert!(matches!(running.next().unwrap(), Some(Frame::Bytes(Kind::Stdout, _))));
    for round in 0..12 {
        let name = format!("s{round}");
        let said = one.call(&Ask::Snapshot { name: name.clone(), memory: None });
        assert!(matches!(said, Said::Snapshot { .. }), "{said:?}");
        let folder = lab.state().join("snapshots").join(&name);
        let numbers = |file: &str| -> BTreeSet<u64> {
            let bytes = fs::read(folder.join("workspace").join(file)).unwrap();
            assert_eq!(bytes.len(), 1 << 20, "{file}");
            bytes.chunks(8).map(|word| u64::from_be_bytes(word.try_into().unwrap())).collect()
        };
        // The one file is begun when the other is done.
        let (first, second) = (numbers("A"), numbers("B"));
        let newest = *first.last().unwrap();
        let before = newest.saturating_sub(1);
        let fits = if first.contains(&before) {
            second == BTreeSet::from([before])
        } else {
            second.iter().all(|number| *number == newest || *number == before)
        };
        assert!(fits && first.iter().all(|number| *number >= before), "{first:?} {second:?}");
        assert_eq!(fs::read(folder.join("workspace/quiet")).unwrap(), vec![b'q'; 1 << 20]);
        assert!(!folder.join("ahead").exists());
    }
}

fn a_fork_copies_what_changed_and_never_the_workspace(lab: &Lab) {
    let base = lab.folder("base");
    for folder in 0..FOLDERS {
        fs::create_dir(base.join(folder.to_string())).unwrap();
        for file in 0..FILES {
            fs::write(base.join(format!("{folder}/{file}")), [b'x'; 100]).unwrap();
        }
    }
    lab.give_all(&base);
    let parent = Living::new(lab, &["--workspace", base.to_str().unwrap()]);
    if !can_freeze(&parent) {
        return;
    }
    let changed = "rm 0/0; echo parent > 1/1; mkdir new; head -c 1000000 /dev/urandom > new/big; echo home > $HOME/note";
    parent.exec(&["sh", "-c", changed]);
    let Said::Snapshot { bytes, .. } = parent.call(&Ask::Snapshot { name: "second".into(), memory: None })
    else {
        panic!()
    };
    assert!((1_000_000..1_100_000).contains(&bytes), "{bytes} bytes of a base of {}", FOLDERS * FILES * 100);
    assert!(entries(&lab.state().join("snapshots/second")) < 100);
    let forked = parent.fumehood(&["fork", &parent.id, "-n", "3"], b"");
    assert_eq!(forked.code(), 0, "{}", forked.told());
    let ids: Vec<String> = forked.out().lines().map(str::to_owned).collect();
    assert_eq!(ids.len(), 3, "{}", forked.told());
    let look = "cat 1/1 $HOME/note; ls 0 | wc -l; wc -c < new/big; find . -type f | wc -l";
    for id in &ids {
        let run = |script: &str| parent.fumehood(&["exec", id, "--", "sh", "-c", script], b"");
        let seen = run(look);
        assert_eq!(
            seen.out(),
            format!("parent\nhome\n{}\n1000000\n{}\n", FILES - 1, FOLDERS * FILES),
            "{}",
            seen.told()
        );
        assert_eq!(run(&format!("echo {id} > 1/1; rm -r new; echo {id} > own")).code(), 0);
    }
    for id in &ids {
        let seen = parent.fumehood(&["exec", id, "--", "cat", "1/1", "own"], b"");
        assert_eq!(seen.out(), format!("{id}\n{id}\n"));
        // Where its files are from stands in its record.
        let record = fs::read_to_string(lab.state().join(format!("records/{id}.jsonl"))).unwrap();
        assert!(
            record.contains(&format!("\"from\":{{\"task\":\"{}\"", parent.id)) || record.contains(&parent.id),
            "{record}"
        );
    }
    // The parent goes on with its own, and the workspace is as it was.
    assert!(parent.exec(&["sh", "-c", look]).out().starts_with("parent\nhome\n"));
    assert_eq!(parent.exec(&["sh", "-c", "ls own 2>/dev/null | wc -l"]).out().trim(), "0");
    assert_eq!(fs::read(base.join("1/1")).unwrap(), [b'x'; 100]);
    assert!(base.join("0/0").exists());
    let hidden = fs::read_dir(lab.state().join("snapshots")).unwrap();
    let left: Vec<_> = hidden
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.as_encoded_bytes()[0] == b'.')
        .collect();
    assert!(left.is_empty(), "{left:?}");
    for id in &ids {
        assert_eq!(parent.fumehood(&["stop", id], b"").code(), 0);
    }
    parent.stop();
}

fn entries(folder: &Path) -> usize {
    let below = |entry: fs::DirEntry| {
        let is_dir = entry.file_type().unwrap().is_dir();
        1 + if is_dir { entries(&entry.path()) } else { 0 }
    };
    fs::read_dir(folder).unwrap().map(|entry| below(entry.unwrap())).sum()
}
