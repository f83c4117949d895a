//! Files that live in memory and can never change again.

use std::ffi::{CStr, c_uint};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// What a memory file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To be read or mapped; never executed.
    Read,
    /// To be executed.
    Execute,
}

/// Forbids execution and taking that back. Newer than some C libraries.
const MFD_NOEXEC_SEAL: c_uint = 0x0008;
/// Asks for the right to execute, for hosts where it is not given unasked.
const MFD_EXEC: c_uint = 0x0010;
/// Forbids a change of the mode's execute bits.
const F_SEAL_EXEC: i32 = 0x0020;

/// A file in memory with these bytes, sealed against every change. It closes on exec.
///
/// `name` shows in `/proc` and means nothing else.
///
/// # Errors
/// The kernel's: out of memory or descriptors, or a host that forbids executable memory files.
pub fn sealed(name: &CStr, bytes: &[u8], purpose: Purpose) -> io::Result<OwnedFd> {
    let mut file = File::from(create(name, purpose)?);
    file.write_all(bytes)?;
    let all = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_WRITE;
    // Kernels before 6.3 do not know the seal on the mode; the contents are held without it.
    if add_seals(&file, all | F_SEAL_EXEC | libc::F_SEAL_SEAL).is_err() {
        add_seals(&file, all | libc::F_SEAL_SEAL)?;
    }
    Ok(file.into())
}

/// An empty file in memory that can change. It closes on exec.
///
/// # Errors
/// The kernel's: out of memory or descriptors.
pub fn open(name: &CStr, purpose: Purpose) -> io::Result<OwnedFd> {
    create(name, purpose)
}

fn create(name: &CStr, purpose: Purpose) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let wish = match purpose {
        Purpose::Read => MFD_NOEXEC_SEAL,
        Purpose::Execute => MFD_EXEC,
    };
    match create_with(name, flags | wish) {
        // Kernels before 6.3 do not know the wish, and give every memory file the right to execute.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => create_with(name, flags),
        result => result,
    }
}

fn create_with(name: &CStr, flags: c_uint) -> io::Result<OwnedFd> {
    // SAFETY: `name` ends in a zero, and is only read.
    let number = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so this is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn add_seals(file: &File, seals: i32) -> io::Result<()> {
    // SAFETY: F_ADD_SEALS takes a number and touches no memory of ours.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_bytes_are_there_and_can_not_change() {
        let mut file = File::from(sealed(c"test", b"bytes", Purpose::Read).unwrap());
        file.rewind().unwrap();
        let mut found = String::new();
        file.read_to_string(&mut found).unwrap();
        assert_eq!(found, "bytes");
        assert_eq!(file.write_all(b"more").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        file.rewind().unwrap();
        assert_eq!(file.write_all(b"x").unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(file.set_len(1).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(add_seals(&file, 0).is_err(), "more seals can be set");
    }

    #[test]
    fn the_mode_follows_the_purpose() {
        for (purpose, executable) in [(Purpose::Read, false), (Purpose::Execute, true)] {
            let file = File::from(sealed(c"test", b"", purpose).unwrap());
            let mode = file.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o111 != 0, executable, "{purpose:?}");
        }
    }
}
