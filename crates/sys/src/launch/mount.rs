//! Mounts, by the new mount API: a mount is made complete and detached, then put in its place.

use super::node;
use super::op::{Attributes, Owner, Root};
use crate::raw::{self, CWD, EMPTY, Errno, Result, fd, ptr, syscall};
use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd, RawFd};

// `include/uapi/linux/mount.h`
const OPEN_TREE_CLONE: usize = 1;
const OPEN_TREE_CLOEXEC: usize = libc::O_CLOEXEC as usize;
const MOVE_MOUNT_F_EMPTY_PATH: usize = 4;
const MOVE_MOUNT_T_EMPTY_PATH: usize = 0x40;
const FSOPEN_CLOEXEC: usize = 1;
const FSMOUNT_CLOEXEC: usize = 1;
const FSCONFIG_SET_FLAG: usize = 0;
const FSCONFIG_SET_STRING: usize = 1;
const FSCONFIG_CMD_CREATE: usize = 6;
const FSCONFIG_CMD_RECONFIGURE: usize = 7;
const FSPICK_CLOEXEC: usize = 1;
const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const AT_RECURSIVE: usize = 0x8000;
const AT_EMPTY_PATH: usize = libc::AT_EMPTY_PATH as usize;

/// `struct mount_attr`
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns: u64,
}

impl Attributes {
    fn bits(self) -> u64 {
        let bit = |on: bool, bit: u64| if on { bit } else { 0 };
        MOUNT_ATTR_NOSUID
            | bit(self.read_only, MOUNT_ATTR_RDONLY)
            | bit(!self.devices, MOUNT_ATTR_NODEV)
            | bit(!self.executable, MOUNT_ATTR_NOEXEC)
    }
}

pub(super) fn private() -> Result<()> {
    let flags = libc::MS_REC | libc::MS_PRIVATE;
    // SAFETY: live C strings; the other pointers are null, which this form of the call allows.
    unsafe { syscall(libc::SYS_mount, [ptr(c"none"), ptr(c"/"), 0, flags as usize, 0, 0]) }.map(drop)
}

pub(super) fn new_root(root: &Root) -> Result<()> {
    let (mut size, mut inodes) = ([0; 24], [0; 24]);
    let [size, inodes] = extent(&mut size, root.size_bytes, &mut inodes, root.inodes);
    let options = [size, inodes, (c"mode", c"0755")];
    let attributes = Attributes { read_only: false, devices: root.devices, executable: true };
    let tree = filesystem(c"tmpfs", &options, &[], attributes)?;
    let result = place(tree, &root.at).and_then(|()| chdir_to(tree));
    raw::close(tree);
    result
}

/// Gives the memory-backed file system of the working directory another size.
pub(super) fn resize_root(size_bytes: u64, inodes: u64) -> Result<()> {
    let (mut size, mut files) = ([0; 24], [0; 24]);
    let options = extent(&mut size, size_bytes, &mut files, inodes);
    // SAFETY: a live C string.
    let context = unsafe { syscall(libc::SYS_fspick, [fd(CWD), ptr(c"."), FSPICK_CLOEXEC, 0, 0, 0]) };
    let context = context.map(raw::to_fd)?;
    let result = configure(context, &options, &[], FSCONFIG_CMD_RECONFIGURE);
    raw::close(context);
    result
}

/// How much fits into a memory-backed file system.
fn extent<'a>(
    size: &'a mut [u8; 24],
    size_bytes: u64,
    files: &'a mut [u8; 24],
    inodes: u64,
) -> [(&'static CStr, &'a CStr); 2] {
    [(c"size", decimal(size, size_bytes)), (c"nr_inodes", decimal(files, inodes))]
}

/// Puts a detached mount onto an existing folder.
pub(super) fn attach(tree: &OwnedFd, at: &CStr) -> Result<()> {
    place(tree.as_raw_fd(), at)
}

pub(super) fn bind(
    source: &CStr,
    target: &CStr,
    attributes: Attributes,
    idmap: Option<&OwnedFd>,
) -> Result<()> {
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | recursive(idmap);
    // SAFETY: `source` is a live C string.
    let tree =
        unsafe { syscall(libc::SYS_open_tree, [fd(CWD), ptr(source), flags, 0, 0, 0]) }.map(raw::to_fd)?;
    finish_bind(tree, target, attributes, idmap)
}

/// A read-only view of a folder of the tree at `root`, whose links do not lead out of that tree.
pub(super) fn bind_within(root: &CStr, source: &CStr, target: &CStr, attributes: Attributes) -> Result<()> {
    let found = node::open_within(root, source)?;
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE;
    // SAFETY: the descriptor is open; the path is empty.
    let tree = unsafe { syscall(libc::SYS_open_tree, [fd(found), ptr(EMPTY), flags, 0, 0, 0]) };
    raw::close(found);
    finish_bind(tree.map(raw::to_fd)?, target, attributes, None)
}

