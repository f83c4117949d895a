//! Modes and times, where the sandbox's kernel uid is the caller's and there is no root of its own.
//!
//! Landlock does not judge them, and the owner of a file may set them wherever it lies; so the filter puts those
//! calls to the keeper, which sets them itself, on a copy of what was asked for, beneath the folders that the sandbox
//! may write. What lies elsewhere is refused.
//!
//! **Invariant:** a path of the guest's is resolved beneath one of those folders or not at all; a mode never has a
//! set-id bit.

use crate::syscalls::FCHMODAT2;
use fumehood_sys::metadata::{self, Time};
use fumehood_sys::notify::{Listener, Waiting};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The folders beneath which modes and times may be set.
#[derive(Debug)]
pub(crate) struct Broker {
    roots: Vec<(PathBuf, OwnedFd)>,
}

/// What became of a call.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Brokered {
    Done,
    /// It is refused with this error, for a cause of the file's own.
    Failed(i32),
    /// It is about what the sandbox may not write.
    Denied,
}

/// What is to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Mode(u32),
    Times(Option<[Time; 2]>),
}

/// Where a call says that the file is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    Descriptor(i32),
    Path { folder: i32, path: CString, follow: bool },
}

/// How times lie in memory.
#[derive(Clone, Copy)]
enum Clock {
    Seconds,
    Microseconds,
    Nanoseconds,
}

const SET_ID: u32 = 0o6000;
const MODE_BITS: u32 = 0o7777;
const PATH_BYTES: usize = 4096;
const NO_FOLLOW: u64 = libc::AT_SYMLINK_NOFOLLOW as u64;
const EMPTY_PATH: u64 = libc::AT_EMPTY_PATH as u64;

// === impl Broker ===

impl Broker {
    /// For the folders that exist.
    pub(crate) fn new(folders: &[PathBuf]) -> io::Result<Self> {
        let open = |folder: &PathBuf| {
            let handle = metadata::hold(&crate::root::c_path(folder))?;
            // Where it really is, as paths of handles are told.
            Ok((told(&handle)?, handle))
        };
        Ok(Self { roots: folders.iter().map(open).collect::<io::Result<_>>()? })
    }

    /// Does what `call` asks for, if it is one of those and about what the sandbox may write.
    pub(crate) fn serve(&self, call: &Waiting, listener: &Listener) -> Option<Brokered> {
        let asked = ask(call)?;
        let outcome = asked.and_then(|(target, change)| {
            if matches!(change, Change::Mode(mode) if mode & SET_ID != 0) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let file = self.find(call.thread, &target)?;
            if !listener.still_waits(call) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            match change {
                Change::Mode(mode) => metadata::set_mode(file.as_fd(), mode & MODE_BITS),
                Change::Times(times) => metadata::set_times(file.as_fd(), times),
            }
        });
        Some(match outcome {
            Ok(()) => Brokered::Done,
            Err(error) => match error.raw_os_error() {
                None | Some(libc::EPERM | libc::EACCES | libc::EXDEV) => Brokered::Denied,
                Some(errno) => Brokered::Failed(errno),
            },
        })
    }

    /// The file that a target names, if it lies beneath one of our folders.
    fn find(&self, thread: i32, target: &Target) -> io::Result<OwnedFd> {
        match target {
            Target::Descriptor(number) => {
                let file = of_thread(thread, &format!("fd/{number}"))?;
                let place = told(&file)?;
                self.root_of(&place).map(|_| file).ok_or_else(|| io::ErrorKind::PermissionDenied.into())
            }
            Target::Path { folder, path, follow } => {
                let text = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
                let whole = if text.is_absolute() {
                    text.to_owned()
                } else if *folder == libc::AT_FDCWD {
                    told(&of_thread(thread, "cwd")?)?.join(text)
                } else {
                    told(&of_thread(thread, &format!("fd/{folder}"))?)?.join(text)
                };
                let (root, rest) =
                    self.root_of(&whole).ok_or_else(|| io::Error::from(io::ErrorKind::PermissionDenied))?;
                let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
                metadata::hold_beneath(root.as_fd(), &crate::root::c_path(rest), *follow)
            }
        }
    }

