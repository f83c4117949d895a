//! Processes of our own: signals, waiting, forking the reaper.

use crate::raw::{self, Errno, fd, syscall};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A set of signals as the kernel holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalMask(u64);

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Exited(i32),
    Signalled(i32),
}

/// Which side of a fork we are on.
#[derive(Debug)]
pub enum Forked {
    Parent { pid: i32 },
    Child,
}

/// Blocks every signal of this thread and says what was blocked before.
pub fn block_all_signals() -> SignalMask {
    change_mask(libc::SIG_SETMASK, SignalMask(u64::MAX))
}

/// Puts an earlier mask back.
pub fn restore_signals(mask: &SignalMask) {
    change_mask(libc::SIG_SETMASK, *mask);
}

/// Blocks `signals` and gives a descriptor that is readable when one of them is pending.
pub fn signal_descriptor(signals: &[i32]) -> io::Result<OwnedFd> {
    let mask = SignalMask(signals.iter().fold(0, |set, signal| set | 1 << (signal - 1)));
    change_mask(libc::SIG_BLOCK, mask);
    let pointer = std::ptr::from_ref(&mask.0) as usize;
    let flags = (libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) as usize;
    // SAFETY: the mask is live and of the kernel's size; -1 asks for a new descriptor.
    let found = unsafe { syscall(libc::SYS_signalfd4, [fd(-1), pointer, 8, flags, 0, 0]) }?;
    Ok(owned(found))
}

/// The next pending signal of a descriptor made by [`signal_descriptor`].
pub fn read_signal(from: BorrowedFd<'_>) -> Option<i32> {
    let mut entry = [0_u8; 128];
    let pointer = entry.as_mut_ptr() as usize;
    // SAFETY: `entry` has room for one `signalfd_siginfo`.
    let count =
        unsafe { syscall(libc::SYS_read, [fd(from.as_raw_fd()), pointer, entry.len(), 0, 0, 0]) }.ok()?;
    let number = entry.first_chunk::<4>().filter(|_| count == entry.len())?;
    i32::try_from(u32::from_ne_bytes(*number)).ok()
}

/// Ignores a signal in this process.
pub fn ignore_signal(signal: i32) {
    // SAFETY: `SIG_IGN` is not a function of ours; nothing runs when the signal comes.
    let _ = unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Forks this single-threaded process. The child has a copy of everything.
///
/// Preconditions: the caller has one thread.
pub fn fork() -> io::Result<Forked> {
    // SAFETY: with one thread, no lock can be held by a thread that the child does not have.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Ok(Forked::Parent { pid }),
    }
}

/// This process's number.
pub(crate) fn own_pid() -> usize {
    // SAFETY: no arguments; the call does not fail.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.unwrap_or_default()
}

/// In a child that helps this process: ends it with `parent`, also with one that was killed before this was
/// said. Kernel calls only, for a child that may share our memory.
pub(crate) fn end_with(parent: usize) {
    // SAFETY: numbers alone.
    let _ = unsafe {
        syscall(libc::SYS_prctl, [libc::PR_SET_PDEATHSIG as usize, libc::SIGKILL as usize, 0, 0, 0, 0])
    };
    // SAFETY: no arguments.
    if unsafe { syscall(libc::SYS_getppid, [0; 6]) } != Ok(parent) {
        // SAFETY: ends this process alone, without running anything of the parent's.
        let _ = unsafe { syscall(libc::SYS_exit_group, [1, 0, 0, 0, 0, 0]) };
    }
}

/// Leaves the caller's session, so that its terminal's signals do not come here.
pub fn new_session() {
    // SAFETY: no arguments. It fails only for a group leader, which then has its own session already.
    let _ = unsafe { syscall(libc::SYS_setsid, [0; 6]) };
}

/// Names this process as `ps` shows it (15 bytes).
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: a live C string; the kernel copies at most 16 bytes.
    let _ =
        unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_NAME as usize, name.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// Empties this process's command line, as `ps` shows it.
///
/// Preconditions: this process is a fork that never looks at its arguments again.
pub fn clear_command_line() -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold anything. Fields 48 and 49 are where the arguments begin and end.
    let (_, fields) = stat.rsplit_once(") ").ok_or(io::ErrorKind::InvalidData)?;
    let mut bounds = fields.split(' ').skip(45).map(str::parse::<usize>);
    let (Some(Ok(start)), Some(Ok(end))) = (bounds.next(), bounds.next()) else {
        return Err(io::ErrorKind::InvalidData.into());
    };
    let length = end.checked_sub(start).filter(|_| start != 0).ok_or(io::ErrorKind::InvalidData)?;
    // SAFETY: the kernel put the arguments there, in writable memory of this process's own; by the
    // precondition nobody reads them again.
    unsafe { std::ptr::write_bytes(std::ptr::with_exposed_provenance_mut::<u8>(start), 0, length) };
    Ok(())
}

