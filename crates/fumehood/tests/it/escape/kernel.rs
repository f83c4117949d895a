//! The kernel wall: calls, devices, sockets and settings.

use super::bench::{Bench, HostSocket, Job, SHUT, Wall};
use super::{open, probes};
use crate::lab::{self, Caller};
use fumehood_backend::conformance::Verdict;
use std::os::unix::fs::PermissionsExt;

/// Errors for something that is not there at all.
pub(super) const ABSENT: &[&str] =
    &["EPERM", "EACCES", "ENOSYS", "ENOENT", "ENXIO", "ENODEV", "EROFS", "ENOTDIR", "EMPTY"];
/// Errors for a socket family that is not there.
pub(super) const NO_FAMILY: &[&str] =
    &["EPERM", "EACCES", "ENOSYS", "EAFNOSUPPORT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT", "EOPNOTSUPP"];

probes! {
    k01_the_level_is_real => k01, control open!(k01);
    k02_no_fallback_without_the_mechanism => k02, control k02_control;
    k04_no_stray_descriptor => k04, control open!(k04);
    k06_kernel_settings => k06, control open!(k06);
    k07_kernel_facts => k07, control open!(k07);
    k09_release_agent => |b: &Bench| b.doors("k09", ABSENT), control open!(|b: &Bench| b.doors("k09", ABSENT));
    k10_init_binary => k10, control k10_control;
    k12_namespaces => |b: &Bench| b.doors("k12", SHUT), control open!(|b: &Bench| b.doors("k12", SHUT));
    k13_mounts => |b: &Bench| b.doors("k13", SHUT), control open!(|b: &Bench| b.doors("k13", SHUT));
    k14_uring => |b: &Bench| b.doors("k14", SHUT), control open!(|b: &Bench| b.doors("k14", SHUT));
    k15_kernel_programs => |b: &Bench| b.doors("k15", SHUT), control open!(|b: &Bench| b.doors("k15", SHUT));
    k16_keys => k16, control open!(k16);
    k19_devices => |b: &Bench| b.doors("k19", ABSENT), control open!(|b: &Bench| b.doors("k19", ABSENT));
    k20_engine_sockets => k20, control open!(k20);
    k21_message_bus => k21, control open!(k21);
    k22_socket_file_in_a_view => k22, control open!(k22);
    k23_abstract_socket => k23, control open!(k23);
    k24_vsock => |b: &Bench| b.doors("k24", NO_FAMILY), control open!(|b: &Bench| b.doors("k24", NO_FAMILY));
    k25_socket_families => |b: &Bench| b.doors("k25", NO_FAMILY), control open!(|b: &Bench| b.doors("k25", NO_FAMILY));
    k27_other_entries => k27, control open!(k27);
    k30_setuid_gains_nothing => k30, control || crate::escape::without_walls(Caller::User, k30);
    k31_own_network => k31, control open!(k31);
    k32_administration => |b: &Bench| b.doors("k32", SHUT), control open!(|b: &Bench| b.doors("k32", SHUT));
}

/// Every namespace differs from the host's, the filter is on, and the report names the level.
fn k01(bench: &Bench) -> Verdict {
    let kinds = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let came = bench.run(&Job::new(
        "for n in user mnt pid net ipc uts cgroup; do echo ns $n $(readlink /proc/self/ns/$n); done\n\
         grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status",
    ));
    let out = came.out();
    for kind in kinds {
        let here = std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap();
        let Some(there) = out.lines().find_map(|line| line.strip_prefix(&format!("ns {kind} "))) else {
            return came.unclear("a namespace was not told");
        };
        if there == here.to_str().unwrap() {
            return Verdict::Breached(format!("the {kind} namespace is the host's"));
        }
    }
    if !out.contains("Seccomp:\t2") || !out.contains("NoNewPrivs:\t1") {
        return Verdict::Breached("no filter, or new privileges are possible".to_owned());
    }
    if came.report["level"]["level"] != "container" {
        return Verdict::Breached(format!("the report says level {}", came.report["level"]));
    }
    came.finished()
}

