//! A sandbox that nobody uses is paused by its keeper, and woken by the next who asks something of it.
//!
//! It is used while anybody is connected for more than an answer, and while its processes compute: a command in the
//! background that works is not stopped for being alone.

use super::connection::Role;
use super::keeper::Keeper;
use crate::run::unix_millis;
use fumehood_backend::Live;
use fumehood_keep::wire::{Ask, Phase};
use std::time::{Duration, Instant};

/// Of the time that nobody asked anything, the part that processes may compute in and still be idle: one in so many.
const BUSY_PART: u64 = 100;

/// How a sandbox is used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Idle {
    /// Paused after so long; never if absent.
    pub(crate) after_ms: Option<u64>,
    /// It was paused for it, and may be woken by anybody.
    asleep: bool,
    /// Processor time when it was last looked at, and when that was.
    seen: Option<(u64, u64)>,
}

// === impl Idle ===

impl Idle {
    pub(super) fn after(after_ms: Option<u64>) -> Self {
        Self { after_ms, ..Self::default() }
    }
}

// === impl Keeper ===

impl Keeper<'_> {
    /// When it is to be looked at whether anybody uses it.
    pub(super) fn idle_alarm(&self) -> Option<Instant> {
        let after_ms = self.life.idle.after_ms?;
        if self.life.frozen.is_some() || self.is_used() {
            return None;
        }
        let since_ms = self.life.idle.seen.map_or(self.life.active_ms, |(at, _)| at.max(self.life.active_ms));
        let left_ms = since_ms.saturating_add(after_ms).saturating_sub(unix_millis());
        Some(Instant::now() + Duration::from_millis(left_ms))
    }

    /// Pauses it, if nobody has used it for long enough.
    pub(super) fn look_idle(&mut self) {
        let Some(after_ms) = self.life.idle.after_ms else { return };
        let now_ms = unix_millis();
        if self.phase() != Phase::Running || self.is_used() {
            self.life.idle.seen = None;
            return;
        }
        let cpu_ms = self.live().map_or(0, Live::cpu_ms);
        let since_ms = self.life.idle.seen.map_or(self.life.active_ms, |(at, _)| at.max(self.life.active_ms));
        if now_ms.saturating_sub(since_ms) < after_ms {
            // Where the span begins, what was computed before does not count.
            if self.life.idle.seen.is_none() {
                self.life.idle.seen = Some((self.life.active_ms, cpu_ms));
            }
            return;
        }
        let before_ms = self.life.idle.seen.map_or(0, |(_, cpu)| cpu);
        self.life.idle.seen = Some((now_ms, cpu_ms));
        if cpu_ms.saturating_sub(before_ms) > after_ms / BUSY_PART {
            return;
        }
        // Where it can not be paused it goes on: that it could was seen when it was made.
        self.life.idle.asleep = self.pause().is_ok();
    }

    /// Wakes it for an ask that needs it awake, if it was only idle.
    pub(super) fn wake_for(&mut self, ask: &Ask) {
        let looks = matches!(
            ask,
            Ask::Status
                | Ask::List
                | Ask::Pause
                | Ask::Resume
                | Ask::Stop { .. }
                | Ask::Halt
                | Ask::Release
                | Ask::Expire { .. }
                | Ask::Network(_)
        );
        if matches!(ask, Ask::Pause | Ask::Resume | Ask::Halt) {
            // From now on it is paused, or not, because somebody said so.
            if std::mem::take(&mut self.life.idle.asleep) && matches!(ask, Ask::Pause) {
                return;
            }
        }
        if !looks {
            self.wake();
        }
    }

    /// Wakes it, if it was only idle.
    pub(super) fn wake(&mut self) {
        if self.life.idle.asleep && self.phase() == Phase::Paused && self.resume().is_ok() {
            self.life.idle.asleep = false;
            self.life.active_ms = unix_millis();
            self.life.idle.seen = None;
        }
    }

    /// Whether anybody is connected for more than an answer.
    fn is_used(&self) -> bool {
        let stays =
            |role: &Role| matches!(role, Role::Follow(_) | Role::Input(_) | Role::Dial(_) | Role::New);
        !self.relays.is_empty() || self.connections.values().any(|one| stays(&one.role) && !one.closing)
    }
}
