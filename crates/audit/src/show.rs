//! The record for people. What comes from inside is escaped: no control character, no character that
//! turns the direction of text, none that can not be seen, reaches a terminal from here.

use crate::ledger::CrashSeal;
use crate::proof::TaskState;
use crate::read::{Life, TaskSummary, Transcript};
use crate::verify::{Report, TaskReport};
use serde_json::Value;
use std::fmt::Write as _;

/// A value longer than this is shown from its start; `--json` has it whole.
const VALUE_LETTERS: usize = 400;
/// The same for a command in a list.
const COMMAND_LETTERS: usize = 100;

/// One line an event.
pub fn show(transcript: &Transcript) -> String {
    let mut page = String::new();
    for line in &transcript.lines {
        let _ = write!(page, "{}  {:>3}  {}", time(line.at_ms), line.seq, plain(&line.event));
        for (name, value) in &line.fields {
            let _ = write!(page, "  {}={}", plain(name), shortened(&shown(value), VALUE_LETTERS));
        }
        page.push('\n');
    }
    if transcript.unreadable_bytes > 0 {
        let bytes = transcript.unreadable_bytes;
        let _ = writeln!(
            page,
            "{bytes} bytes are left out here: they are not as they were written; `fumehood audit verify` says where"
        );
    }
    page
}

/// One line a task.
pub fn show_list(tasks: &[TaskSummary]) -> String {
    let mut page = String::new();
    for task in tasks {
        let state = match (task.life, task.cause.as_deref()) {
            (Life::Open, _) => "running".to_owned(),
            (Life::Lost, _) => "lost".to_owned(),
            (Life::Pruned, _) => "pruned".to_owned(),
            (Life::Closed, cause) => plain(cause.unwrap_or("closed")),
        };
        let argv: Vec<String> = task.argv.iter().map(|word| shown_text(word)).collect();
        let argv = shortened(&argv.join(" "), COMMAND_LETTERS);
        let _ = writeln!(page, "{}  {}  {state:<13}  {argv}", task.task, time(task.opened_at_ms));
    }
    page
}

/// What is wrong, task by task, then the whole in one line, and the head to keep elsewhere.
pub fn show_report(report: &Report) -> String {
    let mut page = String::new();
    let mut counts = [0_usize; 5];
    for task in &report.tasks {
        let [ok, open, lost, broken, pruned] = &mut counts;
        *match task.state {
            TaskState::Ok => ok,
            TaskState::Open => open,
            TaskState::Lost => lost,
            TaskState::Broken { .. } => broken,
            TaskState::Pruned => pruned,
        } += 1;
        show_task(&mut page, task);
    }
    let index = &report.index;
    for CrashSeal { seq, torn_bytes } in &index.seals {
        let _ = writeln!(page, "index  a crash left {torn_bytes} bytes of a line before line {seq}");
    }
    if index.torn_bytes > 0 {
        let _ = writeln!(page, "index  a crash left {} bytes of a line at the end", index.torn_bytes);
    }
    if let Some(found) = &index.broken {
        let _ = writeln!(page, "index  BROKEN at line {}: {}", found.seq, plain(&found.what));
    }
    if index.has_expected == Some(false) {
        let _ =
            writeln!(page, "index  BROKEN: it does not hold the expected line: its end was cut or rewritten");
    }
    if let Some(flaw) = &index.signature_flaw {
        let _ = writeln!(page, "index  BROKEN: {}", plain(flaw));
    }
    for stray in &report.strays {
        let _ = writeln!(page, "{}  is no record", shown_text(stray));
    }
    let [ok, open, lost, broken, pruned] = counts;
    let pruned = if pruned > 0 { format!(", {pruned} pruned") } else { String::new() };
    let verdict = if report.is_whole() { "whole" } else { "NOT WHOLE" };
    let _ = writeln!(
        page,
        "the record is {verdict}: {ok} complete, {open} running, {lost} lost, {broken} broken{pruned}; index of {} lines, {} of them signed, head {}",
        index.head.lines, index.signed_lines, index.head.hash
    );
    page
}

/// A value of ours as JSON on one line, for machines.
pub fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value)
        .unwrap_or_else(|error| format!("{{\"error\":{}}}", Value::from(error.to_string())))
}

/// Text from anywhere, made safe for a terminal. Backslashes stay as they are.
pub(crate) fn plain(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_hidden(letter) {
            let _ = write!(safe, "\\u{{{:x}}}", u32::from(letter));
        } else {
            safe.push(letter);
        }
    }
    safe
}

/// Milliseconds since 1970 as UTC.
pub(crate) fn time(at_ms: u64) -> String {
    let (days, of_day) = (at_ms / 86_400_000, at_ms % 86_400_000);
    // The civil calendar, counted in eras of 400 years that start on 1 March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

fn show_task(page: &mut String, report: &TaskReport) {
    let TaskReport { task, state, lines, seals, torn_bytes } = report;
    for CrashSeal { seq, torn_bytes } in seals {
        let _ = writeln!(page, "{task}  a crash left {torn_bytes} bytes of a line before line {seq}");
    }
    let _ = match state {
        TaskState::Ok | TaskState::Pruned => Ok(()),
        TaskState::Open => writeln!(page, "{task}  running, {lines} lines"),
        TaskState::Lost if *torn_bytes > 0 => {
            writeln!(page, "{task}  lost after {lines} lines and {torn_bytes} bytes of another")
        }
        TaskState::Lost => writeln!(page, "{task}  lost after {lines} lines"),
        // A file that is not there, or should not be, has no line to name.
        TaskState::Broken { seq: 0, what } if *lines == 0 => {
            writeln!(page, "{task}  BROKEN: {}", plain(what))
        }
        TaskState::Broken { seq, what } => writeln!(page, "{task}  BROKEN at line {seq}: {}", plain(what)),
    };
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => shown_text(text),
        Value::Array(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => {
            let members =
                members.iter().map(|(name, member)| format!("{}={}", shown_text(name), shown(member)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(" "))
        }
        Value::Null => "-".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// A word as it is where nothing can be mistaken, else in quotes.
fn shown_text(text: &str) -> String {
    let simple = |byte: u8| byte.is_ascii_alphanumeric() || b"_./:@%+,".contains(&byte);
    let dash = |byte: u8| byte == b'-' && text != "-";
    if !text.is_empty() && text.bytes().all(|byte| simple(byte) || dash(byte)) {
        return text.to_owned();
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{}\"", plain(&escaped))
}

fn shortened(text: &str, letters: usize) -> String {
    match text.char_indices().nth(letters) {
        Some((end, _)) => format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len()),
        None => text.to_owned(),
    }
}

/// Whether a letter does something else than to be seen: control characters, marks of direction, line
/// ends of their own, and letters without width.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}
