//! Every route of `/v1`: what serves it, what it needs, what it says. The OpenAPI document is written from this.

use super::{admin, execs, files, ports, sandboxes};
use crate::caller::Scope;
use crate::engine::Engine;
use crate::halt::Outcome;
use crate::quota::Quota;
use crate::sandbox::{Listed, Metrics, Sandbox, Snapshot};
use axum::routing::{MethodRouter, any, delete, get, post, put};
use schemars::{JsonSchema, Schema, SchemaGenerator};

/// Writes the schema of a type, with those it builds on.
type Write = fn(&mut SchemaGenerator) -> Schema;

/// One method of one path.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) method: &'static str,
    pub(super) path: &'static str,
    /// What a key must have; `None` is open to everybody.
    pub(super) scope: Option<Scope>,
    pub(super) summary: &'static str,
    pub(super) query: Option<Write>,
    pub(super) body: Said,
    pub(super) answer: (u16, Said),
    pub(super) handler: MethodRouter<Engine>,
}

/// What a body is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    Nothing,
    Json(Write),
    /// JSON that the keeper's protocol describes.
    Object,
    Bytes,
    /// A JSON object a line.
    Lines,
    Text,
}

// === impl Route ===

impl Route {
    fn new(
        method: &'static str,
        path: &'static str,
        scope: Option<Scope>,
        summary: &'static str,
        handler: MethodRouter<Engine>,
    ) -> Self {
        let (query, body, answer) = (None, Said::Nothing, (200, Said::Nothing));
        Self { method, path, scope, summary, query, body, answer, handler }
    }

    fn query<T: JsonSchema>(self) -> Self {
        Self { query: Some(write::<T>), ..self }
    }

    fn body<T: JsonSchema>(self) -> Self {
        Self { body: Said::Json(write::<T>), ..self }
    }

    fn bytes(self) -> Self {
        Self { body: Said::Bytes, ..self }
    }

    fn answer<T: JsonSchema>(self, status: u16) -> Self {
        self.says(status, Said::Json(write::<T>))
    }

    fn says(self, status: u16, said: Said) -> Self {
        Self { answer: (status, said), ..self }
    }
}

fn write<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// Every route of `/v1`.
pub(super) fn routes() -> Vec<Route> {
    let mut routes = of_sandboxes();
    routes.extend(of_snapshots());
    routes.extend(of_execs());
    routes.extend(of_files());
    routes.extend(of_operators());
    routes
}

fn of_sandboxes() -> Vec<Route> {
    const ALL: &str = "/v1/sandboxes";
    const ONE: &str = "/v1/sandboxes/{id}";
    let (read, write, exec) = (Some(Scope::Read), Some(Scope::Write), Some(Scope::Exec));
    vec![
        Route::new("post", ALL, write, "Create a sandbox, or claim one that waits", post(sandboxes::create))
            .body::<sandboxes::Create>()
            .answer::<Sandbox>(201),
        Route::new("get", ALL, read, "List sandboxes, a page at a time", get(sandboxes::list))
            .query::<sandboxes::ListQuery>()
            .answer::<Listed>(200),
        Route::new("get", ONE, read, "Show a sandbox", get(sandboxes::find)).answer::<Sandbox>(200),
        Route::new(
            "delete",
            ONE,
            write,
            "End a sandbox and remove everything of it",
            delete(sandboxes::stop),
        )
        .says(204, Said::Nothing),
        Route::new(
            "put",
            "/v1/sandboxes/{id}/network",
            write,
            "Change what a sandbox may reach",
            put(sandboxes::network),
        )
        .body::<sandboxes::NetworkChange>()
        .says(204, Said::Nothing),
        Route::new("post", "/v1/sandboxes/{id}/pause", write, "Freeze a sandbox", post(sandboxes::pause))
            .answer::<Sandbox>(200),
        Route::new("post", "/v1/sandboxes/{id}/resume", write, "Thaw a sandbox", post(sandboxes::resume))
            .body::<sandboxes::Span>()
            .answer::<Sandbox>(200),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/connect",
            write,
            "Make sure that a sandbox runs",
            post(sandboxes::connect),
        )
        .body::<sandboxes::Span>()
        .answer::<Sandbox>(200),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/ttl",
            write,
            "Set when a sandbox's time is over",
            post(sandboxes::ttl),
        )
        .body::<sandboxes::Span>()
        .answer::<Sandbox>(200),
        Route::new("get", "/v1/sandboxes/{id}/metrics", read, "Measure a sandbox", get(sandboxes::metrics))
            .answer::<Metrics>(200),
        Route::new(
            "get",
            "/v1/sandboxes/{id}/tokens",
            exec,
            "Tokens that open this sandbox alone",
            get(sandboxes::tokens),
        )
        .answer::<sandboxes::TokensView>(200),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/snapshots",
            write,
            "Keep a sandbox's files",
            post(sandboxes::snapshot),
        )
        .body::<sandboxes::Named>()
        .answer::<Snapshot>(201),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/fork",
            write,
            "Make children of a sandbox",
            post(sandboxes::fork),
        )
        .body::<sandboxes::Fork>()
        .answer::<Vec<sandboxes::Child>>(201),
    ]
}

fn of_snapshots() -> Vec<Route> {
    let (read, write) = (Some(Scope::Read), Some(Scope::Write));
    vec![
        Route::new("get", "/v1/snapshots", read, "List snapshots", get(sandboxes::snapshots))
            .answer::<Vec<Snapshot>>(200),
        Route::new(
            "delete",
            "/v1/snapshots/{name}",
            write,
            "Remove a snapshot",
            delete(sandboxes::remove_snapshot),
        )
        .says(204, Said::Nothing),
    ]
}

