//! One command, from its strings to its `execve`.
//!
//! The process is started in borrowed memory (as `vfork` does), so a failure on its side of the split
//! is read straight out of the shared [`Launch`] and nothing is copied however large `init` is.

use crate::call::{self, EACCES, EINVAL, ENAMETOOLONG, ENOENT, ENOEXEC, ENOTDIR, Errno, Fd, Mapping, Open};
use crate::descriptors::Descriptors;
use crate::person::Person;
use crate::wire::{Block, Exec, Size, Stage, block_is_whole};
use core::convert::Infallible;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Deep enough for the few frames between the split and `execve`, with a path on them.
const STACK_BYTES: usize = 32 * 1024;
/// PATH_MAX: the kernel takes no longer path.
const PATH_BYTES: usize = 4096;
/// Where commands are looked for when the exec's environment does not say.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// F_SEAL_SHRINK and F_SEAL_WRITE: what makes a mapped file as good as memory of our own.
const STEADY: u64 = 0x2 | 0x8;
/// Addresses for which no memory is mapped.
const FEW: usize = 192;
/// What an unstarted process exits with. Nobody sees it: the cause is in the [`Launch`].
const UNSTARTED: u8 = 127;

type Failure = (Stage, Errno);

/// The stack of processes that have not executed yet. One at a time, since this process stands still.
#[repr(C, align(16))]
struct Stack([u8; STACK_BYTES]);

static mut STACK: Stack = Stack([0; STACK_BYTES]);

/// Where commands start from; there is one.
pub(crate) struct Ground {
    stack_top: *mut u8,
    /// Whether the PID namespace is the sandbox's own.
    alone: bool,
}

/// A command whose `execve` is done.
pub(crate) struct Launched {
    pub(crate) pid: u32,
    /// The keeper's side of its terminal.
    pub(crate) terminal: Option<Fd>,
}

/// The descriptors that become 0, 1 and 2.
enum Streams {
    Pipes([Fd; 3]),
    Terminal { master: Fd, peer: Fd },
}

/// The strings of an exec, found.
struct Strings<'a> {
    /// Each of these ends in a zero.
    cwd: &'a [u8],
    command: &'a [u8],
    /// Without an end mark.
    path: &'a [u8],
    /// A spare place, the arguments, null, the environment, null.
    pointers: Pointers,
}

/// Room for addresses: of most commands it is here, as a mapping made and given back takes two calls.
enum Pointers {
    Few([*const u8; FEW]),
    Many(Mapping),
}

/// What the started process works from.
struct Launch<'a> {
    cwd: &'a [u8],
    command: &'a [u8],
    path: &'a [u8],
    /// A spare place, then the arguments: the shell of a script without an interpreter line goes in front.
    with_spare: *mut *const u8,
    env: *const *const u8,
    streams: [i32; 3],
    terminal: bool,
    alone: bool,
    person: &'a Person<'a>,
    /// Written by the process if it fails: the stage's number, then the error.
    stage: AtomicU8,
    errno: AtomicU32,
}

// === impl Ground ===

impl Ground {
    /// To be called once: two grounds would share the stack.
    pub(crate) const fn new(alone: bool) -> Self {
        Self { stack_top: (&raw mut STACK).wrapping_add(1).cast(), alone }
    }

    /// Starts one command. Every descriptor that came with it is closed on return.
    pub(crate) fn launch(
        &mut self,
        exec: &Exec<'_>,
        mut attached: Descriptors,
        person: &Person<'_>,
    ) -> Result<Launched, Failure> {
        let spawn = |errno| (Stage::Spawn, errno);
        let mapping;
        let block = match exec.block {
            Block::Inline(bytes) => bytes,
            Block::Attached { length } => {
                mapping = map_block(&attached.next().ok_or(spawn(EINVAL))?, length).map_err(spawn)?;
                mapping.bytes()
            }
        };
        if !block_is_whole(block, exec.argc, exec.envc) {
            return Err(spawn(EINVAL));
        }
        let mut strings = Strings::find(block, exec.argc as usize, exec.envc as usize).map_err(spawn)?;
        let streams = Streams::prepare(exec.terminal, &mut attached)?;
        let with_spare = strings.pointers.places().as_mut_ptr();
        let launch = Launch {
            cwd: strings.cwd,
            command: strings.command,
            path: strings.path,
            with_spare,
            env: with_spare.wrapping_add(exec.argc as usize + 2),
            streams: streams.numbers(),
            terminal: exec.terminal.is_some(),
            alone: self.alone,
            person,
            stage: AtomicU8::new(0),
            errno: AtomicU32::new(0),
        };
        // SAFETY: the stack is used by no one else (one `Ground`, borrowed here), and `launch` outlives the
        // call because this process stands still until the other has let go of the memory.
        let pid = unsafe { call::spawn(self.stack_top, enter, &raw const launch) }.map_err(spawn)?;
        // No stage means that it executed, or that a signal came first: then its end will tell.
        if let Some(stage) = Stage::parse(launch.stage.load(Ordering::Relaxed)) {
            let _ = call::reap(Some(pid), call::Wait::Block);
            return Err((stage, Errno(launch.errno.load(Ordering::Relaxed))));
        }
        Ok(Launched { pid, terminal: streams.master() })
    }
}

