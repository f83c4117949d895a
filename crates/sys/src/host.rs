//! Facts about this host and this process.

use crate::raw::syscall;
use std::fs::{File, Metadata};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// What is left and what is taken of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    pub free_bytes: u64,
    pub used_bytes: u64,
    /// Files that can still be made.
    pub free_files: u64,
}

/// The effective uid.
pub fn euid() -> u32 {
    // SAFETY: no arguments; it can not fail.
    unsafe { libc::geteuid() }
}

/// The effective gid.
pub fn egid() -> u32 {
    // SAFETY: no arguments; it can not fail.
    unsafe { libc::getegid() }
}

/// How many thousand times a second this processor's time stamp counter ticks, measured for `span`.
pub fn counter_khz(span: std::time::Duration) -> u64 {
    let (began, first) = (std::time::Instant::now(), counter());
    while began.elapsed() < span {
        std::hint::spin_loop();
    }
    let (ticks, passed) = (counter().wrapping_sub(first), began.elapsed());
    u64::try_from(u128::from(ticks) * 1_000_000 / passed.as_nanos().max(1)).unwrap_or(u64::MAX)
}

fn counter() -> u64 {
    // SAFETY: every processor of this target has the instruction, and it touches no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The file mode creation mask. Reading it means setting it, so it is set back at once.
///
/// Preconditions: the caller has one thread.
pub fn umask() -> u32 {
    // SAFETY: numbers only.
    let mask = unsafe { libc::umask(0o077) };
    // SAFETY: numbers only.
    unsafe { libc::umask(mask) };
    mask
}

/// What stands at the end of a path, links followed, and where the kernel says that is. One look: the
/// two belong to the same file, and nothing is read from it or told to it.
pub fn resolve(path: &Path) -> io::Result<(Metadata, PathBuf)> {
    let found = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
    let real = std::fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    if !real.is_absolute() {
        return Err(io::Error::other("it lies outside of the file tree of this process"));
    }
    Ok((found.metadata()?, real))
}

/// Bytes of memory of the host.
pub fn memory_bytes() -> u64 {
    let mut info = MaybeUninit::<libc::sysinfo>::zeroed();
    // SAFETY: `info` has room for the answer.
    let _ = unsafe { libc::sysinfo(info.as_mut_ptr()) };
    // SAFETY: all-zero is valid too, should the call have failed.
    let info = unsafe { info.assume_init() };
    info.totalram.saturating_mul(u64::from(info.mem_unit))
}

/// Processors that this process may use.
pub fn processors() -> u32 {
    let mut mask = [0_u64; 16];
    let arguments = [0, size_of_val(&mask), mask.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: `mask` has room for the answer.
    let _ = unsafe { syscall(libc::SYS_sched_getaffinity, arguments) };
    mask.iter().map(|word| word.count_ones()).sum::<u32>().max(1)
}

/// Eight bytes of the kernel's randomness.
pub fn random() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: `bytes` has room for what is asked.
    unsafe { syscall(libc::SYS_getrandom, [bytes.as_mut_ptr() as usize, 8, 0, 0, 0, 0]) }?;
    Ok(u64::from_ne_bytes(bytes))
}

/// The time that file systems stamp changes with, in nanoseconds since 1970: it moves in ticks.
pub fn coarse_time() -> u64 {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: `time` has room for the answer; this clock exists on every kernel we run on.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, time.as_mut_ptr()) };
    // SAFETY: all-zero is valid too.
    let time = unsafe { time.assume_init() };
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Free blocks of the file system that a descriptor is on, as an unprivileged writer sees them.
pub fn free_blocks(file: RawFd) -> Option<u64> {
    file_system(file).map(|stat| stat.f_bavail)
}

/// Room of the file system that a descriptor is on, as an unprivileged writer sees it.
pub fn room(file: RawFd) -> Option<Room> {
    let stat = file_system(file)?;
    let unit = u64::try_from(stat.f_frsize).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(unit);
    Some(Room {
        free_bytes: bytes(stat.f_bavail),
        used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        free_files: stat.f_ffree,
    })
}

/// Whether a descriptor is on an overlay, which can not hold the layer of another one.
pub fn is_overlay(file: RawFd) -> bool {
    // `include/uapi/linux/magic.h`
    const OVERLAYFS_SUPER_MAGIC: i64 = 0x794C_7630;
    file_system(file).is_some_and(|stat| stat.f_type == OVERLAYFS_SUPER_MAGIC)
}

fn file_system(file: RawFd) -> Option<libc::statfs64> {
    let mut stat = MaybeUninit::<libc::statfs64>::zeroed();
    let arguments = [crate::raw::fd(file), stat.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: `stat` has room for the answer.
    unsafe { syscall(libc::SYS_fstatfs, arguments) }.ok()?;
    // SAFETY: filled by the call.
    Some(unsafe { stat.assume_init() })
}
