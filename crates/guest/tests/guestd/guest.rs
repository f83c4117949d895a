//! A running `guestd`, and what the tests ask of it.

use fumehood_backend::{Event, ExecError, GuestStdio, WaitStatus};
use fumehood_guest::host::{Host, Terms};
use fumehood_guest::image;
use fumehood_model::exec::ExecRequest;
use fumehood_sys::poll::{self, Interest};
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// PID 1 of a namespace, and the host's end of its stream.
pub(crate) struct Guest {
    pub(crate) host: Host,
    pub(crate) process: Process,
}

/// The outer process of a guest; ended with everything inside when dropped.
pub(crate) struct Process(pub(crate) Child, Option<tempfile::TempDir>);

/// The keeper's ends of a command's streams.
pub(crate) struct Streams {
    pub(crate) stdin: PipeWriter,
    pub(crate) stdout: PipeReader,
    pub(crate) stderr: PipeReader,
}

/// What became of a command that was waited for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) status: WaitStatus,
    pub(crate) leftovers: u32,
    pub(crate) stdout: String,
}

// === impl Guest ===

impl Guest {
    pub(crate) fn new() -> Self {
        Self::on(Terms::default())
    }

    pub(crate) fn on(terms: Terms) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let process = start(&theirs.into());
        let mut host = over(ours, terms);
        host.await_ready(PATIENCE).unwrap();
        Self { host, process }
    }

    /// Starts a command on fresh pipes.
    pub(crate) fn exec(&mut self, request: &ExecRequest, once: bool) -> (u32, Streams) {
        let (guest, streams) = pipes();
        (self.host.exec(request, guest, once).unwrap(), streams)
    }

    /// The next event; fails the test if none comes.
    pub(crate) fn event(&mut self) -> (u32, Event) {
        event(&mut self.host)
    }

    /// Waits until the host has something to do, and lets it.
    pub(crate) fn turn(&mut self) {
        turn(&mut self.host);
    }

    /// Runs a command to its end with this input.
    pub(crate) fn run_with(
        &mut self,
        request: &ExecRequest,
        once: bool,
        input: &[u8],
    ) -> Result<Outcome, ExecError> {
        let (exec, streams) = self.exec(request, once);
        let Streams { stdin, stdout, stderr: _stderr } = streams;
        let input = input.to_vec();
        let writer = std::thread::spawn(move || {
            let mut stdin = stdin;
            let _ = io::Write::write_all(&mut stdin, &input);
        });
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let mut stdout = stdout;
            stdout.read_to_end(&mut bytes).unwrap();
            bytes
        });
        match self.event() {
            (number, Event::Started) => assert_eq!(number, exec),
            (number, Event::NotStarted(error)) => {
                assert_eq!(number, exec);
                return Err(error);
            }
            other => panic!("{other:?}"),
        }
        let (status, leftovers) = match self.event() {
            (number, Event::Ended { status, leftovers, .. }) => {
                assert_eq!(number, exec);
                (status, leftovers)
            }
            other => panic!("{other:?}"),
        };
        while self.host.carry().is_some() {
            self.turn();
        }
        writer.join().unwrap();
        let stdout = String::from_utf8_lossy(&reader.join().unwrap()).into_owned();
        Ok(Outcome { status, leftovers, stdout })
    }

    pub(crate) fn run(&mut self, request: &ExecRequest, once: bool) -> Result<Outcome, ExecError> {
        self.run_with(request, once, b"")
    }

    /// What a command of the shell prints; it must succeed.
    pub(crate) fn shell(&mut self, script: &str) -> String {
        let outcome = self.run(&request(&["sh", "-c", script]), false).unwrap();
        assert_eq!(outcome.status, WaitStatus::Exited(0), "{outcome:?}");
        outcome.stdout
    }
}

/// Waits until a host has something to do, and lets it.
pub(crate) fn turn(host: &mut Host) {
    let found = poll::wait(&[(host.events(), Interest::Read)], Some(PATIENCE)).unwrap();
    assert!(found.iter().any(|waited| waited.ready), "the guest is silent");
    host.pump();
}

/// The next event; fails the test if none comes.
pub(crate) fn event(host: &mut Host) -> (u32, Event) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(numbered) = host.next_numbered() {
            return numbered;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the guest is silent");
        poll::wait(&[(host.events(), Interest::Read)], Some(left)).unwrap();
    }
}

/// A host over a socket.
pub(crate) fn over(socket: UnixStream, terms: Terms) -> Host {
    let second = socket.try_clone().unwrap();
    Host::new(socket.into(), second.into(), terms).unwrap()
}

// === impl Process ===

impl Process {
    /// Waits for the end, and gives the exit code.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "guestd does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Takes the inner process with it; both fail harmlessly when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
        drop(self.1.take());
    }
}

/// Starts `guestd` on its end of a socket.
pub(crate) fn start(theirs: &OwnedFd) -> Process {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("guestd");
    std::fs::write(&program, image::BYTES).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let user = if fumehood_sys::host::euid() == 0 { "" } else { "--user" };
    let script = format!("exec unshare {user} --pid --fork --kill-child --mount-proc -- \"$0\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(&program).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let end = || Stdio::from(theirs.as_fd().try_clone_to_owned().unwrap());
    Process(command.stdin(end()).stdout(end()).spawn().unwrap(), Some(folder))
}

/// A command with a usual environment, in `/`.
pub(crate) fn request(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        argv: argv.iter().map(OsString::from).collect(),
        env: vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())],
        cwd: PathBuf::from("/"),
        terminal: None,
    }
}

pub(crate) fn pipes() -> (GuestStdio, Streams) {
    let (guest_stdin, stdin) = io::pipe().unwrap();
    let (stdout, guest_stdout) = io::pipe().unwrap();
    let (stderr, guest_stderr) = io::pipe().unwrap();
    let guest = GuestStdio::Pipes {
        stdin: guest_stdin.into(),
        stdout: guest_stdout.into(),
        stderr: guest_stderr.into(),
    };
    (guest, Streams { stdin, stdout, stderr })
}
