//! The vocabulary of the record. A name is stable for ever; a field may be added, never renamed.

use crate::ending::{Ending, Hit};
use crate::report::{Changes, Collected, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One act, as it stands in a task's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event")]
pub enum Event {
    /// The sandbox is about to be launched under this envelope.
    #[serde(rename = "sandbox.launched")]
    Launched { level: String, reason: String, envelope: serde_json::Value, enforcement: serde_json::Value },
    /// A command is about to run. Arguments are bytes shown as text; longer ones are capped with a digest.
    #[serde(rename = "exec.started")]
    ExecStarted {
        argv: Vec<String>,
        cwd: String,
        env_names: Vec<String>,
        terminal: bool,
        /// Which of the commands of a living sandbox, from 1; and who asked for it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exec: Option<u32>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        actor: Option<String>,
    },
    /// A host file is about to be copied in.
    #[serde(rename = "file.in")]
    FileIn { source: String, at: String, bytes: u64 },
    /// A file of the sandbox is about to appear on the host.
    #[serde(rename = "file.out")]
    FileOut { path: String, bytes: u64, sha256: String },
    /// A change is about to be made to the workspace on the host (`added`, `modified`, `deleted`, `renamed`).
    #[serde(rename = "file.applied")]
    FileApplied { path: String, change: String, bytes: u64 },
    /// Collection or application refused something.
    #[serde(rename = "file.refused")]
    FileRefused { path: String, why: String },
    /// A layer was thrown away by its owner.
    #[serde(rename = "layer.discarded")]
    LayerDiscarded {},
    /// The run that is about to be launched is another one of what is on a tape: nothing of it leaves.
    #[serde(rename = "replay.started")]
    ReplayStarted { of: String, tape_sha256: String },
    /// What it takes to run this again was kept.
    #[serde(rename = "tape.kept")]
    TapeKept { sha256: String },
    /// The command ended.
    #[serde(rename = "exec.ended")]
    ExecEnded {
        ending: Ending,
        hits: Vec<Hit>,
        usage: Usage,
        changes: Option<Changes>,
        collected: Option<Collected>,
        /// As in `exec.started`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        exec: Option<u32>,
    },
    /// The sandbox that is about to be launched lives on between commands.
    #[serde(rename = "sandbox.living")]
    Living(Living),
    /// A living sandbox that waited in a pool became somebody's.
    #[serde(rename = "sandbox.claimed")]
    Claimed { actor: String, env_names: Vec<String>, labels: BTreeMap<String, String> },
    /// Every process of a living sandbox is about to be stopped where it is.
    #[serde(rename = "sandbox.paused")]
    Paused {},
    /// They are about to go on.
    #[serde(rename = "sandbox.resumed")]
    Resumed {},
    /// The kill switch: network and processes are about to be stopped.
    #[serde(rename = "sandbox.halted")]
    Halted {},
    #[serde(rename = "sandbox.released")]
    Released {},
    /// A caller is about to read or change a file of a living sandbox from outside: `read`, `write`, `make_dir`,
    /// `remove`, or `move` with where `to`.
    #[serde(rename = "file.asked")]
    FileAsked {
        verb: String,
        path: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
    },
    /// A caller is about to be connected to a port inside. What repeats it within a moment is counted, not written
    /// again.
    #[serde(rename = "port.asked")]
    PortAsked {
        port: u16,
        /// How often, since the line before about the same. At least 1.
        count: u64,
    },
    /// A caller is about to send a signal to a command of a living sandbox.
    #[serde(rename = "exec.signalled")]
    ExecSignalled { exec: u32, signal: u8 },
    /// What the latest line named `of` said was about to be done was not done, or not all of it.
    #[serde(rename = "act.failed")]
    ActFailed { of: String, why: String },
    /// The files of a living sandbox are about to be kept under this name.
    #[serde(rename = "sandbox.snapshot")]
    Snapshot { name: String },
    /// A living sandbox got another time of its end, in milliseconds since 1970; `None`: none.
    #[serde(rename = "sandbox.expires")]
    Expires { until_ms: Option<u64> },
    /// What a living sandbox may reach is about to change to this. Values of secrets are not in it.
    #[serde(rename = "network.changed")]
    NetworkChanged { actor: String, network: serde_json::Value },
    /// A living sandbox is about to end, and why: `asked`, `expired`, `signal`, or a limit.
    #[serde(rename = "sandbox.stopped")]
    Stopped { why: String, keeps_files: bool },
    /// A page is about to be fetched, from outside of every sandbox, under these rules.
    #[serde(rename = "fetch.started")]
    FetchStarted(FetchStarted),
    /// Something is about to leave: a connection, or one request.
    #[serde(rename = "egress.allowed")]
    EgressAllowed(EgressAllowed),
    /// Something did not leave.
    #[serde(rename = "egress.denied")]
    EgressDenied(EgressDenied),
    /// What left came to its end.
    #[serde(rename = "egress.ended")]
    EgressEnded(EgressEnded),
    /// A name was asked for. Questions never leave.
    #[serde(rename = "egress.name")]
    EgressName(EgressName),
    /// The walls of a level are about to be tested.
    #[serde(rename = "prove.started")]
    ProveStarted { level: String, walls: String, quick: bool },
    /// They were tested.
    #[serde(rename = "prove.ended")]
    ProveEnded(ProveEnded),
    /// The last line of a task.
    #[serde(rename = "task.closed")]
    Closed {},
}

/// A point in the record of another task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    pub task: String,
    /// Lines so far.
    pub lines: u64,
    /// The digest of the last of them.
    pub hash: String,
}

