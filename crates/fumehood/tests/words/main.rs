//! What the program says: the help of every command and every message that needs no sandbox, held to
//! files. `UPDATE=1` rewrites them; the difference is for people to read.

#![expect(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A host with a state folder of its own and a folder to stand in.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("home/here")).unwrap();
        Self(folder)
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join("home/here").join(path)
    }

    fn run(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_fumehood"))
            .args(words)
            .current_dir(self.at(""))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", self.0.path().join("home"))
            .env("FUMEHOOD_STATE", self.0.path().join("state"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The words and all that came of them, without what differs from host to host.
    fn told(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let mut text = format!("$ fumehood {}\n", words.join(" "));
        for (name, stream) in [("", &output.stdout), ("2> ", &output.stderr)] {
            for line in String::from_utf8_lossy(stream).lines() {
                writeln!(text, "{name}{line}").unwrap();
            }
        }
        writeln!(text, "[{}]\n", output.status.code().unwrap()).unwrap();
        text.replace(&*self.0.path().to_string_lossy(), "/TMP")
    }
}

fn golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/words/golden").join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(expected == found, "{name} has changed; `UPDATE=1` rewrites it. Now:\n{found}");
}

#[test]
fn help_of_every_command() {
    let host = Host::new();
    let mut all = host.told(&["--help"]);
    for name in [
        "run", "diff", "apply", "discard", "audit", "trust", "choose", "fetch", "net", "doctor", "prove",
        "template", "schema",
    ] {
        all += &host.told(&[name, "--help"]);
    }
    for name in ["list", "show", "verify"] {
        all += &host.told(&["audit", name, "--help"]);
    }
    golden("help.txt", &all);
}

#[test]
fn messages_about_arguments() {
    let host = Host::new();
    let cases: &[&[&str]] = &[
        &["frob"],
        &["run"],
        &["run", "--", ""],
        &["run", "--memm", "1G", "true"],
        &["run", "--mem"],
        &["run", "--level", "docker", "true"],
        &["run", "--trust", "none", "true"],
        &["run", "--user", "ann", "true"],
        &["run", "--trust", "low", "--blast", "high", "true"],
        &["run", "--mem", "0", "true"],
        &["run", "--mem", "-5", "--cpus", "no", "--pids", "0", "--timeout", "1y", "true"],
        &["run", "--mem", "99999999999999999999G", "true"],
        &["run", "--env", "1A=2", "true"],
        &["run", "--cache", "yarn", "true"],
        &["run", "--session", "../x", "true"],
        &["run", "--in", "", "true"],
        &["run", "--tty", "--json", "true"],
        &["run", "--json", "--json", "true"],
        &["run", "--json"],
        &["run", "--json", "--level", "docker", "--", "true"],
        &["fetch"],
        &["fetch", "file:///etc/passwd"],
        &["fetch", "example.com"],
        &["fetch", "http://2130706433/"],
        &["fetch", "http://a@example.com/"],
        &["fetch", "-X", "POST", "https://example.com/"],
        &["fetch", "--max-bytes", "0", "https://example.com/"],
        &["fetch", "--max-bytes", "1T", "https://example.com/"],
        &["fetch", "--timeout", "1y", "https://example.com/"],
        &["fetch", "--net", "none", "https://example.com/"],
        &["fetch", "-p", "80", "https://example.com/"],
        &["fetch", "--allow", "*.com", "https://example.com/"],
        &["fetch", "-o", "nowhere/page", "https://example.com/"],
        &["fetch", "--json", "gopher://example.com/"],
        &["schema", "--pretty"],
        &["choose", "--trust", "low", "--blast", "high"],
        &["choose", "--json"],
        &["audit"],
        &["audit", "lst"],
        &["audit", "verify", "--expect-head", "12"],
        &["trust", "--list", "fumehood.toml"],
    ];
    golden("arguments.txt", &cases.iter().map(|words| host.told(words)).collect::<String>());
}

#[test]
fn messages_about_paths() {
    let host = Host::new();
    fs::write(host.at("file"), "").unwrap();
    fs::create_dir(host.at("folder")).unwrap();
    symlink("loop", host.at("loop")).unwrap();
    symlink("gone", host.at("dangling")).unwrap();
    for (name, target) in
        [("root", "/"), ("system", "/etc"), ("home", "../../home"), ("null", "/dev/null"), ("here", ".")]
    {
        symlink(target, host.at(name)).unwrap();
    }
    let _listener = std::os::unix::net::UnixListener::bind(host.at("socket")).unwrap();
    let cases: &[&[&str]] = &[
        &["run", "--workspace", "none", "true"],
        &["run", "--workspace", "file", "true"],
        &["run", "--workspace", "loop", "true"],
        &["run", "--workspace", "dangling:ro", "true"],
        &["run", "--workspace", "file/below", "true"],
        &["run", "--workspace", "..", "true"],
        &["run", "--workspace", "/", "true"],
        &["run", "--in", "folder", "true"],
        &["run", "--in", "none.csv", "true"],
        &["run", "--ro", "none", "--in", "folder", "true"],
        &["run", "--ro", "/dev/null", "true"],
        &["run", "--out", "file", "true"],
        &["run", "--out", "none/results", "true"],
        &["run", "--image", "./none", "true"],
        &["run", "--image", "none", "true"],
        &["run", "--image", "No:1", "true"],
        &["run", "--image", "./folder", "--pull", "true"],
        &["run", "--workspace", "/etc", "true"],
        &["run", "--workspace", "/usr:rw", "true"],
        &["run", "--workspace", "root", "true"],
        &["run", "--workspace", "root:ro", "true"],
        &["run", "--workspace", "system:rw", "true"],
        &["run", "--workspace", "home", "true"],
        &["run", "--ro", "root", "--ro", "null:/null", "true"],
        &["run", "--ro", "socket", "true"],
        &["run", "--in", "socket", "true"],
        &["run", "--image", "./root", "true"],
        &["run", "--out", "system", "true"],
        &["run", "--out", "system/new", "true"],
        &["run", "--workspace", "folder", "--out", "here", "true"],
    ];
    golden("paths.txt", &cases.iter().map(|words| host.told(words)).collect::<String>());
}

#[test]
fn messages_about_files_that_speak() {
    let host = Host::new();
    let mut all = String::new();
    let mut case = |text: &str, words: &[&str]| {
        fs::write(host.at("fumehood.toml"), text).unwrap();
        writeln!(all, "{}", text.trim_end()).unwrap();
        all += &host.told(words);
    };
    case("[resources]\nmemory = \"lots\"\ntimout = \"5s\"\ncpus = [2]\n", &["run", "true"]);
    case("[filesystem]\nread-only = [\"/srv\"]\n", &["run", "true"]);
    case("[resources]\nmemory = \"0\"\ncpus = \"-1\"\n", &["run", "--config", "fumehood.toml", "true"]);
    case("[resources\n", &["trust"]);
    case("[filesystem]\nworkspace = \".\"\n", &["trust"]);
    case("[filesystem]\nworkspace = \"./gone\"\n", &["run", "true"]);
    case("", &["run", "--workspace", "none", "true"]);
    fs::remove_file(host.at("fumehood.toml")).unwrap();
    symlink("/etc/passwd", host.at("fumehood.toml")).unwrap();
    all += &host.told(&["run", "true"]);
    all += &host.told(&["run", "--config", "none.toml", "true"]);
    golden("config.txt", &all);
}

#[test]
fn messages_where_nothing_has_run_yet() {
    let host = Host::new();
    let cases: &[&[&str]] = &[
        &["diff"],
        &["apply", "01"],
        &["discard", "--session", "web"],
        &["audit", "show"],
        &["audit", "list"],
        &["trust"],
        &["trust", "none.toml"],
        &["trust", "--list"],
    ];
    golden("nothing.txt", &cases.iter().map(|words| host.told(words)).collect::<String>());
}

#[test]
fn json_is_one_object_whatever_happens() {
    let host = Host::new();
    let cases: &[&[&str]] = &[
        &["run", "--json"],
        &["run", "--json", "--nope"],
        &["run", "--json", "--workspace", "none", "true"],
    ];
    for words in cases {
        let output = host.run(words);
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["ending"]["cause"], "not_started", "{words:?}");
        for field in ["step", "why", "remedy"] {
            assert!(!value["ending"][field].as_str().unwrap().is_empty(), "{words:?}: {field}");
        }
        assert!(output.stderr.is_empty(), "{words:?}");
        assert_eq!(output.status.code(), Some(125));
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let host = Host::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_fumehood"))
        .arg("schema")
        .env("FUMEHOOD_STATE", host.at("state"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stderr.is_empty(), "{output:?}");
}
