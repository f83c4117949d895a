//! Keys, quotas, the kill switch, and what the daemon says about itself.

use super::ask::Words;
use super::openapi;
use crate::caller::{Caller, Scope, Scopes};
use crate::clock;
use crate::engine::Engine;
use crate::error::{ApiError, Code};
use crate::halt::{Outcome, Whom};
use crate::keys::{Keys, NewKey};
use crate::quota::{self, Quota};
use crate::sandbox::State as SandboxState;
use axum::Json;
use axum::extract::{Path, State};
use axum::response::IntoResponse;
use fumehood_model::id::TaskId;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// A key that is to be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody {
    name: String,
    team: Option<String>,
    /// `read`, `write` and `exec` if absent.
    scopes: Option<Vec<Scope>>,
    ttl_seconds: Option<u64>,
}

/// A key, as a list shows it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeyView {
    name: String,
    team: String,
    scopes: Vec<String>,
    created_ms: u64,
    expires_ms: Option<u64>,
    /// The key itself: in the answer to its making, and never again.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

/// Whom the kill switch is about: one of these.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HaltBody {
    id: Option<String>,
    team: Option<String>,
    all: bool,
    /// Not only halt: end them, and remove everything.
    destroy: bool,
}

pub(super) async fn new_key(
    State(engine): State<Engine>,
    Words(body): Words<KeyBody>,
) -> Result<(StatusCode, Json<KeyView>), ApiError> {
    Ok((StatusCode::CREATED, Json(mint(engine.keys(), body).await?)))
}

/// Mints a key, with the daemon or without.
pub(crate) async fn mint(keys: &Keys, body: KeyBody) -> Result<KeyView, ApiError> {
    let scopes = body.scopes.map_or(Scopes::USUAL, Scopes::from_iter);
    let now_ms = clock::now_ms();
    let expires_ms = body.ttl_seconds.map(|ttl| now_ms.saturating_add(ttl.saturating_mul(1000)));
    let team = body.team.unwrap_or_else(|| crate::caller::LOCAL_TEAM.to_owned());
    let new = NewKey { name: body.name, team, scopes, expires_ms };
    let key = keys.mint(new.clone()).await?;
    Ok(KeyView {
        name: new.name,
        team: new.team,
        scopes: words(scopes),
        created_ms: now_ms,
        expires_ms,
        key: Some(key),
    })
}

pub(super) async fn keys(State(engine): State<Engine>) -> Json<Vec<KeyView>> {
    Json(views(engine.keys()))
}

/// Every key, without the key.
pub(crate) fn views(keys: &Keys) -> Vec<KeyView> {
    let views = keys.list().into_iter().map(|key| KeyView {
        name: key.name,
        team: key.team,
        scopes: words(key.scopes),
        created_ms: key.created_ms,
        expires_ms: key.expires_ms,
        key: None,
    });
    views.collect()
}

