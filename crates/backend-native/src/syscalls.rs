//! The system call allow-list: what is not named here does not exist inside.
//!
//! Groups by purpose. A call that is not known at all answers `ENOSYS`, so that libraries fall back. A
//! known call that is refused is put to the keeper, which counts it and answers `EPERM`; each exception
//! below says why.

use fumehood_model::envelope::Syscalls;
use fumehood_sys::bpf::{Action, Filter, Rule, Test};
use std::collections::BTreeMap;

const ENOSYS: Action = Action::Errno(38);

/// Bits of `clone` and `unshare` that make namespaces.
const NEW_NAMESPACES: u32 = 0x7E02_0080;

/// Whether a file can be made that runs as its owner. On a folder of the host that is written at once, it
/// would be the owner of the workspace, for every user of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetId {
    Allowed,
    Refused,
}

/// The filter of a profile. Compiled once per launch; some ten microseconds.
pub(crate) fn filter(profile: Syscalls, set_id: SetId) -> Filter {
    Filter::compile(&table(profile, set_id), ENOSYS)
}

/// The filter of a profile for a kernel that is not this one, where nobody answers: what is put to the keeper here
/// is refused there, with the same error.
pub(crate) fn for_guest(profile: Syscalls) -> Filter {
    let mut table = table(profile, SetId::Allowed);
    for (number, rule) in &mut table {
        let errno = i32::try_from(*number).map_or(libc::EPERM, |number| refusal(number).1);
        let refused = Action::Errno(u16::try_from(errno).unwrap_or(1));
        let settle = |action: &mut Action| {
            if *action == Action::Ask {
                *action = refused;
            }
        };
        match rule {
            Rule::Always(action) => settle(action),
            Rule::Cases { cases, otherwise } => {
                cases.iter_mut().for_each(|(_, action)| settle(action));
                settle(otherwise);
            }
        }
    }
    Filter::compile(&table, ENOSYS)
}

fn table(profile: Syscalls, set_id: SetId) -> BTreeMap<u32, Rule> {
    let mut table = BTreeMap::new();
    for group in
        [FILES, PROCESSES, MEMORY, SIGNALS, TIME, DESCRIPTORS, SOCKETS, IPC, IDENTITY, SELF_CONFINEMENT]
    {
        for number in group {
            table.insert(nr(*number), Rule::Always(Action::Allow));
        }
    }
    for (number, _) in REFUSED {
        table.insert(nr(*number), Rule::Always(Action::Ask));
    }
    for (number, _) in TRACING {
        let action = match profile {
            Syscalls::Debug => Action::Allow,
            Syscalls::Default => Action::Ask,
        };
        table.insert(nr(*number), Rule::Always(action));
    }
    for (number, rule) in conditional() {
        table.insert(nr(number), rule);
    }
    if set_id == SetId::Refused {
        for (number, rule) in without_set_id() {
            table.insert(nr(number), rule);
        }
    }
    table
}

/// The calls that give a file its mode, without the set-id bits.
fn without_set_id() -> Vec<(i64, Rule)> {
    const BITS: [u32; 2] = [0o4000, 0o2000];
    let has = |argument, bit| Test::Low { argument, mask: bit, value: bit };
    let ask = |tests| (tests, Action::Ask);
    let plain = |number, mode: u8| {
        let cases = BITS.map(|bit| ask(vec![has(mode, bit)])).to_vec();
        (number, Rule::Cases { cases, otherwise: Action::Allow })
    };
    // Only these flags make a file; without them the kernel does not look at the mode.
    let opening = |number, flags: u8| {
        let making = [libc::O_CREAT.cast_unsigned(), UNNAMED];
        let cases =
            making.iter().flat_map(|flag| BITS.map(|bit| ask(vec![has(flags, *flag), has(flags + 1, bit)])));
        (number, Rule::Cases { cases: cases.collect(), otherwise: Action::Allow })
    };
    vec![
        plain(libc::SYS_chmod, 1),
        plain(libc::SYS_fchmod, 1),
        plain(libc::SYS_fchmodat, 2),
        plain(FCHMODAT2, 2),
        plain(libc::SYS_creat, 1),
        plain(libc::SYS_mknod, 1),
        plain(libc::SYS_mknodat, 2),
        opening(libc::SYS_open, 1),
        opening(libc::SYS_openat, 2),
        // Its mode lies in memory, which a filter can not read: programs fall back to `openat`.
        (libc::SYS_openat2, Rule::Always(ENOSYS)),
    ]
}

