//! How an attack is started on either side, and what came of it.

use crate::canary::canary;
use crate::folder::Folder;
use crate::probe::{How, Side};
use crate::range::Range;
use crate::run::Options;
use crate::scene::Scene;
use crate::told::Told;
use base64::Engine as _;
use fumehood_model::level::Level;
use serde_json::Value;
use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than any probe should need. Past it a side can not be told.
const DEADLINE: Duration = Duration::from_secs(60);
/// The same where a machine may have to boot first, which others wait for.
const MACHINE_DEADLINE: Duration = Duration::from_secs(400);
/// What is kept of one stream.
const MOST_BYTES: u64 = 64 << 20;
/// Variables of ours that say where the caller's own services are.
const PASSED: &[&str] = &["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "FUMEHOOD_SCOPE", "TMPDIR", "LANG"];
/// Of a machine, where the level is one.
const MACHINE_MEMORY: &str = "256MiB";
/// The variable that holds a secret of the caller's.
pub(crate) const VARIABLE: &str = "AWS_SECRET_ACCESS_KEY";
/// What a shell of the caller would search.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why there is no self-test at all.
#[derive(Debug, thiserror::Error)]
pub enum ProveError {
    #[error("no place for canaries: {source}")]
    Scratch { source: io::Error },
    #[error("the level `{level}` does not start here: {why}")]
    Level { level: Level, why: String, remedy: String },
    #[error("{step}: {source}")]
    Io { step: &'static str, source: io::Error },
}

/// Where every probe of a self-test finds what it needs.
#[derive(Debug)]
pub(crate) struct Bench {
    // Before the folder: its guard waits for their processes.
    walled: Scene,
    open: Scene,
    pub(crate) folder: Folder,
    pub(crate) binary: PathBuf,
    pub(crate) level: Level,
    pub(crate) root: bool,
    /// Where the attack goes that is judged.
    pub(crate) attacked: Side,
    image: Option<String>,
    accept_tcg: bool,
    /// The caller's own state folder.
    kept: PathBuf,
    count: AtomicU32,
    range: OnceLock<Result<Range, String>>,
}

/// One run.
#[derive(Debug, Default)]
pub(crate) struct Job {
    /// Flags of `fumehood run`; beside the wall they mean nothing.
    pub(crate) flags: Vec<String>,
    /// Each `[ID, VERB, ARGUMENT…]`.
    pub(crate) steps: Vec<Vec<String>>,
    /// What starts the whole: a mode of the attacker's, and what belongs to it.
    pub(crate) through: Vec<String>,
    /// The namespaces of the control.
    pub(crate) how: How,
    pub(crate) env: Vec<(String, String)>,
    /// Words in place of the attacker's, after its name, behind the wall.
    pub(crate) words: Option<Vec<String>>,
    /// Another command of the binary's, with its words, in place of `run`.
    pub(crate) instead: Option<Vec<String>>,
}

/// What came out.
#[derive(Debug)]
pub(crate) struct Came {
    pub(crate) told: Told,
    pub(crate) report: Value,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) code: Option<i32>,
}

/// A run that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    nonce: String,
    limit: Duration,
}

// === impl ProveError ===

impl ProveError {
    pub(crate) const fn scratch(source: io::Error) -> Self {
        Self::Scratch { source }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Scratch { .. } => {
                "set `TMPDIR` to a folder of yours on a local file system that allows to execute".to_owned()
            }
            Self::Level { remedy, .. } => remedy.clone(),
            Self::Io { .. } => "`fumehood doctor` looks at what this host can hold".to_owned(),
        }
    }
}

// === impl Job ===

impl Job {
    /// One step.
    pub(crate) fn step(words: &[&str]) -> Self {
        Self { steps: vec![words.iter().map(|word| (*word).to_owned()).collect()], ..Self::default() }
    }

    /// The same with another step.
    pub(crate) fn then(mut self, words: &[&str]) -> Self {
        self.steps.push(words.iter().map(|word| (*word).to_owned()).collect());
        self
    }

    /// The same with more flags.
    pub(crate) fn flags<S: Into<String>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }

    /// The same with a control that has every capability in namespaces of its own.
    pub(crate) fn capable(mut self) -> Self {
        self.how = How::Capable;
        self
    }
}

// === impl Bench ===

impl Bench {
    /// Makes the folder and both scenes.
    pub(crate) fn make(options: &Options) -> Result<Self, ProveError> {
        let level = options.level;
        let folder = Folder::make()?;
        let scene = |name: &str, side: Side| {
            Scene::set(folder.path().join(name), side, &folder.attack(), folder.group())
                .map_err(ProveError::scratch)
        };
        let (walled, open) = (scene("walled", Side::Walled)?, scene("open", Side::Open)?);
        let root = fumehood_sys::host::euid() == 0;
        let bench = Self {
            walled,
            open,
            folder,
            binary: options.binary.clone(),
            level,
            root,
            attacked: if options.open { Side::Open } else { Side::Walled },
            image: options.image.clone(),
            accept_tcg: options.accept_tcg,
            kept: options.state.clone(),
            count: AtomicU32::new(0),
            range: OnceLock::new(),
        };
        bench.furnish(bench.folder.state()).map_err(ProveError::scratch)?;
        Ok(bench)
    }

