//! From typed arguments to the wire form of an envelope, and from its fields back to flags.

use crate::command::{NetworkArguments, RunArguments};
use crate::refusal::Refusal;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use fumehood_model::envelope::{CredentialsSpec, EnvelopeSpec, Flaw, NetworkSpec, Syscalls, WorkspaceMode};
use fumehood_model::level::{Blast, Level, Sending, Trust};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const STEP: &str = "read the arguments";

/// What the flags say. Host paths start at `cwd`.
pub(crate) fn of_flags(args: &RunArguments, cwd: &Path) -> Result<EnvelopeSpec, Refusal> {
    let mut spec =
        EnvelopeSpec { level: args.level, trust: args.trust, blast: args.blast, ..EnvelopeSpec::default() };
    files(&mut spec, args, cwd)?;
    spec.privilege.user = args.user;
    spec.privilege.syscalls = args.syscalls;
    for variable in &args.env {
        let text = text("--env", variable)?;
        match text.split_once('=') {
            Some((name, value)) => {
                spec.credentials.env.retain(|copied| copied != name);
                spec.credentials.set.insert(name.to_owned(), value.to_owned());
            }
            None => spec.credentials.env.push(text.to_owned()),
        }
    }
    let limits = &mut spec.resources;
    limits.memory = args.memory.clone();
    limits.cpus = args.cpus.clone();
    limits.processes = args.pids;
    limits.disk = args.disk.clone();
    limits.timeout = args.timeout.clone();
    limits.output = args.max_output.clone();
    let mut network = of_network(&args.network, cwd);
    if args.learn.is_some() {
        network.network.net.get_or_insert_with(|| "proxy".to_owned());
    }
    Ok(network.overlay(spec))
}

fn files(spec: &mut EnvelopeSpec, args: &RunArguments, cwd: &Path) -> Result<(), Refusal> {
    let files = &mut spec.filesystem;
    if let Some(workspace) = &args.workspace {
        let (folder, mode) = workspace_mode(text("--workspace", workspace)?);
        files.workspace = Some(rooted("--workspace", folder, cwd)?);
        files.workspace_mode = mode;
    }
    if let Some(image) = &args.image {
        let written = text("--image", image)?;
        let folder = fumehood_model::image::is_folder(written);
        files.image = Some(if folder { rooted("--image", written, cwd)? } else { written.to_owned() });
    }
    if let Some(out) = &args.out {
        files.output = Some(rooted("--out", text("--out", out)?, cwd)?);
    }
    for path in &args.read_only {
        files.read_only.push(rooted("--ro", text("--ro", path)?, cwd)?);
    }
    for path in &args.inputs {
        files.inputs.push(rooted("--in", text("--in", path)?, cwd)?);
    }
    files.caches = args.caches.clone();
    files.session = args.session.clone();
    Ok(())
}

/// What the flags say of the network, and of the secrets that it uses.
pub(crate) fn of_network(args: &NetworkArguments, cwd: &Path) -> EnvelopeSpec {
    let NetworkArguments {
        allow,
        presets,
        net,
        secrets,
        publish,
        allow_cidr,
        resolve,
        net_limits,
        upstream_proxy,
        upstream_ca,
    } = args.clone();
    let network = NetworkSpec {
        net,
        allow,
        allow_cidr,
        resolve,
        presets,
        publish,
        limits: net_limits,
        upstream: upstream_proxy,
        authorities: upstream_ca,
    };
    let credentials = CredentialsSpec { secrets, ..CredentialsSpec::default() };
    EnvelopeSpec { network, credentials, ..EnvelopeSpec::default() }.rebased(cwd)
}

/// The folder and the mode that its ending asks for.
fn workspace_mode(text: &str) -> (&str, Option<WorkspaceMode>) {
    match (text.strip_suffix(":ro"), text.strip_suffix(":rw")) {
        (Some(folder), _) => (folder, Some(WorkspaceMode::ReadOnly)),
        (None, Some(folder)) => (folder, Some(WorkspaceMode::ReadWrite)),
        (None, None) => (text, None),
    }
}

