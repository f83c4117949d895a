//! `/v1/sandboxes` and `/v1/snapshots`.

use super::ask::{Asked, Words};
use crate::caller::Caller;
use crate::engine::network::Reach;
use crate::engine::{Engine, Pausing};
use crate::error::{ApiError, Code};
use crate::sandbox::{
    Filter, Listed, Metrics, NewSandbox, OnTimeout, Page, Sandbox, Snapshot, State as SandboxState,
};
use crate::tokens::Purpose;
use axum::Json;
use axum::extract::{Path, State};
use fumehood_keep::literals::Literals;
use http::{HeaderMap, StatusCode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A sandbox that is to be.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Create {
    /// A template or a snapshot by name; `base` if absent.
    template: Option<String>,
    level: Option<String>,
    ttl_seconds: Option<u64>,
    on_timeout: OnTimeout,
    /// Whether traffic wakes it when it is paused.
    auto_resume: Option<bool>,
    idle_pause_seconds: Option<u64>,
    labels: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    /// In the words of `fumehood.toml`, laid over the template's.
    envelope: serde_json::Value,
}

/// Which part of which sandboxes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ListQuery {
    /// Of `running`, `paused`, `halted`, `ended`, with commas; the living ones if absent.
    state: Option<String>,
    /// `NAME=VALUE`, with commas between several.
    labels: Option<String>,
    template: Option<String>,
    created_from_ms: Option<u64>,
    limit: Option<usize>,
    /// The `next` of the part before.
    after: Option<String>,
    oldest_first: bool,
}

/// A span from now on.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Span {
    ttl_seconds: Option<u64>,
}

/// A name for a snapshot; made up if absent.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Named {
    name: Option<String>,
    /// With memory and processes, or files alone; what the sandbox's level keeps, if absent.
    memory: Option<bool>,
}

/// What a sandbox may reach from now on, in the words of `fumehood.toml`. What is left out is nothing.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct NetworkChange {
    /// `none`, `dns`, `allow` or `proxy`.
    net: Option<String>,
    /// Rules.
    allow: Vec<String>,
    /// Address ranges, each with ports.
    allow_cidr: Vec<String>,
}

/// A fork.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fork {
    count: usize,
    ttl_seconds: Option<u64>,
}

/// What a fork came to, a child a line.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum Child {
    Sandbox(Box<Sandbox>),
    Error(#[schemars(with = "serde_json::Value")] ApiError),
}

/// Tokens that open one sandbox without a key.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TokensView {
    /// Commands and files.
    inside: String,
    /// Its ports.
    ports: String,
}

// === impl Fork ===

impl Default for Fork {
    fn default() -> Self {
        Self { count: 1, ttl_seconds: None }
    }
}

pub(super) async fn create(
    State(engine): State<Engine>,
    caller: Caller,
    headers: HeaderMap,
    Words(create): Words<Create>,
) -> Result<(StatusCode, Json<Sandbox>), ApiError> {
    let idempotency_key = headers.get("idempotency-key").map(|key| {
        key.to_str()
            .map(str::to_owned)
            .map_err(|_| ApiError::plain(Code::BadRequest, "read `Idempotency-Key`", "it is not plain text"))
    });
    let new = NewSandbox {
        template: create.template,
        level: create.level,
        ttl: create.ttl_seconds.map(Duration::from_secs),
        on_timeout: create.on_timeout,
        auto_resume: create.auto_resume.unwrap_or(true),
        idle_pause: create.idle_pause_seconds.map(Duration::from_secs),
        labels: create.labels,
        env: create.env.into_iter().collect(),
        envelope: create.envelope,
        literals: Literals::default(),
        idempotency_key: idempotency_key.transpose()?,
    };
    Ok((StatusCode::CREATED, Json(engine.create(&caller, new).await?)))
}

