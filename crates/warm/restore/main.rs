//! The head of an image: makes this process the one that was prepared, and lets it go on.
//!
//! It runs inside the sandbox, behind every wall of it, as the command that was asked for. What it reads was written
//! by the same sandbox or by the one that this is forked from; a flawed image harms nobody but the process itself. It
//! gets nothing of the prepared process but memory and registers: no descriptor, no identity, no namespace.
//!
//! ```text
//! file:  this program | head, special mappings, signal actions, list of mappings | content of mappings
//!        0              TABLE_AT                                                   page-aligned, with holes
//! ```
//!
//! The order is what makes it possible: everything that is not in [`ZONE`] goes, then all mappings are made at their
//! old addresses, then the kernel is told what it must know of them.

#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("`restore` speaks to the kernel directly and knows only Linux on x86_64");

mod call;
#[path = "../../backend-native/init/memory.rs"]
mod memory;

use call::{call, exit};
use core::arch::{asm, global_asm};
use core::panic::PanicInfo;

/// Where this program, and all that it needs while it works, lies. Nothing of a process lies there by itself.
const ZONE: u64 = 0x1000_0000_0000;
const TABLE: u64 = ZONE + 0x1000_0000;
const STRINGS: u64 = ZONE + 0x2000_0000;
const SPECIALS: u64 = ZONE + 0x3000_0000;
const ZONE_END: u64 = ZONE + 0x4000_0000;
/// Below it the kernel maps nothing for ordinary users.
const LOWEST: u64 = 0x1_0000;
/// One page below the end of a process's addresses.
const HIGHEST: u64 = 0x7fff_ffff_f000;

const PAGE: u64 = 4096;
/// The place of the table in the file, and its room.
const TABLE_AT: u64 = 0x1_0000;
const TABLE_BYTES: u64 = 0x3_0000;
const MAGIC: u64 = 0x314d_5241_5748_4601;
/// A mapping without content.
const EMPTY: u64 = u64::MAX;
const SIGNALS: u64 = 64;

const READ: u64 = 1;
const WRITE: u64 = 2;
const PRIVATE: u64 = 0x02;
const FIXED: u64 = 0x10;
const ANONYMOUS: u64 = 0x20;
/// What a hundred copies might write, were they all to write everything, is not put aside for them.
const UNRESERVED: u64 = 0x4000;

/// The first words of the table.
#[repr(C)]
struct Head {
    magic: u64,
    entries: u64,
    specials: u64,
    /// Where the process looks for its arguments and variables, and how much fits there.
    mailbox: u64,
    mailbox_bytes: u64,
    /// Goes on from there, with the mailbox as its argument.
    resume: u64,
    thread: u64,
    tid_at: u64,
    robust_at: u64,
    robust_bytes: u64,
    /// Zero where it had none.
    rseq_at: u64,
    rseq_bytes: u64,
    blocked: u64,
    /// What the kernel knows of code, data, heap, stack, arguments and variables, in the order of `prctl_mm_map`.
    layout: [u64; 11],
    vdso: u64,
}

/// One of the kernel's own mappings: how far from the code that it gives to programs, and its size.
#[repr(C)]
struct Special {
    /// Two's complement.
    distance: u64,
    bytes: u64,
}

#[repr(C)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

#[repr(C)]
struct Entry {
    start: u64,
    end: u64,
    protection: u64,
    offset: u64,
}

/// As `prctl_mm_map`.
#[repr(C)]
struct Layout {
    addresses: [u64; 11],
    auxv: u64,
    auxv_bytes: u32,
    exe: u32,
}

/// What the kernel put on the stack at the start.
struct Start {
    /// The first argument, and the first byte behind the last variable.
    strings: u64,
    strings_end: u64,
    arguments: u64,
    variables: u64,
    vdso: u64,
}

const STACK_BYTES: usize = 16 * 1024;

#[repr(C, align(16))]
struct Stack([u8; STACK_BYTES]);

static mut STACK: Stack = Stack([0; STACK_BYTES]);

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "lea rsp, [rip + {stack}]",
    "add rsp, {bytes}",
    "call {main}",
    "ud2",
    stack = sym STACK,
    bytes = const STACK_BYTES,
    main = sym main,
);

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit(125)
}

/// The precompiled core library names it; nothing ever unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    exit(125)
}

