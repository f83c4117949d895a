//! The record of living sandboxes and their forks, and everything that can be done to it by who may write the folder.

use crate::lab::{Caller, DEADLINE, Lab, Ran, am_root, finish, poll};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of each file of a records folder.
type Files = BTreeMap<String, Vec<String>>;

/// A record of two sandboxes, and of forks of the first where this host can fork.
struct Stage<'a> {
    lab: &'a Lab,
    parent: String,
    other: String,
    children: Vec<String>,
    head: PathBuf,
    whole: Files,
}

// === impl Stage ===

impl<'a> Stage<'a> {
    fn new(lab: &'a Lab) -> Self {
        let told = |words: &[&str]| -> String {
            let ran = words_of(lab, words);
            assert_eq!(ran.code(), 0, "{words:?}: {}", ran.told());
            ran.out().trim().to_owned()
        };
        let (parent, other) = (told(&["create"]), told(&["create"]));
        for id in [&parent, &other] {
            told(&["exec", id, "--", "sh", "-c", "echo one > kept"]);
            told(&["exec", id, "--", "true"]);
        }
        let forked = words_of(lab, &["fork", &parent, "-n", "2"]);
        let children: Vec<String> = forked.out().lines().map(str::to_owned).collect();
        if forked.code() != 0 {
            println!("NOT-APPLICABLE: {}", forked.err());
        }
        for id in &children {
            told(&["exec", id, "--", "cat", "kept"]);
        }
        told(&["exec", &parent, "--", "true"]);
        told(&["stop", "--all"]);
        let mut whole = Files::new();
        assert!(poll(DEADLINE, || {
            whole = read(&lab.state().join("records"));
            whole["index.jsonl"].last().is_some_and(|line| line.contains("index.signed"))
                && whole["index.jsonl"].iter().filter(|line| line.contains("index.closed")).count()
                    == 2 + children.len()
        }));
        let head = lab.file("head.json", told(&["audit", "head"]));
        assert_eq!(verify(lab, &[]).code(), 0);
        Self { lab, parent, other, children, head, whole }
    }

    /// The judgement over other files in the place of these.
    fn with(&self, files: &Files, flags: &[&str]) -> Ran {
        let records = self.lab.state().join("records");
        for entry in fs::read_dir(&records).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (name, lines) in files {
            let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
            fs::write(records.join(name), text).unwrap();
        }
        self.lab.give_all(&records);
        verify(self.lab, flags)
    }

    /// It is found, and the words that say what.
    fn found(&self, what: &str, files: &Files, words: &str) {
        let ran = self.with(files, &[]);
        assert_eq!(ran.code(), 1, "{what} is not found: {}", ran.told());
        assert!(ran.out().contains("BROKEN") && ran.out().contains(words), "{what}: {}", ran.told());
    }

    fn name(&self, id: &str) -> String {
        format!("{id}.jsonl")
    }
}

fn words_of(lab: &Lab, words: &[&str]) -> Ran {
    let mut command = lab.fumehood();
    command.args(words);
    finish(command, b"")
}

fn verify(lab: &Lab, flags: &[&str]) -> Ran {
    words_of(lab, &[&["audit", "verify"], flags].concat())
}

fn read(records: &Path) -> Files {
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let lines = |path: &Path| fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect();
    let paths = fs::read_dir(records).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (name(&path), lines(&path))).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pairs = hex.as_bytes().chunks_exact(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The value of a member that is text.
fn member<'l>(line: &'l str, name: &str) -> &'l str {
    line.split_once(&format!("\"{name}\":\"")).unwrap().1.split_once('"').unwrap().0
}

/// Numbers and digests anew, as anybody can compute them.
fn rechain(lines: &mut [String], start: Vec<u8>) -> String {
    let mut prev = hex(&start);
    for (seq, line) in lines.iter_mut().enumerate() {
        let rest = line.split_once(",\"at_ms\"").unwrap().1;
        let old = member(line, "prev").to_owned();
        let body = rest.rsplit_once(",\"hash\":\"").unwrap().0.replacen(&old, &prev, 1);
        let body = format!("{{\"seq\":{seq},\"at_ms\"{body}");
        let hash = hex(&Sha256::new().chain_update(bytes(&prev)).chain_update(&body).finalize());
        *line = format!("{body},\"hash\":\"{hash}\"}}");
        prev = hash;
    }
    prev
}

