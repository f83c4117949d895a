//! What happens without anybody asking: times that are over, sandboxes that nobody uses, pools, measurements.

use super::{Engine, Pausing};
use crate::clock;
use crate::live::Live;
use crate::sandbox::{OnTimeout, State};
use crate::trace::Reader;
use fumehood_keep::fault::{self, Point};
use fumehood_model::id::TaskId;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// How exact times are.
const TICK: Duration = Duration::from_millis(250);
/// How often running sandboxes are measured, and looked at whether they live.
const MEASURE: Duration = Duration::from_secs(5);
/// Old rows are forgotten this often.
const PRUNE: Duration = Duration::from_secs(3600);
/// How often records are read for traces.
const FOLLOW: Duration = Duration::from_secs(1);
/// Keepers that are measured at once.
const ABREAST: usize = 16;

// === impl Engine ===

impl Engine {
    pub(super) fn start_timers(&self) {
        for key in self.0.pools.keys() {
            self.refill(key);
        }
        let engine = self.clone();
        tokio::spawn(async move { engine.times().await });
        let engine = self.clone();
        tokio::spawn(async move { engine.measurements().await });
        if self.tracer().is_on() {
            let engine = self.clone();
            tokio::spawn(async move { engine.records().await });
        }
        let engine = self.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PRUNE).await;
                if let Err(error) = engine.0.registry.prune().await {
                    crate::log::warn("registry", &error.to_string());
                }
            }
        });
    }

    /// Follows the records of all sandboxes, for traces. One that ends is read to its end.
    async fn records(&self) {
        // Those that lived before this daemon were told of by the one before.
        let old: Vec<_> = self.all().into_iter().map(|live| (live.id().clone(), true)).collect();
        let mut known: HashMap<TaskId, bool> = old.into_iter().collect();
        let mut readers: HashMap<TaskId, Reader> = HashMap::new();
        loop {
            let living: Vec<TaskId> = self.all().into_iter().map(|live| live.id().clone()).collect();
            let (folder, tracer) = (self.0.config.records.clone(), self.tracer().clone());
            let seen = living.clone();
            let read = tokio::task::spawn_blocking(move || {
                for id in seen {
                    let path = folder.join(format!("{id}.jsonl"));
                    let is_old = known.remove(&id).is_some();
                    readers
                        .entry(id)
                        .or_insert_with(|| if is_old { Reader::at_end(&path) } else { Reader::default() });
                }
                readers.iter_mut().for_each(|(id, reader)| {
                    reader.read(&folder.join(format!("{id}.jsonl")), id.as_str(), &tracer);
                });
                readers.retain(|id, _| living.contains(id));
                (readers, known)
            });
            let Ok(back) = read.await else { return };
            (readers, known) = back;
            tokio::time::sleep(FOLLOW).await;
        }
    }

    async fn times(&self) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now_ms = clock::now_ms();
            for live in self.all() {
                if (live.is_expired(now_ms) || live.is_idle(now_ms)) && live.take_timer() {
                    let engine = self.clone();
                    tokio::spawn(async move {
                        engine.time_is_over(&live).await;
                        live.give_timer();
                    });
                }
            }
            for birth in self.0.pools.surplus() {
                let keeper = crate::keeper::Keeper::at(birth.socket);
                self.discard(keeper, birth.child);
            }
        }
    }

    /// Decides again while nobody else can change the state: whoever came in between is not disturbed.
    async fn time_is_over(&self, live: &Live) {
        let is_idle = !live.is_expired(clock::now_ms());
        fault::point(if is_idle { Point::IdleFound } else { Point::ExpiryFound });
        let done = if is_idle {
            self.pause(live, Pausing::Idle).await.map(|_| ())
        } else if live.sandbox().on_timeout == OnTimeout::Pause {
            self.pause(live, Pausing::Expired).await.map(|_| ())
        } else {
            self.stop_expired(live).await
        };
        if let Err(error) = done {
            crate::log::warn("timer", &format!("sandbox {}: {error}", live.id()));
            // Not at once again: what hinders it may take its time.
            tokio::time::sleep(MEASURE).await;
            self.look(live).await;
        }
    }

    async fn stop_expired(&self, live: &Live) -> Result<(), crate::error::ApiError> {
        let _transition = live.transition().await;
        if !live.is_expired(clock::now_ms()) {
            return Ok(());
        }
        self.end(live, "expired").await
    }

    async fn measurements(&self) {
        loop {
            tokio::time::sleep(MEASURE).await;
            let mut asked = JoinSet::new();
            for live in self.all() {
                if asked.len() >= ABREAST {
                    asked.join_next().await;
                }
                let engine = self.clone();
                asked.spawn(async move {
                    match live.state() {
                        State::Running => drop(engine.metrics(&live).await),
                        State::Paused | State::Halted => engine.look(&live).await,
                        State::Ended => {}
                    }
                });
            }
            while asked.join_next().await.is_some() {}
            self.remove_strays().await;
            self.adopt_strangers().await;
            if self.0.unswept.swap(false, Ordering::Relaxed) {
                crate::spawn::sweep(&self.0.config);
            }
        }
    }
}
