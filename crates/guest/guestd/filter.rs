//! The system call filter that commands get, where the kernel of the guest is to keep one.

use crate::call::{Errno, address, plain, raw};
use crate::file;
use alloc::vec::Vec;

/// Where it lies, as the instructions of a `struct sock_fprog`. Nobody inside can write there.
pub(crate) const PATH: &[u8] = b"/run/guestd.filter\0";

/// Where the image of a machine has it.
pub(crate) const OF_MACHINE: &[u8] = b"/filter\0";

/// The most instructions that a kernel takes.
const MOST: usize = 4096;
const INSTRUCTION_BYTES: usize = 8;

/// `struct sock_fprog`
#[repr(C)]
struct Header {
    length: u16,
    instructions: *const u8,
}

/// Reads it. It must be there, and be whole.
pub(crate) fn read(path: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut room = Vec::new();
    room.resize(MOST * INSTRUCTION_BYTES, 0);
    let length = file::small(path, &mut room)?.len();
    room.truncate(length);
    // One that fills the room may have more behind it.
    if length == 0 || length % INSTRUCTION_BYTES != 0 || length >= MOST * INSTRUCTION_BYTES {
        return Err(file::EBADMSG);
    }
    Ok(room)
}

/// Puts it onto this process, for good. Runs in the started process: kernel calls only.
pub(crate) fn enforce(filter: &[u8]) -> Result<(), Errno> {
    // PR_SET_NO_NEW_PRIVS.
    plain(157, [38, 1, 0, 0, 0, 0])?;
    let header = Header {
        length: (filter.len() / INSTRUCTION_BYTES) as u16,
        instructions: filter.as_ptr(),
    };
    // SECCOMP_SET_MODE_FILTER.
    // SAFETY: header and instructions are live, and as many as is said; the kernel copies and checks them.
    unsafe { raw(317, [1, 0, address(&raw const header), 0, 0, 0]) }.map(drop)
}
