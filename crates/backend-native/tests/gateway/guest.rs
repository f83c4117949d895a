//! A sandbox with a gateway, made by one of the two callers.

use fumehood_backend::gateway::{Gateway, GatewaySpec, Ports};
use fumehood_backend::{Backend, Event, GuestStdio, Instance, Placement, Plan, WaitStatus};
use fumehood_backend_native::Native;
use fumehood_model::enforcement::Unenforceable;
use fumehood_model::envelope::{Defaults, Envelope, EnvelopeSpec};
use fumehood_model::exec::ExecRequest;
use fumehood_model::id::TaskId;
use fumehood_sys::poll::{self, Interest};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// An ordinary user that no account of a usual machine has.
const USER: &str = "12345";
/// Long enough for a machine with much else to do.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Says to a test that it is the process which another has started for it.
const AGAIN: &str = "FUMEHOOD_TEST_AGAIN";

/// Each of these runs as both callers.
macro_rules! both_callers {
    ($($name:ident)*) => {$(
        mod $name {
            #[test]
            fn by_root() {
                crate::guest::alone(concat!(module_path!(), "::by_root"), crate::guest::Caller::Root, super::$name);
            }

            #[test]
            fn by_a_user() {
                crate::guest::alone(concat!(module_path!(), "::by_a_user"), crate::guest::Caller::User, super::$name);
            }
        }
    )*};
}
pub(crate) use both_callers;

pub(crate) fn am_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

/// Who launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    Root,
    User,
}

/// Runs the test of that name in a process of its own, as a keeper is: by that caller, and alone. There, runs it.
pub(crate) fn alone(name: &str, caller: Caller, test: fn()) {
    if std::env::var_os(AGAIN).is_some() {
        assert_eq!(am_root(), caller == Caller::Root);
        return test();
    }
    if caller == Caller::Root && !am_root() {
        return println!("NOT-APPLICABLE: the tests do not run as root, so the root caller is left out");
    }
    let copy = Copy::new();
    let mut command = copy.command(name, caller);
    let ran = start(command.stdout(Stdio::piped()).stderr(Stdio::piped())).wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && out.contains("1 passed"), "{out}\n{err}");
}

/// Starts a command. A copy that was just written may still be open in what another test has forked.
pub(crate) fn start(command: &mut Command) -> Child {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            result => return result.unwrap(),
        }
    }
}

/// This program, where any user can execute it.
pub(crate) struct Copy(TempDir);

// === impl Copy ===

impl Copy {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let copy = folder.path().join("test");
        std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
        std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
        Self(folder)
    }

    /// The test of that name alone.
    pub(crate) fn command(&self, name: &str, caller: Caller) -> Command {
        let (program, (_, name)) = (self.0.path().join("test"), name.split_once("::").unwrap());
        let mut command = if caller == Caller::User && am_root() {
            let mut command = Command::new("setpriv");
            command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"]);
            command.arg(program);
            command
        } else {
            Command::new(program)
        };
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
        command.env(AGAIN, "1").current_dir("/");
        command
    }
}

/// Where sandboxes are made.
pub(crate) struct Lab {
    folder: PathBuf,
    pub(crate) native: Native,
    spec: EnvelopeSpec,
    _own: Option<TempDir>,
}

/// A live sandbox.
pub(crate) struct Guest<'l> {
    lab: &'l Lab,
    id: TaskId,
    pub(crate) instance: Box<dyn Instance>,
}

/// A command that was started.
pub(crate) struct Running {
    stdout: File,
    stderr: File,
}

// === impl Lab ===

impl Lab {
    pub(crate) fn new() -> Self {
        Self::with(Native::find())
    }

    pub(crate) fn with(native: Native) -> Self {
        let own = tempfile::tempdir_in("/var/tmp").unwrap();
        let lab = Self::at(own.path().to_owned(), native);
        Self { _own: Some(own), ..lab }
    }

    /// In a folder that stays.
    pub(crate) fn at(folder: PathBuf, native: Native) -> Self {
        for name in ["root", "lower", "layer", "empty"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        Self { folder, native, spec: EnvelopeSpec::default(), _own: None }
    }

    /// For sandboxes whose system is an image.
    pub(crate) fn of_image(image: &Path) -> Self {
        let mut lab = Self::new();
        lab.spec.filesystem.image = Some(image.to_str().unwrap().to_owned());
        lab
    }

    pub(crate) fn plan(&self, ports: Option<Ports>) -> Result<(TaskId, Box<dyn Plan>), Unenforceable> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = task(NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        let placement = placement(&self.folder, id.clone(), ports);
        self.native.plan(&envelope(&self.spec), &placement).map(|plan| (id, plan))
    }

    pub(crate) fn launch(&self, ports: Option<Ports>) -> Guest<'_> {
        let (id, plan) = self.plan(ports).unwrap();
        self.start(id, plan)
    }

