//! A machine that has booted once and waits to be asked: its memory, and the state of its devices.
//!
//! ```text
//! templates/KEY/memory   the guest's memory, mapped privately by every machine made from it
//! templates/KEY/state    processor and devices, some ten kilobytes
//! templates/KEY/times    how long its boot and its writing took, for who measures
//! ```
//!
//! The key is made of everything that a snapshot depends on: QEMU, the kernel, guestd, the root image, the
//! machine's shape, and this host's processor. A template of anything else is never found, so never used.
//!
//! **Invariant:** no machine that a guest's command runs in can write a template's files: it gets a descriptor
//! that reads, and its pages are its own copies.

use crate::dialogue::Dialogue;
use crate::image::{Image, LINKS};
use crate::initramfs::Archive;
use crate::kernel::Kernel;
use crate::machine::{Hardware, Machine, Parts, Place, Start, failed};
use crate::missing::Missing;
use crate::slot;
use crate::store::{Store, key};
use crate::tools::Tool;
use fumehood_backend::LaunchError;
use fumehood_model::envelope::Root;
use fumehood_sys::{host, process};
use sha2::{Digest as _, Sha256};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Grows when a machine is set up in another way.
const FORMAT: &str = "2";
/// Each takes some fifty to a hundred megabytes of disk.
const MOST: usize = 8;
const OLDEST: Duration = Duration::from_secs(14 * 24 * 3600);
/// A boot by software emulation, on a host with much else to do.
const BOOT_LIMIT: Duration = Duration::from_secs(180);
/// A machine that was told to end.
const END_LIMIT: Duration = Duration::from_secs(10);
/// Enough to know the counter to a few parts in a million.
const COUNTER_SPAN: Duration = Duration::from_millis(20);

/// What a template is made of.
#[derive(Debug)]
pub(crate) struct Recipe<'a> {
    pub(crate) hardware: Hardware,
    pub(crate) qemu: &'a Tool,
    pub(crate) kernel: &'a Kernel,
    pub(crate) image: &'a Image,
    pub(crate) root: &'a Root,
    /// What is shown as `/etc`, or laid over the image's.
    pub(crate) etc: Option<&'a Path>,
    /// The folders that it has, in guestd's words.
    pub(crate) setup: Vec<u8>,
    /// The system call filter of its commands.
    pub(crate) filter: Vec<u8>,
}

/// One that is whole. Its files stay open, whoever removes them.
#[derive(Debug)]
pub(crate) struct Template {
    pub(crate) memory: File,
    pub(crate) state: File,
}

// === impl Template ===

impl Template {
    /// Finds it, or boots a machine to make it.
    pub(crate) fn of(recipe: &Recipe<'_>, templates: &Path, place: &Place<'_>) -> Result<Self, LaunchError> {
        let key = recipe.key();
        let made = store(templates).find_or_make(&key, |folder| recipe.make(folder, place).map_err(Failure));
        let folder = made.map_err(|Failure(error)| error)?;
        let open = |name: &str| {
            File::open(folder.join(name)).map_err(|error| failed("open the machine's template", &error))
        };
        Ok(Self { memory: open("memory")?, state: open("state")? })
    }
}

/// An error of the disk is one of the launch.
#[derive(Debug)]
struct Failure(LaunchError);

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self(failed("make the machine's template", &error))
    }
}

fn store(templates: &Path) -> Store {
    Store::new(templates.to_owned(), MOST, OLDEST)
}

// === impl Recipe ===