/// A whole false record: everything computed anew, in the order in which it hangs together. Signatures can not be made,
/// and are left out. What is said of a branch is made to fit only where `branches` says so.
fn forge(files: &Files, parent: &str, branches: bool) -> Files {
    let mut forged = files.clone();
    let mut index: Vec<String> =
        files["index.jsonl"].iter().filter(|line| !line.contains("index.signed")).cloned().collect();
    let order: Vec<String> = index
        .iter()
        .filter(|line| line.contains("index.opened"))
        .map(|line| member(line, "task").to_owned())
        .collect();
    // Each round makes one more file fit: an opening line needs all lines before it.
    for _ in 0..=order.len() {
        rechain(&mut index, Sha256::digest(b"fumehood record index 1\n").to_vec());
        for task in &order {
            let opened =
                index.iter().find(|line| line.contains("index.opened") && line.contains(task)).unwrap();
            let start = Sha256::new()
                .chain_update(b"fumehood record task 1\n")
                .chain_update(task)
                .chain_update(bytes(member(opened, "hash")))
                .finalize();
            let lines = forged.get_mut(&format!("{task}.jsonl")).unwrap();
            let head = rechain(lines, start.to_vec());
            let digests: Vec<String> = lines.iter().map(|line| member(line, "hash").to_owned()).collect();
            for line in index.iter_mut().filter(|line| line.contains(&format!("\"{task}\""))) {
                let count = |line: &str| -> Option<usize> {
                    line.split_once("\"lines\":")?.1.split_once(',')?.0.parse().ok()
                };
                let Some(lines) = count(line) else { continue };
                let closes = line.contains("index.closed");
                let to =
                    if closes { (digests.len(), head.clone()) } else { (lines, digests[lines - 1].clone()) };
                let old = member(line, "head").to_owned();
                *line = line.replacen(&old, &to.1, 1);
                *line = line.replacen(&format!("\"lines\":{lines},"), &format!("\"lines\":{},", to.0), 1);
            }
            if branches && task == parent {
                let at = digests.iter().zip(&forged[&format!("{task}.jsonl")]);
                let mut snapshot = at
                    .filter(|(_, line)| line.contains("sandbox.snapshot"))
                    .map(|(digest, _)| digest.clone());
                let snapshot = snapshot.next_back();
                for child in order.iter().filter(|child| *child != parent) {
                    let living = forged.get_mut(&format!("{child}.jsonl")).unwrap();
                    for line in living.iter_mut().filter(|line| line.contains("\"from\":{")) {
                        let from = line.split_once("\"from\":{").unwrap().1;
                        let old = member(from, "hash").to_owned();
                        let lines =
                            from.split_once("\"lines\":").unwrap().1.split_once(',').unwrap().0.to_owned();
                        let right = 1 + forged_line(files, parent, "sandbox.snapshot");
                        *line = line.replacen(&old, snapshot.as_ref().unwrap(), 1);
                        *line =
                            line.replacen(&format!("\"lines\":{lines},"), &format!("\"lines\":{right},"), 1);
                    }
                }
            }
        }
    }
    forged.insert("index.jsonl".to_owned(), index);
    forged
}

/// The number of a line of the true record.
fn forged_line(files: &Files, task: &str, event: &str) -> usize {
    files[&format!("{task}.jsonl")].iter().position(|line| line.contains(event)).unwrap()
}

