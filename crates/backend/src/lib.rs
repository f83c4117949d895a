//! What a level of isolation is.
//!
//! Three small traits. A [`Backend`] knows what it can hold and refuses the rest; its [`Plan`] is one
//! envelope turned into this host's own steps, and is spent by the launch; an [`Instance`] is a live
//! guest. A command can be started only on an `Instance`, and only a launch that enforced its whole
//! plan makes one: there is no other way to run anything.
//!
//! They are synchronous on purpose. One keeper process owns one sandbox; it launches while
//! single-threaded and then waits on descriptors, so nothing here needs a runtime (ADR 0003).
//!
//! **Invariant:** a backend never weakens what it was asked for; it says which clause it can not hold.

pub mod answer;
pub mod conformance;
pub mod gateway;

use crate::gateway::{Gateway, GatewaySpec};
use fumehood_model::enforcement::{Enforcement, Unenforceable};
use fumehood_model::envelope::Envelope;
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use std::ffi::OsString;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A way of isolating. Probed when made; stateless afterwards.
pub trait Backend: Debug {
    /// The rung it stands for.
    fn level(&self) -> Level;

    /// What would hold each clause of `envelope` here. Starts nothing; refuses rather than weakens.
    fn plan(&self, envelope: &Envelope, placement: &Placement) -> Result<Box<dyn Plan>, Unenforceable>;

    /// Whether what a sandbox that lives on keeps is in the folders of its placement. Otherwise it is written down by
    /// [`Live::write_down`], and begun from by [`LivingPlace::machine`].
    fn keeps_files(&self) -> bool {
        true
    }

    /// The sandboxes of which something is on this host, living and dead, as far as it can be told.
    fn leftovers(&self) -> Vec<TaskId>;

    /// Removes all that bears `id`, whoever left it. Idempotent; fine when there is nothing.
    fn reap(&self, id: &TaskId) -> Result<(), ReapError>;
}

/// An envelope turned into this host's own steps.
pub trait Plan: Debug {
    /// Which mechanism will hold each clause.
    fn enforcement(&self) -> &Enforcement;

    /// Puts a command into this plan's words: where paths are not what the envelope calls them, its working
    /// directory and variables lead to where they really are. Optional.
    fn adapt(&self, _request: &mut ExecRequest) {}

    /// Begins the parts of a launch that can be made beside the caller's own work. Optional: nothing of the
    /// caller's runs or is read, and dropping the plan undoes it. For a pool it may build the whole sandbox, which
    /// then waits for its command.
    fn begin(&mut self) {}

    /// Builds every wall, then starts the guest's first process. All or nothing.
    fn launch(self: Box<Self>) -> Result<Box<dyn Instance>, LaunchError>;

    /// As [`Plan::launch`] with one command for the guest, as by [`Instance::exec`]. A level whose first process can
    /// find the command waiting for it starts sooner by this.
    fn start(
        self: Box<Self>,
        request: &ExecRequest,
        stdio: GuestStdio,
    ) -> Result<Box<dyn Instance>, StartError> {
        let mut instance = self.launch()?;
        instance.exec(request, stdio)?;
        Ok(instance)
    }
}

/// A live guest.
pub trait Instance: Debug {
    /// Starts one command on keeper-owned descriptors. Its fate arrives as [`Event`]s.
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<(), ExecError>;

    /// Readable when [`Instance::next_event`] has something to say.
    fn events(&self) -> BorrowedFd<'_>;

    /// The next event, or `None` when there is none yet.
    fn next_event(&mut self) -> Option<Event>;

    /// Moves what a command that has ended, or whose guest is gone, had still written, where this level carries
    /// streams by itself. Gives what to wait on for more of it; `None` when all of it is in the pipes.
    fn carry(&mut self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Sets the size of the command's terminal, in character cells, where its other side is not a terminal.
    fn resize(&mut self, _rows: u16, _columns: u16) {}

    /// Sends a signal to the command's process group.
    fn signal(&mut self, signal: i32) -> Result<(), ExecError>;

    /// Ends every process of the guest, now.
    fn kill(&mut self);

    /// Waits until every process of a guest that was killed is gone. Says whether they are.
    fn wait_gone(&mut self, limit: Duration) -> bool;

    /// What the guest has used so far, and which limits it met.
    fn meters(&mut self) -> Meters;

    /// The sockets of the guest's gateway, once. `None` also where it was launched without one.
    fn take_gateway(&mut self) -> Option<Gateway> {
        None
    }

    /// Asks for a connection to a port on the guest's loopback, over IP version 4 or else 6. Gives the number
    /// that the [`Event::Dialled`] which answers will bear.
    ///
    /// # Errors
    /// [`ExecError::Exhausted`] while [`MOST_CALLS`] are not answered; [`ExecError::Silent`] when the guest
    /// does not listen, or there is no such port.
    fn dial(&mut self, port: u16) -> Result<u32, ExecError>;

    /// The guest's `/out`, held open since before anything untrusted ran.
    fn output(&self) -> Option<BorrowedFd<'_>>;

    /// What it can do beyond one command, where this level can.
    fn live(&mut self) -> Option<&mut dyn Live> {
        None
    }
}

/// A guest that lives on when a command ends, and has many at once. Of one, use either this or
/// [`Instance::exec`].
pub trait Live: Debug {
    /// Starts one more command, and gives the number that its events bear.
    ///
    /// # Errors
    /// Only what is known before the guest answers; the rest arrives as [`Event::NotStarted`].
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<u32, ExecError>;

