//! What is asked about files, and who does it: a thread for each caller, as disks and callers are waited for.

use super::failures;
use super::files::{Caller, GuestFiles, busy};
use super::keeper::{Keeper, Verdict};
use fumehood_keep::wire::{Ask, FailureCode, Phase};
use fumehood_model::event::Event;
use std::sync::Arc;

/// Callers that work on files at once. Each has a thread, and a descriptor for each folder on its way.
const MOST_AT_ONCE: usize = 32;
/// Enough for the deepest folder that is gone down to.
const STACK_BYTES: usize = 1 << 20;

impl Keeper<'_> {
    /// Gives the caller to a thread of its own. A sandbox that is paused has files all the same.
    pub(crate) fn work_on_files(&mut self, number: u64, ask: Ask) -> Verdict<()> {
        match self.phase() {
            Phase::Running | Phase::Paused => {}
            Phase::Halted => return Err(failures::halted()),
            Phase::Ending => return Err(failures::ending()),
        }
        let files = self.life.files.clone().ok_or_else(rootless)?;
        // One is ours; each thread has another.
        if Arc::strong_count(&files) > MOST_AT_ONCE + 2 {
            return Err(busy());
        }
        if let Some(event) = told(&ask)
            && !self.record(&event)
        {
            return Err(failures::unrecorded());
        }
        let Some(connection) = self.connections.remove(&number) else { return Ok(()) };
        let Ok(caller) = Caller::new(connection.stream, connection.inward) else { return Ok(()) };
        let thread = std::thread::Builder::new().name("files".to_owned()).stack_size(STACK_BYTES);
        // Where there can be no thread, the caller finds the connection closed.
        let _ = thread.spawn(move || work(&files, ask, caller));
        Ok(())
    }
}

fn work(files: &Arc<GuestFiles>, ask: Ask, caller: Caller) {
    files.answer(ask, caller);
}

/// What stands in the record. Looking is no act.
fn told(ask: &Ask) -> Option<Event> {
    let event = |verb: &str, path: &str, to: Option<&String>| {
        Some(Event::FileAsked { verb: verb.to_owned(), path: path.to_owned(), to: to.cloned() })
    };
    match ask {
        Ask::Read { path, .. } => event("read", path, None),
        Ask::Write { path, .. } => event("write", path, None),
        Ask::MakeDir { path } => event("make_dir", path, None),
        Ask::Remove { path } => event("remove", path, None),
        Ask::Move { from, to } => event("move", from, Some(to)),
        _ => None,
    }
}

fn rootless() -> fumehood_keep::wire::Failure {
    failures::new(
        FailureCode::Unsupported,
        ("work on files", "at this level the sandbox has no root of its own".to_owned()),
        "use a command inside, as in `fumehood exec ID -- cat FILE`, or the level `container`",
    )
}
