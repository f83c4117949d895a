//! Files kept under a name, and children that begin with them.

use super::create::Origin;
use super::{Engine, strange};
use crate::caller::{Caller, Scope};
use crate::clock;
use crate::error::{ApiError, Code};
use crate::keys;
use crate::live::Live;
use crate::registry::Kept;
use crate::sandbox::{NewSandbox, Sandbox, Snapshot};
use fumehood_keep::wire::{Ask, Forked, Said, Spec};
use std::collections::BTreeMap;
use std::time::Duration;

/// Children of one fork.
const MOST_CHILDREN: usize = 100;
/// How the keepers' names of what a fork makes for its children begin.
const FORK: &str = ".fork-";
/// What is older than this has lost whoever made it.
const FORSAKEN: Duration = Duration::from_secs(3600);
/// Digits that make a snapshot's name among the keepers' unique.
const RANDOM_BYTES: usize = 10;

// === impl Engine ===

impl Engine {
    /// Keeps a sandbox's files under a name of the team's own; one is made up if absent.
    ///
    /// # Errors
    /// The name is taken; its keeper could not do it.
    pub async fn snapshot(&self, live: &Live, name: Option<&str>) -> Result<Snapshot, ApiError> {
        let sandbox = live.sandbox();
        let folder = format!("s{}", keys::random_hex(RANDOM_BYTES)?);
        let name = name.map_or_else(|| folder.clone(), str::to_owned);
        keys::name(&name, "snapshot")?;
        let taken = || {
            let cause = format!("there is a snapshot or a template `{name}`");
            ApiError::plain(Code::Exists, "take the snapshot", cause)
        };
        let known = self.0.registry.find_snapshot(sandbox.team.clone(), name.clone()).await?;
        if known.is_some() || self.0.templates.spec(&name).is_some() {
            return Err(taken());
        }
        let transition = live.transition().await;
        let Said::Snapshot { bytes, frozen_us, .. } =
            self.ask(live, &Ask::Snapshot { name: folder.clone() }).await?
        else {
            return Err(strange("Snapshot"));
        };
        drop(transition);
        let snapshot = Snapshot {
            name: name.clone(),
            team: sandbox.team,
            sandbox: sandbox.id.to_string(),
            template: sandbox.template,
            created_ms: clock::now_ms(),
            bytes,
            frozen_us,
        };
        let spec = Spec { labels: BTreeMap::new(), actor: String::new(), ..live.spec().clone() };
        let kept = Kept { snapshot: snapshot.clone(), folder, spec };
        if self.0.registry.add_snapshot(kept).await? { Ok(snapshot) } else { Err(taken()) }
    }

    /// The caller's snapshots, by name.
    ///
    /// # Errors
    /// The registry can not be read.
    pub async fn snapshots(&self, caller: &Caller) -> Result<Vec<Snapshot>, ApiError> {
        let team = (!caller.scopes.has(Scope::Admin)).then(|| caller.team.clone());
        self.0.registry.snapshots(team).await
    }

    /// Removes a snapshot of the caller's team. Sandboxes that began with it keep their files.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn remove_snapshot(&self, caller: &Caller, name: &str) -> Result<(), ApiError> {
        let kept = self.0.registry.find_snapshot(caller.team.clone(), name.to_owned()).await?;
        let Some(kept) = kept else {
            let shown: String = name.chars().take(64).collect();
            let cause = format!("snapshot `{shown}` was not found");
            return Err(ApiError::plain(Code::NotFound, "remove the snapshot", cause));
        };
        self.0.registry.remove_snapshot(caller.team.clone(), name.to_owned()).await?;
        let folder = self.0.config.snapshots.join(&kept.folder);
        match tokio::fs::remove_dir_all(&folder).await {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(ApiError::plain(Code::Internal, "remove the snapshot's files", error.to_string()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Makes `count` children of a sandbox, each with files like its own at one moment, and an envelope that is its own or
    /// less.
    ///
    /// # Errors
    /// Its files could not be kept. What a single child failed with stands in its place.
    pub async fn fork(
        &self,
        caller: &Caller,
        live: &Live,
        (count, narrow): (usize, serde_json::Value),
        ttl: Option<Duration>,
    ) -> Result<Vec<Result<Sandbox, ApiError>>, ApiError> {
        if count == 0 || count > MOST_CHILDREN {
            let cause = format!("{count} children were asked for, of 1 to {MOST_CHILDREN}");
            return Err(ApiError::plain(Code::BadRequest, "fork the sandbox", cause));
        }
        let parent = live.sandbox();
        // Hidden, and not waited for until it is on the disk: it is gone before anybody could ask for it.
        let name = format!("{FORK}{}", keys::random_hex(RANDOM_BYTES)?);
        let transition = live.transition().await;
        let Said::Snapshot { .. } = self.ask(live, &Ask::Snapshot { name: name.clone() }).await? else {
            return Err(strange("Snapshot"));
        };
        drop(transition);
        // A child of a child is measured by what that is, which its keeper wrote down.
        let envelope = self.envelope(live.id()).await?;
        let (snapshot, forked) = (Some(name.clone()), Some(Forked { narrow }));
        let spec = Spec { snapshot, envelope, forked, ..live.spec().clone() };
        let new = NewSandbox {
            template: Some(parent.template),
            ttl,
            on_timeout: parent.on_timeout,
            auto_resume: parent.auto_resume,
            idle_pause: parent.idle_pause_ms.map(Duration::from_millis),
            labels: parent.labels,
            ..NewSandbox::default()
        };
        let born = (0..count).map(|_| {
            let (engine, caller, new, spec) = (self.clone(), caller.clone(), new.clone(), spec.clone());
            let parent = live.id().to_string();
            let origin = Origin { parent: Some(parent), repeat: None };
            tokio::spawn(async move { engine.born(&caller, &new, spec, origin).await })
        });
        let born: Vec<_> = born.collect();
        let mut children = Vec::new();
        for child in born {
            let child = child
                .await
                .map_err(|error| ApiError::plain(Code::Internal, "fork the sandbox", error.to_string()));
            children.push(child.flatten());
        }
        // Each child has a copy of its own by now.
        if let Err(error) = tokio::fs::remove_dir_all(self.0.config.snapshots.join(&name)).await {
            crate::log::warn("fork", &error.to_string());
        }
        Ok(children)
    }

    /// Removes what forks left that were cut off by our end.
    pub(super) async fn prune_forks(&self) {
        let Ok(mut all) = tokio::fs::read_dir(&self.0.config.snapshots).await else { return };
        while let Ok(Some(entry)) = all.next_entry().await {
            let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(FORK));
            // Forks without a daemon may be under way.
            let age =
                entry.metadata().await.and_then(|meta| meta.modified()).ok().and_then(|at| at.elapsed().ok());
            if ours && age.is_some_and(|age| age > FORSAKEN) {
                let _ = tokio::fs::remove_dir_all(entry.path()).await;
            }
        }
    }
}
