//! Places that a record is shipped to.

use super::STEP;
use crate::refusal::Refusal;
use fumehood_image::source::Poster;
use fumehood_model::text::shown;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::UnixDatagram;

/// A token that a sink wants is in this variable.
const TOKEN: &str = "FUMEHOOD_SHIP_TOKEN";
/// Facility `local0`, severity `informational`.
const PRIORITY: &str = "<134>fumehood: ";
/// What a message to a syslog holds.
const MESSAGE_BYTES: usize = 60 << 10;
const NAMES: &str = "name `file:/PATH`, `syslog:/dev/log`, `https://HOST/PATH` or `otlp:https://HOST:4318`";

/// A place that takes lines.
#[derive(Debug)]
pub(super) enum Sink {
    File(File),
    Syslog(UnixDatagram),
    /// Lines as they are.
    Http(Poster),
    /// Lines as log records of OpenTelemetry, as JSON.
    Otlp(Poster),
}

// === impl Sink ===

impl Sink {
    pub(super) fn open(to: &str) -> Result<Self, Refusal> {
        let down = |error: io::Error| {
            Refusal::new(
                STEP,
                format!("`{}` can not be reached: {error}", shown(to)),
                "it is sent once it can",
            )
        };
        if let Some(path) = to.strip_prefix("file:").filter(|path| path.starts_with('/')) {
            let mut options = File::options();
            let file = options.append(true).create(true).mode(0o600).custom_flags(0o400_000).open(path);
            return file.map(Self::File).map_err(down);
        }
        if let Some(path) = to.strip_prefix("syslog:").filter(|path| path.starts_with('/')) {
            let socket = UnixDatagram::unbound().map_err(down)?;
            socket.connect(path).map_err(down)?;
            return Ok(Self::Syslog(socket));
        }
        if to.starts_with("http://") || to.starts_with("https://") {
            return poster(to).map(Self::Http);
        }
        if let Some(url) = to.strip_prefix("otlp:").filter(|url| url.starts_with("http")) {
            return poster(&format!("{}/v1/logs", url.trim_end_matches('/'))).map(Self::Otlp);
        }
        Err(Refusal::new(STEP, format!("`{}` is no place that records are shipped to", shown(to)), NAMES))
    }

    /// Whether it is a place that there could be.
    pub(super) fn is_named(to: &str) -> bool {
        ["file:/", "syslog:/", "http://", "https://", "otlp:http"].iter().any(|kind| to.starts_with(kind))
    }

    /// Sends whole lines of one file. After an error not all of them have arrived.
    pub(super) fn send(&mut self, name: &str, lines: &[u8]) -> Result<(), Refusal> {
        let failed = |why: String| Refusal::new(STEP, why, "nothing is lost: it is sent again the next time");
        let untaken = |error: io::Error| failed(format!("the sink took no more: {error}"));
        match self {
            Self::File(file) => file.write_all(lines).and_then(|()| file.sync_data()).map_err(untaken),
            Self::Syslog(socket) => {
                for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                    // Its digest is at its end.
                    let from = line.len().saturating_sub(MESSAGE_BYTES);
                    let message = [PRIORITY.as_bytes(), line.get(from..).unwrap_or_default()].concat();
                    socket.send(&message).map_err(untaken)?;
                }
                Ok(())
            }
            Self::Http(poster) => poster
                .post("application/x-ndjson", &[("fumehood-record", name)], lines)
                .map_err(|fault| failed(format!("the sink took no more: {}", fault.why))),
            Self::Otlp(poster) => poster
                .post("application/json", &[], records(lines).to_string().as_bytes())
                .map_err(|fault| failed(format!("the sink took no more: {}", fault.why))),
        }
    }
}

fn poster(url: &str) -> Result<Poster, Refusal> {
    let token =
        std::env::var(TOKEN).ok().map(|token| ("authorization".to_owned(), format!("Bearer {token}")));
    Poster::new(url, token.into_iter().collect()).map_err(|fault| Refusal::new(STEP, fault.why, NAMES))
}

/// Lines as log records: the line is the body, what one looks for are attributes.
fn records(lines: &[u8]) -> Value {
    let text = |value: &Value| json!({ "stringValue": value.as_str().unwrap_or_default() });
    let one = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        let value: Value = serde_json::from_str(&line).unwrap_or_default();
        let at_ms = value.get("at_ms").and_then(Value::as_u64).unwrap_or(0);
        let attributes: Vec<Value> = ["event", "task"]
            .iter()
            .filter_map(|name| {
                Some(json!({ "key": format!("fumehood.{name}"), "value": text(value.get(*name)?) }))
            })
            .collect();
        json!({
            "timeUnixNano": format!("{at_ms}000000"),
            "severityNumber": 9,
            "body": { "stringValue": line },
            "attributes": attributes,
        })
    };
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let records: Vec<Value> = lines.map(one).collect();
    json!({ "resourceLogs": [{
        "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": "fumehood" } }] },
        "scopeLogs": [{ "scope": { "name": "fumehood.record" }, "logRecords": records }],
    }] })
}
