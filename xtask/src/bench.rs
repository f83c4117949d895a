//! Whole-process start: `/bin/true` behind each tool's walls, all sides in one interleaved run.
//!
//! Figures are compared as ratios within one run. A tool that is missing is reported as missing.

use crate::measure::{Times, time};
use crate::run::{self, Done};
use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const ROUNDS: usize = 200;
const WARM_UP: usize = 10;
/// An ordinary user that no account of a usual machine has.
const USER: &str = "12345";

/// One tool in one role.
struct Side {
    name: &'static str,
    /// What stands around `/bin/true` there, in words.
    unshares: &'static str,
    command: Command,
}

/// Root and an ordinary user, each against the peers that it can use.
pub(crate) fn whole_process() -> Done {
    let binary = run::release()?;
    let folder = Scratch::new()?;
    let copy = folder.0.join("fumehood");
    std::fs::copy(&binary, &copy)?;
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755))?;
    let root = is_root()?;
    if root {
        compare("root", root_sides(&copy, &folder.0)?, &[("bwrap", 0.85), ("crun", 0.25)])?;
    } else {
        run::say("root: not measured, this is an ordinary user");
    }
    compare("user", user_sides(&copy, &folder.0, root)?, &[("bwrap", 1.1)])
}

/// Runs the engine-only benchmark of the container level, where there is one.
pub(crate) fn engine() -> Done {
    let benches = run::root().join("crates/backend-native/benches/engine.rs");
    if !benches.exists() {
        run::say("engine: missing: crates/backend-native/benches/engine.rs");
        return Ok(());
    }
    run::must(&mut run::cargo(&["bench", "--package", "fumehood-backend-native", "--bench", "engine"]))
}

fn root_sides(fumehood: &Path, folder: &Path) -> Result<Vec<Side>, Box<dyn Error>> {
    let mut sides = vec![plain(), ours(fumehood, folder)];
    sides.extend(peer("bwrap", bubblewrap));
    for name in ["crun", "runc"] {
        let bundle = folder.join(name);
        match run::find(name) {
            Some(program) => {
                write_bundle(&program, &bundle)?;
                sides.push(container(name, &program, &bundle, folder));
            }
            None => run::say(&format!("root: {name}: missing")),
        }
    }
    Ok(sides)
}

fn user_sides(fumehood: &Path, folder: &Path, root: bool) -> Result<Vec<Side>, Box<dyn Error>> {
    let home = folder.join("home");
    std::fs::create_dir_all(&home)?;
    let mut sides = vec![plain(), ours(fumehood, &home)];
    sides.extend(peer("bwrap", bubblewrap));
    if root {
        std::os::unix::fs::chown(&home, Some(USER.parse()?), Some(USER.parse()?))?;
        for side in &mut sides {
            side.command = as_user(&side.command);
        }
    }
    Ok(sides)
}

/// The same command through `setpriv`, which costs each side the same.
fn as_user(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    wrapped
}

fn plain() -> Side {
    Side { name: "fork+exec", unshares: "nothing", command: Command::new("/bin/true") }
}

fn ours(fumehood: &Path, home: &Path) -> Side {
    let mut command = Command::new(fumehood);
    command.args(["run", "-q", "--", "/bin/true"]);
    command.env("HOME", home).env("FUMEHOOD_STATE", home.join("state"));
    Side {
        name: "fumehood",
        unshares: "user, mount, pid, net, ipc, uts, cgroup; own root, no capabilities, seccomp, Landlock, limits, record",
        command,
    }
}

fn peer(name: &'static str, side: fn(PathBuf) -> Side) -> Option<Side> {
    let found = run::find(name);
    if found.is_none() {
        run::say(&format!("{name}: missing"));
    }
    found.map(side)
}

