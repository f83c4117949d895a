//! What the conformance list is run against: the built binary, a reference tool, and nothing at all.

use crate::lab::{Lab, Ran, finish};
use base64::Engine;
use fumehood_backend::conformance::{Case, Outcome, Script, Stage, Subject, Want};
use fumehood_model::level::Level;
use std::ffi::OsString;
use std::fs::File;
use std::process::{Command, Stdio};

/// The built binary, at one of its levels.
#[derive(Debug)]
pub(crate) struct Fumehood<'l>(pub(crate) &'l Lab, pub(crate) Level);

/// The built binary at the process level, where no namespace can be made.
#[derive(Debug)]
pub(crate) struct Bare<'l>(pub(crate) &'l Lab);

/// The built binary at the microvm level, under software emulation, with a root image.
#[derive(Debug)]
pub(crate) struct Microvm<'l>(pub(crate) &'l Lab, pub(crate) &'l std::path::Path);

/// bubblewrap with every wall that it has, as a reference.
#[derive(Debug)]
pub(crate) struct Bubblewrap<'l>(pub(crate) &'l Lab);

/// No wall at all, but a mount, process, host name namespace that keeps the host whole: the control.
#[derive(Debug)]
pub(crate) struct Open<'l>(pub(crate) &'l Lab);

// === impl Fumehood ===

impl Subject for Fumehood<'_> {
    fn name(&self) -> String {
        format!("{}, {}", self.1, self.0.caller.word())
    }

    fn level(&self) -> Option<Level> {
        Some(self.1)
    }

    fn supports(&self, case: &Case) -> Result<(), String> {
        match self.1 {
            Level::Wasm => {
                Err("a case is a shell script, and a command is a module here; `it/wasm` asks the same"
                    .to_owned())
            }
            Level::Process => ask(WITHOUT_NETWORK, case),
            Level::Container | Level::Gvisor | Level::Microvm => Ok(()),
        }
    }

    fn run(&self, script: &Script, stage: &Stage) -> std::io::Result<Outcome> {
        run_at(self.0, &[], &["--level", self.1.name()], (script, stage))
    }
}

/// Runs a script in the built binary, started through `before` and with `flags`.
fn run_at(
    lab: &Lab,
    before: &[OsString],
    flags: &[&str],
    (script, stage): (&Script, &Stage),
) -> std::io::Result<Outcome> {
    let mut args: Vec<OsString> = before.to_vec();
    args.extend([lab.binary().into(), "run".into(), "--json".into()]);
    args.extend(flags.iter().map(OsString::from));
    for want in script.wants {
        match want {
            Want::CopyOnWrite => args.extend(["--workspace".into(), stage.project().into()]),
            Want::WorkspaceReadOnly => args.extend(["--workspace".into(), suffixed(stage, ":ro")]),
            Want::WorkspaceReadWrite => args.extend(["--workspace".into(), suffixed(stage, ":rw")]),
            Want::ReadOnlyView => args.extend(["--ro".into(), stage.view().into()]),
            Want::Input => args.extend(["--in".into(), stage.input().into()]),
            Want::Output => args.extend(["--out".into(), stage.collected().into()]),
            Want::NamedVariable => args.extend(["--env".into(), "CONFORMANCE_NAMED".into()]),
            Want::SetVariable => args.extend(["--env".into(), "CONFORMANCE_SET=as given".into()]),
            Want::Memory(bytes) => args.extend(["--mem".into(), bytes.to_string().into()]),
            Want::Processes(count) => args.extend(["--pids".into(), count.to_string().into()]),
            Want::Timeout(ms) => args.extend(["--timeout".into(), format!("{}s", ms / 1000).into()]),
            Want::OutputCap(bytes) => args.extend(["--max-output".into(), bytes.to_string().into()]),
            Want::StdinFile | Want::StrayDescriptor | Want::Cause | Want::Program(_) => {}
        }
    }
    args.push("--".into());
    args.extend(program(script));
    let ran = start(lab, stage, script, &args)?;
    Ok(outcome_of_report(&ran))
}

