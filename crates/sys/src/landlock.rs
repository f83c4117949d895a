//! Landlock: rules for paths that hold even for a process that has every other permission.

use crate::raw::{self, CWD, Errno, Result, fd, syscall};
use std::ffi::{CStr, CString};

/// What is allowed beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read one file: the path is no folder.
    ReadFile,
    /// Read, list and execute.
    Read,
    /// Open existing files for writing, and device ioctls; nothing is made or removed.
    Use,
    /// Everything.
    Write,
}

/// Rules to enforce on this thread and what it starts.
#[derive(Clone, Debug)]
pub struct Ruleset {
    abi: u32,
    rules: Vec<(CString, Access)>,
}

#[repr(C)]
struct RulesetAttr {
    files: u64,
    network: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: i32,
}

// `include/uapi/linux/landlock.h`
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 1 << 1;
const CREATE_RULESET_VERSION: usize = 1;
const RULE_PATH_BENEATH: usize = 1;

/// The newest interface version of this kernel, or `None` where Landlock is not there or not on.
pub fn abi() -> Option<u32> {
    // SAFETY: the version query takes no attribute.
    let version = unsafe { syscall(SYS_CREATE, [0, 0, CREATE_RULESET_VERSION, 0, 0, 0]) };
    version.ok().and_then(|version| u32::try_from(version).ok())
}

const SYS_CREATE: libc::c_long = libc::SYS_landlock_create_ruleset;
const SYS_ADD: libc::c_long = libc::SYS_landlock_add_rule;
const SYS_RESTRICT: libc::c_long = libc::SYS_landlock_restrict_self;

// === impl Ruleset ===

impl Ruleset {
    /// Rules for a kernel that speaks version `abi`: what that version can not judge is not handled.
    pub fn new(abi: u32) -> Self {
        Self { abi, rules: Vec::new() }
    }

    /// Allows `access` beneath `path`; a path that is not there needs no rule.
    pub fn allow(&mut self, path: CString, access: Access) {
        self.rules.push((path, access));
    }

    /// Every file right that this version knows.
    const fn handled(&self) -> u64 {
        match self.abi {
            0 | 1 => (1 << 13) - 1,
            2 => (1 << 14) - 1,
            3 | 4 => (1 << 15) - 1,
            _ => (1 << 16) - 1,
        }
    }

    const fn rights(&self, access: Access) -> u64 {
        let read = EXECUTE | READ_FILE | READ_DIR;
        self.handled()
            & match access {
                Access::Read => read,
                Access::ReadFile => READ_FILE,
                Access::Use => read | WRITE_FILE | TRUNCATE | IOCTL_DEV,
                Access::Write => u64::MAX,
            }
    }

    /// Kernel calls only. Needs `no_new_privs` or privilege.
    pub(crate) fn enforce(&self) -> Result<()> {
        let scoped = if self.abi >= 6 { SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL } else { 0 };
        let attr = RulesetAttr { files: self.handled(), network: 0, scoped };
        // Older kernels know a shorter structure and refuse a longer one only if it says something.
        let size = if self.abi >= 6 { size_of::<RulesetAttr>() } else { 8 };
        let pointer = std::ptr::from_ref(&attr) as usize;
        // SAFETY: `attr` has the kernel's layout and lives through the call.
        let ruleset = unsafe { syscall(SYS_CREATE, [pointer, size, 0, 0, 0, 0]) }.map(raw::to_fd)?;
        let result = self.rules.iter().try_for_each(|(path, access)| self.add(ruleset, path, *access));
        let result = result.and_then(|()| {
            // SAFETY: numbers only.
            unsafe { syscall(SYS_RESTRICT, [fd(ruleset), 0, 0, 0, 0, 0]) }.map(drop)
        });
        raw::close(ruleset);
        result
    }

    fn add(&self, ruleset: i32, path: &CStr, access: Access) -> Result<()> {
        let parent = match raw::open(CWD, path, libc::O_PATH | libc::O_CLOEXEC, 0) {
            Ok(parent) => parent,
            // What this user can not get to needs no leave either.
            Err(Errno(libc::ENOENT | libc::EACCES)) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let rights = self.rights(access);
        // The kernel takes no rights about the content of a folder for what is none.
        let allowed = match crate::launch::node::is_folder(parent) {
            Ok(true) => Ok(rights),
            Ok(false) => Ok(rights & FILE_RIGHTS),
            Err(errno) => Err(errno),
        };
        let allowed = allowed.inspect_err(|_| raw::close(parent))?;
        let rule = PathBeneath { allowed, parent };
        let pointer = std::ptr::from_ref(&rule) as usize;
        // SAFETY: `rule` has the kernel's packed layout and lives through the call.
        let result = unsafe { syscall(SYS_ADD, [fd(ruleset), RULE_PATH_BENEATH, pointer, 0, 0, 0]) };
        raw::close(parent);
        result.map(drop)
    }
}
