//! How an exec ended. Every exec ends with one of these, never with an invented code.

use serde::{Deserialize, Serialize};

/// The structured end of one exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub enum Ending {
    /// The command ended by itself.
    Exited { code: u8 },
    /// A signal from inside, or the kernel's own (a crash), ended the command.
    Signalled { signal: u8, name: String },
    /// The wall clock of the exec ran out. `limit` is in milliseconds.
    TimedOut { limit_ms: u64 },
    /// The sandbox reached its memory limit.
    OutOfMemory { limit: String, limit_bytes: u64, peak_bytes: u64 },
    /// The user ended it (Ctrl-C, SIGTERM to us).
    Killed { signal: u8, name: String },
    /// The kill switch ended it.
    Halted,
    /// A ceiling that is enforced by ending the run was passed (e.g. `disk` under a byte watch).
    LimitPassed { limit: String, limit_bytes: u64, peak_bytes: u64 },
    /// No command ran.
    NotStarted { step: String, why: String, remedy: String },
    /// The keeper died before it could write an ending.
    Lost,
}

/// A limit or a denial that was met on the way, and did not end the exec.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hit {
    pub kind: HitKind,
    /// What exactly: a syscall's name, a limit's name with its unit.
    pub detail: String,
    pub count: u64,
    /// Milliseconds from the start of the exec to the first time it was seen.
    pub first_ms: u64,
}

/// The closed list of things that can be met on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HitKind {
    /// Output past the cap was drained and counted.
    OutputLimit,
    /// Output could not be written to where the caller sends it.
    OutputLost,
    /// The kernel ended a process of the sandbox for memory, and the command went on.
    OutOfMemory,
    /// A write met the disk limit.
    DiskFull,
    /// A fork met the process limit.
    TooManyProcesses,
    /// The record could not be ended: it reads as lost, and says less than happened.
    RecordOpen,
    /// A system call or a path was refused by the envelope.
    Denied,
    /// Something was not let out; its detail says what, and why.
    EgressDenied,
    /// The sandbox itself failed: what holds it is gone, or what came from inside was not to be believed. Its
    /// detail says why.
    SandboxLost,
    /// There was no network any more, which nobody asked for.
    NetworkLost,
    /// Processes outlived the command and were ended.
    LeftoverProcesses,
    /// Something in the output folder, or in a layer, was not a plain file and did not cross.
    NotCollected,
}

// === impl Ending ===

impl Ending {
    /// The stable word for the cause.
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::Exited { .. } => "exited",
            Self::Signalled { .. } => "signalled",
            Self::TimedOut { .. } => "timed_out",
            Self::OutOfMemory { .. } => "out_of_memory",
            Self::Killed { .. } => "killed",
            Self::Halted => "halted",
            Self::LimitPassed { .. } => "limit_passed",
            Self::NotStarted { .. } => "not_started",
            Self::Lost => "lost",
        }
    }
}

/// The conventional name of a signal, e.g. `SIGTERM`.
pub fn signal_name(signal: u8) -> String {
    const NAMES: [&str; 32] = [
        "0",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    NAMES
        .get(usize::from(signal))
        .map_or_else(|| format!("SIGRTMIN+{}", i16::from(signal) - 34), |n| (*n).to_owned())
}