fn simple_tampering(stage: &Stage<'_>) {
    let (parent, other) = (stage.name(&stage.parent), stage.name(&stage.other));
    let with = |change: &dyn Fn(&mut Files)| {
        let mut files = stage.whole.clone();
        change(&mut files);
        files
    };
    let lines = stage.whole[&parent].len();
    for at in 0..lines {
        let changed = with(&|files| {
            let line = &mut files.get_mut(&parent).unwrap()[at];
            let time = line.split_once("\"at_ms\":").unwrap().1.split_once(',').unwrap().0.to_owned();
            *line = line.replacen(&time, "1", 1);
        });
        stage.found(&format!("a change of line {at}"), &changed, &stage.parent);
        let removed = with(&|files| drop(files.get_mut(&parent).unwrap().remove(at)));
        stage.found(&format!("line {at} removed"), &removed, &stage.parent);
        let cut = with(&|files| files.get_mut(&parent).unwrap().truncate(at));
        stage.found(&format!("cut before line {at}"), &cut, &stage.parent);
        if at > 0 {
            let swapped = with(&|files| files.get_mut(&parent).unwrap().swap(at - 1, at));
            stage.found(&format!("lines {at} and the one before swapped"), &swapped, &stage.parent);
            let doubled = with(&|files| {
                let line = files[&parent][at].clone();
                files.get_mut(&parent).unwrap().insert(at, line);
            });
            stage.found(&format!("line {at} doubled"), &doubled, &stage.parent);
        }
        if at < stage.whole[&other].len() {
            let crossed = with(&|files| {
                let line = std::mem::take(&mut files.get_mut(&parent).unwrap()[at]);
                let taken = std::mem::replace(&mut files.get_mut(&other).unwrap()[at], line);
                files.get_mut(&parent).unwrap()[at] = taken;
            });
            stage.found(&format!("lines {at} of two tasks swapped"), &crossed, &stage.other);
        }
    }
    stage.found("a file gone", &with(&|files| drop(files.remove(&parent))), "missing");
    let exchanged = with(&|files| {
        let (one, two) = (files.remove(&parent).unwrap(), files.remove(&other).unwrap());
        files.extend([(parent.clone(), two), (other.clone(), one)]);
    });
    stage.found("two files exchanged", &exchanged, &stage.parent);
    for at in 0..stage.whole["index.jsonl"].len() - 1 {
        let removed = with(&|files| drop(files.get_mut("index.jsonl").unwrap().remove(at)));
        stage.found(&format!("line {at} of the index removed"), &removed, "index  BROKEN");
    }
    let shorter = with(&|files| files.get_mut("index.jsonl").unwrap().truncate(3));
    // Where every file is still named, a task whose closing line is gone reads as lost; a head that was kept says more.
    let ran = stage.with(&shorter, &[]);
    assert!(ran.out().contains("  lost after") || ran.code() == 1, "{}", ran.told());
    let ran = stage.with(&shorter, &["--head", stage.head.to_str().unwrap()]);
    assert!(ran.code() == 1 && ran.out().contains("index  BROKEN"), "{}", ran.told());
    stage.found(
        "the index gone",
        &with(&|files| drop(files.remove("index.jsonl"))),
        "does not name the file",
    );
}

/// A whole record, written anew without one act, by who can compute digests as well as we can.
fn rewritten(stage: &Stage<'_>) {
    let lab = stage.lab;
    let mut files = stage.whole.clone();
    let parent = files.get_mut(&stage.name(&stage.parent)).unwrap();
    let at = parent.iter().position(|line| line.contains("exec.started")).unwrap();
    parent.drain(at..at + 2);
    if !stage.children.is_empty() {
        stage.found("a parent written anew", &forge(&files, &stage.parent, false), "does not hold it");
    }
    let forged = forge(&files, &stage.parent, true);
    // By itself it is as whole as the true one, but for the signatures that nobody can make.
    let alone = stage.with(&forged, &[]);
    assert!(alone.code() == 0 && alone.out().contains(", 0 of them signed"), "{}", alone.told());
    let head = stage.head.to_str().unwrap();
    for flags in [&["--head", head][..], &["--key", head]] {
        let ran = stage.with(&forged, flags);
        assert_eq!(ran.code(), 1, "{flags:?}: {}", ran.told());
        assert!(ran.out().contains("index  BROKEN"), "{flags:?}: {}", ran.told());
        let ran = stage.with(&stage.whole, flags);
        // The head was kept after these files were.
        assert_eq!(ran.code(), 0, "{flags:?}: {}", ran.told());
    }
    // Signed by another key than the one that was kept, or than the one of this folder.
    let key = lab.state().join("record.key");
    let kept = fs::read(&key).unwrap();
    stage.with(&forged, &[]);
    fs::remove_file(&key).unwrap();
    assert_eq!(words_of(lab, &["audit", "head"]).code(), 0);
    let ran = verify(lab, &["--key", head]);
    assert!(ran.code() == 1 && ran.out().contains("signed by another key"), "{}", ran.told());
    fs::write(&key, kept).unwrap();
    let ran = verify(lab, &[]);
    assert!(ran.code() == 1 && ran.out().contains("signed by another key"), "{}", ran.told());
    // A signature that was made of something else.
    let mut files = stage.whole.clone();
    for line in files.get_mut("index.jsonl").unwrap() {
        if line.contains("index.signed") {
            let signature = member(line, "signature").to_owned();
            *line = line.replacen(&signature, &"00".repeat(64), 1);
        }
    }
    let start = Sha256::digest(b"fumehood record index 1\n").to_vec();
    rechain(files.get_mut("index.jsonl").unwrap(), start);
    stage.found("a false signature", &files, "the signature is not one");
    stage.with(&stage.whole, &[]);
}