// === impl Bare ===

/// What a subject can not be asked, and why not.
type Without = &'static [(&'static str, &'static str)];

/// Cases that ask for what the process level has not.
const WITHOUT_NETWORK: Without = &[
    ("no-route", "no internet socket can be made, so there is nothing to route"),
    ("own-loopback-works", "no internet socket can be made"),
    ("interfaces-can-be-listed", "no netlink socket can be made"),
];

/// And, without namespaces, what depends on the paths of a private root, or on `/proc/self`.
const WITHOUT_ROOT: Without = &[
    ("only-loopback", "`/proc/net` is closed, and there is no socket to ask by"),
    ("scratch-is-writable", "`/var/tmp` and `/dev/shm` are the host's, and closed"),
    ("scratch-is-finite", "scratch is on the host's disk, and watched"),
    ("no-capabilities", "`/proc/self` is closed"),
    ("no-new-privileges", "`/proc/self` is closed"),
    ("syscalls-filtered", "`/proc/self` is closed"),
    ("devices-minimal", "names of the host's devices are seen; none can be opened"),
];

fn ask(without: Without, case: &Case) -> Result<(), String> {
    match without.iter().find(|(name, _)| *name == case.name) {
        Some((_, why)) => Err((*why).to_owned()),
        None => Ok(()),
    }
}