/// `__O_TMPFILE`, without the flag for folders that it comes with.
const UNNAMED: u32 = 0o20_000_000;

/// What to say of a call that was put to the keeper: its name, and the error it gets.
pub(crate) fn refusal(number: i32) -> (&'static str, i32) {
    let number = i64::from(number);
    let named = REFUSED.iter().chain(TRACING).chain(JUDGED).find(|(known, _)| *known == number);
    let errno = if number == libc::SYS_socket || number == libc::SYS_socketpair {
        libc::EAFNOSUPPORT
    } else {
        libc::EPERM
    };
    (named.map_or("a system call", |(_, name)| name), errno)
}

/// Those of [`conditional`] and [`without_set_id`] that can be refused.
const JUDGED: &[(i64, &str)] = &[
    (libc::SYS_clone, "clone with a namespace"),
    (libc::SYS_unshare, "unshare with a namespace"),
    (libc::SYS_socket, "socket of another family"),
    (libc::SYS_socketpair, "socketpair of another family"),
    (libc::SYS_personality, "personality"),
    (libc::SYS_ioctl, "ioctl on a terminal"),
    (libc::SYS_chmod, SET_ID),
    (libc::SYS_fchmod, SET_ID),
    (libc::SYS_fchmodat, SET_ID),
    (FCHMODAT2, SET_ID),
    (libc::SYS_creat, SET_ID),
    (libc::SYS_mknod, SET_ID),
    (libc::SYS_mknodat, SET_ID),
    (libc::SYS_open, SET_ID),
    (libc::SYS_openat, SET_ID),
];
const SET_ID: &str = "a set-id bit in the host's own folder";

/// Calls that depend on their arguments.
fn conditional() -> Vec<(i64, Rule)> {
    let low = |argument, value| Test::Low { argument, mask: u32::MAX, value };
    let allow = |tests: Vec<Test>| (tests, Action::Allow);
    let no_namespaces = |number| {
        let tests = vec![Test::Whole { argument: 0, mask: NEW_NAMESPACES, value: 0 }];
        (number, Rule::Cases { cases: vec![allow(tests)], otherwise: Action::Ask })
    };
    let families = vec![
        allow(vec![low(0, 1)]),  // AF_UNIX
        allow(vec![low(0, 2)]),  // AF_INET
        allow(vec![low(0, 10)]), // AF_INET6
        // AF_NETLINK, routes only: how Node lists the interfaces of its own namespace.
        allow(vec![low(0, 16), low(2, 0)]),
    ];
    let personalities = [0, 0xFFFF_FFFF, 0x0004_0000].map(|value| allow(vec![low(0, value)]));
    // TIOCSTI, TIOCLINUX and TIOCSETD: typing into, pasting into and redefining a terminal. The
    // kernel reads 32 bits of the request, so the test does too.
    let terminals = [0x5412, 0x541C, 0x5423].map(|value| (vec![low(1, value)], Action::Ask));
    vec![
        no_namespaces(libc::SYS_clone),
        no_namespaces(libc::SYS_unshare),
        // Its flags lie in memory, which a filter can not read: libc falls back to `clone`.
        (libc::SYS_clone3, Rule::Always(ENOSYS)),
        (libc::SYS_socket, Rule::Cases { cases: families, otherwise: Action::Ask }),
        (libc::SYS_socketpair, Rule::Cases { cases: vec![allow(vec![low(0, 1)])], otherwise: Action::Ask }),
        (libc::SYS_personality, Rule::Cases { cases: personalities.to_vec(), otherwise: Action::Ask }),
        (libc::SYS_ioctl, Rule::Cases { cases: terminals.to_vec(), otherwise: Action::Allow }),
    ]
}

