//! What this host can hold, found by doing: a sandbox is started, and ended at once.
//!
//! A setting says what should work; a launch says what does. So each finding comes from the very
//! steps that a run takes, and the settings are read only to say why a step failed.

use crate::backends;
use crate::refusal::Refusal;
use fumehood_backend::{LayerDisk, LayerPlace, Placement};
use fumehood_model::enforcement::Enforcement;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use fumehood_runtime::files::disk::Disk;
use fumehood_runtime::state::State;
use fumehood_sys::dirfd::DirHandle;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Enough for one launch, on the smallest host.
const MEMORY_BYTES: u64 = 64 << 20;

/// Enough for the layer of one launch.
const DISK_BYTES: u64 = 64 << 20;
/// The folders of a layer.
const PARTS: [&str; 2] = ["upper", "work"];

/// One thing that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was tried, as a noun.
    pub(crate) what: &'static str,
    pub(crate) works: bool,
    /// Why not, and at which step; empty where it works.
    pub(crate) why: String,
    /// What to paste or to change.
    pub(crate) remedy: String,
    /// What held each clause, where it works.
    #[serde(skip)]
    pub(crate) enforcement: Enforcement,
}

/// Tries everything that the level has to do here.
pub(crate) fn all(level: Level, state: &State) -> Vec<Finding> {
    let mut found = vec![finding("a sandbox", sandbox(level, state, None))];
    if found.iter().all(|finding| finding.works) {
        let trial = Trial::new(state);
        let outcome = trial.and_then(|trial| sandbox(level, state, Some(&trial)));
        found.push(finding("a copy-on-write workspace", outcome));
    }
    found
}

fn finding(what: &'static str, outcome: Result<Enforcement, Refusal>) -> Finding {
    match outcome {
        Ok(enforcement) => {
            Finding { what, works: true, why: String::new(), remedy: String::new(), enforcement }
        }
        Err(Refusal { step, why, remedy }) => {
            let why = format!("failed to {step}: {why}");
            Finding { what, works: false, why, remedy, enforcement: Enforcement::default() }
        }
    }
}

/// Starts a sandbox and ends it. What it was held by is the answer.
fn sandbox(level: Level, state: &State, trial: Option<&Trial>) -> Result<Enforcement, Refusal> {
    let mut spec = EnvelopeSpec::default();
    spec.filesystem.workspace =
        trial.map(|trial| trial.folder.join("workspace").to_string_lossy().into_owned());
    spec.resources.disk = Some(DISK_BYTES.to_string());
    let defaults = Defaults {
        base: PathBuf::from("/"),
        home: None,
        state: None,
        host_memory_bytes: fumehood_sys::host::memory_bytes().max(MEMORY_BYTES),
        host_cpus: fumehood_sys::host::processors(),
        timeout: Some(Duration::from_secs(10)),
        output_bytes: 1 << 20,
        presets: std::collections::BTreeMap::new(),
        images: std::collections::BTreeMap::new(),
    };
    let envelope = Envelope::check(&spec, &defaults)
        .map_err(|flaws| Refusal::flaws(&flaws, |flaw| flaw.field.to_owned()))?;
    let backend = backends::of(level)?;
    let placement = Placement {
        id: new_id()?,
        shared: state.root().join("shared"),
        scratch: state.scratch().join(format!("doctor-{}", new_id()?)),
        layer: trial.map(|trial| LayerPlace { folder: trial.folder.join("layer"), disk: trial.disk.clone() }),
        home: None,
        home_at: PathBuf::from("/home/user"),
        caches: Vec::new(),
        toolchains: Vec::new(),
        gateway: None,
        files: Vec::new(),
        living: None,
    };
    let plan = backend
        .plan(&envelope, &placement)
        .map_err(|no| Refusal::new("plan the sandbox", no.to_string(), no.remedy))?;
    let enforcement = plan.enforcement().clone();
    let launched = plan.launch().map_err(|no| Refusal::new(&no.step, no.why, no.remedy));
    // The walls fall with the instance; what a failed launch left is removed by its name.
    let outcome = launched.map(|mut instance| instance.kill());
    let _ = backend.reap(&placement.id);
    // Nothing has run in it.
    let _ = fs::remove_dir_all(&placement.scratch);
    outcome.map(|()| enforcement)
}

/// A folder with a workspace and a layer, gone when dropped.
#[derive(Debug)]
struct Trial {
    folder: PathBuf,
    disk: LayerDisk,
}

// === impl Trial ===

impl Trial {
    fn new(state: &State) -> Result<Self, Refusal> {
        let folder = state.layers().join(format!("doctor-{}", new_id()?));
        let mut made = Self { folder, disk: LayerDisk::Folder { why: String::new() } };
        make(&made.folder.join("workspace"))?;
        let layer = made.folder.join("layer");
        make(&layer)?;
        made.disk = match own_disk(&layer, state) {
            Ok(disk) => disk,
            Err(why) => {
                for part in PARTS {
                    make(&layer.join(part))?;
                }
                LayerDisk::Folder { why }
            }
        };
        Ok(made)
    }
}

/// A file system of its own for the layer; or why there can be none.
fn own_disk(layer: &Path, state: &State) -> Result<LayerDisk, String> {
    let told = |error: std::io::Error| error.to_string();
    let folder = DirHandle::open(layer).map_err(told)?;
    let disk = Disk::make(&folder, &state.shared(), DISK_BYTES).map_err(|no| no.to_string())?;
    let root = disk.root(&folder).map_err(told)?;
    for part in PARTS {
        root.make_dir(part.as_ref(), 0o700).map_err(told)?;
    }
    let mount = disk.mount(&folder).map_err(told)?;
    Ok(LayerDisk::Image { bytes: disk.bytes(), mount: Some(Arc::clone(mount)) })
}

impl Drop for Trial {
    fn drop(&mut self) {
        // Nothing in it was written by a guest. What can not be removed is told by the next run.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn make(folder: &Path) -> Result<(), Refusal> {
    fs::create_dir_all(folder).map_err(|error| {
        let why = format!("`{}`: {error}", folder.display());
        Refusal::new(
            "make a trial folder",
            why,
            "make room, or set `FUMEHOOD_STATE` to another folder of yours",
        )
    })
}

fn new_id() -> Result<TaskId, Refusal> {
    let random = fumehood_sys::host::random();
    let random = random
        .map_err(|error| Refusal::new("draw a name", error.to_string(), "the kernel gives no randomness"))?;
    Ok(TaskId::new(fumehood_sys::host::coarse_time() / 1_000_000, random))
}
