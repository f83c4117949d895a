//! Where QEMU lives: its own namespaces, a root of read-only system folders, no capability, no network.
//!
//! ```text
//! /          memory-backed, empty but for these    /proc   fresh, of its own process namespace
//! /usr …     the host's, read-only                 /dev    null
//! /guest     what it boots from, read-only         descriptors 3 …   all else that it may use
//! ```

use crate::filter;
use fumehood_backend_native::identity::Identity;
use fumehood_sys::landlock::{Access, Ruleset};
use fumehood_sys::launch::{self, Attributes, Namespaces, Op, Program, Root, SpawnError, Spawned};
use fumehood_sys::notify::Listener;
use fumehood_sys::{process, socket};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Above the numbers that descriptors are placed at.
const FIRST_FREE_DESCRIPTOR: i32 = 24;
/// Tag of the filter's listener.
const LISTENER: u8 = 1;
/// The root holds folders and mount points only.
const ROOT_BYTES: u64 = 1 << 20;
const ROOT_FILES: u64 = 256;

const READ_ONLY: Attributes = Attributes { read_only: true, devices: false, executable: true };
const DATA: Attributes = Attributes { read_only: true, devices: false, executable: false };
const WRITABLE: Attributes = Attributes { read_only: false, devices: false, executable: false };
const DEVICE: Attributes = Attributes { read_only: false, devices: true, executable: false };

/// Limit numbers of this target.
const CORE: u32 = 4;

/// A program of the host's and what it gets.
#[derive(Debug)]
pub(crate) struct Jail {
    /// An existing folder of ours, covered in the jail's own mount namespace.
    pub(crate) stage: PathBuf,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<CString>,
    /// Placed from 3 on.
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Read-only views: host path, and the path inside without its first slash.
    pub(crate) views: Vec<(PathBuf, String)>,
}

/// A program that runs.
#[derive(Debug)]
pub(crate) struct Jailed {
    pub(crate) spawned: Spawned,
    /// The files that it asks to open for writing.
    pub(crate) listener: Listener,
    /// What it says of its own failure. Never waited for.
    pub(crate) words: OwnedFd,
}

// === impl Jail ===

impl Jail {
    /// Starts it as `identity`, in the cgroups of `joins`.
    pub(crate) fn start(
        self,
        identity: &Identity,
        joins: &[OwnedFd],
        landlock: u32,
    ) -> Result<Jailed, SpawnError> {
        let (words, error) = process::pipe(true).map_err(SpawnError::Clone)?;
        process::set_nonblocking(&error, true).map_err(SpawnError::Clone)?;
        let (ours, theirs) = socket::pair().map_err(SpawnError::Clone)?;
        let up = |file| process::move_up(file, FIRST_FREE_DESCRIPTOR);
        let error = up(error).map_err(SpawnError::Clone)?;
        let descriptors = self.descriptors.into_iter().map(up).collect::<io::Result<Vec<_>>>();
        let descriptors = descriptors.map_err(SpawnError::Clone)?;
        let theirs = up(theirs).map_err(SpawnError::Clone)?;
        let mut program = Program::default();
        enter(&mut program, identity, joins).map_err(SpawnError::Clone)?;
        root(&mut program, identity, &self.stage, &self.views);
        program.push("mount /proc", Op::Proc { target: c_string("proc") });
        program.push("enter the private root", Op::EnterRoot);
        program.push("set the resource limits", Op::Limit { resource: CORE, value: 0 });
        if identity.own {
            let op = Op::LateUserNamespace { inside: identity.inside, outside: identity.kernel };
            program.push("become the machine's user", op);
        }
        program.push("drop the capabilities", Op::DropCapabilities);
        program.push("forbid new privileges", Op::NoNewPrivileges);
        program.push("place the descriptors", Op::Handover { error, descriptors });
        let mut ruleset = Ruleset::new(landlock);
        ruleset.allow(c_string("/"), Access::Read);
        program.push("enforce Landlock", Op::Landlock(ruleset));
        let op = Op::Seccomp { filter: filter::filter(), socket: theirs, tag: LISTENER };
        program.push("enforce the system call filter", op);
        let op = Op::ExecutePath { path: c_path(&self.program), arguments: self.arguments };
        program.push("execute the machine", op);
        let namespaces =
            Namespaces { user: !identity.own, pids: true, mounts: true, quiet: true, names: false };
        let spawned = launch::spawn(&program, namespaces, None)?;
        drop(program);
        let listener = receive(&ours).map_err(SpawnError::Clone)?;
        Ok(Jailed { spawned, listener, words })
    }
}