/// Makes this process the parent of what its descendants leave behind.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_SET_CHILD_SUBREAPER as usize, 1, 0, 0, 0, 0]) }?;
    Ok(())
}

/// Whether others of the same user may look into this process.
pub fn set_dumpable(dumpable: bool) {
    // SAFETY: numbers only.
    let _ = unsafe {
        syscall(libc::SYS_prctl, [libc::PR_SET_DUMPABLE as usize, usize::from(dumpable), 0, 0, 0, 0])
    };
}

/// Ends this process at once: no destructor and no handler runs.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes a number and does not return.
    unsafe { libc::_exit(code) }
}

/// Lets the allocator keep what is given back to it, up to a few hundred kilobytes, in place of giving it to the
/// kernel and asking for it again: each page costs a fault. What any run needs is brought in with one call.
pub fn keep_freed_memory() {
    const KEPT_BYTES: i32 = 512 << 10;
    const NEEDED_BYTES: usize = 128 << 10;
    const PAGE_BYTES: usize = 4096;
    // SAFETY: numbers only.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES) };
    // The allocator takes memory from the beginning of the heap on, which its first answers lie near.
    let first = std::hint::black_box(Box::new(0_u64));
    let from = (std::ptr::from_ref(&*first) as usize).next_multiple_of(PAGE_BYTES);
    let populate = libc::MADV_POPULATE_WRITE as usize;
    // SAFETY: memory is brought in where there is some, and nothing of it is changed. A refusal changes nothing.
    let _ = unsafe { syscall(libc::SYS_madvise, [from, NEEDED_BYTES, populate, 0, 0, 0]) };
}

/// Points descriptors 0, 1 and 2 at `/dev/null`, so that nothing of the caller's is held open.
pub fn release_standard_streams() -> io::Result<()> {
    let null = raw::open(raw::CWD, c"/dev/null", libc::O_RDWR | libc::O_CLOEXEC, 0)?;
    for standard in 0..3 {
        // SAFETY: 0 to 2 belong to this process, which has forked to stop using the caller's.
        unsafe { syscall(libc::SYS_dup3, [fd(null), standard, 0, 0, 0, 0]) }?;
    }
    raw::close(null);
    Ok(())
}

/// Closes every descriptor from 3 up but those in `keep`, which must be sorted.
///
/// Preconditions: nothing in this process uses the others again; it is a fork that was made for one
/// purpose and never returns to code that owns them.
pub fn close_all_but(keep: &[RawFd]) {
    let mut from: u32 = 3;
    for last in keep.iter().map(|fd| fd.cast_unsigned()).chain([u32::MAX]) {
        if last > from {
            let to = if last == u32::MAX { last } else { last - 1 };
            // SAFETY: by the precondition nobody uses these again.
            let _ = unsafe { syscall(libc::SYS_close_range, [from as usize, to as usize, 0, 0, 0, 0]) };
        }
        from = last.saturating_add(1);
    }
}

/// A pidfd of a living process.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    let found = unsafe { syscall(libc::SYS_pidfd_open, [pid as usize, 0, 0, 0, 0, 0]) }?;
    Ok(owned(found))
}

/// Sends a signal through a pidfd.
pub fn send_signal(pidfd: BorrowedFd<'_>, signal: i32) -> io::Result<()> {
    let arguments = [fd(pidfd.as_raw_fd()), signal as usize, 0, 0, 0, 0];
    // SAFETY: numbers, and a null information pointer, which the call allows.
    unsafe { syscall(libc::SYS_pidfd_send_signal, arguments) }.map(drop).map_err(Into::into)
}

/// Waits for a child and takes its ending. `None` if it is not our child any more.
pub fn reap(pidfd: &OwnedFd) -> Option<Ended> {
    wait_for(pidfd.as_raw_fd(), libc::WEXITED)
}

/// As [`reap`], without waiting: `None` also while it lives.
pub fn try_reap(pidfd: &OwnedFd) -> Option<Ended> {
    wait_for(pidfd.as_raw_fd(), libc::WEXITED | libc::WNOHANG)
}

