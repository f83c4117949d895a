//! Keys, as they are stored: their hash, never themselves.

use super::{Registry, loaded, stored};
use crate::caller::Scopes;
use crate::error::ApiError;

/// A key, without the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// SHA-256 of the whole key.
    pub hash: [u8; 32],
    /// Unique.
    pub name: String,
    pub team: String,
    pub scopes: Scopes,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub expires_ms: Option<u64>,
}

// === impl Registry ===

impl Registry {
    /// Every key.
    pub(crate) async fn keys(&self) -> Result<Vec<Key>, ApiError> {
        self.run("read the keys", |connection| {
            let mut statement = connection
                .prepare("SELECT hash, name, team, scopes, created_ms, expires_ms FROM keys ORDER BY name")?;
            let rows = statement.query_map([], |row| {
                Ok(Key {
                    hash: row.get(0)?,
                    name: row.get(1)?,
                    team: row.get(2)?,
                    scopes: Scopes::of_bits(row.get(3)?),
                    created_ms: loaded(row.get(4)?),
                    expires_ms: row.get::<_, Option<i64>>(5)?.map(loaded),
                })
            })?;
            rows.collect()
        })
        .await
    }

    /// Keeps a key. `false` where the name is taken.
    pub(crate) async fn add_key(&self, key: Key) -> Result<bool, ApiError> {
        self.run("keep the key", move |connection| {
            let added = connection.execute(
                "INSERT OR IGNORE INTO keys (hash, name, team, scopes, created_ms, expires_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                (
                    key.hash,
                    key.name,
                    key.team,
                    key.scopes.bits(),
                    stored(key.created_ms),
                    key.expires_ms.map(stored),
                ),
            )?;
            Ok(added == 1)
        })
        .await
    }

    /// Removes a key. `false` where there was none.
    pub(crate) async fn remove_key(&self, name: String) -> Result<bool, ApiError> {
        self.run("remove the key", move |connection| {
            Ok(connection.execute("DELETE FROM keys WHERE name = ?1", (name,))? == 1)
        })
        .await
    }
}
