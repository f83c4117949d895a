//! The caller's terminal: raw mode while a sandbox owns the screen, and its size.

use crate::raw::{self, fd, syscall};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

/// A terminal in raw mode; put back as it was when dropped.
#[derive(Debug)]
pub struct RawMode<'a> {
    terminal: BorrowedFd<'a>,
    before: libc::termios,
}

/// Whether a descriptor is a terminal.
pub fn is_terminal(file: BorrowedFd<'_>) -> bool {
    size(file).is_ok()
}

/// Rows and columns.
pub fn size(terminal: BorrowedFd<'_>) -> io::Result<(u16, u16)> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    let arguments =
        [fd(terminal.as_raw_fd()), libc::TIOCGWINSZ as usize, size.as_mut_ptr() as usize, 0, 0, 0];
    // SAFETY: `size` has room for the answer.
    unsafe { syscall(libc::SYS_ioctl, arguments) }?;
    // SAFETY: filled by the call, and all-zero is valid too.
    let size = unsafe { size.assume_init() };
    Ok((size.ws_row, size.ws_col))
}

/// Tells a terminal its size; programs inside get SIGWINCH.
pub fn set_size(terminal: BorrowedFd<'_>, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    let pointer = std::ptr::from_ref(&size) as usize;
    // SAFETY: `size` is live and read only.
    unsafe {
        syscall(libc::SYS_ioctl, [fd(terminal.as_raw_fd()), libc::TIOCSWINSZ as usize, pointer, 0, 0, 0])
    }
    .map(drop)
    .map_err(Into::into)
}

/// A new terminal of that many rows and columns: the side of who shows it, and the side of programs.
pub fn pair((rows, columns): (u16, u16)) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    let master = raw::open(raw::CWD, c"/dev/ptmx", flags, 0)?;
    // SAFETY: the call has just made it, and nobody else has it.
    let master = unsafe { OwnedFd::from_raw_fd(master) };
    let locked: libc::c_int = 0;
    let pointer = std::ptr::from_ref(&locked) as usize;
    // SAFETY: the request reads one live number.
    unsafe {
        syscall(libc::SYS_ioctl, [fd(master.as_raw_fd()), libc::TIOCSPTLCK as usize, pointer, 0, 0, 0])
    }?;
    set_size(master.as_fd(), rows, columns)?;
    let arguments = [fd(master.as_raw_fd()), libc::TIOCGPTPEER as usize, flags as usize, 0, 0, 0];
    // SAFETY: numbers only.
    let peer = unsafe { syscall(libc::SYS_ioctl, arguments) }.map(raw::to_fd)?;
    // SAFETY: as for the first.
    Ok((master, unsafe { OwnedFd::from_raw_fd(peer) }))
}

// === impl RawMode ===

impl<'a> RawMode<'a> {
    /// Keys go to the guest as they are, Ctrl-C among them.
    pub fn enter(terminal: BorrowedFd<'a>) -> io::Result<Self> {
        let mut before = MaybeUninit::<libc::termios>::zeroed();
        // SAFETY: `before` has room for the answer.
        if unsafe { libc::tcgetattr(terminal.as_raw_fd(), before.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: filled by the call.
        let before = unsafe { before.assume_init() };
        let mut raw = before;
        // SAFETY: a valid structure, changed in place.
        unsafe { libc::cfmakeraw(std::ptr::from_mut(&mut raw)) };
        set(terminal, &raw)?;
        Ok(Self { terminal, before })
    }
}

impl Drop for RawMode<'_> {
    fn drop(&mut self) {
        // A terminal that went away needs nothing put back.
        let _ = set(self.terminal, &self.before);
    }
}

fn set(terminal: BorrowedFd<'_>, attributes: &libc::termios) -> io::Result<()> {
    // SAFETY: a valid structure, read only.
    match unsafe { libc::tcsetattr(terminal.as_raw_fd(), libc::TCSANOW, std::ptr::from_ref(attributes)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One of our own standard streams (0, 1 or 2), which are open as long as we live: the Rust runtime
/// opens those that the caller had closed.
pub fn standard(number: i32) -> BorrowedFd<'static> {
    let number = if (0..=2).contains(&number) { number } else { 2 };
    // SAFETY: descriptors 0 to 2 are never closed by this program, only pointed elsewhere by the reaper,
    // which does not use this.
    unsafe { BorrowedFd::borrow_raw(number) }
}
