//! System calls, without a C library.
//!
//! Every call that `init` makes is a function here, and nothing else is. Together with what it starts
//! it needs, from the sandbox's filter:
//!
//! - at its start: `getpid`, `fcntl` (F_GETFD), `prctl` (PR_SET_DUMPABLE, PR_SET_NAME), `rt_sigaction`,
//!   `rt_sigprocmask`, `umask`, `signalfd4`;
//! - in its loop: `poll`, `read`, `recvmsg`, `sendmsg`, `close`, `wait4`, `kill`, `getrusage`,
//!   `exit_group`;
//! - for an exec: `fstat`, `fcntl` (F_GET_SEALS), `mmap` (PROT_READ of a memory file, anonymous
//!   read-write), `munmap`, `openat`, `ioctl` (TIOCSPTLCK, TIOCSWINSZ, TIOCGPTPEER),
//!   `clone` (CLONE_VM | CLONE_VFORK | SIGCHLD);
//! - for a call: `socket` (AF_INET and AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC), `connect`;
//! - in the started process: `setsid`, `ioctl` (TIOCSCTTY), `dup3`, `close_range`, `chdir`,
//!   `rt_sigprocmask`, `execve`, `openat` (O_PATH), `close`, `exit_group`.

use core::arch::asm;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::ptr;

/// The kernel's number for a failure; never zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) u32);

pub(crate) const EPERM: Errno = Errno(1);
pub(crate) const ENOENT: Errno = Errno(2);
pub(crate) const EINTR: Errno = Errno(4);
pub(crate) const ENOEXEC: Errno = Errno(8);
pub(crate) const ECHILD: Errno = Errno(10);
pub(crate) const EAGAIN: Errno = Errno(11);
pub(crate) const EACCES: Errno = Errno(13);
pub(crate) const EEXIST: Errno = Errno(17);
pub(crate) const ENOTDIR: Errno = Errno(20);
pub(crate) const EINVAL: Errno = Errno(22);
pub(crate) const ENOTTY: Errno = Errno(25);
pub(crate) const ENAMETOOLONG: Errno = Errno(36);
pub(crate) const EISCONN: Errno = Errno(106);
pub(crate) const ECONNREFUSED: Errno = Errno(111);
pub(crate) const EALREADY: Errno = Errno(114);
pub(crate) const EINPROGRESS: Errno = Errno(115);

pub(crate) const SIGKILL: u8 = 9;
pub(crate) const POLLIN: i16 = 1;

const SIGCHLD: u64 = 17;
/// The size of the kernel's signal set, in bytes.
const SIGSET_BYTES: usize = 8;

/// An open descriptor, closed when dropped.
pub(crate) struct Fd(i32);

/// One entry of a wait on several descriptors.
#[repr(C)]
pub(crate) struct Pollfd {
    pub(crate) fd: i32,
    pub(crate) events: i16,
    pub(crate) found: i16,
}

/// A reaped child.
pub(crate) struct Reaped {
    pub(crate) pid: u32,
    /// As the kernel packs it.
    pub(crate) status: u32,
}

/// Whether a wait returns at once when nothing has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    Block,
    Look,
}

/// Memory of its own pages, given back when dropped.
pub(crate) struct Mapping {
    at: *mut u8,
    length: usize,
}

/// A region for scatter and gather, as the kernel reads it.
#[repr(C)]
pub(crate) struct Region {
    pub(crate) base: *mut u8,
    pub(crate) length: usize,
}

/// A message with its descriptors, as the kernel reads it (64-bit layout).
#[repr(C)]
pub(crate) struct Message {
    pub(crate) name: *mut u8,
    pub(crate) name_length: u32,
    pub(crate) regions: *mut Region,
    pub(crate) region_count: usize,
    pub(crate) control: *mut u8,
    pub(crate) control_length: usize,
    pub(crate) flags: i32,
}

// === impl Fd ===

