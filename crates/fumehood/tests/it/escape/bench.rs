//! Where a probe runs: behind the walls, or without any.

use crate::lab::{self, Caller, Lab, Ran};
use crate::subjects::captured;
use fumehood_backend::conformance::Verdict;
use std::path::PathBuf;
use std::process::Command;

/// What stands around a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wall {
    Fumehood,
    /// The process level, as this host holds it.
    Process,
    /// The process level where no namespace can be made.
    Bare,
    /// None, but a mount and host name namespace where root calls, so that the host stays whole.
    Open,
}

/// One probe's place.
#[derive(Debug)]
pub(super) struct Bench {
    pub(super) lab: Lab,
    pub(super) wall: Wall,
    nonce: String,
}

/// One run of a probe.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// Flags of `fumehood run`; without walls they mean nothing.
    pub(super) flags: Vec<String>,
    /// For `sh`; `./probe` is replaced by where the probe is.
    pub(super) script: String,
    /// A command that starts the runner, e.g. with a stray descriptor.
    pub(super) through: Vec<String>,
    pub(super) env: Vec<(String, String)>,
}

/// What came out.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) report: serde_json::Value,
    pub(super) ran: Ran,
    nonce: String,
}

/// Errors that mean: this door is shut.
pub(super) const SHUT: &[&str] = &["EPERM", "EACCES", "ENOSYS"];

// === impl Job ===

impl Job {
    /// A script without flags.
    pub(super) fn new(script: impl Into<String>) -> Self {
        Self { script: script.into(), ..Self::default() }
    }

    /// The same with more flags.
    pub(super) fn flags<S: Into<String>>(mut self, flags: impl IntoIterator<Item = S>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }
}

// === impl Bench ===

impl Bench {
    pub(super) fn new(caller: Caller, wall: Wall) -> Self {
        Self::on(Lab::new(caller), wall)
    }

    /// On a place that is already there.
    pub(super) fn on(lab: Lab, wall: Wall) -> Self {
        let copy = lab.path().join("probe");
        std::fs::copy(lab::probe(), &copy).unwrap();
        lab.give(&copy);
        Self { lab, wall, nonce: lab::canary() }
    }

    /// The probe program on the host.
    pub(super) fn probe(&self) -> PathBuf {
        self.lab.path().join("probe")
    }

    /// A secret file on the host, and what is in it.
    pub(super) fn secret(&self) -> (PathBuf, String) {
        let canary = lab::canary();
        (self.lab.file("secret", &canary), canary)
    }

    /// The command that runs a job, not yet started.
    pub(super) fn command(&self, job: &Job) -> Command {
        let script = format!("{}\necho end {}\n", job.script, self.nonce);
        let probe = self.probe();
        let probe = probe.to_str().unwrap();
        let script = match self.wall {
            Wall::Open => script,
            // There every path is the host's.
            Wall::Bare => script.replace("./probe", probe),
            Wall::Fumehood | Wall::Process => script.replace("./probe", "/input/probe"),
        };
        let binary = self.lab.binary();
        let mut argv: Vec<String> = Vec::new();
        let mut ours = |before: &[&str], words: &[&str], shown: String| {
            argv.extend(
                before
                    .iter()
                    .chain(&[binary.to_str().unwrap(), "run", "--json"])
                    .map(|word| (*word).to_owned()),
            );
            argv.extend(words.iter().map(|word| (*word).to_owned()));
            argv.extend(["--ro".to_owned(), shown]);
            argv.extend(job.flags.iter().cloned());
            argv.push("--".to_owned());
        };
        let elsewhere = format!("{probe}:/input/probe");
        match self.wall {
            Wall::Fumehood => ours(&[], &[], elsewhere),
            Wall::Process => ours(&[], &["--level", "process"], elsewhere),
            Wall::Bare => ours(&[probe, "forbid"], &["--level", "process"], probe.to_owned()),
            Wall::Open if self.lab.caller == Caller::Root => {
                argv.extend(["unshare", "--mount", "--uts"].map(str::to_owned));
            }
            Wall::Open => {}
        }
        argv.extend(["sh".to_owned(), "-c".to_owned(), script]);
        let mut whole = job.through.clone();
        whole.append(&mut argv);
        let (first, rest) = whole.split_first().unwrap();
        let mut command = self.lab.command(first);
        command.args(rest).envs(job.env.iter().cloned());
        if self.wall == Wall::Open {
            let scratch = self.lab.folder("scratch");
            std::fs::copy(self.probe(), scratch.join("probe")).unwrap();
            command.current_dir(scratch);
        }
        command
    }

    /// Runs a job to its end.
    pub(super) fn run(&self, job: &Job) -> Came {
        self.came(lab::finish(self.command(job), b""))
    }

