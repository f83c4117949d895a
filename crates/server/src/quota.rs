//! What a team, and a single key, may have and do at once. A ceiling that is absent is none; where both have one, both
//! hold.

use crate::error::{ApiError, Code};
use crate::registry::Registry;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MINUTE: Duration = Duration::from_secs(60);

/// The ceilings of one team, or of one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Sandboxes that live at once, paused ones among them.
    pub sandboxes: Option<u64>,
    /// Sum of their memory limits, in bytes.
    pub memory_bytes: Option<u64>,
    /// Sum of their disk limits, in bytes.
    pub disk_bytes: Option<u64>,
    /// Sum of the cores that they may use at once, in thousandths.
    pub cpu_milli: Option<u64>,
    /// Sandboxes that ever came from one root by forks, however deep: what a fork makes counts against its root.
    pub forks_per_root: Option<u64>,
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
    coming: Has,
    creates: Minute,
    execs: Minute,
}

/// How often something happened in the running minute.
#[derive(Clone, Copy, Debug, Default)]
struct Minute {
    began: Option<Instant>,
    count: u64,
}

/// What somebody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Has {
    pub(crate) sandboxes: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) disk_bytes: u64,
    pub(crate) cpu_milli: u64,
}

/// Whose ceilings are asked about, and what they have.
pub(crate) type Who = [(String, Has)];

/// A place for a sandbox that is on its way. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    who: Vec<String>,
    has: Has,
    teams: Arc<Mutex<HashMap<String, Team>>>,
}

/// The name under which a key's ceilings are kept; no team has such a name.
#[must_use]
pub fn of_key(name: &str) -> String {
    format!("key:{name}")
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

    /// Sets the ceilings of a team, or by [`of_key`] of a key.
    ///
    /// # Errors
    /// The name is none; the registry can not be written.
    pub async fn set(&self, subject: &str, quota: Quota) -> Result<(), ApiError> {
        match subject.strip_prefix("key:") {
            Some(key) => crate::keys::name(key, "key")?,
            None => crate::keys::name(subject, "team")?,
        }
        let body = serde_json::to_string(&quota).unwrap_or_default();
        self.registry.set_quota(subject.to_owned(), body).await?;
        lock(&self.teams).entry(subject.to_owned()).or_default().quota = quota;
        Ok(())
    }

    /// A place for one more sandbox of those who have so much.
    pub(crate) fn reserve(&self, who: &Who) -> Result<Place, ApiError> {
        let mut teams = lock(&self.teams);
        for (subject, has) in who {
            let own = teams.entry(subject.clone()).or_default();
            let next = has.plus(own.coming).sandboxes.saturating_add(1);
            within(subject, "sandboxes", next, own.quota.sandboxes)?;
            let most = own.quota.creates_per_minute;
            within(subject, "creates_per_minute", own.creates.next(), most)?;
        }
        let has = Has { sandboxes: 1, ..Has::default() };
        for (subject, _) in who {
            let own = teams.entry(subject.clone()).or_default();
            own.creates.count();
            own.coming = own.coming.plus(has);
        }
        let who = who.iter().map(|(subject, _)| subject.clone()).collect();
        Ok(Place { who, has, teams: Arc::clone(&self.teams) })
    }

    /// Counts a command of a team and of a key.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`].
    pub fn exec(&self, team: &str, key: Option<&str>) -> Result<(), ApiError> {
        let key = key.map(of_key);
        let mut teams = lock(&self.teams);
        let subjects = || [Some(team), key.as_deref()].into_iter().flatten();
        for subject in subjects() {
            if let Some(own) = teams.get_mut(subject) {
                let most = own.quota.execs_per_minute;
                within(subject, "execs_per_minute", own.execs.next(), most)?;
            }
        }
        for subject in subjects() {
            if let Some(own) = teams.get_mut(subject) {
                own.execs.count();
            }
        }
        Ok(())
    }

    /// Goes on if these may be asked to live for so long.
    pub(crate) fn ttl(&self, who: &Who, ttl: Duration) -> Result<(), ApiError> {
        who.iter().try_for_each(|(subject, _)| {
            within(subject, "ttl_seconds", ttl.as_secs(), self.of(subject).ttl_seconds)
        })
    }

    /// The same for a sandbox that is there.
    pub(crate) fn span(&self, team: &str, key: Option<&str>, ttl: Duration) -> Result<(), ApiError> {
        let key = key.map(of_key);
        let subjects = [Some(team), key.as_deref()];
        subjects.into_iter().flatten().try_for_each(|subject| {
            within(subject, "ttl_seconds", ttl.as_secs(), self.of(subject).ttl_seconds)
        })
    }

    /// The least that these may make by forks of one root.
    pub(crate) fn forks_per_root(&self, who: &Who) -> Option<(String, u64)> {
        let ceiling =
            |(subject, _): &(String, Has)| Some((subject.clone(), self.of(subject).forks_per_root?));
        who.iter().filter_map(ceiling).min_by_key(|(_, most)| *most)
    }
}

/// Goes on if one root may have so many forks.
pub(crate) fn forks(subject: &str, wanted: u64, most: u64) -> Result<(), ApiError> {
    within(subject, "forks_per_root", wanted, Some(most))
}

// === impl Has ===