extern "C" fn main(stack: *const u64) -> ! {
    // SAFETY: this is the stack as the kernel made it.
    let start = unsafe { Start::read(stack) };
    match restore(&start) {
        Ok((resume, mailbox)) => {
            // SAFETY: the prepared process waits at that address with that argument, and everything is as it was.
            unsafe {
                asm!("xor ebp, ebp", "jmp rax", in("rax") resume, in("rdi") mailbox, options(noreturn));
            }
        }
        Err(what) => fail(what),
    }
}

/// Says what went wrong. Nothing of the process may be left, so it is its last word.
fn fail(what: &'static str) -> ! {
    for part in ["fumehood: the prepared interpreter can not go on: ", what, "\n"] {
        let at = part.as_ptr().addr() as u64;
        // SAFETY: the bytes are there.
        let _ = unsafe { call(call::WRITE, [2, at, part.len() as u64, 0, 0, 0]) };
    }
    exit(125)
}

// === impl Start ===

impl Start {
    /// # Safety
    /// `stack` is the first stack pointer of this process.
    unsafe fn read(stack: *const u64) -> Self {
        // SAFETY: the kernel put a count there, so many pointers, a null, pointers, a null, pairs, a pair with zero.
        let word = |place: usize| unsafe { stack.wrapping_add(place).read() };
        let arguments = word(0);
        let first = arguments as usize + 2;
        let mut variables = 0;
        while word(first + variables) != 0 {
            variables += 1;
        }
        let last = if variables == 0 { word(arguments as usize) } else { word(first + variables - 1) };
        let mut end = last;
        // SAFETY: the last string ends in a zero.
        while unsafe { (end as *const u8).read() } != 0 {
            end += 1;
        }
        let (mut place, mut vdso) = (first + variables + 1, 0);
        while word(place) != 0 {
            if word(place) == 33 {
                vdso = word(place + 1);
            }
            place += 2;
        }
        Self { strings: word(1), strings_end: end + 1, arguments, variables: variables as u64, vdso }
    }
}

/// Makes every mapping. Gives where to go on, and with what.
fn restore(start: &Start) -> Result<(u64, u64), &'static str> {
    let file = invoke(call::OPEN, [c"/proc/self/exe".as_ptr().addr() as u64, 0o200_0000, 0, 0, 0, 0])
        .map_err(|_| "its image can not be opened by `/proc/self/exe`")?;
    map(TABLE, TABLE_BYTES, READ, PRIVATE, Some((file, TABLE_AT))).ok_or("its image can not be mapped")?;
    // SAFETY: the table was just mapped, and is as long as this and more.
    let head = unsafe { &*(TABLE as *const Head) };
    let room = (TABLE_BYTES - size_of::<Head>() as u64 - SIGNALS * 32) / 32;
    if head.magic != MAGIC || head.entries + head.specials > room {
        return Err("its image is none of this version");
    }
    let specials = TABLE + size_of::<Head>() as u64;
    let actions = specials + head.specials * size_of::<Special>() as u64;
    let entries = actions + SIGNALS * size_of::<Action>() as u64;
    // SAFETY: all three lie within the table (checked above), one behind the other.
    let specials = unsafe { list::<Special>(specials, head.specials) };
    // SAFETY: as above.
    let actions = unsafe { list::<Action>(actions, SIGNALS) };
    // SAFETY: as above.
    let entries = unsafe { list::<Entry>(entries, head.entries) };
    let strings = start.strings_end - start.strings;
    if strings + 2 * 8 > head.mailbox_bytes {
        return Err("its arguments and variables are too long");
    }
    map(STRINGS, strings, READ | WRITE, PRIVATE | ANONYMOUS, None).ok_or("there is no memory")?;
    copy(STRINGS, start.strings, strings);
    carry(specials, start.vdso, SPECIALS).ok_or("the kernel's own mappings can not be moved")?;
    // What is left of how this process began goes, its stack too.
    for (from, to) in [(LOWEST, ZONE), (ZONE_END, HIGHEST)] {
        invoke(call::MUNMAP, [from, to - from, 0, 0, 0, 0]).map_err(|_| "its place can not be cleared")?;
    }
    carry(specials, SPECIALS, head.vdso).ok_or("the kernel's own mappings can not be moved")?;
    for entry in entries {
        let content = (entry.offset != EMPTY).then_some((file, entry.offset));
        let kind = if content.is_some() { PRIVATE } else { PRIVATE | ANONYMOUS };
        let bytes = entry.end.wrapping_sub(entry.start);
        map(entry.start, bytes, entry.protection, kind, content).ok_or("its memory can not be mapped")?;
    }
    tell(head, actions)?;
    copy(head.mailbox + 16, STRINGS, strings);
    // SAFETY: the mailbox is memory of the process that nobody else writes.
    unsafe { (head.mailbox as *mut [u64; 2]).write([start.arguments, start.variables]) };
    let _ = invoke(call::CLOSE, [file, 0, 0, 0, 0, 0]);
    let (resume, mailbox) = (head.resume, head.mailbox);
    let _ = invoke(call::MUNMAP, [TABLE, ZONE_END - TABLE, 0, 0, 0, 0]);
    Ok((resume, mailbox))
}