#[test]
fn whatever_is_done_to_the_record_of_sandboxes_is_found() {
    for caller in [Caller::Root, Caller::User].into_iter().filter(|caller| caller.available()) {
        let lab = Lab::new(caller);
        let stage = Stage::new(&lab);
        simple_tampering(&stage);
        rewritten(&stage);
        if !am_root() {
            break;
        }
    }
}

#[test]
fn a_key_that_others_can_read_is_not_used_and_old_records_go_verifiably() {
    let lab = Lab::new(if am_root() { Caller::Root } else { Caller::User });
    let stage = Stage::new(&lab);
    let key = lab.state().join("record.key");
    let mode = |bits: u32| {
        fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(bits)).unwrap();
    };
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&key).unwrap().permissions()) & 0o777,
        0o600
    );
    mode(0o644);
    let refused = words_of(&lab, &["audit", "head"]);
    assert!(refused.code() == 1 && refused.err().contains("remedy:"), "{}", refused.told());
    mode(0o600);
    for bad in ["soon", "0s", "-1d", ""] {
        assert_eq!(words_of(&lab, &["audit", "prune", "--older-than", bad]).code(), 1, "{bad}");
    }
    let none = words_of(&lab, &["audit", "prune", "--older-than", "1h"]);
    assert_eq!(none.out(), "0 records removed, 0 bytes\n", "{}", none.told());
    // One that was changed is evidence, and stays.
    let other = lab.state().join("records").join(stage.name(&stage.other));
    let text = fs::read_to_string(&other).unwrap();
    fs::write(&other, text.replacen("\"true\"", "\"fals\"", 1)).unwrap();
    let pruned = words_of(&lab, &["audit", "prune", "--older-than", "1ms"]);
    let removed = format!("{} records removed", 1 + stage.children.len());
    assert!(pruned.code() == 0 && pruned.out().starts_with(&removed), "{}", pruned.told());
    assert!(pruned.err().contains(&format!("{} stays: it is broken", stage.other)), "{}", pruned.told());
    fs::write(&other, &text).unwrap();
    let head = stage.head.to_str().unwrap();
    for flags in [&[][..], &["--head", head], &["--key", head]] {
        let ran = verify(&lab, flags);
        assert_eq!(ran.code(), 0, "{flags:?}: {}", ran.told());
        assert!(ran.out().contains(&format!("{} pruned", 1 + stage.children.len())), "{}", ran.told());
    }
    let listed = words_of(&lab, &["audit", "list"]);
    assert!(listed.out().lines().any(|line| line.contains("pruned")), "{}", listed.told());
    let shown = words_of(&lab, &["audit", "show", &stage.parent]);
    assert!(shown.code() == 1 && shown.err().contains("removed"), "{}", shown.told());
    // The line that says so can not be taken away.
    let records = lab.state().join("records");
    let mut files = read(&records);
    let at = files["index.jsonl"].iter().position(|line| line.contains("index.pruned")).unwrap();
    files.get_mut("index.jsonl").unwrap().remove(at);
    stage.found("a pruned mark removed", &files, "index  BROKEN");
}
