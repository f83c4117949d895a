//! Snapshots: a team's names for folders that keepers know by names of their own.

use super::Registry;
use super::sandboxes::{parsed, words};
use crate::error::ApiError;
use crate::sandbox::Snapshot;
use fumehood_keep::wire::Spec;
use rusqlite::OptionalExtension as _;

/// A snapshot, stored.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) snapshot: Snapshot,
    /// Its name among the keepers' snapshots.
    pub(crate) folder: String,
    /// What its sandbox was made of.
    pub(crate) spec: Spec,
}

// === impl Registry ===

impl Registry {
    /// Keeps a snapshot's name. `false` where it is taken.
    pub(crate) async fn add_snapshot(&self, kept: Kept) -> Result<bool, ApiError> {
        self.run("keep the snapshot's name", move |connection| {
            let added = connection.execute(
                "INSERT OR IGNORE INTO snapshots (team, name, folder, body, spec) VALUES (?1, ?2, ?3, ?4, ?5)",
                (
                    &kept.snapshot.team,
                    &kept.snapshot.name,
                    &kept.folder,
                    words(&kept.snapshot),
                    words(&kept.spec),
                ),
            )?;
            Ok(added == 1)
        })
        .await
    }

    /// A team's snapshot of this name.
    pub(crate) async fn find_snapshot(&self, team: String, name: String) -> Result<Option<Kept>, ApiError> {
        self.run("find the snapshot", move |connection| {
            let mut statement = connection
                .prepare("SELECT body, folder, spec FROM snapshots WHERE team = ?1 AND name = ?2")?;
            statement
                .query_row((team, name), |row| {
                    Ok(Kept { snapshot: parsed(row, 0)?, folder: row.get(1)?, spec: parsed(row, 2)? })
                })
                .optional()
        })
        .await
    }

    /// A team's snapshots (every team's if absent).
    pub(crate) async fn snapshots(&self, team: Option<String>) -> Result<Vec<Snapshot>, ApiError> {
        self.run("read the snapshots", move |connection| {
            let mut statement = connection
                .prepare("SELECT body FROM snapshots WHERE ?1 IS NULL OR team = ?1 ORDER BY team, name")?;
            let rows = statement.query_map((team,), |row| parsed(row, 0))?;
            rows.collect()
        })
        .await
    }

    /// Forgets a snapshot's name.
    pub(crate) async fn remove_snapshot(&self, team: String, name: String) -> Result<(), ApiError> {
        self.run("forget the snapshot", move |connection| {
            connection
                .execute("DELETE FROM snapshots WHERE team = ?1 AND name = ?2", (team, name))
                .map(|_| ())
        })
        .await
    }
}
