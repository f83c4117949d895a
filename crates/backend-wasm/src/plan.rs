//! From an envelope to a plan: the walls of the container level, around the engine.

use crate::cache::{self, Cache, Made};
use crate::instance::WasmInstance;
use crate::module::{Module, Source};
use crate::words::{ARTIFACT_AT, ENGINE_AT, Run};
use crate::{compile, enforcement, folders};
use fumehood_backend::{Backend as _, Instance, LaunchError, Placement, Plan};
use fumehood_backend_native::{Bare, Native};
use fumehood_model::enforcement::{Clause, Enforcement, Unenforceable};
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::quantity::{show_bytes, show_cpus};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// What a compilation may take where the envelope allows the module less.
const COMPILE_BYTES: u64 = 1 << 30;

/// One envelope on this host, for one module.
#[derive(Debug)]
pub(crate) struct WasmPlan {
    walls: Rc<Native>,
    envelope: Envelope,
    placement: Placement,
    folders: Vec<PathBuf>,
    enforcement: Enforcement,
    cache: Cache,
    /// What is known of the module; a flaw of it is told by the launch.
    found: Result<Found, LaunchError>,
    /// The walls of the run, once they have begun.
    begun: Option<Box<dyn Plan>>,
}

/// The module and the engine, and what was kept of them.
#[derive(Debug)]
struct Found {
    module: Module,
    key: String,
    engine: PathBuf,
    made: Option<Made>,
}

// === impl WasmPlan ===

impl WasmPlan {
    pub(crate) fn new(
        walls: &Rc<Native>,
        source: &Source,
        envelope: &Envelope,
        placement: &Placement,
    ) -> Result<Self, Unenforceable> {
        enforcement::judge(envelope)?;
        let folders = folders::given(envelope, placement)?;
        let cache = Cache::of(&placement.shared);
        let found = Found::find(source, &cache);
        // What the host can not hold is told now, whatever becomes of the module.
        let begun = Self::walls(walls, envelope, placement, &cache, found.as_ref().ok())?;
        let hash = found.as_ref().ok().map(|found| found.module.hash.as_str());
        let enforcement = enforcement::around(begun.enforcement(), &folders, hash);
        Ok(Self {
            walls: Rc::clone(walls),
            envelope: envelope.clone(),
            placement: placement.clone(),
            folders,
            enforcement,
            cache,
            // Without code there is nothing to show inside yet.
            begun: found.as_ref().is_ok_and(|found| found.made.is_some()).then_some(begun),
            found,
        })
    }

    /// The walls around the engine and the code of the module, as far as it is made.
    fn walls(
        walls: &Native,
        envelope: &Envelope,
        placement: &Placement,
        cache: &Cache,
        found: Option<&Found>,
    ) -> Result<Box<dyn Plan>, Unenforceable> {
        let engine = found.map(|found| (found.engine.clone(), PathBuf::from(ENGINE_AT)));
        let made = found.and_then(|found| found.made.as_ref());
        let code = made.map(|made| (cache.code(&made.digest), PathBuf::from(ARTIFACT_AT)));
        let bare = Bare { files: engine.into_iter().chain(code).collect() };
        walls.plan_bare(envelope, placement, bare)
    }

    /// Compiles the module, in a sandbox that has nothing else.
    fn make(&self, found: &Found) -> Result<Made, LaunchError> {
        let failed = |error: std::io::Error| LaunchError {
            step: "keep the compiled module".to_owned(),
            why: error.to_string(),
            remedy: "make room on the disk of the state folder, or name another with `FUMEHOOD_STATE`"
                .to_owned(),
        };
        let memory_bytes = self.envelope.resources().memory_bytes.max(COMPILE_BYTES);
        let envelope = compile_envelope(&self.envelope, memory_bytes)?;
        let placement = compile_placement(&self.placement);
        let engine = (found.engine.clone(), PathBuf::from(ENGINE_AT));
        let plan = self.walls.plan_bare(&envelope, &placement, Bare { files: vec![engine] });
        let plan = plan.map_err(|no| unheld(&no))?;
        let mut draft = self.cache.draft().map_err(failed)?;
        let compiled = compile::compile(plan, &found.module.bytes()?, &mut draft, memory_bytes);
        // It bore the run's own name, which the run takes next.
        let _ = self.walls.reap(&self.placement.id);
        self.cache.keep(draft, &found.key, compiled?).map_err(failed)
    }
}