/// What is said of a living sandbox when it begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// Where in another sandbox's record its files are from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Branch>,
    /// Who asked for it: a key's name, a user.
    pub actor: String,
    pub labels: BTreeMap<String, String>,
    pub env_names: Vec<String>,
    /// The snapshot that its files begin with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    pub pooled: bool,
}

/// Written before anything is looked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FetchStarted {
    pub method: String,
    /// `https://example.com`; what it leads to stands in the lines that follow.
    pub to: String,
    /// Without the query.
    pub path: String,
    /// The network clause.
    pub rules: serde_json::Value,
    /// Whether an answer that was kept is given again, so that nothing leaves.
    pub from_cache: bool,
}

/// Written before the first byte leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressAllowed {
    /// Unique in a task; [`EgressEnded`] bears it again.
    pub id: u64,
    /// The identity that was judged: `https://api.example.com`, `db.example.com:5432`.
    pub to: String,
    /// How it reached the wall: `transparent`, `connect`, `absolute`, `socks5`, `fetch`.
    pub via: String,
    /// `None` where bytes pass unread.
    pub method: Option<String>,
    /// Without the query, which may hold what is nobody's business.
    pub path: Option<String>,
    pub rule: String,
    /// The secret that is put in, by name.
    pub credential: Option<String>,
}

/// The same refusal within a moment is counted, not written again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressDenied {
    pub to: String,
    pub via: String,
    pub method: Option<String>,
    pub path: Option<String>,
    /// A word of a closed list.
    pub reason: String,
    pub why: String,
    pub remedy: String,
    /// How often, since the line before about the same. At least 1.
    pub count: u64,
}

/// How something that was allowed ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressEnded {
    pub id: u64,
    /// The address that was dialled; `None` where none was, or where an upstream proxy resolved.
    pub address: Option<String>,
    /// The status of the response, where there was one.
    pub status: Option<u16>,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// Why it ended other than well.
    pub fault: Option<String>,
    /// The secrets, by name, whose values came back in the response and were masked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked: Vec<String>,
}

/// What a self-test came to. The report itself is the caller's; its digest is here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProveEnded {
    pub held: u64,
    pub breached: u64,
    /// Proved nothing, which counts against the wall.
    pub broken: u64,
    pub not_applicable: u64,
    /// Probes that were asked and not held, by id.
    pub failed: Vec<String>,
    /// Of the envelope under test.
    pub policy_sha256: String,
    /// Of the report as JSON.
    pub report_sha256: String,
}

/// A question to the resolver inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressName {
    pub name: String,
    /// The type of record, as DNS calls it.
    pub kind: String,
    /// How often, since the line before about the same. At least 1.
    pub count: u64,
    /// Whether the name has an address inside.
    pub answered: bool,
}

// === impl Event ===

impl Event {
    /// The stable name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Launched { .. } => "sandbox.launched",
            Self::ExecStarted { .. } => "exec.started",
            Self::FileIn { .. } => "file.in",
            Self::FileOut { .. } => "file.out",
            Self::FileApplied { .. } => "file.applied",
            Self::FileRefused { .. } => "file.refused",
            Self::LayerDiscarded {} => "layer.discarded",
            Self::ReplayStarted { .. } => "replay.started",
            Self::TapeKept { .. } => "tape.kept",
            Self::ExecEnded { .. } => "exec.ended",
            Self::Living(_) => "sandbox.living",
            Self::Claimed { .. } => "sandbox.claimed",
            Self::Paused {} => "sandbox.paused",
            Self::Resumed {} => "sandbox.resumed",
            Self::Halted {} => "sandbox.halted",
            Self::Released {} => "sandbox.released",
            Self::FileAsked { .. } => "file.asked",
            Self::PortAsked { .. } => "port.asked",
            Self::ExecSignalled { .. } => "exec.signalled",
            Self::ActFailed { .. } => "act.failed",
            Self::Snapshot { .. } => "sandbox.snapshot",
            Self::Expires { .. } => "sandbox.expires",
            Self::NetworkChanged { .. } => "network.changed",
            Self::Stopped { .. } => "sandbox.stopped",
            Self::FetchStarted(_) => "fetch.started",
            Self::EgressAllowed(_) => "egress.allowed",
            Self::EgressDenied(_) => "egress.denied",
            Self::EgressEnded(_) => "egress.ended",
            Self::EgressName(_) => "egress.name",
            Self::ProveStarted { .. } => "prove.started",
            Self::ProveEnded(_) => "prove.ended",
            Self::Closed {} => "task.closed",
        }
    }

    /// Whether it is one of those that the egress wall writes, and no other may come from there.
    pub const fn is_egress(&self) -> bool {
        match self {
            Self::EgressAllowed(_) | Self::EgressDenied(_) | Self::EgressEnded(_) | Self::EgressName(_) => {
                true
            }
            Self::Launched { .. }
            | Self::ExecStarted { .. }
            | Self::FileIn { .. }
            | Self::FileOut { .. }
            | Self::FileApplied { .. }
            | Self::FileRefused { .. }
            | Self::LayerDiscarded {}
            | Self::ReplayStarted { .. }
            | Self::TapeKept { .. }
            | Self::ExecEnded { .. }
            | Self::Living(_)
            | Self::Claimed { .. }
            | Self::Paused {}
            | Self::Resumed {}
            | Self::Halted {}
            | Self::Released {}
            | Self::FileAsked { .. }
            | Self::PortAsked { .. }
            | Self::ExecSignalled { .. }
            | Self::ActFailed { .. }
            | Self::Snapshot { .. }
            | Self::Expires { .. }
            | Self::NetworkChanged { .. }
            | Self::Stopped { .. }
            | Self::FetchStarted(_)
            | Self::ProveStarted { .. }
            | Self::ProveEnded(_)
            | Self::Closed {} => false,
        }
    }
}
