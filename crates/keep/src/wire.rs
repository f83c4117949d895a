//! The verbs of a living sandbox, and what is said to them. JSON; a field may be added, never renamed.
//!
//! | asked | answered, in order |
//! |---|---|
//! | [`Ask::Status`] | [`Said::Status`] |
//! | [`Ask::Exec`] | [`Said::Started`] or [`Said::Failed`]; then output as it comes; [`Said::Ended`]. Meanwhile the caller may send `Input` and `InputEnd` frames |
//! | [`Ask::Attach`] | [`Said::Started`]; what is kept of its output from the cursors on, then as it comes; [`Said::Ended`] |
//! | [`Ask::Input`] | the caller sends `Input` frames and closes its side, or ends with `InputEnd`; [`Said::Done`] |
//! | [`Ask::List`] | [`Said::Execs`] |
//! | [`Ask::Read`] | [`Said::Entry`], then `Data` frames and `DataEnd` |
//! | [`Ask::Write`] | the caller sends `Data` frames and `DataEnd`; [`Said::Entry`] |
//! | [`Ask::Watch`] | [`Said::Done`] once it watches, then [`Said::Changed`] until the caller goes |
//! | [`Ask::Dial`] | [`Said::Done`]; from then on the connection is the bytes of that port, unframed, both ways |
//! | everything else | one [`Said`]; [`Said::Done`] where there is nothing to tell |
//!
//! [`Said::Failed`] may come in place of any answer, and is the last.

use crate::literals::Literals;
use fumehood_model::ending::{Ending, Hit};
use fumehood_model::id::TaskId;
use fumehood_model::report::{Changes, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use zeroize::Zeroizing;

/// What is asked of a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Whether it lives, and what it uses.
    Status,
    /// Run one more command. Dropping the connection does not end it.
    Exec(Exec),
    /// See a command that runs, or has ended, from so many bytes of each stream on.
    Attach {
        exec: u32,
        #[serde(default)]
        stdout_from: u64,
        #[serde(default)]
        stderr_from: u64,
    },
    /// Give input to a command from another connection than the one that started it.
    Input {
        exec: u32,
    },
    /// All commands that run, and the last ones that have ended.
    List,
    /// Send a signal to a command's process group.
    Signal {
        exec: u32,
        signal: u8,
    },
    Resize {
        exec: u32,
        rows: u16,
        columns: u16,
    },
    /// Content of a regular file: so many bytes (all, if absent) from `offset` on.
    Read {
        path: String,
        #[serde(default)]
        offset: u64,
        length: Option<u64>,
    },
    /// Make or replace a regular file, with the folders to it. Nothing is seen of it before it is whole.
    Write {
        path: String,
        mode: Option<u32>,
    },
    Stat {
        path: String,
    },
    /// A folder, so many levels deep (at least 1), at most [`MOST_ENTRIES`] entries.
    ListDir {
        path: String,
        depth: u32,
    },
    /// With all folders to it. Fails with `exists` where there is one.
    MakeDir {
        path: String,
    },
    Move {
        from: String,
        to: String,
    },
    /// A file, or a folder with all that is in it.
    Remove {
        path: String,
    },
    /// Tell of changes beneath a folder.
    Watch {
        path: String,
        recursive: bool,
    },
    /// Connect to a port on the loopback inside.
    Dial {
        port: u16,
    },
    /// Stop every process where it is.
    Pause,
    Resume,
    /// Keep the files as they are now, under the keeper's state folder; frozen meanwhile.
    Snapshot {
        name: String,
        /// With memory and processes, or files alone; what the level keeps, if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        memory: Option<bool>,
    },
    /// Bring what it changed in its copy of the workspace to the workspace itself, while everything stands still. `allow`
    /// and `force` are paths beneath the workspace, or folders of them, as text that reads back.
    Apply {
        #[serde(default)]
        allow: Vec<String>,
        #[serde(default)]
        force: Vec<String>,
        /// Also where a part is refused or in conflict.
        #[serde(default)]
        partial: bool,
    },
    /// The kill switch: the network is cut, everything frozen, no new work is taken.
    Halt,
    /// Ends [`Ask::Halt`].
    Release,
    /// Take a sandbox from a pool: from now on it is this caller's. Once.
    Claim(Claim),
    /// Other rules for what it may reach, in place of those it has.
    Network(Network),
    /// End the sandbox at this time (milliseconds since 1970), or never.
    Expire {
        at_ms: Option<u64>,
    },
    /// End every process and remove everything, unless it is to be kept.
    Stop {
        keep_files: bool,
    },
}

