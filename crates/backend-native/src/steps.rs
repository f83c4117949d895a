//! Steps of a launch that are the same for every level with the private root, and why they failed.

use crate::gateway;
use crate::identity::NoneFree;
use crate::root::{beneath, c_path, c_string};
use fumehood_backend::LaunchError;
use fumehood_model::envelope::Envelope;
use fumehood_sys::launch::{Op, Owner, Program, SpawnError};
use fumehood_sys::socket;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

/// Tag of the packet that carries the handle of `/out`, and of the one that carries the root's.
pub const OUTPUT: u8 = 1;
pub const ROOT: u8 = 2;
/// Tag of the filter's listener.
pub const LISTENER: u8 = 3;

/// `ELOOP`
const LINK_IN_THE_WAY: i32 = 40;

/// A host file that is copied in.
#[derive(Debug)]
pub struct OpenInput {
    pub(crate) file: File,
    /// Absolute, inside.
    pub(crate) at: String,
    /// A program stays one; nothing else of the mode enters.
    pub(crate) mode: u32,
}

/// Adds the steps that copy files in, beneath `root` (empty: the root that was entered).
pub fn copy_in(program: &mut Program, inputs: Vec<OpenInput>, root: &str, owner: Owner) {
    for OpenInput { file, at, mode } in inputs {
        let at = format!("{root}{at}");
        let above: Vec<_> = std::path::Path::new(&at).ancestors().skip(1).map(c_path).collect();
        for folder in above
            .into_iter()
            .rev()
            .filter(|folder| folder.as_bytes() != b"/" && folder.as_bytes() != root.as_bytes())
        {
            program.push("copy the inputs in", Op::MakeDir { path: folder, mode: 0o755, owner });
        }
        let op = Op::CopyFile { from: file.into(), path: c_string(&at), mode, owner };
        program.push("copy the inputs in", op);
    }
}

/// What the child handed over before anything untrusted ran.
#[derive(Debug, Default)]
pub struct Handed {
    pub output: Option<OwnedFd>,
    pub root: Option<OwnedFd>,
    pub listener: Option<OwnedFd>,
    /// The gateway's.
    pub sockets: Vec<OwnedFd>,
}

// === impl Handed ===

impl Handed {
    /// Takes everything that comes through a socket.
    #[must_use]
    pub fn receive(socket: &OwnedFd) -> Self {
        let mut handed = Self::default();
        let mut tag = [0_u8; 1];
        while let Ok(packet) = socket::receive(socket.as_fd(), &mut tag) {
            if packet.length == 0 {
                break;
            }
            if tag == [gateway::SOCKETS] {
                handed.sockets.extend(packet.descriptors);
                continue;
            }
            let handle = packet.descriptors.into_iter().next();
            match tag {
                [OUTPUT] => handed.output = handle,
                [LISTENER] => handed.listener = handle,
                _ => handed.root = handle,
            }
        }
        handed
    }
}

/// Opens the files that are copied in.
///
/// # Errors
/// One of them is not a regular file that we can read.
pub fn open_inputs(envelope: &Envelope) -> Result<Vec<OpenInput>, LaunchError> {
    let open = |input: &fumehood_model::envelope::Input| {
        let fail = |why: String| LaunchError {
            step: format!("read the input `{}`", input.source.display()),
            why,
            remedy: "name a file that you can read with `--in`; a folder is shown with `--ro`".to_owned(),
        };
        let (file, host_mode) = open_plain(&input.source).map_err(|error| fail(reason(&error)))?;
        let mode = if host_mode & 0o111 == 0 { 0o644 } else { 0o755 };
        Ok(OpenInput { file, at: format!("/{}", beneath(&input.at)), mode })
    };
    envelope.filesystem().inputs.iter().map(open).collect()
}

/// Opens a regular file without ever waiting for a fifo, and tells its mode.
fn open_plain(path: &std::path::Path) -> io::Result<(File, u32)> {
    use std::os::unix::fs::OpenOptionsExt as _;
    /// `O_NONBLOCK` on this target.
    const NONBLOCKING: i32 = 0o4000;
    let file = File::options().read(true).custom_flags(NONBLOCKING).open(path)?;
    let meta = file.metadata()?;
    if meta.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&meta);
    Ok((file, mode))
}

