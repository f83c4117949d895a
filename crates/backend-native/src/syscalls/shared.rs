//! What the filter refuses beyond its list where a sandbox shares something of the host's with others.

use super::FCHMODAT2;
use fumehood_sys::bpf::{Action, Rule, Test};

/// What of the host a sandbox shares, so that calls about it would reach others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// It has namespaces of its own for everything.
    Nothing,
    /// The host's network and ipc namespaces: no internet socket, no System V object, no message queue.
    Network,
    /// All of its namespaces. `user`: its kernel uid is also the caller's, whose files and processes are out of
    /// Landlock's reach in what Landlock does not judge.
    Everything { user: bool },
}

/// The calls that would reach others through what is shared.
pub(super) fn without_neighbours(shared: Shared) -> Vec<(i64, Rule)> {
    let low = |argument, value| Test::Low { argument, mask: u32::MAX, value };
    let only = |number, cases: Vec<Vec<Test>>| {
        let cases = cases.into_iter().map(|tests| (tests, Action::Allow)).collect();
        (number, Rule::Cases { cases, otherwise: Action::Ask })
    };
    match shared {
        Shared::Nothing => Vec::new(),
        Shared::Network => vec![only(libc::SYS_socket, vec![vec![low(0, UNIX)]])],
        Shared::Everything { user } => {
            // A pair of these two kinds is connected for good: nothing can be sent elsewhere through it.
            let kind = |kind| Test::Low { argument: 1, mask: 0xF, value: kind };
            let pairs = [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(i32::cast_unsigned);
            let pairs = pairs.map(|pair| vec![low(0, UNIX), kind(pair)]).to_vec();
            let mut rules = vec![
                // Programs ask for name services by one; it is told as there being none, and is no event.
                (
                    libc::SYS_socket,
                    Rule::Cases {
                        cases: vec![(vec![low(0, UNIX)], Action::Errno(EAFNOSUPPORT))],
                        otherwise: Action::Ask,
                    },
                ),
                only(libc::SYS_socketpair, pairs),
                (libc::SYS_bind, Rule::Always(Action::Ask)),
                // Whoever may read a folder would hear what others do in it.
                (libc::SYS_inotify_add_watch, Rule::Always(Action::Ask)),
                only(libc::SYS_setpriority, vec![vec![low(0, 0), low(1, 0)]]),
                only(libc::SYS_ioprio_set, vec![vec![low(0, 1), low(1, 0)]]),
            ];
            rules.extend(OF_ONE_PROCESS.map(|number| only(number, vec![vec![low(0, 0)]])));
            // Who may write a file may give it attributes, wherever it lies.
            rules.extend(ATTRIBUTES.iter().map(|number| (*number, Rule::Always(Action::Errno(ENOTSUP)))));
            if user {
                rules.extend(without_metadata());
            }
            rules
        }
    }
}

const UNIX: u32 = libc::AF_UNIX.cast_unsigned();

/// Calls whose first argument is a process, which Landlock does not judge: only on the caller itself.
const OF_ONE_PROCESS: [i64; 5] = [
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

/// Calls on modes, owners and times, which Landlock does not judge, and which the owner of a file may make
/// wherever it lies.
fn without_metadata() -> impl Iterator<Item = (i64, Rule)> {
    let always = |action| move |number: &i64| (*number, Rule::Always(action));
    OWNERS.iter().map(always(Action::Errno(EPERM))).chain(METADATA.iter().map(always(Action::Ask)))
}

const EPERM: u16 = 1;
const ENOTSUP: u16 = 95;
const EAFNOSUPPORT: u16 = 97;

const OWNERS: &[i64] = &[libc::SYS_chown, libc::SYS_fchown, libc::SYS_lchown, libc::SYS_fchownat];

/// Programs take a file system without extended attributes for what it is.
const ATTRIBUTES: &[i64] = &[
    libc::SYS_getxattr,
    libc::SYS_lgetxattr,
    libc::SYS_fgetxattr,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_flistxattr,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// Put to the keeper where the uid is shared (`broker`).
const METADATA: &[i64] = &[
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_utimensat,
];
/// What is said of one that is about a file outside.
pub(crate) const ELSEWHERE: &str = "a mode or times of a file outside";
