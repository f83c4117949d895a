//! The kernel, called by number. The rest of the program has no unsafe code.

use std::ffi::{CString, c_char, c_int, c_long, c_uint};

unsafe extern "C" {
    #[link_name = "syscall"]
    fn c_syscall(number: c_long, ...) -> c_long;
    #[link_name = "fork"]
    fn c_fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn _exit(code: c_int) -> !;
    #[link_name = "alarm"]
    fn c_alarm(seconds: c_uint) -> c_uint;
    fn execvp(file: *const c_char, argv: *const *const c_char) -> c_int;
    fn sigprocmask(how: c_int, set: *const u64, old: *mut u64) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
}

/// The kernel's error, or what the call returned.
pub(crate) type Answer = Result<i64, i32>;

/// A word of a call: a number, or the address of something that lives through it.
#[derive(Clone, Copy)]
pub(crate) struct Word(u64);

impl From<i64> for Word {
    fn from(number: i64) -> Self {
        Self(number.cast_unsigned())
    }
}

impl From<i32> for Word {
    fn from(number: i32) -> Self {
        Self(i64::from(number).cast_unsigned())
    }
}

impl From<u64> for Word {
    fn from(number: u64) -> Self {
        Self(number)
    }
}

impl From<&CString> for Word {
    fn from(text: &CString) -> Self {
        Self(text.as_ptr() as u64)
    }
}

impl From<&std::ffi::CStr> for Word {
    fn from(text: &std::ffi::CStr) -> Self {
        Self(text.as_ptr() as u64)
    }
}

impl<T> From<&mut [T]> for Word {
    fn from(bytes: &mut [T]) -> Self {
        Self(bytes.as_mut_ptr() as u64)
    }
}

impl<T, const N: usize> From<&mut [T; N]> for Word {
    fn from(bytes: &mut [T; N]) -> Self {
        Self(bytes.as_mut_ptr() as u64)
    }
}

/// Calls the kernel. What addresses point at is this program's own; a call with a wrong one answers EFAULT, or
/// harms this program alone, which is what an attacker may do to itself.
pub(crate) fn sys<const N: usize>(number: i64, words: [Word; N]) -> Answer {
    let mut six = [0_u64; 6];
    for (to, from) in six.iter_mut().zip(words) {
        *to = from.0;
    }
    let [a, b, c, d, e, f] = six;
    // SAFETY: see above; the function itself reads its arguments alone.
    let result = unsafe { c_syscall(number, a, b, c, d, e, f) };
    if result == -1 { Err(errno()) } else { Ok(result) }
}

/// As [`sys`], with words that are numbers.
pub(crate) fn plain(number: i64, words: &[i64]) -> Answer {
    let mut six = [Word(0); 6];
    for (to, from) in six.iter_mut().zip(words) {
        *to = Word::from(*from);
    }
    sys(number, six)
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// A copy of this process; 0 in it.
pub(crate) fn fork() -> Result<i32, i32> {
    // SAFETY: this program has one thread wherever it forks.
    match unsafe { c_fork() } {
        -1 => Err(errno()),
        pid => Ok(pid),
    }
}

/// A child made by a raw call, so that its flags can be chosen; it ends at once.
pub(crate) fn clone_and_end(number: i64, words: [Word; 6]) -> Answer {
    let pid = sys(number, words)?;
    if pid == 0 {
        exit(0);
    }
    Ok(pid)
}

/// Waits for a child: its code, and the signal that ended it.
pub(crate) fn wait(child: i32) -> (i32, Option<i32>) {
    let mut status = 0;
    loop {
        // SAFETY: the status has room.
        let got = unsafe { waitpid(child, &raw mut status, 0) };
        if got == -1 && errno() == 4 {
            continue;
        }
        let signal = status & 0x7f;
        return ((status >> 8) & 0xff, (signal != 0).then_some(signal));
    }
}

/// Buries every child that there is.
pub(crate) fn wait_all() {
    // SAFETY: no status is asked for.
    while unsafe { waitpid(-1, std::ptr::null_mut(), 0) } > 0 {}
}

/// Ends this process at once.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: a number alone.
    unsafe { _exit(code) }
}

/// Ends this process after so many seconds.
pub(crate) fn alarm(seconds: u32) {
    // SAFETY: a number alone.
    unsafe { c_alarm(seconds) };
}

/// Sleeps for ever.
pub(crate) fn pause() -> ! {
    loop {
        let _ = plain(34, &[]);
    }
}

/// Becomes another program; returns why not.
pub(crate) fn execute(argv: &[&str]) -> i32 {
    let strings: Vec<CString> = argv.iter().filter_map(|word| CString::new(*word).ok()).collect();
    let mut pointers: Vec<*const c_char> = strings.iter().map(|word| word.as_ptr()).collect();
    pointers.push(std::ptr::null());
    let Some(first) = pointers.first().filter(|first| !first.is_null()) else { return 2 };
    // SAFETY: strings and array live through the call and end as they must.
    unsafe { execvp(*first, pointers.as_ptr()) };
    errno()
}

/// Blocks every signal that can be blocked, and ignores it too.
pub(crate) fn deaf() {
    let all = [u64::MAX; 16];
    // SAFETY: the set is larger than any that is read; the old one is not asked for.
    unsafe { sigprocmask(2, all.as_ptr(), std::ptr::null_mut()) };
    for number in 1..32 {
        ignore(number);
    }
}

/// Ignores a signal.
pub(crate) fn ignore(number: i32) {
    // SAFETY: 1 is "ignore", no function.
    unsafe { signal(number, 1) };
}

/// The 32-bit entry of the kernel, with three zeros.
pub(crate) fn entry_32(number: u64) -> Answer {
    let result: i64;
    // SAFETY: the call reads its numbers alone; what the kernel may change is named.
    unsafe {
        std::arch::asm!(
            "push rbx",
            "xor ebx, ebx",
            "int 0x80",
            "pop rbx",
            inlateout("rax") number => result,
            in("rcx") 0, in("rdx") 0,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    if (-4095..0).contains(&result) { Err(i32::try_from(-result).unwrap_or(0)) } else { Ok(result) }
}