    /// The next event, with the number of the command that it is about (zero for none), or `None` when there is
    /// none yet. Takes the place of [`Instance::next_event`].
    fn next_numbered(&mut self) -> Option<(u32, Event)>;

    /// The number that a running command's process has inside; `None` for one that was not started.
    fn pid(&self, exec: u32) -> Option<u32>;

    /// Sends a signal to a command's process group. Nothing happens if it has ended.
    ///
    /// # Errors
    /// The guest does not listen, or there is no such signal.
    fn signal(&mut self, exec: u32, signal: i32) -> Result<(), ExecError>;

    /// Sets the size of a command's terminal, in character cells, where its other side is not a terminal. Says
    /// whether it is so.
    fn resize(&mut self, _exec: u32, _rows: u16, _columns: u16) -> bool {
        false
    }

    /// Has a kernel between the guest and the host's folders write out what it holds of files.
    ///
    /// # Errors
    /// It did not, or not in time.
    fn settle(&mut self) -> Result<(), FreezeError> {
        Ok(())
    }

    /// Starts a piece of work on files inside, as the sandbox's user, where the host does not see the files itself:
    /// its words and its streams are those of `guestd hand`. `None` where [`Live::root`] is what there is. Its events
    /// bear the number that is given, which no command has.
    fn hand(&mut self, _words: &[OsString], _stdio: GuestStdio) -> Option<Result<u32, ExecError>> {
        None
    }

    /// Writes the guest down as it stands, memory and all, into an empty folder, from which others can begin
    /// ([`LivingPlace::machine`]). It is frozen when this returns, also on an error. Gives the bytes that were written;
    /// `None` where this level can not do it, and then nothing has happened.
    fn write_down(&mut self, _folder: &Path) -> Option<Result<u64, FreezeError>> {
        None
    }

    /// Stops every process of the guest where it is. When this returns, none runs; on an error all go on.
    ///
    /// # Errors
    /// This host has nothing that stops them against their will, or they did not stop in time.
    fn freeze(&mut self) -> Result<(), FreezeError>;

    /// Lets them go on.
    ///
    /// # Errors
    /// The kernel refused; they are still stopped.
    fn thaw(&mut self) -> Result<(), FreezeError>;

    /// Gives memory of a frozen guest back to the host, where it has somewhere to put it: to its disk what came from
    /// there, the rest to swap. Gives the bytes that this freed; they come back when they are touched.
    fn push_out(&mut self) -> u64;

    /// Processor time of the guest so far, in milliseconds. Looks at every process: not for each turn of a loop.
    fn cpu_ms(&mut self) -> u64;

    /// The guest's `/`. `None` where that is the host's.
    fn root(&self) -> Option<BorrowedFd<'_>>;

    /// The kernel uid and gid that files of the guest belong to.
    fn owner(&self) -> (u32, u32);
}

/// Why a guest could not be frozen or thawed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct FreezeError {
    pub why: String,
    pub remedy: String,
    /// Whether this host can never do it, as it is.
    pub unsupported: bool,
}

/// Calls by [`Instance::dial`] that may wait for their answer at once.
pub const MOST_CALLS: usize = 64;

/// Where the runtime put what the backend must show inside. All host paths exist.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Marks everything that could be left behind.
    pub id: TaskId,
    /// A folder of ours for host-made parts that are the same for every run (`/etc`, mount points).
    pub shared: PathBuf,
    /// A folder of this sandbox's own, which the backend may make where it needs one on disk, and which the
    /// runtime removes.
    pub scratch: PathBuf,
    /// The layer of a copy-on-write workspace.
    pub layer: Option<LayerPlace>,
    /// HOME kept by a session; otherwise HOME is scratch.
    pub home: Option<PathBuf>,
    /// HOME, as a guest path.
    pub home_at: PathBuf,
    /// Cache folders: host folder, guest path.
    pub caches: Vec<(PathBuf, PathBuf)>,
    /// Read-only toolchain roots, seen at the same path as on the host.
    pub toolchains: Vec<PathBuf>,
    /// The other end of its network; without it there is no network.
    pub gateway: Option<GatewaySpec>,
    /// Files that are made for this sandbox alone.
    pub files: Vec<MadeFile>,
    /// It is to live on between commands.
    pub living: Option<LivingPlace>,
}

