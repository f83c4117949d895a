//! The official E2B packages, at pinned versions, against the built daemon on the loopback.
//!
//! They come from PyPI and npm into a folder that is kept, so this test is asked for by name:
//!
//! ```console
//! $ cargo test -p fumehood --test e2b -- --ignored --nocapture
//! ```
//!
//! The matrix in `docs/e2b.md` is what came out: a run that finds something else fails, and
//! `FUMEHOOD_TEST_WRITE=1` writes it anew. `FUMEHOOD_TEST_NEWEST=1` drives what the registries serve today beside the
//! pinned versions, and leaves the document alone.

#![cfg(test)]

use std::collections::BTreeMap;
use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2b");
const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/e2b.md");
const MARKS: (&str, &str) = ("<!-- matrix: written by the test -->\n", "<!-- end of the matrix -->\n");

/// One package at one version; the newest if that is empty.
#[derive(Clone, Copy, Debug)]
struct Subject {
    language: Language,
    package: &'static str,
    version: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    JavaScript,
}

const PINNED: [Subject; 7] = [
    Subject { language: Language::Python, package: "e2b", version: "2.45.1" },
    Subject { language: Language::Python, package: "e2b", version: "2.55.1" },
    Subject { language: Language::Python, package: "e2b", version: "2.63.0" },
    Subject { language: Language::Python, package: "e2b-code-interpreter", version: "2.11.5" },
    Subject { language: Language::JavaScript, package: "e2b", version: "2.39.0" },
    Subject { language: Language::JavaScript, package: "e2b", version: "2.51.0" },
    Subject { language: Language::JavaScript, package: "@e2b/code-interpreter", version: "2.8.0" },
];
const NEWEST: [Subject; 4] = [
    Subject { language: Language::Python, package: "e2b", version: "" },
    Subject { language: Language::Python, package: "e2b-code-interpreter", version: "" },
    Subject { language: Language::JavaScript, package: "e2b", version: "" },
    Subject { language: Language::JavaScript, package: "@e2b/code-interpreter", version: "" },
];

/// The daemon, with a state folder of its own.
struct Daemon {
    child: Child,
    state: tempfile::TempDir,
    url: String,
}

/// What one check of one subject came to.
#[derive(Clone, Debug, serde::Deserialize)]
struct Outcome {
    check: String,
    result: String,
    #[serde(default)]
    why: String,
    #[serde(default)]
    trace: String,
}

