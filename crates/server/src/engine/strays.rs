//! Folders of snapshots that are nobody's: those that are being made, and those that are to go.
//!
//! **Invariant:** a folder stands in the registry, as nobody's, before a keeper makes it, and until it has a name of a
//! team's or is gone. So one that a dead daemon left is found, and none that the registry does not speak of is touched:
//! somebody may have put an older registry in its place.

use super::Engine;
use crate::error::ApiError;
use crate::keys;
use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Digits that make a folder's name unique.
const RANDOM_BYTES: usize = 10;
/// A keeper that was asked by a daemon that died may still make the folder for so long.
const LATE: Duration = Duration::from_secs(600);

/// What is known of them.
#[derive(Debug, Default)]
pub(super) struct Strays(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Somebody is at work with these.
    held: HashSet<String>,
    /// To be removed; since when.
    leaving: HashMap<String, Instant>,
}

/// A folder that somebody is at work with. Dropped, it is to be removed, unless it was settled.
#[derive(Debug)]
pub(super) struct Folder {
    name: String,
    is_settled: bool,
    strays: Arc<Mutex<Known>>,
}

// === impl Strays ===

impl Strays {
    /// A name that no folder has.
    pub(super) fn folder(&self) -> Result<Folder, ApiError> {
        Ok(self.hold(&format!("s{}", keys::random_hex(RANDOM_BYTES)?)))
    }

    /// Keeps a folder from being removed.
    pub(super) fn hold(&self, name: &str) -> Folder {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.held.insert(name.to_owned());
        Folder { name: name.to_owned(), is_settled: false, strays: Arc::clone(&self.0) }
    }

    /// Those that an earlier daemon left.
    pub(super) fn inherit(&self, folders: Vec<String>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.leaving.extend(folders.into_iter().map(|folder| (folder, Instant::now())));
    }

    fn leaving(&self) -> Vec<(String, Instant)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.leaving.iter().map(|(folder, since)| (folder.clone(), *since)).collect()
    }

    fn forget(&self, folder: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).leaving.remove(folder);
    }
}

// === impl Folder ===

impl Folder {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// It is somebody's from now on.
    pub(super) fn settle(mut self) {
        self.is_settled = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mut known = self.strays.lock().unwrap_or_else(PoisonError::into_inner);
        known.held.remove(&self.name);
        if !self.is_settled {
            known.leaving.insert(self.name.clone(), Instant::now());
        }
    }
}

// === impl Engine ===

impl Engine {
    /// Removes what is to go. What can not be removed now is tried again later.
    pub(super) async fn remove_strays(&self) {
        for (folder, since) in self.0.strays.leaving() {
            match self.remove_folder(&folder).await {
                Ok(was_there) if was_there || since.elapsed() >= LATE => {
                    if self.0.registry.forget_folder(folder.clone()).await.is_ok() {
                        self.0.strays.forget(&folder);
                    }
                }
                Ok(_) => {}
                Err(error) => crate::log::warn("snapshots", &format!("{folder} stays: {error}")),
            }
        }
    }

    /// Whether there was one. Its name goes first: who begins with it meanwhile sees that it is going.
    async fn remove_folder(&self, folder: &str) -> std::io::Result<bool> {
        let all = &self.0.config.snapshots;
        let leaving = all.join(format!(".gone-{folder}"));
        let was_there = match tokio::fs::rename(all.join(folder), &leaving).await {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        match tokio::fs::remove_dir_all(&leaving).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(was_there),
        }
    }
}
