//! Starts keepers: a program of its own each, told what to be on its standard input.

use crate::config::Config;
use crate::environment;
use crate::error::{ApiError, Code};
use fumehood_keep::fault::{self, Point};
use fumehood_keep::wire::{Born, Spec, Status};
use fumehood_model::id::TaskId;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};

/// A keeper that is not born by then is not waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// The longest line of birth.
const MOST_LINE_BYTES: u64 = 1 << 20;
/// The hidden command.
pub(crate) const ROLE: &str = "keeper";
/// Its one argument: keep nothing, and remove what the dead left.
const SWEEP: &str = "--sweep";

/// A sandbox, just born.
#[derive(Debug)]
pub(crate) struct Birth {
    pub(crate) id: TaskId,
    pub(crate) socket: PathBuf,
    pub(crate) status: Status,
    /// The process that was started; to be waited for, or it stays a zombie.
    pub(crate) child: Child,
}

/// Starts a keeper and waits until its sandbox lives.
pub(crate) async fn spawn(config: &Config, spec: &Spec) -> Result<Birth, ApiError> {
    let mut child = start(config, spec)?;
    match tokio::time::timeout(PATIENCE, dialogue(&mut child, spec)).await {
        Ok(Ok(Born::Ready { id, socket, status })) => Ok(Birth { id, socket: socket.into(), status, child }),
        Ok(Ok(Born::Failed(failure))) => {
            reap(child);
            Err(failure.into())
        }
        Ok(Err(error)) => {
            reap(child);
            Err(error)
        }
        Err(_) => {
            // It may be anywhere by now. Its reaper cleans up after it.
            let _ = child.start_kill();
            reap(child);
            Err(not_born(format!("it was not born within {} s", PATIENCE.as_secs())))
        }
    }
}

/// Removes, beside us, what sandboxes left whose keeper and reaper both died: that takes privileges and care that a
/// process of its own has.
pub(crate) fn sweep(config: &Config) {
    let mut command = Command::new(&config.program);
    command.args([ROLE, SWEEP]).env("FUMEHOOD_STATE", &config.state).current_dir("/");
    match command.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(false).spawn() {
        Ok(child) => reap(child),
        Err(error) => crate::log::warn("sweep", &error.to_string()),
    }
}

/// Waits for a child in the background.
fn reap(mut child: Child) {
    tokio::spawn(async move { child.wait().await });
}

fn start(config: &Config, spec: &Spec) -> Result<Child, ApiError> {
    Command::new(&config.program)
        .arg(ROLE)
        .env_clear()
        .envs(environment::of(spec, std::env::vars_os()))
        .env("FUMEHOOD_STATE", &config.state)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(false)
        .spawn()
        .map_err(|error| ApiError::of_host(Code::NotBorn, "start a keeper", &error))
}

async fn dialogue(child: &mut Child, spec: &Spec) -> Result<Born, ApiError> {
    fault::point(Point::CreateSpawned);
    let words = spec.told().map_err(|error| not_born(error.to_string()))?;
    let (Some(mut stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(not_born("its pipes are missing"));
    };
    // One that died at once is told of by what it said, not by the broken pipe.
    let _ = stdin.write_all(&words).await;
    drop(stdin);
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout).take(MOST_LINE_BYTES);
    let read = stdout.read_line(&mut line).await.map_err(|error| not_born(error.to_string()))?;
    if read == 0 {
        return Err(not_born("its keeper ended without a word; the daemon's log has what it said"));
    }
    serde_json::from_str(&line).map_err(|error| not_born(format!("its keeper is not understood: {error}")))
}

fn not_born(cause: impl Into<String>) -> ApiError {
    ApiError::plain(Code::NotBorn, "create the sandbox", cause)
}
