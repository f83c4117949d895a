//! PID 1 of a guest that has a kernel of its own: in gVisor, in a microVM, later in a pod.
//!
//! It does for one stream of frames what `init` does for a socket: starts commands, reaps everything, says
//! what became of it. It also carries what they read and write, for no descriptor crosses into such a guest.
//! It is trusted by nobody outside, and must not know what an envelope or a record is.
//!
//! On entry: descriptor 0 is where frames come from, and 1 where they go to, or the first argument is
//! `machine`, and then this is the first process of a machine (see `machine`). If it is `filtered`, this program
//! and with it each command is behind a system call filter (see `filter`).
//!
//! ```text
//!             ┌──────────────── poll ◄───────────────┐
//!   frames    ▼       pipes, terminals, sockets ▼    ▼  a child ended
//!   obey ► reply      read into frames, while there  reap all ► report; after a "once" exec: end the rest
//!             │       is credit and room
//!             └─ end of the stream, or bytes that are not ours ──► kill all, leave
//! ```
//!
//! **Invariant:** no stream waits for another: what can not be passed on now is kept, up to the window.
//! **Invariant:** for one exec the reports are `Started`, then `End` of each stream and `Ended` in any order,
//! or `NotStarted` alone.
//! **Invariant:** the guest can not trace this process nor open its descriptors (it is not dumpable).

#![no_std]
#![no_main]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(unused_qualifications)]

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
compile_error!("`guestd` speaks to the kernel directly and knows only Linux on x86_64");

extern crate alloc;

#[path = "../../backend/src/answer.rs"]
#[allow(dead_code, reason = "the host's half of the protocol")]
mod answer;
#[path = "../wire/bytes.rs"]
#[allow(dead_code, reason = "the host's half of the protocol")]
mod bytes;
#[path = "../../backend-native/init/call.rs"]
#[allow(dead_code, reason = "of one source with `init`")]
mod call;
mod carry;
mod channels;
#[path = "../../backend-native/init/descriptors.rs"]
#[allow(dead_code, reason = "of one source with `init`")]
mod descriptors;
#[path = "../../backend-native/init/dial.rs"]
mod dial;
#[path = "../wire/entry.rs"]
#[allow(dead_code, reason = "the host's half of the protocol")]
mod entry;
mod file;
mod filter;
#[path = "../wire/frame.rs"]
#[allow(dead_code, reason = "the host's half of the protocol")]
mod frame;
mod freeze;
mod guest;
mod hand;
mod heap;
#[path = "../../backend-native/init/launch.rs"]
mod launch;
mod line;
mod machine;
#[path = "../../backend-native/init/memory.rs"]
mod memory;
mod meters;
mod person;
#[path = "../wire/report.rs"]
#[allow(dead_code, reason = "the host's half of the protocol")]
mod report;
mod store;
mod walk;
#[path = "../../backend-native/init/wire.rs"]
#[allow(dead_code, reason = "how a command is described to the launcher that is shared with `init`")]
mod wire;

use core::panic::PanicInfo;
use guest::Guest;
use line::Line;

/// What the exit code says when the start itself went wrong, or this program is at fault.
const BROKEN: u8 = 70;

core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym main,
);

/// What the first argument says this is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The first process of what something else has made.
    Made,
    /// The same, by a kernel that passes nothing on to it, and behind the filter that lies at [`filter::PATH`].
    Filtered,
    Machine,
}

extern "C" fn main(stack: *const usize) -> ! {
    let words = arguments(stack);
    if let (Some(b"furnish"), Some(rest)) = (words.get(1).copied(), words.get(2..)) {
        // A command of the host's in a machine.
        let code = machine::furnish(rest).map_or_else(|errno| u8::try_from(errno.0).unwrap_or(BROKEN), |()| 0);
        call::exit(code);
    }
    if let (Some(b"hand"), Some(rest)) = (words.get(1).copied(), words.get(2..)) {
        hand::work(rest);
    }
    let place = Place::of(&words);
    let machine = place == Place::Machine;
    let line = if machine { machine::begin() } else { Line::standard() };
    let filter = match place {
        Place::Made => Ok(None),
        Place::Filtered => filter::read(filter::PATH).map(Some),
        Place::Machine => filter::read(filter::OF_MACHINE).map(Some),
    };
    let guest = line.and_then(|line| Guest::begin(line, place, filter?));
    let Ok(mut guest) = guest else { leave(machine, BROKEN) };
    loop {
        guest.turn();
    }
}

/// Ends this program, and the guest with it.
pub(crate) fn leave(machine: bool, code: u8) -> ! {
    if machine {
        machine::finish();
    }
    call::exit(code)
}

// === impl Place ===

impl Place {
    fn of(words: &[&[u8]]) -> Self {
        match words.get(1) {
            Some(&b"machine") => Self::Machine,
            Some(&b"filtered") => Self::Filtered,
            Some(_) | None => Self::Made,
        }
    }
}

/// What this program was started with.
fn arguments(stack: *const usize) -> alloc::vec::Vec<&'static [u8]> {
    // SAFETY: the kernel puts the number of arguments where the stack of a new program begins.
    let count = unsafe { stack.read() };
    let one = |place| {
        // SAFETY: behind it are as many addresses of strings.
        let address = unsafe { stack.add(place).read() };
        let text: *const u8 = core::ptr::with_exposed_provenance(address);
        let mut length = 0;
        // Volatile, or the compiler makes of it a call of a `strlen` that is not here.
        // SAFETY: each is ended by a zero, and no byte behind that is read.
        while unsafe { text.add(length).read_volatile() } != 0 {
            length += 1;
        }
        // SAFETY: so many bytes are there, and live as long as the program.
        unsafe { core::slice::from_raw_parts(text, length) }
    };
    (1..=count).map(one).collect()
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    call::exit(BROKEN)
}

/// The precompiled libraries name both; nothing ever unwinds here.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() -> ! {
    call::exit(BROKEN)
}

#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    call::exit(BROKEN)
}
