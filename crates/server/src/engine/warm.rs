//! Interpreters of templates: prepared once, in a sandbox that is nobody's and ends then. What begins with the template
//! begins with a snapshot of that one.
//!
//! **Invariant:** nothing of a caller's is in a prepared interpreter of a template: it is the operator's code, in an
//! operator's sandbox.

use super::Engine;
use super::create::DAEMON_LABEL;
use crate::error::ApiError;
use crate::keys::hex;
use crate::spawn;
use fumehood_keep::wire::{Ask, Said, Spec};
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use tokio::sync::Mutex;

/// Snapshots that are there. Locked while one is made: all who come meanwhile want the same.
pub(super) type Warmed = Mutex<HashSet<String>>;

/// How the names of such snapshots begin.
const PREFIX: &str = "template-";
/// Of a template's name.
const MOST_NAME_CHARS: usize = 60;
const HASH_CHARS: usize = 16;

// === impl Engine ===

impl Engine {
    /// The template with an interpreter that has begun, where it asks for one.
    pub(super) async fn prepared(&self, template: &str, spec: Spec) -> Result<Spec, ApiError> {
        // What a snapshot of the operator's brings along is there already.
        let (Some(_), None) = (&spec.warm, &spec.snapshot) else { return Ok(spec) };
        let stem: String = template.chars().take(MOST_NAME_CHARS).collect();
        // After another start of the host it is another one.
        let boot = tokio::fs::read("/proc/sys/kernel/random/boot_id").await.unwrap_or_default();
        let all = serde_json::to_vec(&spec).unwrap_or_default();
        let hash = hex(&Sha256::digest([all, boot].concat()));
        let stem = format!("{PREFIX}{stem}-");
        let name = format!("{stem}{}", hash.get(..HASH_CHARS).unwrap_or_default());
        let mut warmed = self.0.warmed.lock().await;
        if !warmed.contains(&name) {
            let meta = self.0.config.snapshots.join(&name).join("snapshot.json");
            if !tokio::fs::try_exists(&meta).await.unwrap_or(false) {
                self.prepare(&name, &spec).await?;
            }
            self.forget_others(&stem, &name).await;
            warmed.insert(name.clone());
        }
        drop(warmed);
        Ok(Spec { snapshot: Some(name), ..spec })
    }

    async fn prepare(&self, name: &str, spec: &Spec) -> Result<(), ApiError> {
        // Should we die now, the next start finds one that waits for nobody, and ends it.
        let mut spec = Spec { pooled: true, actor: "daemon".to_owned(), ..spec.clone() };
        spec.labels.insert(DAEMON_LABEL.to_owned(), self.0.instance.clone());
        let birth = spawn::spawn(&self.0.config, &spec).await?;
        let keeper = crate::keeper::Keeper::at(birth.socket);
        let said = keeper.call(&Ask::Snapshot { name: name.to_owned(), memory: None }).await;
        self.discard(keeper, birth.child);
        match said {
            Ok(Said::Snapshot { .. }) => Ok(()),
            Ok(_) => Err(super::strange("Snapshot")),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes what the template had in an earlier form, or in an earlier start of the host.
    async fn forget_others(&self, stem: &str, name: &str) {
        let Ok(mut all) = tokio::fs::read_dir(&self.0.config.snapshots).await else { return };
        while let Ok(Some(entry)) = all.next_entry().await {
            let found = entry.file_name();
            let rest = found.to_str().and_then(|found| found.strip_prefix(stem));
            // A template's name may begin with another one's.
            if rest.is_some_and(|rest| rest.len() == HASH_CHARS && !rest.contains('-')) && found != name {
                let _ = tokio::fs::remove_dir_all(entry.path()).await;
            }
        }
    }
}
