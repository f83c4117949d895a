//! The verbs. Every door translates to them; none of them knows of HTTP.
//!
//! **Invariant:** a sandbox is registered before a caller hears of it, and one of another team reads as one that
//! never was.

use crate::caller::Caller;
use crate::clock;
use crate::config::Config;
use crate::error::{ApiError, Code};
use crate::keeper::Keeper;
use crate::live::{Live, Use};
use crate::sandbox::{
    BASE_TEMPLATE, Ended, Filter, Listed, Metrics, NewSandbox, OnTimeout, Page, Sandbox, Snapshot, State,
};
use crate::spawn;
use fumehood_keep::wire::{Ask, Said, Spec, Status};
use fumehood_model::id::TaskId;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The daemon's verbs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    config: Config,
    living: RwLock<HashMap<TaskId, Live>>,
    /// Keepers that may be started at once.
    spawns: Semaphore,
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
        let spawns = Semaphore::new(config.spawns.max(1));
        Ok(Self(Arc::new(Parts { config, living: RwLock::default(), spawns })))
    }

    /// What the daemon was told at its start.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// Makes a sandbox, or takes one that waits.
    ///
    /// # Errors
    /// A quota, a flaw in what was asked, or no sandbox came to be.
    pub async fn create(&self, caller: &Caller, new: NewSandbox) -> Result<Sandbox, ApiError> {
        let (engine, caller) = (self.clone(), caller.clone());
        // A caller who goes away meanwhile does not leave half a sandbox.
        let made = tokio::spawn(async move { engine.make(&caller, new).await }).await;
        made.map_err(|error| ApiError::plain(Code::Internal, "create the sandbox", error.to_string()))?
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
        self.living().get(&id).cloned()
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
        found.sort_by(|a, b| a.id.cmp(&b.id));
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
                Ok(entered) => return Ok(entered),
                Err(State::Paused) if live.sandbox().auto_resume => {
                    self.wake(live, None).await?;
                }
                Err(state) => return Err(not_usable(live, state)),
            }
        }
    }

    /// Ends a sandbox and removes everything of it.
    ///
    /// # Errors
    /// Its keeper lives and could not do it.
    pub async fn stop(&self, live: &Live) -> Result<(), ApiError> {
        let _transition = live.transition().await;
        self.end(live, "stopped").await
    }

    /// Freezes a sandbox.
    ///
    /// # Errors
    /// [`Code::Paused`] if it is; its keeper could not do it.
    pub async fn pause(&self, live: &Live, why: Pausing) -> Result<Sandbox, ApiError> {
        let _transition = live.transition().await;
        let now_ms = clock::now_ms();
        let stale = match why {
            Pausing::Asked => false,
            Pausing::Idle => !live.is_idle(now_ms),
            Pausing::Expired => !live.is_expired(now_ms),
        };
        if stale {
            return Ok(live.sandbox());
        }
        match live.state() {
            State::Running => {}
            state @ (State::Paused | State::Halted | State::Ended) => return Err(not_usable(live, state)),
        }
        // From here on nobody enters: whoever comes waits for the transition, and wakes it again.
        live.change(|sandbox| sandbox.state = State::Paused);
        let kept = self.ask(live, &Ask::Expire { at_ms: None }).await;
        let paused = match kept {
            Ok(_) => self.ask(live, &Ask::Pause).await,
            Err(error) => Err(error),
        };
        match paused {
            Ok(_) => Ok(live.change(|sandbox| sandbox.expires_ms = None)),
            Err(error) if error.code == Code::Paused => Ok(live.sandbox()),
            Err(error) => {
                live.change(|sandbox| {
                    if sandbox.state == State::Paused {
                        sandbox.state = State::Running;
                    }
                });
                Err(error)
            }
        }
    }

    /// Thaws a sandbox, for `ttl` from now on (the configured span if absent).
    ///
    /// # Errors
    /// [`Code::NotPaused`] if it runs; its keeper could not do it.
    pub async fn resume(&self, live: &Live, ttl: Option<Duration>) -> Result<Sandbox, ApiError> {
        if self.wake(live, ttl).await? {
            return Ok(live.sandbox());
        }
        Err(ApiError::plain(Code::NotPaused, "resume the sandbox", "it runs"))
    }

    /// Makes sure that a sandbox runs, for at least `ttl` from now on. Only ever extends its time. The flag tells
    /// whether it was woken.
    ///
    /// # Errors
    /// It is halted or has ended.
    pub async fn connect(&self, live: &Live, ttl: Option<Duration>) -> Result<(Sandbox, bool), ApiError> {
        if self.wake(live, ttl).await? {
            return Ok((live.sandbox(), true));
        }
        if let Some(ttl) = ttl {
            let _transition = live.transition().await;
            let wanted = self.end_of(Some(ttl))?;
            let has = live.sandbox().expires_ms;
            if has.is_some_and(|has| wanted.is_none_or(|wanted| wanted > has)) {
                self.set_end(live, wanted).await?;
            }
        }
        Ok((live.sandbox(), false))
    }

    /// Sets when a sandbox's time is over: `ttl` from now on.
    ///
    /// # Errors
    /// It is longer than is allowed; the sandbox has ended.
    pub async fn set_ttl(&self, live: &Live, ttl: Duration) -> Result<Sandbox, ApiError> {
        let _transition = live.transition().await;
        let end = self.end_of(Some(ttl))?;
        self.set_end(live, end).await
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

    /// Keeps a sandbox's files under a name of the team's own.
    ///
    /// # Errors
    /// The name is taken; its keeper could not do it.
    pub async fn snapshot(&self, live: &Live, name: Option<&str>) -> Result<Snapshot, ApiError> {
        let name = name.map_or_else(|| format!("{}-{}", live.id(), clock::now_ms()), str::to_owned);
        let Said::Snapshot { bytes, frozen_us, .. } =
            self.ask(live, &Ask::Snapshot { name: name.clone() }).await?
        else {
            return Err(strange("Snapshot"));
        };
        let sandbox = live.sandbox();
        Ok(Snapshot {
            name,
            team: sandbox.team,
            sandbox: sandbox.id.to_string(),
            template: sandbox.template,
            created_ms: clock::now_ms(),
            bytes,
            frozen_us,
        })
    }

    /// Makes `count` children of a sandbox, each with files like its own at one moment.
    ///
    /// # Errors
    /// Its files could not be kept. What a single child failed with stands in its place.
    pub async fn fork(
        &self,
        caller: &Caller,
        live: &Live,
        count: usize,
        ttl: Option<Duration>,
    ) -> Result<Vec<Result<Sandbox, ApiError>>, ApiError> {
        let snapshot = self.snapshot(live, None).await?;
        let mut children = Vec::new();
        for _ in 0..count {
            let mut spec = live.spec().clone();
            spec.snapshot = Some(snapshot.name.clone());
            let parent = live.sandbox();
            let new = NewSandbox {
                template: Some(parent.template),
                ttl,
                on_timeout: parent.on_timeout,
                auto_resume: parent.auto_resume,
                idle_pause: parent.idle_pause_ms.map(Duration::from_millis),
                labels: parent.labels,
                ..NewSandbox::default()
            };
            children.push(self.born(caller, &new, spec, Some(live.id().to_string())).await);
        }
        Ok(children)
    }

    async fn make(&self, caller: &Caller, new: NewSandbox) -> Result<Sandbox, ApiError> {
        let spec = Spec {
            envelope: new.envelope.clone(),
            level: new.level.clone(),
            env: new.env.clone(),
            ..Spec::default()
        };
        self.born(caller, &new, spec, None).await
    }

    async fn born(
        &self,
        caller: &Caller,
        new: &NewSandbox,
        mut spec: Spec,
        parent: Option<String>,
    ) -> Result<Sandbox, ApiError> {
        let expires_ms = self.end_of(Some(new.ttl.unwrap_or(self.0.config.ttl)))?;
        spec.labels.clone_from(&new.labels);
        spec.actor = caller.actor();
        spec.expires_ms = expires_ms.filter(|_| new.on_timeout == OnTimeout::Stop);
        let permit = self.0.spawns.acquire().await;
        let birth = spawn::spawn(&self.0.config, &spec).await;
        drop(permit);
        let spawn::Birth { id, socket, status, child } = birth?;
        let sandbox = Sandbox {
            id,
            team: caller.team.clone(),
            template: new.template.clone().unwrap_or_else(|| BASE_TEMPLATE.to_owned()),
            level: status.level,
            state: State::Running,
            labels: new.labels.clone(),
            created_ms: status.born_ms,
            expires_ms,
            on_timeout: new.on_timeout,
            auto_resume: new.auto_resume,
            idle_pause_ms: new.idle_pause.map(clock::millis),
            memory_limit_bytes: status.memory_limit_bytes,
            disk_limit_bytes: status.disk_limit_bytes,
            cpu_milli: None,
            parent,
            home: status.home,
            cwd: status.cwd,
            ended: None,
        };
        let live = Live::new(sandbox.clone(), Keeper::at(socket), spec);
        self.hold(&live);
        self.watch(live, child);
        Ok(sandbox)
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

    /// Whether its keeper still answers; one that does not is honestly ended.
    async fn look(&self, live: &Live) {
        if live.state() == State::Ended {
            return;
        }
        let _ = self.ask(live, &Ask::Status).await;
    }

    /// Asks a keeper. One that is gone takes its sandbox off the books.
    async fn ask(&self, live: &Live, ask: &Ask) -> Result<Said, ApiError> {
        let said = live.keeper().call(ask).await;
        if let Err(fumehood_keep::client::CallError::Unreachable(_)) = &said {
            let expired = live.sandbox().expires_ms.is_some_and(|end| end <= clock::now_ms());
            self.forget(live, if expired { "expired" } else { "lost" });
            return Err(not_usable(live, State::Ended));
        }
        said.map_err(ApiError::from)
    }

    async fn end(&self, live: &Live, cause: &str) -> Result<(), ApiError> {
        if live.state() == State::Ended {
            return Err(ApiError::no_sandbox(live.id().as_str()));
        }
        match live.keeper().call(&Ask::Stop { keep_files: false }).await {
            // One that is gone already is what was wanted.
            Ok(_)
            | Err(
                fumehood_keep::client::CallError::Unreachable(_) | fumehood_keep::client::CallError::Closed,
            ) => {}
            Err(error) => return Err(error.into()),
        }
        self.forget(live, cause);
        Ok(())
    }

    fn forget(&self, live: &Live, cause: &str) {
        let ended = Ended { at_ms: clock::now_ms(), cause: cause.to_owned() };
        live.change(|sandbox| {
            sandbox.state = State::Ended;
            sandbox.ended = Some(ended);
        });
        let mut living = self.0.living.write().unwrap_or_else(PoisonError::into_inner);
        living.remove(live.id());
    }

    /// Wakes a sandbox that is paused. The flag tells whether it was.
    async fn wake(&self, live: &Live, ttl: Option<Duration>) -> Result<bool, ApiError> {
        let _transition = live.transition().await;
        match live.state() {
            State::Running => return Ok(false),
            State::Paused => {}
            state @ (State::Halted | State::Ended) => return Err(not_usable(live, state)),
        }
        let end = self.end_of(Some(ttl.unwrap_or(self.0.config.ttl)))?;
        match self.ask(live, &Ask::Resume).await {
            Ok(_) => {}
            Err(error) if error.code == Code::NotPaused => {}
            Err(error) => return Err(error),
        }
        self.set_end(live, end).await?;
        live.change(|sandbox| sandbox.state = State::Running);
        Ok(true)
    }

    /// The caller holds the transition.
    async fn set_end(&self, live: &Live, end: Option<u64>) -> Result<Sandbox, ApiError> {
        let on_timeout = live.sandbox().on_timeout;
        self.ask(live, &Ask::Expire { at_ms: end.filter(|_| on_timeout == OnTimeout::Stop) }).await?;
        Ok(live.change(|sandbox| sandbox.expires_ms = end))
    }

    fn end_of(&self, ttl: Option<Duration>) -> Result<Option<u64>, ApiError> {
        let Some(ttl) = ttl else { return Ok(None) };
        if let Some(most) = self.0.config.most_ttl.filter(|most| ttl > *most) {
            let cause = format!("{} s were asked for, and {} s are allowed", ttl.as_secs(), most.as_secs());
            return Err(ApiError::new(
                Code::BadRequest,
                "set the sandbox's time",
                cause,
                "ask for a shorter time, and extend it while the sandbox is used",
            ));
        }
        Ok(Some(clock::now_ms().saturating_add(clock::millis(ttl))))
    }

    fn living(&self) -> std::sync::RwLockReadGuard<'_, HashMap<TaskId, Live>> {
        self.0.living.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The folder of the daemon's own files.
    pub(crate) fn folder(&self) -> PathBuf {
        folder(&self.0.config.state)
    }
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
    ApiError::plain(Code::Internal, "understand the keeper", format!("it answered something else than `{wanted}`"))
}

fn cut(found: Vec<Sandbox>, page: &Page) -> Result<Listed, ApiError> {
    let after = page.after.as_deref().map(TaskId::parse).transpose().map_err(|_| {
        ApiError::plain(Code::BadRequest, "list sandboxes", "the page's token is not one that a list gave")
    })?;
    let limit = page.limit.unwrap_or(Page::USUAL).clamp(1, Page::MOST);
    let mut rest = found.into_iter().filter(|sandbox| {
        after.as_ref().is_none_or(|after| {
            if page.oldest_first { sandbox.id > *after } else { sandbox.id < *after }
        })
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
