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
/// What the process level is called here, and how much of bubblewrap's time it may take.
const PROCESS: &str = "process";
const PROCESS_MOST: f64 = 0.6;
/// An ordinary user that no account of a usual machine has.
const USER: &str = "12345";

/// One tool in one role.
struct Side {
    name: &'static str,
    /// What stands around `/bin/true` there, in words.
    unshares: &'static str,
    command: Command,
}

/// Root and an ordinary user, each against the peers that it can use. Each caller is this program
/// again, so that no side carries the cost of becoming that caller.
pub(crate) fn whole_process() -> Done {
    let binary = run::release()?;
    let folder = Scratch::new()?;
    for (from, name) in [(binary, "fumehood"), (std::env::current_exe()?, "xtask")] {
        std::fs::copy(from, folder.0.join(name))?;
        std::fs::set_permissions(folder.0.join(name), PermissionsExt::from_mode(0o755))?;
    }
    let home = folder.0.join("home");
    std::fs::create_dir_all(&home)?;
    let again = folder.0.join("xtask");
    if !is_root()? {
        run::say("root: not measured, this is an ordinary user");
        return run::again(Command::new(again).args(["bench", "as-user"]).arg(&folder.0));
    }
    // A mount namespace without the second cgroup hierarchy, over which one of the tools stumbles.
    let script = "umount /sys/fs/cgroup/unified 2> /dev/null; exec \"$@\"";
    let mut root = Command::new("unshare");
    root.args(["--mount", "sh", "-c", script, "sh"]).arg(&again).args(["bench", "as-root"]).arg(&folder.0);
    let as_root = run::again(&mut root);
    std::os::unix::fs::chown(&home, Some(USER.parse()?), Some(USER.parse()?))?;
    let mut user = Command::new("setpriv");
    user.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"]);
    user.arg(&again).args(["bench", "as-user"]).arg(&folder.0).current_dir("/");
    let as_user = run::again(&mut user);
    run::together([as_root, as_user])
}

/// The comparison of root, in a folder that [`whole_process`] has made.
pub(crate) fn as_root(folder: &Path) -> Done {
    let mut sides = vec![plain(), ours(&folder.join("fumehood"), folder)];
    sides.push(process(&folder.join("fumehood"), folder));
    sides.extend(peer("bwrap", bubblewrap));
    for name in ["crun", "runc"] {
        let bundle = folder.join(name);
        match run::find(name) {
            Some(program) => {
                write_bundle(&program, &bundle)?;
                sides.push(container(name, &program, &bundle, folder));
            }
            None => run::say(&format!("{name}: missing")),
        }
    }
    compare(
        "root",
        sides,
        &[("fumehood", "bwrap", 0.85), ("fumehood", "crun", 0.25), (PROCESS, "bwrap", PROCESS_MOST)],
    )
}

/// The comparison of an ordinary user.
pub(crate) fn as_user(folder: &Path) -> Done {
    let mut sides = vec![plain(), ours(&folder.join("fumehood"), &folder.join("home"))];
    sides.push(process(&folder.join("fumehood"), &folder.join("home")));
    sides.extend(peer("bwrap", bubblewrap));
    compare("user", sides, &[("fumehood", "bwrap", 1.1), (PROCESS, "bwrap", PROCESS_MOST)])
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

/// The process level, which takes fewer namespaces.
fn process(fumehood: &Path, home: &Path) -> Side {
    let mut command = Command::new(fumehood);
    command.args(["run", "-q", "--level", "process", "--", "/bin/true"]);
    command.env("HOME", home).env("FUMEHOOD_STATE", home.join("state"));
    Side {
        name: PROCESS,
        unshares: "user, mount, pid, uts, cgroup; own root, no internet sockets, no capabilities, seccomp, Landlock, limits, record",
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

fn container(name: &'static str, program: &Path, bundle: &Path, folder: &Path) -> Side {
    let mut command = Command::new(program);
    command.arg("--root").arg(folder.join("containers")).arg("run");
    command.arg("--bundle").arg(bundle).arg(format!("bench-{name}"));
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
fn compare(caller: &str, mut sides: Vec<Side>, targets: &[(&str, &str, f64)]) -> Done {
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
    for (ours, name, most) in targets {
        match (median(ours), median(name)) {
            (Some(own), Some(theirs)) if own / theirs <= *most => {
                run::say(&format!("{caller}: {ours} to {name}: {:.2} of {most}: met", own / theirs));
            }
            (Some(own), Some(theirs)) => {
                missed.push(format!("{caller}: {ours} to {name}: {:.2} of {most}: missed", own / theirs));
            }
            (None, _) | (_, None) => {
                missed.push(format!("{caller}: {ours} to {name}: missing, so the figure can not be shown"))
            }
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
        // Where the state of root really is. Making a file costs ten times as much in a folder that is as busy as `/tmp`.
        let path = Path::new("/var/lib").join(format!("fumehood-bench-{}", std::process::id()));
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