/// A host path as the shell's user means it, `PATH[:DEST]` with its ending untouched.
fn rooted(flag: &str, text: &str, cwd: &Path) -> Result<String, Refusal> {
    if text.is_empty() {
        return Err(Refusal::new(
            STEP,
            format!("`{flag}` is given an empty path"),
            format!("name a path: `{flag} .`"),
        ));
    }
    let whole = cwd.join(text);
    // `join` keeps `./x` as it is; `components` drops the dots and leaves `..` for the check.
    let tidy: PathBuf = whole.components().collect();
    self::text(flag, tidy.as_os_str()).map(str::to_owned)
}

/// The argument as text. The wire form is text, so a path that is not UTF-8 can not be named.
fn text<'a>(flag: &str, value: &'a OsStr) -> Result<&'a str, Refusal> {
    value.to_str().ok_or_else(|| {
        let shown = value.to_string_lossy();
        Refusal::new(
            STEP,
            format!("`{flag} {shown}` is not UTF-8 text"),
            "give a path and values that are UTF-8; names inside a workspace may be any bytes",
        )
    })
}

/// The flag that says the same as a field of a file.
pub(crate) fn flag_of(field: &str) -> Option<&'static str> {
    const FLAGS: [(&str, &str); 29] = [
        ("level", "--level"),
        ("trust", "--trust"),
        ("blast", "--blast"),
        ("filesystem.image", "--image"),
        ("filesystem.workspace", "--workspace"),
        ("filesystem.workspace-mode", "--workspace"),
        ("filesystem.read-only", "--ro"),
        ("filesystem.inputs", "--in"),
        ("filesystem.output", "--out"),
        ("filesystem.caches", "--cache"),
        ("filesystem.session", "--session"),
        ("network.net", "--net"),
        ("network.allow", "--allow"),
        ("network.allow-cidr", "--allow-cidr"),
        ("network.resolve", "--resolve"),
        ("network.presets", "--preset"),
        ("network.publish", "--publish"),
        ("network.limits", "--net-limit"),
        ("network.upstream", "--upstream-proxy"),
        ("network.authorities", "--upstream-ca"),
        ("credentials.secrets", "--secret"),
        ("privilege.user", "--user"),
        ("privilege.syscalls", "--syscalls"),
        ("resources.memory", "--mem"),
        ("resources.cpus", "--cpus"),
        ("resources.processes", "--pids"),
        ("resources.disk", "--disk"),
        ("resources.timeout", "--timeout"),
        ("resources.output", "--max-output"),
    ];
    let environment = field.starts_with("credentials.").then_some("--env");
    FLAGS.iter().find(|(known, _)| *known == field).map(|(_, flag)| *flag).or(environment)
}

/// Whether a flag of this run says the field, so that a flaw is the flag's and not the file's.
pub(crate) fn was_typed(args: &RunArguments, flag: &str) -> bool {
    match flag {
        "--level" => args.level.is_some(),
        "--trust" => args.trust.is_some(),
        "--blast" => args.blast.is_some(),
        "--image" => args.image.is_some(),
        "--workspace" => args.workspace.is_some(),
        "--ro" => !args.read_only.is_empty(),
        "--in" => !args.inputs.is_empty(),
        "--out" => args.out.is_some(),
        "--cache" => !args.caches.is_empty(),
        "--session" => args.session.is_some(),
        "--net" => args.network.net.is_some(),
        "--allow" => !args.network.allow.is_empty(),
        "--allow-cidr" => !args.network.allow_cidr.is_empty(),
        "--resolve" => !args.network.resolve.is_empty(),
        "--preset" => !args.network.presets.is_empty(),
        "--publish" => !args.network.publish.is_empty(),
        "--net-limit" => !args.network.net_limits.is_empty(),
        "--upstream-proxy" => args.network.upstream_proxy.is_some(),
        "--upstream-ca" => !args.network.upstream_ca.is_empty(),
        "--secret" => !args.network.secrets.is_empty(),
        "--user" => args.user.is_some(),
        "--syscalls" => args.syscalls.is_some(),
        "--mem" => args.memory.is_some(),
        "--cpus" => args.cpus.is_some(),
        "--pids" => args.pids.is_some(),
        "--disk" => args.disk.is_some(),
        "--timeout" => args.timeout.is_some(),
        "--max-output" => args.max_output.is_some(),
        "--env" => !args.env.is_empty(),
        _ => false,
    }
}