    /// Makes a state folder, and leads from it to what takes minutes to make and is named by its content: images and
    /// machines of the caller's own.
    fn furnish(&self, state: &Path) -> io::Result<()> {
        let kept: &[&str] = match (self.level, &self.image) {
            (Level::Microvm, _) => &["images", "disks", "templates", "kernels"],
            (_, Some(_)) => &["images"],
            _ => &[],
        };
        let private = |path: &Path| DirBuilder::new().recursive(true).mode(0o700).create(path);
        private(state)?;
        for name in kept {
            private(&self.kept.join(name))?;
            std::os::unix::fs::symlink(self.kept.join(name), state.join(name))?;
        }
        Ok(())
    }

    pub(crate) const fn scene(&self, side: Side) -> &Scene {
        match side {
            Side::Walled => &self.walled,
            Side::Open => &self.open,
        }
    }

    /// A new folder for one purpose.
    pub(crate) fn fresh(&self, name: &str) -> io::Result<PathBuf> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let path = self.folder.path().join(format!("{name}-{number}"));
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// A new state folder.
    pub(crate) fn fresh_state(&self) -> io::Result<PathBuf> {
        let path = self.fresh("state")?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        self.furnish(&path)?;
        Ok(path)
    }

    /// The network in which every address is ours; made when it is first asked for.
    pub(crate) fn range(&self) -> io::Result<&Range> {
        let made = self.range.get_or_init(|| {
            let place = self.folder.path().join("range");
            Range::start(&self.folder.attack(), place, self.folder.group()).map_err(|error| error.to_string())
        });
        made.as_ref().map_err(|why| io::Error::other(why.clone()))
    }

    /// The state folder of every run of this self-test.
    pub(crate) fn state(&self) -> PathBuf {
        self.folder.state().to_owned()
    }

    /// Runs a job to its end.
    pub(crate) fn run(&self, side: Side, job: &Job) -> io::Result<Came> {
        self.start(side, job)?.finish()
    }

    /// Starts a job.
    pub(crate) fn start(&self, side: Side, job: &Job) -> io::Result<Running> {
        let nonce = canary()?;
        let mut command = self.command(side, job, &nonce)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(self.running(command.spawn()?, nonce))
    }

    /// One that was started otherwise.
    pub(crate) fn running(&self, child: Child, nonce: String) -> Running {
        let limit = if self.level == Level::Microvm { MACHINE_DEADLINE } else { DEADLINE };
        Running { child, nonce, limit }
    }

    /// The command of a job.
    pub(crate) fn command(&self, side: Side, job: &Job, nonce: &str) -> io::Result<Command> {
        let argv = match side {
            Side::Walled => self.walled_words(job, nonce),
            Side::Open => self.open_words(job, nonce),
        };
        let mut whole: Vec<String> = Vec::new();
        if !job.through.is_empty() {
            whole.push(self.folder.attack().display().to_string());
            whole.extend(job.through.iter().cloned());
            whole.push("--".to_owned());
        }
        whole.extend(argv);
        let mut words = whole.into_iter();
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).process_group(self.folder.group()).current_dir(self.fresh("cwd")?);
        self.environment(&mut command, side);
        command.envs(job.env.iter().cloned());
        Ok(command)
    }

    fn environment(&self, command: &mut Command, side: Side) {
        let scene = self.scene(side);
        command.env_clear().env("PATH", PATH).env("HOME", scene.home()).env("FUMEHOOD_STATE", self.state());
        command.env(VARIABLE, &scene.variable);
        let passed = PASSED.iter().filter_map(|name| Some((name, std::env::var_os(name)?)));
        command.envs(passed);
    }

    fn walled_words(&self, job: &Job, nonce: &str) -> Vec<String> {
        let mut argv = vec![self.binary.display().to_string()];
        if let Some(words) = &job.instead {
            argv.extend(words.iter().cloned());
            return argv;
        }
        argv.extend(["run".to_owned(), "--json".to_owned()]);
        argv.extend(["--level".to_owned(), self.level.to_string()]);
        let program = if self.level == Level::Wasm {
            self.folder.module().display().to_string()
        } else {
            argv.extend(["--in".to_owned(), self.folder.attack().display().to_string()]);
            "./attack".to_owned()
        };
        argv.extend(self.flags(&job.flags));
        argv.extend(["--".to_owned(), program]);
        match &job.words {
            Some(words) => argv.extend(words.iter().cloned()),
            None => {
                argv.extend(["do".to_owned(), nonce.to_owned()]);
                argv.extend(joined(job.steps.iter().cloned()));
            }
        }
        argv
    }

    /// The flags of a job, and those that this level and this self-test want.
    fn flags(&self, asked: &[String]) -> Vec<String> {
        let mut flags = asked.to_vec();
        if let Some(image) = &self.image {
            flags.extend(["--image".to_owned(), image.clone()]);
        }
        if self.accept_tcg {
            flags.push("--accept-tcg".to_owned());
        }
        if self.level == Level::Microvm {
            // Each size of memory is a machine of its own, which boots for seconds: one for all, that no probe fits into.
            match flags.iter().position(|flag| flag == "--mem").and_then(|place| flags.get_mut(place + 1)) {
                Some(size) => MACHINE_MEMORY.clone_into(size),
                None => flags.extend(["--mem".to_owned(), MACHINE_MEMORY.to_owned()]),
            }
        }
        flags
    }

    fn open_words(&self, job: &Job, nonce: &str) -> Vec<String> {
        let mut argv = vec![self.folder.attack().display().to_string(), "open".to_owned(), nonce.to_owned()];
        argv.extend(joined(job.steps.iter().map(|step| {
            let mut step = step.clone();
            if job.how != How::Given {
                step.insert(1.min(step.len()), job.how.word().to_owned());
            }
            step
        })));
        argv
    }
}

