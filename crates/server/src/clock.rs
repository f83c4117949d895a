//! The wall clock, read at one place.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A span in milliseconds.
#[must_use]
pub fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
