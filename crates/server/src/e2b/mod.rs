//! The routes that the E2B SDKs call, translated to the engine's verbs.

use crate::engine::Engine;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

/// The control routes. Merged beside `/v1`, so no path here may begin with that.
pub fn router(_engine: &Engine) -> Router<Engine> {
    Router::new()
}

/// Looked at before every route: a request that names a sandbox by header or by host name goes to that sandbox.
pub async fn by_sandbox(State(_engine): State<Engine>, request: Request, next: Next) -> Response {
    next.run(request).await
}
