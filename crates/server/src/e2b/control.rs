//! The control plane: both generations of its routes.

use super::network::{Network, refuse_others};
use super::refusal::{Refusal, Told, Who};
use super::words::{self, Access, NETWORK, OWN, PUBLIC, TEMPLATE};
use crate::caller::{Caller, Scope};
use crate::engine::{Engine, Pausing};
use crate::error::{ApiError, Code};
use crate::live::Live;
use crate::sandbox::{
    BASE_TEMPLATE, Filter, NewSandbox, OnTimeout, Page, Sandbox, Snapshot, State as Running,
};
use crate::tokens::Purpose;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post, put};
use axum::{Json, Router};
use fumehood_keep::wire::{Ask, Said};
use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a sandbox lives if its create does not say, in seconds: by the older route, and by the newer.
const USUAL: (u64, u64) = (15, 300);
/// Templates that E2B has and clients name by themselves.
pub(super) const THEIRS: [&str; 3] = ["base", "code-interpreter-v1", "code-interpreter"];
const KILL: u8 = 9;
/// As the engine takes them.
const MOST_LABEL_BYTES: usize = 4096;
const SECOND_MS: u64 = 1000;

pub(super) type Done = Result<Response, Refusal>;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Create {
    #[serde(rename = "templateID")]
    template_id: Option<String>,
    timeout: Option<u64>,
    metadata: Option<BTreeMap<String, String>>,
    env_vars: Option<BTreeMap<String, String>>,
    /// Always so, whatever is said.
    #[serde(rename = "secure")]
    _secure: Option<bool>,
    auto_pause: Option<bool>,
    auto_pause_memory: Option<bool>,
    auto_resume: Option<AutoResume>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
    network: Option<Value>,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
struct AutoResume {
    enabled: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    timeout: Option<u64>,
    duration: Option<u64>,
    memory: Option<bool>,
    count: Option<usize>,
    name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListQuery {
    metadata: Option<String>,
    state: Option<String>,
    template: Option<String>,
    started_after: Option<String>,
    order: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct SpanQuery {
    start: Option<u64>,
    end: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SnapshotQuery {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

pub(super) fn router() -> Router<Engine> {
    Router::new()
        .route("/sandboxes", post(create_v1).get(list_v1))
        .route("/v2/sandboxes", post(create_v2).get(list_v2))
        .route("/sandboxes/{id}", get(find).delete(stop))
        .route("/sandboxes/{id}/connect", post(connect))
        .route("/v2/sandboxes/{id}/connect", post(connect))
        .route("/sandboxes/{id}/resume", post(resume))
        .route("/sandboxes/{id}/timeout", post(timeout))
        .route("/sandboxes/{id}/refreshes", post(refresh))
        .route("/sandboxes/{id}/pause", post(pause))
        .route("/sandboxes/{id}/fork", post(fork))
        .route("/sandboxes/{id}/snapshots", post(snapshot))
        .route("/sandboxes/{id}/network", put(network))
        .route("/sandboxes/{id}/metrics", get(metrics))
        .route("/sandboxes/{id}/logs", get(logs_v1))
        .route("/v2/sandboxes/{id}/logs", get(logs_v2))
        .route("/snapshots", get(snapshots))
        .merge(super::templates::router())
}

async fn create_v1(
    State(engine): State<Engine>,
    Who(caller): Who,
    headers: HeaderMap,
    Told(asked): Told<Create>,
) -> Done {
    create(&engine, &caller, &headers, asked, USUAL.0).await
}

async fn create_v2(
    State(engine): State<Engine>,
    Who(caller): Who,
    headers: HeaderMap,
    Told(asked): Told<Create>,
) -> Done {
    create(&engine, &caller, &headers, asked, USUAL.1).await
}

async fn create(engine: &Engine, caller: &Caller, headers: &HeaderMap, asked: Create, usual: u64) -> Done {
    caller.needs(Scope::Write)?;
    refuse_others(&asked.others, "the sandbox")?;
    let auto_pause = asked.auto_pause == Some(true);
    if auto_pause && asked.auto_pause_memory == Some(false) {
        return Err(Refusal::bad(
            "make the sandbox as asked",
            "a pause at the end of its time keeps memory here",
            "leave `autoPauseMemory` out, or pause it yourself with `memory: false`",
        ));
    }
    let written = asked.network.unwrap_or(Value::Null);
    let network = Network::read(&written)?;
    let (clause, literals) = network.clause(asked.allow_internet_access)?;
    let named = asked.template_id.as_deref().unwrap_or(BASE_TEMPLATE);
    let mut labels = asked.metadata.unwrap_or_default();
    if labels.keys().any(|name| name.starts_with(OWN)) {
        return Err(Refusal::bad(
            "read the metadata",
            "names that begin with `e2b:` are the daemon's own",
            "rename it",
        ));
    }
    if network.is_public() {
        labels.insert(PUBLIC.to_owned(), "1".to_owned());
    }
    // For who asks later what was asked for; what holds is in the envelope.
    let written = Network::shown(&written);
    if !clause.is_null() && written != "null" && written.len() <= MOST_LABEL_BYTES {
        labels.insert(NETWORK.to_owned(), written);
    }
    let idempotency_key = match headers.get("idempotency-key").map(HeaderValue::to_str) {
        None => None,
        Some(Ok(key)) => Some(key.to_owned()),
        Some(Err(_)) => {
            return Err(Refusal::bad(
                "read `Idempotency-Key`",
                "it is not plain text",
                "send letters and digits",
            ));
        }
    };
    let mut new = NewSandbox {
        template: Some(named.to_owned()),
        ttl: Some(Duration::from_secs(asked.timeout.unwrap_or(usual))),
        on_timeout: if auto_pause { OnTimeout::Pause } else { OnTimeout::Stop },
        auto_resume: asked.auto_resume.is_some_and(|resume| resume.enabled),
        labels,
        env: asked.env_vars.unwrap_or_default().into_iter().collect(),
        envelope: if clause.is_null() { Value::Null } else { json!({ "network": clause }) },
        literals,
        idempotency_key,
        ..NewSandbox::default()
    };
    let made = match engine.create(caller, new.clone()).await {
        // A template of E2B's own that the operator has none of: what is at hand stands in.
        Err(error) if error.code == Code::NotFound && THEIRS.contains(&named) => {
            new.labels.insert(TEMPLATE.to_owned(), named.to_owned());
            new.template = Some(BASE_TEMPLATE.to_owned());
            engine.create(caller, new).await
        }
        made => made,
    };
    let sandbox = made?;
    let words = words::short(&sandbox, &access(engine, headers, &sandbox));
    Ok((StatusCode::CREATED, Json(words)).into_response())
}

/// What opens a sandbox. The domain is one under which its ports have names of their own.
fn access(engine: &Engine, headers: &HeaderMap, sandbox: &Sandbox) -> Access {
    let id = sandbox.id.as_str();
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    let (name, port) =
        host.rsplit_once(':').map_or((host, String::new()), |(name, port)| (name, format!(":{port}")));
    let domain = match engine.config().domains.first() {
        Some(domain) => Some(format!("{domain}{port}")),
        // Every name below `localhost` is this host.
        None if matches!(name, "localhost" | "127.0.0.1" | "[::1]") => Some(format!("localhost{port}")),
        None => None,
    };
    Access {
        envd: engine.tokens().token(Purpose::Inside, id),
        traffic: engine.tokens().token(Purpose::Ports, id),
        domain,
    }
}

async fn list_v1(State(engine): State<Engine>, Who(caller): Who, Query(query): Query<ListQuery>) -> Done {
    let query = ListQuery { state: Some("running".to_owned()), limit: Some(Page::MOST), ..query };
    list(&engine, &caller, query).await
}

async fn list_v2(State(engine): State<Engine>, Who(caller): Who, Query(query): Query<ListQuery>) -> Done {
    list(&engine, &caller, query).await
}

async fn list(engine: &Engine, caller: &Caller, query: ListQuery) -> Done {
    caller.needs(Scope::Read)?;
    let mut states = Vec::new();
    for word in query.state.as_deref().unwrap_or("").split(',').filter(|word| !word.is_empty()) {
        match word {
            "running" => states.push(Running::Running),
            "paused" => states.extend([Running::Paused, Running::Halted]),
            _ => {
                return Err(Refusal::bad(
                    "read the query",
                    "a state is `running` or `paused`",
                    "write one of them",
                ));
            }
        }
    }
    if let Some(after) = &query.started_after {
        let cause = format!("`startedAfter={}` is not looked at", after.chars().take(40).collect::<String>());
        return Err(Refusal::bad("list sandboxes", cause, "leave it out, and look at `startedAt`"));
    }
    let labels = query.metadata.as_deref().map(metadata).transpose()?.unwrap_or_default();
    let filter = Filter { states, labels, template: query.template, created_from_ms: None };
    let page = Page {
        after: query.next_token.filter(|token| !token.is_empty()),
        limit: query.limit,
        oldest_first: query.order.as_deref() == Some("asc"),
    };
    let listed = engine.list(caller, &filter, &page).await?;
    let shown: Vec<Value> =
        listed.sandboxes.iter().map(|sandbox| Value::Object(words::listed(sandbox))).collect();
    paged(Json(shown).into_response(), listed.next.as_deref())
}

fn paged(mut response: Response, next: Option<&str>) -> Done {
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(next).ok()) {
        response.headers_mut().insert(HeaderName::from_static("x-next-token"), next);
    }
    Ok(response)
}

/// `a=b&c=d`, each part encoded once or twice: as clients of all ages send it.
fn metadata(text: &str) -> Result<BTreeMap<String, String>, Refusal> {
    let decode = |text: &str| unescape(&text.replace('+', " ")).and_then(|text| unescape(&text));
    let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((decode(name)?, decode(value)?))
    });
    pairs.collect::<Option<_>>().ok_or_else(|| {
        Refusal::bad(
            "read the query",
            "`metadata` is not `NAME=VALUE&…`, encoded",
            "encode it as a URL's query",
        )
    })
}

/// `%41` as `A`. What is not such an escape stands for itself.
fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.split_first_chunk::<2>()).flatten();
        let byte =
            escaped.and_then(|(digits, _)| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match (byte, escaped) {
            (Some(byte), Some((_, left))) => {
                bytes.push(byte);
                rest = left;
            }
            (_, _) => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

async fn find(
    State(engine): State<Engine>,
    Who(caller): Who,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Done {
    caller.needs(Scope::Read)?;
    let sandbox = engine.find(&caller, &id)?.sandbox();
    let mut access = access(&engine, &headers, &sandbox);
    if !caller.scopes.has(Scope::Exec) {
        // Who may look may not therefore enter.
        access.envd.clear();
    }
    Ok(Json(words::detailed(&sandbox, &access)).into_response())
}

async fn stop(State(engine): State<Engine>, Who(caller): Who, Path(id): Path<String>) -> Done {
    caller.needs(Scope::Write)?;
    engine.stop(&engine.find(&caller, &id)?).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn connect(
    State(engine): State<Engine>,
    Who(caller): Who,
    headers: HeaderMap,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Exec)?;
    let live = engine.find(&caller, &id)?;
    let ttl = Duration::from_secs(asked.timeout.unwrap_or(USUAL.1));
    let is_cold = asked.memory == Some(false) && live.state() == Running::Paused;
    let (sandbox, woken) = engine.connect(&live, Some(ttl)).await?;
    if is_cold {
        end_commands(&live).await?;
    }
    let status = if woken { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(words::short(&sandbox, &access(&engine, &headers, &sandbox)))).into_response())
}

async fn resume(
    State(engine): State<Engine>,
    Who(caller): Who,
    headers: HeaderMap,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Exec)?;
    let live = engine.find(&caller, &id)?;
    let ttl = Duration::from_secs(asked.timeout.unwrap_or(USUAL.0));
    let sandbox = engine.resume(&live, Some(ttl)).await?;
    let words = words::short(&sandbox, &access(&engine, &headers, &sandbox));
    Ok((StatusCode::CREATED, Json(words)).into_response())
}

async fn timeout(
    State(engine): State<Engine>,
    Who(caller): Who,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Write)?;
    let Some(seconds) = asked.timeout else {
        return Err(Refusal::bad("set the sandbox's time", "`timeout` is missing", "send seconds"));
    };
    engine.set_ttl(&engine.find(&caller, &id)?, Duration::from_secs(seconds)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Extends a sandbox's time; never shortens it.
async fn refresh(
    State(engine): State<Engine>,
    Who(caller): Who,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Write)?;
    let live = engine.find(&caller, &id)?;
    if live.state() != Running::Running {
        return Err(ApiError::plain(Code::Paused, "refresh the sandbox", "it is paused").into());
    }
    engine.connect(&live, Some(Duration::from_secs(asked.duration.unwrap_or(USUAL.0)))).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn pause(
    State(engine): State<Engine>,
    Who(caller): Who,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Write)?;
    let live = engine.find(&caller, &id)?;
    if asked.memory == Some(false) && live.state() == Running::Running {
        end_commands(&live).await?;
    }
    engine.pause(&live, Pausing::Asked).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Ends what runs, and with it what it has in memory: files are all that is left, as after a boot from disk.
async fn end_commands(live: &Live) -> Result<(), Refusal> {
    let Said::Execs { execs } = live.keeper().call(&Ask::List).await? else {
        let cause = "the keeper answered something else";
        return Err(ApiError::plain(Code::Internal, "list the commands", cause).into());
    };
    for exec in execs.into_iter().filter(|exec| exec.ending.is_none()) {
        match live.keeper().call(&Ask::Signal { exec: exec.exec, signal: KILL }).await.map_err(ApiError::from)
        {
            Err(error) if error.code != Code::NoExec => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

async fn fork(
    State(engine): State<Engine>,
    Who(caller): Who,
    headers: HeaderMap,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Write)?;
    let live = engine.find(&caller, &id)?;
    let ttl = Duration::from_secs(asked.timeout.unwrap_or(USUAL.0));
    let children = engine.fork(&caller, &live, asked.count.unwrap_or(1), Some(ttl)).await?;
    let children = children.into_iter().map(|child| match child {
        Ok(sandbox) => json!({ "sandbox": words::short(&sandbox, &access(&engine, &headers, &sandbox)) }),
        Err(error) => {
            json!({ "error": { "code": error.status().as_u16(), "message": super::sentence(&error) } })
        }
    });
    Ok((StatusCode::CREATED, Json(children.collect::<Vec<_>>())).into_response())
}

async fn snapshot(
    State(engine): State<Engine>,
    Who(caller): Who,
    Path(id): Path<String>,
    Told(asked): Told<Asked>,
) -> Done {
    caller.needs(Scope::Write)?;
    let live = engine.find(&caller, &id)?;
    let snapshot =
        engine.snapshot(&live, asked.name.as_deref(), asked.memory.filter(|memory| *memory)).await?;
    Ok((StatusCode::CREATED, Json(snapshot_words(&snapshot))).into_response())
}

fn snapshot_words(snapshot: &Snapshot) -> Value {
    json!({ "snapshotID": snapshot.name, "names": [snapshot.name] })
}

async fn snapshots(
    State(engine): State<Engine>,
    Who(caller): Who,
    Query(query): Query<SnapshotQuery>,
) -> Done {
    caller.needs(Scope::Read)?;
    let mut found = engine.snapshots(&caller).await?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    let after = query.next_token.as_deref().unwrap_or("");
    let is_meant = |snapshot: &&Snapshot| {
        snapshot.name.as_str() > after
            && query.sandbox_id.as_ref().is_none_or(|id| *id == snapshot.sandbox)
            && query.name.as_ref().is_none_or(|name| *name == snapshot.name)
    };
    let mut rest = found.iter().filter(is_meant);
    let limit = query.limit.unwrap_or(Page::USUAL).clamp(1, Page::MOST);
    let page: Vec<&Snapshot> = rest.by_ref().take(limit).collect();
    let next = rest.next().and_then(|_| page.last()).map(|last| last.name.clone());
    let shown: Vec<Value> = page.into_iter().map(snapshot_words).collect();
    paged(Json(shown).into_response(), next.as_deref())
}

/// Replaces what a sandbox may reach. What is left out is cleared.
async fn network(
    State(engine): State<Engine>,
    Who(caller): Who,
    Path(id): Path<String>,
    Told(written): Told<Value>,
) -> Done {
    caller.needs(Scope::Write)?;
    let live = engine.find(&caller, &id)?;
    let reach = Network::read(&written)?.reach()?;
    engine.change_network(&caller, &live, reach).await?;
    let shown = Network::shown(&written);
    engine.relabel(&live, NETWORK, (shown.len() <= MOST_LABEL_BYTES).then_some(shown)).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn metrics(
    State(engine): State<Engine>,
    Who(caller): Who,
    Path(id): Path<String>,
    Query(span): Query<SpanQuery>,
) -> Done {
    caller.needs(Scope::Read)?;
    let live = engine.find(&caller, &id)?;
    if live.metrics().is_empty() && live.state() == Running::Running {
        engine.metrics(&live).await?;
    }
    let within = |at_ms: u64| {
        let at = at_ms / SECOND_MS;
        span.start.is_none_or(|start| start <= at) && span.end.is_none_or(|end| at <= end)
    };
    let kept = live.metrics().into_iter().filter(|metrics| within(metrics.at_ms));
    Ok(Json(kept.map(|metrics| words::metric(&metrics)).collect::<Vec<_>>()).into_response())
}

/// What a sandbox's keeper knows of its commands: when each began, and how it ended.
async fn log(engine: &Engine, caller: &Caller, id: &str) -> Result<Vec<Value>, Refusal> {
    caller.needs(Scope::Read)?;
    let live = engine.find(caller, id)?;
    let Said::Execs { execs } = live.keeper().call(&Ask::List).await? else { return Ok(Vec::new()) };
    let lines = execs.into_iter().map(|exec| {
        let ended = exec.ending.as_ref().map_or("runs", |ending| ending.cause());
        json!({
            "timestamp": words::rfc3339(exec.started_ms),
            "message": format!("process {} started: {ended}", exec.pid),
            "level": "info",
            "fields": { "pid": exec.pid.to_string(), "cmd": exec.argv.join(" "), "cwd": exec.cwd, "state": ended },
        })
    });
    Ok(lines.collect())
}

async fn logs_v1(State(engine): State<Engine>, Who(caller): Who, Path(id): Path<String>) -> Done {
    let entries = log(&engine, &caller, &id).await?;
    let lines: Vec<Value> = entries
        .iter()
        .map(|entry| json!({ "timestamp": entry.get("timestamp"), "line": entry.to_string() }))
        .collect();
    Ok(Json(json!({ "logs": lines, "logEntries": entries })).into_response())
}

async fn logs_v2(State(engine): State<Engine>, Who(caller): Who, Path(id): Path<String>) -> Done {
    Ok(Json(json!({ "logs": log(&engine, &caller, &id).await? })).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_however_often_it_was_encoded() {
        let of = |text: &str| metadata(text).unwrap().into_iter().collect::<Vec<_>>();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(of("a=b&c=d"), [pair("a", "b"), pair("c", "d")]);
        assert_eq!(of("na%2520me=%25C3%25A4"), [pair("na me", "ä")]);
        assert_eq!(of("a=x+y"), [pair("a", "x y")]);
        assert_eq!(of("a=100%"), [pair("a", "100%")]);
        assert!(metadata("a").is_err());
    }

    #[test]
    fn odd_fields_of_a_create_are_seen() {
        let create: Create =
            serde_json::from_value(json!({ "templateID": "base", "mcp": { "a": {} } })).unwrap();
        assert!(refuse_others(&create.others, "the sandbox").is_err());
        let create: Create =
            serde_json::from_value(json!({ "templateID": "base", "mcp": null, "volumeMounts": [] })).unwrap();
        assert!(refuse_others(&create.others, "the sandbox").is_ok());
    }
}