pub(super) async fn network(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(NetworkChange { net, allow, allow_cidr }): Words<NetworkChange>,
) -> Result<StatusCode, ApiError> {
    let reach = Reach { net, allow, allow_cidr, ..Reach::default() };
    engine.change_network(&caller, &engine.find(&caller, &id)?, reach).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn list(
    State(engine): State<Engine>,
    caller: Caller,
    Asked(query): Asked<ListQuery>,
) -> Result<Json<Listed>, ApiError> {
    let states = query.state.as_deref().unwrap_or("").split(',').filter(|word| !word.is_empty());
    let states: Result<Vec<SandboxState>, ApiError> = states.map(state).collect();
    let mut labels = BTreeMap::new();
    for label in query.labels.as_deref().unwrap_or("").split(',').filter(|label| !label.is_empty()) {
        let (name, value) = label.split_once('=').ok_or_else(|| {
            ApiError::plain(Code::BadRequest, "read the query", "a label is written `NAME=VALUE`")
        })?;
        labels.insert(name.to_owned(), value.to_owned());
    }
    let filter =
        Filter { states: states?, labels, template: query.template, created_from_ms: query.created_from_ms };
    let page = Page { after: query.after, limit: query.limit, oldest_first: query.oldest_first };
    engine.list(&caller, &filter, &page).await.map(Json)
}

fn state(word: &str) -> Result<SandboxState, ApiError> {
    match word {
        "running" => Ok(SandboxState::Running),
        "paused" => Ok(SandboxState::Paused),
        "halted" => Ok(SandboxState::Halted),
        "ended" => Ok(SandboxState::Ended),
        _ => Err(ApiError::plain(
            Code::BadRequest,
            "read the query",
            "a state is `running`, `paused`, `halted` or `ended`",
        )),
    }
}

pub(super) async fn find(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Sandbox>, ApiError> {
    Ok(Json(engine.find(&caller, &id)?.sandbox()))
}

pub(super) async fn stop(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    engine.stop(&engine.find(&caller, &id)?).await?;
    Ok(StatusCode::NO_CONTENT)
}

pub(super) async fn pause(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Sandbox>, ApiError> {
    engine.pause(&engine.find(&caller, &id)?, Pausing::Asked).await.map(Json)
}

pub(super) async fn resume(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(span): Words<Span>,
) -> Result<Json<Sandbox>, ApiError> {
    let live = engine.find(&caller, &id)?;
    engine.resume(&live, span.ttl_seconds.map(Duration::from_secs)).await.map(Json)
}

pub(super) async fn connect(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(span): Words<Span>,
) -> Result<Json<Sandbox>, ApiError> {
    let live = engine.find(&caller, &id)?;
    let (sandbox, _) = engine.connect(&live, span.ttl_seconds.map(Duration::from_secs)).await?;
    Ok(Json(sandbox))
}

pub(super) async fn ttl(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(span): Words<Span>,
) -> Result<Json<Sandbox>, ApiError> {
    let live = engine.find(&caller, &id)?;
    let span = span.ttl_seconds.ok_or_else(|| {
        ApiError::plain(Code::BadRequest, "set the sandbox's time", "`ttl_seconds` is missing")
    })?;
    engine.set_ttl(&live, Duration::from_secs(span)).await.map(Json)
}

pub(super) async fn metrics(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<Metrics>, ApiError> {
    engine.metrics(&engine.find(&caller, &id)?).await.map(Json)
}

pub(super) async fn tokens(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
) -> Result<Json<TokensView>, ApiError> {
    let live = engine.find(&caller, &id)?;
    let token = |purpose| engine.tokens().token(purpose, live.id().as_str());
    Ok(Json(TokensView { inside: token(Purpose::Inside), ports: token(Purpose::Ports) }))
}

pub(super) async fn snapshot(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(named): Words<Named>,
) -> Result<(StatusCode, Json<Snapshot>), ApiError> {
    let live = engine.find(&caller, &id)?;
    Ok((StatusCode::CREATED, Json(engine.snapshot(&live, named.name.as_deref(), named.memory).await?)))
}

pub(super) async fn fork(
    State(engine): State<Engine>,
    caller: Caller,
    Path(id): Path<String>,
    Words(fork): Words<Fork>,
) -> Result<(StatusCode, Json<Vec<Child>>), ApiError> {
    let live = engine.find(&caller, &id)?;
    let ttl = fork.ttl_seconds.map(Duration::from_secs);
    let children = engine.fork(&caller, &live, fork.count, ttl).await?.into_iter().map(|child| match child {
        Ok(sandbox) => Child::Sandbox(Box::new(sandbox)),
        Err(error) => Child::Error(error),
    });
    Ok((StatusCode::CREATED, Json(children.collect())))
}

pub(super) async fn snapshots(
    State(engine): State<Engine>,
    caller: Caller,
) -> Result<Json<Vec<Snapshot>>, ApiError> {
    engine.snapshots(&caller).await.map(Json)
}

pub(super) async fn remove_snapshot(
    State(engine): State<Engine>,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    engine.remove_snapshot(&caller, &name).await?;
    Ok(StatusCode::NO_CONTENT)
}
