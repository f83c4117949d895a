//! A live machine, as the keeper sees it.
//!
//! What a command reads and writes goes through guestd's stream while it runs. When it has ended, and before the
//! keeper is told, what it left in `/out` and in its workspace's layer is brought out.

use crate::dialogue::{Dialogue, fresh};
use crate::jail::said;
use crate::machine::{Machine as Qemu, failed};
use crate::unpack::{Limits, Manner, Unpacker};
use crate::written;
use fumehood_backend::gateway::Gateway;
use fumehood_backend::{Event, ExecError, FreezeError, GuestStdio, Instance, LaunchError, Live, Meters};
use fumehood_backend_native::cgroup::Cgroup;
use fumehood_backend_native::identity::Identity;
use fumehood_backend_native::usage;
use fumehood_guest::GuestInstance;
use fumehood_guest::frame::{OUTPUT, Tree};
use fumehood_guest::host::Terms;
use fumehood_guest::instance::Machine;
use fumehood_model::exec::ExecRequest;
use fumehood_sys::dirfd::DirHandle;
use fumehood_sys::process;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a guest whose command was ended may take to say so and give its files, before the machine is ended.
const GRACE: Duration = Duration::from_secs(3);
/// Between the end of a stream and that of the process that held it.
const DYING: Duration = Duration::from_millis(200);
/// From going on to the guest's answer.
const STEP_LIMIT: Duration = Duration::from_secs(10);
/// `ENOENT`
const NO_ENTRY: i32 = 2;

/// Where something goes that a guest leaves.
#[derive(Debug)]
pub(crate) enum Output {
    /// What it wrote to `/out`: a folder that the collector reads.
    Collected { folder: DirHandle, limits: Limits },
    /// What its workspace's layer holds.
    Layer { upper: DirHandle, manner: Manner, limits: Limits },
}

/// A machine and what belongs to it on the host.
#[derive(Debug)]
pub(crate) struct Held {
    qemu: Qemu,
    belongings: Belongings,
    /// The most processor time that was seen.
    cpu_ms: u64,
    frozen: bool,
    output: Option<OwnedFd>,
}

/// What belongs to a machine on the host.
#[derive(Debug)]
pub(crate) struct Belongings {
    pub(crate) cgroup: Option<Cgroup>,
    /// Held: the kernel uid is this machine's while it lives.
    pub(crate) identity: Identity,
    pub(crate) gateway: Option<Gateway>,
    /// Where its second disk is, if it has one, and the key of its template: what is written down with it.
    pub(crate) folder: PathBuf,
    pub(crate) key: String,
}

/// A live sandbox of this level.
#[derive(Debug)]
pub(crate) struct MicroInstance {
    guest: GuestInstance<Held>,
    outputs: VecDeque<Output>,
    phase: Phase,
    /// Set when the machine is to be ended; until then the guest may give its files.
    doom: Option<Instant>,
    waiting: VecDeque<Event>,
    /// Why not all of what it left came out.
    unbrought: Option<String>,
}

#[derive(Debug)]
enum Phase {
    Running,
    /// The command has ended so; its files are on their way.
    Bringing {
        ended: Event,
        current: Option<(u32, Unpacker)>,
    },
    Over,
}

// === impl MicroInstance ===

impl MicroInstance {
    pub(crate) fn new(
        (qemu, dialogue): (Qemu, Dialogue),
        belongings: Belongings,
        outputs: Vec<Output>,
        terms: Terms,
    ) -> Result<Self, LaunchError> {
        let step = |error: io::Error| failed("watch the machine", &error);
        let stream = qemu.stream.try_clone().map_err(step)?;
        let (from, to): (OwnedFd, OwnedFd) = (stream.try_clone().map_err(step)?.into(), stream.into());
        let output = outputs.iter().find_map(|output| match output {
            Output::Collected { folder, .. } => folder.as_fd().try_clone_to_owned().ok(),
            Output::Layer { .. } => None,
        });
        let session = dialogue.into_session(&qemu.stream).map_err(step)?;
        let held = Held { qemu, belongings, cpu_ms: 0, frozen: false, output };
        let guest =
            GuestInstance::resume(session, (from, to), terms, held).map_err(|(error, mut held)| {
                held.kill();
                failed("go on with the guest", &error)
            })?;
        Ok(Self {
            guest,
            outputs: outputs.into(),
            phase: Phase::Running,
            doom: None,
            waiting: VecDeque::new(),
            unbrought: None,
        })
    }

