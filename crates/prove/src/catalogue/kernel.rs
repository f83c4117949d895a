//! The kernel wall: calls, devices, sockets and settings.

use super::{ALL, EVERY, alone, no_views, together, words};
use crate::bench::{Bench, Job, poll};
use crate::finding::Finding;
use crate::probe::{How, Probe, Side, Wall};
use crate::told::Step;
use fumehood_model::level::Level;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// This door is shut.
const SHUT: &[&str] = &["EPERM", "EACCES", "ENOSYS"];
/// There is no such thing here, or it is not for you.
const ABSENT: &[&str] =
    &["EPERM", "EACCES", "ENOSYS", "ENOENT", "ENXIO", "ENODEV", "EROFS", "ENOTDIR", "EMPTY"];
/// There is no such family of sockets.
const NO_FAMILY: &[&str] = &[
    "EPERM",
    "EACCES",
    "ENOSYS",
    "EAFNOSUPPORT",
    "EPROTONOSUPPORT",
    "ESOCKTNOSUPPORT",
    "EOPNOTSUPP",
    "ENODEV",
];
const NO_LISTENER: &[&str] = &["EPERM", "EACCES", "ENOSYS", "ENOENT", "ENOTDIR", "ECONNREFUSED"];

const K: Wall = Wall::Kernel;

pub(super) fn probes() -> Vec<Probe> {
    [
        doors(),
        more_doors(),
        sockets(),
        vec![
            alone(("K01", K, "be somewhere else than the level says"), EVERY, level_is_real),
            alone(("K02", K, "start where a mechanism of the level is missing"), EVERY, no_fallback),
            alone(("K10", K, "write to the program that started it"), ALL, own_binary),
        ],
    ]
    .concat()
}

fn doors() -> Vec<Probe> {
    vec![
        together(
            ("K04", K, "read from descriptors that it was not given"),
            EVERY,
            How::Bare,
            |_| words("descriptors"),
            |step, scene| step.leaks(&scene.secret).or(|| stray(step)),
        ),
        together(
            ("K06", K, "open kernel settings for writing"),
            ALL,
            How::Capable,
            |_| words(SETTINGS),
            |step, _| step.done(),
        ),
        together(
            ("K07", K, "read what the kernel tells about itself"),
            ALL,
            How::Bare,
            |_| words(FACTS),
            |step, _| step.done(),
        ),
        together(
            ("K09", K, "mount cgroups and reach a release agent"),
            ALL,
            How::Capable,
            |_| words("release-agent"),
            |step, _| step.doors(ABSENT),
        ),
        together(
            ("K12", K, "make namespaces"),
            ALL,
            How::Bare,
            |_| words("namespaces"),
            |step, _| step.doors(SHUT),
        ),
        together(
            ("K13", K, "mount, remount, unmount, enter"),
            ALL,
            How::Capable,
            |_| words("mounts"),
            |step, _| step.doors(SHUT),
        ),
        together(
            ("K14", K, "set up io_uring"),
            ALL,
            How::Bare,
            |_| words("uring"),
            |step, _| step.doors(SHUT),
        ),
        together(
            ("K15", K, "bpf, perf, userfaultfd, kcmp"),
            ALL,
            How::Bare,
            |_| words("kernel-programs"),
            |step, _| step.doors(SHUT),
        ),
    ]
}

fn more_doors() -> Vec<Probe> {
    vec![
        together(
            ("K16", K, "read a key of the caller's session, leave one"),
            ALL,
            How::Bare,
            |scene| vec!["keys".to_owned(), scene.key_name().to_owned()],
            |step, scene| step.leaks(&scene.secret).or(|| step.doors(&[SHUT, &["ENOKEY"]].concat())),
        ),
        together(
            ("K19", K, "open and make devices"),
            ALL,
            How::Bare,
            |_| words("devices"),
            |step, _| step.doors(ABSENT),
        )
        .unless(no_device),
        together(
            ("K27", K, "enter the kernel as a 32-bit or x32 program"),
            ALL,
            How::Bare,
            |_| words("entries"),
            |step, _| step.doors(&[SHUT, &["signal 31", "signal 11", "31", "11"]].concat()),
        ),
        together(
            ("K30", K, "become root"),
            ALL,
            How::Capable,
            |_| words("identity"),
            |step, _| identity(step),
        ),
        together(
            ("K31", K, "change its network, its priority"),
            ALL,
            How::Capable,
            |_| words("own-network"),
            |step, _| step.doors(&[ABSENT, NO_FAMILY].concat()),
        ),
        together(
            ("K32", K, "load modules, reboot, swap, account"),
            ALL,
            How::Capable,
            |_| words("administration"),
            |step, _| step.doors(SHUT),
        ),
    ]
}

