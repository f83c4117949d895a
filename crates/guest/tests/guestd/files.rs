//! Trees of files in and out.

use crate::guest::{Guest, PATIENCE};
use fumehood_guest::entry::{Entry, Front, What};
use fumehood_guest::frame::{OUTPUT, Tree};
use fumehood_guest::host::Answer;
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

/// What a tree holds: kind, mode and content (or target), by path.
type Held = BTreeMap<String, (&'static str, u32, Vec<u8>)>;

fn put(guest: &mut Guest, at: &Path, bytes: &[u8]) -> Result<(), std::io::Error> {
    let channel = guest.host.session().put(at.as_os_str().as_bytes(), None).unwrap();
    let mut left = bytes;
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the guest is silent");
        if let Some(most) = guest.host.session().may_send(channel)
            && !left.is_empty()
            && most > 0
        {
            let (now, later) = left.split_at(most.min(left.len()));
            guest.host.session().input(channel, now);
            left = later;
        }
        if left.is_empty() {
            guest.host.session().end_input(channel);
        }
        guest.host.pump();
        match guest.host.answer(channel) {
            Some(Ok(Answer::Done)) => return Ok(()),
            Some(Ok(other)) => panic!("{other:?}"),
            Some(Err(error)) => return Err(error),
            None => {}
        }
    }
}

fn get(guest: &mut Guest, at: &Path, tree: Tree) -> Vec<u8> {
    let channel = guest.host.session().get(at.as_os_str().as_bytes(), tree).unwrap();
    let mut bytes = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "the guest is silent");
        guest.host.pump();
        let came = guest.host.session().output(channel, OUTPUT).to_vec();
        guest.host.session().took(channel, OUTPUT, came.len());
        bytes.extend(&came);
        if came.is_empty() && !guest.host.session().is_open(channel) {
            guest.host.answer(channel).unwrap().unwrap();
            return bytes;
        }
    }
}

fn read(mut bytes: &[u8]) -> Held {
    let mut held = Held::new();
    while !bytes.is_empty() {
        let Front::Entry(entry, length) = Entry::parse(bytes) else { panic!("no entry") };
        bytes = &bytes[length..];
        let value = match entry.what {
            What::File { mode, size_bytes } => {
                let (content, rest) = bytes.split_at(usize::try_from(size_bytes).unwrap());
                bytes = rest;
                ("file", u32::from(mode), content.to_vec())
            }
            What::Folder { mode } => ("folder", u32::from(mode), Vec::new()),
            What::OpaqueFolder { mode } => ("opaque", u32::from(mode), Vec::new()),
            What::Link { target } => ("link", 0, target.to_vec()),
            What::Whiteout => ("whiteout", 0, Vec::new()),
            What::Other => ("other", 0, Vec::new()),
        };
        held.insert(String::from_utf8(entry.path.to_vec()).unwrap(), value);
    }
    held
}

#[test]
fn a_tree_goes_out_and_in_again_unchanged() {
    let mut guest = Guest::new();
    let folder = tempfile::tempdir().unwrap();
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for path in ["from/a/b/c", "to"] {
        std::fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    std::fs::write(from.join("empty"), b"").unwrap();
    std::fs::write(from.join("a/large"), vec![7; 700_000]).unwrap();
    std::fs::write(from.join("a/b/run"), b"#!/bin/sh\n").unwrap();
    std::fs::set_permissions(from.join("a/b/run"), PermissionsExt::from_mode(0o751)).unwrap();
    std::fs::set_permissions(from.join("a/b/c"), PermissionsExt::from_mode(0o500)).unwrap();
    symlink("../../empty", from.join("a/link")).unwrap();
    for number in 0..2000 {
        std::fs::write(from.join(format!("a/b/file-{number}")), format!("{number}")).unwrap();
    }
    let bytes = get(&mut guest, &from, Tree::Whole);
    let held = read(&bytes);
    assert_eq!(held.len(), 2007);
    assert_eq!(held["a/large"], ("file", 0o644, vec![7; 700_000]));
    assert_eq!(held["a/b/run"].1, 0o751);
    assert_eq!(held["a/link"], ("link", 0, b"../../empty".to_vec()));
    put(&mut guest, &to, &bytes).unwrap();
    assert_eq!(read(&get(&mut guest, &to, Tree::Whole)), held);
    std::fs::set_permissions(from.join("a/b/c"), PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(to.join("a/b/c"), PermissionsExt::from_mode(0o700)).unwrap();
}

#[test]
fn what_is_put_never_lands_behind_a_link() {
    let mut guest = Guest::new();
    let folder = tempfile::tempdir().unwrap();
    let (inner, outer) = (folder.path().join("inner"), folder.path().join("outer"));
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::create_dir_all(&outer).unwrap();
    symlink(&outer, inner.join("way")).unwrap();
    symlink(outer.join("victim"), inner.join("name")).unwrap();
    let file = |path: &[u8]| {
        let mut bytes = Vec::new();
        Entry { path, what: What::File { mode: 0o644, size_bytes: 3 } }.print(&mut bytes);
        bytes.extend(b"new");
        bytes
    };
    assert!(put(&mut guest, &inner, &file(b"way/victim")).is_err());
    put(&mut guest, &inner, &file(b"name")).unwrap();
    assert_eq!(std::fs::read_dir(&outer).unwrap().count(), 0);
    assert_eq!(std::fs::read(inner.join("name")).unwrap(), b"new");
    assert!(put(&mut guest, &inner, b"no entry at all, and long enough to be seen").is_err());
    // A file that is announced and does not come is a tree that is not whole.
    let cut = &file(b"cut")[..20];
    assert!(put(&mut guest, &inner, cut).is_err());
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let mut guest = Guest::new();
    let error = put(&mut guest, Path::new("/no/such/folder"), b"").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn meters_are_read() {
    let mut guest = Guest::new();
    let channel = guest.host.session().meters().unwrap();
    guest.host.pump();
    loop {
        guest.turn();
        match guest.host.answer(channel) {
            Some(Ok(Answer::Meters(meters))) => {
                assert!(meters.memory_bytes > 0 && meters.processes > 0, "{meters:?}");
                return;
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}
