//! Traces: what was done with each sandbox and within it, as spans for an OTLP collector.
//!
//! ```text
//!  engine's verbs ──────────┐
//!  records of sandboxes ────┴─► queue (bounded, never waited for) ─► one sender ─► POST BASE/v1/traces
//! ```
//!
//! A trace is a sandbox: its id is made of the task's, so that a trace and a record are found by each other. Names of
//! files, arguments beyond the program's name, bodies and values are in no span.
//!
//! **Invariant:** nobody waits for a collector. What the queue has no room for is dropped and counted.

mod record;
mod send;

pub(crate) use record::Reader;

use crate::clock;
use crate::error::{ApiError, Code};
use send::Collector;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

/// Spans that wait to be sent.
const MOST_WAITING: usize = 4096;
/// Longer texts are cut.
const MOST_CHARS: usize = 256;

/// Takes spans. Cheap to clone; without a collector it takes none.
#[derive(Clone, Debug, Default)]
pub struct Tracer(Option<Arc<Parts>>);

#[derive(Debug)]
struct Parts {
    queue: mpsc::Sender<Span>,
    counts: Arc<Counts>,
}

/// What became of spans.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) sent: AtomicU64,
    pub(crate) dropped: AtomicU64,
}

/// What is said of a span, by name.
pub(crate) type Attributes = Vec<(&'static str, Value)>;

/// Something that was done, from one moment to another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) name: &'static str,
    pub(crate) task: String,
    pub(crate) from_ms: u64,
    pub(crate) to_ms: u64,
    pub(crate) attributes: Attributes,
    /// Why it failed, if it did.
    pub(crate) fault: Option<String>,
}

// === impl Tracer ===

impl Tracer {
    /// One that sends to the collector at `base`. Needs a runtime.
    ///
    /// # Errors
    /// The base is not `http://HOST:PORT`.
    pub(crate) fn to(base: &str) -> Result<Self, ApiError> {
        let collector = Collector::parse(base).ok_or_else(|| {
            ApiError::new(
                Code::BadRequest,
                "read the address of the OTLP collector",
                format!("`{}` is not `http://HOST:PORT`", cut(base)),
                "name one on a way that is trusted, such as a collector on this host: `http://127.0.0.1:4318`",
            )
        })?;
        let (queue, spans) = mpsc::channel(MOST_WAITING);
        let counts = Arc::new(Counts::default());
        tokio::spawn(send::carry(collector, spans, Arc::clone(&counts)));
        Ok(Self(Some(Arc::new(Parts { queue, counts }))))
    }

