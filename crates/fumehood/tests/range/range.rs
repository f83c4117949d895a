//! The range: a network of its own in which every address is local, and the servers in it.
//!
//! **Invariant:** dropped, it leaves nothing: the servers end with their standard input, the namespaces with
//! the last process in them, and the folder goes.

use crate::kit;
use crate::lab;
use crate::log::Log;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tempfile::TempDir;

/// A running range.
#[derive(Debug)]
pub(crate) struct Range {
    folder: TempDir,
    child: Mutex<Child>,
    talk: Mutex<Option<Talk>>,
    pid: u32,
    authority: PathBuf,
}

/// A place in the log: what comes after it is new.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

/// What is wrong with the certificate of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flaw {
    Expired,
    SelfSigned,
    WrongName,
    UnknownAuthority,
    /// None, but the server asks for one of the client.
    WantsClient,
}

/// A bare repository that the range serves as `/git/NAME` and over ssh.
#[derive(Debug)]
pub(crate) struct Repository {
    /// Its folder, for `ssh`.
    pub(crate) folder: PathBuf,
    /// Its only commit.
    pub(crate) commit: String,
}

/// What a client of the range's `sshd` needs.
#[derive(Debug)]
pub(crate) struct Ssh {
    pub(crate) host_key: String,
    pub(crate) client_key: String,
    pub(crate) account: String,
}

#[derive(Debug)]
struct Talk {
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

// === impl Range ===

impl Range {
    /// Starts one, and waits until its servers listen.
    pub(crate) fn start() -> Self {
        let folder = tempfile::Builder::new().prefix("fumehood-range-").tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let cache = cache();
        let mut command = Command::new("unshare");
        if !lab::am_root() {
            command.args(["--user", "--map-current-user", "--keep-caps"]);
        }
        command.args(["--net", "--mount", "/usr/bin/python3", "-B"]).arg(source("servers/main.py"));
        command.arg(folder.path()).arg(&cache).arg(kit::python());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("`unshare` of util-linux");
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let ready = hear(&mut stdout).expect("the range did not start; its standard error says why");
        Self {
            pid: child.id(),
            folder,
            child: Mutex::new(child),
            talk: Mutex::new(Some(Talk { stdin, stdout })),
            authority: PathBuf::from(ready["authority"].as_str().unwrap()),
        }
    }

    /// Lets `name` resolve to `addresses`; `*.NAME` stands for every name below, `*` for every name.
    pub(crate) fn name(&self, name: &str, addresses: &[&str]) {
        self.zone(name, &json!({"answers": [addresses]}));
    }

    /// Lets `name` answer as `servers/zone.py` lists: sequences of answers, another name, hostile shapes.
    pub(crate) fn zone(&self, name: &str, record: &Value) {
        self.order(&json!({"do": "zone", "name": name, "record": record}));
    }

    /// Gives the certificate of `name` a flaw, or takes it away.
    pub(crate) fn certificate(&self, name: &str, flaw: Option<Flaw>) {
        self.order(&json!({"do": "certificate", "name": name, "flaw": flaw.map(Flaw::word)}));
    }

    /// Limits what the TLS server of `name` offers by ALPN; nothing stands for no ALPN at all.
    pub(crate) fn protocols(&self, name: &str, protocols: &[&str]) {
        self.order(&json!({"do": "protocols", "name": name, "protocols": protocols}));
    }

    /// Wants `authorization` as the whole value of that field for every path that begins with `path`.
    pub(crate) fn key(&self, path: &str, authorization: &str) {
        self.order(&json!({"do": "key", "path": path, "value": authorization}));
    }

    /// Wants a signature (AWS Signature Version 4) with this key for every path below `/aws/`, and this token.
    pub(crate) fn aws_key(&self, access: &str, secret: &str, token: &str) {
        self.order(&json!({"do": "aws", "access": access, "secret": secret, "token": token}));
    }

    /// Lays a small file system over a folder, as the host of a run sees it.
    pub(crate) fn small(&self, folder: &Path, bytes: u64, owner: u32) {
        self.order(&json!({"do": "small", "path": folder, "bytes": bytes, "owner": owner}));
    }

    /// Takes all the room that is left there.
    pub(crate) fn fill(&self, folder: &Path) {
        self.order(&json!({"do": "fill", "path": folder}));
    }