    pub(crate) fn start(&self, id: TaskId, plan: Box<dyn Plan>) -> Guest<'_> {
        let instance = plan.launch().unwrap_or_else(|error| panic!("{error}: {}", error.remedy));
        Guest { lab: self, id, instance }
    }

    /// A sandbox with listeners on these ports, and its gateway.
    pub(crate) fn listed(&self, ports: &[u16]) -> (Guest<'_>, Gateway) {
        let mut guest = self.launch(Some(Ports::Listed(ports.to_vec())));
        let gateway = guest.instance.take_gateway().unwrap();
        assert!(guest.instance.take_gateway().is_none(), "it is given once");
        (guest, gateway)
    }
}

// === impl Guest ===

impl Guest<'_> {
    /// Starts a script of the host's Python inside; its end is the end of the sandbox.
    pub(crate) fn start(&mut self, script: &str) -> Running {
        self.command(&["/usr/bin/python3", "-c", script])
    }

    pub(crate) fn command(&mut self, argv: &[&str]) -> Running {
        let (stdin, _) = fumehood_sys::process::pipe(false).unwrap();
        let (out, stdout) = fumehood_sys::process::pipe(false).unwrap();
        let (err, stderr) = fumehood_sys::process::pipe(false).unwrap();
        let request = ExecRequest {
            argv: argv.iter().map(Into::into).collect(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            cwd: PathBuf::from("/workspace"),
            terminal: None,
        };
        self.instance.exec(&request, GuestStdio::Pipes { stdin, stdout, stderr }).unwrap();
        Running { stdout: out.into(), stderr: err.into() }
    }

    /// The next event that is not about a refused call.
    pub(crate) fn event(&mut self) -> Event {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.instance.next_event() {
                Some(Event::Denied { .. }) => {}
                Some(event) => return event,
                None => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    assert!(!left.is_zero(), "the guest is silent");
                    poll::wait(&[(self.instance.events(), Interest::Read)], Some(left)).unwrap();
                }
            }
        }
    }

    /// Waits for the end of a command, and gives what it printed. It must succeed.
    pub(crate) fn finish(&mut self, running: Running) -> String {
        assert!(matches!(self.event(), Event::Started));
        self.finish_started(running)
    }

    /// Reads one line of the command's output.
    pub(crate) fn await_line(&mut self, mut running: Running, line: &str) -> Running {
        let mut read = vec![0; line.len() + 1];
        running.stdout.read_exact(&mut read).unwrap();
        assert_eq!(read, format!("{line}\n").as_bytes());
        running
    }

    /// As [`Guest::finish`], for one whose start was heard of.
    pub(crate) fn finish_started(&mut self, running: Running) -> String {
        let drain = |mut stream: File| {
            std::thread::spawn(move || {
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                text
            })
        };
        let (out, err) = (drain(running.stdout), drain(running.stderr));
        let ended = self.event();
        let (out, err) = (out.join().unwrap(), err.join().unwrap());
        match ended {
            Event::Ended { status: WaitStatus::Exited(0), .. } => out,
            other => panic!("{other:?}\n{out}\n{err}"),
        }
    }

    /// What a script prints.
    pub(crate) fn run(&mut self, script: &str) -> String {
        let running = self.start(script);
        self.finish(running)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        self.instance.kill();
        self.instance.wait_gone(PATIENCE);
        self.lab.native.reap(&self.id).unwrap();
    }
}

/// The name of a sandbox that the process `pid` made.
pub(crate) fn task(number: u64, pid: u32) -> TaskId {
    TaskId::new(number, u64::from(pid))
}

fn envelope(spec: &EnvelopeSpec) -> Envelope {
    let defaults = Defaults {
        base: PathBuf::from("/"),
        home: None,
        state: None,
        host_memory_bytes: fumehood_sys::host::memory_bytes(),
        host_cpus: fumehood_sys::host::processors(),
        timeout: Some(Duration::from_secs(60)),
        output_bytes: 1 << 20,
        presets: std::collections::BTreeMap::new(),
        images: std::collections::BTreeMap::new(),
    };
    Envelope::check(spec, &defaults).unwrap()
}

fn placement(shared: &Path, id: TaskId, ports: Option<Ports>) -> Placement {
    Placement {
        id,
        shared: shared.to_owned(),
        scratch: shared.join("scratch"),
        layer: None,
        home: None,
        home_at: PathBuf::from("/home/user"),
        caches: Vec::new(),
        toolchains: Vec::new(),
        gateway: ports.map(|ports| GatewaySpec { ports }),
        files: Vec::new(),
        living: None,
    }
}
