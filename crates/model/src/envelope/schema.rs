//! The JSON Schema of a `fumehood.toml`.

use super::EnvelopeSpec;
use serde_json::Value;

/// The schema, made from the same types that read the file. A field that is left out is simply left
/// out: TOML has no null, so the schema has none either.
pub fn json_schema() -> Value {
    let mut schema = schemars::schema_for!(EnvelopeSpec).to_value();
    drop_null(&mut schema);
    schema
}

/// Takes out what only says that a field may be left out: `"default": null`, the type `null`, and an
/// `anyOf` that has one alternative left.
fn drop_null(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.get("default").is_some_and(Value::is_null) {
                fields.remove("default");
            }
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
                choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    fields.remove("anyOf");
                    fields.extend(only);
                }
            }
            fields.values_mut().for_each(drop_null);
        }
        Value::Array(entries) => entries.iter_mut().for_each(drop_null),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
