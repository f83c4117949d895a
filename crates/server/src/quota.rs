//! What a team may have and do at once. A ceiling that is absent is none.

use crate::error::{ApiError, Code};
use crate::registry::Registry;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// The ceilings of one team.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Sandboxes that live at once, paused ones among them.
    pub sandboxes: Option<u64>,
    /// Sum of their memory limits, in bytes.
    pub memory_bytes: Option<u64>,
    /// Sum of their disk limits, in bytes.
    pub disk_bytes: Option<u64>,
    pub creates_per_minute: Option<u64>,
    pub execs_per_minute: Option<u64>,
    /// The longest that one of its sandboxes may be asked to live, in seconds.
    pub ttl_seconds: Option<u64>,
}

/// All teams' ceilings, and what they do just now.
#[derive(Debug)]
pub struct Quotas {
    registry: Registry,
    teams: Arc<Mutex<HashMap<String, Team>>>,
}

#[derive(Debug, Default)]
struct Team {
    quota: Quota,
    /// Creates that are under way: they count as sandboxes already.
    coming: u64,
    creates: Minute,
    execs: Minute,
}

/// How often something happened in the running minute.
#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    began: Option<Instant>,
    count: u64,
}

/// What a team has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Has {
    pub(crate) sandboxes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
}

/// A place for a sandbox that is on its way. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    team: String,
    teams: Arc<Mutex<HashMap<String, Team>>>,
}

// === impl Quotas ===

impl Quotas {
    /// The quotas that the registry has.
    pub(crate) async fn load(registry: Registry) -> Result<Self, ApiError> {
        let mut teams = HashMap::new();
        for (team, body) in registry.quotas().await? {
            let quota = serde_json::from_str(&body).map_err(|error| {
                ApiError::plain(Code::Registry, "read the quotas", error.to_string()).with("team", &team)
            })?;
            teams.insert(team, Team { quota, ..Team::default() });
        }
        Ok(Self { registry, teams: Arc::new(Mutex::new(teams)) })
    }

    /// The ceilings of a team.
    pub fn of(&self, team: &str) -> Quota {
        lock(&self.teams).get(team).map(|team| team.quota.clone()).unwrap_or_default()
    }

    /// Sets the ceilings of a team.
    ///
    /// # Errors
    /// The team's name is none; the registry can not be written.
    pub async fn set(&self, team: &str, quota: Quota) -> Result<(), ApiError> {
        crate::keys::name(team, "team")?;
        let body = serde_json::to_string(&quota).unwrap_or_default();
        self.registry.set_quota(team.to_owned(), body).await?;
        lock(&self.teams).entry(team.to_owned()).or_default().quota = quota;
        Ok(())
    }

    /// A place for one more sandbox of a team that `has` so much.
    pub(crate) fn reserve(&self, team: &str, has: Has) -> Result<Place, ApiError> {
        let mut teams = lock(&self.teams);
        let own = teams.entry(team.to_owned()).or_default();
        let quota = &own.quota;
        let next = has.sandboxes.saturating_add(own.coming).saturating_add(1);
        within("sandboxes", next, quota.sandboxes)?;
        within("memory_bytes", has.memory_bytes.saturating_add(1), quota.memory_bytes)?;
        within("disk_bytes", has.disk_bytes.saturating_add(1), quota.disk_bytes)?;
        let most = quota.creates_per_minute;
        own.creates.count("creates_per_minute", most)?;
        own.coming = own.coming.saturating_add(1);
        Ok(Place { team: team.to_owned(), teams: Arc::clone(&self.teams) })
    }

    /// Counts a command of a team.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`].
    pub fn exec(&self, team: &str) -> Result<(), ApiError> {
        let mut teams = lock(&self.teams);
        let Some(own) = teams.get_mut(team) else { return Ok(()) };
        let most = own.quota.execs_per_minute;
        own.execs.count("execs_per_minute", most)
    }
}

// === impl Minute ===

impl Minute {
    fn count(&mut self, name: &str, most: Option<u64>) -> Result<(), ApiError> {
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) >= MINUTE) {
            *self = Self { began: Some(now), count: 0 };
        }
        within(name, self.count.saturating_add(1), most)?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(team) = lock(&self.teams).get_mut(&self.team) {
            team.coming = team.coming.saturating_sub(1);
        }
    }
}

fn lock(teams: &Mutex<HashMap<String, Team>>) -> MutexGuard<'_, HashMap<String, Team>> {
    teams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn within(name: &str, wanted: u64, most: Option<u64>) -> Result<(), ApiError> {
    match most {
        Some(most) if wanted > most => {
            let cause = format!("the quota `{name}` of the team is {most}");
            Err(ApiError::plain(Code::QuotaExceeded, "do more for this team", cause)
                .with("quota", name)
                .with("limit", most))
        }
        Some(_) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_team_has_no_more_than_its_quota_even_at_once() {
        let base = tempfile::tempdir().unwrap();
        let registry = Registry::open(base.path()).unwrap();
        let quotas = Quotas::load(registry.clone()).await.unwrap();
        let quota = Quota { sandboxes: Some(3), execs_per_minute: Some(2), ..Quota::default() };
        quotas.set("t", quota.clone()).await.unwrap();
        let has = Has { sandboxes: 1, ..Has::default() };
        let first = quotas.reserve("t", has).unwrap();
        let _second = quotas.reserve("t", has).unwrap();
        assert_eq!(quotas.reserve("t", has).unwrap_err().code, Code::QuotaExceeded);
        drop(first);
        quotas.reserve("t", has).unwrap();
        quotas.reserve("other", Has { sandboxes: 99, ..has }).unwrap();
        quotas.exec("t").unwrap();
        quotas.exec("t").unwrap();
        assert_eq!(quotas.exec("t").unwrap_err().code, Code::QuotaExceeded);
        assert_eq!(Quotas::load(registry).await.unwrap().of("t"), quota);
    }
}
