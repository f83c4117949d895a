//! The microvm level: a restore beside its own cold boot, forks, snapshots.
//!
//! All of one state folder, made for this and removed: the image and the template are made in it, and the first
//! run's time is told apart.

use crate::measure::{Times, time};
use crate::run::{self, Done};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const ROUNDS: usize = 20;
const FORKS: usize = 8;
/// Milliseconds.
const RESTORE_LIMIT: f64 = 150.0;
const FORKS_LIMIT: f64 = 500.0;
const SNAPSHOT_LIMIT: f64 = 50.0;
/// How much shorter a restore is than the boot of the same machine.
const RATIO: f64 = 20.0;

/// Measures with `image` as the root, which is to have `/bin/echo`.
pub(crate) fn judge(image: &Path, binary: Option<&Path>) -> Done {
    let binary = binary.map_or_else(run::release, |binary| Ok(binary.to_owned()))?;
    let state = std::env::temp_dir().join(format!("fumehood-bench-microvm-{}", std::process::id()));
    let done = measure(&binary, image, &state);
    std::fs::remove_dir_all(&state)?;
    done
}

fn measure(binary: &Path, image: &Path, state: &Path) -> Done {
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(state)?;
    if let Some(kernels) = own_kernels() {
        std::os::unix::fs::symlink(kernels, state.join("kernels"))?;
    }
    let echo = || {
        let mut command = Command::new(binary);
        command.env("FUMEHOOD_STATE", state).args(["run", "--quiet", "--level", "microvm", "--accept-tcg"]);
        command.arg("--image").arg(image).args(["--mem", "256M", "--", "/bin/echo", "hi"]);
        command
    };
    let first = time(&mut echo())?;
    let (boot, snapshot) = times(state).ok_or("the template does not say how long it took")?;
    let mut warm = Times::default();
    for _ in 0..ROUNDS {
        warm.add(time(&mut echo())?);
    }
    let began = Instant::now();
    let forks = (0..FORKS).map(|_| echo().stdin(Stdio::null()).stdout(Stdio::null()).spawn());
    for child in forks.collect::<Result<Vec<_>, _>>()?.iter_mut() {
        child.wait()?;
    }
    let forks = began.elapsed().as_secs_f64() * 1e3;
    let median = warm.quantile(0.5);
    #[expect(clippy::cast_precision_loss, reason = "milliseconds shown whole")]
    let first = first as f64 / 1e6;
    run::say(&format!(
        "microvm: first run {first:.0} ms, of it boot {boot:.0} ms and snapshot {snapshot:.0} ms"
    ));
    run::say(&format!(
        "microvm: restore to the end of the first command {median:.0} ms (median of {}), 1/{:.0} of the boot",
        warm.count(),
        boot / median
    ));
    run::say(&format!("microvm: {FORKS} machines at once, all done in {forks:.0} ms"));
    let missed = [
        (median > RESTORE_LIMIT, "a restore is longer than 150 ms"),
        (boot / median < RATIO, "a restore is longer than a twentieth of the boot"),
        (forks > FORKS_LIMIT, "eight machines take longer than 500 ms"),
        (snapshot > SNAPSHOT_LIMIT, "a snapshot is longer than 50 ms"),
    ];
    let missed: Vec<_> = missed.iter().filter(|(missed, _)| *missed).map(|(_, what)| *what).collect();
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ").into()) }
}

/// Kernels that were built for this level, if there are any.
fn own_kernels() -> Option<std::path::PathBuf> {
    let state = std::env::var_os("FUMEHOOD_STATE")
        .map_or_else(|| "/var/lib/fumehood".into(), std::path::PathBuf::from);
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