    /// Has guestd stand still between two frames, then the machine, and writes it down.
    fn write_whole(&mut self, folder: &Path) -> Result<u64, FreezeError> {
        let failed = |error: io::Error| stuck("write the machine down", &error);
        if self.guest.machine().frozen {
            // One that stands still can not be asked.
            Live::thaw(self)?;
        }
        let host = self.guest.host();
        let asked = host.session().prepare().ok_or_else(|| failed(io::ErrorKind::ResourceBusy.into()))?;
        host.await_answer(asked, Instant::now() + STEP_LIMIT).map_err(failed)?;
        self.guest.freeze()?;
        let Held { qemu, belongings, .. } = self.guest.machine();
        let written =
            written::make(folder, (&belongings.key, &belongings.folder), |whole| qemu.save_whole(whole));
        written.map_err(failed)
    }

    /// Gives a guest that goes on the time, and randomness of its own: it may be a copy.
    fn step_clock(&mut self) -> Result<(), FreezeError> {
        let failed = |error: io::Error| stuck("give the guest the time and new randomness", &error);
        let (unix_ns, seed) = fresh().map_err(failed)?;
        let host = self.guest.host();
        let asked =
            host.session().thaw(unix_ns, &seed).ok_or_else(|| failed(io::ErrorKind::ResourceBusy.into()))?;
        host.await_answer(asked, Instant::now() + STEP_LIMIT).map(drop).map_err(failed)
    }

    /// QEMU asks to open a file for writing only when something is wrong with it.
    fn refuse_files(&mut self) {
        let listener = &self.guest.machine().qemu.listener;
        while let Some(call) = listener.next() {
            let _ = listener.refuse(call, NO_ENTRY);
        }
    }

    /// Goes on with bringing files out. Gives the command's end once all are here.
    fn bring(&mut self) -> Option<Event> {
        loop {
            let Phase::Bringing { current, .. } = &mut self.phase else { return None };
            match current {
                Some((channel, unpacker)) => {
                    let channel = *channel;
                    if let Err(error) = take(&mut self.guest, channel, unpacker)? {
                        self.unbrought.get_or_insert_with(|| error.to_string());
                    }
                    *current = None;
                }
                None => match self.outputs.pop_front() {
                    Some(output) => {
                        *current = begin(&mut self.guest, output);
                        if current.is_none() {
                            self.unbrought.get_or_insert_with(|| "the guest has too much to do".to_owned());
                        }
                    }
                    None => break,
                },
            }
        }
        match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Bringing { ended, .. } => match self.unbrought.take() {
                None => Some(ended),
                // Told first: with its end the command is over.
                Some(why) => {
                    self.waiting.push_back(ended);
                    Some(Event::Lost { why: format!("not all of its files came out: {why}") })
                }
            },
            other @ (Phase::Running | Phase::Over) => {
                self.phase = other;
                None
            }
        }
    }

    /// Ends a machine whose guest did not make use of its grace.
    fn watch_doom(&mut self) {
        if self.doom.is_some_and(|doom| Instant::now() >= doom) {
            self.guest.kill();
        }
    }
}

fn begin(guest: &mut GuestInstance<Held>, output: Output) -> Option<(u32, Unpacker)> {
    let (path, tree, unpacker): (&[u8], _, _) = match output {
        Output::Collected { folder, limits } => {
            let manner = Manner { owner: None, overlay: false };
            (b"/out", Tree::Whole, Unpacker::new(folder, manner, limits))
        }
        Output::Layer { upper, manner, limits } => {
            (b"/.machine/scratch/upper", Tree::Changes, Unpacker::new(upper, manner, limits))
        }
    };
    let channel = guest.host().session().get(path, tree)?;
    guest.host().pump();
    Some((channel, unpacker))
}

