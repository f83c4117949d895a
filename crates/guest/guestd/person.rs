//! Who commands run as, and within which limits.

use crate::call::{self, Errno};
use crate::frame;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// One past the last capability that any kernel knows.
const CAPABILITIES: u64 = 64;

/// What the started process becomes before it executes.
pub(crate) struct Person {
    who: Option<frame::Person>,
    limits: [(u32, u64); frame::MOST_LIMITS],
    count: usize,
}

// === impl Person ===

impl Person {
    pub(crate) fn of(exec: &frame::Exec<'_>) -> Self {
        let mut person = Self { who: exec.person, limits: [(0, 0); frame::MOST_LIMITS], count: 0 };
        for (place, limit) in person.limits.iter_mut().zip(exec.limits.each()) {
            *place = limit;
            person.count += 1;
        }
        person
    }

    /// Runs in the started process: kernel calls only.
    pub(crate) fn become_it(&self) -> Result<(), Errno> {
        for (resource, value) in self.limits.iter().take(self.count) {
            limit(*resource, *value)?;
        }
        let Some(frame::Person { uid, gid }) = self.who else { return Ok(()) };
        // PR_CAPBSET_DROP, until the kernel knows no more of them.
        for capability in 0..CAPABILITIES {
            if call::plain(157, [24, capability, 0, 0, 0, 0]).is_err() {
                break;
            }
        }
        let (uid, gid) = (u64::from(uid), u64::from(gid));
        // setgroups to none, setresgid, setresuid. The last takes every capability away with it.
        call::plain(116, [0; 6])?;
        call::plain(119, [gid, gid, gid, 0, 0, 0])?;
        call::plain(117, [uid, uid, uid, 0, 0, 0])?;
        // PR_SET_NO_NEW_PRIVS.
        call::plain(157, [38, 1, 0, 0, 0, 0])?;
        install()
    }
}

/// The system call filter of commands: where its instructions are, and how many. None where the guest has none.
static FILTER: (AtomicPtr<u8>, AtomicUsize) = (AtomicPtr::new(core::ptr::null_mut()), AtomicUsize::new(0));
/// `struct sock_filter`
const INSTRUCTION_BYTES: usize = 8;

/// Keeps a filter for every command that runs as somebody.
pub(crate) fn set_filter(program: Vec<u8>) {
    let program = program.leak();
    FILTER.1.store(program.len() / INSTRUCTION_BYTES, Ordering::Release);
    FILTER.0.store(program.as_mut_ptr(), Ordering::Release);
}

/// Runs in the started process: one kernel call.
fn install() -> Result<(), Errno> {
    /// `struct sock_fprog`
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const u8,
    }
    let instructions = FILTER.0.load(Ordering::Acquire);
    if instructions.is_null() {
        return Ok(());
    }
    let program = Program { length: FILTER.1.load(Ordering::Acquire) as u16, instructions };
    // seccomp with SECCOMP_SET_MODE_FILTER.
    // SAFETY: `program` is as the kernel reads it, and its instructions live as long as this program.
    unsafe { call::raw(317, [1, 0, call::address(&raw const program), 0, 0, 0]) }.map(drop)
}

/// Sets one limit, soft and hard. One that is lower already is kept.
fn limit(resource: u32, value: u64) -> Result<(), Errno> {
    let both = [value, value];
    // SAFETY: `both` is the two numbers that the kernel reads; the process is this one.
    let set = unsafe {
        call::raw(302, [0, u64::from(resource), call::address(both.as_ptr()), 0, 0, 0])
    };
    match set {
        Err(call::EPERM) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}