    /// The folder of ours that a path begins with, and the rest, in which `..` may still be.
    fn root_of<'p>(&self, path: &'p Path) -> Option<(&OwnedFd, &'p Path)> {
        self.roots.iter().find_map(|(at, handle)| Some((handle, path.strip_prefix(at).ok()?)))
    }
}

/// What a thread has by that name in its part of `/proc`.
fn of_thread(thread: i32, what: &str) -> io::Result<OwnedFd> {
    let path = CString::new(format!("/proc/{thread}/{what}")).map_err(|_| io::ErrorKind::InvalidInput)?;
    metadata::hold(&path)
}

/// Where a handle's file is.
fn told(handle: &OwnedFd) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// What a call asks for; `None` if it is about something else.
fn ask(call: &Waiting) -> Option<io::Result<(Target, Change)>> {
    let [first, second, third, fourth, ..] = call.arguments;
    let asked = match i64::from(call.number) {
        libc::SYS_chmod => path(call, CWD, first, 0).map(|target| (target, mode(second))),
        libc::SYS_fchmod => Ok((Target::Descriptor(number(first)), mode(second))),
        libc::SYS_fchmodat => path(call, first, second, 0).map(|target| (target, mode(third))),
        FCHMODAT2 => path(call, first, second, fourth).map(|target| (target, mode(third))),
        libc::SYS_utime => timed(call, (CWD, first, 0), second, Clock::Seconds),
        libc::SYS_utimes => timed(call, (CWD, first, 0), second, Clock::Microseconds),
        libc::SYS_futimesat => timed(call, (first, second, 0), third, Clock::Microseconds),
        libc::SYS_utimensat => timed(call, (first, second, fourth), third, Clock::Nanoseconds),
        _ => return None,
    };
    Some(asked)
}

/// `AT_FDCWD`, as it stands in a register.
const CWD: u64 = libc::AT_FDCWD.cast_unsigned() as u64;

/// The kernel reads 32 bits of a descriptor.
fn number(argument: u64) -> i32 {
    low(argument).cast_signed()
}

fn mode(argument: u64) -> Change {
    Change::Mode(low(argument) & MODE_BITS)
}