/// Takes what has come of a tree. `None`: there is more to come; otherwise whether all of it is here.
fn take(guest: &mut GuestInstance<Held>, channel: u32, unpacker: &mut Unpacker) -> Option<io::Result<()>> {
    loop {
        let host = guest.host();
        host.pump();
        let bytes = host.session().output(channel, OUTPUT).to_vec();
        if bytes.is_empty() {
            let answer = host.answer(channel);
            if answer.is_none() && host.is_live() {
                return None;
            }
            let cut = || Err(io::Error::new(io::ErrorKind::UnexpectedEof, "they were cut off"));
            return Some(match answer {
                Some(Err(error)) => Err(error),
                Some(Ok(_)) if unpacker.is_whole() => Ok(()),
                Some(Ok(_)) | None => cut(),
            });
        }
        host.session().took(channel, OUTPUT, bytes.len());
        if let Err(error) = unpacker.feed(&bytes) {
            host.session().release(channel);
            host.pump();
            return Some(Err(error));
        }
    }
}

impl Instance for MicroInstance {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<(), ExecError> {
        Instance::exec(&mut self.guest, request, stdio)
    }

    fn events(&self) -> BorrowedFd<'_> {
        self.guest.events()
    }

    fn next_event(&mut self) -> Option<Event> {
        self.refuse_files();
        self.watch_doom();
        if let Some(event) = self.waiting.pop_front() {
            return Some(event);
        }
        if matches!(self.phase, Phase::Bringing { .. }) {
            return self.bring();
        }
        let event = self.guest.next_event()?;
        if !matches!(event, Event::Ended { .. }) {
            return Some(event);
        }
        self.phase = Phase::Bringing { ended: event, current: None };
        self.bring()
    }

    fn carry(&mut self) -> Option<BorrowedFd<'_>> {
        self.guest.carry()
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        Instance::resize(&mut self.guest, rows, columns);
    }

    fn signal(&mut self, signal: i32) -> Result<(), ExecError> {
        Instance::signal(&mut self.guest, signal)
    }

    /// The guest is asked first, so that what was written can still come out.
    fn kill(&mut self) {
        if self.doom.is_some() || !matches!(self.phase, Phase::Running) || self.outputs.is_empty() {
            return self.guest.kill();
        }
        self.doom = Some(Instant::now() + GRACE);
        self.guest.host().kill_all();
    }

    fn wait_gone(&mut self, limit: Duration) -> bool {
        self.guest.kill();
        self.guest.wait_gone(limit)
    }

    fn meters(&mut self) -> Meters {
        self.watch_doom();
        self.guest.meters()
    }

    fn take_gateway(&mut self) -> Option<Gateway> {
        self.guest.take_gateway()
    }

    fn dial(&mut self, port: u16) -> Result<u32, ExecError> {
        self.guest.dial(port)
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.guest.output()
    }

    fn live(&mut self) -> Option<&mut dyn Live> {
        Some(self)
    }
}

impl Live for MicroInstance {
    fn exec(&mut self, request: &ExecRequest, stdio: GuestStdio) -> Result<u32, ExecError> {
        Live::exec(&mut self.guest, request, stdio)
    }

    fn next_numbered(&mut self) -> Option<(u32, Event)> {
        self.refuse_files();
        self.guest.next_numbered()
    }

    fn pid(&self, exec: u32) -> Option<u32> {
        self.guest.pid(exec)
    }

    fn signal(&mut self, exec: u32, signal: i32) -> Result<(), ExecError> {
        Live::signal(&mut self.guest, exec, signal)
    }

    fn resize(&mut self, exec: u32, rows: u16, columns: u16) -> bool {
        Live::resize(&mut self.guest, exec, rows, columns)
    }

    fn settle(&mut self) -> Result<(), FreezeError> {
        self.guest.settle()
    }

