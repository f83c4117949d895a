//! Calls of the kernel that a sandbox has no use for.

use crate::call::{self, Answer, plain, sys};
use crate::{attempt, numbers, say};
use std::ffi::CString;

const USER: i64 = 0x1000_0000;
const MOUNT: i64 = 0x0002_0000;
const NET: i64 = 0x4000_0000;
const PID: i64 = 0x2000_0000;
const IPC: i64 = 0x0800_0000;
const UTS: i64 = 0x0400_0000;
const CGROUP: i64 = 0x0200_0000;
const CHILD_SIGNAL: i64 = 17;
const CWD: i32 = -100;

/// Tries the doors that a verb names; whether there are such.
pub(crate) fn tried(verb: &str, arguments: &[&str]) -> bool {
    let pid = arguments.first().and_then(|word| word.parse().ok()).unwrap_or(0);
    match verb {
        "namespaces" => namespaces(),
        "mounts" => mounts(),
        "uring" => uring(),
        "kernel-programs" => kernel_programs(),
        "keys" => keys(arguments.first().copied().unwrap_or_default()),
        "memory" => memory(pid),
        "signals" => signals(pid),
        "devices" => devices(),
        "vsock" => vsock(),
        "families" => families(),
        "entries" => entries(),
        "identity" => identity(),
        "own-network" => own_network(),
        "administration" => administration(),
        "release-agent" => release_agent(),
        "init-binary" => init_binary(),
        "terminal" => terminal(),
        _ => return false,
    }
    true
}

fn text(words: &str) -> CString {
    CString::new(words).unwrap_or_default()
}

/// Opens a path; flags as the kernel numbers them.
pub(crate) fn open(path: &str, flags: i64) -> Answer {
    sys(257, [CWD.into(), (&text(path)).into(), flags.into(), 0.into()])
}

fn clone3(flags: u64) -> Answer {
    // `struct clone_args`: the flags first, the exit signal fifth.
    let mut arguments = [0_u64; 11];
    arguments[0] = flags;
    arguments[4] = CHILD_SIGNAL.cast_unsigned();
    call::clone_and_end(435, [(&mut arguments).into(), 88.into(), 0.into(), 0.into(), 0.into(), 0.into()])
}

fn clone(flags: i64) -> Answer {
    let none = 0.into();
    call::clone_and_end(56, [(flags | CHILD_SIGNAL).into(), none, none, none, none, none])
}

fn namespaces() {
    for (name, flags) in [
        ("unshare-user", USER),
        ("unshare-user-mount", USER | MOUNT),
        ("unshare-mount", MOUNT),
        ("unshare-net", NET),
        ("unshare-pid", PID),
        ("unshare-ipc", IPC),
        ("unshare-uts", UTS),
        ("unshare-cgroup", CGROUP),
    ] {
        attempt(name, || plain(272, &[flags]));
    }
    attempt("clone-user", || clone(USER));
    attempt("clone-user-net", || clone(USER | NET));
    attempt("clone3-user", || clone3(USER.cast_unsigned()));
    attempt("clone3-all", || clone3((USER | MOUNT | NET | PID).cast_unsigned()));
}

fn mount(source: &str, at: &str, kind: Option<&str>, flags: i64) -> Answer {
    let (source, at) = (text(source), text(at));
    let kind = kind.map(text);
    let kind = kind.as_ref().map_or(0.into(), Into::into);
    sys(165, [(&source).into(), (&at).into(), kind, flags.into(), 0.into()])
}

