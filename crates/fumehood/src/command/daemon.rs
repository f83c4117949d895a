//! Calls of the daemon that runs on this state folder.

use crate::refusal::Refusal;
use crate::tasks;
use fumehood_server::error::ApiError;
use fumehood_server::{client, serve};
use serde_json::Value;
use std::io::ErrorKind;
use std::path::Path;

/// Asks the daemon. `None` where none runs.
pub(crate) fn ask(method: &str, path: &str, body: &Value) -> Result<Option<Value>, Refusal> {
    let state = tasks::state()?;
    at(&serve::socket(state.root()), method, path, body)
}

/// Asks at one of the daemon's sockets. `None` where nobody listens.
pub(crate) fn at(socket: &Path, method: &str, path: &str, body: &Value) -> Result<Option<Value>, Refusal> {
    const STEP: &str = "ask the daemon";
    let (status, answer) = match client::call(socket, method, path, body) {
        Ok(answered) => answered,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => {
            return Err(Refusal::new(STEP, error.to_string(), "look at the daemon's log"));
        }
    };
    let value: Value = serde_json::from_slice(&answer).unwrap_or(Value::Null);
    if (200..300).contains(&status) {
        return Ok(Some(value));
    }
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (message, cause, remedy) = (text("message"), text("cause"), text("remediation"));
    if message.is_empty() {
        return Err(Refusal::new(STEP, format!("it answered {status}"), "look at the daemon's log"));
    }
    Err(Refusal::new(&message, cause, remedy))
}

/// An error of the daemon's, as a refusal.
pub(crate) fn refusal(error: &ApiError) -> Refusal {
    Refusal::new(&error.message, error.cause.clone(), error.remediation.clone())
}
