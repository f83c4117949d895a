//! The published schema changes only on purpose: `UPDATE=1 cargo test -p fumehood-model` rewrites it.

use serde_json::Value;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/envelope.schema.json");

#[test]
fn the_schema_is_the_published_one() {
    let schema = fumehood_model::envelope::json_schema();
    let text = format!("{}\n", serde_json::to_string_pretty(&schema).expect("a schema is JSON"));
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(GOLDEN, &text).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(GOLDEN).expect("the golden file can be read");
    assert!(text == golden, "the schema changed; UPDATE=1 rewrites the golden file:\n{text}");
}

#[test]
fn every_object_refuses_what_it_does_not_know_and_every_field_says_what_it_is() {
    let schema = fumehood_model::envelope::json_schema();
    let sections = schema["$defs"].as_object().expect("definitions").values();
    for section in sections.chain([&schema]).filter(|section| section["type"] == "object") {
        assert_eq!(section["additionalProperties"], Value::Bool(false), "{section}");
        assert!(section["description"].is_string(), "{section}");
        let no_fields = serde_json::Map::new();
        for (name, field) in section["properties"].as_object().unwrap_or(&no_fields) {
            let text = field["description"].as_str().unwrap_or_default();
            let section = field["$ref"].as_str().is_some_and(|to| to.ends_with("Spec"));
            assert!(section || !text.is_empty(), "`{name}` has no description: {field}");
        }
    }
}
