//! The verbs. Every door translates to them; none of them knows of HTTP.
//!
//! **Invariant:** a sandbox is registered before a caller hears of it, and one of another team reads as one that
//! never was.

mod adopt;
mod create;
mod halting;
mod lifecycle;
pub mod network;
mod snapshots;
mod strays;
mod timers;
mod warm;

use crate::caller::{Caller, Scope};
use crate::clock;
use crate::config::Config;
use crate::error::{ApiError, Code};
use crate::halt::Halts;
use crate::keeper::Keeper;
use crate::keys::Keys;
use crate::live::{Live, Use};
use crate::pool::Pools;
use crate::quota::Quotas;
use crate::registry::Registry;
use crate::sandbox::{Filter, Listed, Metrics, Page, Sandbox, State};
use crate::template::Templates;
use crate::tokens::Tokens;
use crate::trace::Tracer;
use fumehood_keep::client::CallError;
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Ask, Said, Status};
use fumehood_model::id::TaskId;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::Semaphore;

/// Random bytes in the name of a start.
const INSTANCE_BYTES: usize = 8;

/// The daemon's verbs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    config: Config,
    registry: Registry,
    keys: Keys,
    tokens: Tokens,
    templates: Templates,
    quotas: Quotas,
    pools: Pools,
    halts: Arc<Halts>,
    /// Of this start of the daemon: keepers that it is just making say so.
    instance: String,
    strays: strays::Strays,
    /// Held while forks are counted against a ceiling.
    forks: tokio::sync::Mutex<()>,
    /// Something may have been left that neither keeper nor reaper removed.
    unswept: AtomicBool,
    /// Those that live, and those that have just ended until the registry has it: each is told of at every moment.
    living: RwLock<HashMap<TaskId, Live>>,
    /// Keepers that may be started at once.
    spawns: Semaphore,
    /// The same for those that prepare an interpreter first, which may take as long as a birth may.
    preparations: Semaphore,
    /// Requests with an idempotency key that are under way.
    repeats: create::Repeats,
    /// Templates whose interpreter was prepared in this start of the daemon, by the snapshot that has it.
    warmed: warm::Warmed,
    counters: Counters,
    tracer: Tracer,
}

/// What has happened since the daemon's start, for its metrics.
#[derive(Debug, Default)]
pub struct Counters {
    pub created: AtomicU64,
    /// Of these, those that had waited in a pool.
    pub claimed: AtomicU64,
    pub create_failures: AtomicU64,
    pub ended: AtomicU64,
    pub lost: AtomicU64,
    pub requests: AtomicU64,
    pub refused: AtomicU64,
}

/// Why a sandbox is paused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pausing {
    Asked,
    /// By a timer: only if the timer is still right.
    Idle,
    Expired,
}

// === impl Engine ===

impl Engine {
    /// The engine of this state folder.
    ///
    /// # Errors
    /// The folder is in use by another daemon, or its registry can not be read.
    pub async fn open(config: Config) -> Result<Self, ApiError> {
        let folder = folder(&config.state);
        let registry = Registry::open(&folder)?;
        let tracer = config.traces.as_deref().map(Tracer::to).transpose()?.unwrap_or_default();
        let parts = Parts {
            keys: Keys::load(registry.clone()).await?,
            tokens: Tokens::open(&folder)?,
            templates: Templates::open(&folder)?,
            quotas: Quotas::load(registry.clone()).await?,
            pools: Pools::new(&config),
            halts: Arc::new(Halts::open(&folder)?),
            instance: crate::keys::random_hex(INSTANCE_BYTES)?,
            strays: strays::Strays::default(),
            forks: tokio::sync::Mutex::default(),
            unswept: AtomicBool::new(false),
            living: RwLock::default(),
            spawns: Semaphore::new(config.spawns.max(1)),
            preparations: Semaphore::new(config.spawns.max(1)),
            repeats: create::Repeats::default(),
            warmed: warm::Warmed::default(),
            counters: Counters::default(),
            tracer,
            registry,
            config,
        };
        let engine = Self(Arc::new(parts));
        engine.adopt().await?;
        engine.start_timers();
        Ok(engine)
    }

    /// What the daemon was told at its start.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The keys that let in.
    #[must_use]
    pub fn keys(&self) -> &Keys {
        &self.0.keys
    }

    /// The tokens that open single sandboxes.
    #[must_use]
    pub fn tokens(&self) -> &Tokens {
        &self.0.tokens
    }

