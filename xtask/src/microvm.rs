//! The microvm level: a restore beside its own cold boot, forks, and snapshots of templates and of machines that live.
//!
//! All of one state folder, made for this and removed: the image and the template are made in it, and the first
//! run's time is told apart.

use crate::bench::Scratch;
use crate::measure::{Times, time};
use crate::run::{self, Done};
use serde_json::Value;
use std::error::Error;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 20;
const FORKS: usize = 8;
/// Of one that lives, whole.
const SNAPSHOTS: usize = 5;
/// Milliseconds.
const RESTORE_LIMIT: f64 = 150.0;
const FORKS_LIMIT: f64 = 500.0;
const SNAPSHOT_LIMIT: f64 = 50.0;
/// How much shorter a restore is than the boot of the same machine.
const RATIO: f64 = 20.0;

/// Programs of the small root, with the libraries that they load.
const PROGRAMS: [&str; 4] = ["sh", "echo", "true", "sleep"];

/// Measures with a root of a few of this host's programs, made for it and removed.
pub(crate) fn of_a_small_root() -> Done {
    let scratch = Scratch::new()?;
    let root = scratch.0.join("root");
    make_root(&root)?;
    judge(&root, None)
}

/// Measures with `image` as the root, which is to have `/bin/echo` and `/bin/sleep`.
pub(crate) fn judge(image: &Path, binary: Option<&Path>) -> Done {
    let binary = binary.map_or_else(run::release, |binary| Ok(binary.to_owned()))?;
    let state = std::env::temp_dir().join(format!("fumehood-bench-microvm-{}", std::process::id()));
    let bench = Bench { binary, image: image.to_owned(), state };
    let done = bench.measure();
    // Machines that live on when something failed.
    let _ = bench.command(&["stop", "--all"]).stderr(Stdio::null()).status();
    std::fs::remove_dir_all(&bench.state)?;
    done
}

/// What everything here is asked of.
struct Bench {
    binary: PathBuf,
    image: PathBuf,
    state: PathBuf,
}

/// One figure: its words, what it is and at most is to be, in milliseconds or as a share.
type Figure = (&'static str, f64, f64);

// === impl Bench ===

impl Bench {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.env("FUMEHOOD_STATE", &self.state).args(words);
        command
    }

    /// One that asks for a machine.
    fn machine(&self, words: &[&str]) -> Command {
        let mut command = self.command(words);
        command.args(["--level", "microvm", "--accept-tcg", "--mem", "256M", "--image"]).arg(&self.image);
        command
    }

    fn echo(&self) -> Command {
        let mut command = self.machine(&["run", "--quiet"]);
        command.args(["--", "/bin/echo", "hi"]);
        command
    }

    fn measure(&self) -> Done {
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&self.state)?;
        if let Some(kernels) = own_kernels() {
            std::os::unix::fs::symlink(kernels, self.state.join("kernels"))?;
        }
        let first = millis(time(&mut self.echo())?);
        let (boot, snapshot) = times(&self.state).ok_or("the template does not say how long it took")?;
        let (mut output, mut whole) = (Times::default(), Times::default());
        for _ in 0..ROUNDS {
            let (first, end) = until_output(&mut self.echo())?;
            output.add(first);
            whole.add(end);
        }
        let (output, whole) = (output.quantile(0.5), whole.quantile(0.5));
        let together = self.at_once()?;
        let kept = self.living()?;
        let line = serde_json::json!({
            "bench": "microvm", "rounds": ROUNDS, "first_run_ms": first, "boot_ms": boot, "template_ms": snapshot,
            "output_p50_ms": output, "whole_p50_ms": whole, "at_once": FORKS, "at_once_ms": together,
            "stood_still_ms": kept.stood_still, "first_fork_ms": kept.first, "forks_ms": kept.forks,
        });
        run::say(&line.to_string());
        judged(&[
            ("restore to the first output, ms", output, RESTORE_LIMIT),
            ("the same, of its own cold boot", output / boot, 1.0 / RATIO),
            ("eight machines at once, all done, ms", together, FORKS_LIMIT),
            ("eight forks of one that lives, ms", kept.forks, FORKS_LIMIT),
            ("a template written down, ms", snapshot, SNAPSHOT_LIMIT),
            ("one that lives stands still to be written down, ms", kept.stood_still, SNAPSHOT_LIMIT),
        ])
    }

    /// So many machines from their start to their end, all at the same time.
    fn at_once(&self) -> Result<f64, Box<dyn Error>> {
        let began = Instant::now();
        let all = (0..FORKS).map(|_| self.echo().stdin(Stdio::null()).stdout(Stdio::null()).spawn());
        for child in all.collect::<Result<Vec<_>, _>>()?.iter_mut() {
            if !child.wait()?.success() {
                return Err("a machine of several at once failed".into());
            }
        }
        Ok(millis(began.elapsed().as_nanos()))
    }

    /// One that lives, is written down with its memory, and forked.
    fn living(&self) -> Result<Kept, Box<dyn Error>> {
        let id = run::output(&mut self.machine(&["create"]))?.trim().to_owned();
        run::must(
            self.command(&["exec", "--detach", &id, "--", "/bin/sleep", "1000"]).stdout(Stdio::null()),
        )?;
        let mut stood_still = Vec::new();
        for round in 0..SNAPSHOTS {
            let name = format!("s{round}");
            let told = run::output(&mut self.command(&["snapshot", &id, &name, "--memory", "--json"]))?;
            let told: Value = serde_json::from_str(&told)?;
            stood_still.push(told["frozen_us"].as_f64().ok_or("a snapshot does not say its time")? / 1e3);
            run::must(&mut self.command(&["snapshots", "rm", &name]))?;
        }
        stood_still.sort_by(f64::total_cmp);
        let fork = |count: &str| -> Result<f64, Box<dyn Error>> {
            let began = Instant::now();
            run::output(&mut self.command(&["fork", &id, "--memory", "-n", count]))?;
            Ok(millis(began.elapsed().as_nanos()))
        };
        let first = fork("1")?;
        let forks = fork(&FORKS.to_string())?;
        let stood_still = stood_still.get(SNAPSHOTS / 2).copied().unwrap_or(f64::NAN);
        run::must(self.command(&["stop", "--all"]).stdout(Stdio::null()))?;
        Ok(Kept { stood_still, first, forks })
    }
}

