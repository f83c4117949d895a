//! What a start finds: sandboxes that lived on, and those that did not.
//!
//! The keepers tell the truth; the registry tells whose they are. A sandbox that the registry does not know was made
//! a moment before the last daemon died, or without a daemon, and says itself whose it is.

use super::create::{DAEMON_LABEL, OWN_LABELS, REPEAT_LABEL, TEAM_LABEL};
use super::{Engine, is_nobody};
use crate::caller::LOCAL_TEAM;
use crate::clock;
use crate::error::{ApiError, Code};
use crate::halt::{self, folders};
use crate::keeper::Keeper;
use crate::live::Live;
use crate::registry::{Repeat, Row};
use crate::sandbox::{BASE_TEMPLATE, Ended, OnTimeout, Published, Sandbox, State};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Ask, Phase, Said, Spec, Status};
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// A keeper that does not answer by then is asked again by the timers, and its sandbox kept on the books.
const PATIENCE: Duration = Duration::from_secs(5);

/// One that this daemon made is on its books by then, or was given up.
const FORSAKEN: Duration = Duration::from_secs(90);
/// A keeper listens by then, or never will.
const BIRTH: Duration = Duration::from_secs(60);

/// What `sandbox.json` of a keeper has that matters here.
#[derive(Debug, Default, serde::Deserialize)]
struct Told {
    #[serde(default)]
    spec: Spec,
}

// === impl Engine ===

impl Engine {
    /// Takes every sandbox whose keeper answers, and ends the others on the books.
    pub(super) async fn adopt(&self) -> Result<(), ApiError> {
        self.0.registry.prune().await?;
        self.0.strays.inherit(self.0.registry.meant_folders().await?);
        let rows = self.0.registry.living().await?;
        let mut rows: HashMap<TaskId, Row> =
            rows.into_iter().map(|row| (row.sandbox.id.clone(), row)).collect();
        fault::point(Point::AdoptRead);
        let mut asked = JoinSet::new();
        for (id, keeper) in folders(&self.0.config.sandboxes) {
            asked.spawn(async move {
                let said = tokio::time::timeout(PATIENCE, keeper.call(&Ask::Status)).await;
                (id, keeper, said)
            });
        }
        while let Some(joined) = asked.join_next().await {
            let Ok((id, keeper, said)) = joined else { continue };
            fault::point(Point::AdoptAsked);
            match said {
                Ok(Ok(Said::Status(status))) if status.phase != Phase::Ending => {
                    self.take(rows.remove(&id), id, keeper, status).await?;
                    fault::point(Point::AdoptTaken);
                }
                Ok(Err(error)) if is_nobody(&error) => {}
                // It is there, and silent or on its way out. Nothing is claimed about it but that it lives; the timers
                // ask again.
                Ok(_) | Err(_) => {
                    if let Some(row) = rows.remove(&id) {
                        self.hold(&Live::new(row.sandbox, keeper, row.spec));
                    }
                }
            }
        }
        for (id, row) in rows {
            let cause = self.cause(&row.sandbox).await;
            crate::log::info("adopt", &format!("sandbox {id} did not live on: {cause}"));
            let ended = Some(Ended { at_ms: clock::now_ms(), cause: cause.to_owned() });
            self.write(&id, move || Sandbox { state: State::Ended, ended, ..row.sandbox }).await;
        }
        self.remove_strays().await;
        crate::spawn::sweep(&self.0.config);
        Ok(())
    }

    /// Takes what lives and nobody here knows: made without the daemon, or by a keeper that an earlier daemon had
    /// started and that came to life after this one had looked. What is dead is left to a sweep.
    pub(super) async fn adopt_strangers(&self) {
        let known: HashSet<TaskId> = self.living().keys().cloned().collect();
        let waiting = self.0.pools.ids();
        for (id, keeper) in folders(&self.0.config.sandboxes) {
            if known.contains(&id) || waiting.contains(&id) || self.folder(&id).join("kept").exists() {
                continue;
            }
            match tokio::time::timeout(PATIENCE, keeper.call(&Ask::Status)).await {
                Ok(Ok(Said::Status(status))) if status.phase != Phase::Ending => {
                    // Its description is there since before it answered.
                    let told = self.told(&id).await;
                    let is_new = clock::now_ms().saturating_sub(status.born_ms) < clock::millis(FORSAKEN);
                    let is_ours = is_new && told.spec.labels.get(DAEMON_LABEL) == Some(&self.0.instance);
                    if is_ours || self.living().contains_key(&id) {
                        continue;
                    }
                    crate::log::info("adopt", &format!("sandbox {id} was made by somebody else"));
                    if let Err(error) = self.take(None, id, keeper, status).await {
                        crate::log::warn("adopt", &error.to_string());
                    }
                }
                Ok(Err(error)) if is_nobody(&error) && self.is_dead(&id) => {
                    self.0.unswept.store(true, Ordering::Relaxed);
                }
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// A keeper that does not listen any more is dead; one that does not yet may be on its way.
    fn is_dead(&self, id: &TaskId) -> bool {
        let folder = self.folder(id);
        let made = std::fs::metadata(&folder).and_then(|meta| meta.modified());
        folder.join("keeper.sock").exists()
            || made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age >= BIRTH))
    }

    fn folder(&self, id: &TaskId) -> PathBuf {
        self.0.config.sandboxes.join(id.as_str())
    }

    /// Why a sandbox is no more, from what its keeper or its reaper wrote down.
    pub(super) async fn cause(&self, sandbox: &Sandbox) -> &'static str {
        let (records, id) = (self.0.config.records.clone(), sandbox.id.clone());
        let read = tokio::task::spawn_blocking(move || fumehood_audit::read(&records, &id)).await;
        let why = read.ok().and_then(Result::ok).and_then(|read| {
            read.lines.iter().rev().find_map(|line| match line.known() {
                Some(Event::Stopped { why, .. }) => Some(why),
                _ => None,
            })
        });
        let is_over = sandbox.expires_ms.is_some_and(|end| end <= clock::now_ms());
        match why.as_deref() {
            Some("asked") => "stopped",
            Some("expired") => "expired",
            None if is_over => "expired",
            Some(_) | None => "lost",
        }
    }

