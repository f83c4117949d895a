//! The microvm level: a guest kernel of its own, in QEMU's `microvm` machine.
//!
//! A machine is booted once for each combination of kernel, system folders and shape, and written down when
//! guestd answers. Every sandbox is that machine, restored with its memory mapped privately: some tens of
//! milliseconds, and only the pages that it writes are its own.
//!
//! QEMU itself stands in a jail: namespaces, no capability, no network, no file that it could write, a system
//! call allow-list, and only the descriptors that it needs.
//!
//! **Invariant:** a machine runs no command before it has taken randomness and time of its own.
//! **Invariant:** what software emulates runs only for who has accepted that.

mod dialogue;
mod filter;
mod image;
mod initramfs;
mod instance;
mod jail;
mod kernel;
pub mod kvm;
mod machine;
mod missing;
mod plan;
mod qmp;
mod slot;
mod store;
mod template;
mod tools;
mod unpack;
mod written;

pub use missing::Missing;

use fumehood_backend::{Backend, Placement, Plan, ReapError};
use fumehood_backend_native::{Hierarchy, cgroup};
use fumehood_model::enforcement::{Clause, Unenforceable};
use fumehood_model::envelope::Envelope;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use std::fs;
use std::path::{Path, PathBuf};
use template::Folders;

/// Whether the caller takes a machine that software emulates, which QEMU does not call a security boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Emulation {
    Accepted,
    Refused,
}

/// The microvm level on this host.
#[derive(Debug)]
pub struct Microvm {
    hierarchy: Hierarchy,
    landlock: Option<u32>,
    host_cpus: u32,
    folders: Folders,
    emulation: Emulation,
}

// === impl Microvm ===

impl Microvm {
    /// Looks at what this host offers. What is made once is kept beneath `state`.
    #[must_use]
    pub fn find(state: &Path, emulation: Emulation) -> Self {
        Self {
            hierarchy: Hierarchy::find(),
            landlock: fumehood_sys::landlock::abi(),
            host_cpus: fumehood_sys::host::processors(),
            folders: Folders::within(state),
            emulation,
        }
    }

    /// What this level needs and does not find here.
    #[must_use]
    pub fn missing(state: &Path) -> Vec<Missing> {
        let folders = Folders::within(state);
        let found = [
            tools::Tool::qemu().err(),
            kernel::Kernel::find(&folders.kernels).err(),
            tools::Tool::erofs().err(),
        ];
        found.into_iter().flatten().collect()
    }

    /// The folder of one machine's files.
    fn folder(&self, id: &TaskId) -> PathBuf {
        self.folders.machines.join(id.as_str())
    }
}

impl Backend for Microvm {
    fn level(&self) -> Level {
        Level::Microvm
    }

    fn plan(&self, envelope: &Envelope, placement: &Placement) -> Result<Box<dyn Plan>, Unenforceable> {
        if self.emulation == Emulation::Refused {
            return Err(Unenforceable {
                clause: Clause::Privilege,
                why: "its processor is emulated by software in this version, which QEMU does not call a security boundary".to_owned(),
                remedy: "`--accept-tcg` accepts software emulation for this run; `fumehood choose` explains the levels".to_owned(),
            });
        }
        plan::MicroPlan::new(self, envelope, placement).map(|plan| Box::new(plan) as Box<dyn Plan>)
    }

    /// It is written down whole.
    fn keeps_files(&self) -> bool {
        false
    }

    fn leftovers(&self) -> Vec<TaskId> {
        let entries = fs::read_dir(&self.folders.machines).into_iter().flatten().flatten();
        let folders = entries.filter_map(|entry| TaskId::parse(entry.file_name().to_str()?).ok());
        let mut all = self.hierarchy.present();
        all.extend(folders);
        all.sort();
        all.dedup();
        all
    }

    fn reap(&self, id: &TaskId) -> Result<(), ReapError> {
        let folders = self.hierarchy.folders(id);
        cgroup::remove(&folders)
            .map_err(|source| ReapError { what: format!("the cgroup of {id}"), source })?;
        match fs::remove_dir_all(self.folder(id)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ReapError { what: format!("the folder of {id}"), source: error })
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}
