//! The five routines that compiled code calls without being asked.
//!
//! Written in assembly, so that the compiler can not recognise a loop and make it call itself.

use core::arch::asm;

/// Copies `count` bytes between places that do not overlap.
///
/// # Safety
/// Both places hold `count` bytes and do not overlap.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for `count` bytes at both places; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep movsb", inout("rcx") count => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

/// Copies `count` bytes between places that may overlap.
///
/// # Safety
/// Both places hold `count` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.addr().wrapping_sub(from.addr()) >= count {
        // SAFETY: the destination does not begin within the source, so a forward copy reads every byte
        // before it is overwritten; the caller vouches for the places.
        return unsafe { memcpy(to, from, count) };
    }
    let (last_to, last_from) =
        (to.wrapping_add(count).wrapping_sub(1), from.wrapping_add(count).wrapping_sub(1));
    // SAFETY: the caller vouches for the places; the copy runs from the end because the destination
    // begins within the source, and the direction flag is cleared again.
    unsafe {
        asm!("std", "rep movsb", "cld", inout("rcx") count => _, inout("rdi") last_to => _,
            inout("rsi") last_from => _, options(nostack));
    }
    to
}

/// Fills `count` bytes.
///
/// # Safety
/// The place holds `count` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memset(to: *mut u8, byte: i32, count: usize) -> *mut u8 {
    // SAFETY: the caller vouches for `count` bytes; the direction flag is clear by the ABI.
    unsafe {
        asm!("rep stosb", inout("rcx") count => _, inout("rdi") to => _, in("eax") byte,
            options(nostack, preserves_flags));
    }
    to
}

/// Compares `count` bytes in order.
///
/// # Safety
/// Both places hold `count` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    let order: i32;
    // SAFETY: the caller vouches for both places. Comparing a register with itself first sets the
    // "equal" flags that `repe` leaves untouched when `count` is zero.
    unsafe {
        asm!("cmp eax, eax", "repe cmpsb", "seta al", "setb cl", "movzx eax, al", "movzx ecx, cl", "sub eax, ecx",
            inout("rcx") count => _, inout("rsi") left => _, inout("rdi") right => _, out("eax") order,
            options(nostack));
    }
    order
}

/// Compares `count` bytes for equality.
///
/// # Safety
/// Both places hold `count` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, count: usize) -> i32 {
    // SAFETY: the same promise, passed on.
    unsafe { memcmp(left, right, count) }
}
