//! The system calls of this program, by their numbers.
//!
//! From the sandbox's filter it needs: `open`, `mmap`, `mremap`, `munmap`, `close`, `prctl` (PR_SET_MM, PR_SET_NAME),
//! `arch_prctl` (ARCH_SET_FS), `set_tid_address`, `set_robust_list`, `rseq`, `rt_sigaction`, `rt_sigprocmask`, `write`,
//! `exit_group`.

use core::arch::asm;

pub(crate) const WRITE: u64 = 1;
pub(crate) const OPEN: u64 = 2;
pub(crate) const CLOSE: u64 = 3;
pub(crate) const MMAP: u64 = 9;
pub(crate) const MUNMAP: u64 = 11;
pub(crate) const RT_SIGACTION: u64 = 13;
pub(crate) const RT_SIGPROCMASK: u64 = 14;
pub(crate) const MREMAP: u64 = 25;
pub(crate) const PRCTL: u64 = 157;
pub(crate) const ARCH_PRCTL: u64 = 158;
pub(crate) const SET_TID_ADDRESS: u64 = 218;
pub(crate) const EXIT_GROUP: u64 = 231;
pub(crate) const SET_ROBUST_LIST: u64 = 273;
pub(crate) const RSEQ: u64 = 334;

/// One system call; the error number on failure.
///
/// # Safety
/// The words are what the call `number` takes, and what it does to memory is meant.
pub(crate) unsafe fn call(number: u64, words: [u64; 6]) -> Result<u64, u64> {
    let [a, b, c, d, e, f] = words;
    let result: i64;
    // SAFETY: the caller vouches for the words; the kernel clobbers rcx and r11 and keeps the rest.
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    if (-4095..0).contains(&result) { Err(result.unsigned_abs()) } else { Ok(result.cast_unsigned()) }
}

pub(crate) fn exit(code: u8) -> ! {
    loop {
        // SAFETY: it takes a number and does not return.
        let _ = unsafe { call(EXIT_GROUP, [u64::from(code), 0, 0, 0, 0, 0]) };
    }
}