/// One command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The command and its arguments; never empty.
    pub argv: Vec<String>,
    /// Set beside, or instead of, the sandbox's own variables.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// The sandbox's own, if absent.
    pub cwd: Option<String>,
    /// A terminal of so many rows and columns.
    pub terminal: Option<(u16, u16)>,
    /// Without it, input is at its end from the start.
    #[serde(default)]
    pub stdin: bool,
    /// Ends the command when it has run for so long.
    pub timeout_ms: Option<u64>,
    /// The caller's own name for it, of at most 128 characters.
    pub tag: Option<String>,
    /// Who asked, for the record: a key's name, a user.
    #[serde(default)]
    pub actor: String,
}

/// Whose a sandbox of a pool becomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub actor: String,
    /// Variables of all its commands from now on, beside those it was made with.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    pub expires_ms: Option<u64>,
}

/// What a living sandbox may reach from now on. Everything else of its network stays as it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    pub actor: String,
    /// In the words of `fumehood.toml`, as are the others.
    pub net: Option<String>,
    #[serde(default)]
    pub allow: Vec<String>,
    #[serde(default)]
    pub allow_cidr: Vec<String>,
    /// Secrets that the rules use, and that it has not yet.
    #[serde(default)]
    pub literals: Literals,
}

/// A sandbox that is to be: what the role `fumehood keeper` reads from its standard input, as one JSON object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The envelope in the words of `fumehood.toml`.
    #[serde(default)]
    pub envelope: serde_json::Value,
    /// The level, by name; chosen from the envelope if absent.
    pub level: Option<String>,
    /// A snapshot that its files begin with, by name.
    pub snapshot: Option<String>,
    pub env: Vec<(String, String)>,
    pub labels: BTreeMap<String, String>,
    pub expires_ms: Option<u64>,
    pub actor: String,
    /// It waits in a pool until it is claimed.
    #[serde(default)]
    pub pooled: bool,
    /// A processor that software emulates is taken, which is no boundary that anybody vouches for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub accept_tcg: bool,
    /// Its keeper pauses it when nobody has used it for so long, and wakes it for the next who does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_pause_ms: Option<u64>,
    /// Values of the envelope's secrets of the kind `given`. Never written: [`Spec::told`] alone has them.
    #[serde(default, skip_serializing)]
    pub literals: Literals,
    /// It is a child of the sandbox whose envelope that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Forked>,
    /// An interpreter that is prepared before anybody is told of the sandbox. A snapshot brings its own along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<Warm>,
}

/// In what a fork is less than its parent. Ports that the parent publishes lead to the child from ports of the host that
/// were free.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forked {
    /// Laid over the envelope, in the same words; `null` takes away. What asks for more than there is is refused.
    #[serde(default)]
    pub narrow: serde_json::Value,
}

/// A port of the host's loopback that leads inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    pub host_port: u16,
    pub port: u16,
}

/// A Python interpreter that comes to some point once, and from there goes on in any number of commands, in this sandbox
/// and in its forks. The command is [`WARM_PLACE`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Warm {
    /// What it runs first, as source.
    pub prepare: String,
    /// A command inside; `python3` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<String>,
}

/// The keeper's answer to a [`Spec`]: one line of JSON on its standard output, which it then closes. It lives on in a
/// session of its own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "born", rename_all = "snake_case")]
pub enum Born {
    /// It lives, and listens at `socket`.
    Ready { id: TaskId, socket: String, status: Status },
    /// There is no sandbox, and nothing of it is left.
    Failed(Failure),
}

/// What stands in the file `sandbox.json` of a living sandbox's folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sandbox {
    pub id: String,
    pub keeper_pid: u32,
    pub level: String,
    /// Milliseconds since 1970.
    pub born_ms: u64,
    pub spec: Spec,
}

/// What a keeper says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum Said {
    Status(Status),
    /// The command's `execve` is done. `pid` is as seen inside.
    Started {
        exec: u32,
        pid: u32,
    },
    Ended {
        exec: u32,
        ending: Ending,
        hits: Vec<Hit>,
        usage: Usage,
    },
    Execs {
        execs: Vec<ExecStatus>,
    },
    Entry {
        entry: Entry,
    },
    Entries {
        entries: Vec<Entry>,
        cut: bool,
    },
    Changed {
        path: String,
        change: Change,
    },
    Snapshot {
        name: String,
        bytes: u64,
        frozen_us: u64,
    },
    /// With `held`, nothing was done because of what is refused and in conflict.
    Applied {
        done: Changes,
        refused: Vec<Left>,
        conflicts: Vec<Left>,
        notes: Vec<Left>,
        held: bool,
    },
    Paused {
        frozen_us: u64,
        reclaimed_bytes: u64,
    },
    Done,
    Failed(Failure),
}

