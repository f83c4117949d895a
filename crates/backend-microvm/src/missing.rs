//! What this level needs of the host and does not find.

use fumehood_backend::LaunchError;
use fumehood_model::enforcement::{Clause, Unenforceable};

/// One thing, why it is not there, and what puts it there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    pub what: &'static str,
    pub why: String,
    pub remedy: String,
}

// === impl Missing ===

impl Missing {
    /// Without it nothing of the host's kernel is out of the guest's reach.
    pub(crate) fn refuse(self) -> Unenforceable {
        let Self { what, why, remedy } = self;
        let why = format!("{what} is missing: {why}");
        Unenforceable { clause: Clause::Privilege, why, remedy }
    }

    pub(crate) fn fail(self) -> LaunchError {
        let Self { what, why, remedy } = self;
        LaunchError { step: format!("find {what}"), why, remedy }
    }
}
