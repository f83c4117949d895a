//! The kill switch, and taking it back.

use super::Engine;
use crate::error::ApiError;
use crate::halt::{Outcome, Whom, ask_all, listening};
use crate::sandbox::State;
use fumehood_keep::wire::{Ask, Phase, Said};

// === impl Engine ===

impl Engine {
    /// Halts, whatever else is under way: it waits for no transition. With `destroy` the sandboxes are ended then.
    ///
    /// # Errors
    /// It was done, and could not be remembered: a start of the daemon would not know of it.
    pub async fn halt(&self, whom: &Whom, destroy: bool) -> Result<Outcome, ApiError> {
        let remembered = self.halts().remember(whom);
        let keepers = self.reached(whom);
        let mut outcome = ask_all(keepers.clone(), Ask::Halt).await;
        // One that ended by itself meanwhile is past halting.
        outcome.failed.retain(|(id, _)| id.is_empty() || self.config().sandboxes.join(id).exists());
        for id in &outcome.done {
            if let Some(live) = self.any(id) {
                live.change(|sandbox| sandbox.state = State::Halted);
            }
        }
        if destroy {
            let mean = |id: &str, cause| self.any(id).iter().for_each(|live| live.mean_end(cause));
            keepers.iter().for_each(|(id, _)| mean(id.as_str(), Some("stopped")));
            let ended = ask_all(keepers, Ask::Stop { keep_files: false }).await;
            ended.failed.iter().for_each(|(id, _)| mean(id, None));
            for id in &ended.done {
                if let Some(live) = self.any(id) {
                    self.forget(&live, "stopped").await;
                }
            }
            outcome = Outcome { took_ms: outcome.took_ms.saturating_add(ended.took_ms), ..ended };
        }
        remembered.map(|()| outcome)
    }

    /// Takes a halt back: the sandboxes go on, save those that another halt still holds.
    ///
    /// # Errors
    /// It can not be forgotten, so nothing was released.
    pub async fn release(&self, whom: &Whom) -> Result<Outcome, ApiError> {
        self.halts().forget(whom)?;
        let free = |id: &str| {
            let team = self.any(id).map(|live| live.team()).unwrap_or_default();
            !self.halts().is_halted(&team, id)
        };
        let keepers = self.reached(whom).into_iter().filter(|(id, _)| free(id.as_str())).collect();
        let outcome = ask_all(keepers, Ask::Release).await;
        for id in &outcome.done {
            let Some(live) = self.any(id) else { continue };
            // One that was paused before is paused again: its keeper knows.
            let Ok(Said::Status(status)) = self.ask(&live, &Ask::Status).await else { continue };
            let state = if status.phase == Phase::Paused { State::Paused } else { State::Running };
            live.change(|sandbox| {
                if sandbox.state == State::Halted {
                    sandbox.state = state;
                }
            });
        }
        Ok(outcome)
    }

    /// The keepers of those that are meant; for all of them by their folders, so also those that wait or that no
    /// registry knows.
    fn reached(&self, whom: &Whom) -> Vec<(fumehood_model::id::TaskId, crate::keeper::Keeper)> {
        let known = || self.all().into_iter();
        match whom {
            Whom::All => listening(&self.config().sandboxes),
            Whom::Team(team) => known()
                .filter(|live| live.team() == *team)
                .map(|live| (live.id().clone(), live.keeper().clone()))
                .collect(),
            Whom::Sandbox(id) => {
                listening(&self.config().sandboxes).into_iter().filter(|(found, _)| found == id).collect()
            }
        }
    }
}
