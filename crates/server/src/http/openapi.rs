//! The OpenAPI document, written from the table of routes.

use super::table::{Route, Said, routes};
use crate::error::Code;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

/// Methods of a route that takes any.
const ANY: [&str; 6] = ["get", "put", "post", "delete", "head", "patch"];

/// The document.
pub(super) fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes() {
        let methods: &[&str] = if route.method == "any" { &ANY } else { &[route.method] };
        let told = operation(&route, &mut generator);
        let path = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
        if let Some(path) = path.as_object_mut() {
            for method in methods {
                path.insert((*method).to_owned(), told.clone());
            }
        }
    }
    let mut schemas = generator.take_definitions(true);
    schemas.insert("Error".to_owned(), error());
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Fumehood", "version": "1" },
        "security": [{ "bearer": [] }, { "key": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "key": { "type": "apiKey", "in": "header", "name": "X-API-KEY" },
            },
        },
    })
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let (status, answer) = route.answer;
    let mut answered = json!({ "description": "done" });
    insert(&mut answered, "content", content(answer, generator));
    let refused = json!({
        "description": "not done",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    let mut told = json!({
        "summary": route.summary,
        "parameters": parameters(route, generator),
        "responses": { status.to_string(): answered, "default": refused },
    });
    insert(&mut told, "x-scope", route.scope.map(|scope| scope.word().into()));
    insert(
        &mut told,
        "requestBody",
        content(route.body, generator).map(|content| json!({ "content": content })),
    );
    told
}

fn parameters(route: &Route, generator: &mut SchemaGenerator) -> Vec<Value> {
    let text = |name: &str, place: &str, schema: Value, required: bool| json!({ "name": name, "in": place, "required": required, "schema": schema });
    let segments = route.path.split('/');
    let names = segments.filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = names
        .map(|name| text(name.trim_start_matches('*'), "path", json!({ "type": "string" }), true))
        .collect();
    if (route.method, route.path) == ("post", "/v1/sandboxes") {
        parameters.push(text("Idempotency-Key", "header", json!({ "type": "string" }), false));
    }
    let Some(write) = route.query else { return parameters };
    // A query is no body: its fields stand one by one.
    let reference = write(generator);
    let schema = resolved(&reference, generator);
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let fields = schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
    for (name, schema) in fields {
        let is_required = required.iter().any(|known| known.as_str() == Some(&name));
        parameters.push(text(&name, "query", schema, is_required));
    }
    parameters
}

fn resolved(schema: &Schema, generator: &SchemaGenerator) -> Value {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.rsplit('/').next());
    match name.and_then(|name| generator.definitions().get(name)) {
        Some(found) => found.clone(),
        None => schema.clone().to_value(),
    }
}

fn content(said: Said, generator: &mut SchemaGenerator) -> Option<Value> {
    let (kind, schema) = match said {
        Said::Nothing => return None,
        Said::Json(write) => ("application/json", write(generator).to_value()),
        Said::Object => ("application/json", json!({})),
        Said::Bytes => ("application/octet-stream", json!({ "type": "string", "format": "binary" })),
        Said::Lines => ("application/x-ndjson", json!({ "type": "string" })),
        Said::Text => ("text/plain", json!({ "type": "string" })),
    };
    Some(json!({ kind: { "schema": schema } }))
}

fn insert(object: &mut Value, name: &str, value: Option<Value>) {
    if let (Some(object), Some(value)) = (object.as_object_mut(), value) {
        object.insert(name.to_owned(), value);
    }
}

fn error() -> Value {
    let codes: Vec<String> = Code::ALL.iter().map(|code| code.word()).collect();
    let text = json!({ "type": "string" });
    json!({
        "type": "object",
        "required": ["code", "message", "cause", "remediation", "context"],
        "properties": {
            "code": { "type": "string", "enum": codes },
            "message": text,
            "cause": text,
            "remediation": text,
            "context": { "type": "object", "additionalProperties": text },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `UPDATE=1` writes the file anew.
    #[test]
    fn the_document_is_the_one_in_the_tree() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        let now = format!("{:#}\n", document());
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &now).unwrap();
        }
        let told = std::fs::read_to_string(path).unwrap_or_default();
        assert!(told == now, "the routes changed: run the test with `UPDATE=1`");
    }

    #[test]
    fn every_route_needs_a_scope_and_every_reference_leads_somewhere() {
        assert!(routes().iter().all(|route| route.scope.is_some()));
        let document = document();
        let text = document.to_string();
        for part in text.split("#/components/schemas/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(document["components"]["schemas"].get(name).is_some(), "{name}");
        }
    }
}