pub(super) async fn remove_key(
    State(engine): State<Engine>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    engine.keys().remove(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn quota(State(engine): State<Engine>, Path(team): Path<String>) -> Json<Quota> {
    Json(engine.quotas().of(&team))
}

pub(super) async fn set_quota(
    State(engine): State<Engine>,
    Path(team): Path<String>,
    Words(quota): Words<Quota>,
) -> Result<Json<Quota>, ApiError> {
    engine.quotas().set(&team, quota.clone()).await?;
    Ok(Json(quota))
}

pub(super) async fn key_quota(State(engine): State<Engine>, Path(name): Path<String>) -> Json<Quota> {
    Json(engine.quotas().of(&quota::of_key(&name)))
}

pub(super) async fn set_key_quota(
    State(engine): State<Engine>,
    Path(name): Path<String>,
    Words(quota): Words<Quota>,
) -> Result<Json<Quota>, ApiError> {
    engine.quotas().set(&quota::of_key(&name), quota.clone()).await?;
    Ok(Json(quota))
}

/// `POST /v1/halt`: also on the kill switch's own socket.
pub(super) async fn halt(
    State(engine): State<Engine>,
    caller: Caller,
    Words(body): Words<HaltBody>,
) -> Result<Json<Outcome>, ApiError> {
    let whom = whom(&engine, &caller, &body)?;
    engine.halt(&whom, body.destroy).await.map(Json)
}

/// `POST /v1/release`
pub(super) async fn release(
    State(engine): State<Engine>,
    caller: Caller,
    Words(body): Words<HaltBody>,
) -> Result<Json<Outcome>, ApiError> {
    let whom = whom(&engine, &caller, &body)?;
    engine.release(&whom).await.map(Json)
}

fn whom(engine: &Engine, caller: &Caller, body: &HaltBody) -> Result<Whom, ApiError> {
    match (&body.id, &body.team, body.all) {
        (Some(id), None, false) => {
            let parsed = TaskId::parse(id).map_err(|_| ApiError::no_sandbox(id))?;
            if engine.find(caller, id).is_err() {
                // What the daemon does not know, the operator may still halt.
                caller.needs(Scope::Admin).map_err(|_| ApiError::no_sandbox(id))?;
            }
            Ok(Whom::Sandbox(parsed))
        }
        (None, Some(team), false) => {
            if !caller.owns(team) {
                caller.needs(Scope::Admin)?;
            }
            crate::keys::name(team, "team")?;
            Ok(Whom::Team(team.clone()))
        }
        (None, None, true) => {
            caller.needs(Scope::Admin)?;
            Ok(Whom::All)
        }
        (_, _, _) => Err(ApiError::plain(
            Code::BadRequest,
            "read whom this is about",
            "it names one of `id`, `team` and `all`",
        )),
    }
}

pub(super) async fn document() -> Json<serde_json::Value> {
    Json(openapi::document())
}

/// Prometheus' text form.
pub(super) async fn metrics(State(engine): State<Engine>) -> impl IntoResponse {
    let mut text = String::new();
    let mut states = [0_u64; 3];
    for live in engine.all() {
        let [running, paused, halted] = &mut states;
        match live.state() {
            SandboxState::Running => *running += 1,
            SandboxState::Paused => *paused += 1,
            SandboxState::Halted => *halted += 1,
            SandboxState::Ended => {}
        }
    }
    text.push_str("# HELP fumehood_sandboxes Sandboxes that live.\n# TYPE fumehood_sandboxes gauge\n");
    for (state, count) in ["running", "paused", "halted"].into_iter().zip(states) {
        let _ = writeln!(text, "fumehood_sandboxes{{state=\"{state}\"}} {count}");
    }
    let waiting = engine.waiting();
    let _ = writeln!(
        text,
        "# HELP fumehood_pool_waiting Sandboxes that wait in pools.\n# TYPE fumehood_pool_waiting gauge\n\
         fumehood_pool_waiting {waiting}"
    );
    let counters = engine.counters();
    let counted: [(&str, &str, &AtomicU64); 7] = [
        ("created", "Sandboxes created or claimed.", &counters.created),
        ("claimed", "Of these, those that had waited in a pool.", &counters.claimed),
        ("create_failures", "Creates that came to nothing.", &counters.create_failures),
        ("ended", "Sandboxes that ended.", &counters.ended),
        ("lost", "Of these, those whose keeper died.", &counters.lost),
        ("requests", "Requests.", &counters.requests),
        ("refused", "Requests that were answered with a status of 4xx.", &counters.refused),
    ];
    for (name, help, counter) in counted {
        let value = counter.load(Ordering::Relaxed);
        let _ = writeln!(
            text,
            "# HELP fumehood_{name}_total {help}\n# TYPE fumehood_{name}_total counter\nfumehood_{name}_total {value}"
        );
    }
    if let Some((sent, dropped)) = engine.tracer().counts() {
        for (name, help, value) in [
            ("trace_spans_sent", "Spans that the collector took.", sent),
            ("trace_spans_dropped", "Spans that it did not take, or that had no room.", dropped),
        ] {
            let _ = writeln!(
                text,
                "# HELP fumehood_{name}_total {help}\n# TYPE fumehood_{name}_total counter\nfumehood_{name}_total {value}"
            );
        }
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

fn words(scopes: Scopes) -> Vec<String> {
    scopes.words().into_iter().map(str::to_owned).collect()
}