fn nr(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Reading, writing and arranging files.
const FILES: &[i64] = &[
    libc::SYS_access,
    libc::SYS_chdir,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_copy_file_range,
    libc::SYS_creat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futimesat,
    libc::SYS_getcwd,
    libc::SYS_getdents,
    libc::SYS_getdents64,
    libc::SYS_getxattr,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_lchown,
    libc::SYS_lgetxattr,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lseek,
    libc::SYS_lsetxattr,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_mknod,
    libc::SYS_mknodat,
    libc::SYS_newfstatat,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readahead,
    libc::SYS_readlink,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_removexattr,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_rmdir,
    libc::SYS_sendfile,
    libc::SYS_setxattr,
    libc::SYS_splice,
    libc::SYS_stat,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_symlink,
    libc::SYS_symlinkat,
    libc::SYS_sync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_tee,
    libc::SYS_truncate,
    libc::SYS_umask,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
    libc::SYS_utime,
    libc::SYS_utimensat,
    libc::SYS_utimes,
    libc::SYS_vmsplice,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_chroot,
];

/// Starting, waiting for and scheduling programs. `clone` is in [`conditional`].
const PROCESSES: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fork,
    libc::SYS_futex,
    FUTEX_WAITV,
    FUTEX_WAKE,
    FUTEX_WAIT,
    FUTEX_REQUEUE,
    libc::SYS_get_robust_list,
    libc::SYS_getcpu,
    libc::SYS_getpgid,
    libc::SYS_getpgrp,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getpriority,
    libc::SYS_getrlimit,
    libc::SYS_getrusage,
    libc::SYS_getsid,
    libc::SYS_gettid,
    libc::SYS_ioprio_get,
    libc::SYS_ioprio_set,
    libc::SYS_pidfd_open,
    libc::SYS_prlimit64,
    libc::SYS_rseq,
    libc::SYS_sched_get_priority_max,
    libc::SYS_sched_get_priority_min,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getattr,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_sched_rr_get_interval,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_setpgid,
    libc::SYS_setpriority,
    libc::SYS_setrlimit,
    libc::SYS_setsid,
    libc::SYS_vfork,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_membarrier,
    libc::SYS_getrandom,
];

const MEMORY: &[i64] = &[
    libc::SYS_brk,
    CACHESTAT,
    libc::SYS_get_mempolicy,
    libc::SYS_madvise,
    MAP_SHADOW_STACK,
    libc::SYS_mbind,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mlockall,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    MSEAL,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munlockall,
    libc::SYS_munmap,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_free,
    libc::SYS_pkey_mprotect,
    libc::SYS_process_madvise,
    libc::SYS_process_mrelease,
    libc::SYS_remap_file_pages,
    libc::SYS_set_mempolicy,
];

const SIGNALS: &[i64] = &[
    libc::SYS_kill,
    libc::SYS_pause,
    libc::SYS_pidfd_send_signal,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigpending,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigsuspend,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_sigaltstack,
    libc::SYS_signalfd,
    libc::SYS_signalfd4,
    libc::SYS_tgkill,
    libc::SYS_tkill,
];

/// Reading clocks and setting timers; no call that sets a clock.
const TIME: &[i64] = &[
    libc::SYS_adjtimex,
    libc::SYS_alarm,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getitimer,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_setitimer,
    libc::SYS_time,
    libc::SYS_timer_create,
    libc::SYS_timer_delete,
    libc::SYS_timer_getoverrun,
    libc::SYS_timer_gettime,
    libc::SYS_timer_settime,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
];

const DESCRIPTORS: &[i64] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_eventfd2,
    libc::SYS_fcntl,
    libc::SYS_pipe,
    libc::SYS_pipe2,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_select,
];

