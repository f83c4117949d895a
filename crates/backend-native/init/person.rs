//! Who commands run as.

use crate::call::Errno;
use core::marker::PhantomData;

/// As this program itself: the launch made it who the sandbox is.
pub(crate) struct Person<'a>(PhantomData<&'a ()>);

// === impl Person ===

impl Person<'_> {
    pub(crate) const OURS: Self = Self(PhantomData);

    /// Nothing is left to be given up.
    pub(crate) fn become_it(&self) -> Result<(), Errno> {
        Ok(())
    }
}
