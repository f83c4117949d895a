//! The prepared interpreter of a living sandbox: made before anybody is told of the sandbox, kept as a file beside its
//! layer, shown inside where nobody can write it.
//!
//! It is prepared by a command like any other, so under every limit, and in the record; the file that it writes is copied
//! before it is shown, as whoever wrote it may still hold it. Forks and snapshots have the same file under another name.

use super::command::{Command, Input, Stream};
use super::keeper::Keeper;
use super::snapshot::WARM;
use super::verbs::{Streams, outward};
use fumehood_backend::GuestStdio;
use fumehood_keep::wire::{Exec, Warm};
use fumehood_model::ending::Ending;
use fumehood_model::text::shown;
use fumehood_sys::dirfd::{DirHandle, FileHandle, Means, RenameMode};
use fumehood_sys::process;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const STEP: &str = "prepare the interpreter";
/// A preparation that takes longer is none.
const LIMIT_MS: u64 = 10 * 60 * 1000;
/// The name of the file that is written from inside, for the moment that it has one.
const UNFINISHED: &str = "warm.new";
/// The last of what a preparation said is shown: of a traceback, where and what.
const SHOWN_LINES: usize = 3;
/// Whoever is in the sandbox may execute it.
const MODE: u32 = 0o555;

impl Keeper<'_> {
    /// Prepares it, and sees that a process can go on with it.
    pub(crate) fn prepare(&mut self, warm: &Warm) -> Result<(), Ending> {
        let failed = |error: io::Error| unprepared(error.to_string());
        let folder = DirHandle::open_no_link(&self.life.folder).map_err(failed)?;
        let name = OsStr::new(UNFINISHED);
        let output = folder.create_new(name, 0o600).map_err(failed)?;
        let (written, _) = folder.read(Path::new(name)).map_err(failed)?;
        folder.remove_file(name).map_err(failed)?;
        let interpreter = warm.interpreter.as_deref().unwrap_or("python3");
        self.see_through(fumehood_warm::command(interpreter, &warm.prepare), Some(output.into()))?;
        publish(&folder, &written).map_err(failed)?;
        let first = [fumehood_warm::PLACE, "-c", ""].map(str::to_owned).to_vec();
        self.see_through(first, None)
    }

    /// Runs a command of ours to its end, which must be a good one.
    fn see_through(&mut self, argv: Vec<String>, output: Option<OwnedFd>) -> Result<(), Ending> {
        let failed = |error: io::Error| unprepared(error.to_string());
        let timeout_ms = Some(LIMIT_MS);
        let asked = Exec { argv, timeout_ms, actor: "keeper".to_owned(), ..Exec::default() };
        let streams = streams(output).map_err(failed)?;
        let (exec, began) = self.begin(asked, streams).map_err(|failure| unprepared(failure.cause))?;
        began.map_err(|error| unprepared(error.to_string()))?;
        while self.over.is_none() && self.commands.get(&exec).is_some_and(|one| !one.is_settled()) {
            self.round().map_err(failed)?;
        }
        if let Some(over) = &self.over {
            return Err(unprepared(over.why.clone()));
        }
        let Some(command) = self.commands.remove(&exec) else {
            return Err(unprepared("it is gone".to_owned()));
        };
        match command.ended.as_ref().map(|ended| &ended.ending) {
            Some(Ending::Exited { code: 0 }) => Ok(()),
            Some(ending) => Err(unprepared(reason(ending, &command))),
            None => Err(unprepared("it did not end".to_owned())),
        }
    }
}

/// Gives the file of one folder to another as well: under both names it is the same.
pub(crate) fn lend(from: &DirHandle, to: &DirHandle) -> io::Result<()> {
    let name = OsStr::new(fumehood_warm::NAME);
    match from.hard_link(name, to, name) {
        Ok(()) => Ok(()),
        // On another disk, or too many have it.
        Err(_) => {
            let (file, stat) = from.read(Path::new(name))?;
            let made = to.create_new(name, 0o600)?;
            file.clone_to(&made, stat.size, &mut Means::default())?;
            made.set_mode(MODE)
        }
    }
}

/// Which start of the host this is: what the kernel puts into a process is another one after the next.
pub(crate) fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn publish(folder: &DirHandle, written: &FileHandle) -> io::Result<()> {
    let warm = folder.sub(Path::new(WARM))?;
    let (name, unfinished) = (OsStr::new(fumehood_warm::NAME), OsStr::new(UNFINISHED));
    let made = warm.create_new(unfinished, 0o600)?;
    let bytes = written.stat()?.size;
    written.clone_to(&made, bytes, &mut Means::default())?;
    made.set_mode(MODE)?;
    // Nothing that runs inside has this one open for writing.
    File::from(OwnedFd::from(made)).write_all_at(fumehood_warm::RESTORER, 0)?;
    warm.rename(unfinished, &warm, name, RenameMode::Replace)
}

/// No input, output to a file or to nowhere, and what it complains of.
fn streams(output: Option<OwnedFd>) -> io::Result<Streams> {
    let (stdin, feed) = process::pipe(false)?;
    drop(feed);
    let mut input = Input::default();
    input.close();
    let (stream, stdout) = match output {
        Some(file) => (Stream::default(), file),
        None => outward().map(|(read, write)| (Stream::new(read), write))?,
    };
    let (from_error, stderr) = outward()?;
    let stdio = GuestStdio::Pipes { stdin, stdout, stderr };
    Ok((stdio, input, stream, Stream::new(from_error)))
}

fn unprepared(why: String) -> Ending {
    Ending::NotStarted {
        step: STEP.to_owned(),
        why,
        remedy: "run the same code by `python3 -c` in a sandbox without `--warm`, and correct it there"
            .to_owned(),
    }
}

/// The last of what it said, or how it ended.
fn reason(ending: &Ending, command: &Command) -> String {
    let ring = &command.error.ring;
    let said = String::from_utf8_lossy(ring.at(ring.start()));
    let last: Vec<&str> = said.trim().lines().rev().take(SHOWN_LINES).collect();
    let text: Vec<String> = last.iter().rev().map(|line| shown(line.trim())).collect();
    let text = text.join("; ");
    let ended = match ending {
        Ending::Exited { code } => format!("it ended with the code {code}"),
        Ending::Signalled { name, .. } | Ending::Killed { name, .. } => format!("it was ended by {name}"),
        Ending::TimedOut { .. }
        | Ending::OutOfMemory { .. }
        | Ending::Halted
        | Ending::LimitPassed { .. }
        | Ending::NotStarted { .. }
        | Ending::Lost => format!("it ended: {}", ending.cause().replace('_', " ")),
    };
    if said.trim().is_empty() { ended } else { format!("{ended}: {text}") }
}