impl Recipe<'_> {
    pub(crate) fn key(&self) -> String {
        let Hardware { memory_mib, network, acpi } = self.hardware;
        let etc = self.etc.map(|path| path.display().to_string()).unwrap_or_default();
        key(&[
            "template",
            FORMAT,
            &format!("{memory_mib}:{network}:{acpi}"),
            &self.qemu.identity,
            &self.kernel.identity,
            &self.image.key,
            &etc,
            &String::from_utf8_lossy(&self.setup),
            &sum(&self.filter),
            &sum(fumehood_guest::image::BYTES),
            &processor(),
        ])
    }

    fn make(&self, folder: &Path, place: &Place<'_>) -> Result<(), LaunchError> {
        let step = |error: io::Error| failed("make the machine's template", &error);
        DirBuilder::new().mode(0o700).create(folder).map_err(step)?;
        let new = |name: &str| {
            File::options().read(true).write(true).create_new(true).mode(0o600).open(folder.join(name))
        };
        let (memory, state) = (new("memory").map_err(step)?, new("state").map_err(step)?);
        memory.set_len(self.hardware.memory_mib << 20).map_err(step)?;
        let initramfs = folder.join("initramfs");
        fs::write(&initramfs, self.initramfs()?).map_err(step)?;
        // A word that the kernel does not know is for the first program. QEMU adds where the devices are behind it.
        let command_line = format!(
            "quiet panic=-1 mitigations=off no_timer_check tsc_early_khz={} rdinit=/init machine",
            host::counter_khz(COUNTER_SPAN)
        );
        let deadline = Instant::now() + BOOT_LIMIT;
        let parts = Parts {
            memory: memory.try_clone().map_err(step)?.into(),
            root: self.image.open().map_err(step)?.into(),
            slot: slot::empty().map_err(step)?,
            state: state.try_clone().map_err(step)?.into(),
            tap: None,
        };
        let start =
            Start::Boot { kernel: &self.kernel.image, initramfs: &initramfs, command_line: &command_line };
        let machine = Machine::start(self.hardware, &start, parts, place, deadline)?;
        let began = Instant::now();
        let saved = save(machine, &state, deadline);
        fs::remove_file(&initramfs).map_err(step)?;
        let Saved { booted, written } = saved?;
        let told = format!(
            "boot_ms={} snapshot_ms={}\n",
            booted.saturating_duration_since(began).as_millis(),
            written.as_millis()
        );
        fs::write(folder.join("times"), told).map_err(step)?;
        memory.sync_data().and_then(|()| state.sync_data()).map_err(step)
    }

    fn initramfs(&self) -> Result<Vec<u8>, LaunchError> {
        let mut archive = Archive::default();
        let folders =
            ["dev", "proc", "sys", "modules", "usr", "opt", "run", "tmp", "var", "var/tmp", "var/empty"];
        folders.iter().for_each(|name| archive.folder(name, 0o755));
        archive.file("filter", 0o600, &self.filter);
        archive.file("setup", 0o600, &self.setup);
        archive.file("init", 0o755, fumehood_guest::image::BYTES);
        for (place, module) in self.kernel.load().map_err(Missing::fail)?.into_iter().enumerate() {
            archive.file(&format!("modules/{place:02}-{}.ko", module.name), 0o644, &module.content);
        }
        if matches!(self.root, Root::HostSystem) {
            for name in LINKS {
                if let Ok(to) = fs::read_link(Path::new("/").join(name)) {
                    archive.link(name, &to);
                }
            }
        }
        if let Some(etc) = self.etc {
            let name = if matches!(self.root, Root::HostSystem) { "etc" } else { "etc.over" };
            archive.tree(etc, name).map_err(|error| failed("make the machine's /etc", &error))?;
        }
        Ok(archive.finish())
    }
}

/// When a template's guest answered, and how long writing it down took.
#[derive(Clone, Copy, Debug)]
struct Saved {
    booted: Instant,
    written: Duration,
}

/// Waits until the guest answers, then writes down how it stands.
fn save(mut machine: Machine, state: &File, deadline: Instant) -> Result<Saved, LaunchError> {
    let mut booted = Instant::now();
    let ready = Dialogue::greet(&machine.stream, deadline).and_then(|mut dialogue| {
        booted = Instant::now();
        warm(&mut dialogue, &machine);
        dialogue.prepare(&machine.stream)
    });
    let stopped = Instant::now();
    let result = match ready {
        Err(error) => Err(machine.unanswered("boot the guest", &error)),
        Ok(()) => {
            machine.monitor.save(state.as_fd()).map_err(|error| failed("write the machine's state", &error))
        }
    };
    let written = stopped.elapsed();
    let _ = machine.monitor.quit();
    let pidfd = &machine.spawned.pidfd;
    if result.is_err() || !process::wait_gone(pidfd.as_fd(), END_LIMIT).unwrap_or(false) {
        let _ = process::send_signal(pidfd.as_fd(), 9);
    }
    process::reap(pidfd);
    result.map(|()| Saved { booted, written })
}

/// Starts what most commands start, so that every machine made from this has it in memory already.
fn warm(dialogue: &mut Dialogue, machine: &Machine) {
    let commands: [&[&str]; 3] = [
        &["/bin/true"],
        &["/bin/sh", "-c", ":"],
        &["/usr/bin/python3", "-c", "import json, os, re, subprocess, sys"],
    ];
    for words in commands {
        let words: Vec<Vec<u8>> = words.iter().map(|word| word.as_bytes().to_vec()).collect();
        // An image without it is as good.
        let _ = dialogue.run(&machine.stream, &words, "start a program");
    }
}

/// What tells these bytes from others.
fn sum(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The processor that a guest has measured its clock by, and that emulates it.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    let fixed = ["vendor_id", "cpu family", "model", "stepping", "model name", "microcode", "flags"];
    let lines = first.lines().filter(|line| fixed.iter().any(|name| line.starts_with(name)));
    lines.collect::<Vec<_>>().join("\n")
}

/// Where this level keeps what it makes, beneath the state folder.
#[derive(Clone, Debug)]
pub(crate) struct Folders {
    pub(crate) kernels: PathBuf,
    pub(crate) images: PathBuf,
    pub(crate) templates: PathBuf,
    /// One folder for each machine that lives.
    pub(crate) machines: PathBuf,
}

// === impl Folders ===

impl Folders {
    pub(crate) fn within(state: &Path) -> Self {
        let [kernels, images, templates, machines] =
            ["kernels", "disks", "templates", "machines"].map(|name| state.join(name));
        Self { kernels, images, templates, machines }
    }
}