impl Fd {
    /// Takes over a descriptor number that this process owns and nothing else will close.
    pub(crate) const fn own(number: i32) -> Self {
        Self(number)
    }

    pub(crate) const fn number(&self) -> i32 {
        self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: `close` takes no memory; the number is ours alone (`Fd::own`).
        let _ = unsafe { raw(3, [word(self.0), 0, 0, 0, 0, 0]) };
    }
}

// === impl Pollfd ===

impl Pollfd {
    pub(crate) const fn reading(fd: &Fd) -> Self {
        Self { fd: fd.0, events: POLLIN, found: 0 }
    }
}

// === impl Mapping ===

impl Mapping {
    /// Fresh zeroed memory.
    pub(crate) fn anonymous(length: usize) -> Result<Self, Errno> {
        // PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS.
        Self::map(length, 3, 0x22, -1)
    }

    /// The first bytes of a file, for reading. The file must be sealed against shrinking.
    pub(crate) fn of_file(file: &Fd, length: usize) -> Result<Self, Errno> {
        // PROT_READ, MAP_PRIVATE.
        Self::map(length, 1, 2, file.0)
    }

    fn map(length: usize, protection: u64, flags: u64, fd: i32) -> Result<Self, Errno> {
        // SAFETY: without MAP_FIXED the kernel picks free addresses, so no memory in use is touched.
        let at = unsafe { raw(9, [0, length as u64, protection, flags, word(fd), 0]) }?;
        Ok(Self { at: ptr::with_exposed_provenance_mut(at as usize), length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is `length` bytes, readable and never written while borrowed: it is either
        // private to us or of a file sealed against writes and shrinking (checked by `channel`).
        unsafe { core::slice::from_raw_parts(self.at, self.length) }
    }

    /// The memory as an array of addresses. Only for memory from [`Mapping::anonymous`].
    pub(crate) fn pointers(&mut self) -> &mut [*const u8] {
        let count = self.length / size_of::<*const u8>();
        // SAFETY: pages are aligned for any type, zero is a null address, and `self` is borrowed for writing.
        unsafe { core::slice::from_raw_parts_mut(self.at.cast(), count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the pages were mapped by `Mapping::map` and no borrow outlives `self`.
        let _ = unsafe { raw(11, [self.at.expose_provenance() as u64, self.length as u64, 0, 0, 0, 0]) };
    }
}

/// One system call.
///
/// # Safety
/// Every word that the call takes as an address points at memory that the call may use as it does.
pub(crate) unsafe fn raw(number: u64, words: [u64; 6]) -> Result<u64, Errno> {
    let [a, b, c, d, e, f] = words;
    let result: i64;
    // SAFETY: the caller vouches for the addresses; the kernel clobbers rcx and r11 and keeps the rest.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) {
        return Err(Errno(result.unsigned_abs() as u32));
    }
    Ok(result as u64)
}

/// A call that takes no address of ours.
pub(crate) fn plain(number: u64, words: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: used below only for calls whose words are numbers, none of them an address.
    unsafe { raw(number, words) }
}

/// A signed number, as the kernel reads it from a register.
pub(crate) const fn word(number: i32) -> u64 {
    number as i64 as u64
}

pub(crate) fn address<T>(value: *const T) -> u64 {
    value.expose_provenance() as u64
}

pub(crate) fn exit(code: u8) -> ! {
    loop {
        let _ = plain(231, [u64::from(code), 0, 0, 0, 0, 0]);
    }
}

pub(crate) fn own_pid() -> u64 {
    plain(39, [0; 6]).unwrap_or(0)
}

pub(crate) fn is_open(number: i32) -> bool {
    // F_GETFD.
    plain(72, [word(number), 1, 0, 0, 0, 0]).is_ok()
}

pub(crate) fn seals(file: &Fd) -> Result<u64, Errno> {
    // F_GET_SEALS.
    plain(72, [word(file.0), 1034, 0, 0, 0, 0])
}

/// The size of a regular file, in bytes.
pub(crate) fn size(file: &Fd) -> Result<u64, Errno> {
    /// Where the size stands in the kernel's `struct stat`, counted in 64-bit words.
    const SIZE: usize = 6;
    let mut stat = [0_u64; 18];
    // SAFETY: `stat` is the 144 bytes that the kernel writes.
    unsafe { raw(5, [word(file.0), address(&raw mut stat), 0, 0, 0, 0]) }?;
    Ok(stat[SIZE])
}

/// Keeps other processes of the same user from tracing this one or opening its descriptors.
pub(crate) fn forbid_tracing() -> Result<(), Errno> {
    // PR_SET_DUMPABLE.
    plain(157, [4, 0, 0, 0, 0, 0]).map(drop)
}

/// Whether the process that started this one is out of reach of our signals.
pub(crate) fn parent_is_out_of_reach() -> bool {
    let parent = plain(110, [0; 6]).unwrap_or(0);
    // A parent that is not of this PID namespace has the number 0.
    parent > 0 && plain(62, [parent, 0, 0, 0, 0, 0]).is_err_and(|errno| errno == EPERM)
}

/// Becomes the parent of what the commands leave behind.
pub(crate) fn adopt_orphans() -> Result<(), Errno> {
    // PR_SET_CHILD_SUBREAPER.
    plain(157, [36, 1, 0, 0, 0, 0]).map(drop)
}

/// Asks to be killed with the process that started this one.
pub(crate) fn end_with_parent() -> Result<(), Errno> {
    // PR_SET_PDEATHSIG.
    plain(157, [1, u64::from(SIGKILL), 0, 0, 0, 0]).map(drop)
}

/// Puts this process and what it starts behind one more Landlock wall: it can not signal, trace or connect
/// by an abstract name to anybody outside of it, not even to the process that started it.
pub(crate) fn stand_apart() -> Result<(), Errno> {
    // `struct landlock_ruleset_attr`: no rights on files and ports; both scopes.
    let attributes = [0_u64, 0, 3];
    // SAFETY: the kernel reads the 24 bytes.
    let ruleset = unsafe { raw(444, [address(&raw const attributes), 24, 0, 0, 0, 0]) }.map(new_fd)?;
    plain(446, [word(ruleset.0), 0, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn set_name(name: &CStr) {
    // SAFETY: PR_SET_NAME reads up to the terminating zero, which a `CStr` has. A failure is harmless.
    let _ = unsafe { raw(157, [15, address(name.as_ptr()), 0, 0, 0, 0]) };
}

/// Undoes what was set to be ignored before this program began: it would pass through `execve`.
pub(crate) fn default_dispositions() {
    // SIG_DFL, no flags, no restorer, an empty mask.
    let action = [0_u64; 4];
    for signal in 1..=64 {
        // SAFETY: `action` is the kernel's `struct sigaction`, only read. SIGKILL and SIGSTOP are refused.
        let _ = unsafe { raw(13, [signal, address(&raw const action), 0, SIGSET_BYTES as u64, 0, 0]) };
    }
}

/// Sets the blocked signals; bit `n - 1` stands for signal `n`.
pub(crate) fn block_signals(mask: u64) -> Result<(), Errno> {
    // SAFETY: SIG_SETMASK reads eight bytes, which `mask` has.
    unsafe { raw(14, [2, address(&raw const mask), 0, SIGSET_BYTES as u64, 0, 0]) }.map(drop)
}

pub(crate) fn set_umask(mask: u64) {
    let _ = plain(95, [mask, 0, 0, 0, 0, 0]);
}

/// A descriptor that is readable when a child has ended.
pub(crate) fn child_signals() -> Result<Fd, Errno> {
    let mask = 1_u64 << (SIGCHLD - 1);
    // SAFETY: `mask` is the eight bytes that the kernel reads. The flags are SFD_CLOEXEC | SFD_NONBLOCK.
    unsafe { raw(289, [word(-1), address(&raw const mask), SIGSET_BYTES as u64, 0o2_004_000, 0, 0]) }
        .map(new_fd)
}

/// Forgets the pending child signal.
pub(crate) fn drain(signals: &Fd) {
    let mut record = MaybeUninit::<[u8; 128]>::uninit();
    // SAFETY: `record` is the 128 bytes that the kernel may write, and is not read.
    let _ = unsafe { raw(0, [word(signals.0), address(record.as_mut_ptr()), 128, 0, 0, 0]) };
}

/// Waits until one of the descriptors has something.
pub(crate) fn poll(entries: &mut [Pollfd]) -> Result<(), Errno> {
    poll_for(entries, -1)
}

/// As [`poll`], for so many milliseconds at most, or for ever where that is negative.
pub(crate) fn poll_for(entries: &mut [Pollfd], limit_ms: i32) -> Result<(), Errno> {
    // SAFETY: `entries` is an array of the kernel's `struct pollfd` of the given count, writable.
    unsafe { raw(7, [address(entries.as_mut_ptr()), entries.len() as u64, word(limit_ms), 0, 0, 0]) }.map(drop)
}

/// Receives one packet; its descriptors close on exec.
///
/// # Safety
/// The message's regions and control space are writable for their lengths.
pub(crate) unsafe fn receive(socket: &Fd, message: &mut Message) -> Result<usize, Errno> {
    // SAFETY: the caller vouches for what the message points at. The flag is MSG_CMSG_CLOEXEC.
    unsafe { raw(47, [word(socket.0), address(&raw mut *message), 0x4000_0000, 0, 0, 0]) }.map(|n| n as usize)
}

/// Sends one packet.
///
/// # Safety
/// The message's regions and control space are readable for their lengths.
pub(crate) unsafe fn send(socket: &Fd, message: &Message) -> Result<(), Errno> {
    // SAFETY: the caller vouches for what the message points at. The flag is MSG_NOSIGNAL.
    unsafe { raw(46, [word(socket.0), address(&raw const *message), 0x4000, 0, 0, 0]) }.map(drop)
}

/// Reaps one child of any kind: `None` when there are children and none has ended.
pub(crate) fn reap(pid: Option<u32>, wait: Wait) -> Result<Option<Reaped>, Errno> {
    const WNOHANG: u64 = 1;
    /// Children of every sort, whatever signal they were made to send.
    const WALL: u64 = 0x4000_0000;
    let who = pid.map_or(word(-1), u64::from);
    let options = if wait == Wait::Look { WALL | WNOHANG } else { WALL };
    let mut status = 0_u32;
    // SAFETY: `status` is the four bytes that the kernel writes; no usage is asked for.
    let pid = unsafe { raw(61, [who, address(&raw mut status), options, 0, 0, 0]) }?;
    Ok((pid != 0).then_some(Reaped { pid: pid as u32, status }))
}

/// User and system time of every child that was waited for, and of theirs.
pub(crate) fn children_cpu_ms() -> u32 {
    /// `struct rusage`: two times of seconds and microseconds, and fourteen counters.
    const WORDS: usize = 18;
    const CHILDREN: i64 = -1;
    let mut usage = [0_u64; WORDS];
    let words = [CHILDREN as u64, address(usage.as_mut_ptr()), 0, 0, 0, 0];
    // SAFETY: the kernel writes one `rusage`, which `usage` has room for.
    if unsafe { raw(98, words) }.is_err() {
        return 0;
    }
    let [user_s, user_us, system_s, system_us, ..] = usage;
    let total = (user_s + system_s) * 1000 + (user_us + system_us) / 1000;
    u32::try_from(total).unwrap_or(u32::MAX)
}

/// Sends a signal to every process that this one may send any to, but itself.
///
/// Only ever called by PID 1 of a PID namespace, or where it was seen that signals do not reach out of the
/// sandbox (checked in `main`): anywhere else it would reach far.
pub(crate) fn kill_all() -> Result<(), Errno> {
    plain(62, [word(-1), u64::from(SIGKILL), 0, 0, 0, 0]).map(drop)
}

/// A version of IP.
#[derive(Clone, Copy)]
pub(crate) enum Family {
    Version4,
    Version6,
}

/// A TCP socket that never waits.
pub(crate) fn stream_socket(family: Family) -> Result<Fd, Errno> {
    let domain = match family {
        Family::Version4 => 2,
        Family::Version6 => 10,
    };
    // SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC.
    plain(41, [domain, 0o2_004_001, 0, 0, 0, 0]).map(new_fd)
}

/// Dials a port of this host itself.
pub(crate) fn connect_loopback(socket: &Fd, family: Family, port: u16) -> Result<(), Errno> {
    // `struct sockaddr_in6`, of which `sockaddr_in` is the same up to the port, and then has the address.
    let mut peer = [0_u8; 28];
    let (number, length): (u16, u64) = match family {
        Family::Version4 => {
            peer[4] = 127;
            peer[7] = 1;
            (2, 16)
        }
        Family::Version6 => {
            peer[23] = 1;
            (10, 28)
        }
    };
    let ([low, high], [first, second]) = (number.to_ne_bytes(), port.to_be_bytes());
    (peer[0], peer[1], peer[2], peer[3]) = (low, high, first, second);
    // SAFETY: `peer` is at least the `length` bytes that the kernel reads.
    unsafe { raw(42, [word(socket.0), address(&raw const peer), length, 0, 0, 0]) }.map(drop)
}

/// Sends a signal to a process group, named by its leader.
pub(crate) fn kill_group(leader: u32, signal: u8) -> Result<(), Errno> {
    plain(62, [u64::from(leader).wrapping_neg(), u64::from(signal), 0, 0, 0, 0]).map(drop)
}

/// How to open a path. All close on exec.
#[derive(Clone, Copy)]
pub(crate) enum Open {
    /// For reading and writing, never as the controlling terminal.
    Device,
    /// Only to learn that it is there.
    Look,
}

pub(crate) fn open(path: *const u8, how: Open) -> Result<Fd, Errno> {
    let flags = match how {
        // O_RDWR | O_NOCTTY | O_CLOEXEC.
        Open::Device => 0o2_000_402,
        // O_PATH | O_CLOEXEC.
        Open::Look => 0o12_000_000,
    };
    // SAFETY: every caller passes a string that ends in a zero (a literal, or one that `launch` checked).
    // The directory is AT_FDCWD.
    unsafe { raw(257, [word(-100), address(path), flags, 0, 0, 0]) }.map(new_fd)
}

/// Lets the other side of a new terminal be opened.
pub(crate) fn unlock_terminal(master: &Fd) -> Result<(), Errno> {
    let locked = 0_i32;
    // SAFETY: TIOCSPTLCK reads four bytes, which `locked` has.
    unsafe { raw(16, [word(master.0), 0x4004_5431, address(&raw const locked), 0, 0, 0]) }.map(drop)
}

pub(crate) fn resize_terminal(master: &Fd, rows: u16, columns: u16) -> Result<(), Errno> {
    let size = [rows, columns, 0, 0];
    // SAFETY: TIOCSWINSZ reads four 16-bit numbers, which `size` has.
    unsafe { raw(16, [word(master.0), 0x5414, address(&raw const size), 0, 0, 0]) }.map(drop)
}

/// The guest's side of a terminal, opened without a path so that no guest can put another in its place.
pub(crate) fn terminal_peer(master: &Fd) -> Result<Fd, Errno> {
    // TIOCGPTPEER with O_RDWR | O_NOCTTY | O_CLOEXEC.
    match plain(16, [word(master.0), 0x5441, 0o2_000_402, 0, 0, 0]) {
        Err(ENOTTY) => named_peer(master),
        peer => peer.map(new_fd),
    }
}

/// The same by its name, for a kernel in user space that does not know the call.
fn named_peer(master: &Fd) -> Result<Fd, Errno> {
    let mut number = 0_u32;
    // SAFETY: TIOCGPTN writes four bytes, which `number` has.
    unsafe { raw(16, [word(master.0), 0x8004_5430, address(&raw mut number), 0, 0, 0]) }?;
    let mut path = *b"/dev/pts/0000\0";
    for place in path.iter_mut().rev().skip(1).take(4) {
        *place += (number % 10) as u8;
        number /= 10;
    }
    // Its name has no zeros in front.
    let start = path.iter().skip(9).take(3).take_while(|digit| **digit == b'0').count();
    path.copy_within(9 + start.., 9);
    open(path.as_ptr(), Open::Device)
}

/// Makes a terminal the controlling one of this session.
pub(crate) fn take_terminal(number: i32) -> Result<(), Errno> {
    // TIOCSCTTY, without stealing.
    plain(16, [word(number), 0x540e, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn new_session() -> Result<(), Errno> {
    plain(112, [0; 6]).map(drop)
}

/// Puts a copy of `from` at the number `to`, open across exec.
pub(crate) fn duplicate(from: i32, to: i32) -> Result<(), Errno> {
    plain(292, [word(from), word(to), 0, 0, 0, 0]).map(drop)
}

/// Closes every descriptor from `first` on.
pub(crate) fn close_from(first: u32) -> Result<(), Errno> {
    /// No descriptor has a larger number. gVisor reads the limit as a signed one.
    const LAST: u64 = i32::MAX as u64;
    plain(436, [u64::from(first), LAST, 0, 0, 0, 0]).map(drop)
}

/// # Safety
/// `path` ends in a zero.
pub(crate) unsafe fn change_directory(path: *const u8) -> Result<(), Errno> {
    // SAFETY: the caller vouches for the string.
    unsafe { raw(80, [address(path), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Becomes another program; returns only the reason why not.
///
/// # Safety
/// `path` ends in a zero; `argv` and `env` are arrays of such strings, each ended by a null.
pub(crate) unsafe fn execute(path: *const u8, argv: *const *const u8, env: *const *const u8) -> Errno {
    // SAFETY: the caller vouches for the strings and arrays.
    let result = unsafe { raw(59, [address(path), address(argv), address(env), 0, 0, 0]) };
    result.err().unwrap_or(EINVAL)
}

/// Starts a process that borrows this one's memory until it executes or exits; this one stands still
/// meanwhile. It runs `entry(argument)` on its own stack, so nothing of the caller's frame is disturbed.
///
/// # Safety
/// `stack_top` is the 16-byte aligned end of a stack that nothing else uses until this returns, and
/// `argument` stays valid for as long.
pub(crate) unsafe fn spawn<T>(
    stack_top: *mut u8,
    entry: unsafe extern "C" fn(*const T) -> !,
    argument: *const T,
) -> Result<u32, Errno> {
    /// CLONE_VM | CLONE_VFORK.
    const BORROWED: u64 = 0x4100;
    let result: i64;
    // SAFETY: the child gets a copy of the registers and its own stack; it never returns from `entry`.
    // The parent resumes with its registers intact, as after any system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r9",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") 56_i64 => result,
            in("rdi") BORROWED | SIGCHLD,
            in("rsi") stack_top,
            in("rdx") 0,
            in("r10") 0,
            in("r8") 0,
            in("r9") argument,
            in("r12") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    if result < 0 {
        return Err(Errno(result.unsigned_abs() as u32));
    }
    Ok(result as u32)
}

/// The kernel's answer to a call that makes a descriptor.
pub(crate) fn new_fd(number: u64) -> Fd {
    Fd::own(number as i32)
}
