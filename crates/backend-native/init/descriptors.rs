//! Descriptors that came with a request, in order.

use crate::call::Fd;
use crate::wire::DESCRIPTORS;

/// Each is taken once; what is left is closed.
pub(crate) struct Descriptors {
    places: [Option<Fd>; DESCRIPTORS],
}

// === impl Descriptors ===

impl Descriptors {
    pub(crate) const fn new(places: [Option<Fd>; DESCRIPTORS]) -> Self {
        Self { places }
    }

    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count()
    }

    /// The next in order.
    pub(crate) fn next(&mut self) -> Option<Fd> {
        self.places.iter_mut().find_map(Option::take)
    }
}
