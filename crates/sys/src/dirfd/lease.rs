//! Leases: the kernel's word that nobody has a file open for writing, and its call when somebody wants to.

use super::FileHandle;
use std::io;

// === impl FileHandle ===

impl FileHandle {
    /// Takes a lease on the file, for as long as it is open here: nobody has it open for writing, nor mapped so.
    /// Whoever wants to write to it or to cut it waits from then on until it is closed here, for as long as the host has
    /// laid down (45 s) at the most. The caller is told by SIGIO, which ends a process that does not ignore it.
    ///
    /// # Errors
    /// Somebody has it open for writing; it is another user's, and the capability for leases is missing; the file
    /// system knows none.
    pub fn lease(&self) -> io::Result<()> {
        // SAFETY: the descriptor is held by the handle; both other arguments are plain numbers.
        let taken = unsafe { libc::fcntl(self.raw(), libc::F_SETLEASE, libc::F_RDLCK) };
        if taken == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Whether the lease stands, and nobody has asked for its end: what was read since it was taken is as it is now.
    pub fn is_leased(&self) -> bool {
        // SAFETY: as above.
        let kind = unsafe { libc::fcntl(self.raw(), libc::F_GETLEASE) };
        kind == libc::F_RDLCK
    }
}

#[cfg(test)]
mod tests {
    use crate::dirfd::DirHandle;
    use std::fs::{File, OpenOptions};
    use std::path::Path;

    #[test]
    fn a_lease_ends_with_the_first_who_writes() {
        crate::process::ignore_signal(29);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, "one").unwrap();
        let dir = DirHandle::open(folder.path()).unwrap();
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        let (file, _) = dir.read(Path::new("f")).unwrap();
        assert!(file.lease().is_err(), "somebody writes");
        drop(writer);
        file.lease().unwrap();
        assert!(file.is_leased() && File::open(&path).is_ok() && file.is_leased());
        let late = std::thread::spawn(move || OpenOptions::new().write(true).open(&path).map(drop));
        while file.is_leased() {
            std::thread::yield_now();
        }
        assert!(!late.is_finished());
        drop(file);
        late.join().unwrap().unwrap();
    }
}
