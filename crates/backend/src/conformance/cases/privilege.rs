//! Privilege: not root, no capability, no way to gain one, few system calls.

use super::{both, facts, finished, holds, no_leak, nothing, text};
use crate::conformance::{Case, Outcome, Stage, Verdict};
use fumehood_model::enforcement::Clause;
use std::path::Path;

const CLAUSE: Option<Clause> = Some(Clause::Privilege);

pub(super) const CASES: &[Case] = &[
    Case {
        name: "not-root",
        clause: CLAUSE,
        says: "The command does not run as root inside.",
        inside: &["test \"$(id -u)\" -ne 0 && echo root=no || echo root=yes; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("root", "no")]),
    },
    Case {
        name: "no-capabilities",
        clause: CLAUSE,
        says: "No capability is held, and none can be had.",
        inside: &["for c in CapInh CapPrm CapEff CapBnd CapAmb; do \
             echo $c=$(sed -n \"s/^$c:[[:space:]]*//p\" /proc/self/status); done; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
            facts(outcomes, stage, &sets.map(|set| (set, "0000000000000000")))
        },
    },
    Case {
        name: "no-new-privileges",
        clause: CLAUSE,
        says: "A set-uid program gains nothing.",
        inside: &["echo flag=$(sed -n 's/^NoNewPrivs:[[:space:]]*//p' /proc/self/status); echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("flag", "1")]),
    },
    Case {
        name: "syscalls-filtered",
        clause: CLAUSE,
        says: "A system call filter is on.",
        inside: &["echo mode=$(sed -n 's/^Seccomp:[[:space:]]*//p' /proc/self/status); echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| facts(outcomes, stage, &[("mode", "2")]),
    },
    Case {
        name: "kernel-doors-closed",
        clause: CLAUSE,
        says: "io_uring, bpf, perf, userfaultfd, keyrings, ptrace and the mount calls answer with an error.",
        // io_uring_setup, bpf, perf_event_open, userfaultfd, keyctl, fsopen, open_tree, setns, kcmp,
        // pidfd_getfd, init_module; numbers of x86-64.
        inside: &["perl -e 'for my $n (425, 321, 298, 323, 250, 430, 428, 308, 312, 438, 175) { \
             my $b = \"\\0\" x 256; my $t = \"tmpfs\"; my $r = $n == 430 ? syscall($n, $t, 0) : \
             syscall($n, 0 + ($n == 425), $b, 0, 0, 0); \
             print \"call$n=\", $r < 0 ? \"refused\" : \"open\", \"\\n\" }'; \
             perl -e '$r = syscall(250, 0, -3, 1); print \"keyring=\", $r < 0 ? \"refused\" : \"open\", \"\\n\"; \
             $r = syscall(323, 1); print \"userfault=\", $r < 0 ? \"refused\" : \"open\", \"\\n\"'; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let calls = [
                "call425",
                "call321",
                "call298",
                "call323",
                "call250",
                "call430",
                "call428",
                "call308",
                "call312",
                "call438",
                "call175",
                "keyring",
                "userfault",
            ];
            facts(outcomes, stage, &calls.map(|call| (call, "refused")))
        },
    },
    Case {
        name: "no-nested-namespaces",
        clause: CLAUSE,
        says: "No further user namespace, and so no set of capabilities in one.",
        inside: &["for f in 0x10000000 0x10020000; do perl -e \
             'print \"unshare=\", syscall(272, oct($ARGV[0])) < 0 ? \"refused\" : \"open\", \"\\n\"' $f; done; \
             unshare -Ur true && echo nested=open || echo nested=refused; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            both(facts(outcomes, stage, &[("unshare", "refused"), ("nested", "refused")]), || {
                holds(!outcomes.iter().any(|o| o.said().contains("unshare=open")), "unshare made a namespace")
            })
        },
    },
    Case {
        name: "no-mount",
        clause: CLAUSE,
        says: "Nothing can be mounted, remounted or unmounted.",
        inside: &["mount -t tmpfs none /tmp && echo fresh=open || echo fresh=refused; \
             mount -o remount,rw / && echo remount=open || echo remount=refused; \
             umount /proc && echo umount=open || echo umount=refused; \
             mount --make-rshared / && echo shared=open || echo shared=refused; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            facts(outcomes, stage, &["fresh", "remount", "umount", "shared"].map(|way| (way, "refused")))
        },
    },
    Case {
        name: "host-processes-invisible",
        clause: CLAUSE,
        says: "No process outside can be seen, read or entered.",
        inside: &["cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; cat /proc/[0-9]*/root@DIR@/secret; \
             cat /proc/[0-9]*/cwd/secret; echo @NONCE@"],
        wants: &[],
        setup: |stage| stage.hold_secret_process(),
        verdict: no_leak,
    },
    Case {
        name: "host-name-private",
        clause: CLAUSE,
        says: "The host's name can not be changed.",
        inside: &[
            "perl -e 'my $h = \"breached\"; print \"set=\", syscall(170, $h, 8) < 0 ? \"refused\" : \"done\", \"\\n\"'; \
             echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            let host = text(Path::new("/proc/sys/kernel/hostname"));
            both(holds(host.trim() != "breached", "the host's name was changed"), || {
                facts(outcomes, stage, &[("set", "refused")])
            })
        },
    },
    Case {
        name: "devices-minimal",
        clause: CLAUSE,
        says: "No device of the host but null, zero, full, random, urandom and terminals.",
        inside: &["for d in /dev/*; do if [ -b \"$d\" ] || [ -c \"$d\" ]; then echo device=$d; fi; done; \
             mknod disk b 8 0 && echo mknod=open || echo mknod=refused; echo @NONCE@"],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| {
            both(facts(outcomes, stage, &[("mknod", "refused")]), || only_plain_devices(outcomes, stage))
        },
    },
    Case {
        name: "kernel-settings-closed",
        clause: CLAUSE,
        says: "No kernel setting can be opened for writing.",
        inside: &[
            "for f in sys/kernel/core_pattern sys/kernel/modprobe sys/vm/overcommit_memory sysrq-trigger \
             sys/kernel/hostname; do if ( : >> /proc/$f ) 2> /dev/null; then echo opened=$f; fi; done; \
             echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| match finished(outcomes, stage) {
            Ok(outcome) => match outcome.fact("opened") {
                Some(file) => Verdict::Breached(format!("/proc/{file} opens for writing")),
                None => Verdict::Held,
            },
            Err(verdict) => verdict,
        },
    },
    Case {
        name: "kernel-facts-masked",
        clause: CLAUSE,
        says: "Kernel memory, keys, timers and firmware can not be read.",
        inside: &[
            "for f in /proc/kcore /proc/keys /proc/timer_list /proc/kallsyms /sys/firmware/acpi/tables/DSDT \
             /proc/sched_debug; do echo size=$(head -c 64 $f 2> /dev/null | wc -c):$f; done; echo @NONCE@",
        ],
        wants: &[],
        setup: nothing,
        verdict: |outcomes, stage| match finished(outcomes, stage) {
            Ok(outcome) => {
                let said = outcome.said();
                let open = said.lines().find(|line| {
                    line.starts_with("size=") && !line.starts_with("size=0:") && !line.contains("kallsyms")
                });
                match open {
                    Some(line) => Verdict::Breached(format!("content was read: {line}")),
                    None => Verdict::Held,
                }
            }
            Err(verdict) => verdict,
        },
    },
];

fn only_plain_devices(outcomes: &[Outcome], stage: &Stage) -> Verdict {
    const PLAIN: [&str; 9] =
        ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "pts/ptmx"];
    let outcome = match finished(outcomes, stage) {
        Ok(outcome) => outcome,
        Err(verdict) => return verdict,
    };
    let said = outcome.said();
    let odd = said
        .lines()
        .filter_map(|line| line.strip_prefix("device=/dev/"))
        .find(|device| !PLAIN.contains(device));
    match odd {
        Some(device) => Verdict::Breached(format!("/dev/{device} is there")),
        None => Verdict::Held,
    }
}
