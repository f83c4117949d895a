//! Living sandboxes, as commands find them: by their folders, with nobody in between.

use crate::refusal::Refusal;
use crate::{backends, tasks};
use fumehood_keep::client::{CallError, Connection, Frame};
use fumehood_keep::wire::{Ask, Failure, Said, Sandbox, Status};
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use fumehood_model::text::shown;
use fumehood_runtime::keep::{DESCRIPTION, KEPT, SOCKET};
use fumehood_runtime::state::State;
use std::error::Error as _;
use std::fs;
use std::path::PathBuf;

const STEP: &str = "find the sandbox";

/// One sandbox's folder.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) id: TaskId,
    pub(crate) folder: PathBuf,
}

// === impl Found ===

impl Found {
    /// Its files were kept when it ended.
    pub(crate) fn is_kept(&self) -> bool {
        self.folder.join(KEPT).exists()
    }

    pub(crate) fn description(&self) -> Option<Sandbox> {
        serde_json::from_slice(&fs::read(self.folder.join(DESCRIPTION)).ok()?).ok()
    }

    /// Asks its keeper, and gives the connection for what follows.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Connection, Refusal> {
        Connection::ask(&self.folder.join(SOCKET), ask).map_err(|error| self.unreached(&error))
    }

    /// Asks, and gives the one answer.
    pub(crate) fn call(&self, ask: &Ask) -> Result<Said, Refusal> {
        self.answer(&mut self.ask(ask)?)
    }

    /// The next answer on a connection.
    pub(crate) fn answer(&self, connection: &mut Connection) -> Result<Said, Refusal> {
        match connection.next().map_err(|error| self.unreached(&error))? {
            Some(Frame::Said(Said::Failed(failure))) => Err(self.failed(failure)),
            Some(Frame::Said(said)) => Ok(said),
            Some(Frame::Bytes(..)) | None => Err(self.unreached(&CallError::Closed)),
        }
    }

    pub(crate) fn status(&self) -> Option<Status> {
        let Ok(Said::Status(status)) = Connection::call(&self.folder.join(SOCKET), &Ask::Status) else {
            return None;
        };
        Some(status)
    }

    pub(crate) fn failed(&self, failure: Failure) -> Refusal {
        let Failure { message, cause, remediation, .. } = failure;
        let remedy = remediation.replace(" ID", &format!(" {}", self.id));
        Refusal::new(&message, format!("failed to {message}: {cause}"), remedy)
    }

    pub(crate) fn unreached(&self, error: &CallError) -> Refusal {
        if let CallError::Failed(failure) = error {
            return self.failed(failure.clone());
        }
        if self.is_kept() {
            let why = format!("`{}` has ended; its files were kept", self.id);
            let remedy =
                format!("they are in `{}`; `fumehood rm {}` removes them", self.folder.display(), self.id);
            return Refusal::new(STEP, why, remedy);
        }
        let source = error.source().map(|source| format!(": {source}")).unwrap_or_default();
        Refusal::new(
            STEP,
            format!("`{}` is gone (failed to {error}{source})", self.id),
            "`fumehood ls` lists those that live",
        )
    }
}

/// Every sandbox of this user that has a folder, oldest first.
pub(crate) fn all() -> Result<Vec<Found>, Refusal> {
    let state = tasks::state()?;
    let mut found: Vec<Found> = fs::read_dir(state.sandboxes())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            Some(Found { id: TaskId::parse(entry.file_name().to_str()?).ok()?, folder: entry.path() })
        })
        .collect();
    found.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(found)
}

/// The sandbox whose id begins so.
pub(crate) fn pick(typed: &str) -> Result<Found, Refusal> {
    let typed = typed.to_ascii_lowercase();
    let mut fitting =
        all()?.into_iter().filter(|found| !typed.is_empty() && found.id.as_str().starts_with(&typed));
    match (fitting.next(), fitting.next()) {
        (Some(found), None) => Ok(found),
        (Some(one), Some(other)) => Err(Refusal::new(
            STEP,
            format!("`{typed}` is the beginning of more than one sandbox"),
            format!("type more of it, as in `{}` or `{}`", one.id, other.id),
        )),
        (None, _) => Err(Refusal::new(
            STEP,
            format!("there is no sandbox `{}`", shown(&typed)),
            "`fumehood ls` lists those that live; `fumehood create` makes one",
        )),
    }
}

/// The one sandbox whose id begins so, if there is one.
pub(crate) fn find(typed: &str) -> Option<Found> {
    pick(typed).ok()
}

/// Removes what sandboxes left whose keeper and reaper were both killed.
pub(crate) fn sweep(state: &State) {
    if let Ok(backend) = backends::of(Level::Container) {
        fumehood_runtime::keep::sweep(backend.as_ref(), state);
    }
}