/// A path of a layer that was left, and why. As text that reads back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub path: String,
    pub why: String,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}: {cause}")]
pub struct Failure {
    pub code: FailureCode,
    /// A fragment that fits after "failed to": `read /etc/x`.
    pub message: String,
    pub cause: String,
    pub remediation: String,
}

/// Stable codes of a keeper's failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// What was asked makes no sense.
    BadRequest,
    NotFound,
    Exists,
    NotAFile,
    NotAFolder,
    Denied,
    NoSpace,
    TooLarge,
    /// No such exec, or it has ended.
    NoExec,
    /// Nothing listens at that port.
    PortClosed,
    Paused,
    NotPaused,
    Halted,
    /// Too many commands, watches or connections.
    Busy,
    /// This level can not do it.
    Unsupported,
    /// The sandbox is ending.
    Ending,
    /// A fault of ours or of the host.
    Internal,
}

/// A living sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub id: String,
    pub phase: Phase,
    pub level: String,
    /// Milliseconds since 1970.
    pub born_ms: u64,
    pub expires_ms: Option<u64>,
    pub last_active_ms: u64,
    pub running: u32,
    /// It waits in a pool, and is nobody's yet.
    #[serde(default)]
    pub pooled: bool,
    pub cpu_ms: u64,
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: u64,
    /// Cores that its commands may use at once, in thousandths.
    #[serde(default)]
    pub cpu_limit_milli: Option<u64>,
    pub disk_bytes: Option<u64>,
    pub disk_limit_bytes: u64,
    pub home: String,
    pub cwd: String,
    /// Ports of the host's loopback that lead inside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

/// What a living sandbox is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    Running,
    Paused,
    Halted,
    Ending,
}

/// One command, as a list shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecStatus {
    pub exec: u32,
    pub pid: u32,
    pub argv: Vec<String>,
    pub cwd: String,
    pub tag: Option<String>,
    pub terminal: bool,
    pub started_ms: u64,
    /// Bytes that each stream has had so far; where an attach can begin at the latest.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    /// `None` while it runs.
    pub ending: Option<Ending>,
}

/// A file, folder or link inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Absolute, as a guest path. A name that is not UTF-8 is shown with replacement characters, and `odd` is set.
    pub path: String,
    #[serde(default)]
    pub odd: bool,
    pub kind: EntryKind,
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    pub owner: u32,
    pub group: u32,
    /// Milliseconds since 1970.
    pub modified_ms: i64,
    pub link: Option<String>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Folder,
    Link,
    Other,
}

/// What happened to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Created,
    Written,
    Removed,
    Moved,
    Mode,
}

// === impl Spec ===

impl Spec {
    /// What a keeper is told on its standard input.
    ///
    /// # Errors
    /// Never, as far as is known: every part has a form in JSON.
    pub fn told(&self) -> serde_json::Result<Zeroizing<Vec<u8>>> {
        #[derive(Serialize)]
        struct Told<'a> {
            #[serde(flatten)]
            spec: &'a Spec,
            literals: &'a Literals,
        }
        serde_json::to_vec(&Told { spec: self, literals: &self.literals }).map(Zeroizing::new)
    }
}

/// The most entries that one list gives; `cut` tells of more.
pub const MOST_ENTRIES: usize = 10_000;
/// What is kept of each stream of a command for who attaches later, in bytes: the last ones.
pub const KEPT_OUTPUT_BYTES: usize = 1 << 20;
/// Commands that have ended and can still be attached to.
pub const KEPT_EXECS: usize = 64;
/// The command that goes on with the prepared interpreter of a sandbox, by its guest path. It takes `-c CODE`, `-m MODULE`,
/// a file, `-` and `-u`, and arguments after them.
pub const WARM_PLACE: &str = "/run/fumehood/warm/python3";
/// The longest path or name in a request, in bytes.
pub const MOST_PATH_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_told_to_the_keeper_and_written_nowhere_else() {
        let mut spec = Spec::default();
        spec.literals.add("T".to_owned(), "v4lue".to_owned().into());
        assert!(!serde_json::to_string(&spec).unwrap().contains("v4lue"));
        assert!(!format!("{spec:?}").contains("v4lue"));
        let heard: Spec = serde_json::from_slice(&spec.told().unwrap()).unwrap();
        assert_eq!(heard.literals.get("T"), Some("v4lue"));
        assert_eq!(heard, spec);
    }
}