fn sockets() -> Vec<Probe> {
    vec![
        together(
            ("K20", K, "call a container engine"),
            ALL,
            How::Bare,
            |scene| {
                let usual = "/run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/crio/crio.sock \
                         /run/podman/podman.sock /run/libvirt/libvirt-sock /run/buildkit/buildkitd.sock";
                [words("connect"), vec![scene.engine()], words(usual)].concat()
            },
            |step, scene| scene.called(step.doors(NO_LISTENER)),
        ),
        together(
            ("K21", K, "call the message bus and the service manager"),
            ALL,
            How::Bare,
            |scene| {
                let usual = "/run/dbus/system_bus_socket /run/systemd/private /run/user/0/bus /run/user/1000/bus \
                         /run/systemd/journal/stdout /run/udev/control /run/snapd.socket";
                [words("connect"), vec![scene.named()], words(usual)].concat()
            },
            |step, scene| scene.called(step.doors(NO_LISTENER)),
        ),
        together(
            ("K23", K, "call an abstract socket of the host"),
            ALL,
            How::Bare,
            |scene| vec!["connect".to_owned(), scene.abstracted()],
            |step, scene| scene.called(step.doors(NO_LISTENER)),
        ),
        alone(("K22", K, "call a socket file in a folder that it may read"), ALL, socket_in_a_view)
            .unless(no_views),
        together(
            ("K24", K, "make a vsock"),
            ALL,
            How::Bare,
            |_| words("vsock"),
            |step, _| step.doors(NO_FAMILY),
        ),
        together(
            ("K25", K, "make sockets of other families"),
            ALL,
            How::Capable,
            |_| words("families"),
            |step, _| step.doors(NO_FAMILY),
        ),
    ]
}

const SETTINGS: &str = "write /proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/kernel/hotplug \
    /proc/sys/kernel/sysrq /proc/sys/kernel/randomize_va_space /proc/sys/vm/overcommit_memory /proc/sys/vm/drop_caches \
    /proc/sys/vm/panic_on_oom /proc/sys/fs/suid_dumpable /proc/sys/net/ipv4/ip_forward \
    /proc/sys/user/max_user_namespaces /proc/sysrq-trigger /sys/kernel/uevent_helper /proc/1/oom_score_adj \
    /proc/sys/net/ipv4/ping_group_range";

const FACTS: &str = "read /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug /proc/latency_stats /proc/vmallocinfo \
    /proc/slabinfo /proc/kpagecount /sys/firmware/acpi/tables/DSDT /sys/firmware/dmi/tables/DMI \
    /sys/class/dmi/id/product_serial /sys/kernel/notes /proc/scsi/scsi /dev/kmsg /proc/pagetypeinfo \
    /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/security/lsm /proc/net/../../sys/kernel/uevent_seqnum";

/// Without root, a device that is open to this user must be there to show that the wall holds it back.
fn no_device(bench: &Bench) -> Option<String> {
    use std::os::unix::fs::OpenOptionsExt as _;
    const OPEN_TO_MANY: [&str; 6] =
        ["/dev/kvm", "/dev/fuse", "/dev/net/tun", "/dev/vhost-vsock", "/dev/vsock", "/dev/userfaultfd"];
    let opens = |path: &&str| std::fs::File::options().read(true).custom_flags(0o4400).open(path).is_ok();
    let open = bench.root || OPEN_TO_MANY.iter().any(opens);
    (!open).then(|| "untestable: this host itself opens none of these devices to this user".to_owned())
}

/// There must be none at all, whatever is in it.
fn stray(step: &Step) -> Finding {
    match step.number("descriptors ") {
        Some(0) => Finding::Quiet,
        Some(count) => Finding::Through(format!("{count} descriptors beyond the three streams")),
        None => step.whole().or(|| Finding::Unclear("the count was not told".to_owned())),
    }
}

fn identity(step: &Step) -> Finding {
    let status: Vec<&str> = step.facts("status").collect();
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        match status.iter().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')) {
            Some(value) if value.trim().chars().all(|digit| digit == '0') => {}
            Some(value) => return Finding::Through(format!("{set} is {}", value.trim())),
            // A kernel that knows no such set has none of it.
            None if set == "CapAmb" && step.facts("ambient").any(|error| error == "EINVAL") => {}
            None => return Finding::Unclear(format!("{set} was not told")),
        }
    }
    if !status.iter().any(|line| line.starts_with("NoNewPrivs") && line.ends_with('1')) {
        return Finding::Through("new privileges are possible".to_owned());
    }
    step.doors(&[SHUT, &["EINVAL"]].concat())
}

fn socket_in_a_view(bench: &Bench, side: Side) -> io::Result<Finding> {
    let view = bench.fresh("view")?;
    let path = view.join("listener");
    let listener = std::os::unix::net::UnixListener::bind(&path)?;
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o777))?;
    listener.set_nonblocking(true)?;
    let (view, path) = (view.display().to_string(), path.display().to_string());
    let came = bench.run(side, &Job::step(&["K22", "connect", &path]).flags(["--ro", &view]))?;
    if listener.accept().is_ok() {
        return Ok(Finding::Through("a listener of the host was called".to_owned()));
    }
    Ok(came.told.step("K22").doors(NO_LISTENER))
}

