//! Images made and gone on with here, without a sandbox: what is between the two halves.

use super::*;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

#[test]
fn the_restorer_is_small_static_and_alone_at_its_address() {
    assert!(RESTORER.len() < usize::try_from(TABLE_AT).unwrap(), "{} bytes", RESTORER.len());
    assert_eq!(&RESTORER[..5], b"\x7fELF\x02");
    assert_eq!(RESTORER[16], 2, "not a fixed-address executable");
    assert!(!RESTORER.windows(8).any(|part| part == b"ld-linux"), "not static");
}

/// Prepares an interpreter by `source`; what was said, and where the image is.
fn prepare(folder: &Path, source: &str) -> (Output, PathBuf) {
    let image = folder.join("image");
    let [program, words @ ..] = &command("python3", source)[..] else { panic!("no command") };
    let mut options = std::fs::OpenOptions::new();
    let out = options.write(true).create(true).truncate(true).mode(0o555).open(&image).unwrap();
    out.write_all_at(RESTORER, 0).unwrap();
    let done = Command::new(program).args(words).stdin(Stdio::null()).stdout(out).output().unwrap();
    (done, image)
}

fn go_on(image: &Path, words: &[&str]) -> Output {
    Command::new(image).args(words).stdin(Stdio::null()).output().unwrap()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn what_was_prepared_is_there_and_each_goes_its_own_way() {
    let folder = tempfile::tempdir().unwrap();
    let (done, image) = prepare(
        folder.path(),
        "import random, json, decimal, ssl, tempfile\nprepared = list(range(200_000))\nrandom.seed(7)\n",
    );
    assert!(done.status.success(), "{}", text(&done));
    let sum = go_on(&image, &["-c", "import sys; print(sum(prepared), sys.argv)", "a", "b"]);
    assert_eq!(text(&sum), "19999900000 ['-c', 'a', 'b']\n");
    let draw =
        || text(&go_on(&image, &["-c", "print(random.random(), tempfile.mktemp(), ssl.RAND_bytes(9))"]));
    assert_ne!(draw(), draw());
    // The heap grows, threads start, files are opened, other programs are started.
    let works = "import threading, subprocess, os
more = [bytes(100) for _ in range(300_000)]; del more
box = []
thread = threading.Thread(target=lambda: box.append(threading.get_native_id())); thread.start(); thread.join()
assert box[0] != threading.get_native_id() == os.getpid()
assert subprocess.run(['echo', 'hi'], capture_output=True).stdout == b'hi\\n'
assert os.fork() == 0 or os.wait()[1] == 0
def deep(n): return n and 1 + deep(n - 1)
print(deep(900))";
    assert_eq!(text(&go_on(&image, &["-c", works])), "900\n900\n");
}

#[test]
fn it_ends_as_an_interpreter_does() {
    let folder = tempfile::tempdir().unwrap();
    let (done, image) = prepare(folder.path(), "import atexit\nx = 1\n");
    assert!(done.status.success(), "{}", text(&done));
    let code = |words: &[&str]| go_on(&image, words).status.code();
    assert_eq!(code(&["-c", "raise SystemExit(7)"]), Some(7));
    assert_eq!(code(&["-c", "import sys; sys.exit('why')"]), Some(1));
    assert_eq!(code(&["-X", "dev"]), Some(2));
    assert_eq!(code(&["/no/such/file.py"]), Some(2));
    let raised = go_on(&image, &["-c", "def f(): return 1 / 0\nf()"]);
    let said = text(&raised);
    assert!(raised.status.code() == Some(1) && said.contains("ZeroDivisionError"), "{said}");
    assert!(!said.contains("_fumehood"), "{said}");
    let last = go_on(&image, &["-c", "atexit.register(print, 'bye'); print('hi', end=' ')"]);
    assert_eq!(text(&last), "hi bye\n");
    let mut child = Command::new(&image)
        .env_clear()
        .env("ONLY", "this")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"import os; print(dict(os.environ), x)").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap()), "{'ONLY': 'this'} 1\n");
}

#[test]
fn what_can_not_go_along_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (open, _) = prepare(folder.path(), "kept = open('/etc/hostname')");
    assert!(!open.status.success() && text(&open).contains("/etc/hostname"), "{}", text(&open));
    let (thread, _) = prepare(
        folder.path(),
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), name='sleeper', daemon=True).start()",
    );
    assert!(!thread.status.success() && text(&thread).contains("sleeper"), "{}", text(&thread));
    let (flaw, _) = prepare(folder.path(), "1 / 0");
    assert!(!flaw.status.success() && text(&flaw).contains("ZeroDivisionError"), "{}", text(&flaw));
}

#[test]
fn a_flawed_image_ends_itself() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create(true).mode(0o555).open(&image).unwrap();
    file.write_all_at(RESTORER, 0).unwrap();
    file.write_all_at(&[0x55; 0x3_0000], TABLE_AT).unwrap();
    drop(file);
    let done = go_on(&image, &[]);
    assert_eq!(done.status.code(), Some(125), "{}", text(&done));
    assert!(text(&done).contains("none of this version"), "{}", text(&done));
}
