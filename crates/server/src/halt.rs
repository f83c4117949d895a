//! The kill switch: who is halted, remembered in a file of its own, and the act itself.
//!
//! It shares nothing with the main doors but a small lock that nobody waits in: not their runtime, not the
//! registry's thread. It finds sandboxes by their folders, so it reaches also what the daemon does not know.
//!
//! **Invariant:** a halt is remembered before it is done, and forgotten only after it was released.

use crate::error::{ApiError, Code};
use crate::keeper::Keeper;
use fumehood_keep::wire::Ask;
use fumehood_model::id::TaskId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// A keeper that does not answer by then is told of as one that was not reached.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who is halted.
#[derive(Debug)]
pub struct Halts {
    path: PathBuf,
    on: Mutex<On>,
}

/// What the file has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct On {
    all: bool,
    teams: BTreeSet<String>,
    sandboxes: BTreeSet<String>,
}

/// Whom a halt or a release is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    All,
    Team(String),
    Sandbox(TaskId),
}

/// What a halt or a release came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct Outcome {
    /// Sandboxes that did it.
    pub done: Vec<String>,
    /// Those that did not, with the reason.
    pub failed: Vec<(String, String)>,
    pub took_ms: u64,
}

// === impl Halts ===

impl Halts {
    /// Reads what was halted before. A file that is not understood counts as one that halts everything.
    pub(crate) fn open(folder: &Path) -> Result<Self, ApiError> {
        let path = folder.join("halts.json");
        let on = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_else(|error| {
                crate::log::warn(
                    "halt",
                    &format!("{} is damaged, so all is halted: {error}", path.display()),
                );
                On { all: true, ..On::default() }
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => On::default(),
            Err(error) => return Err(failed(&error)),
        };
        Ok(Self { path, on: Mutex::new(on) })
    }

    /// Whether new work of this team is refused.
    pub fn is_team_halted(&self, team: &str) -> bool {
        let on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        on.all || on.teams.contains(team)
    }

    /// Whether this sandbox is to stand still.
    pub fn is_halted(&self, team: &str, id: &str) -> bool {
        let on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        on.all || on.teams.contains(team) || on.sandboxes.contains(id)
    }

    /// Goes on unless new work of this team is refused.
    ///
    /// # Errors
    /// [`Code::Halted`].
    pub fn check(&self, team: &str) -> Result<(), ApiError> {
        if self.is_team_halted(team) {
            return Err(ApiError::plain(Code::Halted, "take new work", "the kill switch is on"));
        }
        Ok(())
    }

    /// Remembers a halt.
    pub(crate) fn remember(&self, whom: &Whom) -> Result<(), ApiError> {
        self.change(|on| match whom {
            Whom::All => on.all = true,
            Whom::Team(team) => drop(on.teams.insert(team.clone())),
            Whom::Sandbox(id) => drop(on.sandboxes.insert(id.to_string())),
        })
    }

    /// Forgets a halt. `All` forgets every one.
    pub(crate) fn forget(&self, whom: &Whom) -> Result<(), ApiError> {
        self.change(|on| match whom {
            Whom::All => *on = On::default(),
            Whom::Team(team) => drop(on.teams.remove(team)),
            Whom::Sandbox(id) => drop(on.sandboxes.remove(id.as_str())),
        })
    }

    fn change(&self, change: impl FnOnce(&mut On)) -> Result<(), ApiError> {
        let mut on = self.on.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = on.clone();
        change(&mut next);
        // A halt counts even where it can not be written down; a release does not.
        let written = self.write(&next);
        if written.is_ok()
            || next.all
            || next.teams.len() > on.teams.len()
            || next.sandboxes.len() > on.sandboxes.len()
        {
            *on = next;
        }
        written.map_err(|error| failed(&error))
    }

    fn write(&self, on: &On) -> std::io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(&serde_json::to_vec(on)?)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &self.path)
    }
}

/// Sandboxes that have a folder, whoever made them.
pub(crate) fn folders(folder: &Path) -> Vec<(TaskId, Keeper)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| TaskId::parse(entry.file_name().to_str()?).ok())
        .map(|id| {
            let socket = folder.join(id.as_str()).join("keeper.sock");
            (id, Keeper::at(socket))
        })
        .collect()
}

/// Those of them that listen. One that is still being made runs nothing of anybody's, and is halted before it does.
pub(crate) fn listening(folder: &Path) -> Vec<(TaskId, Keeper)> {
    let listens = |id: &TaskId| folder.join(id.as_str()).join("keeper.sock").exists();
    folders(folder).into_iter().filter(|(id, _)| listens(id)).collect()
}

/// Asks all of these at once.
pub(crate) async fn ask_all(keepers: Vec<(TaskId, Keeper)>, ask: Ask) -> Outcome {
    let began = std::time::Instant::now();
    let mut asked = JoinSet::new();
    for (id, keeper) in keepers {
        let ask = ask.clone();
        asked.spawn(async move {
            let answer = tokio::time::timeout(PATIENCE, keeper.call(&ask)).await;
            let why = match answer {
                Ok(Ok(_)) => None,
                Ok(Err(error)) => Some(ApiError::from(error).to_string()),
                Err(_) => Some("its keeper does not answer".to_owned()),
            };
            (id.to_string(), why)
        });
    }
    let mut outcome = Outcome::default();
    while let Some(joined) = asked.join_next().await {
        match joined {
            Ok((id, None)) => outcome.done.push(id),
            Ok((id, Some(why))) => outcome.failed.push((id, why)),
            Err(error) => outcome.failed.push((String::new(), error.to_string())),
        }
    }
    outcome.done.sort();
    outcome.took_ms = crate::clock::millis(began.elapsed());
    outcome
}

fn failed(error: &std::io::Error) -> ApiError {
    ApiError::of_host(Code::Registry, "keep `serve/halts.json`", error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halts_are_remembered_and_a_damaged_memory_halts_all() {
        let base = tempfile::tempdir().unwrap();
        let halts = Halts::open(base.path()).unwrap();
        halts.remember(&Whom::Team("t".to_owned())).unwrap();
        let again = Halts::open(base.path()).unwrap();
        assert!(again.is_team_halted("t") && !again.is_team_halted("u"));
        assert!(again.is_halted("t", "any"));
        assert_eq!(again.check("t").unwrap_err().code, Code::Halted);
        again.forget(&Whom::All).unwrap();
        assert!(!Halts::open(base.path()).unwrap().is_team_halted("t"));
        std::fs::write(base.path().join("halts.json"), "{").unwrap();
        assert!(Halts::open(base.path()).unwrap().is_team_halted("u"));
    }
}
