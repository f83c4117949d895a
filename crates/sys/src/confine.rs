//! How a process of ours that reads what others wrote gives up what it does not need.

use crate::bpf::{Action, Filter, Rule, Test};
use crate::landlock::Ruleset;
use crate::raw::{Errno, syscall};
use std::collections::BTreeMap;
use std::io;

/// Asks to be killed with the process that forked us, unless it is gone already.
///
/// Preconditions: called after the last change of user, which would undo it. `parent` is the pid of the process
/// that forked.
///
/// # Errors
/// The parent is gone.
pub fn die_with(parent: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    unsafe {
        syscall(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0])
    }?;
    // SAFETY: no arguments.
    if unsafe { libc::getppid() } == parent { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
}

/// Becomes another user with no other groups. From root, every capability goes with it.
///
/// Preconditions: this process has one thread.
pub fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (user, group) = (uid as usize, gid as usize);
    // SAFETY: numbers only; with one thread, a raw call changes the whole process.
    unsafe { syscall(libc::SYS_setgroups, [0, 0, 0, 0, 0, 0]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresgid, [group, group, group, 0, 0, 0]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresuid, [user, user, user, 0, 0, 0]) }?;
    Ok(())
}

/// Gains no privilege by executing, and touches no file that `ruleset` does not name. For good.
///
/// Preconditions: this process has one thread.
pub fn restrict(ruleset: &Ruleset) -> io::Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NO_NEW_PRIVS as usize, 1, 0, 0, 0, 0]) }?;
    ruleset.enforce().map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))
}

/// What no process of ours that speaks to others ever calls. Landlock judges names of files; this is about the
/// rest of what a user may do: start programs, look into processes and signal them, change what belongs to the
/// user, and make namespaces.
const NEVER: [libc::c_long; 67] = [
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pidfd_send_signal,
    libc::SYS_kcmp,
    libc::SYS_kill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_setpriority,
    libc::SYS_prlimit64,
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchmodat2,
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_lchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_mount_setattr,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_personality,
    libc::SYS_modify_ldt,
    libc::SYS_quotactl,
    libc::SYS_shmget,
    libc::SYS_shmat,
    libc::SYS_semget,
    libc::SYS_msgget,
    libc::SYS_mq_open,
];

/// Never again starts a program, looks into another process, changes who may do what with a file, or makes a
/// socket of another family than those of IP and the one that tells of routes: a socket file of the user's (a
/// bus, a container engine) is a way to everything that the user may do. For good.
///
/// Preconditions: this process has one thread, and [`restrict`] was called.
pub fn forbid() -> io::Result<()> {
    let refused = |errno: i32| Action::Errno(errno as u16);
    let mut rules: BTreeMap<u32, Rule> =
        NEVER.into_iter().map(|call| (call as u32, Rule::Always(refused(libc::EPERM)))).collect();
    let whole = |argument, value: i32| Test::Low { argument, mask: u32::MAX, value: value as u32 };
    let cases = vec![
        (vec![whole(0, libc::AF_INET)], Action::Allow),
        (vec![whole(0, libc::AF_INET6)], Action::Allow),
        (vec![whole(0, libc::AF_NETLINK), whole(2, libc::NETLINK_ROUTE)], Action::Allow),
    ];
    rules.insert(libc::SYS_socket as u32, Rule::Cases { cases, otherwise: refused(libc::EAFNOSUPPORT) });
    // A pair of streams is connected to itself for good, and leads nowhere else; the library that waits for us makes one
    // for signals, whether or not any are waited for.
    let kind = Test::Low { argument: 1, mask: 0xf, value: libc::SOCK_STREAM as u32 };
    let pairs = vec![(vec![whole(0, libc::AF_UNIX), kind], Action::Allow)];
    rules.insert(
        libc::SYS_socketpair as u32,
        Rule::Cases { cases: pairs, otherwise: refused(libc::EAFNOSUPPORT) },
    );
    // To end itself is all that is left of signals.
    let own = Rule::Cases {
        cases: vec![(vec![whole(0, own_pid())], Action::Allow)],
        otherwise: refused(libc::EPERM),
    };
    rules.insert(libc::SYS_tkill as u32, own.clone());
    rules.insert(libc::SYS_tgkill as u32, own);
    let filter = Filter::compile(&rules, Action::Allow);
    filter.install().map_err(|Errno(errno)| io::Error::from_raw_os_error(errno))
}

/// Lets this process hold so many bytes of memory of its own, and no more: what would need more ends it. Its
/// memory is never written to a file.
pub fn limit_memory(bytes: u64) -> io::Result<()> {
    for (resource, value) in [(libc::RLIMIT_DATA, bytes), (libc::RLIMIT_CORE, 0)] {
        let limit = libc::rlimit { rlim_cur: value, rlim_max: value };
        // SAFETY: a live structure of the kernel's layout.
        if unsafe { libc::setrlimit(resource, &raw const limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Lets this process open as many files as it may.
pub fn raise_open_files() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure of the kernel's layout.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: as above. What is refused stays as it was.
        let _ = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// The pid of this process.
pub fn own_pid() -> i32 {
    // SAFETY: no arguments, and it can not fail.
    unsafe { libc::getpid() }
}
