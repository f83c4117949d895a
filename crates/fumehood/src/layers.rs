//! The layer that somebody means: by task, by session, or the latest.

use crate::refusal::Refusal;
use crate::sandboxes::{self, Found};
use crate::tasks;
use clap::Args;
use fumehood_audit::TaskLog;
use fumehood_model::event::Event;
use fumehood_model::id::TaskId;
use fumehood_model::level::Level;
use fumehood_runtime::causes::chain;
use fumehood_runtime::files::changes::{self, ChangeList, ReadLimits};
use fumehood_runtime::files::discard::remove_tree;
use fumehood_runtime::files::layer::{Layer, LayerError};
use fumehood_runtime::state::State;
use fumehood_sys::dirfd::DirHandle;
use std::error::Error;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

const STEP: &str = "open the layer";

/// Which layer is meant.
#[derive(Debug, Args)]
pub(crate) struct Meant {
    /// The task, or the living sandbox, or the beginning of its id. Left out: the latest run whose changes wait, whichever
    /// its workspace (not a session's)
    #[arg(value_name = "ID", conflicts_with = "session")]
    task: Option<String>,
    /// The layer of this session
    #[arg(long, value_name = "NAME")]
    session: Option<String>,
}

/// An open layer, and the folder that it lies in.
#[derive(Debug)]
pub(crate) struct Picked {
    pub(crate) layer: Layer,
    state: State,
    folder: DirHandle,
    name: String,
    session: Option<String>,
    /// The sandbox that has it, where that lives on, or its files were kept.
    sandbox: Option<Found>,
}

// === impl Picked ===

impl Picked {
    /// Opens the layer that is meant.
    pub(crate) fn open(meant: &Meant) -> Result<Self, Refusal> {
        let state = tasks::state()?;
        if let Some(found) = meant.task.as_deref().and_then(sandboxes::find) {
            return Self::of_sandbox(state, found);
        }
        let (folder, name) = match &meant.session {
            Some(session) => (session_folder(&state, session)?, "layer".to_owned()),
            None => {
                let task = tasks::with_layer(&state, meant.task.as_deref())?;
                let opened = DirHandle::open(&state.layers());
                let failed = |source| failed(&LayerError::Meta { name: task.to_string(), source });
                (opened.map_err(failed)?, task.to_string())
            }
        };
        let inner = folder.sub(Path::new(&name)).map_err(|error| match (&meant.session, error.kind()) {
            (Some(session), io::ErrorKind::NotFound) => Refusal::new(
                STEP,
                format!("the session `{session}` holds no changes"),
                format!("`fumehood run --session {session} --workspace DIR` makes some"),
            ),
            (Some(_) | None, _) => failed(&LayerError::Meta { name: name.clone(), source: error }),
        })?;
        let layer = Layer::open_in(inner, &name).map_err(|error| failed(&error))?;
        Ok(Self { layer, state, folder, name, session: meant.session.clone(), sandbox: None })
    }

    /// The layer of a sandbox that lives, or lived.
    fn of_sandbox(state: State, found: Found) -> Result<Self, Refusal> {
        if found.description().is_some_and(|sandbox| sandbox.level == Level::Microvm.name()) {
            let why = format!("`{}` is a machine, and has its copy of a workspace within itself", found.id);
            let remedy =
                "read its files by `fumehood exec ID -- cat FILE`, or make it at the level `container`";
            return Err(Refusal::new(STEP, why, remedy));
        }
        let name = "layer".to_owned();
        let folder = DirHandle::open(&found.folder);
        let inner = folder.and_then(|folder| Ok((folder.sub(Path::new(&name))?, folder)));
        let (inner, folder) = inner.map_err(|_| {
            let why = format!("the sandbox `{}` has no copy of a workspace", found.id);
            Refusal::new(STEP, why, "make sandboxes with `fumehood create --workspace DIR` for that")
        })?;
        let layer = Layer::open_in(inner, found.id.as_str()).map_err(|error| failed(&error))?;
        Ok(Self { layer, state, folder, name, session: None, sandbox: Some(found) })
    }

    /// The sandbox that has it, if that lives.
    pub(crate) fn living(&self) -> Option<&Found> {
        self.sandbox.as_ref().filter(|found| !found.is_kept())
    }

    /// The task whose record tells of this layer.
    pub(crate) fn task(&self) -> &TaskId {
        &self.layer.meta.task
    }

    /// How a person names this layer to a command.
    pub(crate) fn words(&self) -> String {
        self.session.as_ref().map_or_else(|| self.task().to_string(), |name| format!("--session {name}"))
    }

    /// What a person calls it in a sentence.
    pub(crate) fn title(&self) -> String {
        self.session.as_ref().map_or_else(|| self.task().to_string(), |name| format!("the session `{name}`"))
    }

    /// What the layer changes.
    pub(crate) fn changes(&self) -> Result<ChangeList, Refusal> {
        let upper = self.layer.upper().map_err(|error| failed(&error))?;
        let workspace = self.layer.workspace().map_err(|error| failed(&error))?;
        changes::read(&upper, &workspace, ReadLimits::default()).map_err(|error| failed(&error))
    }

    /// Does `act` with the task's record open, and closes it.
    pub(crate) fn recorded<T>(
        &self,
        act: impl FnOnce(&Layer, &mut dyn FnMut(&Event) -> io::Result<()>) -> T,
    ) -> Result<T, Refusal> {
        let unwritten = |error: &(dyn Error + 'static)| {
            let why = format!("the record can not be written: {}", chain(error));
            Refusal::new(
                "record it",
                why,
                fumehood_model::remedy::of(error).unwrap_or("`fumehood audit verify` looks at the record"),
            )
        };
        crate::operator::Operator::read()?;
        let mut log =
            TaskLog::reopen(&self.state.records(), self.task(), now()).map_err(|error| unwritten(&error))?;
        let outcome = act(&self.layer, &mut |event| log.append(now(), event).map_err(io::Error::other));
        log.close(now()).map_err(|error| unwritten(&error))?;
        Ok(outcome)
    }

    /// Removes the layer.
    pub(crate) fn remove(self) -> Result<(), Refusal> {
        remove_tree(&self.folder, OsStr::new(&self.name)).map_err(|error| {
            let why = format!("the layer `{}` can not be removed: {error}", self.name);
            Refusal::new(
                "remove the layer",
                why,
                "look at who owns the state folder, then `fumehood discard` again",
            )
        })
    }
}

fn session_folder(state: &State, session: &str) -> Result<DirHandle, Refusal> {
    let plain = !session.is_empty() && !session.starts_with('.') && !session.contains('/');
    let folder = plain.then(|| DirHandle::open(&state.sessions().join(session)).ok()).flatten();
    folder.ok_or_else(|| {
        let shown = fumehood_model::text::shown(session);
        Refusal::new(
            STEP,
            format!("there is no session `{shown}`"),
            "`fumehood run --session NAME` begins one",
        )
    })
}

/// An error on the way to or through a layer, with its causes.
pub(crate) fn failed(error: &dyn Error) -> Refusal {
    Refusal::new(
        STEP,
        format!("failed to {}", chain(error)),
        "`fumehood audit list` names the runs, and `fumehood audit show ID` says what one did",
    )
}

/// Milliseconds since 1970.
fn now() -> u64 {
    fumehood_sys::host::coarse_time() / 1_000_000
}