/// Everything beneath is taken along, or a locked mount could be looked under. An id-mapped view is
/// of one file system only: others beneath it may not support the mapping.
fn recursive(idmap: Option<&OwnedFd>) -> usize {
    if idmap.is_some() { 0 } else { AT_RECURSIVE }
}

fn finish_bind(tree: RawFd, target: &CStr, attributes: Attributes, idmap: Option<&OwnedFd>) -> Result<()> {
    let result = restrict(tree, attributes, idmap).and_then(|()| place_or_make(tree, target));
    raw::close(tree);
    result
}

fn restrict(tree: RawFd, attributes: Attributes, idmap: Option<&OwnedFd>) -> Result<()> {
    let mut wanted = MountAttr { set: attributes.bits(), clear: 0, propagation: libc::MS_PRIVATE, userns: 0 };
    if let Some(namespace) = idmap {
        wanted.set |= MOUNT_ATTR_IDMAP;
        wanted.userns = namespace.as_raw_fd() as u64;
    }
    let flags = AT_EMPTY_PATH | recursive(idmap);
    let pointer = std::ptr::from_ref(&wanted) as usize;
    let size = size_of::<MountAttr>();
    // SAFETY: `wanted` has the kernel's layout and lives through the call.
    unsafe { syscall(libc::SYS_mount_setattr, [fd(tree), ptr(EMPTY), flags, pointer, size, 0]) }.map(drop)
}

pub(super) fn tmpfs(
    target: &CStr,
    size_bytes: u64,
    mode: u32,
    owner: Owner,
    attributes: Attributes,
) -> Result<()> {
    let mut size = [0; 24];
    let options = [(c"size", decimal(&mut size, size_bytes)), (c"mode", c"0755")];
    let tree = filesystem(c"tmpfs", &options, &[], attributes)?;
    let result = node::own(tree, mode, owner).and_then(|()| place(tree, target));
    raw::close(tree);
    result
}

pub(super) fn overlay(lower: &CStr, upper: &CStr, work: &CStr, target: &CStr) -> Result<()> {
    let options = [(c"lowerdir", lower), (c"upperdir", upper), (c"workdir", work)];
    let attributes = Attributes { read_only: false, devices: false, executable: true };
    // `userxattr`: the marks can be read back without privilege, and redirects are not followed.
    let tree = filesystem(c"overlay", &options, &[c"userxattr"], attributes)?;
    // The kernel answers a work folder that it can not use with an overlay that can not be written.
    let result = match node::is_read_only(tree) {
        Ok(false) => place(tree, target),
        Ok(true) => Err(Errno(libc::EROFS)),
        Err(errno) => Err(errno),
    };
    raw::close(tree);
    result
}

/// `lowers` names the folder to show and an empty one: an overlay needs two layers, and none to write to.
pub(super) fn view(
    source: &CStr,
    lowers: &CStr,
    staged: Option<(&OwnedFd, &CStr)>,
    target: &CStr,
) -> Result<()> {
    let attributes = Attributes { read_only: true, devices: false, executable: true };
    if let Some((idmap, stage)) = staged {
        bind(source, stage, attributes, Some(idmap))?;
    }
    if !node::exists_beneath(target)? {
        node::make_dir(target, 0o755, None)?;
    }
    mount(c"overlay", &[(c"lowerdir", lowers)], &[c"userxattr"], attributes, target)
}

pub(super) fn proc(target: &CStr) -> Result<()> {
    mount(c"proc", &[], &[], Attributes { read_only: false, devices: false, executable: false }, target)
}

pub(super) fn devpts(target: &CStr) -> Result<()> {
    // The host has a few thousand for all; one sandbox must not take them from its neighbours.
    let options = [(c"ptmxmode", c"0666"), (c"mode", c"0620"), (c"max", c"256")];
    let attributes = Attributes { read_only: false, devices: true, executable: false };
    mount(c"devpts", &options, &[c"newinstance"], attributes, target)
}

/// Covers `target` with a read-only view of `source`; a target that is not there needs no cover. It is
/// looked for first: a view that is made and then let go costs the kernel a grace period.
pub(super) fn mask(source: &CStr, target: &CStr) -> Result<()> {
    if !node::exists_beneath(target)? {
        return Ok(());
    }
    let flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC;
    // SAFETY: `source` is a live C string.
    let tree = raw::to_fd(unsafe { syscall(libc::SYS_open_tree, [fd(CWD), ptr(source), flags, 0, 0, 0]) }?);
    let attributes = Attributes { read_only: true, devices: true, executable: false };
    let result = restrict(tree, attributes, None).and_then(|()| place(tree, target));
    raw::close(tree);
    result
}

pub(super) fn enter_root() -> Result<()> {
    // The old root ends up stacked on the new one, and is let go whole.
    // SAFETY: live C strings.
    unsafe { syscall(libc::SYS_pivot_root, [ptr(c"."), ptr(c"."), 0, 0, 0, 0]) }?;
    // SAFETY: a live C string.
    unsafe { syscall(libc::SYS_umount2, [ptr(c"."), libc::MNT_DETACH as usize, 0, 0, 0, 0]) }?;
    // SAFETY: a live C string.
    unsafe { syscall(libc::SYS_chdir, [ptr(c"/"), 0, 0, 0, 0, 0]) }.map(drop)
}