fn mounts() {
    const BIND: i64 = 0x1000;
    const RECURSIVE: i64 = 0x4000;
    let _ = std::fs::create_dir("mountpoint");
    attempt("mount-tmpfs", || mount("none", "mountpoint", Some("tmpfs"), 0));
    attempt("bind", || mount("/proc", "mountpoint", None, BIND | RECURSIVE));
    attempt("remount", || mount("none", "/", None, 0x20 | BIND));
    attempt("propagation", || mount("none", "/", None, RECURSIVE | 0x0010_0000));
    attempt("mount-proc", || mount("proc", "mountpoint", Some("proc"), 0));
    attempt("fsopen", || sys(430, [(&text("tmpfs")).into(), 0.into()]));
    attempt("fspick", || sys(433, [CWD.into(), (&text("/")).into(), 0.into()]));
    attempt("open_tree", || sys(428, [CWD.into(), (&text("/")).into(), 1.into()]));
    attempt("move_mount", || {
        sys(429, [CWD.into(), (&text("/proc")).into(), CWD.into(), (&text("mountpoint")).into(), 0.into()])
    });
    attempt("mount_setattr", || {
        let mut attributes = [0_u64, 1, 0, 0];
        sys(442, [CWD.into(), (&text("/")).into(), 0.into(), (&mut attributes).into(), 32.into()])
    });
    attempt("chroot", || sys(161, [(&text(".")).into()]));
    attempt("pivot_root", || sys(155, [(&text(".")).into(), (&text(".")).into()]));
    attempt("setns-own", || plain(308, &[open("/proc/self/ns/net", 0)?, 0]));
    attempt("setns-first", || plain(308, &[open("/proc/1/ns/mnt", 0)?, 0]));
    attempt("setns-pidfd", || plain(308, &[plain(434, &[1, 0])?, MOUNT]));
    // Last: what is gone can not be tried.
    attempt("umount", || sys(166, [(&text("/proc")).into(), 2.into()]));
    let _ = std::fs::remove_dir("mountpoint");
}

fn uring() {
    attempt("io_uring_setup", || {
        let mut parameters = [0_u8; 256];
        sys(425, [4.into(), (&mut parameters).into()])
    });
}

fn kernel_programs() {
    attempt("bpf-map", || {
        // BPF_MAP_CREATE of an array: type, size of a key, size of a value, entries.
        let mut attributes = [0_u32; 32];
        attributes[..4].copy_from_slice(&[2, 4, 4, 1]);
        sys(321, [0.into(), (&mut attributes).into(), 72.into()])
    });
    attempt("perf-own", || {
        // A task clock of this process, the kernel left out.
        let mut event = [0_u64; 16];
        event[0] = 1 | 112 << 32;
        event[1] = 1;
        event[5] = 1 << 5;
        sys(298, [(&mut event).into(), 0.into(), (-1).into(), (-1).into(), 0.into()])
    });
    attempt("userfaultfd", || plain(323, &[0]));
    attempt("userfaultfd-user", || plain(323, &[1]));
    attempt("kcmp", || {
        let own = plain(39, &[])?;
        plain(312, &[own, own, 0, 0, 0])
    });
}

fn keys(name: &str) {
    let (kind, name) = (text("user"), text(name));
    let mut value = [0_u8; 256];
    let found = sys(249, [(&kind).into(), (&name).into(), 0.into(), 0.into()])
        .or_else(|_| sys(250, [10.into(), (-3).into(), (&kind).into(), (&name).into(), 0.into()]));
    if let Ok(key) = found
        && let Ok(length) = sys(250, [11.into(), key.into(), (&mut value).into(), 255.into()])
    {
        let length = usize::try_from(length).unwrap_or(0).min(255);
        say(&format!("key {}", String::from_utf8_lossy(&value[..length])));
    }
    attempt("request_key", || sys(249, [(&kind).into(), (&name).into(), 0.into(), 0.into()]));
    attempt("add_key", || {
        let (own, content) = (text("planted"), text("x"));
        // The thread's own keyring, which goes with it.
        sys(248, [(&kind).into(), (&own).into(), (&content).into(), 1.into(), (-1).into()])
    });
    attempt("keyctl-session", || plain(250, &[0, -3, 0]));
}

/// Looks into another process: one outside, and the first one here.
fn memory(outside: i64) {
    for (name, pid) in [("outside", outside), ("first", 1)] {
        attempt(&format!("attach-{name}"), || plain(101, &[0x4206, pid, 0, 0]));
        attempt(&format!("readv-{name}"), || {
            let mut buffer = [0_u8; 8];
            let mut here = [buffer.as_mut_ptr() as u64, 8];
            // Where the other program's own header is, which is this same program on the side of the control.
            let mut there = [0x40_0000_u64, 8];
            sys(310, [pid.into(), (&mut here).into(), 1.into(), (&mut there).into(), 1.into(), 0.into()])
        });
        attempt(&format!("mem-{name}"), || open(&format!("/proc/{pid}/mem"), 2));
        attempt(&format!("environ-{name}"), || open(&format!("/proc/{pid}/environ"), 0));
        attempt(&format!("getfd-{name}"), || plain(438, &[plain(434, &[pid, 0])?, 0, 0]));
    }
}

/// Stops a process outside; the host looks whether it was.
fn signals(pid: i64) {
    attempt("kill", || plain(62, &[pid, 19]));
    attempt("tgkill", || plain(234, &[pid, pid, 19]));
    attempt("pidfd", || plain(424, &[plain(434, &[pid, 0])?, 19, 0, 0]));
}

