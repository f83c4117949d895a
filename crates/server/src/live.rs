//! A living sandbox in the daemon's hands, and the order in which it is used, paused and ended.
//!
//! ```text
//!            enter                    pause (asked, or by a timer that finds no use)
//! Running ───────────▶ Running + use        Running ─────────▶ Paused ─────────▶ Running
//!                                                                      resume, or enter
//! ```
//!
//! **Invariant:** whoever changes the state holds [`Live::transition`]; a timer decides only while it holds it, and
//! from what is true then. So a caller who comes while a timer pauses waits, and wakes the sandbox again.
//! **Invariant:** an end is the last change, whoever comes first with it. It waits for no transition: a keeper that is
//! gone is seen by whoever asks it.

use crate::clock;
use crate::keeper::Keeper;
use crate::sandbox::{Ended, Metrics, Sandbox, State};
use fumehood_keep::wire::Spec;
use fumehood_model::id::TaskId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Measurements that are kept of each sandbox.
const KEPT_METRICS: usize = 240;

/// A sandbox that the daemon holds. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Live(Arc<Held>);

#[derive(Debug)]
struct Held {
    id: TaskId,
    keeper: Keeper,
    transition: tokio::sync::Mutex<()>,
    /// A timer is at it.
    timer: AtomicBool,
    now: Mutex<Now>,
}

/// What changes about it.
#[derive(Debug)]
struct Now {
    sandbox: Sandbox,
    /// What it was made of, with the network that it has now: for its forks.
    spec: Spec,
    /// Why it is about to end, where its keeper was asked to end it.
    meant: Option<&'static str>,
    uses: u32,
    last_use_ms: u64,
    metrics: VecDeque<Metrics>,
}

/// Somebody is at work in a sandbox: no timer pauses it meanwhile.
#[derive(Debug)]
pub struct Use {
    live: Live,
}

// === impl Live ===

impl Live {
    /// A sandbox that was just born, or adopted.
    #[must_use]
    pub fn new(sandbox: Sandbox, keeper: Keeper, spec: Spec) -> Self {
        let (last_use_ms, metrics) = (clock::now_ms(), VecDeque::new());
        let now = Now { sandbox, spec, meant: None, uses: 0, last_use_ms, metrics };
        let id = now.sandbox.id.clone();
        let (transition, timer) = (tokio::sync::Mutex::new(()), AtomicBool::new(false));
        Self(Arc::new(Held { id, keeper, transition, timer, now: Mutex::new(now) }))
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &TaskId {
        &self.0.id
    }

    /// It, as it is now.
    #[must_use]
    pub fn sandbox(&self) -> Sandbox {
        self.now().sandbox.clone()
    }

    /// Its state alone.
    #[must_use]
    pub fn state(&self) -> State {
        self.now().sandbox.state
    }

    /// Whose it is.
    #[must_use]
    pub fn team(&self) -> String {
        self.now().sandbox.team.clone()
    }

    /// Measurements that are kept, the oldest first.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metrics> {
        self.now().metrics.iter().copied().collect()
    }

    /// Its keeper, for the engine alone: others come by a [`Use`].
    pub(crate) fn keeper(&self) -> &Keeper {
        &self.0.keeper
    }

    /// What it was made of.
    pub(crate) fn spec(&self) -> Spec {
        self.now().spec.clone()
    }

    /// Changes what it was made of, and gives that.
    pub(crate) fn change_spec(&self, change: impl FnOnce(&mut Spec)) -> Spec {
        let mut now = self.now();
        change(&mut now.spec);
        now.spec.clone()
    }

    /// The right to change its state.
    pub(crate) async fn transition(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.0.transition.lock().await
    }

    /// A use, if it runs. Never waits.
    pub(crate) fn use_if_running(&self) -> Result<Use, State> {
        let mut now = self.now();
        if now.sandbox.state != State::Running {
            return Err(now.sandbox.state);
        }
        now.uses = now.uses.saturating_add(1);
        now.last_use_ms = clock::now_ms();
        Ok(Use { live: self.clone() })
    }

    /// The right of one timer to act; given back by [`Live::give_timer`].
    pub(crate) fn take_timer(&self) -> bool {
        !self.0.timer.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn give_timer(&self) {
        self.0.timer.store(false, Ordering::Release);
    }

    /// Whether its time is over.
    pub(crate) fn is_expired(&self, at_ms: u64) -> bool {
        let now = self.now();
        now.sandbox.state == State::Running && now.sandbox.expires_ms.is_some_and(|end| end <= at_ms)
    }

    /// Whether it has been left alone for longer than it wants.
    pub(crate) fn is_idle(&self, at_ms: u64) -> bool {
        let now = self.now();
        let span = now.sandbox.idle_pause_ms.filter(|_| now.uses == 0 && now.sandbox.state == State::Running);
        span.is_some_and(|span| now.last_use_ms.saturating_add(span) <= at_ms)
    }

    /// Changes what is known of it, and gives what it is then. The caller holds the transition. What has ended stays as
    /// it is.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Sandbox)) -> Sandbox {
        let mut now = self.now();
        if now.sandbox.state != State::Ended {
            change(&mut now.sandbox);
        }
        now.sandbox.clone()
    }

    /// Why its keeper is about to be asked to end it: whoever finds it gone tells that, and not what it looks like to
    /// them. Nothing where it could not be ended.
    pub(crate) fn mean_end(&self, cause: Option<&'static str>) {
        self.now().meant = cause;
    }

    /// It is no more. Gives the cause that counts; nothing where it had ended before.
    pub(crate) fn end(&self, at_ms: u64, seen: &str) -> Option<String> {
        let mut now = self.now();
        if now.sandbox.state == State::Ended {
            return None;
        }
        let cause = now.meant.unwrap_or(seen).to_owned();
        now.sandbox.state = State::Ended;
        now.sandbox.ended = Some(Ended { at_ms, cause: cause.clone() });
        Some(cause)
    }

    pub(crate) fn keep_metrics(&self, metrics: Metrics) {
        let mut now = self.now();
        if now.metrics.len() >= KEPT_METRICS {
            now.metrics.pop_front();
        }
        now.metrics.push_back(metrics);
    }

    pub(crate) fn last_metrics(&self) -> Option<Metrics> {
        self.now().metrics.back().copied()
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        // What is guarded is changed by single assignments: a panic elsewhere leaves it whole.
        self.0.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Use ===

impl Use {
    /// The sandbox that is used.
    #[must_use]
    pub const fn live(&self) -> &Live {
        &self.live
    }

    /// Its keeper. Whatever is asked of it ends before the use does.
    #[must_use]
    pub fn keeper(&self) -> &Keeper {
        self.live.keeper()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut now = self.live.now();
        now.uses = now.uses.saturating_sub(1);
        now.last_use_ms = clock::now_ms();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_the_last_change_and_tells_what_was_meant() {
        let made = || {
            let sandbox = crate::sandbox::testing::sandbox(1);
            Live::new(sandbox, Keeper::at(std::path::PathBuf::new()), Spec::default())
        };
        let live = made();
        live.mean_end(Some("stopped"));
        assert_eq!(live.end(7, "lost").as_deref(), Some("stopped"));
        assert_eq!(live.end(8, "expired"), None);
        let late = live.change(|sandbox| sandbox.state = State::Running);
        assert_eq!((late.state, late.ended.map(|ended| ended.at_ms)), (State::Ended, Some(7)));
        let live = made();
        live.mean_end(Some("stopped"));
        live.mean_end(None);
        assert_eq!(live.end(7, "lost").as_deref(), Some("lost"));
    }
}
