//! One QEMU: its command line, its start, and its first words.
//!
//! The machine is `microvm`: no PCI, no firmware tables but where a packaged kernel needs them, and these devices
//! only, in this order (which is part of the snapshot): a serial port for guestd's stream, the root image, the
//! workspace's slot, randomness, and a network card where the envelope has rules.

use crate::dialogue::Fault;
use crate::jail::{Jail, Jailed, c_string, said};
use crate::qmp::Monitor;
use fumehood_backend::LaunchError;
use fumehood_backend_native::identity::Identity;
use fumehood_sys::launch::{SpawnError, Spawned};
use fumehood_sys::notify::Listener;
use fumehood_sys::poll::{self, Interest};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long QEMU may take to ask for its memory: it loads libraries before.
const MEMORY_LIMIT: Duration = Duration::from_secs(30);
/// For what its monitor is asked while it runs.
const SAVE_LIMIT: Duration = Duration::from_secs(120);
const MONITOR_LIMIT: Duration = Duration::from_secs(10);
/// The path that QEMU believes its memory to have. There is no such file.
const MEMORY: &str = "/guest/memory";
/// Of an address range that is nobody's; both ends of the link have it.
const HARDWARE: &str = "02:66:75:6d:65:68";

/// Descriptor numbers in QEMU.
pub(crate) const STREAM: u32 = 3;
const MONITOR: u32 = 4;
const ROOT: u32 = 5;
const SLOT: u32 = 6;
/// The state that is written or loaded.
pub(crate) const STATE: u32 = 7;
const TAP: u32 = 8;

/// What the machine is, beyond its contents. A snapshot fits one of these alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hardware {
    pub(crate) memory_mib: u64,
    pub(crate) network: bool,
    /// Whether the kernel finds its devices by ACPI, as packaged ones do, and not by its command line.
    pub(crate) acpi: bool,
}

/// Where it begins.
#[derive(Debug)]
pub(crate) enum Start<'a> {
    Boot {
        kernel: &'a Path,
        initramfs: &'a Path,
        command_line: &'a str,
    },
    /// From all of a machine that ran, into memory that others will share; it is not let go on.
    Convert,
    Restore,
}

/// What it is started with.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Guest memory: read-only and mapped privately for a restore, else shared and writable.
    pub(crate) memory: OwnedFd,
    pub(crate) root: OwnedFd,
    pub(crate) slot: OwnedFd,
    pub(crate) state: OwnedFd,
    pub(crate) tap: Option<OwnedFd>,
}

/// Who runs it, and where.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    pub(crate) qemu: &'a Path,
    pub(crate) stage: PathBuf,
    pub(crate) identity: &'a Identity,
    pub(crate) joins: &'a [OwnedFd],
    pub(crate) landlock: u32,
}

/// A QEMU that runs.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) spawned: Spawned,
    /// To guestd.
    pub(crate) stream: UnixStream,
    pub(crate) monitor: Monitor,
    pub(crate) listener: Listener,
    pub(crate) words: OwnedFd,
}

// === impl Machine ===

impl Machine {
    /// Starts it, and gives it its memory.
    pub(crate) fn start(
        hardware: Hardware,
        start: &Start<'_>,
        parts: Parts,
        place: &Place<'_>,
        deadline: Instant,
    ) -> Result<Self, LaunchError> {
        let pair = || UnixStream::pair().map_err(|error| failed("make the machine's streams", &error));
        let ((stream, its_stream), (monitor, its_monitor)) = (pair()?, pair()?);
        let Parts { memory, root, slot, state, tap } = parts;
        let mut descriptors = vec![its_stream.into(), its_monitor.into(), root, slot, state];
        descriptors.extend(tap);
        let views = match start {
            Start::Boot { kernel, initramfs, .. } => vec![
                (kernel.to_path_buf(), "guest/kernel".to_owned()),
                (initramfs.to_path_buf(), "guest/initramfs".to_owned()),
            ],
            Start::Convert | Start::Restore => Vec::new(),
        };
        let arguments = arguments(hardware, start, place.qemu);
        let arguments = arguments.iter().map(|argument| c_string(argument)).collect();
        let (stage, program) = (place.stage.clone(), place.qemu.to_owned());
        let jail = Jail { stage, program, arguments, descriptors, views };
        let Jailed { spawned, listener, words } =
            jail.start(place.identity, place.joins, place.landlock).map_err(|error| unstarted(&error))?;
        let machine = Self { spawned, stream, monitor: Monitor::new(monitor, deadline), listener, words };
        machine.give_memory(&memory)?;
        Ok(machine)
    }