    async fn take(
        &self,
        row: Option<Row>,
        id: TaskId,
        keeper: Keeper,
        status: Status,
    ) -> Result<(), ApiError> {
        if status.pooled {
            // Nobody's: it waited in a pool that is gone, or was about to become somebody's who never heard of it.
            if row.is_some() {
                self.0.registry.strike(id.to_string()).await?;
            }
            tokio::spawn(async move { keeper.call(&Ask::Stop { keep_files: false }).await });
            return Ok(());
        }
        let is_ours = row.is_some();
        let (mut sandbox, spec, repeat) = match row {
            Some(row) => (row.sandbox, row.spec, None),
            None => stranger(id.clone(), self.told(&id).await.spec, &status),
        };
        sandbox.state = match status.phase {
            Phase::Paused => State::Paused,
            Phase::Halted => State::Halted,
            Phase::Running | Phase::Ending => State::Running,
        };
        self.settle_end(&mut sandbox, &keeper, &status, is_ours).await?;
        let halted = self.0.halts.is_halted(&sandbox.team, sandbox.id.as_str());
        if halted && sandbox.state != State::Halted {
            // The kill switch was thrown while this one could not be reached.
            let outcome = halt::ask_all(vec![(sandbox.id.clone(), keeper.clone())], Ask::Halt).await;
            if outcome.failed.is_empty() {
                sandbox.state = State::Halted;
            }
        }
        self.0.registry.register(Row { sandbox: sandbox.clone(), spec: spec.clone() }, repeat).await?;
        self.hold(&Live::new(sandbox, keeper, spec));
        Ok(())
    }

    /// When its time is over. The last daemon may have died between a pause or a resume and the time that goes with it:
    /// one that runs has an end, if it ever had one.
    async fn settle_end(
        &self,
        sandbox: &mut Sandbox,
        keeper: &Keeper,
        status: &Status,
        is_ours: bool,
    ) -> Result<(), ApiError> {
        if sandbox.state == State::Paused {
            sandbox.expires_ms = None;
            return Ok(());
        }
        let own = status.expires_ms.filter(|_| sandbox.on_timeout == OnTimeout::Stop);
        sandbox.expires_ms = match own.or(sandbox.expires_ms) {
            None if is_ours => self.end_of(Some(self.0.config.ttl))?,
            end => end,
        };
        if sandbox.on_timeout == OnTimeout::Stop && sandbox.expires_ms != status.expires_ms {
            // A keeper that can not be told now is asked again when the time is over.
            let _ = keeper.call(&Ask::Expire { at_ms: sandbox.expires_ms }).await;
        }
        Ok(())
    }

    /// The envelope that a sandbox lives by, in words.
    pub(super) async fn envelope(&self, id: &TaskId) -> Result<serde_json::Value, ApiError> {
        let path = self.0.config.sandboxes.join(id.as_str()).join("sandbox.json");
        let unread = |cause: String| ApiError::plain(Code::Internal, "read what the sandbox is", cause);
        let bytes = tokio::fs::read(path).await.map_err(|error| unread(error.to_string()))?;
        let told: Told = serde_json::from_slice(&bytes).map_err(|error| unread(error.to_string()))?;
        Ok(told.spec.envelope)
    }

    async fn told(&self, id: &TaskId) -> Told {
        let path = self.folder(id).join("sandbox.json");
        let bytes = tokio::fs::read(path).await.unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }
}

/// One that the registry does not know.
fn stranger(id: TaskId, spec: Spec, status: &Status) -> (Sandbox, Spec, Option<Repeat>) {
    let team = spec.labels.get(TEAM_LABEL).cloned().unwrap_or_else(|| LOCAL_TEAM.to_owned());
    let repeat = spec.labels.get(REPEAT_LABEL).and_then(|label| label.split_once(' '));
    let repeat = repeat.map(|(fingerprint, key)| Repeat {
        team: team.clone(),
        key: key.to_owned(),
        fingerprint: fingerprint.to_owned(),
    });
    let own = |(name, _): &(&String, &String)| !name.starts_with(OWN_LABELS);
    let labels = spec.labels.iter().filter(own).map(|(name, value)| (name.clone(), value.clone())).collect();
    let sandbox = Sandbox {
        id,
        team,
        template: BASE_TEMPLATE.to_owned(),
        level: status.level.clone(),
        state: State::Running,
        labels,
        created_ms: status.born_ms,
        expires_ms: status.expires_ms,
        on_timeout: OnTimeout::Stop,
        auto_resume: false,
        idle_pause_ms: None,
        memory_limit_bytes: status.memory_limit_bytes,
        disk_limit_bytes: status.disk_limit_bytes,
        cpu_milli: status.cpu_limit_milli,
        parent: None,
        root: None,
        key: None,
        home: status.home.clone(),
        cwd: status.cwd.clone(),
        published: status.published.iter().copied().map(Published::from).collect(),
        ended: None,
    };
    (sandbox, spec, repeat)
}