/// There was no kernel uid to be had.
#[must_use]
pub fn no_identity(error: &NoneFree) -> LaunchError {
    const STEP: &str = "take a kernel uid";
    match error {
        NoneFree::Held => LaunchError {
            step: STEP.to_owned(),
            why: error.to_string(),
            remedy: "end some of the sandboxes that run on this host".to_owned(),
        },
        NoneFree::Host(source) => prepare(STEP, source),
    }
}

/// Why a step of our own failed.
#[must_use]
pub fn prepare(step: &str, error: &io::Error) -> LaunchError {
    LaunchError { step: step.to_owned(), why: reason(error), remedy: remedy(step, error) }
}

/// Why there is no child.
#[must_use]
pub fn explain(error: &SpawnError) -> LaunchError {
    match error {
        SpawnError::Clone(source) => prepare("make the namespaces", source),
        SpawnError::Step { step, source } => prepare(step, source),
        SpawnError::Died => LaunchError {
            step: "execute init".to_owned(),
            why: "the first process ended before it ran".to_owned(),
            remedy: "give the sandbox more memory with `--memory`".to_owned(),
        },
    }
}

/// The kernel's word, without the number that Rust adds.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn remedy(step: &str, error: &io::Error) -> String {
    let text = match (step, error.kind()) {
        ("make the namespaces" | "map the user", io::ErrorKind::PermissionDenied) => {
            "this host forbids user namespaces to ordinary users: `fumehood doctor` says what allows them"
        }
        ("make the namespaces", _) => {
            "raise `/proc/sys/user/max_user_namespaces` and its neighbours, or end other sandboxes"
        }
        ("mount /proc", _) => {
            "an outer container covers parts of /proc: start it with `--security-opt systempaths=unconfined`"
        }
        ("mount the workspace", _) => {
            "keep the state folder (`FUMEHOOD_STATE`) on a local file system such as ext4, xfs, btrfs or tmpfs, or show the workspace with `:ro` or `:rw`"
        }
        ("show a read-only path", io::ErrorKind::ReadOnlyFilesystem) => {
            "the place inside does not exist, and its folder is read-only there: give another, as in `--ro PATH:/data/NAME`"
        }
        ("see the workspace as the sandbox's own" | "show the workspace" | "show a read-only path", _) => {
            "the path must exist, and its file system must support id-mapped mounts when root starts the sandbox; an ordinary user needs no such support"
        }
        _ if error.raw_os_error() == Some(LINK_IN_THE_WAY) => {
            "a link stands on the way to that place inside, where an earlier command or the workspace put it: name the place that it leads to, or remove it"
        }
        ("copy the inputs in", io::ErrorKind::AlreadyExists) => {
            "the workspace has a file of that name already: give the input another place, as in `--in FILE:/workspace/in/FILE`"
        }
        ("copy the inputs in", io::ErrorKind::ReadOnlyFilesystem) => {
            "an input's place is in a folder that is read-only inside: give it another, as in `--in FILE:/workspace/in/FILE`"
        }
        ("show the image's /etc", _) => "`--image` takes an unpacked root folder, with `etc` and `usr` in it",
        ("copy the inputs in", _) => {
            "give each input its own destination, and keep them smaller than the scratch folder (half of `--memory`)"
        }
        ("redirect in the gateway", _) => {
            "load the modules nf_tables and nft_nat, or name single ports: those need no packet filter"
        }
        ("make the gateway's network" | "listen in the gateway" | "join the sandbox to its gateway", _) => {
            "the kernel needs IPv6, packet sockets and veth (`CONFIG_IPV6`, `CONFIG_PACKET`, `CONFIG_VETH`), and `/proc/sys/net` writable; without rules none of it is needed"
        }
        (step, io::ErrorKind::StorageFull) if step.contains("namespace") => {
            "the kernel allows no more namespaces: raise its limits in `/proc/sys/user`, as in `sysctl -w user.max_user_namespaces=15000`"
        }
        _ => fumehood_model::remedy::of_io(error)
            .unwrap_or("`fumehood doctor` looks at what this host can hold"),
    };
    text.to_owned()
}