/// Where a flaw was written: a flag where one was typed, else the field.
pub(crate) fn place(args: &RunArguments, flaw: &Flaw) -> String {
    match flag_of(flaw.field) {
        Some(flag) if was_typed(args, flag) => flag.to_owned(),
        _ => flaw.field.to_owned(),
    }
}

// === words of the closed enums ===

/// Reads a level.
pub(crate) fn level_parser() -> impl TypedValueParser<Value = Level> {
    words(Level::ALL.map(|level| (level.name(), level)))
}

/// Reads a trust.
pub(crate) fn trust_parser() -> impl TypedValueParser<Value = Trust> {
    words([Trust::Low, Trust::Medium, Trust::High].map(|trust| (trust.name(), trust)))
}

/// Reads a blast radius.
pub(crate) fn blast_parser() -> impl TypedValueParser<Value = Blast> {
    words([Blast::Low, Blast::Medium, Blast::High].map(|blast| (blast.name(), blast)))
}

/// Reads how far a run may send.
pub(crate) fn sending_parser() -> impl TypedValueParser<Value = Sending> {
    words([Sending::Nothing, Sending::Bound, Sending::Open].map(|sending| (sending.name(), sending)))
}

/// Reads a system call profile.
pub(crate) fn syscalls_parser() -> impl TypedValueParser<Value = Syscalls> {
    words([("default", Syscalls::Default), ("debug", Syscalls::Debug)])
}

fn words<T, const N: usize>(table: [(&'static str, T); N]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let names = table.map(|(name, _)| name);
    PossibleValuesParser::new(names).try_map(move |word| {
        let found = table.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
        found.ok_or_else(|| format!("`{word}` is unknown"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> RunArguments {
        crate::usage::parse("run", words.iter().map(Into::into).collect()).unwrap()
    }

    fn laid(words: &[&str]) -> EnvelopeSpec {
        of_flags(&arguments(words), Path::new("/here")).unwrap()
    }

    #[test]
    fn a_workspace_is_copied_on_write_unless_its_ending_says_otherwise() {
        let files = |word: &str| laid(&["--workspace", word, "true"]).filesystem;
        assert_eq!(files(".").workspace.as_deref(), Some("/here"));
        assert_eq!(files(".").workspace_mode, None);
        assert_eq!(files("p:ro").workspace_mode, Some(WorkspaceMode::ReadOnly));
        assert_eq!(files("p:rw").workspace.as_deref(), Some("/here/p"));
    }

    #[test]
    fn host_paths_start_where_the_user_stands_and_keep_their_destination() {
        let files = laid(&["--in", "./a.csv:b.csv", "--ro", "/opt/x", "true"]).filesystem;
        assert_eq!(files.inputs, ["/here/a.csv:b.csv"]);
        assert_eq!(files.read_only, ["/opt/x"]);
    }

    #[test]
    fn a_variable_is_copied_or_set() {
        let credentials = laid(&["-e", "A", "-e", "B=1=2", "-e", "A=x", "true"]).credentials;
        assert!(credentials.env.is_empty());
        assert_eq!(credentials.set.get("B").map(String::as_str), Some("1=2"));
        assert_eq!(credentials.set.get("A").map(String::as_str), Some("x"));
    }

    #[test]
    fn the_words_of_the_command_are_never_ours() {
        let args = arguments(&["--mem", "1G", "ls", "--json", "-q", "--", "x"]);
        assert_eq!(args.command, ["ls", "--json", "-q", "--", "x"]);
        assert!(!args.json);
        assert_eq!(arguments(&["--", "--odd"]).command, ["--odd"]);
    }

    #[test]
    fn negative_limits_reach_the_check() {
        assert_eq!(laid(&["--mem", "-5", "true"]).resources.memory.as_deref(), Some("-5"));
    }
}
