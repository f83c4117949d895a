//! Files kept under a name, and children that begin with them.

use super::create::Origin;
use super::network::without_given;
use super::strays::Folder;
use super::{Engine, strange, whole};
use crate::caller::{Caller, Scope};
use crate::clock;
use crate::error::{ApiError, Code};
use crate::keys;
use crate::live::Live;
use crate::quota;
use crate::registry::Kept;
use crate::sandbox::{NewSandbox, Sandbox, Snapshot};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Ask, Forked, Said, Spec};
use std::collections::BTreeMap;
use std::time::Duration;

/// Children of one fork.
const MOST_CHILDREN: usize = 100;

// === impl Engine ===

impl Engine {
    /// Keeps a sandbox's files, or at the level `microvm` the whole of it, under a name of the team's own; one is made
    /// up if absent. With `memory` it is kept with that, or without, or not at all.
    ///
    /// # Errors
    /// The name is taken; its keeper could not do it.
    pub async fn snapshot(
        &self,
        live: &Live,
        name: Option<&str>,
        memory: Option<bool>,
    ) -> Result<Snapshot, ApiError> {
        let (engine, live, name) = (self.clone(), live.clone(), name.map(str::to_owned));
        whole("take the snapshot", async move {
            let from_ms = clock::now_ms();
            let taken = engine.keep_files(&live, name, memory).await;
            let bytes = taken.as_ref().map_or(0, |snapshot| snapshot.bytes);
            let said = vec![("bytes", bytes.into())];
            engine.tracer().done(("snapshot", live.id().as_str()), from_ms, &taken, said);
            taken
        })
        .await
    }

    async fn keep_files(
        &self,
        live: &Live,
        name: Option<String>,
        memory: Option<bool>,
    ) -> Result<Snapshot, ApiError> {
        let sandbox = live.sandbox();
        let folder = self.0.strays.folder()?;
        let name = name.unwrap_or_else(|| folder.name().to_owned());
        keys::name(&name, "snapshot")?;
        let taken = || {
            let cause = format!("there is a snapshot or a template `{name}`");
            ApiError::plain(Code::Exists, "take the snapshot", cause)
        };
        let known = self.0.registry.find_snapshot(sandbox.team.clone(), name.clone()).await?;
        if known.is_some() || self.0.templates.spec(&name).is_some() {
            return Err(taken());
        }
        let (bytes, frozen_us) = self.copy_files(live, &folder, memory).await?;
        let snapshot = Snapshot {
            name: name.clone(),
            team: sandbox.team,
            sandbox: sandbox.id.to_string(),
            template: sandbox.template,
            created_ms: clock::now_ms(),
            bytes,
            frozen_us,
        };
        let spec = without_given(live.spec());
        let spec = Spec { labels: BTreeMap::new(), actor: String::new(), ..spec };
        let kept = Kept { snapshot: snapshot.clone(), folder: folder.name().to_owned(), spec };
        let added = self.0.registry.add_snapshot(kept).await?;
        fault::point(Point::SnapshotKept);
        if added {
            folder.settle();
            return Ok(snapshot);
        }
        Err(taken())
    }

    /// Copies a sandbox's files to a folder that is nobody's yet: gives the bytes, and how long it stood still (µs).
    async fn copy_files(
        &self,
        live: &Live,
        folder: &Folder,
        memory: Option<bool>,
    ) -> Result<(u64, u64), ApiError> {
        self.0.registry.mean_folder(folder.name().to_owned()).await?;
        fault::point(Point::SnapshotMeant);
        let _transition = live.transition().await;
        let said = self.ask(live, &Ask::Snapshot { name: folder.name().to_owned(), memory }).await?;
        fault::point(Point::SnapshotTaken);
        let Said::Snapshot { bytes, frozen_us, .. } = said else { return Err(strange("Snapshot")) };
        Ok((bytes, frozen_us))
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
        let (engine, team, name) = (self.clone(), caller.team.clone(), name.to_owned());
        whole("remove the snapshot", async move {
            let folder = engine.0.strays.hold(&kept.folder);
            engine.0.registry.disown_snapshot(team, name, kept.folder).await?;
            fault::point(Point::SnapshotForgotten);
            // Gone for the caller; the files go now, or with a later look.
            drop(folder);
            engine.remove_strays().await;
            Ok(())
        })
        .await
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
        let (engine, caller, live) = (self.clone(), caller.clone(), live.clone());
        whole("fork the sandbox", async move {
            let from_ms = clock::now_ms();
            let forked = engine.make_children(&caller, &live, (count, narrow), ttl).await;
            let said = vec![("children", count.into())];
            engine.tracer().done(("fork", live.id().as_str()), from_ms, &forked, said);
            forked
        })
        .await
    }

    async fn make_children(
        &self,
        caller: &Caller,
        live: &Live,
        (count, narrow): (usize, serde_json::Value),
        ttl: Option<Duration>,
    ) -> Result<Vec<Result<Sandbox, ApiError>>, ApiError> {
        let parent = live.sandbox();
        let root = parent.root.clone().unwrap_or_else(|| live.id().to_string());
        // Forks of roots that have a ceiling are counted one after the other.
        let ceiling = self.0.quotas.forks_per_root(&self.has(caller));
        let _alone = match &ceiling {
            Some(_) => Some(self.0.forks.lock().await),
            None => None,
        };
        if let Some((subject, most)) = &ceiling {
            let made = self.0.registry.descendants(root.clone()).await?;
            quota::forks(subject, made.saturating_add(u64::try_from(count).unwrap_or(u64::MAX)), *most)?;
        }
        // Never anybody's: whatever happens, it is removed in the end.
        let folder = self.0.strays.hidden()?;
        self.copy_files(live, &folder, None).await?;
        fault::point(Point::ForkTaken);
        // A child of a child is measured by what that is, which its keeper wrote down.
        let envelope = self.envelope(live.id()).await?;
        let (snapshot, forked) = (Some(folder.name().to_owned()), Some(Forked { narrow }));
        // What was chosen for it once, whatever would be chosen for less.
        let level = Some(parent.level);
        let spec = Spec { snapshot, forked, level, ..without_given(Spec { envelope, ..live.spec() }) };
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
            let origin = Origin { parent: Some(parent), root: Some(root.clone()), repeat: None };
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
        fault::point(Point::ForkBorn);
        // Each child has a copy of its own by now.
        drop(folder);
        self.remove_strays().await;
        Ok(children)
    }
}
