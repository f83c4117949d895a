//! Spans from a sandbox's record, as it grows: commands, pauses, what left it. Read, never written.

use super::{Attributes, Span, Tracer};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

/// Read at once of one record; the rest is read the next time.
const MOST_BYTES: u64 = 1 << 20;
/// Acts that have begun and not ended; of more, the ends are not told.
const MOST_OPEN: usize = 4096;

/// How far a sandbox's record has been read.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    at: u64,
    /// What has begun: its kind and number, when, and what was said of it.
    open: HashMap<(&'static str, u64), (u64, Attributes)>,
}

#[derive(Debug, Deserialize)]
struct Line {
    at_ms: u64,
    event: String,
    #[serde(flatten)]
    fields: HashMap<String, Value>,
}

// === impl Reader ===

impl Reader {
    /// Begins at the end of what is there: it was told of before.
    pub(crate) fn at_end(path: &Path) -> Self {
        Self { at: std::fs::metadata(path).map_or(0, |meta| meta.len()), ..Self::default() }
    }

    /// Reads what has come, and gives it to the tracer. A record that can not be read is for its keeper to tell of.
    pub(crate) fn read(&mut self, path: &Path, task: &str, tracer: &Tracer) {
        let Ok(mut file) = File::open(path) else { return };
        let mut bytes = Vec::new();
        if file.seek(SeekFrom::Start(self.at)).is_err()
            || file.take(MOST_BYTES).read_to_end(&mut bytes).is_err()
        {
            return;
        }
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        // A line longer than this is of no use here, and would be waited for for ever.
        let taken = if whole == 0 && u64::try_from(bytes.len()).is_ok_and(|len| len == MOST_BYTES) {
            bytes.len()
        } else {
            whole
        };
        self.at = self.at.saturating_add(u64::try_from(taken).unwrap_or(0));
        for line in bytes.get(..whole).unwrap_or_default().split(|byte| *byte == b'\n') {
            if let Ok(line) = serde_json::from_slice::<Line>(line)
                && let Some(span) = self.see(line, task)
            {
                tracer.take(span);
            }
        }
    }

    fn see(&mut self, line: Line, task: &str) -> Option<Span> {
        let Line { at_ms, event, fields } = line;
        let number = |name: &str| fields.get(name).and_then(Value::as_u64);
        let text = |name: &str| fields.get(name).cloned().unwrap_or(Value::Null);
        let span = |name, from_ms, attributes, fault| {
            Some(Span { name, task: task.to_owned(), from_ms, to_ms: at_ms, attributes, fault })
        };
        let program = || fields.get("argv").and_then(|argv| argv.get(0)).cloned().unwrap_or(Value::Null);
        match event.as_str() {
            "exec.started" => {
                let said = vec![("exec.program", program()), ("actor", text("actor"))];
                self.begin("exec", number("exec")?, at_ms, said);
                None
            }
            "exec.ended" => {
                let (from_ms, mut said) = self.open.remove(&("exec", number("exec")?))?;
                let ending = text("ending");
                said.push(("exec.cause", ending.get("cause").cloned().unwrap_or(Value::Null)));
                if let Some(code) = ending.get("code").and_then(Value::as_u64) {
                    said.push(("exec.code", json!(code)));
                }
                let is_well = ending == json!({ "cause": "exited", "code": 0 });
                let fault =
                    (!is_well).then(|| ending.get("cause").and_then(Value::as_str).unwrap_or("").to_owned());
                span("exec", from_ms, said, fault)
            }
            "egress.allowed" => {
                let said =
                    ["to", "via", "method", "rule", "credential"].map(|name| (egress(name), text(name)));
                self.begin(
                    "egress",
                    number("id")?,
                    at_ms,
                    said.into_iter().filter(|(_, value)| !value.is_null()).collect(),
                );
                None
            }
            "egress.ended" => {
                let (from_ms, mut said) = self.open.remove(&("egress", number("id")?))?;
                for name in ["status", "bytes_out", "bytes_in"] {
                    said.extend(number(name).map(|value| (egress(name), json!(value))));
                }
                span("egress", from_ms, said, fields.get("fault").and_then(Value::as_str).map(str::to_owned))
            }
            "egress.denied" => {
                let said = vec![
                    (egress("to"), text("to")),
                    ("egress.reason", text("reason")),
                    ("egress.count", text("count")),
                ];
                span("egress", at_ms, said, Some("denied".to_owned()))
            }
            "sandbox.paused" => {
                self.begin("paused", 0, at_ms, Vec::new());
                None
            }
            "sandbox.resumed" => {
                let (from_ms, said) = self.open.remove(&("paused", 0))?;
                span("paused", from_ms, said, None)
            }
            "network.changed" => span("network", at_ms, vec![("actor", text("actor"))], None),
            "sandbox.stopped" => span("stop", at_ms, vec![("why", text("why"))], None),
            _ => None,
        }
    }

    fn begin(&mut self, kind: &'static str, number: u64, at_ms: u64, said: Vec<(&'static str, Value)>) {
        if self.open.len() < MOST_OPEN {
            self.open.insert((kind, number), (at_ms, said));
        }
    }
}

/// The attribute of a field of the network's events.
fn egress(field: &str) -> &'static str {
    match field {
        "to" => "egress.to",
        "via" => "egress.via",
        "method" => "http.request.method",
        "rule" => "egress.rule",
        "credential" => "egress.credential",
        "status" => "http.response.status_code",
        "bytes_out" => "egress.bytes_out",
        _ => "egress.bytes_in",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_and_ended_is_a_span_and_halves_of_lines_wait() {
        let mut reader = Reader::default();
        let mut see = |text: &str| reader.see(serde_json::from_str(text).unwrap(), "t");
        assert!(see(r#"{"at_ms":1,"event":"exec.started","argv":["/bin/sh","-c","echo s3cret"],"exec":1,"actor":"a"}"#).is_none());
        let span =
            see(r#"{"at_ms":9,"event":"exec.ended","exec":1,"ending":{"cause":"exited","code":7}}"#).unwrap();
        assert_eq!(
            (span.name, span.from_ms, span.to_ms, span.fault.as_deref()),
            ("exec", 1, 9, Some("exited"))
        );
        assert!(!format!("{span:?}").contains("s3cret"));
        assert!(see(r#"{"at_ms":9,"event":"exec.ended","exec":2,"ending":{}}"#).is_none());
        see(
            r#"{"at_ms":2,"event":"egress.allowed","id":4,"to":"https://a.example.com:443","via":"transparent","rule":"a"}"#,
        );
        let span =
            see(r#"{"at_ms":8,"event":"egress.ended","id":4,"status":200,"bytes_out":5,"bytes_in":6}"#)
                .unwrap();
        assert_eq!((span.name, span.attributes.len(), span.fault), ("egress", 6, None));

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        std::fs::write(&path, b"{\"at_ms\":1,\"event\":\"sandbox.stopped\",\"why\":\"x\"}\n{\"at_ms\":2,")
            .unwrap();
        let mut reader = Reader::default();
        reader.read(&path, "t", &Tracer::default());
        assert_eq!(reader.at, 48);
        assert_eq!(Reader::at_end(&path).at, 59);
    }
}
