//! What the child gives up, last.

use super::command::Command;
use super::ids::prctl;
use crate::raw::{self, CWD, EMPTY, Errno, Result, fd, ptr, syscall};
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};

/// `_LINUX_CAPABILITY_VERSION_3`
const CAPABILITY_VERSION: u32 = 0x2008_0522;
const CONTROL: usize = 3;
/// A nice value of 0, as `getpriority` gives it.
const ORDINARY_STANDING: usize = 20;

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

/// A caller whose own limit is lower keeps that one: only root could raise it.
pub(super) fn limit(resource: u32, value: u64) -> Result<()> {
    match set_limit(resource, value) {
        Err(Errno(libc::EPERM)) => set_limit(resource, value.min(highest(resource)?)),
        done => done,
    }
}

fn set_limit(resource: u32, value: u64) -> Result<()> {
    let both = libc::rlimit64 { rlim_cur: value, rlim_max: value };
    let pointer = std::ptr::from_ref(&both) as usize;
    // SAFETY: `both` is live and read only; pid 0 is the caller.
    unsafe { syscall(libc::SYS_prlimit64, [0, resource as usize, pointer, 0, 0, 0]) }.map(drop)
}

/// The hard limit that we have.
fn highest(resource: u32) -> Result<u64> {
    let mut both = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let pointer = std::ptr::from_mut(&mut both) as usize;
    // SAFETY: `both` is live and written alone; pid 0 is the caller.
    unsafe { syscall(libc::SYS_prlimit64, [0, resource as usize, 0, pointer, 0, 0]) }?;
    Ok(both.rlim_max)
}

/// Gives up what the keeper's caller may have given it: to run before everybody else.
pub(super) fn ordinary_priority() -> Result<()> {
    // SAFETY: numbers only; 0 is the caller.
    let policy = unsafe { syscall(libc::SYS_sched_getscheduler, [0, 0, 0, 0, 0, 0]) }?;
    let [ordinary, batch, idle] =
        [libc::SCHED_OTHER, libc::SCHED_BATCH, libc::SCHED_IDLE].map(i32::cast_unsigned);
    if ![ordinary, batch, idle].iter().any(|quiet| *quiet as usize == policy) {
        let none = libc::sched_param { sched_priority: 0 };
        let pointer = std::ptr::from_ref(&none) as usize;
        // SAFETY: `none` is live and read only; 0 is the caller.
        unsafe { syscall(libc::SYS_sched_setscheduler, [0, ordinary as usize, pointer, 0, 0, 0]) }?;
    }
    // What the kernel gives is 20 less the nice value, so that it is never negative.
    // SAFETY: numbers only; 0 is the caller.
    let standing = unsafe { syscall(libc::SYS_getpriority, [libc::PRIO_PROCESS as usize, 0, 0, 0, 0, 0]) }?;
    if standing > ORDINARY_STANDING {
        // SAFETY: numbers only; 0 is the caller.
        unsafe { syscall(libc::SYS_setpriority, [libc::PRIO_PROCESS as usize, 0, 0, 0, 0, 0]) }?;
    }
    Ok(())
}

/// Keeps the first `count` of the processors that we may already use.
pub(super) fn processors(count: u32) -> Result<()> {
    let mut mask = [0_u64; 16];
    let size = size_of_val(&mask);
    let pointer = mask.as_mut_ptr() as usize;
    // SAFETY: `mask` has `size` bytes of room.
    unsafe { syscall(libc::SYS_sched_getaffinity, [0, size, pointer, 0, 0, 0]) }?;
    let mut left = count;
    for word in &mut mask {
        for bit in 0..64 {
            if *word & (1 << bit) != 0 {
                if left == 0 {
                    *word &= !(1 << bit);
                } else {
                    left -= 1;
                }
            }
        }
    }
    // SAFETY: `mask` is live and read only.
    unsafe { syscall(libc::SYS_sched_setaffinity, [0, size, pointer, 0, 0, 0]) }.map(drop)
}

pub(super) fn oom_score(score: &CStr) -> Result<()> {
    let file = raw::open(CWD, c"/proc/self/oom_score_adj", libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
    let result = raw::write_all(file, score.to_bytes());
    raw::close(file);
    result
}

pub(super) fn limit_capabilities() -> Result<()> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(()) => {}
            // Past the last capability that this kernel knows.
            Err(Errno(libc::EINVAL)) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub(super) fn clear_capabilities() -> Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION, pid: 0 };
    let none = [0_u32; 6];
    let pointers = [std::ptr::from_ref(&header) as usize, none.as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: both structures have the kernel's layout and are live.
    unsafe { syscall(libc::SYS_capset, pointers) }.map(drop)
}

pub(super) fn no_new_privileges() -> Result<()> {
    prctl(libc::PR_SET_NO_NEW_PRIVS, 1)
}