    /// Whether anybody takes them.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Spans that were sent, and spans that were dropped; none without a collector.
    pub(crate) fn counts(&self) -> Option<(u64, u64)> {
        let counts = &self.0.as_ref()?.counts;
        Some((counts.sent.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed)))
    }

    /// Takes a span, if there is room.
    pub(crate) fn take(&self, span: Span) {
        if let Some(parts) = &self.0
            && parts.queue.try_send(span).is_err()
        {
            parts.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes what has just come to its end.
    pub(crate) fn done<T>(
        &self,
        (name, task): (&'static str, &str),
        from_ms: u64,
        outcome: &Result<T, ApiError>,
        attributes: Attributes,
    ) {
        if self.is_on() {
            let fault = outcome.as_ref().err().map(|error| cut(&error.to_string()));
            let (task, to_ms) = (task.to_owned(), clock::now_ms());
            self.take(Span { name, task, from_ms, to_ms, attributes, fault });
        }
    }
}

// === impl Span ===

impl Span {
    /// In OTLP's JSON. `number` makes its id one of its own.
    fn words(&self, number: u64) -> Value {
        let nanoseconds = |ms: u64| (u128::from(ms) * 1_000_000).to_string();
        let mut attributes = vec![attribute("fumehood.task", &Value::from(self.task.clone()))];
        attributes.extend(self.attributes.iter().map(|(name, value)| attribute(name, value)));
        let own = hex(&Sha256::digest(format!("{} {} {number}", self.task, self.from_ms)), 8);
        let status = match &self.fault {
            None => json!({ "code": 1 }),
            Some(why) => json!({ "code": 2, "message": why }),
        };
        json!({
            "traceId": hex(&Sha256::digest(&self.task), 16),
            "spanId": own,
            "name": self.name,
            "kind": 1,
            "startTimeUnixNano": nanoseconds(self.from_ms),
            "endTimeUnixNano": nanoseconds(self.to_ms.max(self.from_ms)),
            "attributes": attributes,
            "status": status,
        })
    }
}

/// One whole request of OTLP.
fn request(spans: &[Value]) -> Value {
    json!({ "resourceSpans": [{
        "resource": { "attributes": [
            attribute("service.name", &Value::from("fumehood")),
            attribute("service.version", &Value::from(env!("CARGO_PKG_VERSION"))),
        ] },
        "scopeSpans": [{ "scope": { "name": "fumehood" }, "spans": spans }],
    }] })
}

fn attribute(name: &str, value: &Value) -> Value {
    let value = match value {
        Value::Bool(yes) => json!({ "boolValue": yes }),
        // OTLP writes whole numbers as texts.
        Value::Number(number) if number.is_u64() => json!({ "intValue": number.to_string() }),
        Value::Number(number) => json!({ "doubleValue": number }),
        Value::String(text) => json!({ "stringValue": cut(text) }),
        Value::Null | Value::Array(_) | Value::Object(_) => json!({ "stringValue": cut(&value.to_string()) }),
    };
    json!({ "key": name, "value": value })
}

fn cut(text: &str) -> String {
    text.chars().take(MOST_CHARS).collect()
}

fn hex(bytes: &[u8], count: usize) -> String {
    bytes.iter().take(count).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_written_as_otlp_writes_it() {
        let span = Span {
            name: "exec",
            task: "1m8mm0aa2va31tzh".to_owned(),
            from_ms: 5,
            to_ms: 7,
            attributes: vec![("exit_code", json!(3)), ("long", json!("x".repeat(999)))],
            fault: Some("killed".to_owned()),
        };
        let words = span.words(1);
        assert_eq!(words["traceId"].as_str().unwrap().len(), 32);
        assert_eq!(words["spanId"].as_str().unwrap().len(), 16);
        assert_ne!(words["spanId"], span.words(2)["spanId"]);
        assert_eq!(words["traceId"], span.words(2)["traceId"]);
        assert_eq!(
            (words["startTimeUnixNano"].as_str(), words["endTimeUnixNano"].as_str()),
            (Some("5000000"), Some("7000000"))
        );
        assert_eq!(words["attributes"][1], json!({ "key": "exit_code", "value": { "intValue": "3" } }));
        assert_eq!(words["attributes"][2]["value"]["stringValue"].as_str().unwrap().len(), MOST_CHARS);
        assert_eq!(words["status"], json!({ "code": 2, "message": "killed" }));
    }

    #[tokio::test]
    async fn a_collector_that_takes_nothing_holds_nobody_up() {
        // It accepts, and never reads.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tracer = Tracer::to(&format!("http://{}", silent.local_addr().unwrap())).unwrap();
        let span = Span {
            name: "exec",
            task: "t".to_owned(),
            from_ms: 0,
            to_ms: 1,
            attributes: Vec::new(),
            fault: None,
        };
        let began = std::time::Instant::now();
        for _ in 0..10_000 {
            tracer.take(span.clone());
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(2));
        let (sent, dropped) = tracer.counts().unwrap();
        assert_eq!(sent, 0);
        assert!(dropped >= 10_000 - u64::try_from(MOST_WAITING).unwrap() - 600, "{dropped}");
        assert!(Tracer::to("https://collector.example.com").is_err());
        assert!(Tracer::to("127.0.0.1:4318").is_err());
        assert_eq!(Tracer::default().counts(), None);
    }
}