fn devices() {
    for path in [
        "/dev/kvm",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/fuse",
        "/dev/net/tun",
        "/dev/vhost-net",
        "/dev/vhost-vsock",
        "/dev/vsock",
        "/dev/vda",
        "/dev/sda",
        "/dev/nvme0n1",
        "/dev/loop0",
        "/dev/loop-control",
        "/dev/mapper/control",
        "/dev/rtc0",
        "/dev/uinput",
        "/dev/input/event0",
        "/dev/port",
        "/dev/hpet",
        "/dev/snapshot",
        "/dev/cuse",
        "/dev/userfaultfd",
        "/dev/tty1",
        "/dev/ttyS0",
    ] {
        // O_NONBLOCK | O_NOCTTY.
        attempt(path, || open(path, 0o4400));
    }
    for (name, mode, number) in [
        ("mknod-block", 0o060_600, 254 << 8),
        ("mknod-memory", 0o020_600, 1 << 8 | 1),
        ("mknod-console", 0o020_600, 5 << 8 | 1),
    ] {
        attempt(name, || sys(133, [(&text(name)).into(), mode.into(), number.into()]));
        let _ = std::fs::remove_file(name);
    }
}

fn socket(family: i64, kind: i64, protocol: i64) -> Answer {
    plain(41, &[family, kind, protocol])
}

fn vsock() {
    attempt("vsock-stream", || socket(40, 1, 0));
    attempt("vsock-datagram", || socket(40, 2, 0));
    attempt("vsock-packet", || socket(40, 5, 0));
}

fn families() {
    for (name, family, kind, protocol) in [
        ("packet", 17, 3, 0x300),
        ("packet-datagram", 17, 2, 0),
        ("netlink-usersock", 16, 3, 2),
        ("netlink-diag", 16, 3, 4),
        ("netlink-xfrm", 16, 3, 6),
        ("netlink-audit", 16, 3, 9),
        ("netlink-connector", 16, 3, 11),
        ("netlink-netfilter", 16, 3, 12),
        ("netlink-uevent", 16, 3, 15),
        ("netlink-generic", 16, 3, 16),
        ("crypto", 38, 5, 0),
        ("xdp", 44, 3, 0),
        ("bluetooth", 31, 3, 1),
        ("can", 29, 3, 1),
        ("raw-icmp", 2, 3, 1),
        ("raw-ip", 2, 3, 255),
        ("raw-icmp6", 10, 3, 58),
        ("key", 15, 3, 2),
        ("rds", 21, 5, 0),
        ("tipc", 30, 5, 0),
        ("smc", 43, 1, 0),
        ("sctp", 2, 1, 132),
    ] {
        attempt(name, || socket(family, kind, protocol));
    }
}

fn entries() {
    attempt("int80-getpid", || call::entry_32(20));
    attempt("int80-unshare", || call::entry_32(310));
    attempt("x32-getpid", || plain(0x4000_0000 | 39, &[]));
    attempt("x32-unshare", || plain(0x4000_0000 | 272, &[0]));
}

fn identity() {
    let ids: Vec<String> =
        [102, 107, 104, 108].iter().map(|call| plain(*call, &[]).unwrap_or(-1).to_string()).collect();
    say(&format!("identity {}", ids.join(" ")));
    for line in std::fs::read_to_string("/proc/self/status").unwrap_or_default().lines() {
        if line.starts_with("Cap") || line.starts_with("Seccomp:") {
            say(&format!("status {line}"));
        }
    }
    // What the kernel says where its files do not: PR_GET_NO_NEW_PRIVS, PR_CAP_AMBIENT of each capability.
    say(&format!("status NoNewPrivs:\t{}", plain(157, &[39, 0, 0, 0, 0]).unwrap_or(0)));
    let ambient: Result<i64, i32> = (0..41).try_fold(0, |held, capability| {
        Ok(held | plain(157, &[47, 1, capability, 0, 0])? << capability)
    });
    match ambient {
        Ok(held) => say(&format!("status CapAmb:\t{held:016x}")),
        Err(error) => say(&format!("ambient {}", numbers::name(error))),
    }
    attempt("setuid-root", || plain(117, &[0, 0, 0]));
    attempt("setgid-root", || plain(119, &[0, 0, 0]));
    attempt("setgroups", || plain(116, &[0, 0]));
    // PR_CAPBSET_DROP: who may give up a capability for its children has one to do it with.
    attempt("bounding-set", || plain(157, &[24, 0]));
}