impl Plan for WasmPlan {
    fn enforcement(&self) -> &Enforcement {
        &self.enforcement
    }

    fn begin(&mut self) {
        if let Some(walls) = &mut self.begun {
            walls.begin();
        }
    }

    fn launch(mut self: Box<Self>) -> Result<Box<dyn Instance>, LaunchError> {
        let mut found = std::mem::replace(&mut self.found, Err(taken()))?;
        let made = match found.made.take() {
            Some(made) => made,
            None => self.make(&found)?,
        };
        let limit = self.envelope.resources().memory_bytes;
        if made.least_bytes > limit {
            return Err(LaunchError {
                step: "start the module".to_owned(),
                why: format!(
                    "it begins with {} of memory, and may use {}",
                    show_bytes(made.least_bytes),
                    show_bytes(limit)
                ),
                remedy: "give it more with `--memory`".to_owned(),
            });
        }
        let run = Run {
            digest: made.digest.clone(),
            memory_bytes: limit,
            open_files: self.envelope.resources().open_files,
            cwd: PathBuf::new(),
            folders: self.folders.clone(),
            arguments: Vec::new(),
        };
        found.made = Some(made);
        let begun = match self.begun.take() {
            Some(begun) => begun,
            None => Self::walls(&self.walls, &self.envelope, &self.placement, &self.cache, Some(&found))
                .map_err(|no| unheld(&no))?,
        };
        let entry = self.cache.entry(&found.key);
        Ok(Box::new(WasmInstance { walls: begun.launch()?, entry, run }))
    }
}

// === impl Found ===

impl Found {
    fn find(source: &Source, cache: &Cache) -> Result<Self, LaunchError> {
        let module = source.find()?;
        let (engine, build) = cache::engine()?;
        let key = Cache::key(&module, &build);
        let made = cache.find(&key);
        Ok(Self { module, key, engine, made })
    }
}

/// Of the run's envelope, only what limits it and who it is.
fn compile_envelope(run: &Envelope, memory_bytes: u64) -> Result<Envelope, LaunchError> {
    let mut spec = EnvelopeSpec::default();
    spec.privilege.user = Some(run.privilege().uid);
    spec.resources.memory = Some(memory_bytes.to_string());
    spec.resources.cpus = Some(show_cpus(run.resources().cpu_millis));
    spec.resources.processes = Some(8);
    let defaults = Defaults {
        base: PathBuf::from("/"),
        home: None,
        state: None,
        host_memory_bytes: fumehood_sys::host::memory_bytes().max(memory_bytes),
        host_cpus: fumehood_sys::host::processors(),
        timeout: Some(Duration::from_secs(300)),
        output_bytes: 1 << 20,
        presets: BTreeMap::new(),
        images: BTreeMap::new(),
    };
    Envelope::check(&spec, &defaults).map_err(|flaws| LaunchError {
        step: "compile the module".to_owned(),
        why: flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        remedy: "raise the limits of the run".to_owned(),
    })
}

fn compile_placement(run: &Placement) -> Placement {
    Placement {
        id: run.id.clone(),
        shared: run.shared.clone(),
        scratch: run.scratch.clone(),
        layer: None,
        home: None,
        home_at: Path::new("/home/user").to_path_buf(),
        caches: Vec::new(),
        toolchains: Vec::new(),
        gateway: None,
        files: Vec::new(),
        living: None,
    }
}

fn unheld(no: &Unenforceable) -> LaunchError {
    let Unenforceable { clause, why, remedy } = no;
    LaunchError { step: format!("hold the {clause} clause"), why: why.clone(), remedy: remedy.clone() }
}

/// A plan is launched once.
fn taken() -> LaunchError {
    unheld(&Unenforceable {
        clause: Clause::Cleanup,
        why: "the plan was launched before".to_owned(),
        remedy: "make another".to_owned(),
    })
}