    /// The teams' quotas.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.0.quotas
    }

    /// The kill switch's memory.
    #[must_use]
    pub fn halts(&self) -> &Arc<Halts> {
        &self.0.halts
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Who takes spans.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        &self.0.tracer
    }

    /// The names of the templates.
    #[must_use]
    pub fn templates(&self) -> Vec<String> {
        self.0.templates.names()
    }

    /// How many sandboxes wait in pools.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.pools.waiting()
    }

    /// Every sandbox that lives, whoever's it is.
    #[must_use]
    pub fn all(&self) -> Vec<Live> {
        self.living().values().filter(|live| live.state() != State::Ended).cloned().collect()
    }

    /// The sandbox of this id, if it is the caller's.
    ///
    /// # Errors
    /// [`Code::NotFound`].
    pub fn find(&self, caller: &Caller, id: &str) -> Result<Live, ApiError> {
        self.any(id).filter(|live| caller.owns(&live.team())).ok_or_else(|| ApiError::no_sandbox(id))
    }

    /// The sandbox of this id, whoever's it is: for doors that let in by the sandbox's own token.
    #[must_use]
    pub fn any(&self, id: &str) -> Option<Live> {
        let id = TaskId::parse(id).ok()?;
        self.living().get(&id).filter(|live| live.state() != State::Ended).cloned()
    }

    /// The caller's sandboxes.
    ///
    /// # Errors
    /// The page's token is not one of ours.
    pub async fn list(&self, caller: &Caller, filter: &Filter, page: &Page) -> Result<Listed, ApiError> {
        let mut found: Vec<Sandbox> = self
            .living()
            .values()
            .filter(|live| caller.owns(&live.team()))
            .map(Live::sandbox)
            .filter(|sandbox| filter.takes(sandbox))
            .collect();
        if filter.states.contains(&State::Ended) {
            let team = (!caller.scopes.has(Scope::Admin)).then(|| caller.team.clone());
            // One more than is shown tells whether there are more.
            let most = page.limit().saturating_add(1);
            found.extend(self.0.registry.ended(team, filter.clone(), page.clone(), most).await?);
        }
        found.sort_by(|a, b| a.id.cmp(&b.id));
        // One that ends at this moment is here and there.
        found.dedup_by(|a, b| a.id == b.id);
        if !page.oldest_first {
            found.reverse();
        }
        cut(found, page)
    }

    /// Lets the caller work in a sandbox; one that is paused and wakes by traffic is woken.
    ///
    /// # Errors
    /// It is paused and does not wake, halted, or has ended.
    pub async fn enter(&self, live: &Live) -> Result<Use, ApiError> {
        loop {
            match live.use_if_running() {
                Ok(entered) => {
                    fault::point(Point::Entered);
                    return Ok(entered);
                }
                Err(State::Paused) if live.sandbox().auto_resume => {
                    self.wake(live, None).await?;
                }
                Err(state) => return Err(not_usable(live, state)),
            }
        }
    }

    /// Measures a sandbox.
    ///
    /// # Errors
    /// Its keeper does not answer.
    pub async fn metrics(&self, live: &Live) -> Result<Metrics, ApiError> {
        let Said::Status(status) = self.ask(live, &Ask::Status).await? else { return Err(strange("Status")) };
        let metrics = measured(live, &status);
        live.keep_metrics(metrics);
        Ok(metrics)
    }

    fn hold(&self, live: &Live) {
        let mut living = self.0.living.write().unwrap_or_else(PoisonError::into_inner);
        living.insert(live.id().clone(), live.clone());
    }

    /// Waits for the process that was started, and looks then whether its sandbox is gone.
    fn watch(&self, live: Live, mut child: tokio::process::Child) {
        let engine = self.clone();
        tokio::spawn(async move {
            let _ = child.wait().await;
            engine.look(&live).await;
        });
    }

    /// Ends what waits in pools. Everything else lives on.
    pub async fn close(&self) {
        let waiting = self.0.pools.drain().into_iter().map(|birth| (birth.id, Keeper::at(birth.socket)));
        crate::halt::ask_all(waiting.collect(), Ask::Stop { keep_files: false }).await;
        if let Err(error) = self.0.registry.settle().await {
            crate::log::warn("registry", &error.to_string());
        }
    }

    /// Whether its keeper still answers; one that does not is honestly ended.
    pub(crate) async fn look(&self, live: &Live) {
        if live.state() != State::Ended {
            let _ = self.ask(live, &Ask::Status).await;
        }
    }

    /// Asks a keeper. One that is gone takes its sandbox off the books.
    pub(crate) async fn ask(&self, live: &Live, ask: &Ask) -> Result<Said, ApiError> {
        let said = live.keeper().call(ask).await;
        if matches!(said, Err(CallError::Unreachable(_) | CallError::Closed)) && self.is_gone(live).await {
            let cause = self.cause(&live.sandbox()).await;
            self.forget(live, cause).await;
            return Err(not_usable(live, State::Ended));
        }
        said.map_err(ApiError::from)
    }

    /// Whether nobody listens at a keeper's socket any more: nothing less than that ends a sandbox.
    async fn is_gone(&self, live: &Live) -> bool {
        live.keeper().call(&Ask::Status).await.is_err_and(|error| is_nobody(&error))
    }

    /// Takes a sandbox off the books. Once; what comes later changes nothing.
    async fn forget(&self, live: &Live, seen: &str) {
        let Some(cause) = live.end(clock::now_ms(), seen) else { return };
        let counters = &self.0.counters;
        counters.ended.fetch_add(1, Ordering::Relaxed);
        if cause == "lost" {
            counters.lost.fetch_add(1, Ordering::Relaxed);
            // Its reaper cleans up, if that lives.
            self.0.unswept.store(true, Ordering::Relaxed);
        }
        // Also when whoever saw it goes away meanwhile.
        let (engine, live) = (self.clone(), live.clone());
        let told = tokio::spawn(async move {
            engine.keep(&live).await;
            engine.0.living.write().unwrap_or_else(PoisonError::into_inner).remove(live.id());
        });
        let _ = told.await;
    }

    /// Writes what a sandbox is by the time that this is written: of two who changed it at once, neither writes what was
    /// before the other.
    async fn keep(&self, live: &Live) {
        let now = live.clone();
        self.write(live.id(), move || now.sandbox()).await;
    }

    /// A registry that fails now is told of in the log; the next start learns the truth from the keepers.
    async fn write(&self, id: &TaskId, sandbox: impl FnOnce() -> Sandbox + Send + 'static) {
        if let Err(error) = self.0.registry.update(id.to_string(), sandbox).await {
            crate::log::warn("registry", &format!("sandbox {id}: {error}"));
        }
    }

    fn living(&self) -> std::sync::RwLockReadGuard<'_, HashMap<TaskId, Live>> {
        self.0.living.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finishes what was begun, also when whoever asked for it goes away meanwhile.
