//! What helps against an error of the host's that anything can meet: no room, no rights, no descriptors.
//!
//! One table, so that nobody is told to free space on a disk that is read-only.

use std::error::Error;
use std::io;

/// There is no room. Who reads it by this text may free some and try again.
pub const NO_SPACE: &str =
    "free space on the disk of the state folder, or name another with `FUMEHOOD_STATE`";

/// What helps against the first error of the host's among an error and its causes; `None` where nothing general is
/// known.
#[must_use]
pub fn of(error: &(dyn Error + 'static)) -> Option<&'static str> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return of_io(error);
        }
        next = error.source();
    }
    None
}

/// What helps against an error of the host's.
#[must_use]
pub fn of_io(error: &io::Error) -> Option<&'static str> {
    error.raw_os_error().and_then(of_number)
}

/// By the kernel's number on this target.
fn of_number(number: i32) -> Option<&'static str> {
    Some(match number {
        // ENOSPC, EDQUOT
        28 | 122 => NO_SPACE,
        // EROFS
        30 => {
            "the disk of the state folder is read-only: mount it writable, or name another folder with `FUMEHOOD_STATE`"
        }
        // EPERM, EACCES
        1 | 13 => "give yourself the rights to what is named, or name another folder with `FUMEHOOD_STATE`",
        // EMFILE
        24 => {
            "this process may have no more files open: raise the limit (`ulimit -n`), or end some sandboxes"
        }
        // ENFILE
        23 => "the host may have no more files open: raise `/proc/sys/fs/file-max`, or end some programs",
        // ENOMEM
        12 => "the host has no memory left: end some sandboxes or programs",
        // EAGAIN, as clone and fork give it
        11 => {
            "no more processes may be started: raise the limit (`ulimit -u`, `pids.max`, `/proc/sys/kernel/pid_max`), or end some sandboxes"
        }
        // EIO, ESTALE
        5 | 116 => "the disk fails: look at the host's log, and at the disk of the state folder",
        // ENOSYS
        38 => {
            "this kernel, or a filter around us, does not have a system call that is needed: `fumehood doctor` looks at what this host can hold"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("write it")]
    struct Outer(#[source] io::Error);

    #[test]
    fn each_cause_has_a_remedy_of_its_own_wherever_it_stands() {
        let of = |number| of(&Outer(io::Error::from_raw_os_error(number)));
        assert_eq!(of(28), Some(NO_SPACE));
        for (number, word) in
            [(30, "read-only"), (24, "ulimit -n"), (13, "rights"), (38, "filter"), (5, "fails")]
        {
            assert!(of(number).is_some_and(|remedy| remedy.contains(word) && remedy != NO_SPACE), "{number}");
        }
        assert_eq!(of(2), None);
        assert_eq!(super::of(&Outer(io::Error::other("no number"))), None);
    }
}
