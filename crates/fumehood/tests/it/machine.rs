//! What the tests of the microvm level share: a small root made of the host's own programs, and one folder of
//! images and templates for all of them, so that a machine boots once and not for each test.

use crate::lab::{Caller, Lab, wait};
use std::collections::BTreeSet;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// A machine that boots by software emulation, beside other tests.
const BOOT: Duration = Duration::from_secs(300);
/// Memory that every test asks for, where it does not matter: each size is a template of its own.
pub(crate) const MEMORY: &str = "256M";

const PROGRAMS: &[&str] = &[
    "sh", "bash", "cat", "chmod", "cp", "cut", "date", "dd", "df", "echo", "env", "false", "find", "grep",
    "head", "id", "kill", "ln", "ls", "mkdir", "mkfifo", "mount", "mv", "perl", "ps", "pwd", "rm", "rmdir",
    "sed", "setsid", "sleep", "sort", "stat", "tail", "test", "touch", "tr", "true", "uname", "unshare",
    "wc", "yes", "curl", "seq", "timeout", "readlink", "nohup", "base64", "od", "printf", "awk", "tee",
    "xargs", "umount",
];

/// Why there is no such level here, if there is none: said where the tests' output is read.
pub(crate) fn available() -> bool {
    let missing =
        ["/usr/bin/qemu-system-x86_64", "/usr/bin/mkfs.erofs"].iter().find(|path| !Path::new(path).exists());
    let kernel = std::fs::read_dir("/boot").into_iter().flatten().flatten();
    let kernel = kernel.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("vmlinuz-"));
    if let Some(missing) = missing {
        println!("NOT-APPLICABLE: there is no {missing}, so the microvm level is left out");
    } else if !kernel {
        println!("NOT-APPLICABLE: there is no packaged kernel, so the microvm level is left out");
    }
    missing.is_none() && kernel
}

/// A place whose state folder shares its images and templates with the other tests', and the image.
pub(crate) fn lab(caller: Caller) -> (Lab, PathBuf) {
    static MADE: Mutex<()> = Mutex::new(());
    let turn = MADE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let lab = Lab::new(caller);
    let shared = shared(&lab);
    let root = shared.join("root");
    if !root.join("usr/bin/sh").exists() {
        make_root(&root);
        lab.give_all(&root);
    }
    std::fs::DirBuilder::new().mode(0o700).create(lab.state()).unwrap();
    lab.give(&lab.state());
    for name in ["disks", "templates"] {
        symlink(shared.join(name), lab.state().join(name)).unwrap();
    }
    boot(&lab, &root);
    drop(turn);
    (lab, root)
}

/// One folder for each caller, beneath the build.
fn shared(lab: &Lab) -> PathBuf {
    let base = if lab.caller == Caller::Root {
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("microvm")
    } else {
        std::env::temp_dir().join(format!("microvm-{}", std::process::id()))
    };
    forget_ended();
    for name in ["", "disks", "templates"] {
        let path = base.join(name);
        std::fs::create_dir_all(&path).unwrap();
        lab.give(&path);
    }
    base
}

/// Nothing runs when a process of tests ends, so the next one removes what the last one shared.
fn forget_ended() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_prefix("microvm-").and_then(|pid| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another process of tests may be removing it too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes the template, with more patience than a test has.
fn boot(lab: &Lab, root: &Path) {
    let mut command = lab.fumehood();
    command.args(["run", "--quiet"]).args(flags(root)).args(["--", "/bin/true"]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    let status = wait(&mut child, BOOT).unwrap_or_else(|| {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("no machine in {BOOT:?}")
    });
    assert!(status.success(), "no machine: {status}");
}

/// What asks for the level.
pub(crate) fn flags(root: &Path) -> Vec<String> {
    let root = root.to_str().unwrap();
    ["--level", "microvm", "--accept-tcg", "--image", root, "--mem", MEMORY].map(str::to_owned).to_vec()
}

/// The programs, the libraries that they load, and what Perl brings.
fn make_root(root: &Path) {
    let bin = root.join("usr/bin");
    std::fs::create_dir_all(&bin).unwrap();
    std::fs::create_dir_all(root.join("etc")).unwrap();
    for name in ["bin", "lib", "lib64"] {
        std::fs::create_dir_all(root.join("usr").join(name)).unwrap();
        symlink(Path::new("usr").join(name), root.join(name)).unwrap();
    }
    let mut libraries = BTreeSet::new();
    for name in PROGRAMS {
        let Some(found) = ["/usr/bin", "/usr/sbin"]
            .iter()
            .map(|place| Path::new(place).join(name))
            .find(|path| path.exists())
        else {
            continue;
        };
        std::fs::copy(&found, bin.join(name)).unwrap();
        libraries.extend(loaded(&found));
    }
    for folder in perl_folders() {
        copy_tree(&folder, &root.join(folder.strip_prefix("/").unwrap()), &mut libraries);
    }
    for library in libraries {
        let at = Path::new("/usr")
            .join(library.strip_prefix("/usr").unwrap_or(library.strip_prefix("/").unwrap()));
        let at = root.join(at.strip_prefix("/").unwrap());
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::copy(&library, at).unwrap();
    }
    let users = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n";
    std::fs::write(root.join("etc/passwd"), users).unwrap();
    std::fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n").unwrap();
}

/// The libraries that a program or library needs, by the path that the loader finds them at.
fn loaded(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    text.lines().filter_map(path).collect()
}

fn perl_folders() -> Vec<PathBuf> {
    let listed = Command::new("/usr/bin/perl").args(["-e", "print join(\"\\n\", @INC)"]).output();
    let text = listed.map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned()).unwrap_or_default();
    let real = text.lines().map(PathBuf::from).filter(|path| path.starts_with("/usr") && path.is_dir());
    real.filter(|path| !path.starts_with("/usr/local")).collect()
}

fn copy_tree(from: &Path, to: &Path, libraries: &mut BTreeSet<PathBuf>) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let Ok(meta) = std::fs::metadata(&source) else { continue };
        if meta.is_dir() {
            copy_tree(&source, &target, libraries);
        } else if meta.size() < 4 << 20 && !target.exists() {
            std::fs::copy(&source, &target).unwrap();
            if source.extension().is_some_and(|end| end == "so") {
                libraries.extend(loaded(&source));
            }
        }
    }
}
