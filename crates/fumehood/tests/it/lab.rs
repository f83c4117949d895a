//! A place for one test: a folder, a home, a state folder, and a caller who may or may not be root.
//!
//! **Invariant:** dropped, it leaves nothing: the folder goes with all that is in it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An ordinary user that no account of a usual machine has.
const USER: u32 = 12_345;
/// Longer than any test should need; passing it is a failure with a name.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// What is kept of one stream.
const MOST_BYTES: u64 = 256 << 20;
/// What a shell of the caller would search.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Who calls the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Root,
    User,
}

/// One test's place.
#[derive(Debug)]
pub(crate) struct Lab {
    dir: TempDir,
    pub(crate) caller: Caller,
    // Held for the life of the place: shared by most tests, alone by those that count what is on the host.
    _turn: File,
}

/// What came out of one process.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) elapsed: Duration,
}

// === impl Caller ===

impl Caller {
    /// Whether this process can be that caller; if not, says so where the tests' output is read.
    pub(crate) fn available(self) -> bool {
        let root = am_root();
        let available = root || self == Self::User;
        if !available {
            println!("NOT-APPLICABLE: the tests do not run as root, so the root caller is left out");
        }
        available
    }

    /// The word for a matrix.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::User => "user",
        }
    }
}

// === impl Lab ===

impl Lab {
    /// A place for `caller`, beside other tests.
    pub(crate) fn new(caller: Caller) -> Self {
        let turn = turn_file();
        turn.lock_shared().unwrap();
        Self::with_turn(caller, turn)
    }

    /// A place while no other test runs: for tests that count what is on the host.
    pub(crate) fn alone(caller: Caller) -> Self {
        let turn = turn_file();
        turn.lock().unwrap();
        Self::with_turn(caller, turn)
    }

    fn with_turn(caller: Caller, turn: File) -> Self {
        let dir = tempfile::Builder::new().prefix("fumehood-test-").tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let lab = Self { dir, caller, _turn: turn };
        lab.give(lab.path());
        std::fs::create_dir(lab.home()).unwrap();
        lab.give(&lab.home());
        lab
    }

    /// The folder.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The caller's home.
    pub(crate) fn home(&self) -> PathBuf {
        self.path().join("home")
    }

    /// The state folder that the binary is told to use.
    pub(crate) fn state(&self) -> PathBuf {
        self.path().join("state")
    }

    /// A new folder that belongs to the caller.
    pub(crate) fn folder(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        self.give(&path);
        path
    }

    /// A new file that belongs to the caller.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, content).unwrap();
        self.give(&path);
        path
    }

    /// Makes the caller the owner of `path`.
    pub(crate) fn give(&self, path: &Path) {
        if self.caller == Caller::User && am_root() {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
    }

    /// Makes the caller the owner of `path` and all beneath it.
    pub(crate) fn give_all(&self, path: &Path) {
        self.give(path);
        if path.is_dir() && !path.is_symlink() {
            for entry in std::fs::read_dir(path).unwrap() {
                self.give_all(&entry.unwrap().path());
            }
        }
    }

    /// `program` as the caller would start it: the caller's home, a plain PATH, nothing else.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = if self.caller == Caller::User && am_root() {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.env_clear().env("PATH", PATH).env("HOME", self.home()).env("FUMEHOOD_STATE", self.state());
        command.env("TERM", "xterm").current_dir(self.path());
        command
    }

    /// The built binary, as the caller.
    pub(crate) fn fumehood(&self) -> Command {
        self.command(self.binary())
    }

    /// Words that start a program on a host on which nobody may make a namespace.
    pub(crate) fn forbidding(&self) -> Vec<std::ffi::OsString> {
        let copy = self.path().join("forbidding");
        if !copy.exists() {
            copy_program(probe(), &copy);
        }
        vec![copy.into(), "forbid".into()]
    }

    /// `fumehood run FLAGS -- ARGV`, to its end.
    pub(crate) fn run<S: AsRef<OsStr>>(&self, flags: &[&str], argv: &[S]) -> Ran {
        let mut command = self.fumehood();
        command.arg("run").args(flags).arg("--").args(argv);
        finish(command, b"")
    }

    /// `fumehood run --json FLAGS -- ARGV`: the object, and what came out beside it.
    pub(crate) fn json<S: AsRef<OsStr>>(&self, flags: &[&str], argv: &[S]) -> (serde_json::Value, Ran) {
        let mut command = self.fumehood();
        command.args(["run", "--json"]).args(flags).arg("--").args(argv);
        let ran = finish(command, b"");
        let value = serde_json::from_slice(&ran.stdout)
            .unwrap_or_else(|error| panic!("not one object on stdout ({error}): {}", ran.told()));
        (value, ran)
    }

    /// Where the caller can execute the binary: where it was built, or a copy in this place when the
    /// build folder is closed to other users.
    pub(crate) fn binary(&self) -> PathBuf {
        let built = PathBuf::from(env!("CARGO_BIN_EXE_fumehood"));
        if self.caller == Caller::Root || !am_root() || open_to_all(&built) {
            return built;
        }
        let copy = self.path().join("fumehood");
        if !copy.exists() && std::fs::hard_link(&built, &copy).is_err() {
            copy_program(&built, &copy);
        }
        copy
    }
}

/// Copies a program in a process of its own. A file that this process wrote could be open still in what another
/// test has just started, and then the kernel executes it for nobody.
pub(crate) fn copy_program(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg(from).arg(to).status().unwrap().success());
}