fn low(argument: u64) -> u32 {
    u32::try_from(argument & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

fn timed(
    call: &Waiting,
    (folder, at, flags): (u64, u64, u64),
    times: u64,
    clock: Clock,
) -> io::Result<(Target, Change)> {
    let target = path(call, folder, at, flags)?;
    let times = if times == 0 { None } else { Some(read_times(call.thread, times, clock)?) };
    Ok((target, Change::Times(times)))
}

/// The target of a path argument. Without a path, or with an empty one where that is allowed, it is the folder's
/// own descriptor.
fn path(call: &Waiting, folder: u64, address: u64, flags: u64) -> io::Result<Target> {
    if address == 0 {
        return Ok(Target::Descriptor(number(folder)));
    }
    let mut bytes = [0; PATH_BYTES];
    let length = metadata::read_memory(call.thread, address, &mut bytes)?;
    let text = bytes.get(..length).and_then(|read| CStr::from_bytes_until_nul(read).ok());
    let text = text.ok_or_else(|| io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
    if text.is_empty() {
        let own = flags & EMPTY_PATH != 0;
        return if own {
            Ok(Target::Descriptor(number(folder)))
        } else {
            Err(io::Error::from_raw_os_error(libc::ENOENT))
        };
    }
    Ok(Target::Path { folder: number(folder), path: text.to_owned(), follow: flags & NO_FOLLOW == 0 })
}

/// Two times of two words each.
fn read_times(thread: i32, address: u64, clock: Clock) -> io::Result<[Time; 2]> {
    let mut bytes = [0; 32];
    let wanted = match clock {
        Clock::Seconds => 16,
        Clock::Microseconds | Clock::Nanoseconds => 32,
    };
    let room = bytes.get_mut(..wanted).unwrap_or_default();
    if metadata::read_memory(thread, address, room)? != wanted {
        return Err(io::Error::from_raw_os_error(libc::EFAULT));
    }
    let (words, _) = bytes.as_chunks::<8>();
    let word = |place: usize| words.get(place).copied().map_or(0, i64::from_ne_bytes);
    Ok(match clock {
        Clock::Seconds => [(word(0), 0), (word(1), 0)],
        Clock::Nanoseconds => [(word(0), word(1)), (word(2), word(3))],
        Clock::Microseconds => {
            let nanoseconds = |micro: i64| if (0..1_000_000).contains(&micro) { micro * 1000 } else { -1 };
            [(word(0), nanoseconds(word(1))), (word(2), nanoseconds(word(3)))]
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    fn call(number: i64, arguments: &[u64]) -> Waiting {
        let mut all = [0; 6];
        all.iter_mut().zip(arguments).for_each(|(place, argument)| *place = *argument);
        Waiting::for_tests(i32::try_from(std::process::id()).unwrap(), i32::try_from(number).unwrap(), all)
    }

    fn target(broker: &Broker, path: &Path) -> io::Result<OwnedFd> {
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let thread = i32::try_from(std::process::id()).unwrap();
        broker.find(thread, &Target::Path { folder: libc::AT_FDCWD, path, follow: true })
    }

    #[test]
    fn nothing_outside_is_found_by_any_way() {
        let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let broker = Broker::new(&[inside.path().to_owned()]).unwrap();
        let secret = outside.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::write(inside.path().join("own"), "x").unwrap();
        symlink(&secret, inside.path().join("link")).unwrap();
        symlink("..", inside.path().join("up")).unwrap();
        assert!(target(&broker, &inside.path().join("own")).is_ok());
        let name = secret.strip_prefix("/").unwrap();
        for way in [
            secret.clone(),
            inside.path().join("link"),
            inside.path().join("up").join(name),
            inside.path().join("../../../../../..").join(name),
            PathBuf::from("/proc/self/root").join(name),
            inside.path().with_extension("beside"),
        ] {
            assert!(target(&broker, &way).is_err(), "{}", way.display());
        }
    }

    #[test]
    fn a_call_is_read_as_the_kernel_reads_it() {
        let path = CString::new("/some/where").unwrap();
        let address = path.as_ptr() as u64;
        let (target, change) = ask(&call(libc::SYS_chmod, &[address, 0o755])).unwrap().unwrap();
        assert_eq!(change, Change::Mode(0o755));
        assert_eq!(
            target,
            Target::Path { folder: libc::AT_FDCWD, path: c"/some/where".to_owned(), follow: true }
        );
        let times: [i64; 4] = [5, 6, 7, 8];
        let at = times.as_ptr() as u64;
        let (target, change) = ask(&call(libc::SYS_utimensat, &[9, 0, at, 0])).unwrap().unwrap();
        assert_eq!((target, change), (Target::Descriptor(9), Change::Times(Some([(5, 6), (7, 8)]))));
        let (_, change) = ask(&call(libc::SYS_utimes, &[address, at])).unwrap().unwrap();
        assert_eq!(change, Change::Times(Some([(5, 6000), (7, 8000)])));
        assert!(ask(&call(libc::SYS_chmod, &[8, 0o755])).unwrap().is_err(), "there is no memory at 8");
        assert!(ask(&call(libc::SYS_open, &[address])).is_none());
    }

    #[test]
    fn what_is_found_is_what_is_changed() {
        let inside = tempfile::tempdir().unwrap();
        let file = inside.path().join("own");
        std::fs::write(&file, "x").unwrap();
        let broker = Broker::new(&[inside.path().to_owned()]).unwrap();
        let handle = target(&broker, &file).unwrap();
        metadata::set_mode(handle.as_fd(), 0o640).unwrap();
        metadata::set_times(handle.as_fd(), Some([(1, 0), (2, 0)])).unwrap();
        let meta = std::fs::metadata(&file).unwrap();
        assert_eq!((meta.permissions().mode() & 0o777, meta.mtime()), (0o640, 2));
    }
}