    fn hand(&mut self, words: &[OsString], stdio: GuestStdio) -> Option<Result<u32, ExecError>> {
        self.guest.hand(words, stdio)
    }

    fn write_down(&mut self, folder: &Path) -> Option<Result<u64, FreezeError>> {
        Some(self.write_whole(folder))
    }

    fn freeze(&mut self) -> Result<(), FreezeError> {
        self.guest.freeze()
    }

    /// Its clock stood still too, and is stepped before anybody hears of it.
    fn thaw(&mut self) -> Result<(), FreezeError> {
        self.guest.thaw()?;
        self.step_clock()
    }

    fn push_out(&mut self) -> u64 {
        self.guest.push_out()
    }

    fn cpu_ms(&mut self) -> u64 {
        Live::cpu_ms(&mut self.guest)
    }

    fn root(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn owner(&self) -> (u32, u32) {
        self.guest.owner()
    }
}

fn stuck(what: &str, error: &io::Error) -> FreezeError {
    FreezeError {
        why: format!("QEMU did not {what}: {error}"),
        remedy: "stop this sandbox and create another".to_owned(),
        unsupported: false,
    }
}

impl Machine for Held {
    fn gone(&self) -> Option<BorrowedFd<'_>> {
        Some(self.qemu.spawned.pidfd.as_fd())
    }

    fn last_words(&mut self) -> Option<String> {
        let ended = process::wait_gone(self.qemu.spawned.pidfd.as_fd(), DYING).unwrap_or(false);
        let how = if ended { process::try_reap(&self.qemu.spawned.pidfd) } else { None };
        let how = match how {
            Some(process::Ended::Exited(code)) => format!("QEMU ended with exit code {code}"),
            Some(process::Ended::Signalled(signal)) => format!("QEMU was ended by signal {signal}"),
            None => "QEMU closed the stream".to_owned(),
        };
        let words = said(&self.qemu.words);
        Some(if words.is_empty() { how } else { format!("{how}: {words}") })
    }

    fn kill(&mut self) {
        let _ = process::send_signal(self.qemu.spawned.pidfd.as_fd(), 9);
    }

    fn wait_gone(&mut self, limit: Duration) -> bool {
        process::wait_gone(self.qemu.spawned.pidfd.as_fd(), limit).unwrap_or(false)
    }

    fn meters(&mut self) -> Meters {
        match &self.belongings.cgroup {
            None => Meters::default(),
            Some(cgroup) => {
                let counters = cgroup.counters();
                Meters {
                    memory_bytes: counters.memory_bytes,
                    peak_memory_bytes: counters.peak_bytes,
                    oom_kills: counters.oom_kills,
                    ..Meters::default()
                }
            }
        }
    }

    fn freeze(&mut self) -> Result<(), FreezeError> {
        self.qemu.pause().map_err(|error| stuck("stop the machine", &error))?;
        self.frozen = true;
        Ok(())
    }

    fn thaw(&mut self) -> Result<(), FreezeError> {
        self.qemu.go_on().map_err(|error| stuck("let the machine go on", &error))?;
        self.frozen = false;
        Ok(())
    }

    fn push_out(&mut self) -> u64 {
        self.belongings.cgroup.as_ref().map_or(0, Cgroup::push_out)
    }

    fn cpu_ms(&mut self) -> u64 {
        let counted = self.belongings.cgroup.as_ref().and_then(Cgroup::cpu_ms);
        self.cpu_ms =
            self.cpu_ms.max(counted.unwrap_or_else(|| usage::of_tree(self.qemu.spawned.pid).cpu_ms));
        self.cpu_ms
    }

    fn owner(&self) -> (u32, u32) {
        self.belongings.identity.kernel
    }

    fn program(&self) -> &'static str {
        "/init"
    }

    fn take_gateway(&mut self) -> Option<Gateway> {
        self.belongings.gateway.take()
    }

    fn output(&self) -> Option<BorrowedFd<'_>> {
        self.output.as_ref().map(|folder| folder.as_fd())
    }
}