/// What a sandbox that lives on between commands has in addition.
#[derive(Clone, Debug, Default)]
pub struct LivingPlace {
    /// A folder of its own that is `/workspace` where the envelope names none.
    pub workspace: Option<PathBuf>,
    /// What it begins from: a folder that [`Live::write_down`] has filled.
    pub machine: Option<PathBuf>,
}

/// A file that is there for one sandbox alone, readable for all inside.
#[derive(Clone, Debug)]
pub struct MadeFile {
    /// Its guest path, beneath `/run`.
    pub at: PathBuf,
    /// An open file whose content it begins with.
    pub after: Option<Arc<OwnedFd>>,
    /// The rest of it; shared, for it may be long.
    pub content: Arc<Vec<u8>>,
    /// Guest paths of files that it stands in front of, where they exist.
    pub covers: Vec<PathBuf>,
}

/// Where the layer of a copy-on-write workspace is.
#[derive(Clone, Debug)]
pub struct LayerPlace {
    pub folder: PathBuf,
    pub disk: LayerDisk,
}

/// What the layer's `upper` and `work` lie on, which decides what can hold the disk limit.
#[derive(Clone, Debug)]
pub enum LayerDisk {
    /// A file system of their own, of so many bytes: it has no more room than that.
    Image {
        bytes: u64,
        /// Its root, mounted nowhere, to be put onto the layer's folder in a namespace of the launch.
        /// `None` where a plan is only looked at.
        mount: Option<Arc<OwnedFd>>,
    },
    /// The layer's folder itself, on the file system that it is on; and why it has none of its own.
    Folder { why: String },
}

/// The ends of a command's streams that belong to the guest.
#[derive(Debug)]
pub enum GuestStdio {
    /// Three pipes made by the keeper.
    Pipes { stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd },
    /// A terminal that the guest makes for itself; its other side arrives as [`Event::Terminal`].
    Terminal,
}

/// What happened in the guest.
#[derive(Debug)]
pub enum Event {
    /// The command's `execve` is done.
    Started,
    /// The keeper's side of the terminal.
    Terminal(OwnedFd),
    /// The command was not executed.
    NotStarted(ExecError),
    /// The command ended; every other process of the guest has been ended too.
    Ended {
        status: WaitStatus,
        /// Processes that had outlived the command.
        leftovers: u32,
        /// Processor time of all its processes, as far as the guest's first process saw it.
        cpu_ms: u32,
    },
    /// The answer to [`Instance::dial`]: a TCP connection that is there, or on its way (it becomes writable),
    /// or why there is none. The guest may hold it too: it may wait unless each call says that it must not,
    /// and is let go of by `fumehood_sys::socket::discard`.
    Dialled { call: u32, result: std::io::Result<OwnedFd> },
    /// A call was refused by the system call filter.
    Denied { syscall: &'static str },
    /// The guest is gone without a word.
    Gone,
    /// The guest is gone, or can not be believed any more, and why.
    Lost { why: String },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitStatus {
    Exited(u8),
    Signalled(u8),
}

/// Counters of a guest. A counter that nothing measures here is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meters {
    pub cpu_ms: u64,
    pub memory_bytes: Option<u64>,
    pub peak_memory_bytes: Option<u64>,
    /// Times the kernel ended a process for memory.
    pub oom_kills: u64,
    /// Times a fork met the process limit.
    pub fork_failures: u64,
    /// Bytes written to the layer and other disk-backed places that count against the disk limit.
    pub disk_bytes: Option<u64>,
    /// Whether memory-backed scratch, or a layer with a hard limit, has no room left.
    pub disk_full: bool,
}

/// Why a launch gave no guest: which step, and the error that the kernel gave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {why}")]
pub struct LaunchError {
    /// The step, as a phrase: `mount the workspace`.
    pub step: String,
    pub why: String,
    pub remedy: String,
}

/// Why a command did not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    #[error("there is no such command in the sandbox")]
    NotFound,
    #[error("the command can not be executed: {0}")]
    NotExecutable(std::io::ErrorKind),
    #[error("the working directory can not be entered: {0}")]
    WorkingDirectory(std::io::ErrorKind),
    #[error("the arguments and environment are larger than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    #[error("the guest is out of processes or memory")]
    Exhausted,
    #[error("the guest does not answer")]
    Silent,
}

/// Why a sandbox was not launched with its command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error(transparent)]
    Exec(#[from] ExecError),
}

/// Why something of a dead sandbox could not be removed.
#[derive(Debug, thiserror::Error)]
#[error("remove {what}")]
pub struct ReapError {
    pub what: String,
    #[source]
    pub source: std::io::Error,
}
