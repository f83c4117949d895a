//! `clone3` of a child that shares our memory and runs on a stack of its own; `clone` of one that needs nothing of
//! what only the newer call can do, because outer sandboxes refuse that one.

use super::{Namespaces, Spawned};
use crate::raw::{self, Errno};
use std::cell::UnsafeCell;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Enough for the deepest operation; the child calls a few small functions and the kernel.
/// Small enough to come from memory that the allocator has at hand.
const STACK_BYTES: usize = 64 * 1024;

/// Memory for a stack; what is in it does not matter.
type Stack = Box<[MaybeUninit<u8>]>;

/// What the child is handed: a reference to the closure that is its whole life.
struct Entry<'a> {
    work: &'a dyn Fn(),
}

/// Runs `work` in a new child and sleeps until the child has executed a program or ended.
///
/// `work` must not return on success: it executes a program. If it returns, the child exits.
pub(super) fn vm_child(
    namespaces: Namespaces,
    cgroup: Option<&OwnedFd>,
    work: &dyn Fn(),
) -> io::Result<Spawned> {
    let mut stack = Box::new_uninit_slice(STACK_BYTES);
    let entry = Entry { work };
    let mut pidfd: libc::c_int = -1;
    let mut flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;
    if namespaces.pids {
        flags |= libc::CLONE_NEWPID;
    }
    if namespaces.mounts {
        flags |= libc::CLONE_NEWNS;
    }
    if namespaces.user {
        flags |= libc::CLONE_NEWUSER;
    }
    if namespaces.quiet {
        flags |= libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    }
    if namespaces.names {
        flags |= libc::CLONE_NEWUTS;
    }
    // The constants are non-negative bits of an i32.
    let mut args = arguments(u64::from(flags.cast_unsigned()) | CLONE_CLEAR_SIGHAND, &mut pidfd, &mut stack);
    if let Some(directory) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = directory.as_raw_fd() as u64;
    }
    let mask = crate::process::block_all_signals();
    let argument = std::ptr::from_ref(&entry).cast();
    let result = if namespaces == Namespaces::default() && cgroup.is_none() {
        // Handlers of ours stay until it executes, and no signal comes until then.
        // SAFETY: as below.
        unsafe { clone_on_stack(args.flags & !CLONE_CLEAR_SIGHAND, &args, child_main, argument) }
    } else {
        // SAFETY: `args`, `entry` and `stack` outlive the call, which returns only when the child no
        // longer runs on them (CLONE_VFORK); `child_main` never returns.
        unsafe { clone3_on_stack(&args, child_main, argument) }
    };
    crate::process::restore_signals(&mask);
    drop(stack);
    if result < 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EINVAL)));
    }
    // SAFETY: the kernel stored a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Spawned { pid: i32::try_from(result).unwrap_or(-1), pidfd })
}

/// A child that shares memory and descriptors with us and runs beside us.
///
/// What it uses is given back when it is dropped, if the child is gone by then. A child that is still on its
/// way out may be busy in the kernel for milliseconds, taking its mounts apart; it is not waited for, and its
/// memory stays until this process ends.
#[derive(Debug)]
pub(super) struct Companion<T> {
    pidfd: OwnedFd,
    shared: ManuallyDrop<Box<Life<T>>>,
    stack: ManuallyDrop<Stack>,
}

/// What a companion works on, and its work.
#[derive(Debug)]
struct Life<T> {
    shared: T,
    work: fn(&T),
    /// Whom it ends with: made for one keeper, it is of no use to anybody else.
    parent: usize,
}