impl Drop for Lab {
    /// A reaper outlives its run for a moment and may make a file in a folder that is being removed: then once
    /// more. What can not be removed at all is a failure; whatever stays would be there for ever.
    fn drop(&mut self) {
        let gone = poll(
            DEADLINE,
            || matches!(std::fs::remove_dir_all(self.path()), Err(error) if error.kind() == ErrorKind::NotFound),
        );
        if !gone && !std::thread::panicking() {
            let left: Vec<_> = std::fs::read_dir(self.path()).into_iter().flatten().flatten().collect();
            panic!("{} stays, with {left:?}", self.path().display());
        }
    }
}

// === impl Ran ===

impl Ran {
    /// The exit code; a signal as 128 and its number, as a shell tells it.
    pub(crate) fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }

    /// Standard output as text.
    pub(crate) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub(crate) fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// All of it, for a failure's message.
    pub(crate) fn told(&self) -> String {
        let clip = |text: String| text.chars().take(2_000).collect::<String>();
        format!(
            "{} after {:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.status,
            self.elapsed,
            clip(self.out()),
            clip(self.err())
        )
    }
}

/// Whether the tests run as root.
pub(crate) fn am_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Starts `command`, feeds it `input`, and waits for its end; past the deadline it is ended and the
/// test fails.
pub(crate) fn finish(command: Command, input: &[u8]) -> Ran {
    finish_within(command, input, DEADLINE)
}

/// The same for what may take longer than a test should.
pub(crate) fn finish_within(mut command: Command, input: &[u8], limit: Duration) -> Ran {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    collect_within(child, input, limit)
}

/// The same for a process that runs already.
pub(crate) fn collect(child: Child, input: &[u8]) -> Ran {
    collect_within(child, input, DEADLINE)
}

fn collect_within(mut child: Child, input: &[u8], limit: Duration) -> Ran {
    let start = Instant::now();
    let drain = |stream: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut stream) = stream {
                stream.by_ref().take(MOST_BYTES).read_to_end(&mut bytes).unwrap();
                // The rest is read, so that nobody waits, and not kept: a probe may find all of a disk.
                std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
            }
            bytes
        })
    };
    let stdout = drain(child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let stderr = drain(child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let feeder = child.stdin.take().map(|mut stdin| {
        let input = input.to_vec();
        // A command that does not read its input closes the pipe: no failure.
        std::thread::spawn(move || drop(stdin.write_all(&input)))
    });
    let status = wait(&mut child, limit).unwrap_or_else(|| {
        child.kill().unwrap();
        child.wait().unwrap();
        panic!("still running after {limit:?}");
    });
    if let Some(feeder) = feeder {
        feeder.join().unwrap();
    }
    Ran { status, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap(), elapsed: start.elapsed() }
}

/// Waits until `word` is the next thing on standard output, which is handed back; past the deadline,
/// or at the end of the output, the child is ended.
pub(crate) fn await_word(child: &mut Child, word: &str) -> Result<(), String> {
    let mut stdout = child.stdout.take().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let length = word.len();
    std::thread::spawn(move || {
        let mut bytes = vec![0; length];
        let read = stdout.read_exact(&mut bytes).map(|()| (bytes, stdout));
        // Nobody listens any more once the deadline has passed.
        drop(send.send(read));
    });
    let problem = match receive.recv_timeout(Duration::from_secs(20)) {
        Ok(Ok((bytes, stdout))) => {
            child.stdout = Some(stdout);
            if bytes == word.as_bytes() {
                return Ok(());
            }
            format!("it said {:?}", String::from_utf8_lossy(&bytes))
        }
        Ok(Err(_)) => "its output ended".to_owned(),
        Err(_) => "it said nothing for 20 s".to_owned(),
    };
    child.kill().unwrap();
    child.wait().unwrap();
    let mut told = String::new();
    if let Some(stderr) = child.stderr.as_mut() {
        stderr.read_to_string(&mut told).unwrap();
    }
    Err(format!("{problem}: {told}"))
}

/// Waits for the end of `child`, no longer than `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let mut status = None;
    poll(limit, || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status
}

/// Asks again and again, no longer than `limit`, whether a level has been reached.
pub(crate) fn poll(limit: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if reached() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::park_timeout(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// 128 random bits as text: a canary.
pub(crate) fn canary() -> String {
    random(16).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Random bytes.
pub(crate) fn random(count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom").unwrap().read_exact(&mut bytes).unwrap();
    bytes
}

/// Whether `needle` stands anywhere in `bytes`.
pub(crate) fn contains(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

/// Whether `program` is on the search path of the tests.
pub(crate) fn installed(program: &str) -> bool {
    let found = PATH.split(':').any(|folder| Path::new(folder).join(program).exists());
    if !found {
        println!("NOT-APPLICABLE: `{program}` is not installed");
    }
    found
}

/// The static probe program, compiled once for each state of its source.
pub(crate) fn probe() -> &'static Path {
    static PROBE: OnceLock<PathBuf> = OnceLock::new();
    PROBE.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/probe.c");
        let folder =
            tempfile::Builder::new().prefix("probe-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let fresh = folder.path().join("probe");
        let mut gcc = Command::new("gcc");
        gcc.args(["-static", "-O1", "-w", "-pthread", "-o"]).arg(&fresh).arg(source);
        let ran = finish(gcc, b"");
        assert!(ran.status.success(), "the probe does not compile: {}", ran.told());
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("probe");
        std::fs::rename(fresh, &place).unwrap();
        place
    })
}

fn turn_file() -> File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("turn");
    File::options().create(true).append(true).open(path).unwrap()
}

fn open_to_all(path: &Path) -> bool {
    path.ancestors()
        .all(|part| std::fs::metadata(part).is_ok_and(|found| found.permissions().mode() & 0o001 != 0))
}
