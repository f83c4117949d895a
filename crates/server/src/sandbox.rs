//! Sandboxes as the daemon knows them, and what can be asked about them.

use fumehood_keep::literals::Literals;
use fumehood_model::id::TaskId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// The template that has nothing of its own.
pub const BASE_TEMPLATE: &str = "base";

/// A sandbox that is to be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewSandbox {
    /// A template or a snapshot by name; [`BASE_TEMPLATE`] if absent.
    pub template: Option<String>,
    /// The level by name; the template's, or chosen from the envelope, if absent.
    pub level: Option<String>,
    /// How long it lives, or runs until it is paused; the configured span if absent.
    pub ttl: Option<Duration>,
    pub on_timeout: OnTimeout,
    /// Whether traffic wakes it when it is paused.
    pub auto_resume: bool,
    /// Paused when nobody has used it for so long.
    pub idle_pause: Option<Duration>,
    pub labels: BTreeMap<String, String>,
    /// Variables of all its commands.
    pub env: Vec<(String, String)>,
    /// In the words of `fumehood.toml`, laid over the template's envelope. `Null` or an object.
    pub envelope: serde_json::Value,
    /// Values of secrets of the caller's own, that the envelope's rules use.
    pub literals: Literals,
    /// An interpreter that is to be prepared in it.
    pub warm: Option<fumehood_keep::wire::Warm>,
    /// A caller's own key: the same key gives the same sandbox again.
    pub idempotency_key: Option<String>,
}

/// What happens when a sandbox's time is over. Kept with the sandbox: nothing but the caller's word changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    #[default]
    Stop,
    Pause,
}

/// What a sandbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Running,
    Paused,
    /// The kill switch is on.
    Halted,
    Ended,
}

/// A sandbox as it is now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sandbox {
    #[schemars(with = "String")]
    pub id: TaskId,
    pub team: String,
    pub template: String,
    pub level: String,
    pub state: State,
    pub labels: BTreeMap<String, String>,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    /// When its time is over (milliseconds since 1970); never if absent.
    pub expires_ms: Option<u64>,
    pub on_timeout: OnTimeout,
    pub auto_resume: bool,
    pub idle_pause_ms: Option<u64>,
    pub memory_limit_bytes: u64,
    pub disk_limit_bytes: u64,
    /// Cores that its commands may use at once, in thousandths; absent where it was not limited.
    pub cpu_milli: Option<u64>,
    /// The sandbox that it was forked from.
    pub parent: Option<String>,
    /// The first of those that it comes from by forks.
    #[serde(default)]
    pub root: Option<String>,
    /// The name of the key that made it.
    #[serde(default)]
    pub key: Option<String>,
    pub home: String,
    pub cwd: String,
    /// Ports of the host's loopback that lead inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
    /// Why and when it ended. Absent while it lives.
    pub ended: Option<Ended>,
}

/// A port of the host's loopback, and the one inside that it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Published {
    pub host_port: u16,
    pub port: u16,
}

// === impl Published ===

impl From<fumehood_keep::wire::Published> for Published {
    fn from(one: fumehood_keep::wire::Published) -> Self {
        let fumehood_keep::wire::Published { host_port, port } = one;
        Self { host_port, port }
    }
}

/// The end of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Ended {
    pub at_ms: u64,
    /// One of `stopped`, `expired`, `lost`.
    pub cause: String,
}

/// Which sandboxes a list is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any of these; every living one if empty.
    pub states: Vec<State>,
    /// All of these.
    pub labels: BTreeMap<String, String>,
    pub template: Option<String>,
    /// Only those created at this time (milliseconds since 1970) or later.
    pub created_from_ms: Option<u64>,
}

/// Which part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The token that the part before gave.
    pub after: Option<String>,
    /// At most so many; [`Page::USUAL`] if absent, [`Page::MOST`] at most.
    pub limit: Option<usize>,
    /// The oldest first, instead of the newest.
    pub oldest_first: bool,
}

/// A part of a list.
#[derive(Clone, Debug, PartialEq, Serialize, schemars::JsonSchema)]
pub struct Listed {
    pub sandboxes: Vec<Sandbox>,
    /// The token of the next part; absent at the end.
    pub next: Option<String>,
}

/// One measurement of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Metrics {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Processor time of all its commands so far.
    pub cpu_ms: u64,
    /// Of one core, in thousandths, since the measurement before (or its birth).
    pub cpu_milli: u64,
    pub cpu_count: u64,
    pub memory_bytes: u64,
    pub memory_limit_bytes: u64,
    pub disk_bytes: u64,
    pub disk_limit_bytes: u64,
    /// Commands that run.
    pub running: u32,
}

/// Files kept under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Snapshot {
    pub name: String,
    pub team: String,
    /// The sandbox that it was taken of.
    pub sandbox: String,
    pub template: String,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    pub bytes: u64,
    /// How long the sandbox stood still for it, in microseconds.
    pub frozen_us: u64,
}

// === impl Page ===

impl Page {
    /// How many one part has if nothing else is said.
    pub const USUAL: usize = 100;
    /// How many one part has at most.
    pub const MOST: usize = 1000;

    /// How many this part has at most.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.limit.unwrap_or(Self::USUAL).clamp(1, Self::MOST)
    }
}

// === impl Filter ===

impl Filter {
    /// Whether a list shows this one.
    #[must_use]
    pub fn takes(&self, sandbox: &Sandbox) -> bool {
        let state = if self.states.is_empty() {
            sandbox.state != State::Ended
        } else {
            self.states.contains(&sandbox.state)
        };
        state
            && self.template.as_ref().is_none_or(|template| *template == sandbox.template)
            && self.created_from_ms.is_none_or(|from| sandbox.created_ms >= from)
            && self.labels.iter().all(|(name, value)| sandbox.labels.get(name) == Some(value))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// One that runs; what it is called and when it was made tell it from others.
    pub(crate) fn sandbox(number: u64) -> Sandbox {
        Sandbox {
            id: TaskId::new(number, 1),
            team: "a".to_owned(),
            template: BASE_TEMPLATE.to_owned(),
            level: "container".to_owned(),
            state: State::Running,
            labels: BTreeMap::new(),
            created_ms: number,
            expires_ms: None,
            on_timeout: OnTimeout::Stop,
            auto_resume: false,
            idle_pause_ms: None,
            published: Vec::new(),
            memory_limit_bytes: 0,
            disk_limit_bytes: 0,
            cpu_milli: None,
            parent: None,
            root: None,
            key: None,
            home: String::new(),
            cwd: String::new(),
            ended: None,
        }
    }
}
