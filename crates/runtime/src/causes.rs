//! An error said with all its causes, on one line.

use std::error::Error;

/// The error and what caused it, outermost first, parted by colons.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text = format!("{text}: {source}");
        next = source.source();
    }
    text
}