fn bubblewrap(program: PathBuf) -> Side {
    let mut command = Command::new(program);
    command.args(["--unshare-all", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin"]);
    command.args(["--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64", "--proc", "/proc"]);
    command.args(["--dev", "/dev", "--tmpfs", "/tmp", "--die-with-parent", "--new-session", "/bin/true"]);
    Side {
        name: "bwrap",
        unshares: "user, mount, pid, net, ipc, uts, cgroup; own root; no seccomp, no limits, no record",
        command,
    }
}

/// A mount namespace without the second cgroup hierarchy, which one of the tools stumbles over.
fn container(name: &'static str, program: &Path, bundle: &Path, folder: &Path) -> Side {
    let script = "umount /sys/fs/cgroup/unified 2> /dev/null; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(program);
    command
        .arg("--root")
        .arg(folder.join("containers"))
        .arg("run")
        .arg("--bundle")
        .arg(bundle)
        .arg(format!("bench-{name}"));
    Side {
        name,
        unshares: "mount, pid, net, ipc, uts, cgroup; own root, its default specification; no record",
        command,
    }
}

/// The tool's own default specification over the host's system folders, running `/bin/true`.
fn write_bundle(program: &Path, bundle: &Path) -> Done {
    std::fs::create_dir_all(bundle.join("rootfs"))?;
    run::must(Command::new(program).arg("spec").current_dir(bundle))?;
    let file = bundle.join("config.json");
    let mut spec: serde_json::Value = serde_json::from_slice(&std::fs::read(&file)?)?;
    spec["process"]["args"] = serde_json::json!(["/bin/true"]);
    spec["process"]["terminal"] = serde_json::json!(false);
    spec["root"]["path"] = serde_json::json!(bundle.join("rootfs"));
    let mounts = spec["mounts"].as_array_mut().ok_or("a specification without mounts")?;
    for folder in ["usr", "lib", "lib64", "bin"] {
        std::fs::create_dir_all(bundle.join("rootfs").join(folder))?;
        let source = format!("/{folder}");
        mounts.push(serde_json::json!({"destination": source, "source": source, "options": ["rbind", "ro"]}));
    }
    std::fs::write(file, serde_json::to_vec(&spec)?)?;
    Ok(())
}

/// Measures every side in turn, round by round, and holds ours against the targets.
fn compare(caller: &str, mut sides: Vec<Side>, targets: &[(&str, f64)]) -> Done {
    let mut times: Vec<Times> = sides.iter().map(|_| Times::default()).collect();
    for round in 0..WARM_UP + ROUNDS {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            let elapsed =
                time(&mut side.command).map_err(|error| format!("{caller}: {}: {error}", side.name))?;
            if round >= WARM_UP {
                times.add(elapsed);
            }
        }
    }
    let median = |name: &str| {
        sides.iter().zip(&times).find(|(side, _)| side.name == name).map(|(_, times)| times.quantile(0.5))
    };
    let own = median("fumehood").ok_or("nothing was measured")?;
    run::say(&format!("\n{caller}: `/bin/true`, whole process, {ROUNDS} interleaved rounds, milliseconds"));
    run::say(&format!("{:<10} {:>8} {:>8} {:>8}  unshares", "", "p50", "p90", "ours/it"));
    for (side, times) in sides.iter().zip(&times) {
        let (p50, p90) = (times.quantile(0.5), times.quantile(0.9));
        run::say(&format!("{:<10} {p50:>8.2} {p90:>8.2} {:>8.2}  {}", side.name, own / p50, side.unshares));
    }
    for (side, times) in sides.iter().zip(&times) {
        run::say(&line(caller, side, times, own).to_string());
    }
    let mut missed = Vec::new();
    for (name, most) in targets {
        match median(name) {
            Some(theirs) if own / theirs <= *most => {
                run::say(&format!("{caller}: {name}: {:.2} of {most}: met", own / theirs))
            }
            Some(theirs) => missed.push(format!("{caller}: {name}: {:.2} of {most}: missed", own / theirs)),
            None => missed.push(format!("{caller}: {name}: missing, so the figure can not be shown")),
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n").into()) }
}

fn line(caller: &str, side: &Side, times: &Times, own: f64) -> serde_json::Value {
    serde_json::json!({
        "bench": "whole-process", "caller": caller, "tool": side.name, "rounds": times.count(),
        "p50_ms": times.quantile(0.5), "p90_ms": times.quantile(0.9), "ratio_p50": own / times.quantile(0.5),
        "unshares": side.unshares,
    })
}

/// Whether this process is root's.
pub(crate) fn is_root() -> Result<bool, Box<dyn Error>> {
    Ok(std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self")?) == 0)
}

/// A folder that goes when it is dropped.
pub(crate) struct Scratch(pub(crate) PathBuf);

// === impl Scratch ===

impl Scratch {
    /// Makes a folder that other users may enter.
    pub(crate) fn new() -> Result<Self, Box<dyn Error>> {
        let path = std::env::temp_dir().join(format!("fumehood-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            run::complain(&format!("{}: {error}", self.0.display()));
        }
    }
}
