//! A running `init`, and what the tests ask of it.

use fumehood_backend::{Event, ExecError, GuestStdio, WaitStatus};
use fumehood_backend_native::control::Control;
use fumehood_backend_native::init_image;
use fumehood_model::exec::{ExecRequest, WindowSize};
use fumehood_sys::socket::{self, Wait};
use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Long enough for a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// PID 1 of a namespace, and the keeper's end of its socket.
pub(crate) struct Guest {
    pub(crate) control: Control,
    pub(crate) process: Process,
}

/// The outer process of a guest; ended with everything inside when dropped.
pub(crate) struct Process(pub(crate) Child);

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
        let (control, theirs) = Control::new().unwrap();
        Self { control, process: start(theirs, "") }
    }

    /// Starts a command on fresh pipes.
    pub(crate) fn exec(&mut self, request: &ExecRequest, once: bool) -> (u32, Streams) {
        let (guest, streams) = pipes();
        (self.control.exec(request, guest, once).unwrap(), streams)
    }

    /// The next event; fails the test if none comes.
    pub(crate) fn event(&mut self) -> (u32, Event) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(numbered) = self.control.next_numbered() {
                return numbered;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(socket::wait(self.control.events(), Wait::Packet, left).unwrap(), "init is silent");
        }
    }

    /// Runs a command to its end with no input.
    pub(crate) fn run(&mut self, request: &ExecRequest, once: bool) -> Result<Outcome, ExecError> {
        let (exec, streams) = self.exec(request, once);
        let Streams { stdin, mut stdout, stderr: _stderr } = streams;
        drop(stdin);
        match self.event() {
            (number, Event::Started) => assert_eq!(number, exec),
            (number, Event::NotStarted(error)) => {
                assert_eq!(number, exec);
                return Err(error);
            }
            other => panic!("{other:?}"),
        }
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        match self.event() {
            (number, Event::Ended { status, leftovers, .. }) => {
                assert_eq!(number, exec);
                Ok(Outcome { status, leftovers, stdout: text })
            }
            other => panic!("{other:?}"),
        }
    }

    /// What a command of the shell prints; it must succeed.
    pub(crate) fn shell(&mut self, script: &str) -> String {
        let outcome = self.run(&request(&["sh", "-c", script]), false).unwrap();
        assert_eq!(outcome.status, WaitStatus::Exited(0), "{outcome:?}");
        outcome.stdout
    }
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
            assert!(Instant::now() < deadline, "init does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Takes the inner process with it; both fail harmlessly when it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts `init` on its end of a socket, through another program (`through`) if not empty.
pub(crate) fn start(theirs: OwnedFd, through: &str) -> Process {
    let script = format!(
        "trap '' PIPE USR1; umask 077; exec 3<&0 4<&1 0</dev/null 1>/dev/null; \
         exec unshare --pid --fork --kill-child --mount-proc -- {through} /proc/self/fd/4"
    );
    let image = init_image::memfd().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &script]).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    Process(command.stdin(Stdio::from(theirs)).stdout(Stdio::from(image)).spawn().unwrap())
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

/// The same in a terminal.
pub(crate) fn in_terminal(argv: &[&str], rows: u16, columns: u16) -> ExecRequest {
    ExecRequest { terminal: Some(WindowSize { rows, columns }), ..request(argv) }
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