impl Has {
    pub(crate) const fn plus(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_add(other.sandboxes),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            disk_bytes: self.disk_bytes.saturating_add(other.disk_bytes),
            cpu_milli: self.cpu_milli.saturating_add(other.cpu_milli),
        }
    }

    const fn minus(self, other: Self) -> Self {
        Self {
            sandboxes: self.sandboxes.saturating_sub(other.sandboxes),
            memory_bytes: self.memory_bytes.saturating_sub(other.memory_bytes),
            disk_bytes: self.disk_bytes.saturating_sub(other.disk_bytes),
            cpu_milli: self.cpu_milli.saturating_sub(other.cpu_milli),
        }
    }
}

// === impl Minute ===

impl Minute {
    /// How often it would have happened with once more.
    fn next(&mut self) -> u64 {
        let now = Instant::now();
        if self.began.is_none_or(|began| now.duration_since(began) >= MINUTE) {
            *self = Self { began: Some(now), count: 0 };
        }
        self.count.saturating_add(1)
    }

    fn count(&mut self) {
        self.count = self.next();
    }
}

// === impl Place ===

impl Place {
    /// Now that it is known how large the sandbox is: whether there is room for it.
    pub(crate) fn fit(&mut self, size: Has, who: &Who) -> Result<(), ApiError> {
        let size = Has { sandboxes: 1, ..size };
        let mut teams = lock(&self.teams);
        for (subject, has) in who {
            let own = teams.entry(subject.clone()).or_default();
            let next = has.plus(own.coming.minus(self.has)).plus(size);
            within(subject, "memory_bytes", next.memory_bytes, own.quota.memory_bytes)?;
            within(subject, "disk_bytes", next.disk_bytes, own.quota.disk_bytes)?;
            within(subject, "cpu_milli", next.cpu_milli, own.quota.cpu_milli)?;
        }
        for (subject, _) in who {
            let own = teams.entry(subject.clone()).or_default();
            own.coming = own.coming.minus(self.has).plus(size);
        }
        self.has = size;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut teams = lock(&self.teams);
        for subject in &self.who {
            if let Some(own) = teams.get_mut(subject) {
                own.coming = own.coming.minus(self.has);
            }
        }
    }
}

fn lock(teams: &Mutex<HashMap<String, Team>>) -> MutexGuard<'_, HashMap<String, Team>> {
    teams.lock().unwrap_or_else(PoisonError::into_inner)
}

fn within(subject: &str, name: &str, wanted: u64, most: Option<u64>) -> Result<(), ApiError> {
    match most {
        Some(most) if wanted > most => {
            let whose = subject
                .strip_prefix("key:")
                .map_or_else(|| format!("team `{subject}`"), |key| format!("key `{key}`"));
            let cause =
                format!("the quota `{name}` of the {whose} is {most}, and this would make it {wanted}");
            Err(ApiError::plain(Code::QuotaExceeded, "do more at once", cause)
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
        let who = |team: &str, sandboxes| vec![(team.to_owned(), Has { sandboxes, ..Has::default() })];
        let first = quotas.reserve(&who("t", 1)).unwrap();
        let _second = quotas.reserve(&who("t", 1)).unwrap();
        assert_eq!(quotas.reserve(&who("t", 1)).unwrap_err().code, Code::QuotaExceeded);
        drop(first);
        quotas.reserve(&who("t", 1)).unwrap();
        quotas.reserve(&who("other", 99)).unwrap();
        quotas.exec("t", None).unwrap();
        quotas.exec("t", Some("k")).unwrap();
        let refused = quotas.exec("t", None).unwrap_err();
        assert_eq!(refused.code, Code::QuotaExceeded);
        assert!(refused.cause.contains("team `t`") && !refused.remediation.is_empty(), "{refused:?}");
        assert_eq!(Quotas::load(registry).await.unwrap().of("t"), quota);
    }

    #[tokio::test]
    async fn what_comes_is_counted_by_its_size_and_a_key_has_ceilings_beside_its_team() {
        let base = tempfile::tempdir().unwrap();
        let quotas = Quotas::load(Registry::open(base.path()).unwrap()).await.unwrap();
        let quota = Quota { memory_bytes: Some(100), cpu_milli: Some(3000), ..Quota::default() };
        quotas.set("t", quota).await.unwrap();
        quotas.set(&of_key("k"), Quota { disk_bytes: Some(10), ..Quota::default() }).await.unwrap();
        let who = vec![("t".to_owned(), Has::default()), (of_key("k"), Has::default())];
        let size = Has { memory_bytes: 60, cpu_milli: 1000, disk_bytes: 4, ..Has::default() };
        let mut first = quotas.reserve(&who).unwrap();
        first.fit(size, &who).unwrap();
        // Said once more, as after a claim that failed: it is not counted twice.
        first.fit(size, &who).unwrap();
        let mut second = quotas.reserve(&who).unwrap();
        let over = second.fit(size, &who).unwrap_err();
        assert_eq!((over.code, &*over.context["quota"]), (Code::QuotaExceeded, "memory_bytes"));
        let over = second.fit(Has { memory_bytes: 1, disk_bytes: 7, ..size }, &who).unwrap_err();
        assert!(over.cause.contains("key `k`"), "{over:?}");
        let over = second.fit(Has { memory_bytes: 1, cpu_milli: 2500, ..size }, &who).unwrap_err();
        assert_eq!(&*over.context["quota"], "cpu_milli");
        drop(first);
        second.fit(size, &who).unwrap();
    }
}
