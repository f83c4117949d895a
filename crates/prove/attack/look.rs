//! Files, sockets and descriptors: what is there, what is in it, and what can be done to it.

use crate::call::{self, plain, sys};
use crate::doors::open;
use crate::{attempt, numbers, say};
use std::ffi::CString;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;

/// No more of one file is shown.
const SHOWN_BYTES: u64 = 4096;
/// A search reads no more of one file, and no more files.
const SEARCHED_BYTES: u64 = 1 << 20;
const SEARCHED_FILES: usize = 6000;

/// Does what a verb of this module says; whether there is such.
pub(crate) fn done(verb: &str, words: &[&str]) -> bool {
    match (verb, words) {
        ("read", paths) => paths.iter().for_each(|path| read(path)),
        ("write", paths) => {
            for path in paths {
                attempt(path, || open(path, 1));
            }
        }
        ("list", paths) => paths.iter().for_each(|path| list(path)),
        ("connect", places) => places.iter().for_each(|place| connect(place)),
        ("descriptors", _) => descriptors(),
        ("roots", paths) => roots(paths),
        ("search", [masked, roots @ ..]) => search(masked, roots),
        ("spoil", [folder]) => spoil(folder),
        ("remount", [folder]) => remount(folder),
        ("links", [folder, target]) => links(folder, target),
        ("swap", [folder, target]) => swap(folder, target),
        ("odd-files", [folder]) => odd_files(folder),
        ("unpack", [archive, folder]) => unpack(archive, folder),
        ("modes", [folder]) => modes(folder),
        ("leave", [mark, places @ ..]) => leave(mark, places),
        ("find", [mark, places @ ..]) => find(mark, places),
        ("leave-memory", _) => leave_memory(),
        ("find-memory", _) => find_memory(),
        // Both in one set of namespaces: the control of the two.
        ("memory-shared", _) => {
            leave_memory();
            find_memory();
        }
        ("levels", _) => levels(),
        _ => return false,
    }
    true
}

/// What a file holds: a masked one opens, and is empty.
fn read(path: &str) {
    // Not O_RDONLY alone: a pipe or a device would make us wait.
    match open(path, 0o4000) {
        Ok(number) => {
            let mut bytes = [0_u8; 512];
            match sys(0, [number.into(), (&mut bytes).into(), 512.into()]) {
                Ok(0) => say(&format!("try {path} EMPTY")),
                Ok(length) => {
                    let length = usize::try_from(length).unwrap_or(0).min(512);
                    say(&format!("try {path} done"));
                    say(&format!("holds {}", printable(&bytes[..length])));
                }
                Err(error) => say(&format!("try {path} {}", numbers::name(error))),
            }
            let _ = plain(3, &[number]);
        }
        Err(error) => say(&format!("try {path} {}", numbers::name(error))),
    }
}

fn printable(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' }).collect()
}

fn list(path: &str) {
    match std::fs::read_dir(path) {
        Ok(entries) => {
            for entry in entries.flatten() {
                say(&format!("name {}", printable(entry.file_name().as_encoded_bytes())));
            }
        }
        Err(error) => say(&format!("try list:{path} {}", numbers::name(error.raw_os_error().unwrap_or(0)))),
    }
}

fn connect(place: &str) {
    attempt(place, || {
        let made = match place.strip_prefix('@') {
            Some(name) => {
                SocketAddr::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address))
            }
            None => UnixStream::connect(place),
        };
        made.map(|_| 0).map_err(|error| error.raw_os_error().unwrap_or(0))
    });
}

/// Every descriptor beyond the three streams, and what can be read from it.
fn descriptors() {
    let mut found = 0;
    for number in 3..1024_i32 {
        if plain(72, &[i64::from(number), 1]).is_err() {
            continue;
        }
        found += 1;
        let mut bytes = [0_u8; 256];
        let length = sys(17, [number.into(), (&mut bytes).into(), 255.into(), 0.into()]).unwrap_or(0);
        let length = usize::try_from(length).unwrap_or(0).min(255);
        say(&format!("descriptor {number} holds {}", printable(&bytes[..length])));
    }
    say(&format!("descriptors {found}"));
}