/// The first function of the started process.
///
/// # Safety
/// `launch` is valid until the process executes or exits (see [`Ground::launch`]).
unsafe extern "C" fn enter(launch: *const Launch<'_>) -> ! {
    // SAFETY: the caller vouches for it.
    let launch = unsafe { &*launch };
    let Err((stage, errno)) = launch.run();
    launch.errno.store(errno.0, Ordering::Relaxed);
    launch.stage.store(stage.number(), Ordering::Relaxed);
    call::exit(UNSTARTED)
}

// === impl Launch ===

impl Launch<'_> {
    fn run(&self) -> Result<Infallible, Failure> {
        let spawn = |errno| (Stage::Spawn, errno);
        call::new_session().map_err(spawn)?;
        if self.terminal {
            call::take_terminal(self.streams[0]).map_err(|errno| (Stage::Terminal, errno))?;
        } else if !self.alone {
            // No terminal can be opened here. Where the keeper has made one it is all three streams; a pipe is none.
            let _ = call::take_terminal(self.streams[0]);
        }
        // The sources are above 3 because 0 to 3 were open from the start, so no copy hits a source.
        for (to, from) in (0..).zip(self.streams) {
            call::duplicate(from, to).map_err(spawn)?;
        }
        call::close_from(3).map_err(spawn)?;
        if !self.alone {
            // One that ends this process would be free of it.
            call::end_with_parent().map_err(spawn)?;
            call::stand_apart().map_err(spawn)?;
        }
        call::block_signals(0).map_err(spawn)?;
        self.person.become_it().map_err(spawn)?;
        // SAFETY: `cwd` is a string of the block, which ends in a zero.
        unsafe { call::change_directory(self.cwd.as_ptr()) }
            .map_err(|errno| (Stage::WorkingDirectory, errno))?;
        if self.command.contains(&b'/') { self.execute_there() } else { self.execute_found() }
    }

    /// Executes a command that is named by its path.
    fn execute_there(&self) -> Result<Infallible, Failure> {
        let errno = self.execute(self.command.as_ptr());
        let absent = matches!(errno, ENOENT | ENOTDIR) && !is_there(self.command.as_ptr());
        Err((if absent { Stage::FindCommand } else { Stage::Execute }, errno))
    }

    /// Executes the first command of that name along the path that can be executed.
    fn execute_found(&self) -> Result<Infallible, Failure> {
        let mut buffer = [0; PATH_BYTES];
        let mut denied = false;
        for folder in self.path.split(|byte| *byte == b':') {
            let Some(candidate) = join(&mut buffer, folder, self.command) else { continue };
            match self.execute(candidate) {
                ENOENT | ENOTDIR | ENAMETOOLONG => {}
                // A folder that may not be entered is passed over; a file that may not be executed is not.
                EACCES => denied |= is_there(candidate),
                errno => return Err((Stage::Execute, errno)),
            }
        }
        if denied {
            return Err((Stage::Execute, EACCES));
        }
        // A file that is there and yet "not found" lacks its interpreter. Looked for only now, because
        // most folders of a path do not hold the command and each look is a call.
        for folder in self.path.split(|byte| *byte == b':') {
            if join(&mut buffer, folder, self.command).is_some_and(is_there) {
                return Err((Stage::Execute, ENOENT));
            }
        }
        Err((Stage::FindCommand, ENOENT))
    }

    /// Becomes the program at `path`, or the shell if it is a script that does not name its interpreter.
    fn execute(&self, path: *const u8) -> Errno {
        let argv = self.with_spare.wrapping_add(1);
        // SAFETY: `path` ends in a zero (see the callers); both arrays are of such strings and end in a
        // null (`Strings::find`).
        let errno = unsafe { call::execute(path, argv, self.env) };
        if errno != ENOEXEC || self.command.len() <= 1 {
            return errno;
        }
        let shell = c"/bin/sh".as_ptr().cast::<u8>();
        // SAFETY: the spare place and the first argument are within the array, which only this process uses now.
        unsafe { self.with_spare.write(shell) };
        // SAFETY: as above: `argc` is at least one.
        let first = unsafe { argv.replace(path) };
        // SAFETY: as for the first attempt; the array begins one place earlier.
        let _ = unsafe { call::execute(shell, self.with_spare, self.env) };
        // SAFETY: puts back what was there, for the next attempt along the path.
        unsafe { argv.write(first) };
        ENOEXEC
    }
}

