//! The system calls of QEMU: what emulating a machine on descriptors that it was given takes.
//!
//! It makes no socket, starts no program, and sees no other process. Opening a file for writing is put to us: the
//! one that it may have is the guest's memory, and which descriptor it gets for it is for us to say.

use fumehood_sys::bpf::{Action, Filter, Rule, Test};
use std::collections::BTreeMap;

const ENOSYS: Action = Action::Errno(38);
const EPERM: Action = Action::Errno(1);

/// The argument of `openat` that says how the file is opened.
const OPEN_FLAGS: u8 = 2;
/// The bits of it that ask for writing.
const WRITING: [u32; 2] = [libc_flags::WRITE_ONLY, libc_flags::READ_WRITE];

/// Flags of this target.
mod libc_flags {
    pub(super) const WRITE_ONLY: u32 = 1;
    pub(super) const READ_WRITE: u32 = 2;
    pub(super) const CREATE: u32 = 0o100;
}

/// `CLONE_THREAD`
const THREAD: u32 = 0x0001_0000;

/// Compiled once for each machine.
pub(crate) fn filter() -> Filter {
    let mut table: BTreeMap<u32, Rule> = BTreeMap::new();
    for number in ALLOWED {
        table.insert(*number, Rule::Always(Action::Allow));
    }
    for number in REFUSED {
        table.insert(*number, Rule::Always(EPERM));
    }
    let low = |argument, mask, value| Test::Low { argument, mask, value };
    let ask = |tests| (tests, Action::Ask);
    let mut cases: Vec<_> = WRITING.map(|bit| ask(vec![low(OPEN_FLAGS, bit, bit)])).to_vec();
    cases.push(ask(vec![low(OPEN_FLAGS, libc_flags::CREATE, libc_flags::CREATE)]));
    table.insert(numbers::OPENAT, Rule::Cases { cases, otherwise: Action::Allow });
    let threads = vec![(vec![low(0, THREAD, THREAD)], Action::Allow)];
    table.insert(numbers::CLONE, Rule::Cases { cases: threads, otherwise: EPERM });
    Filter::compile(&table, ENOSYS)
}

/// Of this target, `arch/x86/entry/syscalls/syscall_64.tbl`.
mod numbers {
    pub(super) const CLONE: u32 = 56;
    pub(super) const OPENAT: u32 = 257;
}

/// Each was seen to be used by QEMU 7.2 with this machine, or is what the C library uses in its place.
#[rustfmt::skip]
const ALLOWED: &[u32] = &[
    0, 1, 3, 5, 7, 8, // read write close fstat poll lseek
    9, 10, 11, 12, 25, 28, // mmap mprotect munmap brk mremap madvise
    13, 14, 15, 131, // rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack
    16, 17, 18, 19, 20, 21, // ioctl pread64 pwrite64 readv writev access
    24, 35, 39, 186, // sched_yield nanosleep getpid gettid
    45, 46, 47, 44, 48, // recvfrom sendmsg recvmsg sendto shutdown
    51, 52, 54, 55, // getsockname getpeername setsockopt getsockopt
    60, 231, // exit exit_group
    63, 72, 77, 79, 80, 81, 89, // uname fcntl ftruncate getcwd chdir fchdir readlink
    96, 98, 99, 102, 104, 107, 108, // gettimeofday getrusage sysinfo getuid getgid geteuid getegid
    137, 138, // statfs fstatfs
    157, 158, // prctl arch_prctl
    202, 218, 273, 334, // futex set_tid_address set_robust_list rseq
    203, 204, // sched_setaffinity sched_getaffinity
    217, 221, 230, 228, 229, // getdents64 fadvise64 clock_nanosleep clock_gettime clock_getres
    222, 223, 224, 225, 226, // timer_create timer_settime timer_gettime timer_getoverrun timer_delete
    233, 232, 281, 291, // epoll_ctl epoll_wait epoll_pwait epoll_create1
    262, 269, 439, // newfstatat faccessat faccessat2
    270, 271, // pselect6 ppoll
    283, 286, 287, // timerfd_create timerfd_settime timerfd_gettime
    289, 290, 293, 292, // signalfd4 eventfd2 pipe2 dup3
    295, 296, // preadv pwritev
    302, 318, // prlimit64 getrandom
    322, // execveat, by which it is started; there is nothing else to execute
    4, 6, // stat lstat
    32, 33, // dup dup2
    285, // fallocate, which punches holes into the guest's memory
];

/// Known, and answered with a plain refusal: the C library does without.
#[rustfmt::skip]
const REFUSED: &[u32] = &[
    41, 42, 49, 50, 53, // socket connect bind listen socketpair
    57, 58, 59, 62, 101, // fork vfork execve kill ptrace
    165, 166, 272, 308, // mount umount2 unshare setns
    310, 311, 321, // process_vm_readv process_vm_writev bpf
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_allowed_and_refused() {
        assert!(ALLOWED.iter().all(|number| !REFUSED.contains(number)));
        assert!(!ALLOWED.contains(&numbers::OPENAT) && !ALLOWED.contains(&numbers::CLONE));
    }

    #[test]
    fn the_filter_fits_into_the_kernel() {
        assert!(filter().len() < 4096);
    }
}