/// Steps in one list of words.
pub(crate) fn joined(steps: impl Iterator<Item = Vec<String>>) -> Vec<String> {
    let mut words = Vec::new();
    for step in steps {
        if !words.is_empty() {
            words.push("++".to_owned());
        }
        words.extend(step);
    }
    words
}

// === impl Running ===

impl Running {
    /// Waits for the end, no longer than the deadline.
    pub(crate) fn finish(mut self) -> io::Result<Came> {
        let stdout = drain(self.child.stdout.take());
        let stderr = drain(self.child.stderr.take());
        let status = wait(&mut self.child, self.limit)?;
        let Some(status) = status else {
            self.child.kill()?;
            self.child.wait()?;
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("still running after {:?}", self.limit),
            ));
        };
        let joined = |thread: std::thread::JoinHandle<Vec<u8>>| thread.join().unwrap_or_default();
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Ok(Came::read(joined(stdout), joined(stderr), code, &self.nonce))
    }
}

/// Waits for the end of a child, no longer than `limit`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<std::process::ExitStatus>> {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(200);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > end {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(5));
    }
}

/// Asks again and again, no longer than `limit`, whether something has come about.
pub(crate) fn poll(limit: Duration, mut reached: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    loop {
        if reached() {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn drain(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What breaks off is what there is.
            let _ = stream.by_ref().take(MOST_BYTES).read_to_end(&mut bytes);
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        bytes
    })
}

// === impl Came ===

impl Came {
    fn read(stdout: Vec<u8>, stderr: Vec<u8>, code: Option<i32>, nonce: &str) -> Self {
        let report: Value = serde_json::from_slice(&stdout).unwrap_or_default();
        let (stdout, mut inner) = if report.is_object() {
            (captured(report.get("stdout")), captured(report.get("stderr")))
        } else {
            (stdout, Vec::new())
        };
        inner.extend(stderr);
        Self { told: Told::read(&stdout, nonce), report, stdout, stderr: inner, code }
    }

    /// The structured cause.
    pub(crate) fn cause(&self) -> &str {
        self.report.pointer("/ending/cause").and_then(Value::as_str).unwrap_or("none")
    }

    /// Why nothing ran, and what to do about it.
    pub(crate) fn refusal(&self) -> Option<(String, String)> {
        let word = |name: &str| self.report.pointer(&format!("/ending/{name}")).and_then(Value::as_str);
        (self.cause() == "not_started").then(|| {
            (word("why").unwrap_or_default().to_owned(), word("remedy").unwrap_or_default().to_owned())
        })
    }

    /// In a sentence, where it did not go as it should.
    pub(crate) fn outcome(&self) -> String {
        let said = String::from_utf8_lossy(&self.stderr);
        let said = said.lines().next().unwrap_or_default();
        match self.refusal() {
            Some((why, _)) => format!("not started: {why}"),
            None => format!("ended as `{}`, code {:?} {said}", self.cause(), self.code),
        }
    }
}

fn captured(stream: Option<&Value>) -> Vec<u8> {
    let text = stream.and_then(|stream| stream.get("text")).and_then(Value::as_str).unwrap_or_default();
    let encoded = stream.and_then(|stream| stream.get("base64")).and_then(Value::as_bool) == Some(true);
    if encoded {
        base64::prelude::BASE64_STANDARD.decode(text).unwrap_or_default()
    } else {
        text.as_bytes().to_vec()
    }
}

/// Live processes whose arguments carry a mark.
pub(crate) fn survivors(mark: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline"))
            .is_ok_and(|line| crate::canary::contains(&line, mark))
    })
    .collect()
}
