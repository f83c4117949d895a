//! Templates, as far as there are any: an operator's files and snapshots can be named, and nothing is built.

use super::control::{Done, THEIRS};
use super::refusal::{Refusal, Who};
use super::words;
use crate::caller::Scope;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use axum::extract::{Path, State};
use axum::response::IntoResponse as _;
use axum::routing::{get, post};
use axum::{Json, Router};
use http::StatusCode;
use serde_json::{Value, json};

pub(super) fn router() -> Router<Engine> {
    Router::new()
        .route("/templates", get(templates).post(no_builds))
        .route("/v2/templates", get(templates).post(no_builds))
        .route("/v3/templates", post(no_builds))
        .route("/templates/aliases/{alias}", get(alias))
        .route("/templates/{id}", get(no_builds).patch(no_builds).delete(remove_template))
        .route("/templates/{id}/files/{hash}", get(no_builds))
        .route("/volumes", get(no_volumes).post(no_volumes))
}

async fn templates(State(engine): State<Engine>, Who(caller): Who) -> Done {
    caller.needs(Scope::Read)?;
    let shown: Vec<Value> = engine.templates().into_iter().map(|name| template(&name)).collect();
    Ok(Json(shown).into_response())
}

fn template(name: &str) -> Value {
    let epoch = words::rfc3339(0);
    json!({
        "templateID": name, "buildID": name, "cpuCount": 0, "memoryMB": 0, "diskSizeMB": 0, "public": false,
        "aliases": [name], "names": [name], "createdAt": epoch, "updatedAt": epoch, "createdBy": null,
        "lastSpawnedAt": null, "spawnCount": 0, "buildCount": 1, "envdVersion": words::ENVD_VERSION,
        "buildStatus": "ready",
    })
}

async fn alias(State(engine): State<Engine>, Who(caller): Who, Path(alias): Path<String>) -> Done {
    caller.needs(Scope::Read)?;
    if engine.templates().contains(&alias) || THEIRS.contains(&alias.as_str()) {
        return Ok(Json(json!({ "templateID": alias, "public": false })).into_response());
    }
    let shown: String = alias.chars().take(64).collect();
    Err(ApiError::plain(Code::NotFound, "find the template", format!("template `{shown}` was not found"))
        .into())
}

async fn no_builds(Who(_): Who) -> Done {
    Err(Refusal(ApiError::new(
        Code::Unsupported,
        "build or change a template",
        "templates are files of the operator",
        "write `serve/templates/NAME.toml`, or set a sandbox up and take a snapshot of it",
    )))
}

async fn no_volumes(Who(_): Who) -> Done {
    Err(Refusal(ApiError::new(
        Code::Unsupported,
        "use a volume",
        "there are none",
        "keep files in a sandbox, and take snapshots of it",
    )))
}

async fn remove_template(State(engine): State<Engine>, Who(caller): Who, Path(id): Path<String>) -> Done {
    caller.needs(Scope::Write)?;
    engine.remove_snapshot(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
