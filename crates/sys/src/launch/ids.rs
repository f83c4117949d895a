//! Who the child is: parent, cgroup, user, network.

use crate::raw::{self, CWD, Errno, Result, fd, ptr, syscall};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, OwnedFd};

pub(super) fn die_with_parent() -> Result<()> {
    prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize)
}

pub(super) fn join_cgroup(procs: &OwnedFd) -> Result<()> {
    // "0" is the writer itself, whatever pid namespace it is in.
    raw::write_all(procs.as_raw_fd(), b"0")
}

pub(super) fn cgroup_namespace() -> Result<()> {
    unshare(libc::CLONE_NEWCGROUP)
}

/// Those that no other part of a launch happens in.
pub(super) fn quiet_namespaces() -> Result<()> {
    unshare(libc::CLONE_NEWNET | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS)
}

pub(super) fn mount_namespace() -> Result<()> {
    unshare(libc::CLONE_NEWNS)
}

pub(super) fn quiet_handles() -> Result<[i32; 3]> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let open = |path| raw::open(CWD, path, flags, 0);
    Ok([open(c"/proc/self/ns/net")?, open(c"/proc/self/ns/ipc")?, open(c"/proc/self/ns/uts")?])
}

pub(super) fn mounts_handle() -> Result<i32> {
    raw::open(CWD, c"/proc/self/ns/mnt", libc::O_RDONLY | libc::O_CLOEXEC, 0)
}

pub(super) fn enter(namespace: &OwnedFd) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_setns, [fd(namespace.as_raw_fd()), 0, 0, 0, 0, 0]) }.map(drop)
}

/// A process may map itself, once, to one id of its own, after giving up `setgroups`.
pub(super) fn map(uid: (u32, u32), gid: (u32, u32)) -> Result<()> {
    write_file(c"/proc/self/setgroups", b"deny")?;
    write_map(c"/proc/self/gid_map", gid)?;
    write_map(c"/proc/self/uid_map", uid)
}

/// Becomes a user of no group but its own.
pub(super) fn become_user((uid, gid): (u32, u32)) -> Result<()> {
    let (uid, gid) = (uid as usize, gid as usize);
    // SAFETY: numbers only. The raw calls change this thread alone, which is what is wanted: libc's
    // wrappers would signal the sleeping parent's threads.
    unsafe { syscall(libc::SYS_setgroups, [0, 0, 0, 0, 0, 0]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresgid, [gid, gid, gid, 0, 0, 0]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresuid, [uid, uid, uid, 0, 0, 0]) }.map(drop)
}

/// The mount and network namespaces stay owned by the host's user namespace, so that even a root
/// inside could neither mount nor reroute.
pub(super) fn late_user_namespace(inside: (u32, u32), outside: (u32, u32)) -> Result<()> {
    become_user(outside)?;
    unshare(libc::CLONE_NEWUSER)?;
    // The change of uid made us undumpable, and so /proc/self another's.
    prctl(libc::PR_SET_DUMPABLE, 1)?;
    map((inside.0, outside.0), (inside.1, outside.1))?;
    // A change of credentials forgets the parent-death signal.
    die_with_parent()
}

/// After a user namespace was entered, whose mapping has an id 0.
pub(super) fn become_root() -> Result<()> {
    // SAFETY: numbers only; as in `late_user_namespace`, the raw calls change this thread alone.
    unsafe { syscall(libc::SYS_setgroups, [0; 6]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresgid, [0; 6]) }?;
    // SAFETY: as above.
    unsafe { syscall(libc::SYS_setresuid, [0; 6]) }?;
    prctl(libc::PR_SET_DUMPABLE, 1)?;
    die_with_parent()
}

pub(super) fn loopback_up() -> Result<()> {
    let domain = [libc::AF_INET as usize, (libc::SOCK_DGRAM | libc::SOCK_CLOEXEC) as usize, 0, 0, 0, 0];
    // SAFETY: numbers only.
    let socket = raw::to_fd(unsafe { syscall(libc::SYS_socket, domain) }?);
    let mut request = InterfaceFlags { name: [0; 16], flags: libc::IFF_UP as i16, rest: [0; 22] };
    for (to, from) in request.name.iter_mut().zip(b"lo") {
        *to = *from;
    }
    let pointer = std::ptr::from_mut(&mut request) as usize;
    // SAFETY: `request` has the size and layout of `struct ifreq` and lives through the call.
    let result =
        unsafe { syscall(libc::SYS_ioctl, [fd(socket), libc::SIOCSIFFLAGS as usize, pointer, 0, 0, 0]) };
    raw::close(socket);
    result.map(drop)
}

/// `struct ifreq` as this call uses it.
#[repr(C)]
struct InterfaceFlags {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

pub(super) fn hostname(name: &CStr) -> Result<()> {
    // SAFETY: `name` is a live C string, read for its length.
    unsafe { syscall(libc::SYS_sethostname, [ptr(name), name.count_bytes(), 0, 0, 0, 0]) }.map(drop)
}

pub(super) fn prctl(option: i32, value: usize) -> Result<()> {
    // SAFETY: every option used here takes a number.
    unsafe { syscall(libc::SYS_prctl, [option as usize, value, 0, 0, 0, 0]) }.map(drop)
}

fn unshare(flags: i32) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_unshare, [flags as usize, 0, 0, 0, 0, 0]) }.map(drop)
}

fn write_file(path: &CStr, content: &[u8]) -> Result<()> {
    let file = raw::open(CWD, path, libc::O_WRONLY | libc::O_CLOEXEC, 0)?;
    let result = raw::write_all(file, content);
    raw::close(file);
    result
}

/// Writes `inside outside 1` without allocating.
fn write_map(path: &CStr, (inside, outside): (u32, u32)) -> Result<()> {
    let mut line = [0_u8; 32];
    let mut end = 0;
    for number in [inside, outside, 1] {
        end = push_number(&mut line, end, number)?;
    }
    write_file(path, line.get(..end).unwrap_or(&[]))
}

/// Appends a number and a space; three of ten digits fit in 33, and `1` is one of them.
fn push_number(line: &mut [u8; 32], mut end: usize, number: u32) -> Result<usize> {
    let mut digits = [0_u8; 10];
    let mut left = number;
    let mut first = digits.len();
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (left % 10) as u8;
        left /= 10;
        first = place;
        if left == 0 {
            break;
        }
    }
    for byte in digits.iter().skip(first).chain(b" ") {
        *line.get_mut(end).ok_or(Errno(libc::EINVAL))? = *byte;
        end += 1;
    }
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_kernel_reads_them() {
        let mut line = [0; 32];
        let mut end = 0;
        for number in [1000, u32::MAX, 1] {
            end = push_number(&mut line, end, number).unwrap();
        }
        assert_eq!(&line[..end], b"1000 4294967295 1 ");
    }
}