/// Where no further user namespace can be made, nothing runs, and the refusal names a remedy.
fn k02(bench: &Bench) -> Verdict {
    let job = Job { through: without_user_namespaces(), ..Job::new("") };
    let came = bench.run(&job);
    if came.ended() {
        return Verdict::Breached("the command ran without its wall".to_owned());
    }
    let remedy = came.report["ending"]["remedy"].as_str().unwrap_or_default();
    if came.cause() == "not_started" && came.ran.code() == 125 && !remedy.is_empty() {
        return Verdict::Held;
    }
    came.unclear("neither run nor refused with a remedy")
}

/// A tool that warns and goes on is what the probe must catch.
fn k02_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    k02(&bench)
}

fn without_user_namespaces() -> Vec<String> {
    ["unshare", "-Ur", "sh", "-c", "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"", "sh"]
        .map(str::to_owned)
        .to_vec()
}

pub(super) fn k04(bench: &Bench) -> Verdict {
    let (secret, canary) = bench.secret();
    let through = ["sh", "-c", "exec 7< \"$0\" 9<> \"$0\" && exec \"$@\"", secret.to_str().unwrap()];
    let came = bench.run(&Job { through: through.map(str::to_owned).to_vec(), ..Job::new("./probe k04") });
    match came.leaks(&canary) {
        Verdict::Held if came.out().contains("descriptor ") => Verdict::Breached(came.out()),
        other => other,
    }
}

pub(super) fn k06(bench: &Bench) -> Verdict {
    let settings = [
        "kernel/core_pattern",
        "kernel/modprobe",
        "kernel/hotplug",
        "kernel/sysrq",
        "kernel/hostname",
        "kernel/randomize_va_space",
        "vm/overcommit_memory",
        "vm/drop_caches",
        "vm/panic_on_oom",
        "fs/suid_dumpable",
        "net/ipv4/ip_forward",
        "user/max_user_namespaces",
    ];
    let mut paths: Vec<_> = settings.map(|name| format!("/proc/sys/{name}")).to_vec();
    paths.extend(
        ["/proc/sysrq-trigger", "/sys/kernel/uevent_helper", "/proc/1/oom_score_adj"].map(str::to_owned),
    );
    // The probe takes up to sixteen paths.
    let came = bench.run(&Job::new(format!("./probe write {}", paths.join(" "))));
    came.doors(ABSENT)
}

pub(super) fn k07(bench: &Bench) -> Verdict {
    bench.doors(
        "read /proc/kcore /proc/keys /proc/timer_list /proc/sched_debug /proc/latency_stats /proc/kmsg \
         /proc/vmallocinfo /proc/slabinfo /proc/kpagecount /sys/firmware/acpi/tables/DSDT /sys/firmware/dmi/tables/DMI \
         /sys/class/dmi/id/product_serial /sys/kernel/notes /sys/kernel/debug/tracing/trace /proc/scsi/scsi /dev/kmsg",
        &[ABSENT, &["EIO", "EISDIR", "EINVAL", "EAGAIN"]].concat(),
    )
}

pub(super) fn k10(bench: &Bench) -> Verdict {
    let binary = bench.lab.binary();
    let before = std::fs::read(&binary).unwrap();
    let verdict = bench.doors("k10", &[ABSENT, &["ETXTBSY"]].concat());
    if std::fs::read(&binary).unwrap() != before {
        return Verdict::Breached("the binary on the host was changed".to_owned());
    }
    verdict
}

/// The judgement by content, with the door open: a copy of the binary is written to.
fn k10_control() -> Verdict {
    let bench = Bench::new(Caller::User, Wall::Open);
    let copy = bench.lab.file("copy", "a binary");
    let before = std::fs::read(&copy).unwrap();
    bench.run(&Job::new(format!("echo x >> {}", copy.display())));
    if std::fs::read(&copy).unwrap() == before {
        Verdict::Held
    } else {
        Verdict::Breached("changed".to_owned())
    }
}

pub(super) fn k16(bench: &Bench) -> Verdict {
    let (name, canary) = (lab::canary(), lab::canary());
    let probe = bench.probe().to_str().unwrap().to_owned();
    let through = vec![probe, "key-plant".to_owned(), name.clone(), canary.clone()];
    let came = bench.run(&Job { through, ..Job::new(format!("./probe k16 {name}")) });
    match came.leaks(&canary) {
        Verdict::Held => came.doors(&[SHUT, &["ENOKEY"]].concat()),
        other => other,
    }
}

pub(super) fn k20(bench: &Bench) -> Verdict {
    let (planted, socket) = bench.host_socket("docker.sock");
    let verdict = bench.doors(
        &format!(
            "connect {} /run/docker.sock /var/run/docker.sock /run/containerd/containerd.sock /run/crio/crio.sock \
             /run/podman/podman.sock /run/libvirt/libvirt-sock /run/buildkit/buildkitd.sock",
            planted.display()
        ),
        &[ABSENT, &["ECONNREFUSED", "EAFNOSUPPORT"]].concat(),
    );
    socket.judge(verdict)
}

pub(super) fn k21(bench: &Bench) -> Verdict {
    let (planted, socket) = bench.host_socket("system_bus_socket");
    let verdict = bench.doors(
        &format!(
            "connect {} /run/dbus/system_bus_socket /var/run/dbus/system_bus_socket /run/systemd/private \
             /run/user/0/bus /run/user/1000/bus /run/user/12345/bus /run/user/1000/systemd/private \
             /run/systemd/journal/stdout /run/udev/control /run/snapd.socket",
            planted.display()
        ),
        &[ABSENT, &["ECONNREFUSED", "EAFNOSUPPORT"]].concat(),
    );
    socket.judge(verdict)
}

pub(super) fn k22(bench: &Bench) -> Verdict {
    let view = bench.lab.folder("view");
    let path = view.join("listener");
    let socket = HostSocket::at(&path);
    bench.lab.give(&path);
    let job = Job::new(format!("./probe connect {}", path.display())).flags(["--ro", view.to_str().unwrap()]);
    socket.judge(bench.run(&job).doors(&[ABSENT, &["ECONNREFUSED", "EAFNOSUPPORT"]].concat()))
}

pub(super) fn k23(bench: &Bench) -> Verdict {
    let name = format!("fumehood-test-{}", lab::canary());
    let socket = HostSocket::at_abstract(&name);
    socket.judge(
        bench.doors(&format!("connect @{name}"), &[ABSENT, &["ECONNREFUSED", "EAFNOSUPPORT"]].concat()),
    )
}

pub(super) fn k27(bench: &Bench) -> Verdict {
    bench.doors("k27", &["ENOSYS", "EPERM", "signal 31", "signal 11"])
}

pub(super) fn k30(bench: &Bench) -> Verdict {
    if !lab::am_root() {
        return Verdict::NotApplicable("a set-uid file of root can be made by root alone".to_owned());
    }
    let view = bench.lab.path().join("set-uid");
    std::fs::create_dir(&view).unwrap();
    let program = view.join("program");
    std::fs::copy(lab::probe(), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o6755)).unwrap();
    let job = Job::new(format!("{} k30", program.display())).flags(["--ro", view.to_str().unwrap()]);
    let came = bench.run(&job);
    let out = came.out();
    let Some(identity) = out.lines().find_map(|line| line.strip_prefix("identity ")) else {
        return came.unclear("the program did not run");
    };
    let ids: Vec<&str> = identity.split(' ').collect();
    if ids[0] != ids[1] || ids[2] != ids[3] {
        return Verdict::Breached(format!("the set-uid bit worked: {identity}"));
    }
    if bench.wall == Wall::Bare {
        // An ordinary user can not empty the bounding set there; nothing can be gained from it either.
        let nothing = out.contains("held 0 0\n") && out.contains("no-new-privileges 1\n");
        return if nothing { came.finished() } else { Verdict::Breached(out) };
    }
    no_capabilities(&out, came.finished())
}

fn k31(bench: &Bench) -> Verdict {
    let came = bench.run(&Job::new("cat /proc/self/status\n./probe k31"));
    let doors = came.doors(&[ABSENT, NO_FAMILY].concat());
    no_capabilities(&came.out(), doors)
}

fn no_capabilities(status: &str, otherwise: Verdict) -> Verdict {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        match status.lines().find_map(|line| line.strip_prefix(&format!("{set}:"))) {
            Some(value) if value.trim().chars().all(|digit| digit == '0') => {}
            Some(value) => return Verdict::Breached(format!("{set} is {}", value.trim())),
            None => return Verdict::Inconclusive(format!("{set} was not told")),
        }
    }
    if !status.contains("NoNewPrivs:\t1") {
        return Verdict::Breached("new privileges are possible".to_owned());
    }
    otherwise
}
