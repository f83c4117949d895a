//! What happened, in order, with what was said meanwhile.

use super::{STEP, say, tape_of};
use crate::refusal::Refusal;
use crate::screen;
use fumehood_audit::{Line, Transcript};
use fumehood_model::id::TaskId;
use fumehood_model::text::shown;
use fumehood_runtime::state::State;
use fumehood_runtime::tape;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::time::Duration;

/// A value longer than this is shown from its start.
const VALUE_CHARS: usize = 160;

/// A piece of a stream, as the tape's times have it.
#[derive(Debug, Deserialize)]
struct Timed {
    at_ms: u64,
    of: String,
    bytes: usize,
}

/// A piece of a stream.
#[derive(Debug)]
struct Piece {
    /// Milliseconds since 1970, as the record has it.
    at_ms: u64,
    of: String,
    bytes: Vec<u8>,
}

/// Every line of the record, and every piece of the streams where they were kept.
pub(super) fn timeline(state: &State, task: &TaskId, transcript: &Transcript, json: bool) {
    let begun = transcript.lines.first().map_or(0, |line| line.at_ms);
    let pieces = match tape_of(transcript) {
        None => Vec::new(),
        Some(sha256) => match pieces(state, task, &sha256) {
            Ok(pieces) => pieces,
            Err(refusal) => {
                screen::note(&refusal.why);
                Vec::new()
            }
        },
    };
    let mut pieces = pieces.into_iter().peekable();
    let mut told = |until: u64| {
        while let Some(piece) = pieces.next_if(|piece| piece.at_ms < until) {
            if json {
                let text = String::from_utf8_lossy(&piece.bytes);
                screen::say_json(&json!({ "at_ms": piece.at_ms, "of": piece.of, "text": text }));
            } else {
                piece.say(begun);
            }
        }
    };
    for line in &transcript.lines {
        told(line.at_ms);
        if json {
            screen::say_json(line);
        } else {
            say_line(after(begun, line.at_ms), line);
        }
    }
    told(u64::MAX);
    if transcript.unreadable_bytes > 0 {
        screen::note("part of the record is not as it was written; `fumehood audit verify` says where");
    }
}

/// The output as an asciicast, version 2.
pub(super) fn cast(state: &State, task: &TaskId, transcript: &Transcript) -> Result<(), Refusal> {
    let Some(sha256) = tape_of(transcript) else { return Err(no_tape(task)) };
    let pieces = pieces(state, task, &sha256)?;
    let started = transcript.lines.iter().find(|line| line.event == "exec.started");
    let begun = started.map_or(0, |line| line.at_ms);
    screen::say_json(&json!({ "version": 2, "width": 80, "height": 24, "timestamp": begun / 1000 }));
    for piece in pieces.iter().filter(|piece| piece.of != "stdin") {
        // A player is a terminal, which wants both.
        let text = String::from_utf8_lossy(&piece.bytes).replace('\n', "\r\n");
        screen::say_json(&json!([after(begun, piece.at_ms), "o", text]));
    }
    Ok(())
}

pub(super) fn no_tape(task: &TaskId) -> Refusal {
    Refusal::new(STEP, format!("no tape of `{task}` was kept"), "run it with `fumehood run --tape`")
}

fn pieces(state: &State, task: &TaskId, sha256: &str) -> Result<Vec<Piece>, Refusal> {
    let folder = tape::folder(state).join(task.as_str());
    tape::open(&folder, sha256).map_err(|error| super::unplayed(&error))?;
    let unread = |error: std::io::Error| super::unplayed(&error);
    let timing = fs::read_to_string(folder.join(tape::TIMING)).map_err(unread)?;
    let mut streams: HashMap<String, std::vec::IntoIter<u8>> = HashMap::new();
    for name in ["stdin", "stdout", "stderr"] {
        streams.insert(name.to_owned(), fs::read(folder.join(name)).map_err(unread)?.into_iter());
    }
    let timed = timing.lines().filter_map(|line| serde_json::from_str::<Timed>(line).ok());
    let piece = |Timed { at_ms, of, bytes }| {
        let bytes = streams.get_mut(&of)?.take(bytes).collect();
        Some(Piece { at_ms, of, bytes })
    };
    Ok(timed.filter_map(piece).collect())
}

/// Seconds.
fn after(begun: u64, at_ms: u64) -> f64 {
    Duration::from_millis(at_ms.saturating_sub(begun)).as_secs_f64()
}

fn say_line(after: f64, line: &Line) {
    let fields: String =
        line.fields.iter().map(|(name, value)| format!("  {name}={}", short(value))).collect();
    say(&format!("{:>9.3}s  {}{fields}", after, line.event));
}

fn short(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    };
    fumehood_model::text::cut(&text, VALUE_CHARS)
}

// === impl Piece ===

impl Piece {
    fn say(&self, begun: u64) {
        let at = after(begun, self.at_ms);
        for line in String::from_utf8_lossy(&self.bytes).lines() {
            screen::say(&format!("{at:>9.3}s    {:<6} | {}", self.of, shown(line)));
        }
    }
}
