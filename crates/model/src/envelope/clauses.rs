//! The checked form of each clause.

use crate::egress::{Egress, Publish};
use crate::image::ImageRoot;
use schemars::JsonSchema;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the sandbox may see of files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filesystem {
    pub root: Root,
    /// Absent: the working directory is an empty scratch folder.
    pub workspace: Option<Workspace>,
    /// Read-only views of host paths.
    pub mounts: Vec<Mount>,
    /// Files copied in before the command starts.
    pub inputs: Vec<Input>,
    /// Where on the host the plain files of `/out` are collected.
    pub output: Option<PathBuf>,
    /// Writable folders kept between runs of the same project, and shared by nothing else.
    pub caches: Vec<Cache>,
    /// A later run of the same name goes on with the same layer and HOME.
    pub session: Option<String>,
}

/// What `/` is made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Root {
    /// The host's own system folders, read-only, with an `/etc` made for the sandbox.
    HostSystem,
    /// An unpacked root directory, read-only.
    Directory(PathBuf),
    /// An image of the store, unpacked and read-only.
    Image(ImageRoot),
}

/// The project folder, seen at `/workspace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Workspace {
    pub source: PathBuf,
    pub mode: WorkspaceMode,
}

/// What happens to what is written to the workspace. Ordered: a later one contains the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WorkspaceMode {
    /// Nothing can be written.
    ReadOnly,
    /// Writes go to a layer beside it, which `fumehood apply` brings back.
    CopyOnWrite,
    /// Writes go to the host's folder at once.
    ReadWrite,
}

/// One read-only view of a host path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mount {
    pub source: PathBuf,
    pub at: PathBuf,
    pub access: Access,
}

/// What a mount allows. There is no writable one: writing goes to the workspace, a cache or `/out`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    Read,
}

/// One host file, copied in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Input {
    pub source: PathBuf,
    pub at: PathBuf,
}

/// A cache that outlives the run, one per project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    Npm,
    Pip,
    Cargo,
    /// A folder inside, by its guest path.
    Directory(PathBuf),
}

/// Where it may send, and what of it may be reached from the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Network {
    /// `None`: no route exists; loopback between its own programs works.
    pub egress: Option<Egress>,
    /// Ports of the host's loopback that lead inside.
    pub publish: Vec<Publish>,
}

/// A secret that rules may use. It never enters; the variable of its name holds a placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secret {
    pub name: String,
    pub source: SecretSource,
}

/// Where a secret's value is read, outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// A variable of the host.
    Variable(String),
    File(PathBuf),
    /// What a command of the host prints. Run by `/bin/sh`, as the caller.
    Command(String),
    /// Handed over beside the envelope, by who asks for the sandbox.
    Given,
}

/// Who it is inside, and which system calls it may make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Privilege {
    /// The uid seen inside. Never the host's: with root each sandbox has its own kernel uid.
    pub uid: u32,
    pub syscalls: Syscalls,
}

/// A named system call profile. Ordered: a later one contains the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Syscalls {
    /// What builds, tests, interpreters, browsers and databases need.
    Default,
    /// The same, and `ptrace` and `process_vm_*` among the sandbox's own processes, for debuggers.
    Debug,
}

/// One environment variable that enters. Serialised by name alone: what `--env NAME=VALUE` says is often a
/// secret, and the record is for others to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// Copied from the host, where it is set.
    Copy(String),
    /// Given with its value.
    Set(String, String),
}

// === impl Root ===

impl Root {
    /// The folder on the host that `/` is made of, unless it is the host's own system.
    pub fn folder(&self) -> Option<&Path> {
        match self {
            Self::HostSystem => None,
            Self::Directory(folder) => Some(folder),
            Self::Image(image) => Some(&image.folder),
        }
    }
}

// === impl Variable ===

impl Serialize for Variable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (how, name) = match self {
            Self::Copy(name) => ("copy", name),
            Self::Set(name, _) => ("set", name),
        };
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(how, name)?;
        map.end()
    }
}

/// Written down by name and kind alone: a command line can hold what it should not.
impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("source", self.source.kind())?;
        map.end()
    }
}

// === impl SecretSource ===

impl SecretSource {
    /// The word that it is written with.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Variable(_) => "env",
            Self::File(_) => "file",
            Self::Command(_) => "cmd",
            Self::Given => "given",
        }
    }
}

/// The ceilings. All finite.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resources {
    pub memory_bytes: u64,
    /// Processor time in thousandths of one processor.
    pub cpu_millis: u32,
    pub processes: u32,
    /// Bytes that may be written to everything that is not memory-backed, and to scratch.
    pub disk_bytes: u64,
    pub file_size_bytes: u64,
    pub open_files: u32,
    /// Wall clock of one exec. `None` only for an interactive terminal, where the ceiling holds.
    pub timeout: Option<Duration>,
    /// Bytes of output forwarded or kept; what is past it is drained and counted.
    pub output_bytes: u64,
}

/// What stays when it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cleanup {
    /// Nothing but the record, and the layer of a copy-on-write run that changed something.
    Remove,
    /// The layer is removed too: changes can be looked at in the report and not applied.
    RemoveAll,
}

// === impl WorkspaceMode ===

impl WorkspaceMode {
    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::CopyOnWrite => "copy-on-write",
            Self::ReadWrite => "read-write",
        }
    }
}

// === impl Cache ===

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Npm => f.write_str("npm"),
            Self::Pip => f.write_str("pip"),
            Self::Cargo => f.write_str("cargo"),
            Self::Directory(at) => write!(f, "{}", at.display()),
        }
    }
}

// === impl Syscalls ===

impl Syscalls {
    /// The word used for it everywhere.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Debug => "debug",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_of_a_variable_is_never_written_down() {
        let set = Variable::Set("TOKEN".to_owned(), "hunter2".to_owned());
        assert_eq!(serde_json::to_string(&set).unwrap(), r#"{"set":"TOKEN"}"#);
    }
}
