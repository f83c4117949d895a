//! What cargo knows about the workspace.

use crate::run;
use serde_json::Value;
use std::error::Error;

/// `cargo metadata` of the workspace alone.
pub(crate) fn read() -> Result<Value, Box<dyn Error>> {
    let text = run::output(&mut run::cargo(&["metadata", "--format-version", "1", "--no-deps"]))?;
    Ok(serde_json::from_str(&text)?)
}

/// Each crate of the workspace with the crates of the workspace that it is built on; what only its
/// tests use is left out.
pub(crate) fn edges(metadata: &Value) -> Vec<(String, Vec<String>)> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
    list(&metadata["packages"])
        .iter()
        .map(|package| {
            let uses = list(&package["dependencies"]);
            let uses = uses.iter().filter(|used| used["path"].is_string() && used["kind"] != "dev");
            (name(package), uses.map(name).collect())
        })
        .collect()
}