/// The host's file as every process that can be seen has it beneath its root.
fn roots(paths: &[&str]) {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut seen = 0;
    for process in
        processes.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit))
    {
        seen += 1;
        for part in ["environ", "cmdline"] {
            show(&process.path().join(part));
        }
        for path in paths {
            let below = path.trim_start_matches('/');
            show(&process.path().join("root").join(below));
            show(&process.path().join("cwd").join(below));
            show(&process.path().join("root/../..").join(below));
        }
    }
    say(&format!("processes {seen}"));
}

fn show(path: &Path) {
    let Ok(file) = std::fs::File::open(path) else { return };
    let mut bytes = Vec::new();
    if file.take(SHOWN_BYTES).read_to_end(&mut bytes).is_ok() && !bytes.is_empty() {
        say(&format!("holds {}", printable(&bytes)));
    }
}

/// Looks for a secret in variables, arguments, descriptors and files. It arrives masked, so that the search does
/// not find itself.
fn search(masked: &str, roots: &[&str]) {
    let secret: Vec<u8> = masked
        .as_bytes()
        .chunks(2)
        .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .map(|byte| byte ^ 0x5a)
        .collect();
    let forms = forms(&secret);
    let mut looked = 0;
    for path in [
        "/proc/self/environ",
        "/proc/1/environ",
        "/proc/self/cmdline",
        "/proc/1/cmdline",
        "/proc/self/mountinfo",
    ] {
        look_into(Path::new(path), &forms, &mut looked);
    }
    for root in roots {
        walk(Path::new(root), &forms, &mut looked, 0);
    }
    say(&format!("looked {looked}"));
}

fn forms(secret: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let hex = secret.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes();
    let url = secret.iter().map(|byte| format!("%{byte:02X}")).collect::<String>().into_bytes();
    let base64 = secret
        .chunks_exact(3)
        .flat_map(|part| {
            let bits = u32::from(part[0]) << 16 | u32::from(part[1]) << 8 | u32::from(part[2]);
            [18, 12, 6, 0].map(|shift| LETTERS[(bits >> shift & 63) as usize])
        })
        .collect();
    let reversed = secret.iter().rev().copied().collect();
    vec![("raw", secret.to_vec()), ("hex", hex), ("url", url), ("base64", base64), ("reversed", reversed)]
}

