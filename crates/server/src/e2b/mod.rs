//! What the E2B SDKs speak, translated to the engine's verbs.
//!
//! | where | what |
//! |---|---|
//! | no sandbox named | the control plane: [`control`] |
//! | port 49983 of a sandbox | envd: [`envd`] and below |
//! | port 49999 of a sandbox | the code interpreter: [`interpreter`] |
//! | another port of a sandbox | whatever listens there inside |
//!
//! A sandbox is named by the header `E2b-Sandbox-Id`, by the host `PORT-ID.DOMAIN`, or by a signed URL alone. None of
//! these ports but the last kind is open inside: envd and the interpreter are spoken by the daemon, over the keeper.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "an answer that was not asked for is one error, whatever it is"
)]

mod connect;
mod control;
mod entries;
mod envd;
mod files;
mod filesystem;
mod interpreter;
mod multipart;
mod network;
mod process;
mod refusal;
mod route;
mod signature;
mod templates;
mod watchers;
mod words;

use crate::engine::Engine;
use crate::error::ApiError;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use watchers::Watchers;

/// What the data plane remembers beside the engine.
#[derive(Clone, Debug)]
pub struct Door {
    engine: Engine,
    watchers: Arc<Watchers>,
    kernels: Arc<interpreter::Kernels>,
}

// === impl Door ===

impl Door {
    /// The data plane of this engine.
    #[must_use]
    pub fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), watchers: Arc::default(), kernels: Arc::default() }
    }
}

/// The control routes. Merged beside `/v1`, so no path here may begin with that.
pub fn router() -> Router<Engine> {
    control::router()
}

/// Looked at before every route: a request that names a sandbox by header, by host name or by a signature goes to
/// that sandbox.
pub async fn by_sandbox(State(door): State<Door>, request: Request, next: Next) -> Response {
    match route::target(&door.engine, &request) {
        route::Target::None => next.run(request).await,
        route::Target::Port { id, port } => route::dispatch(&door, &id, port, request).await,
        route::Target::Odd(refusal) => refusal,
    }
}

/// An error as one sentence: these clients show nothing else.
fn sentence(error: &ApiError) -> String {
    format!("failed to {}: {}; {}", error.message, error.cause, error.remediation)
}
