//! A copy of a stream on its way, with its times.

use std::fs::File;
use std::io::Write as _;

/// What is kept of one stream.
const MOST_BYTES: u64 = 256 << 20;

/// Where a stream is copied to.
#[derive(Debug)]
pub(crate) struct Tee {
    name: &'static str,
    file: File,
    timing: File,
    bytes: u64,
}

// === impl Tee ===

impl Tee {
    pub(crate) const fn new(name: &'static str, file: File, timing: File) -> Self {
        Self { name, file, timing, bytes: 0 }
    }

    /// Copies what passes. What can not be kept is not on the tape, and shows when it is compared.
    pub(crate) fn pass(&mut self, bytes: &[u8]) {
        if bytes.is_empty() || self.bytes >= MOST_BYTES {
            return;
        }
        let at_ms = crate::run::unix_millis();
        let line = format!("{{\"at_ms\":{at_ms},\"of\":\"{}\",\"bytes\":{}}}\n", self.name, bytes.len());
        if self.file.write_all(bytes).is_ok() && self.timing.write_all(line.as_bytes()).is_ok() {
            self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        } else {
            self.bytes = MOST_BYTES;
        }
    }
}