fn walk(path: &Path, forms: &[(&'static str, Vec<u8>)], looked: &mut usize, depth: usize) {
    let Ok(found) = std::fs::symlink_metadata(path) else { return };
    if found.is_file() {
        look_into(path, forms, looked);
    } else if found.is_dir() && depth < 8 {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if *looked < SEARCHED_FILES {
                walk(&entry.path(), forms, looked, depth + 1);
            }
        }
    }
}

fn look_into(path: &Path, forms: &[(&'static str, Vec<u8>)], looked: &mut usize) {
    let Ok(file) = std::fs::File::open(path) else { return };
    let mut bytes = Vec::new();
    if file.take(SEARCHED_BYTES).read_to_end(&mut bytes).is_err() {
        return;
    }
    *looked += 1;
    for (name, form) in forms {
        if bytes.windows(form.len().max(1)).any(|window| window == form.as_slice()) {
            say(&format!("found {name} in {}", path.display()));
        }
    }
}

/// Tries every way to change a folder that is shown for reading alone.
fn spoil(folder: &str) {
    let given = format!("{folder}/given");
    let file = std::fs::File::open(&given);
    let number = file.as_ref().map_or(-1, |file| file.as_raw_fd());
    let overwrite = |path: &str| open(path, 0o1001).map(|file| plain(1, &[file, 0, 0]).map(|_| 0));
    for (name, path) in [
        ("open", given.clone()),
        ("own-descriptor", format!("/proc/self/fd/{number}")),
        ("through-root", format!("/proc/self/root{given}")),
        ("through-first-root", format!("/proc/1/root{given}")),
    ] {
        attempt(name, || overwrite(&path)?);
    }
    attempt("chmod", || {
        std::fs::set_permissions(&given, PermissionsExt::from_mode(0o600)).map(|()| 0).map_err(code)
    });
    attempt("new", || std::fs::write(format!("{folder}/new"), "x").map(|()| 0).map_err(code));
    attempt("link", || std::fs::hard_link(&given, format!("{folder}/second")).map(|()| 0).map_err(code));
    attempt("link-out", || std::fs::hard_link(&given, "second").map(|()| 0).map_err(code));
    attempt("attribute", || {
        let (path, name, value) = (c(&given), c("user.spoilt"), c("x"));
        sys(188, [(&path).into(), (&name).into(), (&value).into(), 1.into(), 0.into()])
    });
    attempt("rename", || std::fs::rename(&given, format!("{folder}/moved")).map(|()| 0).map_err(code));
}

fn remount(folder: &str) {
    let (none, at) = (c("none"), c(folder));
    let mount = |flags: i64| sys(165, [(&none).into(), (&at).into(), 0.into(), flags.into(), 0.into()]);
    attempt("remount-writable", || mount(0x20));
    attempt("remount-bind-writable", || mount(0x1020));
    attempt("cover", || {
        let kind = c("tmpfs");
        sys(165, [(&none).into(), (&at).into(), (&kind).into(), 0.into(), 0.into()])
    });
    attempt("uncover", || sys(166, [(&at).into(), 2.into()]));
    attempt("write-after", || std::fs::write(format!("{folder}/given"), "spoilt").map(|()| 0).map_err(code));
}

/// A file that says more than any disk holds, folders in folders, and a link to itself.
fn odd_files(folder: &str) {
    for bytes in [1_u64 << 40, 1 << 33] {
        attempt(&format!("sparse-{bytes}"), || {
            let file = std::fs::File::create(format!("{folder}/sparse-{bytes}")).map_err(code)?;
            file.set_len(bytes).map(|()| 0).map_err(code)
        });
    }
    let mut path = folder.to_owned();
    for _ in 0..400 {
        path.push_str("/d");
        if std::fs::create_dir(&path).is_err() {
            break;
        }
    }
    let _ = symlink("loop", format!("{folder}/loop"));
    let _ = symlink(".", format!("{folder}/here"));
}

/// Takes every entry of an archive at its word.
fn unpack(archive: &str, folder: &str) {
    let bytes = std::fs::read(archive).unwrap_or_default();
    let text = |field: &[u8]| {
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        String::from_utf8_lossy(&field[..end]).into_owned()
    };
    let (mut at, mut long_name, mut long_link) = (0, None, None);
    while let Some(header) = bytes.get(at..at + 512).filter(|header| header[0] != 0) {
        let size = usize::from_str_radix(text(&header[124..136]).trim(), 8).unwrap_or(0);
        let content = bytes.get(at + 512..at + 512 + size).unwrap_or_default();
        at += 512 + size.next_multiple_of(512);
        match header[156] {
            b'L' => long_name = Some(text(content)),
            b'K' => long_link = Some(text(content)),
            kind => {
                let name = long_name.take().unwrap_or_else(|| text(&header[..100]));
                let link = long_link.take().unwrap_or_else(|| text(&header[157..257]));
                place(kind, &Path::new(folder).join(name), &link, content);
            }
        }
    }
}

fn place(kind: u8, path: &Path, link: &str, content: &[u8]) {
    let _ = path.parent().map(std::fs::create_dir_all);
    let _ = match kind {
        b'1' => std::fs::hard_link(link, path),
        b'2' => symlink(link, path),
        b'5' => std::fs::create_dir_all(path),
        _ => std::fs::write(path, content),
    };
}

/// Links of every kind to a file of the host, where files are collected from.
fn links(folder: &str, target: &str) {
    let _ = std::fs::create_dir_all(format!("{folder}/deep"));
    let up = "../../../../../../../..";
    for (name, to) in [
        ("absolute", target.to_owned()),
        ("upward", format!("{up}{target}")),
        ("magic", format!("/proc/self/root{target}")),
        ("environment", "/proc/self/environ".to_owned()),
        ("twice", "absolute".to_owned()),
        ("deep/upward", format!("{up}{target}")),
        ("folder", Path::new(target).parent().unwrap_or(Path::new("/")).display().to_string()),
    ] {
        let _ = symlink(to, format!("{folder}/{name}"));
    }
    let _ = std::fs::write(format!("{folder}/plain"), "kept");
    say("made");
}

/// Leaves a process that exchanges a folder and a link to a folder of the host, as fast as it can.
fn swap(folder: &str, target: &str) {
    let (real, link) = (format!("{folder}/a"), format!("{folder}/b"));
    let _ = std::fs::create_dir_all(&real);
    let _ = std::fs::write(format!("{real}/secret"), "inside");
    let _ = symlink(target, &link);
    say("made");
    if call::fork() == Ok(0) {
        let _ = plain(112, &[]);
        call::alarm(10);
        for stream in 0..3 {
            let _ = plain(3, &[stream]);
        }
        let (real, link) = (c(&real), c(&link));
        loop {
            let _ = sys(316, [(-100).into(), (&real).into(), (-100).into(), (&link).into(), 2.into()]);
        }
    }
}

/// Set-id bits, sticky bits and files open to everybody, where files are collected from.
fn modes(folder: &str) {
    let (program, below) = (format!("{folder}/program"), format!("{folder}/below"));
    let _ = std::fs::write(&program, "#!/bin/sh\n");
    let _ = std::fs::create_dir(&below);
    let _ = std::fs::set_permissions(&program, PermissionsExt::from_mode(0o6777));
    let _ = std::fs::set_permissions(&below, PermissionsExt::from_mode(0o7777));
    say("made");
}

fn leave(mark: &str, places: &[&str]) {
    let mut left = 0;
    for place in places {
        left += usize::from(std::fs::write(format!("{place}/left-{mark}"), mark).is_ok());
    }
    say(&format!("left {left}"));
}

fn find(mark: &str, places: &[&str]) {
    for place in places {
        if let Ok(text) = std::fs::read_to_string(format!("{place}/left-{mark}")) {
            say(&format!("found {place} {}", printable(text.as_bytes())));
        }
    }
    say("looked");
}

/// The key of what the kernel keeps by number.
const KEY: i64 = 0x4648_4f44;

fn leave_memory() {
    // IPC_CREAT and read and write for everybody.
    let made = plain(29, &[KEY, 4096, 0o1666]).is_ok();
    let _ = plain(68, &[KEY, 0o1666]);
    let _ = plain(64, &[KEY, 1, 0o1666]);
    say(&format!("left {}", i32::from(made)));
}

fn find_memory() {
    attempt("shared-memory", || plain(29, &[KEY, 0, 0]));
    attempt("messages", || plain(68, &[KEY, 0]));
    attempt("semaphores", || plain(64, &[KEY, 0, 0]));
}

/// What tells one kernel, or one set of namespaces, from another.
fn levels() {
    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
        let link = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
        say(&format!("namespace {kind} {}", link.display()));
    }
    for path in ["/proc/version", "/proc/sys/kernel/random/boot_id"] {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        say(&format!("kernel {path} {}", printable(text.trim().as_bytes())));
    }
}

fn code(error: std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

fn c(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}
