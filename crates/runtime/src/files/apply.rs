//! Bringing a layer back to the workspace on the host.
//!
//! ```text
//! changes → plan (what is refused, what conflicts, which steps) → journal → steps → sync → no journal
//! ```
//!
//! A step is one rename or one removal. Each knows what stood in its place when it was planned and what
//! is to stand there, so doing it twice is doing it once: after a kill at any point the next
//! application first finishes what the journal names, and leaves no temporary name behind.
//!
//! **Invariant:** no step replaces or removes what is not what the plan saw. It becomes a conflict.

mod journal;
mod plan;
mod steps;

use super::changes::ReadError;
use super::layer::{Layer, LayerError};
use super::text::escape_path;
use super::{Record, Refusal};
use fumehood_model::report::Changes;
use std::io;
use std::path::PathBuf;

/// What the person agrees to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms<'a> {
    /// Files that host tools execute, or folders of them, that may be brought back.
    pub allow: &'a [PathBuf],
    /// Paths, or folders of them, whose change on the host may be overwritten.
    pub force: &'a [PathBuf],
    /// What to do when something is refused or in conflict.
    pub rest: Rest,
}

/// What happens to the rest when a part can not be applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rest {
    /// Nothing is applied.
    #[default]
    Withhold,
    /// It is applied; the layer stays for what could not.
    Apply,
}

/// What an application did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    pub done: Changes,
    /// Not applied, and why.
    pub refusals: Vec<Refusal>,
    /// Changed on the host since the run began.
    pub conflicts: Vec<Refusal>,
    /// Applied, with something to know.
    pub notes: Vec<Refusal>,
}

/// What would be done, without doing it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preview {
    /// Never applied, or only when named.
    pub refusals: Vec<Refusal>,
    /// Changed on the host since the run began.
    pub conflicts: Vec<Refusal>,
    /// Applied, with something to know.
    pub notes: Vec<Refusal>,
}

/// Why nothing more was applied. The layer is still there.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("open the layer or its workspace")]
    Layer(#[from] LayerError),
    #[error("read the layer")]
    Read(#[from] ReadError),
    /// Nothing was changed.
    #[error("apply: {} refused, {} in conflict", .0.refusals.len(), .0.conflicts.len())]
    Held(Box<Preview>),
    #[error("write or read the journal of the application")]
    Journal(#[source] io::Error),
    #[error("record the change to `{}`", escape_path(path))]
    Record {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("apply `{}`", escape_path(path))]
    Step {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("stopped")]
    Stopped(#[source] io::Error),
}

/// Where an application is. Tests stop it there, as a kill would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    JournalWritten,
    StepBegun,
    TempWritten,
    StepDone,
    AllDone,
}

/// Called at each point; its error stops everything at once, with nothing tidied.
type Hook<'a> = dyn FnMut(Point) -> io::Result<()> + 'a;

// === impl Applied ===

impl Applied {
    /// Whether the layer holds nothing more and can be removed.
    pub const fn is_complete(&self) -> bool {
        self.refusals.is_empty() && self.conflicts.is_empty()
    }
}

/// Says what an application under these terms would refuse, and what is in conflict.
pub fn preview(layer: &Layer, terms: Terms<'_>) -> Result<Preview, ApplyError> {
    Ok(plan::make(layer, terms)?.preview)
}

/// Applies a layer. The caller removes the layer when the answer is complete.
///
/// An application that was cut short is finished first. `record` is called before each change.
pub fn apply(layer: &Layer, terms: Terms<'_>, record: &mut Record<'_>) -> Result<Applied, ApplyError> {
    apply_with(layer, terms, record, &mut |_point| Ok(()))
}

/// Finishes an application that was cut short, and answers whether there was one.
pub fn recover(layer: &Layer, record: &mut Record<'_>) -> Result<Option<Applied>, ApplyError> {
    let _lock = layer.lock()?;
    recover_with(layer, record, &mut |_point| Ok(()))
}

fn apply_with(
    layer: &Layer,
    terms: Terms<'_>,
    record: &mut Record<'_>,
    hook: &mut Hook<'_>,
) -> Result<Applied, ApplyError> {
    let _lock = layer.lock()?;
    let before = recover_with(layer, record, hook)?.unwrap_or_default();
    let plan::Plan { steps, preview } = plan::make(layer, terms)?;
    let held = !(preview.refusals.is_empty() && preview.conflicts.is_empty());
    if held && terms.rest == Rest::Withhold {
        return Err(ApplyError::Held(Box::new(preview)));
    }
    for refusal in preview.refusals.iter().chain(&preview.conflicts) {
        record(&refusal.event())
            .map_err(|source| ApplyError::Record { path: refusal.path.clone(), source })?;
    }
    let mut applied = Applied {
        done: before.done,
        refusals: preview.refusals,
        conflicts: preview.conflicts,
        notes: preview.notes,
    };
    if !steps.is_empty() {
        journal::write(layer.dir(), &steps).map_err(ApplyError::Journal)?;
        hook(Point::JournalWritten).map_err(ApplyError::Stopped)?;
        steps::run(layer, &steps, (record, hook), &mut applied)?;
    }
    Ok(applied)
}

fn recover_with(
    layer: &Layer,
    record: &mut Record<'_>,
    hook: &mut Hook<'_>,
) -> Result<Option<Applied>, ApplyError> {
    let Some(steps) = journal::read(layer.dir()).map_err(ApplyError::Journal)? else { return Ok(None) };
    let mut applied = Applied::default();
    steps::run(layer, &steps, (record, hook), &mut applied)?;
    Ok(Some(applied))
}

#[cfg(test)]
mod tests;
