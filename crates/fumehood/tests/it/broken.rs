//! What a run needs and this host does not have: each thing that is missing is refused at a stable step, with its
//! cause and a remedy, before anything ran, and leaves nothing.
//!
//! A level that needs something of its own adds its rows to [`ROWS`]: how the host is broken, and at which step the
//! refusal must come.

use crate::lab::{self, Caller, Lab, finish};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Something that is broken.
struct Row {
    name: &'static str,
    host: Host,
    /// Flags of the run; `@/` stands for the test's own folder.
    flags: &'static [&'static str],
    /// The `ending.step` at which it is refused: as root, and as a user. Empty where that caller does not need it.
    step: [&'static str; 2],
}

/// How the host is broken.
#[derive(Clone, Copy)]
enum Host {
    /// It is not: the flags ask for what is not there.
    Whole,
    /// Its kernel does not know these calls, by number.
    Without(&'static str),
    /// What happens to the state folder.
    State(fn(&Lab, &Path)),
    /// The run is started by these words, `@/` being the test's own folder; root and user.
    Started([&'static [&'static str]; 2]),
}

const fn without(name: &'static str, calls: &'static str, step: [&'static str; 2]) -> Row {
    Row { name, host: Host::Without(calls), flags: &[], step }
}

const fn level(name: &'static str, flags: &'static [&'static str]) -> Row {
    Row { name, host: Host::Whole, flags, step: ["choose a level", "choose a level"] }
}

const STATE: [&str; 2] = ["open the state folder", "open the state folder"];
const RECORD: [&str; 2] = ["write the record", "write the record"];
const PATHS: [&str; 2] = ["open the paths of the envelope", "open the paths of the envelope"];
const SPAWN: &str = "make the namespaces";

/// A user namespace of the caller's own, in which some other kind of namespace can not be made.
macro_rules! none_of {
    ($kind:literal) => {
        Host::Started([
            &[],
            &[
                "unshare",
                "-U",
                "--map-current-user",
                "--keep-caps",
                "sh",
                "-c",
                concat!("echo 0 > /proc/sys/user/max_", $kind, "_namespaces && exec \"$@\""),
                "sh",
            ],
        ])
    };
}

const ROWS: &[Row] = &[
    without("no Landlock", "444,445,446", ["hold the filesystem clause"; 2]),
    without("no filter of system calls", "317", ["enforce the system call filter"; 2]),
    without("no clone3", "435", ["make the private root", SPAWN]),
    without("no unshare", "272", ["take a mount namespace", "take a cgroup namespace"]),
    without("no mount", "165", ["make the mounts private"; 2]),
    without("no move_mount", "429", ["make the private root"; 2]),
    without("no fsopen", "430", ["make the private root"; 2]),
    without("no open_tree", "428", ["show the system folders"; 2]),
    without("no mount_setattr", "442", ["show the system folders"; 2]),
    without("no pivot_root", "155", ["enter the private root"; 2]),
    without("no setns", "308", ["enter the private root", ""]),
    without("no openat2", "437", ["make the folders of the root"; 2]),
    without("no memory files", "319", ["make the image of init"; 2]),
    without("no execveat", "322", ["execute init"; 2]),
    without("no close_range", "436", ["place the descriptors"; 2]),
    without("no signalfd", "289", ["take signals"; 2]),
    without("no capset", "126", ["drop the capabilities"; 2]),
    without("no change of user", "117", ["become the sandbox's user", ""]),
    without("no sockets", "53", ["make the control socket"; 2]),
    without("no file locks", "73", RECORD),
    without("no prctl", "157", ["tie the sandbox to its keeper"; 2]),
    Row { name: "no user namespaces", host: none_of!("user"), flags: &[], step: ["", SPAWN] },
    Row { name: "no mount namespaces", host: none_of!("mnt"), flags: &[], step: ["", SPAWN] },
    Row { name: "no network namespaces", host: none_of!("net"), flags: &[], step: ["", SPAWN] },
    Row { name: "no PID namespaces", host: none_of!("pid"), flags: &[], step: ["", SPAWN] },
    Row {
        name: "root that may not mount",
        host: Host::Started([&["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"], &[]]),
        flags: &[],
        step: ["take a mount namespace", ""],
    },
    Row {
        name: "no /proc",
        host: Host::Started([
            &["unshare", "--mount", "sh", "-c", "umount -l /proc && exec \"$@\"", "sh"],
            &[],
        ]),
        flags: &[],
        step: ["keep the mount namespace", ""],
    },
    Row {
        name: "a full disk",
        host: Host::Started([
            &[
                "unshare",
                "--mount",
                "sh",
                "-c",
                "mount -t tmpfs -o size=64k,mode=700 none @/state && head -c 1M /dev/zero > @/state/f; exec \"$@\"",
                "sh",
            ],
            &[],
        ]),
        flags: &[],
        step: ["write the record", ""],
    },
    Row {
        name: "a state folder on a read-only disk",
        host: Host::Started([
            &[
                "unshare",
                "--mount",
                "sh",
                "-c",
                "mount --bind @/state @/state && mount -o remount,bind,ro @/state && exec \"$@\"",
                "sh",
            ],
            &[],
        ]),
        flags: &[],
        step: ["open the state folder", ""],
    },
    Row { name: "somebody else's state folder", host: Host::State(foreign), flags: &[], step: STATE },
    Row { name: "a state folder open to others", host: Host::State(open_to_others), flags: &[], step: STATE },
    Row { name: "a state folder that is a file", host: Host::State(a_file), flags: &[], step: STATE },
    Row {
        name: "a state folder that can not be written",
        host: Host::State(closed),
        flags: &[],
        step: ["", "open the state folder"],
    },
    Row { name: "no such image", host: Host::Whole, flags: &["--image", "@/none"], step: PATHS },
    Row { name: "an image that is a file", host: Host::Whole, flags: &["--image", "@/file"], step: PATHS },
    Row {
        name: "a secret whose variable is not set",
        host: Host::Whole,
        flags: &["--secret", "X=env:NOT_THERE", "--allow", "https://example.com with bearer:X"],
        step: ["read the secret `X`"; 2],
    },
];

/// Levels that this build has not, or that need what is not on the search path of a test.
const LEVELS: &[Row] = &[
    level("no wasm", &["--level", "wasm"]),
    level("no process", &["--level", "process"]),
    level("no runsc", &["--level", "gvisor"]),
    level("no QEMU", &["--level", "microvm"]),
];

#[test]
fn what_is_missing_is_refused_to_root() {
    if Caller::Root.available() {
        expect_refused(Caller::Root);
    }
}

#[test]
fn what_is_missing_is_refused_to_a_user() {
    expect_refused(Caller::User);
}

#[test]
fn there_are_enough_rows() {
    for who in 0..2 {
        assert!(ROWS.iter().filter(|row| !row.step[who].is_empty()).count() >= 15);
    }
}

/// A level that is built in may start; one that is not is refused, and nothing weaker takes its place.
#[test]
fn a_level_is_held_or_refused() {
    let lab = Lab::new(Caller::User);
    for row in LEVELS {
        let (report, ran) = lab.json(row.flags, &["true"]);
        let asked = row.flags[1];
        if report["ending"]["cause"] == "not_started" {
            assert_eq!(ran.code(), 125, "{}: {report}", row.name);
            assert!(report["ending"]["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty()), "{report}");
        } else {
            assert_eq!(report["level"]["level"], asked, "{}: something else ran", row.name);
        }
    }
}

fn expect_refused(caller: Caller) {
    let who = usize::from(caller == Caller::User);
    // A state folder takes longest to make: where it is whole, the rows share one.
    let shared = Lab::new(caller);
    let place = |row: &Row| match row.host {
        Host::Whole | Host::Without(_) => None,
        Host::State(_) | Host::Started(_) => Some(Lab::new(caller)),
    };
    let flaws: Vec<String> = ROWS
        .iter()
        .filter(|row| !row.step[who].is_empty())
        .filter_map(|row| {
            let own = place(row);
            let lab = own.as_ref().unwrap_or(&shared);
            refused(lab, row, row.step[who]).err().map(|why| format!("{}: {why}", row.name))
        })
        .collect();
    assert!(flaws.is_empty(), "{} of {}:\n{}", flaws.len(), ROWS.len(), flaws.join("\n"));
}

fn refused(lab: &Lab, row: &Row, step: &str) -> Result<(), String> {
    lab.file("file", "no folder");
    lab.folder("empty");
    let state = lab.folder("state");
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    if let Host::State(breaks) = row.host {
        breaks(lab, &state);
    }
    let own = |word: &str| word.replace("@/", &format!("{}/", lab.path().display()));
    let mut words: Vec<String> = Vec::new();
    match row.host {
        Host::Without(calls) => {
            let probe = lab.path().join("probe");
            lab::copy_program(lab::probe(), &probe);
            words.extend([probe.to_str().unwrap(), "deny", calls].map(str::to_owned));
        }
        Host::Started(started) => {
            words.extend(started[usize::from(lab.caller == Caller::User)].iter().map(|word| own(word)));
        }
        Host::Whole | Host::State(_) => {}
    }
    words.extend([lab.binary().to_str().unwrap(), "run", "--json"].map(str::to_owned));
    words.extend(row.flags.iter().map(|flag| own(flag)));
    words.extend(["--", "sh", "-c", "echo it ran"].map(str::to_owned));
    let mut command: Command = lab.command(&words[0]);
    command.args(&words[1..]);
    let ran = finish(command, b"");
    // So that the place can be removed.
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&ran.stdout)
        .map_err(|error| format!("no report ({error}): {}", ran.told()))?;
    let ending = &report["ending"];
    let word = |name: &str| ending[name].as_str().unwrap_or_default().to_owned();
    if ending["cause"] != "not_started" || ran.code() != 125 {
        return Err(format!("not refused: {report}"));
    }
    if word("step") != step {
        return Err(format!("refused at {:?}, not at {step:?}: {}", word("step"), word("why")));
    }
    if word("why").is_empty() || word("remedy").is_empty() {
        return Err(format!("without cause or remedy: {ending}"));
    }
    if report.to_string().contains("it ran") {
        return Err("and yet it ran".to_owned());
    }
    nothing_left(lab, &state)
}

/// No process, no layer and no scratch of it.
fn nothing_left(lab: &Lab, state: &Path) -> Result<(), String> {
    let mark = lab.path().to_str().unwrap();
    if !lab::poll(Duration::from_secs(20), || crate::escape::survivors(mark).is_empty()) {
        return Err("a process is left".to_owned());
    }
    let layers: Vec<_> = std::fs::read_dir(state.join("layers")).into_iter().flatten().flatten().collect();
    if !layers.is_empty() {
        return Err(format!("{layers:?} are left"));
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    if mounts.contains(mark) { Err("a mount is left".to_owned()) } else { Ok(()) }
}

fn foreign(lab: &Lab, state: &Path) {
    if lab::am_root() {
        let other = if lab.caller == Caller::Root { 12_346 } else { 0 };
        chown(state, Some(other), Some(other)).unwrap();
    } else {
        // Nothing can be given away: the root of the system is somebody else's.
        std::fs::remove_dir(state).unwrap();
        std::os::unix::fs::symlink("/", state).unwrap();
    }
}

fn open_to_others(_: &Lab, state: &Path) {
    std::fs::set_permissions(state, PermissionsExt::from_mode(0o777)).unwrap();
}

fn a_file(lab: &Lab, state: &Path) {
    std::fs::remove_dir(state).unwrap();
    std::fs::write(state, "no folder").unwrap();
    lab.give(state);
}

fn closed(_: &Lab, state: &Path) {
    std::fs::set_permissions(state, PermissionsExt::from_mode(0o500)).unwrap();
}