/// Of one that lives on, in milliseconds.
struct Kept {
    stood_still: f64,
    first: f64,
    forks: f64,
}

/// Says each figure; what is more than it is to be is missed.
fn judged(figures: &[Figure]) -> Done {
    let mut missed = Vec::new();
    for (what, figure, most) in figures {
        run::say(&format!("microvm: {what}: {figure:.3}, at most {most}"));
        if figure.is_nan() || figure > most {
            missed.push(format!("microvm: {what}: {figure:.3}, at most {most}: missed"));
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("\n").into()) }
}

/// Nanoseconds to the first byte of a command's output, and to its end.
fn until_output(command: &mut Command) -> Result<(u128, u128), Box<dyn Error>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let began = Instant::now();
    let mut child = command.spawn()?;
    let mut byte = [0; 1];
    let read = child.stdout.as_mut().map(|output| output.read_exact(&mut byte));
    let first = began.elapsed().as_nanos();
    let ended = child.wait()?;
    match read {
        Some(Ok(())) if ended.success() => Ok((first, began.elapsed().as_nanos())),
        Some(_) | None => Err(format!("{command:?}: {ended}").into()),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a time in nanoseconds shown in milliseconds")]
fn millis(nanoseconds: u128) -> f64 {
    nanoseconds as f64 / 1e6
}

fn make_root(root: &Path) -> Done {
    let bin = root.join("usr/bin");
    std::fs::create_dir_all(&bin)?;
    for name in ["bin", "lib", "lib64"] {
        std::fs::create_dir_all(root.join("usr").join(name))?;
        std::os::unix::fs::symlink(Path::new("usr").join(name), root.join(name))?;
    }
    std::fs::create_dir_all(root.join("etc"))?;
    std::fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
    )?;
    std::fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    for name in PROGRAMS {
        let found = Path::new("/usr/bin").join(name);
        std::fs::copy(&found, bin.join(name))?;
        let listed = run::output(Command::new("ldd").arg(&found))?;
        for library in
            listed.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        {
            let inside = library.strip_prefix("/usr").unwrap_or(library).trim_start_matches('/');
            let at = root.join("usr").join(inside);
            std::fs::create_dir_all(at.parent().unwrap_or(root))?;
            std::fs::copy(library, at)?;
        }
    }
    Ok(())
}

/// Kernels that were built for this level, if there are any.
fn own_kernels() -> Option<PathBuf> {
    let state = std::env::var_os("FUMEHOOD_STATE").map_or_else(|| "/var/lib/fumehood".into(), PathBuf::from);
    Some(state.join("kernels")).filter(|kernels| kernels.is_dir())
}

/// What the template says: milliseconds of its boot and of its writing.
fn times(state: &Path) -> Option<(f64, f64)> {
    let entries = std::fs::read_dir(state.join("templates")).ok()?.flatten();
    let text = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("times")).ok()).next()?;
    let value = |name: &str| {
        text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    Some((value("boot_ms")?, value("snapshot_ms")?))
}
