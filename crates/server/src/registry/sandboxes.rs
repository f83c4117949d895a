//! Sandboxes, as they are stored, and what makes a repeated request give the same one.

use super::{Registry, stored};
use crate::clock;
use crate::error::ApiError;
use crate::sandbox::{Filter, Page, Sandbox};
use fumehood_keep::wire::Spec;
use rusqlite::OptionalExtension as _;

/// How long ended sandboxes are told of.
const KEPT_ENDED_MS: u64 = 7 * 86_400_000;
/// How long a repeated request is known.
const KEPT_REPEATS_MS: u64 = 86_400_000;

/// One sandbox, stored.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    pub(crate) sandbox: Sandbox,
    /// What it was made of.
    pub(crate) spec: Spec,
}

/// A request that may come again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repeat {
    pub(crate) team: String,
    pub(crate) key: String,
    /// Of what was asked.
    pub(crate) fingerprint: String,
}

// === impl Registry ===

impl Registry {
    /// Keeps a sandbox that is new, and the request that made it, in one step.
    pub(crate) async fn register(&self, row: Row, repeat: Option<Repeat>) -> Result<(), ApiError> {
        let (body, spec) = (words(&row.sandbox), words(&row.spec));
        let Sandbox { id, team, .. } = row.sandbox;
        self.run("register the sandbox", move |connection| {
            let transaction = connection.transaction()?;
            transaction
                .prepare("INSERT OR REPLACE INTO sandboxes (id, team, body, spec) VALUES (?1, ?2, ?3, ?4)")?
                .execute((id.as_str(), team, body, spec))?;
            if let Some(repeat) = repeat {
                transaction
                    .prepare(
                        "INSERT OR REPLACE INTO repeats (team, key, fingerprint, sandbox, created_ms)
                         VALUES (?1, ?2, ?3, ?4, ?5)",
                    )?
                    .execute((
                        repeat.team,
                        repeat.key,
                        repeat.fingerprint,
                        id.as_str(),
                        stored(clock::now_ms()),
                    ))?;
            }
            transaction.commit()
        })
        .await
    }

    /// Keeps what has changed about a sandbox, as it is when its turn comes. What has ended stays as it is.
    pub(crate) async fn update(
        &self,
        id: String,
        sandbox: impl FnOnce() -> Sandbox + Send + 'static,
    ) -> Result<(), ApiError> {
        self.run("keep the sandbox's state", move |connection| {
            let sandbox = sandbox();
            let body = words(&sandbox);
            let ended_ms = sandbox.ended.map(|ended| stored(ended.at_ms));
            connection
                .prepare("UPDATE sandboxes SET body = ?2, ended_ms = ?3 WHERE id = ?1 AND ended_ms IS NULL")?
                .execute((id, body, ended_ms))
                .map(|_| ())
        })
        .await
    }

    /// Keeps what a sandbox is made of now.
    pub(crate) async fn update_spec(&self, id: String, spec: Spec) -> Result<(), ApiError> {
        let spec = words(&spec);
        self.run("keep the sandbox's network", move |connection| {
            connection
                .prepare("UPDATE sandboxes SET spec = ?2 WHERE id = ?1")?
                .execute((id, spec))
                .map(|_| ())
        })
        .await
    }

    /// Takes a sandbox off the books that never came to be anybody's.
    pub(crate) async fn strike(&self, id: String) -> Result<(), ApiError> {
        self.run("strike the sandbox", move |connection| {
            let transaction = connection.transaction()?;
            transaction.execute("DELETE FROM repeats WHERE sandbox = ?1", (&id,))?;
            transaction.execute("DELETE FROM sandboxes WHERE id = ?1", (&id,))?;
            transaction.commit()
        })
        .await
    }

    /// Those that live, as far as the registry knows. A row that is not understood is an error, not a gap.
    pub(crate) async fn living(&self) -> Result<Vec<Row>, ApiError> {
        self.run("read the sandboxes", |connection| {
            let mut statement =
                connection.prepare("SELECT body, spec FROM sandboxes WHERE ended_ms IS NULL")?;
            let rows =
                statement.query_map([], |row| Ok(Row { sandbox: parsed(row, 0)?, spec: parsed(row, 1)? }))?;
            rows.collect()
        })
        .await
    }

    /// A part of those that have ended, of one team (of all if absent): the first `most` after a place in the order
    /// that the filter takes. No more rows are read than it takes to find them.
    pub(crate) async fn ended(
        &self,
        team: Option<String>,
        filter: Filter,
        page: Page,
        most: usize,
    ) -> Result<Vec<Sandbox>, ApiError> {
        self.run("read the sandboxes", move |connection| {
            let (follows, order) = if page.oldest_first { (">", "ASC") } else { ("<", "DESC") };
            let mut statement = connection.prepare(&format!(
                "SELECT body FROM sandboxes WHERE ended_ms IS NOT NULL AND (?1 IS NULL OR team = ?1)
                 AND (?2 IS NULL OR id {follows} ?2) ORDER BY id {order}"
            ))?;
            let rows = statement.query_map((team, page.after), |row| parsed(row, 0))?;
            let fitting = rows.filter(|row| row.as_ref().map_or(true, |sandbox| filter.takes(sandbox)));
            fitting.take(most).collect()
        })
        .await
    }

    /// How many ever came from this root by forks, as long as they are told of.
    pub(crate) async fn descendants(&self, root: String) -> Result<u64, ApiError> {
        self.run("count the forks", move |connection| {
            let count = "SELECT count(*) FROM sandboxes WHERE json_extract(body, '$.root') = ?1";
            connection.query_row(count, (root,), |row| row.get(0)).map(super::loaded)
        })
        .await
    }

    /// What a request with this key came to, with the fingerprint of what was asked then.
    pub(crate) async fn repeated(
        &self,
        team: String,
        key: String,
    ) -> Result<Option<(String, Option<Sandbox>)>, ApiError> {
        self.run("look the idempotency key up", move |connection| {
            let mut statement = connection.prepare(
                "SELECT fingerprint, body FROM repeats LEFT JOIN sandboxes ON sandboxes.id = repeats.sandbox
                 WHERE repeats.team = ?1 AND key = ?2 AND created_ms > ?3",
            )?;
            let from = stored(clock::now_ms().saturating_sub(KEPT_REPEATS_MS));
            statement
                .query_row((team, key, from), |row| {
                    let body: Option<String> = row.get(1)?;
                    let sandbox = body.is_some().then(|| parsed(row, 1)).transpose()?;
                    Ok((row.get(0)?, sandbox))
                })
                .optional()
        })
        .await
    }

    /// Forgets what is old.
    pub(crate) async fn prune(&self) -> Result<(), ApiError> {
        self.run("forget old sandboxes", |connection| {
            let now_ms = clock::now_ms();
            let (ended, repeats) =
                (now_ms.saturating_sub(KEPT_ENDED_MS), now_ms.saturating_sub(KEPT_REPEATS_MS));
            connection.execute("DELETE FROM sandboxes WHERE ended_ms < ?1", (stored(ended),))?;
            connection.execute("DELETE FROM repeats WHERE created_ms < ?1", (stored(repeats),))?;
            Ok(())
        })
        .await
    }
}

/// As JSON. These types have no value that is not.
pub(super) fn words<T: serde::Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn parsed<T: serde::de::DeserializeOwned>(
    row: &rusqlite::Row<'_>,
    column: usize,
) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    serde_json::from_str(&text).map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(error))
    })
}
