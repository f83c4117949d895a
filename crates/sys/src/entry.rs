//! The program's first instructions, before those of the C library.
//!
//! The C library's first work is to write addresses all over the program's data, and each page of it that it meets
//! is a fault of its own: some hundred, a microsecond or more each. One call brings them in together (docs/adr/0180).
//! What the kernel refuses here is faulted in later, one page after the other, as ever.

use std::arch::global_asm;

global_asm!(
    ".globl fumehood_entry",
    ".hidden fumehood_entry",
    ".type fumehood_entry, @function",
    "fumehood_entry:",
    // `madvise(first writable page, up to the end of what is not zero, MADV_POPULATE_WRITE)`. The registers that
    // the kernel hands to a program, `rsp` and `rdx`, stay as they are.
    "mov r8, rdx",
    "lea rdi, [rip + __init_array_start]",
    "and rdi, -4096",
    "lea rsi, [rip + _end]",
    "sub rsi, rdi",
    "mov edx, {populate_write}",
    "mov eax, {madvise}",
    "syscall",
    "mov rdx, r8",
    "jmp _start",
    ".size fumehood_entry, . - fumehood_entry",
    populate_write = const libc::MADV_POPULATE_WRITE,
    madvise = const libc::SYS_madvise,
);