// === impl Streams ===

impl Streams {
    fn prepare(terminal: Option<Size>, attached: &mut Descriptors) -> Result<Self, Failure> {
        let Some(size) = terminal else {
            let mut next = || attached.next().ok_or((Stage::Spawn, EINVAL));
            return Ok(Self::Pipes([next()?, next()?, next()?]));
        };
        Self::terminal(size).map_err(|errno| (Stage::Terminal, errno))
    }

    fn terminal(size: Size) -> Result<Self, Errno> {
        let master = call::open(c"/dev/ptmx".as_ptr().cast(), Open::Device)?;
        call::unlock_terminal(&master)?;
        call::resize_terminal(&master, size.rows, size.columns)?;
        let peer = call::terminal_peer(&master)?;
        Ok(Self::Terminal { master, peer })
    }

    fn numbers(&self) -> [i32; 3] {
        match self {
            Self::Pipes([stdin, stdout, stderr]) => [stdin.number(), stdout.number(), stderr.number()],
            Self::Terminal { peer, .. } => [peer.number(); 3],
        }
    }

    fn master(self) -> Option<Fd> {
        match self {
            Self::Pipes(_) => None,
            Self::Terminal { master, .. } => Some(master),
        }
    }
}

// === impl Strings ===

impl<'a> Strings<'a> {
    /// Points at every string of a whole block.
    fn find(block: &'a [u8], argc: usize, envc: usize) -> Result<Self, Errno> {
        let mut pointers = Pointers::new(argc + envc + 3)?;
        let mut strings = block.split_inclusive(|byte| *byte == 0);
        let cwd = strings.next().ok_or(EINVAL)?;
        let mut path = DEFAULT_PATH;
        let mut command = None;
        let places = pointers.places();
        for (place, string) in places.iter_mut().skip(1).zip(strings.by_ref().take(argc)) {
            command = command.or(Some(string));
            *place = string.as_ptr();
        }
        for (place, string) in places.iter_mut().skip(argc + 2).zip(strings.take(envc)) {
            if let Some(value) = string.strip_prefix(b"PATH=") {
                path = value.strip_suffix(&[0]).unwrap_or(value);
            }
            *place = string.as_ptr();
        }
        Ok(Self { cwd, command: command.ok_or(EINVAL)?, path, pointers })
    }
}

// === impl Pointers ===

impl Pointers {
    /// All of them null.
    fn new(count: usize) -> Result<Self, Errno> {
        if count <= FEW {
            return Ok(Self::Few([core::ptr::null(); FEW]));
        }
        Mapping::anonymous(count * size_of::<*const u8>()).map(Self::Many)
    }

    fn places(&mut self) -> &mut [*const u8] {
        match self {
            Self::Few(places) => places,
            Self::Many(mapping) => mapping.pointers(),
        }
    }
}

/// Maps a block that came as a file, once it is sure not to change or shrink.
fn map_block(file: &Fd, length: u32) -> Result<Mapping, Errno> {
    if call::seals(file)? & STEADY != STEADY || call::size(file)? < u64::from(length) {
        return Err(EINVAL);
    }
    Mapping::of_file(file, length as usize)
}

/// Whether something is at a path, which ends in a zero.
fn is_there(path: *const u8) -> bool {
    call::open(path, Open::Look).is_ok()
}

/// `folder/command`, or the bare command for the empty folder, which means the current one.
fn join(buffer: &mut [u8; PATH_BYTES], folder: &[u8], command: &[u8]) -> Option<*const u8> {
    // An empty command would name the folder itself.
    if command.len() <= 1 {
        return None;
    }
    let slash: &[u8] = if folder.is_empty() { b"" } else { b"/" };
    let mut room = buffer.as_mut_slice();
    for part in [folder, slash, command] {
        let (here, rest) = room.split_at_mut_checked(part.len())?;
        here.copy_from_slice(part);
        room = rest;
    }
    Some(buffer.as_ptr())
}