pub(super) fn descriptors(control: &OwnedFd) -> Result<()> {
    let null = raw::open(CWD, c"/dev/null", libc::O_RDWR | libc::O_CLOEXEC, 0)?;
    for standard in 0..3 {
        duplicate(null as usize, standard)?;
    }
    if control.as_raw_fd() as usize == CONTROL {
        // SAFETY: numbers only.
        unsafe { syscall(libc::SYS_fcntl, [CONTROL, libc::F_SETFD as usize, 0, 0, 0, 0]) }?;
    } else {
        duplicate(control.as_raw_fd() as usize, CONTROL)?;
    }
    let range = [CONTROL + 1, u32::MAX as usize, libc::CLOSE_RANGE_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: only marks descriptors of this child's own table.
    unsafe { syscall(libc::SYS_close_range, range) }.map(drop)
}

/// The first descriptor that is placed by number, after the three standard ones.
const FIRST_PLACED: usize = 3;

pub(super) fn handover(error: &OwnedFd, descriptors: &[OwnedFd]) -> Result<()> {
    let null = raw::open(CWD, c"/dev/null", libc::O_RDWR | libc::O_CLOEXEC, 0)?;
    for standard in 0..2 {
        duplicate(null as usize, standard)?;
    }
    duplicate(error.as_raw_fd() as usize, 2)?;
    for (place, descriptor) in (FIRST_PLACED..).zip(descriptors) {
        let number = descriptor.as_raw_fd() as usize;
        if number < FIRST_PLACED + descriptors.len() {
            return Err(Errno(libc::EBADF));
        }
        duplicate(number, place)?;
    }
    let first = FIRST_PLACED + descriptors.len();
    let range = [first, u32::MAX as usize, libc::CLOSE_RANGE_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: only marks descriptors of this child's own table.
    unsafe { syscall(libc::SYS_close_range, range) }.map(drop)
}

/// The most arguments of a program that is executed by its path.
pub const MOST_ARGUMENTS: usize = 127;

pub(super) fn execute_path(path: &CStr, arguments: &[CString]) -> Result<()> {
    let mut argv = [std::ptr::null::<libc::c_char>(); MOST_ARGUMENTS + 1];
    if arguments.len() > MOST_ARGUMENTS {
        return Err(Errno(libc::E2BIG));
    }
    for (place, argument) in argv.iter_mut().zip(arguments) {
        *place = argument.as_ptr();
    }
    let none = 0_u64;
    let mask = std::ptr::from_ref(&none) as usize;
    // SAFETY: the mask is live, and its size is the kernel's.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask, 0, 8, 0, 0]) }?;
    let envp = [std::ptr::null::<libc::c_char>()];
    let call = [fd(CWD), ptr(path), argv.as_ptr() as usize, envp.as_ptr() as usize, 0, 0];
    // SAFETY: both arrays are null-terminated and live until the call replaces this image.
    unsafe { syscall(libc::SYS_execveat, call) }.map(drop)
}

pub(super) fn execute(program: &OwnedFd, name: &CStr) -> Result<()> {
    // Signals were blocked for the clone. `init` sets its own mask; it must not inherit ours.
    let none = 0_u64;
    let mask = std::ptr::from_ref(&none) as usize;
    // SAFETY: the mask is live, and its size is the kernel's.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask, 0, 8, 0, 0]) }?;
    let argv = [name.as_ptr(), std::ptr::null()];
    let envp = [std::ptr::null::<libc::c_char>()];
    let arguments = [
        fd(program.as_raw_fd()),
        ptr(EMPTY),
        argv.as_ptr() as usize,
        envp.as_ptr() as usize,
        libc::AT_EMPTY_PATH as usize,
        0,
    ];
    // SAFETY: both arrays are null-terminated and live until the call replaces this image.
    unsafe { syscall(libc::SYS_execveat, arguments) }.map(drop)
}

pub(super) fn streams(streams: &[OwnedFd; 3]) -> Result<()> {
    for (number, stream) in streams.iter().enumerate() {
        duplicate(stream.as_raw_fd() as usize, number)?;
    }
    let range = [streams.len(), u32::MAX as usize, libc::CLOSE_RANGE_CLOEXEC as usize, 0, 0, 0];
    // SAFETY: only marks descriptors of this child's own table.
    unsafe { syscall(libc::SYS_close_range, range) }.map(drop)
}

pub(super) fn become_program(command: &Command) -> Result<()> {
    // Signals were blocked for the clone.
    let none = 0_u64;
    let mask = std::ptr::from_ref(&none) as usize;
    // SAFETY: the mask is live, and its size is the kernel's.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask, 0, 8, 0, 0]) }?;
    let (argv, envp) = command.arrays();
    let arguments = [ptr(command.path()), argv as usize, envp as usize, 0, 0, 0];
    // SAFETY: both arrays are null-terminated and live until the call replaces this image.
    unsafe { syscall(libc::SYS_execve, arguments) }.map(drop)
}

fn duplicate(from: usize, to: usize) -> Result<()> {
    // SAFETY: `to` is a low number of the child's own descriptor table, where nobody else uses it.
    unsafe { syscall(libc::SYS_dup3, [from, to, 0, 0, 0, 0]) }.map(drop)
}
