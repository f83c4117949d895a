//! What a start finds: sandboxes that lived on, and those that did not.
//!
//! The keepers tell the truth; the registry tells whose they are. A sandbox that the registry does not know was made
//! a moment before the last daemon died, or without a daemon, and says itself whose it is.

use super::Engine;
use super::create::{OWN_LABELS, REPEAT_LABEL, TEAM_LABEL};
use crate::caller::LOCAL_TEAM;
use crate::clock;
use crate::error::{ApiError, Code};
use crate::halt::{self, folders};
use crate::keeper::Keeper;
use crate::live::Live;
use crate::registry::{Repeat, Row};
use crate::sandbox::{BASE_TEMPLATE, Ended, OnTimeout, Published, Sandbox, State};
use fumehood_keep::wire::{Ask, Phase, Said, Spec, Status};
use fumehood_model::id::TaskId;
use std::collections::HashMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// A keeper that does not answer by then is asked again by the timers, and its sandbox kept on the books.
const PATIENCE: Duration = Duration::from_secs(5);

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
        let rows = self.0.registry.living().await?;
        let mut rows: HashMap<TaskId, Row> =
            rows.into_iter().map(|row| (row.sandbox.id.clone(), row)).collect();
        let mut asked = JoinSet::new();
        for (id, keeper) in folders(&self.0.config.sandboxes) {
            asked.spawn(async move {
                let said = tokio::time::timeout(PATIENCE, keeper.call(&Ask::Status)).await;
                (id, keeper, said)
            });
        }
        while let Some(joined) = asked.join_next().await {
            let Ok((id, keeper, said)) = joined else { continue };
            match said {
                Ok(Ok(Said::Status(status))) if status.phase != Phase::Ending => {
                    self.take(rows.remove(&id), id, keeper, status).await?;
                }
                Ok(_) => {}
                // It is there and silent. Nothing is claimed about it but that it lives.
                Err(_) => {
                    if let Some(row) = rows.remove(&id) {
                        self.hold(&Live::new(row.sandbox, keeper, row.spec));
                    }
                }
            }
        }
        for (id, row) in rows {
            let expired = row.sandbox.expires_ms.is_some_and(|end| end <= clock::now_ms());
            let cause = if expired { "expired" } else { "lost" };
            crate::log::info("adopt", &format!("sandbox {id} did not live on: {cause}"));
            let ended = Some(Ended { at_ms: clock::now_ms(), cause: cause.to_owned() });
            self.keep(Sandbox { state: State::Ended, ended, ..row.sandbox }).await;
        }
        Ok(())
    }

    async fn take(
        &self,
        row: Option<Row>,
        id: TaskId,
        keeper: Keeper,
        status: Status,
    ) -> Result<(), ApiError> {
        let (mut sandbox, spec, repeat) = match row {
            Some(row) => (row.sandbox, row.spec, None),
            None => {
                let told = self.told(&id).await;
                if told.spec.pooled && !told.spec.labels.contains_key(TEAM_LABEL) {
                    // It waited in a pool that is gone: nobody's.
                    tokio::spawn(async move { keeper.call(&Ask::Stop { keep_files: false }).await });
                    return Ok(());
                }
                stranger(id, told.spec, &status)
            }
        };
        sandbox.state = match status.phase {
            Phase::Paused => State::Paused,
            Phase::Halted => State::Halted,
            Phase::Running | Phase::Ending => State::Running,
        };
        if sandbox.state == State::Paused {
            sandbox.expires_ms = None;
        } else if sandbox.on_timeout == OnTimeout::Stop {
            sandbox.expires_ms = status.expires_ms;
        } else if sandbox.expires_ms.is_none() {
            sandbox.expires_ms = self.end_of(Some(self.0.config.ttl))?;
        }
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

    /// The envelope that a sandbox lives by, in words.
    pub(super) async fn envelope(&self, id: &TaskId) -> Result<serde_json::Value, ApiError> {
        let path = self.0.config.sandboxes.join(id.as_str()).join("sandbox.json");
        let unread = |cause: String| ApiError::plain(Code::Internal, "read what the sandbox is", cause);
        let bytes = tokio::fs::read(path).await.map_err(|error| unread(error.to_string()))?;
        let told: Told = serde_json::from_slice(&bytes).map_err(|error| unread(error.to_string()))?;
        Ok(told.spec.envelope)
    }

    async fn told(&self, id: &TaskId) -> Told {
        let path = self.0.config.sandboxes.join(id.as_str()).join("sandbox.json");
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
        cpu_milli: None,
        parent: None,
        home: status.home.clone(),
        cwd: status.cwd.clone(),
        published: status.published.iter().copied().map(Published::from).collect(),
        ended: None,
    };
    (sandbox, spec, repeat)
}