    /// The text of the host's `/etc/hosts`.
    pub(crate) fn hosts(&self, text: &str) {
        self.order(&json!({"do": "hosts", "text": text}));
    }

    /// Makes a bare repository with one commit, served as `/git/NAME` on every host.
    pub(crate) fn repository(&self, name: &str) -> Repository {
        let told = self.order(&json!({"do": "repository", "name": name}));
        let word = |key: &str| told[key].as_str().unwrap().to_owned();
        Repository { folder: PathBuf::from(word("folder")), commit: word("commit") }
    }

    /// Puts the real `sshd` behind port 22; until then only its greeting is there.
    pub(crate) fn ssh(&self) -> Ssh {
        let told = self.order(&json!({"do": "ssh"}));
        let word = |key: &str| told[key].as_str().expect("no sshd here: install openssh-server").to_owned();
        Ssh { host_key: word("host_key"), client_key: word("client_key"), account: word("account") }
    }

    /// Starts the real PostgreSQL on port 5432: account and database `range`, no password.
    pub(crate) fn database(&self) {
        self.order(&json!({"do": "database"}));
    }

    /// Serves the files of `folder` below `/files/`.
    pub(crate) fn files(&self, folder: &Path) {
        self.order(&json!({"do": "files", "folder": folder}));
    }

    /// Makes mirrors of package registries and serves them: `/files/pypi/simple/`, `/files/npm/`, `/files/cargo/`,
    /// `/files/apt/`, under the name `mirror`.
    pub(crate) fn mirrors(&self, mirror: &str) {
        let folder = self.folder.path().join("mirrors");
        let mut command = Command::new("/usr/bin/python3");
        command.arg("-B").arg(source("servers/mirrors.py")).arg(&folder).arg(mirror);
        let ran = lab::finish(command, b"");
        assert!(ran.status.success(), "no mirrors: {}", ran.told());
        self.files(&folder);
    }

    /// The certificate of the authority that the range's trust store holds.
    pub(crate) fn authority(&self) -> &Path {
        &self.authority
    }

    /// The log's end.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.order(&json!({"do": "log", "since": i64::MAX}))["place"].as_u64().unwrap())
    }

    /// What was seen after `mark`. Packets that have been sent are in it; a request is, when its answer has
    /// begun.
    pub(crate) fn since(&self, mark: Mark) -> Log {
        let mut told = self.order(&json!({"do": "log", "since": mark.0}));
        let Value::Array(facts) = told["facts"].take() else { panic!("no facts: {told}") };
        Log(facts)
    }

    /// The same command, to be started inside: there its host is the range.
    pub(crate) fn enter(&self, inner: &Command) -> Command {
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(self.pid.to_string());
        if !lab::am_root() {
            command.args(["--user", "--preserve-credentials"]);
        }
        command.args(["--net", "--mount"]);
        if let Some(folder) = inner.get_current_dir() {
            let mut word = std::ffi::OsString::from("--wdns=");
            word.push(folder);
            command.arg(word);
        }
        command.arg("--").arg(inner.get_program()).args(inner.get_args()).env_clear();
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
    }

    fn order(&self, order: &Value) -> Value {
        let mut guard = lock(&self.talk);
        let talk = guard.as_mut().unwrap();
        writeln!(talk.stdin, "{order}").expect("the range has ended");
        hear(&mut talk.stdout).unwrap_or_else(|problem| panic!("{order}: {problem}"))
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        // The end of its input is its end; what does not hear that is killed.
        lock(&self.talk).take();
        let mut child = lock(&self.child);
        if lab::wait(&mut child, Duration::from_secs(5)).is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

// === impl Flaw ===

impl Flaw {
    const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::SelfSigned => "self-signed",
            Self::WrongName => "wrong-name",
            Self::UnknownAuthority => "unknown-authority",
            Self::WantsClient => "wants-client",
        }
    }
}

/// A failed test poisons the lock, and the range must still be ended.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn hear(stdout: &mut BufReader<ChildStdout>) -> Result<Value, String> {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    let mut told: Value = serde_json::from_str(&line).map_err(|error| format!("{error}: {line:?}"))?;
    match told["error"].as_str() {
        Some(error) => Err(error.to_owned()),
        None => Ok(told["ok"].take()),
    }
}

/// What all ranges of a build share: certificates, an empty database.
fn cache() -> PathBuf {
    let who = if lab::am_root() { "root" } else { "user" };
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("range-{who}"))
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/range").join(name)
}