/// Builds an image with a program of the host's that reads trusted files: as the caller, in namespaces of its own.
pub(crate) fn build(
    stage: &Path,
    (program_path, arguments): (&Path, Vec<CString>),
    views: &[(PathBuf, String)],
    output: &Path,
) -> Result<(), BuildError> {
    let identity = Identity::of_caller();
    let (words, error) = process::pipe(true).map_err(SpawnError::Clone)?;
    let error = process::move_up(error, FIRST_FREE_DESCRIPTOR).map_err(SpawnError::Clone)?;
    let mut program = Program::default();
    enter(&mut program, &identity, &[]).map_err(SpawnError::Clone)?;
    root(&mut program, &identity, stage, views);
    bind(&mut program, output, "image", WRITABLE);
    program.push("enter the private root", Op::EnterRoot);
    program.push("forbid new privileges", Op::NoNewPrivileges);
    program.push("place the descriptors", Op::Handover { error, descriptors: Vec::new() });
    program.push("execute mkfs.erofs", Op::ExecutePath { path: c_path(program_path), arguments });
    let namespaces = Namespaces { user: !identity.own, pids: true, mounts: true, quiet: true, names: false };
    let spawned = launch::spawn(&program, namespaces, None)?;
    drop(program);
    match process::reap(&spawned.pidfd) {
        Some(process::Ended::Exited(0)) => Ok(()),
        ended => Err(BuildError::Failed { why: format!("{ended:?}: {}", said(&words)) }),
    }
}

/// Why an image was not built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error(transparent)]
    Start(#[from] SpawnError),
    #[error("{why}")]
    Failed { why: String },
}

fn enter(program: &mut Program, identity: &Identity, joins: &[OwnedFd]) -> io::Result<()> {
    program.push("tie the machine to its keeper", Op::DieWithParent);
    program.push("take an ordinary priority", Op::OrdinaryPriority);
    program.push("clear the file mode mask", Op::ClearUmask);
    if !identity.own {
        let uid = (identity.inside.0, identity.kernel.0);
        let gid = (identity.inside.1, identity.kernel.1);
        if fumehood_sys::host::euid() != 0 {
            program.push("map the user", Op::MapIds { uid, gid });
        }
    }
    for join in joins {
        program.push("enter the cgroup", Op::JoinCgroup(join.try_clone()?));
    }
    program.push("make the mounts private", Op::MountsPrivate);
    Ok(())
}

fn root(program: &mut Program, identity: &Identity, stage: &Path, views: &[(PathBuf, String)]) {
    let at = c_path(stage);
    let root = Root { at, size_bytes: ROOT_BYTES, inodes: ROOT_FILES, devices: identity.own };
    program.push("make the private root", Op::NewRoot(root));
    for name in ["proc", "dev", "etc", "guest", "tree"] {
        folder(program, name);
    }
    bind(program, Path::new("/usr"), "usr", READ_ONLY);
    for name in ["bin", "lib", "lib32", "lib64", "libx32"] {
        let path = Path::new("/").join(name);
        if let Ok(target) = std::fs::read_link(&path) {
            let op = Op::Symlink { to: c_path(&target), path: c_string(name) };
            program.push("link the system folders", op);
        } else if path.is_dir() {
            bind(program, &path, name, READ_ONLY);
        }
    }
    let cache = Path::new("/etc/ld.so.cache");
    if cache.is_file() {
        bind(program, cache, "etc/ld.so.cache", DATA);
    }
    bind(program, Path::new("/dev/null"), "dev/null", DEVICE);
    for (host, inside) in views {
        let above: Vec<&Path> = Path::new(inside).ancestors().skip(1).collect();
        for folder_above in above.into_iter().rev().filter(|above| !above.as_os_str().is_empty()) {
            folder(program, &folder_above.to_string_lossy());
        }
        bind(program, host, inside, DATA);
    }
}

fn folder(program: &mut Program, name: &str) {
    let op = Op::MakeDir { path: c_string(name), mode: 0o755, owner: None };
    program.push("make the folders of the root", op);
}

fn bind(program: &mut Program, source: &Path, target: &str, attributes: Attributes) {
    let op = Op::Bind { source: c_path(source), target: c_string(target), attributes, idmap: None };
    program.push("show the host's files", op);
}

fn receive(socket: &OwnedFd) -> io::Result<Listener> {
    let mut tag = [0_u8; 1];
    let packet = socket::receive(socket.as_fd(), &mut tag)?;
    let listener = packet.descriptors.into_iter().next().filter(|_| tag == [LISTENER]);
    listener.map(Listener::from).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What a program wrote to its standard error so far, in one line and not all of it.
pub(crate) fn said(words: &OwnedFd) -> String {
    let Ok(file) = words.try_clone().map(std::fs::File::from) else { return String::new() };
    let mut bytes = [0_u8; 2048];
    let count = io::Read::read(&mut &file, &mut bytes).unwrap_or(0);
    let text = String::from_utf8_lossy(bytes.get(..count).unwrap_or_default());
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect();
    plain.trim().to_owned()
}

pub(crate) fn c_path(path: &Path) -> CString {
    c_bytes(path.as_os_str())
}

pub(crate) fn c_string(text: &str) -> CString {
    c_bytes(OsStr::new(text))
}

/// Checked paths have no NUL; one that did would name nothing.
fn c_bytes(text: &OsStr) -> CString {
    CString::new(text.as_bytes()).unwrap_or_default()
}
