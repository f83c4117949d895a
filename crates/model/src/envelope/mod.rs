//! The envelope: everything a sandbox may touch. What is not written here is denied.
//!
//! What a caller writes is an [`EnvelopeSpec`] (flags, a `fumehood.toml`, later the API); unknown
//! fields are refused when it is read. [`Envelope::check`] turns it into an [`Envelope`], reporting
//! every flaw at once, and [`Envelope::narrow`] makes a child's from its parent's. [`file`] reads a
//! file with the line of each flaw, and [`named_file`] and [`found_file`] lay it under the flags.
//! Nothing below this crate is handed the wire form.
//!
//! **Invariant:** a file that was found by itself never gives more than the flags alone would.

mod check;
mod check_files;
mod check_network;
mod clauses;
pub mod file;
mod layer;
mod narrow;
mod narrow_network;
mod paths;
mod refused;
mod schema;
mod spec;
mod wire;

#[cfg(test)]
mod properties;

pub use check::{Defaults, Flaw, Preset};
pub use clauses::{
    Access, Cache, Cleanup, Filesystem, Input, Mount, Network, Privilege, Resources, Root, Secret,
    SecretSource, Syscalls, Variable, Workspace, WorkspaceMode,
};
pub use layer::{LayerError, Layered, found_file, named_file};
pub use narrow::{NarrowError, Widening};
pub use refused::{HostRefusal, HostUse, refused};
pub use schema::json_schema;
pub use spec::{
    CleanupSpec, CredentialsSpec, EnvelopeSpec, FilesystemSpec, NetworkSpec, PrivilegeSpec, ResourcesSpec,
};

/// The checked envelope of one sandbox.
///
/// Invariant: every host path is absolute, every guest path is absolute and free of `.` and `..`, no
/// two mounts share a guest path, every limit is finite, and the value never changes after
/// [`Envelope::check`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Envelope {
    filesystem: Filesystem,
    network: Network,
    privilege: Privilege,
    environment: Vec<Variable>,
    secrets: Vec<Secret>,
    resources: Resources,
    cleanup: Cleanup,
}

// === impl Envelope ===

impl Envelope {
    /// What it may see of files.
    pub fn filesystem(&self) -> &Filesystem {
        &self.filesystem
    }

    /// What it may reach.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Who it is inside, and which system calls it may make.
    pub fn privilege(&self) -> &Privilege {
        &self.privilege
    }

    /// The variables that enter beyond the few that always do (part of the credentials clause).
    pub fn environment(&self) -> &[Variable] {
        &self.environment
    }

    /// The secrets that its rules may use (the rest of the credentials clause).
    pub fn secrets(&self) -> &[Secret] {
        &self.secrets
    }

    /// Its ceilings.
    pub fn resources(&self) -> &Resources {
        &self.resources
    }

    /// What stays when it ends.
    pub fn cleanup(&self) -> &Cleanup {
        &self.cleanup
    }
}
