//! What a living sandbox changed in its copy of a workspace, brought to the workspace: by its keeper, which has the layer
//! and the record, while nothing inside runs.

use super::failures;
use super::keeper::{Keeper, Verdict};
use crate::causes::chain;
use crate::files::Refusal;
use crate::files::apply::{Applied, ApplyError, Rest, Terms, apply};
use crate::files::text::{escape_path, unescape_path};
use fumehood_backend::Live;
use fumehood_keep::wire::{Failure, FailureCode, Left, Phase, Said};
use fumehood_model::report::Changes;
use std::io;
use std::path::PathBuf;

const WHAT: &str = "apply its changes";

impl Keeper<'_> {
    /// Applies the layer. One that is paused stays so.
    pub(crate) fn apply(&mut self, allow: &[String], force: &[String], partial: bool) -> Verdict<Said> {
        match self.phase() {
            Phase::Running | Phase::Paused => {}
            Phase::Halted => return Err(failures::halted()),
            Phase::Ending => return Err(failures::ending()),
        }
        // A machine has its copy within itself.
        let layer = self.layer.filter(|_| !self.life.machine).ok_or_else(layerless)?;
        let (allow, force) = (paths(allow)?, paths(force)?);
        let rest = if partial { Rest::Apply } else { Rest::Withhold };
        let terms = Terms { allow: &allow, force: &force, rest };
        let paused = self.life.frozen.is_some();
        if !paused {
            self.freeze("stand still while its changes are applied")?;
        }
        if let Some(live) = self.live() {
            live.stood();
        }
        let outcome = apply(layer, terms, &mut |event| {
            if self.record(event) { Ok(()) } else { Err(io::Error::other(self.unrecorded())) }
        });
        self.reach();
        let stood = self.live().is_none_or(Live::stood);
        // It was let go of with the application, for which it was ours already.
        let locked = layer.lock().map(std::mem::forget);
        if !paused {
            self.thaw("go on after its changes were applied")?;
        }
        locked.map_err(|error| unapplied(&chain(&error)))?;
        let (applied, held) = match outcome {
            Ok(applied) => (applied, false),
            Err(ApplyError::Held(preview)) => {
                let (refusals, conflicts, notes) = (preview.refusals, preview.conflicts, preview.notes);
                (Applied { done: Changes::default(), refusals, conflicts, notes }, true)
            }
            Err(error) => return Err(unapplied(&chain(&error))),
        };
        let mut notes = left(&applied.notes);
        if !stood {
            let why = "something inside went on by itself meanwhile: look at the workspace".to_owned();
            notes.push(Left { path: String::new(), why });
        }
        let (refused, conflicts) = (left(&applied.refusals), left(&applied.conflicts));
        Ok(Said::Applied { done: applied.done, refused, conflicts, notes, held })
    }
}

fn paths(texts: &[String]) -> Verdict<Vec<PathBuf>> {
    let path = |text: &String| {
        unescape_path(text).ok_or_else(|| {
            failures::bad(WHAT, format!("`{text}` is no path"), "name paths beneath the workspace")
        })
    };
    texts.iter().map(path).collect()
}

fn left(refusals: &[Refusal]) -> Vec<Left> {
    let one = |refusal: &Refusal| Left { path: escape_path(&refusal.path), why: refusal.why.clone() };
    refusals.iter().map(one).collect()
}

fn layerless() -> Failure {
    failures::new(
        FailureCode::Unsupported,
        (WHAT, "it has no copy of a workspace that could be seen from outside".to_owned()),
        "make sandboxes with `fumehood create --workspace DIR` for that",
    )
}

fn unapplied(why: &str) -> Failure {
    let remedy = "`fumehood audit show ID` says what was done; what was not is still in the layer";
    failures::new(FailureCode::Internal, (WHAT, why.to_owned()), remedy)
}
