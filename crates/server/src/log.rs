//! The daemon's log: lines on standard error, for people or for machines.

use crate::clock;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

static JSON: AtomicBool = AtomicBool::new(false);

/// From now on each line is a JSON object.
pub fn as_json() {
    JSON.store(true, Ordering::Relaxed);
}

/// Something happened.
pub fn info(what: &str, text: &str) {
    line("info", what, text);
}

/// Something went wrong, and the daemon goes on.
pub fn warn(what: &str, text: &str) {
    line("warn", what, text);
}

fn line(level: &str, what: &str, text: &str) {
    let line = if JSON.load(Ordering::Relaxed) {
        let fields = serde_json::json!({ "ms": clock::now_ms(), "level": level, "what": what, "text": text });
        format!("{fields}\n")
    } else {
        let shown: String = text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        format!("fumehood: {level}: {what}: {shown}\n")
    };
    // A log that nobody takes is no reason to stop.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}