fn wait_for(pidfd: RawFd, options: i32) -> Option<Ended> {
    loop {
        // SAFETY: all-zero is a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let pointer = std::ptr::from_mut(&mut info) as usize;
        let arguments = [libc::P_PIDFD as usize, fd(pidfd), pointer, options as usize, 0, 0];
        // SAFETY: `info` has room for the answer; the usage pointer is null.
        match unsafe { syscall(libc::SYS_waitid, arguments) } {
            Ok(_) => {}
            Err(Errno(libc::EINTR)) => continue,
            Err(_) => return None,
        }
        // SAFETY: after a wait the structure is of the SIGCHLD kind, or still zero.
        let (pid, status) = (unsafe { info.si_pid() }, unsafe { info.si_status() });
        return match info.si_code {
            _ if pid == 0 => None,
            libc::CLD_EXITED => Some(Ended::Exited(status)),
            _ => Some(Ended::Signalled(status)),
        };
    }
}

/// Keeps only these capabilities (bit numbers) of those that this thread has.
pub fn keep_capabilities(keep: &[u32]) -> io::Result<()> {
    // `struct __user_cap_header_struct`, then effective, permitted and inheritable of each half.
    let header = [0x2008_0522_u32, 0];
    let mut held = [0_u32; 6];
    let arguments = [header.as_ptr() as usize, held.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: both arrays have the kernel's layout, and it fills the second.
    unsafe { syscall(libc::SYS_capget, arguments) }?;
    let half = |first: u32| {
        let bits = keep.iter().filter_map(|bit| bit.checked_sub(first).filter(|bit| *bit < 32));
        bits.fold(0_u32, |set, bit| set | 1 << bit)
    };
    let [_, permitted_low, _, _, permitted_high, _] = held;
    let (low, high) = (half(0) & permitted_low, half(32) & permitted_high);
    let kept = [low, low, 0, high, high, 0];
    let arguments = [header.as_ptr() as usize, kept.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: both arrays have the kernel's layout and are only read.
    unsafe { syscall(libc::SYS_capset, arguments) }.map(drop).map_err(Into::into)
}

/// A pipe: (read end, write end), both closed on exec.
pub fn pipe(nonblocking_read: bool) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0_i32; 2];
    // SAFETY: `ends` has room for two descriptors.
    unsafe { syscall(libc::SYS_pipe2, [ends.as_mut_ptr() as usize, libc::O_CLOEXEC as usize, 0, 0, 0, 0]) }?;
    let [read, write] = ends;
    // SAFETY: the kernel made both a moment ago.
    let (read, write) = (unsafe { OwnedFd::from_raw_fd(read) }, unsafe { OwnedFd::from_raw_fd(write) });
    if nonblocking_read {
        set_nonblocking(&read, true)?;
    }
    Ok((read, write))
}

/// Whether reads and writes wait.
pub fn set_nonblocking(file: &OwnedFd, nonblocking: bool) -> io::Result<()> {
    let flags = if nonblocking { libc::O_NONBLOCK as usize } else { 0 };
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_fcntl, [fd(file.as_raw_fd()), libc::F_SETFL as usize, flags, 0, 0, 0]) }
        .map(drop)
        .map_err(Into::into)
}

/// The same descriptor with a number of at least `lowest`.
pub fn move_up(file: OwnedFd, lowest: i32) -> io::Result<OwnedFd> {
    if file.as_raw_fd() >= lowest {
        return Ok(file);
    }
    let arguments = [fd(file.as_raw_fd()), libc::F_DUPFD_CLOEXEC as usize, lowest as usize, 0, 0, 0];
    // SAFETY: numbers only.
    let found = unsafe { syscall(libc::SYS_fcntl, arguments) }?;
    Ok(owned(found))
}

/// How long this process may wait for another to be gone, as a poll on its pidfd.
pub fn wait_gone(pidfd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    let found = crate::poll::wait(&[(pidfd, crate::poll::Interest::Read)], Some(timeout))?;
    Ok(found.first().is_some_and(|waited| waited.ready))
}

fn owned(number: usize) -> OwnedFd {
    // SAFETY: only called with a descriptor that a call returned a moment ago.
    unsafe { OwnedFd::from_raw_fd(raw::to_fd(number)) }
}

fn change_mask(how: i32, mask: SignalMask) -> SignalMask {
    let mut before = 0_u64;
    let pointers = (std::ptr::from_ref(&mask.0) as usize, std::ptr::from_mut(&mut before) as usize);
    // SAFETY: both masks are live and of the kernel's size; the call can not fail with these.
    let _ = unsafe { syscall(libc::SYS_rt_sigprocmask, [how as usize, pointers.0, pointers.1, 8, 0, 0]) };
    SignalMask(before)
}
