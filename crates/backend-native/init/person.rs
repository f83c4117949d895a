//! Who commands run as.

use crate::call::Errno;

/// As this program itself: the launch made it who the sandbox is.
pub(crate) struct Person;

// === impl Person ===

impl Person {
    /// Nothing is left to be given up.
    pub(crate) fn become_it(&self) -> Result<(), Errno> {
        Ok(())
    }
}
