//! Writing to standard output and standard error.
//!
//! A reader that went away (`fumehood audit show | head`) is not an error: the rest is dropped.

use fumehood_sys::poll::{self, Interest};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::Duration;

/// In a page, whatever the characters.
const MOST_AT_ONCE_CHARS: usize = 1000;

/// Writes `text` and a line end to standard output.
pub(crate) fn say(text: &str) {
    write_line(&mut io::stdout().lock(), text);
}

/// Writes `text` to standard output as it is.
pub(crate) fn say_raw(text: &str) {
    say_bytes(text.as_bytes());
}

/// Writes bytes to standard output as they are.
pub(crate) fn say_bytes(bytes: &[u8]) {
    let mut stream = io::stdout().lock();
    settle(stream.write_all(bytes).and_then(|()| stream.flush()));
}

/// Writes one value as one line of JSON to standard output.
pub(crate) fn say_json(value: &impl serde::Serialize) {
    settle(write_json(value));
}

/// The same, for an answer that must arrive.
pub(crate) fn write_json(value: &impl serde::Serialize) -> io::Result<()> {
    let text = serde_json::to_string(value).unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"));
    let mut stream = io::stdout().lock();
    stream.write_all(format!("{text}\n").as_bytes()).and_then(|()| stream.flush())
}

/// What was said and still waits goes out.
pub(crate) fn flush() {
    settle(io::stdout().flush());
}

/// Writes `fumehood: text` to standard error, with what a terminal would obey escaped.
pub(crate) fn note(text: &str) {
    tell(&format!("fumehood: {text}"));
}

/// Writes `text` and a line end to standard error, with what a terminal would obey escaped: names and
/// arguments in it are often not ours.
pub(crate) fn tell(text: &str) {
    write_line(&mut io::stderr().lock(), &fumehood_model::text::lines(text));
}

/// As [`note`] in one short line, unless it would have to wait for whoever reads standard error. Whether it was
/// said: for those who have a clock to look at.
pub(crate) fn note_at_once(text: &str) -> bool {
    let stream = io::stderr();
    let ready = poll::wait(&[(stream.as_fd(), Interest::Write)], Some(Duration::ZERO));
    let free = ready.is_ok_and(|found| found.iter().any(|waited| waited.ready));
    if free {
        // A pipe that is ready takes so much without waiting.
        note(&fumehood_model::text::cut(text, MOST_AT_ONCE_CHARS));
    }
    free
}

fn write_line(stream: &mut impl Write, text: &str) {
    // One write a line: lines of parallel runs do not mix in a log.
    settle(stream.write_all(format!("{text}\n").as_bytes()).and_then(|()| stream.flush()));
}

/// Nobody is left to be told that nobody listens.
fn settle(_written: io::Result<()>) {}
