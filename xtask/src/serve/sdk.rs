//! The daemon as the official E2B SDK for Python feels it, where the tests have installed one.

use super::{Daemon, Result, most};
use crate::measure::Times;
use crate::run::{self, Done};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("sdk.py");
const ROUNDS: usize = 60;
/// The first ones load modules and open connections.
const WARM_UP: usize = 5;

/// `Sandbox.create()` and `commands.run("echo")`, from a pool.
pub(super) fn judge(binary: &Path) -> Done {
    let Some(python) = newest(&kit())? else {
        run::say(
            "serve: through the E2B SDK: not measured, no package is there; `cargo test -p fumehood --test e2b -- --ignored` installs them",
        );
        return Ok(());
    };
    let daemon = Daemon::start(binary, &["--pool", "16"])?;
    std::thread::sleep(std::time::Duration::from_secs(1));
    let url = format!("http://{}", daemon.address);
    let mut client = Command::new(&python);
    client.args(["-c", SCRIPT, &ROUNDS.to_string()]).stdin(Stdio::null());
    client.env("E2B_API_URL", &url).env("E2B_SANDBOX_URL", &url).env("E2B_API_KEY", &daemon.key);
    let mut times = Times::default();
    for line in run::output(&mut client)?.lines().skip(WARM_UP) {
        times.add(line.parse()?);
    }
    if times.count() + WARM_UP != ROUNDS {
        return Err("the SDK gave too few times".into());
    }
    super::say("E2B SDK, create and first command, p95 ms", times.quantile(0.95), "");
    most("E2B SDK, create and first command, p50 ms", times.quantile(0.5), 40.0)
}

/// Where the tests keep packages.
fn kit() -> PathBuf {
    let kept = std::env::var_os("FUMEHOOD_TEST_CACHE").map(PathBuf::from);
    kept.unwrap_or_else(|| {
        let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
        target.unwrap_or_else(|| run::root().join("target")).join("e2b")
    })
}

/// The interpreter beside the newest version that is there whole.
fn newest(kit: &Path) -> Result<Option<PathBuf>> {
    let Ok(folders) = std::fs::read_dir(kit) else { return Ok(None) };
    let mut found = Vec::new();
    for folder in folders {
        let folder = folder?;
        let name = folder.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix("python-e2b-"));
        let numbers: Option<Vec<u32>> =
            version.and_then(|version| version.split('.').map(|part| part.parse().ok()).collect());
        if let Some(numbers) = numbers.filter(|_| folder.path().join("installed").exists()) {
            found.push((numbers, folder.path().join("venv/bin/python")));
        }
    }
    Ok(found.into_iter().max().map(|(_, python)| python))
}