/// Starts `work` on `shared` in a companion.
///
/// `work` makes kernel calls and stores into `shared`, nothing else: it has no thread-local storage of
/// its own, and must not meet the allocator.
pub(super) fn companion<T: Sync>(shared: T, work: fn(&T)) -> io::Result<Companion<T>> {
    extern "C" fn main<T>(argument: *const libc::c_void) -> ! {
        // SAFETY: `companion` passes a pointer to what `Companion` keeps until the child is gone.
        let life = unsafe { &*argument.cast::<Life<T>>() };
        crate::process::end_with(life.parent);
        (life.work)(&life.shared);
        exit(0)
    }
    let mut stack = Box::new_uninit_slice(STACK_BYTES);
    let shared = Box::new(Life { shared, work, parent: crate::process::own_pid() });
    let mut pidfd: libc::c_int = -1;
    let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_PIDFD;
    let args = arguments(u64::from(flags.cast_unsigned()) | CLONE_CLEAR_SIGHAND, &mut pidfd, &mut stack);
    let mask = crate::process::block_all_signals();
    // SAFETY: `args` outlives the call; stack and life are in the `Companion`, which lets
    // go of them only when the child is gone; `main` never returns.
    let result = unsafe { clone3_on_stack(&args, main::<T>, std::ptr::from_ref(&*shared).cast()) };
    crate::process::restore_signals(&mask);
    if result < 0 {
        return Err(io::Error::from_raw_os_error(i32::try_from(-result).unwrap_or(libc::EINVAL)));
    }
    // SAFETY: the kernel stored a new descriptor that nobody else owns.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Companion { pidfd, shared: ManuallyDrop::new(shared), stack: ManuallyDrop::new(stack) })
}

// === impl Companion ===

impl<T> Companion<T> {
    /// What both sides see.
    pub(super) fn shared(&self) -> &T {
        &self.shared.shared
    }
}

impl<T> Drop for Companion<T> {
    fn drop(&mut self) {
        if crate::process::try_reap(&self.pidfd).is_none() {
            return;
        }
        // SAFETY: the child is gone, nobody else has these, and they are not used again.
        unsafe { ManuallyDrop::drop(&mut self.shared) };
        // SAFETY: as above.
        unsafe { ManuallyDrop::drop(&mut self.stack) };
    }
}

/// Memory for a child's stack and for the word that says when it has left it.
pub(super) struct Place {
    stack: Box<UnsafeCell<MaybeUninit<[u8; STACK_BYTES]>>>,
    /// Not zero while a child may run on the stack; the kernel clears it when the child is gone.
    occupied: AtomicU32,
}

// SAFETY: what is in the stack is touched by the one child that runs on it, and by nobody else.
unsafe impl Sync for Place {}

// === impl Place ===

impl Place {
    pub(super) fn new() -> Self {
        // SAFETY: a stack needs no content.
        let stack = unsafe { Box::new_uninit().assume_init() };
        Self { stack, occupied: AtomicU32::new(0) }
    }

    /// Runs `work` on `shared` in a companion of the calling child: with its memory and descriptors, and in
    /// its namespaces. Kernel calls only, as `work` must make.
    pub(super) fn start<T: Sync>(&self, shared: &T, work: fn(&T)) -> raw::Result<()> {
        extern "C" fn main<T>(argument: *const libc::c_void) -> ! {
            // SAFETY: `start` passes a pointer to a `Call` on the stack of a caller that waits until it was read.
            let call = unsafe { &*argument.cast::<Call<T>>() };
            let (shared, work) = (call.shared, call.work);
            call.read.store(1, Ordering::Release);
            raw::wake(&call.read);
            // SAFETY: whoever gave `shared` to `start` waits for the place to be empty before letting go of it.
            work(unsafe { &*shared });
            exit(0)
        }
        struct Call<T> {
            shared: *const T,
            work: fn(&T),
            read: AtomicU32,
        }
        if self.occupied.swap(1, Ordering::AcqRel) != 0 {
            return Err(Errno(libc::EBUSY));
        }
        let call = Call { shared, work, read: AtomicU32::new(0) };
        let flags = libc::CLONE_VM | libc::CLONE_FILES | libc::CLONE_CHILD_CLEARTID;
        let mut args = plain_arguments(u64::from(flags.cast_unsigned()) | CLONE_CLEAR_SIGHAND);
        args.child_tid = self.occupied.as_ptr() as u64;
        args.stack = self.stack.get() as u64;
        args.stack_size = STACK_BYTES as u64;
        // SAFETY: the stack is this place's and nobody else's (the swap above); `call` is waited for; `main`
        // never returns.
        let result = unsafe { clone3_on_stack(&args, main::<T>, std::ptr::from_ref(&call).cast()) };
        if result < 0 {
            self.occupied.store(0, Ordering::Release);
            return Err(Errno(i32::try_from(-result).unwrap_or(libc::EINVAL)));
        }
        while call.read.load(Ordering::Acquire) == 0 {
            raw::wait(&call.read, 0);
        }
        Ok(())
    }