#[test]
#[ignore = "installs packages from PyPI and npm; the stage `e2b` of scripts/test.sh runs it"]
fn official_packages_work_unchanged() {
    let daemon = Daemon::start(&[]);
    let key = daemon.key();
    let newest = std::env::var_os("FUMEHOOD_TEST_NEWEST").is_some();
    let subjects = PINNED.into_iter().chain(NEWEST.into_iter().filter(|_| newest));
    let mut columns = Vec::new();
    let mut failures = Vec::new();
    for subject in subjects {
        let outcomes = subject.drive(&daemon.url, &key);
        assert!(!outcomes.is_empty(), "{}: no check was made", subject.title());
        for outcome in outcomes.iter().filter(|outcome| outcome.result == "fails") {
            failures.push(format!(
                "{}: {}: {}\n{}",
                subject.title(),
                outcome.check,
                outcome.why,
                outcome.trace
            ));
        }
        columns.push((subject, outcomes));
    }
    let table = matrix(columns.iter().filter(|(subject, _)| !subject.version.is_empty()));
    println!("{table}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    keep(&table);
}

/// The domain mode: every sandbox and port has a name of its own, over TLS, and nothing but `E2B_DOMAIN` leads there.
/// Names are answered by a server of the test's own, in a mount namespace that sees its `resolv.conf`: with root alone.
#[test]
#[ignore = "installs packages from PyPI, and needs root; the stage `e2b` of scripts/test.sh runs it"]
fn a_domain_over_tls_is_all_that_python_has_to_know() {
    let is_root = Command::new("id").arg("-u").output().is_ok_and(|told| told.stdout == b"0\n");
    if !is_root {
        println!("NOT-APPLICABLE: without root there is no mount namespace to resolve names in");
        return;
    }
    const DOMAIN: &str = "box.example.com";
    const MAKE: &str = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem -days 30 -subj /CN=own
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout box.key -out box.csr -subj /CN=box
        printf 'subjectAltName=DNS:box.example.com,DNS:*.box.example.com\nbasicConstraints=CA:FALSE\n' > box.ext
        openssl x509 -req -in box.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile box.ext -out box.pem
        printf 'nameserver 127.53.53.53\n' > resolv.conf";
    let folder = tempfile::tempdir().unwrap();
    run(Command::new("sh").args(["-ec", MAKE]).current_dir(folder.path()).stderr(Stdio::null()));
    let file = |name: &str| folder.path().join(name).display().to_string();
    let _names = Names::start();
    let daemon =
        Daemon::start(&["--domain", DOMAIN, "--tls-cert", &file("box.pem"), "--tls-key", &file("box.key")]);
    let port = daemon.url.rsplit(':').next().unwrap();
    let key = daemon.key();
    let mut failures = Vec::new();
    for subject in [PINNED[0], PINNED[2]] {
        let folder = subject.install();
        let mut command = Command::new("unshare");
        let inside = format!("mount --bind {} /etc/resolv.conf && exec \"$@\"", file("resolv.conf"));
        command.args(["--mount", "sh", "-c", &inside, "sh"]).arg(folder.join("venv/bin/python"));
        command.arg(format!("{HERE}/drive.py")).args([
            "create, info",
            "connect by id",
            "list by metadata",
            "kill; what is gone",
            "pause and resume",
            "a command",
            "output as it comes",
            "in the background",
            "terminal",
            "write and read",
            "watch",
            "signed URLs",
            "fork",
        ]);
        command.env("E2B_DOMAIN", format!("{DOMAIN}:{port}")).env("E2B_API_KEY", &key);
        command.env("SSL_CERT_FILE", file("ca.pem")).env_remove("E2B_API_URL").env_remove("E2B_SANDBOX_URL");
        let ran = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
        let text = String::from_utf8(ran.stdout).unwrap();
        let outcomes: Vec<Outcome> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(outcomes.len() >= 13, "{}: {text}", subject.title());
        for outcome in outcomes {
            println!(
                "{} at {DOMAIN}: {}: {} {}",
                subject.title(),
                outcome.result,
                outcome.check,
                outcome.why
            );
            if outcome.result != "passes" {
                failures.push(format!(
                    "{}: {}: {}\n{}",
                    subject.title(),
                    outcome.check,
                    outcome.why,
                    outcome.trace
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The document says what came out.
fn keep(table: &str) {
    let text = std::fs::read_to_string(DOCUMENT).expect("docs/e2b.md is there");
    let (before, rest) = text.split_once(MARKS.0).expect("docs/e2b.md has the first mark");
    let (told, after) = rest.split_once(MARKS.1).expect("docs/e2b.md has the second mark");
    if std::env::var_os("FUMEHOOD_TEST_WRITE").is_some() {
        std::fs::write(DOCUMENT, format!("{before}{}{table}{}{after}", MARKS.0, MARKS.1)).unwrap();
    } else {
        assert_eq!(told, table, "docs/e2b.md tells something else; FUMEHOOD_TEST_WRITE=1 writes it anew");
    }
}

fn matrix<'a>(columns: impl Iterator<Item = &'a (Subject, Vec<Outcome>)>) -> String {
    let columns: Vec<_> = columns.collect();
    let mut rows: Vec<&str> = Vec::new();
    for (_, outcomes) in &columns {
        for outcome in outcomes {
            if !rows.contains(&outcome.check.as_str()) {
                rows.push(&outcome.check);
            }
        }
    }
    let mut text = String::from("| |");
    for (subject, _) in &columns {
        text.push_str(&format!(" {} |", subject.title()));
    }
    text.push_str(&format!("\n|---|{}\n", "---|".repeat(columns.len())));
    for row in rows {
        text.push_str(&format!("| {row} |"));
        for (_, outcomes) in &columns {
            let found: BTreeMap<&str, &str> =
                outcomes.iter().map(|outcome| (outcome.check.as_str(), outcome.result.as_str())).collect();
            text.push_str(match found.get(row) {
                Some(&"passes") => " yes |",
                Some(&"absent") => " no such call |",
                Some(_) => " **no** |",
                None => " not driven |",
            });
        }
        text.push('\n');
    }
    text
}

/// The name server of `names.py`.
struct Names(Child);

// === impl Names ===

impl Names {
    fn start() -> Self {
        let mut python = Command::new("python3");
        let mut child = python.arg(format!("{HERE}/names.py")).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        Self(child)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl Subject ===

impl Subject {
    fn title(self) -> String {
        let registry = match self.language {
            Language::Python => "PyPI",
            Language::JavaScript => "npm",
        };
        let version = if self.version.is_empty() { "newest" } else { self.version };
        format!("{registry} `{}` {version}", self.package)
    }

    /// Installs it where it is not kept yet, and gives its folder.
    fn install(self) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"), PathBuf::from);
        let kept = std::env::var_os("FUMEHOOD_TEST_CACHE").map_or_else(|| target.join("e2b"), PathBuf::from);
        let version = if self.version.is_empty() { "newest" } else { self.version };
        let package = self.package.replace('/', "-");
        let folder = kept.join(format!("{:?}-{package}-{version}", self.language).to_lowercase());
        let whole = folder.join("installed");
        if whole.exists() && !self.version.is_empty() {
            println!("{}: kept in {}", self.title(), folder.display());
            return folder;
        }
        println!("{}: is installed into {}", self.title(), folder.display());
        std::fs::create_dir_all(&folder).unwrap();
        match self.language {
            Language::Python => {
                run(Command::new("python3").args(["-m", "venv"]).arg(folder.join("venv")));
                let wanted = match self.version {
                    "" => self.package.to_owned(),
                    version => format!("{}=={version}", self.package),
                };
                let pip = folder.join("venv/bin/pip");
                run(Command::new(pip).args(["install", "--quiet", "--upgrade", &wanted]));
            }
            Language::JavaScript => {
                let wanted = format!(
                    "{}@{}",
                    self.package,
                    if self.version.is_empty() { "latest" } else { self.version }
                );
                std::fs::write(folder.join("package.json"), "{\"private\": true}").unwrap();
                run(Command::new("npm")
                    .args(["install", "--no-fund", "--no-audit", &wanted])
                    .current_dir(&folder));
            }
        }
        std::fs::write(whole, "").unwrap();
        folder
    }

    fn drive(self, url: &str, key: &str) -> Vec<Outcome> {
        let folder = self.install();
        let mut command = match self.language {
            Language::Python => {
                let mut command = Command::new(folder.join("venv/bin/python"));
                command.arg(format!("{HERE}/drive.py"));
                command
            }
            Language::JavaScript => {
                let mut command = Command::new("node");
                command.arg(format!("{HERE}/drive.mjs")).env("FUMEHOOD_TEST_MODULES", &folder);
                command
            }
        };
        command.env("E2B_API_URL", url).env("E2B_SANDBOX_URL", url).env("E2B_API_KEY", key);
        let ran = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().expect("the driver starts");
        let text = String::from_utf8(ran.stdout).expect("the driver writes UTF-8");
        let outcomes: Vec<Outcome> =
            text.lines().map(|line| serde_json::from_str(line).expect("the driver writes JSON")).collect();
        for outcome in &outcomes {
            println!("{}: {}: {} {}", self.title(), outcome.result, outcome.check, outcome.why);
        }
        let fails = outcomes.iter().any(|outcome| outcome.result == "fails");
        assert_eq!(ran.status.success(), !fails, "{}: the driver ended with {}", self.title(), ran.status);
        outcomes
    }
}

fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?} ended with {status}");
}

// === impl Daemon ===

impl Daemon {
    fn start(flags: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        std::fs::set_permissions(state.path(), Permissions::from_mode(0o700)).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_fumehood"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(flags)
            .env("FUMEHOOD_STATE", state.path())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let url = loop {
            let line = lines.next().expect("the daemon tells where it listens").unwrap();
            if let Some((_, url)) = line.split_once("listens at http") {
                break format!("http{}", url.trim());
            }
        };
        // What it tells later must not fill the pipe.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| println!("daemon: {line}")));
        Self { child, state, url }
    }

    fn key(&self) -> String {
        let made = Command::new(env!("CARGO_BIN_EXE_fumehood"))
            .args(["keys", "new", "tests", "--team", "tests"])
            .env("FUMEHOOD_STATE", self.state.path())
            .output()
            .unwrap();
        let text = String::from_utf8(made.stdout).unwrap();
        let key = text.split_whitespace().find(|word| word.starts_with("e2b_"));
        key.expect("`fumehood keys new` prints the key").to_owned()
    }
}

impl Drop for Daemon {
    /// Sandboxes outlive their daemon: they are ended first, and nothing is left of them.
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let _ = self.child.wait();
        let of = |words: &[&str]| {
            Command::new(env!("CARGO_BIN_EXE_fumehood"))
                .args(words)
                .env("FUMEHOOD_STATE", self.state.path())
                .output()
        };
        let left =
            of(&["ls"]).map(|told| String::from_utf8_lossy(&told.stdout).into_owned()).unwrap_or_default();
        for id in left.lines().filter_map(|line| line.split_whitespace().next()) {
            let _ = of(&["rm", id]);
        }
    }
}