impl Subject for Bare<'_> {
    fn name(&self) -> String {
        format!("process without namespaces, {}", self.0.caller.word())
    }

    fn supports(&self, case: &Case) -> Result<(), String> {
        ask(WITHOUT_NETWORK, case)?;
        ask(WITHOUT_ROOT, case)?;
        for want in case.wants {
            match want {
                Want::CopyOnWrite => return Err("refuses a copy-on-write workspace".to_owned()),
                Want::WorkspaceReadWrite if self.0.caller == crate::lab::Caller::Root => {
                    return Err("refuses a workspace that another uid would write".to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&self, script: &Script, stage: &Stage) -> std::io::Result<Outcome> {
        // Nothing is mounted, so what a script calls by the paths of a root is where the variables say.
        let text = script.text.replace("/workspace", "$FUMEHOOD_WORKSPACE");
        let text = text.replace(" /out", " $FUMEHOOD_OUT").replace(" /tmp ", " $TMPDIR ");
        let script = Script { text, wants: script.wants };
        run_at(self.0, &self.0.forbidding(), &["--level", "process"], (&script, stage))
    }
}

// === impl Microvm ===

impl Subject for Microvm<'_> {
    fn name(&self) -> String {
        format!("microvm, {}", self.0.caller.word())
    }

    fn supports(&self, case: &Case) -> Result<(), String> {
        for want in case.wants {
            match want {
                Want::ReadOnlyView => return Err("shows no folder but a workspace".to_owned()),
                Want::WorkspaceReadWrite => return Err("writes nothing through".to_owned()),
                Want::Memory(bytes) if *bytes < 128 << 20 => return Err("is larger than that".to_owned()),
                Want::Memory(_)
                | Want::CopyOnWrite
                | Want::WorkspaceReadOnly
                | Want::Input
                | Want::Output
                | Want::StdinFile
                | Want::StrayDescriptor
                | Want::NamedVariable
                | Want::SetVariable
                | Want::Processes(_)
                | Want::Timeout(_)
                | Want::OutputCap(_)
                | Want::Cause
                | Want::Program(_) => {}
            }
        }
        Ok(())
    }

    fn run(&self, script: &Script, stage: &Stage) -> std::io::Result<Outcome> {
        let mut flags = crate::machine::flags(self.1);
        if script.wants.iter().any(|want| matches!(want, Want::Memory(_))) {
            flags.truncate(flags.len() - 2);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        run_at(self.0, &[], &flags, (script, stage))
    }
}

/// The report as an outcome; what is no report stays as it came, without a cause.
fn outcome_of_report(ran: &Ran) -> Outcome {
    let mut outcome = plain(ran);
    let Ok(report) = serde_json::from_slice::<serde_json::Value>(&ran.stdout) else { return outcome };
    outcome.stdout = captured(&report["stdout"]);
    outcome.stderr = captured(&report["stderr"]);
    outcome.stderr.extend_from_slice(&ran.stderr);
    outcome.cause = report["ending"]["cause"].as_str().map(str::to_owned);
    if let Some(hits) = report["hits"].as_array() {
        outcome.hits = hits.iter().filter_map(|hit| hit["kind"].as_str().map(str::to_owned)).collect();
    }
    outcome
}

/// The bytes of a stream in a report.
pub(crate) fn captured(stream: &serde_json::Value) -> Vec<u8> {
    let text = stream["text"].as_str().unwrap_or_default();
    if stream["base64"].as_bool() == Some(true) {
        base64::engine::general_purpose::STANDARD.decode(text).unwrap()
    } else {
        text.as_bytes().to_vec()
    }
}

// === impl Bubblewrap ===

impl Subject for Bubblewrap<'_> {
    fn name(&self) -> String {
        format!("bubblewrap, {}", self.0.caller.word())
    }

    fn supports(&self, case: &Case) -> Result<(), String> {
        for want in case.wants {
            match want {
                Want::CopyOnWrite => return Err("has no copy-on-write workspace".to_owned()),
                Want::Output => return Err("collects no output".to_owned()),
                Want::Memory(_) | Want::Processes(_) => return Err("has no such limit".to_owned()),
                Want::Timeout(_) => return Err("has no clock".to_owned()),
                Want::OutputCap(_) => return Err("has no cap on output".to_owned()),
                Want::Cause => return Err("tells no cause".to_owned()),
                Want::WorkspaceReadOnly
                | Want::WorkspaceReadWrite
                | Want::ReadOnlyView
                | Want::Input
                | Want::StdinFile
                | Want::StrayDescriptor
                | Want::NamedVariable
                | Want::SetVariable
                | Want::Program(_) => {}
            }
        }
        Ok(())
    }

    fn run(&self, script: &Script, stage: &Stage) -> std::io::Result<Outcome> {
        let mut args = bubblewrap_walls();
        for want in script.wants {
            let project = stage.project();
            match want {
                Want::WorkspaceReadOnly => {
                    args.extend(["--ro-bind".into(), project.into(), "/workspace".into()])
                }
                Want::WorkspaceReadWrite => {
                    args.extend(["--bind".into(), project.into(), "/workspace".into()])
                }
                Want::ReadOnlyView => {
                    args.extend(["--ro-bind".into(), stage.view().into(), stage.view().into()])
                }
                Want::Input => {
                    args.extend(["--ro-bind".into(), stage.input().into(), "/workspace/input.txt".into()]);
                }
                Want::NamedVariable => {
                    args.extend(["--setenv", "CONFORMANCE_NAMED", "by name"].map(OsString::from));
                }
                Want::SetVariable => {
                    args.extend(["--setenv", "CONFORMANCE_SET", "as given"].map(OsString::from))
                }
                Want::CopyOnWrite
                | Want::Output
                | Want::StdinFile
                | Want::StrayDescriptor
                | Want::Memory(_)
                | Want::Processes(_)
                | Want::Timeout(_)
                | Want::OutputCap(_)
                | Want::Cause
                | Want::Program(_) => {}
            }
        }
        args.extend(["--chdir".into(), "/workspace".into(), "--".into()]);
        args.extend(program(script));
        Ok(plain(&start(self.0, stage, script, &args)?))
    }
}

/// Every wall that it has.
fn bubblewrap_walls() -> Vec<OsString> {
    [
        "bwrap",
        "--unshare-all",
        "--unshare-user",
        "--uid",
        "1000",
        "--gid",
        "1000",
        "--cap-drop",
        "ALL",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--setenv",
        "PATH",
        crate::lab::PATH,
        "--setenv",
        "HOME",
        "/root",
        "--ro-bind",
        "/usr",
        "/usr",
        "--symlink",
        "usr/bin",
        "/bin",
        "--symlink",
        "usr/sbin",
        "/sbin",
        "--symlink",
        "usr/lib",
        "/lib",
        "--symlink",
        "usr/lib64",
        "/lib64",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
        "--tmpfs",
        "/tmp",
        "--dir",
        "/workspace",
    ]
    .map(OsString::from)
    .to_vec()
}

// === impl Open ===

impl Subject for Open<'_> {
    fn name(&self) -> String {
        "no wall".to_owned()
    }

    fn supports(&self, case: &Case) -> Result<(), String> {
        let unanswerable = case
            .wants
            .iter()
            .any(|want| !matches!(want, Want::ReadOnlyView | Want::StdinFile | Want::StrayDescriptor));
        if unanswerable {
            return Err("asks for something that only a sandbox has".to_owned());
        }
        if case.name == "next-run-finds-no-memory" {
            return Err("would leave shared memory on the host".to_owned());
        }
        Ok(())
    }

    fn run(&self, script: &Script, stage: &Stage) -> std::io::Result<Outcome> {
        let mut args: Vec<OsString> =
            ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"].map(OsString::from).to_vec();
        args.extend(program(script));
        Ok(plain(&start(self.0, stage, script, &args)?))
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // Without walls, `next-run-finds-no-file` leaves its file where it says.
        for folder in ["/tmp", "/var/tmp", "/dev/shm", "/run", "/var/cache"] {
            let Ok(entries) = std::fs::read_dir(folder) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                if name.to_string_lossy().starts_with("conformance-") && entry.path().is_file() {
                    std::fs::remove_file(entry.path()).unwrap();
                }
            }
        }
    }
}