/// Tells the kernel what it must know of the process: its heap, its thread, its signals.
fn tell(head: &Head, actions: &[Action]) -> Result<(), &'static str> {
    let layout = Layout { addresses: head.layout, auxv: 0, auxv_bytes: 0, exe: u32::MAX };
    let at = (&raw const layout).addr() as u64;
    // PR_SET_MM, PR_SET_MM_MAP.
    invoke(call::PRCTL, [35, 14, at, size_of::<Layout>() as u64, 0, 0])
        .map_err(|_| "the kernel takes no layout of memory (CONFIG_CHECKPOINT_RESTORE)")?;
    // PR_SET_NAME
    let _ = invoke(call::PRCTL, [15, c"python3".as_ptr().addr() as u64, 0, 0, 0, 0]);
    // ARCH_SET_FS
    invoke(call::ARCH_PRCTL, [0x1002, head.thread, 0, 0, 0, 0]).map_err(|_| "its thread can not be set")?;
    let tid = invoke(call::SET_TID_ADDRESS, [head.tid_at, 0, 0, 0, 0, 0]).map_err(|_| "it has no number")?;
    // SAFETY: the C library keeps its thread's number there, and this is the thread.
    unsafe { (head.tid_at as *mut u32).write(tid as u32) };
    if head.robust_at != 0 {
        let _ = invoke(call::SET_ROBUST_LIST, [head.robust_at, head.robust_bytes, 0, 0, 0, 0]);
    }
    if head.rseq_at != 0 {
        let made = invoke(call::RSEQ, [head.rseq_at, head.rseq_bytes, 0, 0x5305_3053, 0, 0]);
        if made.is_err() {
            // As the C library marks one that it could not have.
            // SAFETY: the second word of the area is the processor's number.
            unsafe { ((head.rseq_at + 4) as *mut i32).write(-2) };
        }
    }
    for (signal, action) in (1..).zip(actions) {
        let at = core::ptr::from_ref(action).addr() as u64;
        // The two that nobody can change are refused.
        let _ = invoke(call::RT_SIGACTION, [signal, at, 0, 8, 0, 0]);
    }
    let blocked = (&raw const head.blocked).addr() as u64;
    // SIG_SETMASK
    let _ = invoke(call::RT_SIGPROCMASK, [2, blocked, 0, 8, 0, 0]);
    Ok(())
}

/// Moves the kernel's own mappings from around one address to around another, as far apart as they were.
fn carry(specials: &[Special], from: u64, to: u64) -> Option<()> {
    for special in specials {
        let old = from.wrapping_add(special.distance);
        let new = to.wrapping_add(special.distance);
        // MREMAP_MAYMOVE, MREMAP_FIXED.
        if old != new {
            invoke(call::MREMAP, [old, special.bytes, special.bytes, 3, new, 0]).ok()?;
        }
    }
    Some(())
}

fn map(at: u64, bytes: u64, protection: u64, kind: u64, content: Option<(u64, u64)>) -> Option<()> {
    let (file, offset) = content.unwrap_or((u64::MAX, 0));
    let bytes = bytes.checked_next_multiple_of(PAGE)?;
    let words = [at, bytes, protection, kind | FIXED | UNRESERVED, file, offset];
    invoke(call::MMAP, words).ok().filter(|made| *made == at).map(drop)
}

fn invoke(number: u64, words: [u64; 6]) -> Result<u64, u64> {
    // SAFETY: every call here is about memory outside of this program's own, which is replaced on purpose, or about
    // places that were made for it.
    unsafe { call(number, words) }
}

fn copy(to: u64, from: u64, bytes: u64) {
    // SAFETY: both are mapped, so long, and apart: one is the first stack or a copy of it, the other was made for this.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes as usize) };
}

/// # Safety
/// So many of them lie at `at`, for as long as this program runs.
unsafe fn list<T>(at: u64, count: u64) -> &'static [T] {
    // SAFETY: the caller vouches for it.
    unsafe { core::slice::from_raw_parts(at as *const T, count as usize) }
}
