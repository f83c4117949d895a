//! Compiling a module in a sandbox of its own, with nothing but that module in it.

use crate::cache::Draft;
use crate::words::{ANSWER_BYTES, Answer, Order};
use fumehood_backend::{Event, GuestStdio, Instance, LaunchError, Plan, WaitStatus};
use fumehood_model::exec::ExecRequest;
use fumehood_model::quantity::show_bytes;
use fumehood_sys::memfd::{self, Purpose};
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::process;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// A module of many megabytes takes a slow host that long.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long a sandbox that was killed may take to be gone.
const DEATH_LIMIT: Duration = Duration::from_secs(10);
/// The most code that is taken.
const MOST_BYTES: u64 = 1 << 30;
const STEP_BYTES: usize = 64 << 10;
const SIGKILL: u8 = 9;
/// SIGHUP, SIGINT, SIGQUIT, SIGTERM: whoever waits for the run may be done waiting.
const SIGNALS: [i32; 4] = [1, 2, 3, 15];

/// What came out of the sandbox.
#[derive(Debug, Default)]
struct Heard {
    answer: Vec<u8>,
    status: Option<WaitStatus>,
    oom_kills: u64,
}

/// Why no answer was waited for.
#[derive(Debug)]
enum Broken {
    Io(io::Error),
    Late,
    TooLarge,
    Signalled,
}

impl From<io::Error> for Broken {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Compiles `module` into `draft`. Gives the least memory that it needs.
pub(crate) fn compile(
    plan: Box<dyn Plan>,
    module: &[u8],
    draft: &mut Draft,
    memory_bytes: u64,
) -> Result<u64, LaunchError> {
    let mut instance = plan.launch()?;
    let heard = hear(instance.as_mut(), module, draft);
    instance.kill();
    instance.wait_gone(DEATH_LIMIT);
    match heard {
        Ok(heard) => conclude(&heard, memory_bytes),
        Err(broken) => Err(explain(&broken)),
    }
}

fn hear(instance: &mut dyn Instance, module: &[u8], draft: &mut Draft) -> Result<Heard, Broken> {
    let mut input = File::from(memfd::sealed(c"module", module, Purpose::Read)?);
    input.rewind()?;
    let (code, stdout) = process::pipe(true)?;
    let (line, stderr) = process::pipe(true)?;
    let argv = Order::Compile.words();
    let request = ExecRequest { argv, env: Vec::new(), cwd: "/".into(), terminal: None };
    let stdio = GuestStdio::Pipes { stdin: input.into(), stdout, stderr };
    instance.exec(&request, stdio).map_err(io::Error::other)?;
    let signals = process::signal_descriptor(&SIGNALS)?;
    let (mut code, mut line) = (Some(File::from(code)), Some(File::from(line)));
    let (mut heard, deadline) = (Heard::default(), Instant::now() + PATIENCE);
    let mut taken = 0;
    while heard.status.is_none() || code.is_some() || line.is_some() {
        wait(instance, &signals, [code.as_ref(), line.as_ref()], deadline)?;
        drain(&mut code, |bytes| {
            taken += bytes.len() as u64;
            if taken > MOST_BYTES { Err(Broken::TooLarge) } else { Ok(draft.write_all(bytes)?) }
        })?;
        drain(&mut line, |bytes| {
            let room = ANSWER_BYTES.saturating_sub(heard.answer.len()).min(bytes.len());
            heard.answer.extend_from_slice(bytes.get(..room).unwrap_or_default());
            Ok(())
        })?;
        while let Some(event) = instance.next_event() {
            match event {
                Event::Ended { status, .. } => heard.status = Some(status),
                Event::Gone | Event::Lost { .. } => {
                    heard.status = heard.status.or(Some(WaitStatus::Signalled(SIGKILL)))
                }
                Event::NotStarted(error) => return Err(Broken::Io(io::Error::other(error))),
                Event::Started | Event::Terminal(_) | Event::Dialled { .. } | Event::Denied { .. } => {}
            }
        }
    }
    heard.oom_kills = instance.meters().oom_kills;
    Ok(heard)
}

/// Waits for a word, code, the end, or until it is enough.
fn wait(
    instance: &dyn Instance,
    signals: &OwnedFd,
    streams: [Option<&File>; 2],
    deadline: Instant,
) -> Result<(), Broken> {
    let mut set = vec![(signals.as_fd(), Interest::Read), (instance.events(), Interest::Read)];
    set.extend(streams.into_iter().flatten().map(|stream| (stream.as_fd(), Interest::Read)));
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(Broken::Late);
    }
    let found = poll::wait(&set, Some(left))?;
    // It is left for who comes after us to read.
    if found.first().is_some_and(|signals| signals.ready) { Err(Broken::Signalled) } else { Ok(()) }
}

/// Reads what there is; a stream at its end is let go of.
fn drain(stream: &mut Option<File>, mut take: impl FnMut(&[u8]) -> Result<(), Broken>) -> Result<(), Broken> {
    let mut buffer = vec![0; STEP_BYTES];
    while let Some(file) = stream {
        match file.read(&mut buffer) {
            Ok(0) => *stream = None,
            Ok(read) => take(buffer.get(..read).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn conclude(heard: &Heard, memory_bytes: u64) -> Result<u64, LaunchError> {
    let answer = match heard.status {
        Some(WaitStatus::Exited(0)) => Answer::parse(&heard.answer),
        Some(WaitStatus::Exited(_) | WaitStatus::Signalled(_)) | None => None,
    };
    let (why, remedy) = match answer {
        Some(Answer::Compiled { least_bytes }) => return Ok(least_bytes),
        Some(Answer::Invalid(why)) => {
            (format!("it is not valid here: {why}"), "build it for WASI preview 1 (`wasm32-wasip1`), without threads, components or garbage collection".to_owned())
        }
        Some(Answer::Import { module, name }) => (
            format!("it imports `{name}` from `{module}`, which is not offered"),
            "build it for WASI preview 1 (`wasm32-wasip1`); a module that wants a browser or another host can not run here".to_owned(),
        ),
        Some(Answer::NoStart) => (
            "it has no `_start`: it is a library, not a program".to_owned(),
            "build it as a command, which has a `main`".to_owned(),
        ),
        None if heard.oom_kills > 0 => (
            format!("compiling it took more than {}", show_bytes(memory_bytes)),
            "give it more with `--memory`".to_owned(),
        ),
        None => (
            format!("the compiler ended without an answer{}", status(heard.status)),
            "the module may be made to break compilers; nothing of it ran".to_owned(),
        ),
    };
    Err(LaunchError { step: "compile the module".to_owned(), why, remedy })
}

fn status(status: Option<WaitStatus>) -> String {
    match status {
        Some(WaitStatus::Exited(code)) => format!(" (code {code})"),
        Some(WaitStatus::Signalled(signal)) => {
            format!(" ({})", fumehood_model::ending::signal_name(signal))
        }
        None => String::new(),
    }
}

fn explain(broken: &Broken) -> LaunchError {
    let (why, remedy) = match broken {
        Broken::Io(error) => (error.to_string(), "`fumehood doctor` looks at what this host can hold"),
        Broken::Late => (
            format!("it was not done after {} s", PATIENCE.as_secs()),
            "build a smaller module, or give it more processors with `--cpus`",
        ),
        Broken::TooLarge => ("its code is larger than 1 GiB".to_owned(), "build a smaller module"),
        Broken::Signalled => ("a signal said to stop".to_owned(), "start it again"),
    };
    LaunchError { step: "compile the module".to_owned(), why, remedy: remedy.to_owned() }
}
