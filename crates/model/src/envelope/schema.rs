//! The JSON Schema of a `fumehood.toml`.

use super::EnvelopeSpec;

/// The schema, made from the same types that read the file.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(EnvelopeSpec).to_value()
}
