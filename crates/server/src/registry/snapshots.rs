//! Snapshots: a team's names for folders that keepers know by names of their own.

use super::Registry;
use super::sandboxes::{parsed, words};
use crate::error::ApiError;
use crate::sandbox::Snapshot;
use fumehood_keep::wire::Spec;
use rusqlite::OptionalExtension as _;

/// The team of what is nobody's: a folder that is being made, or removed. Names of teams are not empty.
const NOBODY: &str = "";

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
    /// Writes down that a folder is going to be made, and is nobody's until it has a name: whatever happens, it is known.
    pub(crate) async fn mean_folder(&self, folder: String) -> Result<(), ApiError> {
        self.run("write the snapshot down", move |connection| mean(connection, &folder)).await
    }

    /// Folders that are nobody's.
    pub(crate) async fn meant_folders(&self) -> Result<Vec<String>, ApiError> {
        self.run("read the snapshots", |connection| {
            let mut statement = connection.prepare("SELECT folder FROM snapshots WHERE team = ?1")?;
            let rows = statement.query_map((NOBODY,), |row| row.get(0))?;
            rows.collect()
        })
        .await
    }

    /// A folder that was nobody's is gone.
    pub(crate) async fn forget_folder(&self, folder: String) -> Result<(), ApiError> {
        self.remove_row(NOBODY.to_owned(), folder).await
    }

    /// Keeps a snapshot's name; its folder was meant before. `false` where the name is taken.
    pub(crate) async fn add_snapshot(&self, kept: Kept) -> Result<bool, ApiError> {
        self.run("keep the snapshot's name", move |connection| {
            let transaction = connection.transaction()?;
            let added = transaction.execute(
                "INSERT OR IGNORE INTO snapshots (team, name, folder, body, spec) VALUES (?1, ?2, ?3, ?4, ?5)",
                (
                    &kept.snapshot.team,
                    &kept.snapshot.name,
                    &kept.folder,
                    words(&kept.snapshot),
                    words(&kept.spec),
                ),
            )?;
            if added == 1 {
                transaction
                    .execute("DELETE FROM snapshots WHERE team = ?1 AND name = ?2", (NOBODY, &kept.folder))?;
            }
            transaction.commit()?;
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
                .prepare("SELECT body FROM snapshots WHERE team <> ?2 AND (?1 IS NULL OR team = ?1) ORDER BY team, name")?;
            let rows = statement.query_map((team, NOBODY), |row| parsed(row, 0))?;
            rows.collect()
        })
        .await
    }

    /// Takes a snapshot's name away; its folder is nobody's from now on, and to be removed.
    pub(crate) async fn disown_snapshot(
        &self,
        team: String,
        name: String,
        folder: String,
    ) -> Result<(), ApiError> {
        self.run("forget the snapshot", move |connection| {
            let transaction = connection.transaction()?;
            transaction.execute("DELETE FROM snapshots WHERE team = ?1 AND name = ?2", (team, name))?;
            mean(&transaction, &folder)?;
            transaction.commit()
        })
        .await
    }

    async fn remove_row(&self, team: String, name: String) -> Result<(), ApiError> {
        self.run("forget the snapshot", move |connection| {
            connection
                .execute("DELETE FROM snapshots WHERE team = ?1 AND name = ?2", (team, name))
                .map(|_| ())
        })
        .await
    }
}

fn mean(connection: &rusqlite::Connection, folder: &str) -> rusqlite::Result<()> {
    connection
        .execute(
            "INSERT OR REPLACE INTO snapshots (team, name, folder, body, spec) VALUES (?1, ?2, ?2, '', '')",
            (NOBODY, folder),
        )
        .map(|_| ())
}