/// What the host sees of the process while it runs. Where it does not see it, what the process sees of its kernel.
fn level_is_real(bench: &Bench, side: Side) -> io::Result<Finding> {
    let nonce = crate::canary::canary()?;
    let job = Job::step(&["K01", "levels"]).then(&["K01w", "await"]);
    let mut command = bench.command(side, &job, &nonce)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let own = matches!(bench.level, Level::Wasm | Level::Process | Level::Container);
    let program = match (side, bench.level) {
        // What the host sees is the engine.
        (Side::Walled, Level::Wasm) => "/engine",
        (Side::Walled, _) => "./attack",
        (Side::Open, _) => "attack",
    };
    let mut seen = None;
    if own {
        poll(Duration::from_secs(20), || {
            seen = process(program, &nonce);
            seen.is_some()
        });
    }
    let outside = seen.map(|pid| from_outside(bench.level, pid));
    drop(child.stdin.take());
    let came = bench.running(child, nonce).finish()?;
    if own {
        return Ok(outside.unwrap_or_else(|| Finding::Unclear("the host did not see the process".to_owned())));
    }
    let version = std::fs::read_to_string("/proc/version").unwrap_or_default();
    let step = came.told.step("K01");
    let told = step.facts("kernel /proc/version").next().unwrap_or_default().to_owned();
    if told == version.trim() {
        return Ok(Finding::Through("it runs on the host's own kernel".to_owned()));
    }
    Ok(if told.is_empty() { Finding::Unclear(came.outcome()) } else { step.whole() })
}

/// The attacker's own process, which waits in its last step.
fn process(program: &str, nonce: &str) -> Option<u32> {
    crate::bench::survivors(nonce).into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let first = line.split(|byte| *byte == 0).next().unwrap_or_default();
        // The runner's own arguments name the program too, further on.
        first.ends_with(program.as_bytes())
    })
}

fn from_outside(level: Level, pid: u32) -> Finding {
    let kinds: &[&str] = match level {
        Level::Wasm | Level::Container => &["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"],
        Level::Process | Level::Gvisor | Level::Microvm => &[],
    };
    for kind in kinds {
        let link = |who: &str| std::fs::read_link(Path::new("/proc").join(who).join("ns").join(kind)).ok();
        match link(&pid.to_string()) {
            Some(theirs) if Some(&theirs) == link("self").as_ref() => {
                return Finding::Through(format!("its {kind} namespace is the host's"));
            }
            Some(_) => {}
            None => return Finding::Unclear(format!("its {kind} namespace can not be seen")),
        }
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap_or_default().trim()
    };
    if field("Seccomp") != "2" || field("NoNewPrivs") != "1" {
        return Finding::Through("no filter of system calls, or new privileges are possible".to_owned());
    }
    if field("CapEff").chars().any(|digit| digit != '0') || field("Uid").starts_with("0\t") {
        return Finding::Through("it has capabilities, or is root".to_owned());
    }
    Finding::Quiet
}

/// Where nobody may make a user namespace, and where the kernel has no Landlock, nothing runs, and the refusal says what
/// to do.
fn no_fallback(bench: &Bench, side: Side) -> io::Result<Finding> {
    let missing: &[&str] = match bench.level {
        // It has a shape for hosts without namespaces.
        Level::Process => &["unable"],
        // Its own kernel looks at paths, not the host's Landlock.
        Level::Gvisor => &["closed"],
        Level::Wasm | Level::Container | Level::Microvm => &["closed", "unable"],
    };
    for mode in missing {
        let job = Job { through: vec![(*mode).to_owned()], ..Job::step(&["K02", "descriptors"]) };
        let came = bench.run(side, &job)?;
        if came.told.step("K02").over {
            return Ok(Finding::Through("the command ran without its wall".to_owned()));
        }
        match came.refusal() {
            Some((_, remedy)) if !remedy.is_empty() && came.code == Some(125) => {}
            _ => {
                return Ok(Finding::Unclear(format!(
                    "neither run nor refused with a remedy: {}",
                    came.outcome()
                )));
            }
        }
    }
    Ok(Finding::Quiet)
}

/// The shipped binary is the same before and after: whoever writes to a file moves its time of change, which nobody can
/// put back. The control writes to a copy that it may write to.
fn own_binary(bench: &Bench, side: Side) -> io::Result<Finding> {
    if side == Side::Walled {
        let before = stamp(&bench.binary)?;
        let came = bench.run(side, &Job::step(&["K10", "init-binary"]))?;
        if stamp(&bench.binary)? != before {
            return Ok(Finding::Through("the binary of the host was changed".to_owned()));
        }
        return Ok(came.told.step("K10").done());
    }
    let copy = bench.fresh("copy")?.join("program");
    std::fs::write(&copy, "a program")?;
    let came = bench.run(side, &Job::step(&["K10", "write", &copy.display().to_string()]))?;
    Ok(came.told.step("K10").done())
}

fn stamp(path: &Path) -> io::Result<(u64, u64, i64, i64)> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path)?;
    Ok((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}
