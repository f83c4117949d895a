//! `fumehood exec`: one more command in a living sandbox, as if it ran here.

use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::{after, host, screen, usage};
use clap::Parser;
use fumehood_keep::client::{Connection, Frame};
use fumehood_keep::frame::Kind;
use fumehood_keep::wire::{Ask, Exec, Failure, FailureCode, Said, WARM_PLACE};
use fumehood_model::code::{LOST, NOT_EXECUTABLE, NOT_FOUND, NOT_STARTED, exit_code};
use fumehood_model::quantity;
use fumehood_sys::poll::{self, Interest};
use fumehood_sys::{process, terminal};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, IsTerminal as _, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitCode;

const SIGWINCH: i32 = 28;
/// Passed on to the command: the caller wants it, not us, to end.
const PASSED: [i32; 5] = [1, 2, 3, 15, SIGWINCH];
/// What is read of our own input at once.
const INPUT_BYTES: usize = 64 << 10;

/// Run a command in a living sandbox.
///
/// Its output comes here, its input is ours, and its exit code becomes ours. At a terminal it gets one of its own.
#[derive(Debug, Parser)]
#[command(max_term_width = 100, override_usage = "fumehood exec [FLAGS] ID [--] COMMAND [ARGUMENTS]", after_help = EXAMPLES)]
struct Args {
    /// Start it and leave: its number is printed, `fumehood logs ID NUMBER` shows what it says
    #[arg(long, short = 'd', conflicts_with_all = ["tty"])]
    detach: bool,
    /// Give it no input
    #[arg(long)]
    no_stdin: bool,
    /// Give it a terminal, even where standard input or output is none
    #[arg(long, short = 't', overrides_with = "no_tty")]
    tty: bool,
    /// Give it no terminal
    #[arg(long, overrides_with = "tty")]
    no_tty: bool,
    /// Go on with the interpreter that was prepared (`fumehood create --warm`): the command is what follows `python3`
    #[arg(long)]
    warm: bool,
    /// Set a variable. May be repeated
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Start in this folder of the sandbox [default: /workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// End it after this time: `90s`, `5m`
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    timeout: Option<String>,
    /// A name for it, shown by `fumehood ls ID`
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// The sandbox, or the beginning of its id
    #[arg(value_name = "ID")]
    id: String,
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "warm")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "Examples:
  fumehood exec 1m8n -- python3 -c 'print(6 * 7)'
  fumehood exec 1m8n -- sh                      a shell, at a terminal
  tar c src | fumehood exec 1m8n -- tar x       input goes in
  fumehood exec --detach 1m8n -- npm run dev    goes on without us
  fumehood exec --warm 1m8n -- -c 'print(pd)'   begins where a preparation ended

Exit codes: the command's own; 122 lost, 124 timed out, 125 not started, 126 not executable, 127 not
found, 137 out of memory, 128+n ended by signal n.";

pub(crate) fn main(words: Vec<OsString>) -> ExitCode {
    let args: Args = match usage::parse_or_tell("exec", words) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match attempt(&args) {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            refusal.tell();
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn attempt(args: &Args) -> Result<u8, Refusal> {
    let found = sandboxes::pick(&args.id)?;
    let at_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let wants_terminal = (at_terminal || args.tty) && !args.no_tty && !args.detach;
    let size = wants_terminal.then(host::window_size);
    let exec = Exec {
        argv: argv(args)?,
        env: args.env.iter().map(|pair| variable(pair)).collect::<Result<_, _>>()?,
        cwd: args.cwd.clone(),
        terminal: size.map(|size| (size.rows, size.columns)),
        stdin: !args.no_stdin && !args.detach,
        timeout_ms: args.timeout.as_deref().map(timeout).transpose()?,
        tag: args.tag.clone(),
        actor: format!("uid:{}", fumehood_sys::host::euid()),
    };
    let takes_input = exec.stdin;
    let signals = process::signal_descriptor(&PASSED)
        .map_err(|error| Refusal::new("take signals", error.to_string(), ""))?;
    let mut connection = found.ask(&Ask::Exec(exec))?;
    let number = match connection.next().map_err(|error| found.unreached(&error))? {
        Some(Frame::Said(Said::Started { exec, .. })) => exec,
        Some(Frame::Said(Said::Failed(failure))) => return Ok(refused(&found, failure, args.warm)),
        _ => return Err(found.unreached(&fumehood_keep::client::CallError::Closed)),
    };
    if args.detach {
        screen::say(&number.to_string());
        return Ok(0);
    }
    Follow { found: &found, connection, number, signals, takes_input, terminal: wants_terminal }.run()
}

fn argv(args: &Args) -> Result<Vec<String>, Refusal> {
    let words = args.command.iter().map(|word| text(word));
    args.warm.then(|| Ok(WARM_PLACE.to_owned())).into_iter().chain(words).collect()
}

fn refused(found: &Found, failure: Failure, warm: bool) -> u8 {
    if warm && failure.code == FailureCode::NotFound {
        Refusal::new(
            "go on with the prepared interpreter",
            format!("`{}` has none", found.id),
            "make the sandbox with `fumehood create --warm CODE`",
        )
        .tell();
        return NOT_FOUND;
    }
    let code = match (failure.code, failure.message.as_str()) {
        (FailureCode::NotFound, "find the command") => NOT_FOUND,
        (FailureCode::Denied, "execute the command") => NOT_EXECUTABLE,
        _ => NOT_STARTED,
    };
    found.failed(failure).tell();
    code
}

/// A command that is followed from here.
struct Follow<'a> {
    found: &'a Found,
    connection: Connection,
    number: u32,
    signals: OwnedFd,
    takes_input: bool,
    terminal: bool,
}

// === impl Follow ===

impl Follow<'_> {
    fn run(mut self) -> Result<u8, Refusal> {
        let raw = self.terminal.then(|| terminal::RawMode::enter(terminal::standard(0)).ok()).flatten();
        loop {
            let own = terminal::standard(0);
            let mut set =
                vec![(self.connection.as_fd(), Interest::Read), (self.signals.as_fd(), Interest::Read)];
            set.extend(self.takes_input.then_some((own, Interest::Read)));
            let ready = poll::wait(&set, None)
                .map_err(|error| Refusal::new("wait for the command", error.to_string(), ""))?;
            let is = |place: usize| ready.get(place).is_some_and(|waited| waited.ready);
            if is(0)
                && let Some(code) = self.hear()?
            {
                drop(raw);
                return Ok(code);
            }
            if is(1) {
                self.pass_signals();
            }
            if is(2) {
                self.pass_input();
            }
        }
    }

    /// One frame; the exit code, if it was the last.
    fn hear(&mut self) -> Result<Option<u8>, Refusal> {
        match self.connection.next().map_err(|error| self.found.unreached(&error))? {
            Some(Frame::Bytes(kind, bytes)) => {
                let written = if kind == Kind::Stderr {
                    std::io::stderr().write_all(&bytes)
                } else {
                    let mut out = std::io::stdout().lock();
                    out.write_all(&bytes).and_then(|()| out.flush())
                };
                // Nobody reads what it says: as for a command here, that ends it.
                if written.is_err_and(|error| error.kind() == ErrorKind::BrokenPipe) {
                    let _ = self.found.call(&Ask::Signal { exec: self.number, signal: 13 });
                    return Ok(Some(141));
                }
                Ok(None)
            }
            Some(Frame::Said(Said::Ended { ending, .. })) => {
                if let Some(line) = after::ending(&ending, true) {
                    screen::note(&line);
                }
                Ok(Some(exit_code(&ending)))
            }
            Some(Frame::Said(Said::Failed(failure))) => {
                self.found.failed(failure).tell();
                Ok(Some(LOST))
            }
            Some(Frame::Said(_)) => Ok(None),
            None => {
                screen::note("lost: the sandbox's keeper is gone");
                Ok(Some(LOST))
            }
        }
    }

    fn pass_signals(&self) {
        while let Some(signal) = process::read_signal(self.signals.as_fd()) {
            let exec = self.number;
            let ask = if signal == SIGWINCH {
                let size = host::window_size();
                Ask::Resize { exec, rows: size.rows, columns: size.columns }
            } else {
                Ask::Signal { exec, signal: u8::try_from(signal).unwrap_or(15) }
            };
            // One that has ended needs neither.
            let _ = self.found.call(&ask);
        }
    }

    fn pass_input(&mut self) {
        let mut bytes = vec![0; INPUT_BYTES];
        let sent = match std::io::stdin().read(&mut bytes) {
            Ok(0) | Err(_) => {
                self.takes_input = false;
                self.connection.send(Kind::InputEnd, &[])
            }
            Ok(count) => self.connection.send(Kind::Input, bytes.get(..count).unwrap_or_default()),
        };
        if sent.is_err() {
            self.takes_input = false;
        }
    }
}

fn text(word: &OsStr) -> Result<String, Refusal> {
    word.to_str().map(str::to_owned).ok_or_else(|| {
        Refusal::new(
            "read the arguments",
            "an argument is not UTF-8 text",
            "pass such bytes through a file or standard input",
        )
    })
}

fn variable(pair: &str) -> Result<(String, String), Refusal> {
    let parts = pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    parts.ok_or_else(|| {
        Refusal::new("read the arguments", format!("`--env {pair}` sets nothing"), "write `--env NAME=VALUE`")
    })
}

fn timeout(typed: &str) -> Result<u64, Refusal> {
    let time = quantity::duration(typed).map_err(|error| {
        Refusal::new(
            "read the arguments",
            format!("`--timeout {typed}`: {error}"),
            "write a time, as in `--timeout 90s`",
        )
    })?;
    Ok(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