    /// Sleeps until the companion is gone, however it went.
    pub(super) fn await_empty(&self) {
        while self.occupied.load(Ordering::Acquire) != 0 {
            raw::wait(&self.occupied, 1);
        }
    }
}

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Place").field("occupied", &self.occupied).finish_non_exhaustive()
    }
}

fn arguments(flags: u64, pidfd: &mut libc::c_int, stack: &mut Stack) -> libc::clone_args {
    let mut args = plain_arguments(flags);
    args.pidfd = std::ptr::from_mut(pidfd) as u64;
    args.stack = stack.as_mut_ptr() as u64;
    args.stack_size = stack.len() as u64;
    args
}

pub(crate) const fn plain_arguments(flags: u64) -> libc::clone_args {
    libc::clone_args {
        flags,
        pidfd: 0,
        child_tid: 0,
        parent_tid: 0,
        exit_signal: libc::SIGCHLD as u64,
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: 0,
    }
}

/// Leaves without libc: no handler of the parent runs in the child.
fn exit(code: usize) -> ! {
    loop {
        // SAFETY: `exit_group` takes a number and does not return.
        let _ = unsafe { raw::syscall(libc::SYS_exit_group, [code, 0, 0, 0, 0, 0]) };
    }
}

/// Not in `libc` for this target: handlers of the parent are not the child's.
const CLONE_CLEAR_SIGHAND: u64 = 0x1_0000_0000;
/// `libc` has it in a type that is too narrow.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

extern "C" fn child_main(entry: *const libc::c_void) -> ! {
    // SAFETY: `vm_child` passes a pointer to an `Entry` that lives until the child is gone from
    // this memory, because the parent sleeps.
    let entry = unsafe { &*entry.cast::<Entry<'_>>() };
    (entry.work)();
    exit(1)
}

/// `clone3`, then in the child a call of `main(argument)` on the new stack.
///
/// # Safety
/// `main` must not return; `argument` and the stack named in `args` must outlive the child's use.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3_on_stack(
    args: &libc::clone_args,
    main: extern "C" fn(*const libc::c_void) -> !,
    argument: *const libc::c_void,
) -> isize {
    let result: isize;
    // SAFETY: in the parent this is an ordinary system call. In the child `rsp` is the aligned top
    // of the new stack, and control leaves for `main`, so nothing of this frame is used again.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 as isize => result,
            in("rdi") std::ptr::from_ref(args),
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") main,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// As [`clone3_on_stack`], by the older call: `flags` alone, and of `args` the stack and the place for the pidfd.
///
/// # Safety
/// As there.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_on_stack(
    flags: u64,
    args: &libc::clone_args,
    main: extern "C" fn(*const libc::c_void) -> !,
    argument: *const libc::c_void,
) -> isize {
    let result: isize;
    // SAFETY: as in `clone3_on_stack`.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags | args.exit_signal,
            in("rsi") args.stack + args.stack_size,
            // The older call stores the pidfd where a parent's number would go.
            in("rdx") args.pidfd,
            in("r10") 0,
            in("r8") 0,
            in("r12") main,
            in("r13") argument,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

#[cfg(not(target_arch = "x86_64"))]
compile_error!(
    "the launcher is written for x86_64; another architecture needs its own clone3 entry and filter"
);