fn mount(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    flags: &[&CStr],
    attributes: Attributes,
    target: &CStr,
) -> Result<()> {
    let tree = filesystem(kind, options, flags, attributes)?;
    let result = place(tree, target);
    raw::close(tree);
    result
}

/// A file system of `kind`, mounted nowhere, for whoever holds the descriptor. Nothing on it is executed.
pub(crate) fn detached(kind: &CStr, options: &[(&CStr, &CStr)], flags: &[&CStr]) -> std::io::Result<OwnedFd> {
    let attributes = Attributes { read_only: false, devices: false, executable: false };
    let tree = filesystem(kind, options, flags, attributes)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(tree) })
}

/// A new file system, mounted and detached.
fn filesystem(
    kind: &CStr,
    options: &[(&CStr, &CStr)],
    flags: &[&CStr],
    attributes: Attributes,
) -> Result<RawFd> {
    // SAFETY: a live C string.
    let context =
        unsafe { syscall(libc::SYS_fsopen, [ptr(kind), FSOPEN_CLOEXEC, 0, 0, 0, 0]) }.map(raw::to_fd)?;
    let result = configure(context, options, flags, FSCONFIG_CMD_CREATE).and_then(|()| {
        let bits = attributes.bits() as usize;
        // SAFETY: numbers only.
        unsafe { syscall(libc::SYS_fsmount, [fd(context), FSMOUNT_CLOEXEC, bits, 0, 0, 0]) }
    });
    raw::close(context);
    result.map(raw::to_fd)
}

fn configure(context: RawFd, options: &[(&CStr, &CStr)], flags: &[&CStr], command: usize) -> Result<()> {
    for flag in flags {
        // SAFETY: a live C string; the value is null for a flag.
        unsafe { syscall(libc::SYS_fsconfig, [fd(context), FSCONFIG_SET_FLAG, ptr(flag), 0, 0, 0]) }?;
    }
    for (key, value) in options {
        // SAFETY: live C strings.
        unsafe {
            syscall(libc::SYS_fsconfig, [fd(context), FSCONFIG_SET_STRING, ptr(key), ptr(value), 0, 0])
        }?;
    }
    // SAFETY: no pointer is passed.
    unsafe { syscall(libc::SYS_fsconfig, [fd(context), command, 0, 0, 0, 0]) }.map(drop)
}

/// Puts a tree onto what stands at `target`: a folder of ours on the host when it is absolute, and
/// otherwise a place of the new root, on whose way a guest may have left links.
fn place(tree: RawFd, target: &CStr) -> Result<()> {
    if target.to_bytes().first() == Some(&b'/') {
        let from = [fd(tree), ptr(EMPTY), fd(CWD), ptr(target), MOVE_MOUNT_F_EMPTY_PATH, 0];
        // SAFETY: live C strings and an open descriptor.
        return unsafe { syscall(libc::SYS_move_mount, from) }.map(drop);
    }
    let at = node::open_beneath(target)?;
    let flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH;
    // SAFETY: open descriptors; the paths are empty.
    let placed =
        unsafe { syscall(libc::SYS_move_mount, [fd(tree), ptr(EMPTY), fd(at), ptr(EMPTY), flags, 0]) };
    raw::close(at);
    placed.map(drop)
}

/// Places a tree, making the mount point (file or folder, as the tree's root is) where it is missing.
fn place_or_make(tree: RawFd, target: &CStr) -> Result<()> {
    if target.to_bytes().first() != Some(&b'/') && !node::exists_beneath(target)? {
        if node::is_folder(tree)? {
            node::make_dir(target, 0o755, None)?;
        } else {
            node::write_file(target, None, &[], 0o444)?;
        }
    }
    place(tree, target)
}

fn chdir_to(tree: RawFd) -> Result<()> {
    // SAFETY: numbers only.
    unsafe { syscall(libc::SYS_fchdir, [fd(tree), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Prints a number into `buffer` as a C string, without allocating.
fn decimal(buffer: &mut [u8; 24], number: u64) -> &CStr {
    let mut left = number;
    let mut start = buffer.len() - 1;
    // The last byte stays NUL; 20 digits are the most there can be.
    for (place, byte) in buffer.iter_mut().enumerate().take(23).rev() {
        *byte = b'0' + (left % 10) as u8;
        left /= 10;
        start = place;
        if left == 0 {
            break;
        }
    }
    buffer.get(start..).and_then(|bytes| CStr::from_bytes_with_nul(bytes).ok()).unwrap_or(c"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_whole() {
        for number in [0, 9, 10, 4096, u64::MAX] {
            assert_eq!(decimal(&mut [0; 24], number).to_str().unwrap(), number.to_string());
        }
    }
}