/// Families are in [`conditional`]; these work on the sockets that it let through.
const SOCKETS: &[i64] = &[
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// In the sandbox's own IPC namespace.
const IPC: &[i64] = &[
    libc::SYS_mq_getsetattr,
    libc::SYS_mq_notify,
    libc::SYS_mq_open,
    libc::SYS_mq_timedreceive,
    libc::SYS_mq_timedsend,
    libc::SYS_mq_unlink,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmdt,
    libc::SYS_shmget,
];

/// Harmless without capabilities: they can only say who one is, or fail.
const IDENTITY: &[i64] = &[
    libc::SYS_arch_prctl,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getuid,
    libc::SYS_prctl,
    libc::SYS_setfsgid,
    libc::SYS_setfsuid,
    libc::SYS_setgid,
    libc::SYS_setgroups,
    libc::SYS_setregid,
    libc::SYS_setresgid,
    libc::SYS_setresuid,
    libc::SYS_setreuid,
    libc::SYS_setuid,
];

/// A program may put more walls around itself.
const SELF_CONFINEMENT: &[i64] = &[
    libc::SYS_landlock_add_rule,
    libc::SYS_landlock_create_ruleset,
    libc::SYS_landlock_restrict_self,
    libc::SYS_seccomp,
];

/// Looking into other processes of the same sandbox: debuggers need it, nothing else does.
const TRACING: &[(i64, &str)] = &[
    (libc::SYS_ptrace, "ptrace"),
    (libc::SYS_process_vm_readv, "process_vm_readv"),
    (libc::SYS_process_vm_writev, "process_vm_writev"),
];

/// Known, and refused with a plain answer. Everything else that is unknown answers ENOSYS.
const REFUSED: &[(i64, &str)] = &[
    // Mounts and roots.
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount2"),
    (libc::SYS_pivot_root, "pivot_root"),
    (libc::SYS_open_tree, "open_tree"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_fsopen, "fsopen"),
    (libc::SYS_fsconfig, "fsconfig"),
    (libc::SYS_fsmount, "fsmount"),
    (libc::SYS_fspick, "fspick"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_setns, "setns"),
    (libc::SYS_open_by_handle_at, "open_by_handle_at"),
    (libc::SYS_name_to_handle_at, "name_to_handle_at"),
    (libc::SYS_swapon, "swapon"),
    (libc::SYS_swapoff, "swapoff"),
    (libc::SYS_quotactl, "quotactl"),
    (libc::SYS_fanotify_init, "fanotify_init"),
    (libc::SYS_fanotify_mark, "fanotify_mark"),
    // The kernel itself.
    (libc::SYS_bpf, "bpf"),
    (libc::SYS_perf_event_open, "perf_event_open"),
    (libc::SYS_userfaultfd, "userfaultfd"),
    (libc::SYS_init_module, "init_module"),
    (libc::SYS_finit_module, "finit_module"),
    (libc::SYS_delete_module, "delete_module"),
    (libc::SYS_kexec_load, "kexec_load"),
    (libc::SYS_kexec_file_load, "kexec_file_load"),
    (libc::SYS_reboot, "reboot"),
    (libc::SYS_syslog, "syslog"),
    (libc::SYS_acct, "acct"),
    (libc::SYS_iopl, "iopl"),
    (libc::SYS_ioperm, "ioperm"),
    (libc::SYS_vhangup, "vhangup"),
    (libc::SYS_lookup_dcookie, "lookup_dcookie"),
    (libc::SYS_nfsservctl, "nfsservctl"),
    // Keys outlive namespaces.
    (libc::SYS_add_key, "add_key"),
    (libc::SYS_request_key, "request_key"),
    (libc::SYS_keyctl, "keyctl"),
    // The host's name and clocks.
    (libc::SYS_sethostname, "sethostname"),
    (libc::SYS_setdomainname, "setdomainname"),
    (libc::SYS_settimeofday, "settimeofday"),
    (libc::SYS_clock_settime, "clock_settime"),
    (libc::SYS_clock_adjtime, "clock_adjtime"),
    // Descriptors and memory of other processes.
    (libc::SYS_pidfd_getfd, "pidfd_getfd"),
    (libc::SYS_kcmp, "kcmp"),
    (libc::SYS_migrate_pages, "migrate_pages"),
    (libc::SYS_move_pages, "move_pages"),
];

// Newer than the `libc` crate's table for this target.
const FCHMODAT2: i64 = 452;
const CACHESTAT: i64 = 451;
const MAP_SHADOW_STACK: i64 = 453;
const FUTEX_WAITV: i64 = 449;
const FUTEX_WAKE: i64 = 454;
const FUTEX_WAIT: i64 = 455;
const FUTEX_REQUEUE: i64 = 456;
const MSEAL: i64 = 462;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_dangerous_is_allowed_and_no_call_is_named_twice() {
        let allowed =
            [FILES, PROCESSES, MEMORY, SIGNALS, TIME, DESCRIPTORS, SOCKETS, IPC, IDENTITY, SELF_CONFINEMENT]
                .concat();
        let mut seen = std::collections::BTreeSet::new();
        let refused = REFUSED.iter().chain(TRACING).map(|(number, _)| number);
        for number in allowed.iter().chain(refused) {
            assert!(seen.insert(*number), "call {number} stands in two groups");
        }
        let io_uring = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
        assert!(io_uring.iter().all(|number| !seen.contains(number)), "io_uring answers ENOSYS");
    }

    #[test]
    fn tracing_is_for_the_debug_profile_alone() {
        let rule = |profile| table(profile, SetId::Allowed).remove(&nr(libc::SYS_ptrace));
        assert_eq!(rule(Syscalls::Default), Some(Rule::Always(Action::Ask)));
        assert_eq!(rule(Syscalls::Debug), Some(Rule::Always(Action::Allow)));
    }
}