// === shared ===

fn suffixed(stage: &Stage, suffix: &str) -> OsString {
    let mut text = stage.project().into_os_string();
    text.push(suffix);
    text
}

fn program(script: &Script) -> Vec<OsString> {
    for want in script.wants {
        if let Want::Program(argv) = want {
            return argv.iter().map(OsString::from).collect();
        }
    }
    vec!["sh".into(), "-c".into(), script.text.clone().into()]
}

/// Starts the subject as a careless caller would: secrets in its variables, a stray descriptor.
fn start(lab: &Lab, stage: &Stage, script: &Script, args: &[OsString]) -> std::io::Result<Ran> {
    lab.give_all(stage.dir());
    let mut command = if script.wants.contains(&Want::StrayDescriptor) {
        let mut command: Command = lab.command("sh");
        command.args(["-c", "exec 9< \"$0\"; exec \"$@\""]).arg(stage.secret_file()).args(args);
        command
    } else {
        let (first, rest) = args.split_first().unwrap();
        let mut command = lab.command(first);
        command.args(rest);
        command
    };
    command.env("HOME", stage.home()).env("CONFORMANCE_NAMED", "by name");
    for name in ["CONFORMANCE_STRAY", "AWS_SECRET_ACCESS_KEY", "LD_CONFORMANCE"] {
        command.env(name, stage.stray());
    }
    command.current_dir(stage.dir().join("home"));
    if !script.wants.contains(&Want::StdinFile) {
        return Ok(finish(command, b""));
    }
    // Opened for both, as a terminal or a careless redirection would be.
    command.stdin(File::options().read(true).write(true).open(stage.stdin())?);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Ok(crate::lab::collect(command.spawn()?, b""))
}

fn plain(ran: &Ran) -> Outcome {
    Outcome {
        code: Some(ran.code()),
        stdout: ran.stdout.clone(),
        stderr: ran.stderr.clone(),
        cause: None,
        hits: Vec::new(),
        elapsed_ms: u64::try_from(ran.elapsed.as_millis()).unwrap(),
    }
}