    /// Answers what QEMU asks to open for writing, until it has its memory.
    fn give_memory(&self, memory: &OwnedFd) -> Result<(), LaunchError> {
        const STEP: &str = "give the machine its memory";
        let deadline = Instant::now() + MEMORY_LIMIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let set = [(self.listener.as_fd(), Interest::Read), (self.spawned.pidfd.as_fd(), Interest::Read)];
            let found = poll::wait(&set, Some(left)).map_err(|error| failed(STEP, &error))?;
            if found.get(1).is_some_and(|ended| ended.ready) {
                return Err(self.died());
            }
            if left.is_zero() {
                return Err(failed(STEP, &io::ErrorKind::TimedOut.into()));
            }
            let Some(call) = self.listener.next() else { continue };
            let [_, path, ..] = call.arguments;
            let path = self.listener.text(call, path).unwrap_or_default();
            let answered = match path.as_slice() {
                path if path == MEMORY.as_bytes() => {
                    self.listener.give(call, memory.as_fd()).map_err(|error| failed(STEP, &error))?;
                    return Ok(());
                }
                b"/dev/null" => File::options()
                    .read(true)
                    .write(true)
                    .open("/dev/null")
                    .and_then(|null| self.listener.give(call, null.as_fd())),
                _ => self.listener.refuse(call, NO_ENTRY),
            };
            answered.map_err(|error| failed(STEP, &error))?;
        }
    }

    /// Stops its processor. Its devices still answer.
    pub(crate) fn pause(&mut self) -> io::Result<()> {
        self.monitor.extend(Instant::now() + MONITOR_LIMIT);
        self.monitor.pause()
    }

    /// Writes all of it to a file. It stands still.
    pub(crate) fn save_whole(&mut self, to: &File) -> io::Result<()> {
        self.monitor.extend(Instant::now() + SAVE_LIMIT);
        self.monitor.save_whole(to.as_fd())
    }

    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        self.monitor.extend(Instant::now() + MONITOR_LIMIT);
        self.monitor.go_on()
    }

    /// Why the guest did not do its part.
    pub(crate) fn unanswered(&self, step: &str, fault: &Fault) -> LaunchError {
        let words = said(&self.words);
        let words = if words.is_empty() { words } else { format!("; QEMU says: {words}") };
        LaunchError {
            step: step.to_owned(),
            why: format!("the guest failed: {fault}{words}"),
            remedy: "try again on a host with less to do; `fumehood doctor` says whether this QEMU and kernel can be used".to_owned(),
        }
    }

    /// What its monitor said, and what QEMU says itself.
    pub(crate) fn broken(&self, step: &str, error: &io::Error) -> LaunchError {
        let words = said(&self.words);
        let mut failed = failed(step, error);
        if !words.is_empty() {
            failed.why = format!("{}; QEMU says: {words}", failed.why);
        }
        failed
    }

    /// Why it ended before it answered.
    pub(crate) fn died(&self) -> LaunchError {
        LaunchError {
            step: "start the machine".to_owned(),
            why: format!("QEMU ended: {}", said(&self.words)),
            remedy: "`fumehood doctor` says whether this QEMU and kernel can be used".to_owned(),
        }
    }
}

/// `ENOENT`
const NO_ENTRY: i32 = 2;

fn arguments(hardware: Hardware, start: &Start<'_>, qemu: &Path) -> Vec<String> {
    let Hardware { memory_mib, network, acpi } = hardware;
    let switch = |on: bool| if on { "on" } else { "off" };
    let share = switch(!matches!(start, Start::Restore));
    let mut all = vec![qemu.to_string_lossy().into_owned()];
    let mut add = |name: &str, value: String| all.extend([format!("-{name}"), value]);
    let machine = format!(
        "microvm,acpi={},pcie=off,rtc=on,usb=off,graphics=off,isa-serial=off,memory-backend=memory",
        switch(acpi)
    );
    add("machine", machine);
    let memory = format!("memory-backend-file,id=memory,size={memory_mib}M,mem-path={MEMORY},share={share}");
    add("object", memory);
    add("m", memory_mib.to_string());
    add("accel", "tcg".to_owned());
    add("cpu", "max".to_owned());
    add("smp", "1".to_owned());
    add("display", "none".to_owned());
    add("chardev", format!("socket,id=stream,fd={STREAM}"));
    add("device", "virtio-serial-device".to_owned());
    add("device", "virtserialport,chardev=stream,name=fumehood".to_owned());
    for (name, number) in [("root", ROOT), ("slot", SLOT)] {
        add("add-fd", format!("fd={number},set={number}"));
        let drive =
            format!("if=none,id={name},file=/dev/fdset/{number},format=raw,readonly=on,file.locking=off");
        add("drive", drive);
        add("device", format!("virtio-blk-device,drive={name}"));
    }
    add("device", "virtio-rng-device".to_owned());
    if network {
        let end = match start {
            Start::Boot { .. } | Start::Convert => "hubport,id=net,hubid=0".to_owned(),
            Start::Restore => format!("tap,id=net,fd={TAP}"),
        };
        add("netdev", end);
        add("device", format!("virtio-net-device,netdev=net,mac={HARDWARE}"));
    }
    add("chardev", format!("socket,id=monitor,fd={MONITOR}"));
    add("mon", "chardev=monitor,mode=control".to_owned());
    match start {
        Start::Boot { command_line, .. } => {
            add("kernel", "/guest/kernel".to_owned());
            add("initrd", "/guest/initramfs".to_owned());
            add("append", (*command_line).to_owned());
        }
        Start::Convert | Start::Restore => add("incoming", "defer".to_owned()),
    }
    all.extend(["-nodefaults", "-no-user-config", "-no-reboot"].map(str::to_owned));
    all
}

/// A step of the launch that the kernel refused.
pub(crate) fn failed(step: &str, error: &io::Error) -> LaunchError {
    let kind = error.kind();
    let full = kind == io::ErrorKind::StorageFull;
    let why = if kind == io::ErrorKind::TimedOut || kind == io::ErrorKind::WouldBlock {
        "it did not answer in time".to_owned()
    } else if full {
        "there is no space left on the disk of the state folder".to_owned()
    } else {
        error.to_string()
    };
    let remedy = if full {
        "free some space there, or name another with `FUMEHOOD_STATE`"
    } else {
        "`fumehood doctor` looks at what this host can hold"
    };
    LaunchError { step: step.to_owned(), why, remedy: remedy.to_owned() }
}

pub(crate) fn unstarted(error: &SpawnError) -> LaunchError {
    match error {
        SpawnError::Clone(source) => failed("make the machine's namespaces", source),
        SpawnError::Step { step, source } => failed(step, source),
        SpawnError::Died => LaunchError {
            step: "start the machine".to_owned(),
            why: "it ended before it ran".to_owned(),
            remedy: "give this host more memory, or end other sandboxes".to_owned(),
        },
    }
}
