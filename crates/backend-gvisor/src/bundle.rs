//! What `runsc` is told: its flags, and the `config.json` of its bundle.

use fumehood_model::envelope::Envelope;
use serde_json::{Value, json};

/// The places in `runsc`'s own root.
pub(crate) const ROOT: &str = "/rootfs";
pub(crate) const BUNDLE: &str = "/bundle";
pub(crate) const STATE: &str = "/state";
pub(crate) const PROGRAM: &str = "/runsc";

/// Where `guestd` is inside.
pub(crate) const GUESTD: &str = "run/guestd";
pub(crate) const GUESTD_PATH: &str = "/run/guestd";
/// And the filter that it puts onto each command, where it looks for it.
pub(crate) const FILTER: &str = "run/guestd.filter";

/// Its arguments. There is one sandbox in each of these roots, so one name does for all.
pub(crate) fn arguments(network: bool) -> Vec<String> {
    let network = if network { "--network=sandbox" } else { "--network=none" };
    let words = [
        "runsc",
        "--root",
        STATE,
        "--platform=systrap",
        network,
        // The cgroup is made around it.
        "--ignore-cgroups",
        // What is written goes to the root's own file systems: layers, caches, `/out`.
        "--overlay2=none",
        // What it has to say is the cause of a failed start; nobody reads more.
        "--debug-log=/dev/null",
        "run",
        "--bundle",
        BUNDLE,
        "sandbox",
    ];
    words.map(str::to_owned).to_vec()
}

/// The `config.json`.
pub(crate) fn config(envelope: &Envelope) -> Vec<u8> {
    let limits = envelope.resources();
    let uid = envelope.privilege().uid;
    let limit = |name: &str, value: u64| json!({ "type": name, "hard": value, "soft": value });
    let mount = |at: &str, kind: &str, options: &[&str]| json!({ "destination": at, "type": kind, "source": kind, "options": options });
    let value: Value = json!({
        "ociVersion": "1.0.2",
        "process": {
            "terminal": false,
            "user": { "uid": uid, "gid": uid },
            "args": [format!("/{GUESTD}"), "filtered"],
            "env": [],
            "cwd": "/",
            "capabilities": {},
            "noNewPrivileges": true,
            "rlimits": [
                limit("RLIMIT_CORE", 0),
                limit("RLIMIT_NOFILE", u64::from(limits.open_files)),
                limit("RLIMIT_FSIZE", limits.file_size_bytes),
            ],
        },
        "root": { "path": ROOT, "readonly": false },
        "hostname": "sandbox",
        "mounts": [
            mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
            mount("/dev", "tmpfs", &["nosuid"]),
            mount("/dev/pts", "devpts", &["nosuid", "noexec"]),
            mount("/dev/shm", "tmpfs", &["nosuid", "nodev", "mode=1777"]),
        ],
        // Its network is the one that it is started in; without a path it would make an empty one.
        "linux": { "namespaces": [
            { "type": "pid" }, { "type": "ipc" }, { "type": "uts" }, { "type": "mount" },
            { "type": "network", "path": "/proc/self/ns/net" },
        ] },
    });
    value.to_string().into_bytes()
}
