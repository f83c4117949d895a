//! Sandboxes that wait, one line for each thing they are made of.
//!
//! A line is as long as what arrives while one is made (rate × time to create) and two deviations more, within bounds. It is
//! refilled after a claim, never within one.

use crate::config::Config;
use crate::fleet;
use crate::keys::hex;
use crate::spawn::Birth;
use fumehood_keep::wire::Spec;
use fumehood_model::id::TaskId;
use sha2::{Digest as _, Sha256};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The span that an arrival rate is averaged over, in seconds.
const SPAN_S: f64 = 10.0;
/// A line that nobody came to for so long is dissolved.
const LINGER: Duration = Duration::from_secs(300);
/// What a create takes until one was measured, in seconds.
const FIRST_GUESS_S: f64 = 0.05;
/// Lines that are kept at once: what callers ask for must not grow without bound.
const MOST_LINES: usize = 64;

/// All lines.
#[derive(Debug)]
pub(crate) struct Pools {
    most: usize,
    lines: Mutex<HashMap<String, Line>>,
}

#[derive(Debug)]
struct Line {
    spec: Spec,
    /// Never shorter than this.
    least: usize,
    waiting: VecDeque<Birth>,
    coming: usize,
    rate: Rate,
    create_s: f64,
    last_use: Instant,
}

/// How many come a second, averaged.
#[derive(Clone, Copy, Debug)]
struct Rate {
    at: Instant,
    weight: f64,
}

// === impl Pools ===

impl Pools {
    pub(crate) fn new(config: &Config) -> Self {
        let pools = Self { most: config.pool_most, lines: Mutex::default() };
        if config.pool_base > 0 && config.pool_most > 0 {
            let spec = Spec::default();
            let mut line = Line::new(spec.clone());
            line.least = config.pool_base.min(config.pool_most);
            pools.lines().insert(key(&spec), line);
        }
        pools
    }

    /// The line of a spec; none where sandboxes of this kind do not wait.
    pub(crate) fn key(&self, spec: &Spec) -> Option<String> {
        (self.most > 0).then(|| key(spec))
    }

    /// The next one that waits. Counts an arrival either way.
    pub(crate) fn take(&self, key: &str, spec: &Spec) -> Option<Birth> {
        let mut lines = self.lines();
        if !lines.contains_key(key) && lines.len() >= MOST_LINES {
            return None;
        }
        let line = lines.entry(key.to_owned()).or_insert_with(|| Line::new(made_of(spec)));
        line.last_use = Instant::now();
        line.rate.count();
        line.waiting.pop_front()
    }

    /// What is to be made next for this line; the caller makes it and calls [`Pools::add`] or [`Pools::give_up`].
    pub(crate) fn wanted(&self, key: &str) -> Option<Spec> {
        let mut lines = self.lines();
        let line = lines.get_mut(key)?;
        if line.waiting.len() + line.coming >= line.target(self.most) {
            return None;
        }
        line.coming += 1;
        Some(Spec { pooled: true, actor: "pool".to_owned(), ..line.spec.clone() })
    }

    /// One more waits, made in so much time.
    pub(crate) fn add(&self, key: &str, birth: Birth, took: Duration) {
        if let Some(line) = self.lines().get_mut(key) {
            line.coming = line.coming.saturating_sub(1);
            line.measured(took);
            line.waiting.push_back(birth);
        }
    }

    /// One did not come to be.
    pub(crate) fn give_up(&self, key: &str) {
        if let Some(line) = self.lines().get_mut(key) {
            line.coming = line.coming.saturating_sub(1);
        }
    }

    /// A create without a line took so long.
    pub(crate) fn measured(&self, key: &str, took: Duration) {
        if let Some(line) = self.lines().get_mut(key) {
            line.measured(took);
        }
    }

    /// Lines, by key.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.lines().keys().cloned().collect()
    }

    /// Those that wait.
    pub(crate) fn ids(&self) -> HashSet<TaskId> {
        self.lines().values().flat_map(|line| line.waiting.iter().map(|birth| birth.id.clone())).collect()
    }

    /// How many wait in all lines.
    pub(crate) fn waiting(&self) -> usize {
        self.lines().values().map(|line| line.waiting.len()).sum()
    }

    /// Takes out what is too much, to be ended; a line that nobody comes to is forgotten.
    pub(crate) fn surplus(&self) -> Vec<Birth> {
        let mut lines = self.lines();
        let most = self.most;
        let mut surplus = Vec::new();
        for line in lines.values_mut() {
            let target = line.target(most);
            while line.waiting.len() > target.saturating_mul(2).max(target + 1)
                || (target == 0 && !line.waiting.is_empty())
            {
                surplus.extend(line.waiting.pop_front());
            }
        }
        lines.retain(|_, line| {
            line.least > 0 || line.coming > 0 || !line.waiting.is_empty() || line.is_fresh()
        });
        surplus
    }

    /// Takes all of them out, to be ended.
    pub(crate) fn drain(&self) -> Vec<Birth> {
        let lines = std::mem::take(&mut *self.lines());
        lines.into_values().flat_map(|line| line.waiting).collect()
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<String, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Line ===

impl Line {
    fn new(spec: Spec) -> Self {
        let now = Instant::now();
        Self {
            spec,
            least: 0,
            waiting: VecDeque::new(),
            coming: 0,
            rate: Rate { at: now, weight: 0.0 },
            create_s: FIRST_GUESS_S,
            last_use: now,
        }
    }

    fn is_fresh(&self) -> bool {
        self.last_use.elapsed() < LINGER
    }

    fn target(&self, most: usize) -> usize {
        let wanted = fleet::pool_size(self.rate.per_second(), self.create_s);
        let least = self.least.max(usize::from(self.is_fresh()));
        wanted.max(least).min(most)
    }

    fn measured(&mut self, took: Duration) {
        self.create_s += (took.as_secs_f64() - self.create_s) / 8.0;
    }
}

// === impl Rate ===

impl Rate {
    fn count(&mut self) {
        self.weight = self.decayed() + 1.0;
        self.at = Instant::now();
    }

    fn decayed(&self) -> f64 {
        self.weight * (-self.at.elapsed().as_secs_f64() / SPAN_S).exp()
    }

    fn per_second(&self) -> f64 {
        self.decayed() / SPAN_S
    }
}

/// What all of a line have in common.
fn made_of(spec: &Spec) -> Spec {
    Spec {
        envelope: spec.envelope.clone(),
        level: spec.level.clone(),
        accept_tcg: spec.accept_tcg,
        snapshot: spec.snapshot.clone(),
        ..Spec::default()
    }
}

fn key(spec: &Spec) -> String {
    hex(&Sha256::digest(serde_json::to_vec(&made_of(spec)).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_long_as_what_arrives_while_one_is_made() {
        let mut line = Line::new(Spec::default());
        assert_eq!(line.target(32), 1);
        line.create_s = 0.1;
        for _ in 0..300 {
            line.rate.count();
        }
        // Thirty a second for a tenth of a second, and two deviations.
        let target = line.target(32);
        assert!((5..=7).contains(&target), "{target}");
        assert_eq!(line.target(3), 3);
        assert_eq!(line.target(0), 0);
    }

    #[test]
    fn kinds_are_told_apart_by_what_they_are_made_of_alone() {
        let base = Spec::default();
        let named = Spec { actor: "a".to_owned(), expires_ms: Some(1), ..Spec::default() };
        let other = Spec { level: Some("microvm".to_owned()), ..Spec::default() };
        assert_eq!(key(&base), key(&named));
        assert_ne!(key(&base), key(&other));
    }
}