async fn whole<T: Send + 'static>(
    what: &str,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::spawn(work).await;
    done.map_err(|error| ApiError::plain(Code::Internal, what, error.to_string())).flatten()
}

/// Whether an error says that nobody listens at a keeper's socket, and not only that it could not be asked just now.
fn is_nobody(error: &CallError) -> bool {
    let CallError::Unreachable(error) = error else { return false };
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// The folder of the daemon's own files in a state folder.
pub(crate) fn folder(state: &Path) -> PathBuf {
    state.join("serve")
}

fn not_usable(live: &Live, state: State) -> ApiError {
    match state {
        State::Running => ApiError::plain(Code::Busy, "use the sandbox", "its state changes just now"),
        State::Paused => ApiError::plain(Code::Paused, "use the sandbox", "it is paused"),
        State::Halted => ApiError::plain(Code::Halted, "use the sandbox", "the kill switch is on"),
        State::Ended => ApiError::no_sandbox(live.id().as_str()),
    }
    .with("sandbox", live.id())
}

fn strange(wanted: &str) -> ApiError {
    ApiError::plain(
        Code::Internal,
        "understand the keeper",
        format!("it answered something else than `{wanted}`"),
    )
}

fn cut(found: Vec<Sandbox>, page: &Page) -> Result<Listed, ApiError> {
    let after = page.after.as_deref().map(TaskId::parse).transpose().map_err(|_| {
        ApiError::plain(Code::BadRequest, "list sandboxes", "the page's token is not one that a list gave")
    })?;
    let limit = page.limit();
    let mut rest = found.into_iter().filter(|sandbox| {
        after
            .as_ref()
            .is_none_or(|after| if page.oldest_first { sandbox.id > *after } else { sandbox.id < *after })
    });
    let sandboxes: Vec<Sandbox> = rest.by_ref().take(limit).collect();
    let next = rest.next().and_then(|_| sandboxes.last()).map(|last| last.id.to_string());
    Ok(Listed { sandboxes, next })
}

fn measured(live: &Live, status: &Status) -> Metrics {
    let at_ms = clock::now_ms();
    let (since_ms, before_ms) =
        live.last_metrics().map_or((status.born_ms, 0), |last| (last.at_ms, last.cpu_ms));
    let span_ms = at_ms.saturating_sub(since_ms).max(1);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Metrics {
        at_ms,
        cpu_ms: status.cpu_ms,
        cpu_milli: status.cpu_ms.saturating_sub(before_ms).saturating_mul(1000) / span_ms,
        cpu_count: u64::try_from(cores).unwrap_or(1),
        memory_bytes: status.memory_bytes.unwrap_or(0),
        memory_limit_bytes: status.memory_limit_bytes,
        disk_bytes: status.disk_bytes.unwrap_or(0),
        disk_limit_bytes: status.disk_limit_bytes,
        running: status.running,
    }
}