fn of_execs() -> Vec<Route> {
    const ALL: &str = "/v1/sandboxes/{id}/execs";
    let (read, exec) = (Some(Scope::Read), Some(Scope::Exec));
    vec![
        Route::new("post", ALL, exec, "Run a command", post(execs::run))
            .query::<execs::RunQuery>()
            .body::<execs::Run>()
            .says(200, Said::Lines),
        Route::new(
            "get",
            ALL,
            read,
            "List commands that run, and the last ones that ended",
            get(execs::list),
        )
        .says(200, Said::Object),
        Route::new(
            "get",
            "/v1/sandboxes/{id}/execs/{exec}",
            exec,
            "Attach to a command, from a cursor on",
            get(execs::attach),
        )
        .query::<execs::AttachQuery>()
        .says(200, Said::Lines),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/execs/{exec}/stdin",
            exec,
            "Give input to a command",
            post(execs::input),
        )
        .query::<execs::InputQuery>()
        .bytes()
        .says(204, Said::Nothing),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/execs/{exec}/signal",
            exec,
            "Send a command a signal",
            post(execs::signal),
        )
        .body::<execs::SignalBody>()
        .says(204, Said::Nothing),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/execs/{exec}/resize",
            exec,
            "Resize a command's terminal",
            post(execs::resize),
        )
        .body::<execs::Terminal>()
        .says(204, Said::Nothing),
        Route::new(
            "any",
            "/v1/sandboxes/{id}/ports/{port}",
            exec,
            "Reach a port inside",
            any(ports::by_path),
        )
        .bytes()
        .says(200, Said::Bytes),
        Route::new(
            "any",
            "/v1/sandboxes/{id}/ports/{port}/{*path}",
            exec,
            "Reach a port inside",
            any(ports::by_path),
        )
        .bytes()
        .says(200, Said::Bytes),
    ]
}

fn of_files() -> Vec<Route> {
    const ALL: &str = "/v1/sandboxes/{id}/files";
    let (read, write) = (Some(Scope::Read), Some(Scope::Write));
    vec![
        Route::new("get", ALL, read, "Read a file, or one range of it", get(files::read))
            .query::<files::At>()
            .says(200, Said::Bytes),
        Route::new("put", ALL, write, "Make or replace a file", put(files::write))
            .query::<files::WriteQuery>()
            .bytes()
            .says(201, Said::Object),
        Route::new(
            "delete",
            ALL,
            write,
            "Remove a file, or a folder with all that is in it",
            delete(files::remove),
        )
        .query::<files::At>()
        .says(204, Said::Nothing),
        Route::new("get", "/v1/sandboxes/{id}/files/stat", read, "Say what a path is", get(files::stat_file))
            .query::<files::At>()
            .says(200, Said::Object),
        Route::new("get", "/v1/sandboxes/{id}/files/list", read, "List a folder", get(files::list))
            .query::<files::FolderQuery>()
            .answer::<files::Entries>(200),
        Route::new(
            "post",
            "/v1/sandboxes/{id}/files/folder",
            write,
            "Make a folder",
            post(files::make_folder),
        )
        .body::<files::At>()
        .says(201, Said::Nothing),
        Route::new("post", "/v1/sandboxes/{id}/files/move", write, "Move or rename", post(files::rename))
            .body::<files::MoveBody>()
            .says(204, Said::Nothing),
        Route::new(
            "get",
            "/v1/sandboxes/{id}/files/watch",
            read,
            "Tell of changes, a line each",
            get(files::watch),
        )
        .query::<files::WatchQuery>()
        .says(200, Said::Lines),
    ]
}

fn of_operators() -> Vec<Route> {
    let (halt, admin) = (Some(Scope::Halt), Some(Scope::Admin));
    vec![
        Route::new(
            "post",
            "/v1/halt",
            halt,
            "Cut the network and freeze; take no new work",
            post(admin::halt),
        )
        .body::<admin::HaltBody>()
        .answer::<Outcome>(200),
        Route::new("post", "/v1/release", halt, "Take a halt back", post(admin::release))
            .body::<admin::HaltBody>()
            .answer::<Outcome>(200),
        Route::new("post", "/v1/keys", admin, "Mint a key", post(admin::new_key))
            .body::<admin::KeyBody>()
            .answer::<admin::KeyView>(201),
        Route::new("get", "/v1/keys", admin, "List keys, without the keys", get(admin::keys))
            .answer::<Vec<admin::KeyView>>(200),
        Route::new("delete", "/v1/keys/{name}", admin, "Remove a key", delete(admin::remove_key))
            .says(204, Said::Nothing),
        Route::new("get", "/v1/teams/{team}/quota", admin, "Show a team's ceilings", get(admin::quota))
            .answer::<Quota>(200),
        Route::new("put", "/v1/teams/{team}/quota", admin, "Set a team's ceilings", put(admin::set_quota))
            .body::<Quota>()
            .answer::<Quota>(200),
        Route::new("get", "/v1/keys/{name}/quota", admin, "Show a key's ceilings", get(admin::key_quota))
            .answer::<Quota>(200),
        Route::new("put", "/v1/keys/{name}/quota", admin, "Set a key's ceilings", put(admin::set_key_quota))
            .body::<Quota>()
            .answer::<Quota>(200),
        Route::new("get", "/v1/openapi.json", Some(Scope::Read), "This document", get(admin::document))
            .says(200, Said::Object),
        Route::new("get", "/metrics", admin, "Figures for Prometheus", get(admin::metrics))
            .says(200, Said::Text),
    ]
}