fn own_network() {
    let interface = |request: i64, tail: &[u8]| {
        let mut bytes = [0_u8; 40];
        bytes[..2].copy_from_slice(b"lo");
        bytes[16..16 + tail.len()].copy_from_slice(tail);
        sys(16, [socket(2, 2, 0)?.into(), request.into(), (&mut bytes).into()])
    };
    // To what it is: a change that changes nothing.
    attempt("set-mtu", || interface(0x8922, &65_536_u32.to_ne_bytes()));
    attempt("sysctl", || open("/proc/sys/net/ipv4/ip_forward", 1));
    attempt("netfilter", || socket(16, 3, 12));
    attempt("raise-priority", || plain(141, &[0, 0, -5]));
    attempt("realtime", || {
        let mut priority = [1_i32];
        sys(144, [0.into(), 1.into(), (&mut priority).into()])
    });
}

fn administration() {
    let nowhere = text("/nowhere-at-all");
    let mut bytes = [0_u8; 64];
    let bytes = &mut bytes;
    attempt("init_module", || sys(175, [bytes.into(), 8.into(), (&text("")).into()]));
    attempt("delete_module", || sys(176, [(&text("no-such-module")).into(), 0o4000.into()]));
    attempt("kexec_load", || plain(246, &[0, 99, 0, 0]));
    attempt("reboot", || plain(169, &[0, 0, 0, 0]));
    attempt("swapon", || sys(167, [(&nowhere).into(), 0.into()]));
    attempt("swapoff", || sys(168, [(&nowhere).into()]));
    attempt("acct", || sys(163, [(&nowhere).into()]));
    attempt("quotactl", || sys(179, [0x8000_0300_i64.into(), (&nowhere).into(), 0.into(), 0.into()]));
    attempt("iopl", || plain(172, &[3]));
    attempt("ioperm", || plain(173, &[0x80, 1, 1]));
    attempt("fanotify", || plain(300, &[0, 0]));
    attempt("open_by_handle_at", || {
        let mut handle = [8_u32, 1, 2, 0];
        sys(304, [CWD.into(), (&mut handle).into(), 0.into()])
    });
    attempt("sethostname", || {
        // To what it is.
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let mut name = name.trim().as_bytes().to_vec();
        let length = i64::try_from(name.len()).unwrap_or(0);
        sys(170, [name.as_mut_slice().into(), length.into()])
    });
}

fn release_agent() {
    let _ = plain(272, &[USER | CGROUP | MOUNT]);
    let _ = std::fs::create_dir("hierarchy");
    for controllers in ["memory", "pids", "rdma", "cpuset", "devices", "freezer"] {
        attempt(&format!("mount-{controllers}"), || {
            let data = text(controllers);
            sys(
                165,
                [
                    (&text("cgroup")).into(),
                    (&text("hierarchy")).into(),
                    (&text("cgroup")).into(),
                    0.into(),
                    (&data).into(),
                ],
            )
        });
    }
    for path in [
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/pids/release_agent",
        "/sys/fs/cgroup/systemd/release_agent",
        "/sys/fs/cgroup/memory/notify_on_release",
        "/sys/fs/cgroup/cgroup.procs",
    ] {
        attempt(path, || open(path, 1));
    }
    let _ = std::fs::remove_dir("hierarchy");
}

fn init_binary() {
    let parent = plain(110, &[]).unwrap_or(0);
    attempt("first-exe", || open("/proc/1/exe", 1));
    attempt("first-exe-append", || open("/proc/1/exe", 0o2001));
    attempt("parent-exe", || open(&format!("/proc/{parent}/exe"), 1));
}

/// Types into the terminal that it was given, with and without bits that a careless filter compares.
fn terminal() {
    let mut letter = *b"X";
    let mut line = [2_u8; 16];
    for high in [0_u64, 0xdead_beef_0000_0000] {
        let word = if high == 0 { "" } else { "-high" };
        attempt(&format!("sti{word}"), || sys(16, [0.into(), (high | 0x5412).into(), (&mut letter).into()]));
        attempt(&format!("linux{word}"), || sys(16, [0.into(), (high | 0x541c).into(), (&mut line).into()]));
    }
    attempt("sti-own", || sys(16, [open("/dev/tty", 2)?.into(), 0x5412.into(), (&mut letter).into()]));
}