    /// Reads what came out of a command of this bench.
    pub(super) fn came(&self, ran: Ran) -> Came {
        let report: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap_or_default();
        let (stdout, mut stderr) = if report.is_object() {
            (captured(&report["stdout"]), captured(&report["stderr"]))
        } else {
            (ran.stdout.clone(), Vec::new())
        };
        stderr.extend_from_slice(&ran.stderr);
        Came { stdout, stderr, report, ran, nonce: self.nonce.clone() }
    }

    /// Runs `./probe WORDS` and holds each attempt against the errors that mean a shut door.
    pub(super) fn doors(&self, words: &str, shut: &[&str]) -> Verdict {
        self.run(&Job::new(format!("./probe {words}"))).doors(shut)
    }

    /// A free socket path of the host under `/run`, or in this place without root, and its listener.
    pub(super) fn host_socket(&self, name: &str) -> (PathBuf, HostSocket) {
        let root = if lab::am_root() { PathBuf::from("/run") } else { self.lab.path().to_owned() };
        let folder = root.join(format!("fumehood-test-{}", lab::canary()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let path = folder.join(name);
        let mut socket = HostSocket::at(&path);
        socket.folder = Some(folder);
        (path, socket)
    }
}

// === impl Came ===

impl Came {
    /// Standard output as text.
    pub(super) fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Whether the script reached its end.
    pub(super) fn ended(&self) -> bool {
        lab::contains(&self.stdout, &format!("end {}", self.nonce))
    }

    /// The structured cause.
    pub(super) fn cause(&self) -> &str {
        self.report["ending"]["cause"].as_str().unwrap_or("none")
    }

    /// Whether a limit or denial of this kind was met on the way.
    pub(super) fn hit(&self, kind: &str) -> bool {
        self.report["hits"].as_array().is_some_and(|hits| hits.iter().any(|hit| hit["kind"] == kind))
    }

    /// Held if the script reached its end, else inconclusive.
    pub(super) fn finished(&self) -> Verdict {
        if self.ended() { Verdict::Held } else { self.unclear("the script did not reach its end") }
    }

    /// An inconclusive verdict with all that is known.
    pub(super) fn unclear(&self, why: &str) -> Verdict {
        Verdict::Inconclusive(format!("{why}\n{}\n--- inside\n{}", self.ran.told(), self.out()))
    }

    /// Breached if a canary came out anywhere, else as [`Came::finished`].
    pub(super) fn leaks(&self, canary: &str) -> Verdict {
        let everywhere = [&self.stdout, &self.stderr, &self.ran.stdout];
        if everywhere.iter().any(|bytes| lab::contains(bytes, canary)) {
            return Verdict::Breached("the host's canary came out".to_owned());
        }
        self.finished()
    }

    /// The attempts of a probe: name and result.
    pub(super) fn attempts(&self) -> Vec<(String, String)> {
        self.out()
            .lines()
            .filter_map(|line| line.strip_prefix("try ")?.split_once(' '))
            .map(|(name, result)| (name.to_owned(), result.trim_start_matches("errno ").to_owned()))
            .collect()
    }

    /// Held if each attempt met one of the errors, at least one was made, and the script went on.
    pub(super) fn doors(&self, shut: &[&str]) -> Verdict {
        let attempts = self.attempts();
        let open: Vec<_> = attempts
            .iter()
            .filter(|(_, result)| !shut.contains(&result.as_str()))
            .map(|(name, result)| format!("{name}: {result}"))
            .collect();
        if !open.is_empty() {
            return Verdict::Breached(open.join(", "));
        }
        if attempts.is_empty() { self.unclear("nothing was tried") } else { self.finished() }
    }

    /// The number after a word at the start of a line.
    pub(super) fn number(&self, word: &str) -> Option<i64> {
        let out = self.out();
        out.lines().find_map(|line| line.strip_prefix(word)?.split_whitespace().next()?.parse().ok())
    }
}

/// A listener of the host that counts its callers.
#[derive(Debug)]
pub(super) struct HostSocket {
    listener: std::os::unix::net::UnixListener,
    folder: Option<PathBuf>,
}

// === impl HostSocket ===

impl HostSocket {
    /// Listens at a path that anyone may write to.
    pub(super) fn at(path: &std::path::Path) -> Self {
        let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, folder: None }
    }

    /// Listens at an abstract name.
    pub(super) fn at_abstract(name: &str) -> Self {
        use std::os::linux::net::SocketAddrExt;
        let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let listener = std::os::unix::net::UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, folder: None }
    }

    /// Breached if anyone called, else what `otherwise` says.
    pub(super) fn judge(&self, otherwise: Verdict) -> Verdict {
        if self.listener.accept().is_ok() {
            return Verdict::Breached("a listener of the host was called".to_owned());
        }
        otherwise
    }
}

impl Drop for HostSocket {
    fn drop(&mut self) {
        if let Some(folder) = &self.folder {
            std::fs::remove_dir_all(folder).unwrap();
        }
    }
}
